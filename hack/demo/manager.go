package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// startManager starts binary with the flags that a plain control plane needs, and waits until the manager is ready. It
// calls ended when the manager ends.
func (d *demo) startManager(ctx context.Context, binary string, ended context.CancelCauseFunc) error {
	health, err := cluster.FreeAddress()
	if err != nil {
		return err
	}
	d.manager, err = d.cluster.StartProcess("manager", binary, "--kubeconfig", d.kubeconfig,
		"--signing-secret", signingSecret,
		"--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", health, "-v", "1")
	if err != nil {
		return err
	}
	go func() {
		<-d.manager.Done
		ended(fmt.Errorf("the manager stopped unexpectedly: %s", d.manager.Ended()))
	}()
	return ready(ctx, health)
}

// ready reports whether the manager's /readyz succeeds: then it has a CA to sign with.
func ready(ctx context.Context, health string) error {
	return until(ctx, "the manager is ready", func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+"/readyz", nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil // it does not listen yet
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	})
}
