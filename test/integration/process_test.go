package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

const systemNamespace = "csr-controller-manager-system"

// installRBAC applies config/rbac.
func installRBAC(t *testing.T) {
	t.Helper()
	apply(t, "rbac")
}

// apply creates the missing objects of a folder of config. At the end of the test it removes the bindings, because
// the next test on this control plane may test a right that they grant.
func apply(t *testing.T, folder string) {
	t.Helper()
	for _, obj := range rendered(t, folder) {
		switch err := admin(t).Create(t.Context(), obj); {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			t.Fatal(err)
		case strings.HasSuffix(obj.GetKind(), "RoleBinding"):
			t.Cleanup(func() {
				if err := client.IgnoreNotFound(admin(t).Delete(context.Background(), obj)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// rendered returns the objects of a folder of config.
func rendered(t *testing.T, folder string) (all []*unstructured.Unstructured) {
	t.Helper()
	render := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", filepath.Join("..", "..", "config", folder))
	render.Stderr = os.Stderr
	data, err := render.Output()
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := documents.Decode(obj); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, obj)
	}
}

// serviceAccountConfig returns a configuration for the ServiceAccount that config/rbac binds.
func serviceAccountConfig(t *testing.T) *rest.Config {
	t.Helper()
	return tokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-controller-manager"}})
}

// tokenOf returns a configuration with a token of account.
func tokenOf(t *testing.T, account *corev1.ServiceAccount) *rest.Config {
	t.Helper()
	token := &authenticationv1.TokenRequest{}
	if err := admin(t).SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(controlPlane(t).Config)
	cfg.BearerToken = token.Status.Token
	return cfg
}

// process is a running manager.
type process struct {
	*cluster.Process
	probes  string
	metrics string
}

// standardArgs are the flags of every manager in these tests. Flags behind them win.
var standardArgs = []string{"--signing-secret", systemNamespace + "/csr-signer", "--leader-elect-resource-namespace", systemNamespace}

// startManager runs the real binary as cfg's user, and stops it at the end of the test.
func startManager(t *testing.T, cfg *rest.Config, args ...string) *process {
	t.Helper()
	return startNamed(t, strings.ReplaceAll(t.Name(), "/", "-"), cfg, args...)
}

// startNamed is startManager for tests with several users. Each needs a name of its own.
func startNamed(t *testing.T, name string, cfg *rest.Config, args ...string) *process {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlPlane(t).WriteKubeconfig(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{probes: freeAddress(t), metrics: freeAddress(t)}
	p.Process, err = controlPlane(t).StartProcess(name, path, slices.Concat([]string{
		"--kubeconfig", kubeconfig, "-v", "1", "--health-probe-bind-address", p.probes, "--metrics-bind-address", p.metrics,
	}, standardArgs, args)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the manager's log:\n%s", p.Tail(100))
		}
		if log := p.log(t); strings.Contains(log, "DATA RACE") {
			t.Errorf("data race in the manager:\n%s", log)
		}
	})
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := cluster.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// log returns the output of the manager.
func (p *process) log(t *testing.T) string {
	t.Helper()
	text, err := p.Log()
	if err != nil {
		t.Error(err)
	}
	return text
}

// answers waits until a page has status and contains each of parts.
func (p *process) answers(t *testing.T, address, path string, status int, parts ...string) {
	t.Helper()
	eventually(t, path, func(ctx context.Context) error {
		got, body := cluster.Get(ctx, address, path)
		if got != status {
			return fmt.Errorf("status %d, want %d: %s", got, status, body)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				return fmt.Errorf("%q is not in: %s", part, body)
			}
		}
		return nil
	})
}

func signingSecret(cert, key []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-signer"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
}
