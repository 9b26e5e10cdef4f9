package integration

import (
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// startLoop runs the three controllers in process on the shared control plane, under the shipped roles, for the
// duration of the test.
func startLoop(t testing.TB, opts csrenv.Options) *csrenv.Env {
	t.Helper()
	return startLoopAs(t, managerConfig(t), opts)
}

// startLoopAs is startLoop with another user.
func startLoopAs(t testing.TB, cfg *rest.Config, opts csrenv.Options) *csrenv.Env {
	t.Helper()
	forbidAdministrator(t, cfg)
	if opts.CA == nil {
		opts.CA = controlPlane(t).CA
	}
	opts.SkipRBAC = true
	env, err := csrenv.Start(t.Context(), cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// counted returns the sum of a counter of the loops in this process over all series with labels.
func counted(t testing.TB, counter string, labels map[string]string) int {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			found := map[string]string{}
			for _, label := range metric.GetLabel() {
				if _, wanted := labels[label.GetName()]; wanted {
					found[label.GetName()] = label.GetValue()
				}
			}
			if family.GetName() == counter && maps.Equal(found, labels) {
				sum += int(metric.GetCounter().GetValue())
			}
		}
	}
	return sum
}

func newCA(t *testing.T) *csrenv.CA {
	t.Helper()
	made, err := csrenv.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func certificate(t *testing.T, of *csrenv.CA) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(of.CertPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func issuedBy(t *testing.T, obj *request, by *csrenv.CA) {
	t.Helper()
	if err := leaf(t, obj).CheckSignatureFrom(certificate(t, by)); err != nil {
		t.Errorf("request %s: %v", obj.Name, err)
	}
}
