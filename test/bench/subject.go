package main

import (
	"fmt"
	"os"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// subject is a controller under test, in its own process.
type subject struct {
	name    string
	command string
	args    []string

	cpu time.Duration // of its process, in the last round
}

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

// start runs s until the returned function is called, which returns all errors since. The output of s goes to a file,
// like a service's output, so that both programs pay for their logs.
func (s *subject) start(c *cluster.Cluster) (stop func() error, err error) {
	process, err := c.StartProcess(s.name, s.command, s.args...)
	if err != nil {
		return nil, err
	}
	return func() error {
		early := process.Ended()
		_ = process.Stop() // it was told to end, and the exit status does not matter
		s.cpu = process.Ended().UserTime() + process.Ended().SystemTime()
		if early != nil {
			return fmt.Errorf("%s ended by itself: %s\n%s", s.name, early, process.Tail(15))
		}
		return nil
	}, nil
}
