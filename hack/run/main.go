// Command run starts a real control plane with the real csr-controller-manager, does the administrator's steps of the
// TLS bootstrapping document, and stays up until Ctrl-C. It leaves nothing behind. "make run" runs it, and the tests of the tutorials do.
package main

import (
	"context"
	_ "embed" // the objects
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// patience bounds the wait for one event.
const patience = 20 * time.Second

// token is the bootstrap token in objects.yaml.
const token = "07401b.f395accd246ae52d"

//go:embed objects.yaml
var objects string

// plane is the control plane and what runs on it.
type plane struct {
	begin   time.Time
	cluster *cluster.Cluster
	manager *cluster.Process
	kubectl string // the program
	admin   string // the administrator's kubeconfig
}

func main() {
	binary := flag.String("manager", "./csr-controller-manager", "the `binary` to run")
	flag.Parse()
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *binary)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary string) (err error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return errors.New("KUBEBUILDER_ASSETS is not set: use make run")
	}
	p := &plane{begin: time.Now(), kubectl: filepath.Join(assets, "kubectl")}
	p.say("starting etcd and kube-apiserver")
	if p.cluster, err = cluster.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop(err != nil)) }()
	p.say("kube-apiserver is at %s, nothing in it approves or signs", p.cluster.Config.Host)
	if p.admin, err = p.cluster.WriteKubeconfig("admin", p.cluster.Config); err != nil {
		return err
	}
	node := rest.AnonymousClientConfig(p.cluster.Config)
	node.BearerToken = token
	bootstrap, err := p.cluster.WriteKubeconfig("bootstrap", node)
	if err != nil {
		return err
	}
	if err := p.createObjects(ctx); err != nil {
		return err
	}
	if err := p.startManager(ctx, binary); err != nil {
		return err
	}
	// The API server reads tokens and rights from caches.
	if _, err := p.until(ctx, "", "--kubeconfig", bootstrap, "auth", "can-i", "create", "csr"); err != nil {
		return err
	}
	fmt.Printf(`
Up until Ctrl-C. In another shell:

  export KUBECONFIG=%s
  export PATH=%s:$PATH

  kubectl get csr
  kubectl --kubeconfig %s auth whoami   # a node before it has a certificate

The manager's log: %s

`, p.admin, assets, bootstrap, p.manager.LogFile)
	select {
	case <-ctx.Done():
		return nil
	case <-p.manager.Done:
		return fmt.Errorf("the manager stopped unexpectedly: %s", p.manager.Ended())
	}
}

// createObjects stores the CA of the cluster and objects.yaml.
func (p *plane) createObjects(ctx context.Context) error {
	text := base64.StdEncoding.EncodeToString
	secret := fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: csr-signer, namespace: kube-system}\n"+
		"data: {tls.crt: %s, tls.key: %s}\n", text(p.cluster.CA.CertPEM), text(p.cluster.CA.KeyPEM))
	created, err := p.until(ctx, secret+"---\n"+objects, "apply", "--filename", "-") // until namespace kube-system exists
	for line := range strings.Lines(created) {
		p.say("%s", strings.TrimSpace(line))
	}
	return err
}

// startManager starts binary with the flags that a plain control plane needs, and waits until it is ready: then it has a CA to sign with.
func (p *plane) startManager(ctx context.Context, binary string) error {
	health, err := cluster.FreeAddress()
	if err != nil {
		return err
	}
	p.manager, err = p.cluster.StartProcess("manager", binary, "--kubeconfig", p.admin, "--signing-secret", "kube-system/csr-signer",
		"--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", health, "-v", "1")
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		status, said := cluster.Get(ctx, health, "/readyz")
		switch {
		case status == http.StatusOK:
			p.say("%s --signing-secret kube-system/csr-signer runs as process %d and is ready", binary, p.manager.Pid())
			return nil
		case time.Now().After(end) || ctx.Err() != nil:
			return fmt.Errorf("the manager is not ready: %s", said)
		}
	}
}

// until runs kubectl as the administrator until it succeeds, and returns its output. A kubeconfig in args takes precedence.
func (p *plane) until(ctx context.Context, input string, args ...string) (string, error) {
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		command := exec.CommandContext(ctx, p.kubectl, args...)
		command.Env = append(os.Environ(), "KUBECONFIG="+p.admin, "KUBECACHEDIR="+filepath.Join(p.cluster.Dir, "kubectl-cache"))
		command.Stdin = strings.NewReader(input)
		output, err := command.CombinedOutput()
		if err == nil {
			return string(output), nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
		}
	}
}

// stop stops everything that was started, in reverse order. It is an error if the manager does not stop by itself.
func (p *plane) stop(failed bool) error {
	var err error
	if p.manager != nil {
		err = p.manager.Stop()
		if failed {
			fmt.Fprintf(os.Stderr, "\nthe end of the manager's log:\n%s\n", p.manager.Tail(15))
		}
	}
	if err = errors.Join(err, p.cluster.Stop()); err == nil && !failed {
		p.say("the manager, kube-apiserver and etcd have stopped, and their folder is removed")
	}
	return err
}

// say prints one line, with the seconds since the beginning.
func (p *plane) say(format string, args ...any) {
	fmt.Printf("  [%5.1fs] %s\n", time.Since(p.begin).Seconds(), fmt.Sprintf(format, args...))
}
