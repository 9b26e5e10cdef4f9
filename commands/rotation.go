package commands

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

const rotationHelp = `rotation shows how far the rotation of a signing CA is, and asks the manager to go on. It acts with your kubeconfig, and reads
no Secret. NAME is that of a SigningAuthority; with only one in the cluster it may be left out.

Usage: csr-controller-manager rotation VERB [NAME] [flags]

  status    what signs, what is waited for, who has not moved to the new CA
  start     make a new CA, and have it trusted beside the one that signs
  complete  leave the old CA and destroy its key
  rollback  go back to the old CA
  confirm   say that those trust the new CA who can't be asked
  accept    say that what still lives on the old CA may break
  attest    say that nothing is left of what others have issued from an adopted CA

The exit code is 1 unless what was asked for is done.

`

// rotationVerbs are what can be asked for.
var rotationVerbs = map[string]v1alpha1.Operation{
	"start":    v1alpha1.RotateStart,
	"complete": v1alpha1.RotateComplete,
	"rollback": v1alpha1.RotateRollback,
	"confirm":  v1alpha1.TrustConfirmed,
	"accept":   v1alpha1.OutstandingAccepted,
	"attest":   v1alpha1.AdoptionAttested,
}

// rotationOptions are the command line.
type rotationOptions struct {
	verb, name, kubeconfig string
	timeout                time.Duration
	wait, yes              bool
}

// rotation talks to the manager by its SigningAuthorities.
type rotation struct {
	rotationOptions
	api   client.Client
	clock clock.PassiveClock
	out   io.Writer
	// every is how often it looks while it waits, patience how long the reason of a refusal may take to arrive.
	every, patience time.Duration
}

// Rotation shows and steers the rotation of signing CAs.
func Rotation(ctx context.Context, args []string, out io.Writer) error {
	options, err := rotationFlags(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("rotation (--help lists verbs and flags): %w", err)
	}
	c := config.Default()
	c.Kubeconfig = options.kubeconfig
	cluster, err := RESTConfig(c)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	api, err := client.New(cluster, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	r := &rotation{options, api, serverClock(ctx, cluster), out, time.Second, 5 * time.Second}
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("rotation %s: %w", options.verb, err)
	}
	return nil
}

func rotationFlags(args []string, out io.Writer) (rotationOptions, error) {
	o := rotationOptions{}
	set := flag.NewFlagSet("rotation", flag.ContinueOnError)
	set.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` to reach the API server with (default as kubectl: $KUBECONFIG, ~/.kube/config)")
	set.DurationVar(&o.timeout, "timeout", 15*time.Minute, "`time` to wait, in all, until it is done")
	set.BoolVar(&o.wait, "wait", true, "wait until it is done; otherwise it is asked for, and that is all")
	set.BoolVar(&o.yes, "yes", false, "complete, accept, attest: you know what that means")
	rest, err := parse(set, args, rotationHelp, out)
	surplus := atMost(2, rest)
	switch {
	case err != nil:
		return o, err
	case surplus != nil:
		return o, surplus
	case len(rest) == 0:
		return o, errors.New("say what: status, start, complete, rollback, confirm, accept or attest")
	case rest[0] != "status" && rotationVerbs[rest[0]] == "":
		return o, fmt.Errorf("%q is no verb of it", rest[0])
	case o.timeout <= 0:
		return o, fmt.Errorf("--timeout: %s is no time to wait", o.timeout)
	}
	o.verb = rest[0]
	if len(rest) == 2 {
		o.name = rest[1]
	}
	return o, nil
}

func (r *rotation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	objs, err := r.authorities(ctx)
	if err != nil {
		return err
	}
	if r.verb == "status" {
		return r.status(ctx, objs)
	}
	if len(objs) > 1 {
		var names []string
		for i := range objs {
			names = append(names, objs[i].Name)
		}
		return fmt.Errorf("there are %d authorities: name one of %s", len(objs), strings.Join(names, ", "))
	}
	return r.operate(ctx, &objs[0])
}

// authorities are the one of that name, or all.
func (r *rotation) authorities(ctx context.Context) ([]v1alpha1.SigningAuthority, error) {
	list := &v1alpha1.SigningAuthorityList{}
	var err error
	if r.name != "" {
		list.Items = make([]v1alpha1.SigningAuthority, 1)
		err = r.api.Get(ctx, client.ObjectKey{Name: r.name}, &list.Items[0])
	} else {
		err = r.api.List(ctx, list)
	}
	switch {
	case meta.IsNoMatchError(err):
		return nil, errors.New("this cluster knows no SigningAuthority: config/rotation is not installed")
	case err != nil:
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	case len(list.Items) == 0:
		return nil, errors.New("there is no SigningAuthority: docs/ca-rotation.md says how to make one")
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.SigningAuthority) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}
