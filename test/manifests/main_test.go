// Package manifests tests the shipped manifests: kustomize and Helm give the same objects, a real API server accepts
// them, and no identity gets more rights than it needs.
package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// root is the module's root. Tests run in the folder of their package.
const root = "../.."

const systemNamespace = "csr-controller-manager-system"

// shared is a real API server for all tests, with the shipped audit policy. admin is its administrator, whose client refuses unknown fields.
var (
	shared   *cluster.Cluster
	auditLog string
	admin    client.Client
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
		return 1, errors.New("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	policy, err := filepath.Abs(filepath.Join(root, "config/audit-policy/policy.yaml"))
	if err != nil {
		return 1, err
	}
	shared, err = cluster.StartConfigured(func(dir string, args *envtest.Arguments) {
		auditLog = filepath.Join(dir, "audit.log")
		args.Set("audit-policy-file", policy).Set("audit-log-path", auditLog)
	}, auditTokens()...)
	if err != nil {
		return 1, err
	}
	lenient, err := client.New(shared.Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err == nil {
		admin = client.WithFieldValidation(lenient, "Strict")
		code = m.Run()
	}
	return code, errors.Join(err, shared.Stop())
}

// applyAll applies objects on the shared API server.
func applyAll(t *testing.T, all objects) {
	t.Helper()
	for name, obj := range all {
		if err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	kit.NoError(t, err)
	return data
}

// objectsOf returns the objects of one kind.
func objectsOf(all objects, kind string) objects {
	some := objects{}
	for name, obj := range all {
		if obj.GetKind() == kind {
			some[name] = obj
		}
	}
	return some
}
