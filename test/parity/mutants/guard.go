package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// guardScript reads ids of process groups, one a line and with a minus once it has ended, until its input ends. Without
// a line "done" then, as when the process at the other end was killed, it ends the groups that are left and removes the
// folder $1. What the tests started has guards of its own, see test/cluster.
const guardScript = `groups=
while read -r line; do
  case $line in
  done) exit 0 ;;
  -*) left=; for group in $groups; do [ "-$group" = "$line" ] || left="$left $group"; done; groups=$left ;;
  *) groups="$groups $line" ;;
  esac
done
for group in $groups; do kill -9 "-$group" 2>/dev/null; done
for try in 1 2 3; do rm -rf "$1" && exit 0; sleep 1; done`

type guard struct {
	command *exec.Cmd
	input   io.WriteCloser
}

// startGuard starts a guard in a session of its own, so that Ctrl-C does not end it first.
func startGuard(dir string) (*guard, error) {
	command := exec.Command("sh", "-c", guardScript, "guard", dir)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return &guard{command: command, input: input}, nil
}

func (g *guard) stop() error {
	_, _ = io.WriteString(g.input, "done\n")
	_ = g.input.Close()
	return g.command.Wait()
}

// command runs in a process group of its own, which the guard knows.
func (l *lab) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if name == "git" {
		cmd.Stderr = os.Stderr
	}
	cmd.Env = append(os.Environ(), "GOTMPDIR="+l.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	_, _ = fmt.Fprintf(l.guard.input, "%d\n", cmd.Process.Pid)
	err := cmd.Wait()
	_, _ = fmt.Fprintf(l.guard.input, "-%d\n", cmd.Process.Pid)
	return out.String(), err
}
