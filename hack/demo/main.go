// Command demo lets a node join a real control plane on which the real csr-controller-manager runs, step by step. It
// checks every step, so that it fails with a manager that approves, signs or cleans too much or too little, and it
// leaves nothing behind. With -keep it stays up after the set-up instead.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// limit bounds the duration of all steps.
const limit = 2 * time.Minute

func main() {
	binary := flag.String("manager", "./csr-controller-manager", "the `binary` to run")
	keep := flag.Bool("keep", false, "set up, then stay up until Ctrl-C")
	flag.Parse()
	log.SetLogger(logr.Discard()) // the demo prints its own messages
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *binary, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary string, keep bool) (err error) {
	d := &demo{begin: time.Now()}
	defer func() { err = errors.Join(err, d.stop(err != nil)) }()
	if err := d.startCluster(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := d.perform(ctx, binary, keep, cancel); err != nil {
		return errors.Join(err, context.Cause(ctx)) // Ctrl-C, or the end of the manager
	}
	return nil
}

func (d *demo) perform(ctx context.Context, binary string, keep bool, ended context.CancelCauseFunc) error {
	if err := d.setUp(ctx, binary, ended); err != nil {
		return err
	}
	if keep {
		return d.stayUp(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for i, step := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"a node joins with a bootstrap token", d.join},
		{"the node asks for a serving certificate; nobody may approve that automatically", d.askServing},
		{"the node renews its certificate by itself", d.renew},
		{"a ServiceAccount asks for the node's certificate and must not get it", d.intrude},
		{"an administrator approves the serving certificate by hand", d.approveServing},
		{"a request with usages that its signer can't accept fails, although approved", d.fail},
		{"what is due is cleaned, what is not stays", d.clean},
		{"kubectl get csr", d.table},
	} {
		fmt.Printf("\n%d. %s\n", i+1, step.title)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step.title, err)
		}
	}
	return nil
}
