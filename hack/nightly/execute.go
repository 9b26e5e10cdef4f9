package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// prelude defines the function use for the commands of parts.yaml: it sets the variables that a get.sh prints. PART is the part's name.
const prelude = `set -euo pipefail; use() { local place; place=$("$@"); set -a; eval "$place"; set +a; }; `

// grace is how long a process group may take to end after a signal, until it gets a stronger one.
const grace = 20 * time.Second

// run runs p within its limit, and writes its output to the file log.
func (p part) run(ctx context.Context, log string) (result string, err error) {
	file, err := os.Create(log)
	if err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeout(ctx, p.Limit.Duration)
	defer cancel()
	err = p.execute(limited, file)
	switch {
	case ctx.Err() != nil:
		result = interrupted
	case limited.Err() != nil:
		result = outOfTime
	case err != nil:
		result = failed
	default:
		result = passed
	}
	return result, file.Close()
}

// execute runs the command of p in a process group of its own, until ctx ends.
func (p part) execute(ctx context.Context, log *os.File) error {
	command := exec.Command("bash", "-c", prelude+p.Command)
	command.Env = append(os.Environ(), "PART="+p.Name)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	group := -command.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		_ = syscall.Kill(group, syscall.SIGKILL) // what the part left running
		return err
	case <-ctx.Done():
	}
	// The signal of Ctrl-C comes first: make, bash and go wait for what they started, and clean up.
	for _, each := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		_ = syscall.Kill(group, each)
		for until := time.Now().Add(grace); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
			if errors.Is(syscall.Kill(group, 0), syscall.ESRCH) {
				return ctx.Err()
			}
		}
	}
	return ctx.Err()
}
