// Package integration runs the controllers on a real etcd and kube-apiserver.
package integration

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// shared is the control plane of all tests but those that need one of their own; admin is its administrator.
var (
	shared *cluster.Cluster
	admin  client.WithWatch
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard())
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, fmt.Errorf("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	shared, err = cluster.Start(
		cluster.Token{Token: "joiner-token", User: "joiner", UID: "j-1", Groups: "joiners"},
		cluster.Token{Token: "stranger-token", User: "stranger", UID: "s-1", Groups: "strangers"},
	)
	if err != nil {
		return 1, err
	}
	defer func() {
		if stopped := shared.Stop(); stopped != nil && err == nil {
			err = stopped
		}
	}()
	if admin, err = client.NewWithWatch(shared.Config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		return 1, err
	}
	if err := rightVersion(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// rightVersion says whether the control plane is the one that K8S_VERSION asks for, if it is set.
func rightVersion() error {
	want := os.Getenv("K8S_VERSION")
	if want == "" {
		return nil
	}
	server, err := discovery.NewDiscoveryClientForConfig(shared.Config)
	if err != nil {
		return err
	}
	version, err := server.ServerVersion()
	if err != nil {
		return err
	}
	if version.GitVersion != "v"+want {
		return fmt.Errorf("the control plane is %s, want v%s", version.GitVersion, want)
	}
	return nil
}
