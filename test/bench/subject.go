package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// subject is a controller under test, in a process of its own.
type subject struct {
	name    string
	command string
	args    []string

	cpu time.Duration // that its process took, in the last round
}

// stopGrace is how long a process may take to end before it is killed.
const stopGrace = 10 * time.Second

func (b *bench) subjects(kubeconfig, certFile, keyFile string) error {
	kcm := os.Getenv("KUBE_CONTROLLER_MANAGER")
	if kcm == "" {
		return fmt.Errorf("KUBE_CONTROLLER_MANAGER is not set: run `make bench-quick`, or eval hack/controlplane/get.sh")
	}
	common := []string{"--kubeconfig=" + kubeconfig, "--cluster-signing-cert-file=" + certFile, "--cluster-signing-key-file=" + keyFile}
	b.ours = &subject{name: "ours", command: b.binary,
		args: append([]string{"--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0"}, common...)}
	b.kcm = &subject{name: "kube-controller-manager", command: kcm, args: append([]string{
		"--controllers=csrapproving,csrsigning,csrcleaner", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=10000", "--kube-api-burst=10000",
	}, common...)}
	return nil
}

// start runs s until the returned function is called, which returns what went wrong on the way. What s writes goes to
// a file in c's folder, as a service's output does, so that both pay for their logs.
func (s *subject) start(ctx context.Context, c *cluster.Cluster) (stop func() error, err error) {
	path := filepath.Join(c.Dir, s.name+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	command := exec.CommandContext(ctx, s.command, s.args...)
	command.Stdout, command.Stderr = log, log
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = stopGrace
	if err := command.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	c.Guard(command.Process)
	return func() error {
		early := command.Process.Signal(syscall.Signal(0)) // an error when it has ended by itself
		cancel()
		_ = command.Wait() // it was told to end: how does not matter
		_ = log.Close()
		s.cpu = command.ProcessState.UserTime() + command.ProcessState.SystemTime()
		if early != nil {
			return fmt.Errorf("%s ended by itself: %w", s.name, early)
		}
		return nil
	}, nil
}
