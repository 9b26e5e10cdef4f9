package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// patience bounds the wait for one event.
const patience = 20 * time.Second

// demo is the state that the steps share.
type demo struct {
	begin   time.Time
	cluster *cluster.Cluster
	manager *cluster.Process

	admin      client.Client
	kubeconfig string       // the administrator's
	bootstrap  *rest.Config // the node's, before it has a certificate

	node    *kubelet.Node
	cert    *tls.Certificate
	serving certificate.Manager
	// requests are the requests that the steps have created, and how kubectl must show them at the end.
	requests []expected
	// asked is the request for the serving certificate.
	asked *certificatesv1.CertificateSigningRequest
}

type expected struct{ name, condition string }

// say prints one line, with the seconds since the beginning.
func (d *demo) say(format string, args ...any) {
	fmt.Printf("  [%5.1fs] %s\n", time.Since(d.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) startCluster() error {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return errors.New("KUBEBUILDER_ASSETS is not set: use make demo")
	}
	fmt.Println("Set-up")
	d.say("starting etcd and kube-apiserver")
	var err error
	if d.cluster, err = cluster.Start(); err != nil {
		return err
	}
	if d.admin, err = client.New(d.cluster.Config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	d.kubeconfig, err = d.cluster.WriteKubeconfig("admin", d.cluster.Config)
	d.say("kube-apiserver is at %s, nothing in it approves or signs", d.cluster.Config.Host)
	return err
}

// stop stops everything that was started, in reverse order. It is an error if the manager does not stop by itself.
func (d *demo) stop(failed bool) error {
	var errs []error
	if d.manager != nil {
		errs = append(errs, d.manager.Stop())
		if failed {
			fmt.Fprintf(os.Stderr, "\nthe end of the manager's log:\n%s\n", d.manager.Tail(15))
		}
	}
	if d.cluster != nil {
		errs = append(errs, d.cluster.Stop())
	}
	if err := errors.Join(errs...); err != nil || failed {
		return err
	}
	d.say("the manager, kube-apiserver and etcd have stopped, and their folder is removed")
	return nil
}

// until polls until done reports success. It fails after patience.
func until(ctx context.Context, what string, done wait.ConditionWithContextFunc) error {
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, done); err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	return nil
}

// kubectl runs the real kubectl as the administrator.
func (d *demo) kubectl(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--kubeconfig", d.kubeconfig, "--cache-dir", filepath.Join(d.cluster.Dir, "kubectl-cache")},
		args...)
	out, err := exec.CommandContext(ctx, kubectlPath(), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args[4:], " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func kubectlPath() string { return filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl") }

// dir makes a folder of that name, which is removed with the cluster.
func (d *demo) dir(name string) (string, error) {
	path := filepath.Join(d.cluster.Dir, name)
	return path, os.Mkdir(path, 0o700)
}
