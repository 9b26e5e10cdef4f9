package integration

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"os"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// startLoop runs the named controllers in process, or approver, signer and cleaner. Each has a manager of its own, with only the
// roles that are shipped for it. They run until stop is called or the test ends.
func startLoop(t testing.TB, opts csrenv.Options, names ...string) (stop func()) {
	t.Helper()
	if len(names) == 0 {
		names = []string{"approver", "signer", "cleaner"}
	}
	customize := opts.Customize
	var whole *controllers.Options
	var stops []func()
	for _, name := range names {
		opts.Customize = func(o *controllers.Options) {
			if whole == nil { // once: it may open files
				if customize != nil {
					customize(o)
				}
				whole = &controllers.Options{}
				*whole = *o
			}
			*o = partOf(*whole, name)
		}
		stops = append(stops, startLoopAs(t, roleConfig(t, name), opts))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// partOf returns the options of one controller.
func partOf(o controllers.Options, name string) controllers.Options {
	part := controllers.Options{
		Audit: o.Audit, Concurrency: o.Concurrency, Clock: o.Clock, RequestLimits: o.RequestLimits,
	}
	switch name {
	case "approver":
		part.Approver = o.Approver
	case "signer":
		part.Signer = o.Signer
	case "cleaner":
		part.Cleaner = o.Cleaner
	}
	return part
}

// TestLoopsHaveOneRoleEach takes the signer's role away. The approver goes on, and does not sign.
func TestLoopsHaveOneRoleEach(t *testing.T) {
	unshared(t)
	startLoop(t, csrenv.Options{})
	reaches(t, createRequest(t, admin(t), nodeRequest(t, "before")), csr.Issued)
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "csr-signer-for-" + signerAccount}}
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	if err := admin(t).Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	refused := counted(t, "csr_signer_errors_total", nil)
	var waiting *request
	eventually(t, "the signer is refused", func(context.Context) error {
		waiting = reaches(t, createRequest(t, admin(t), nodeRequest(t, "waits")), csr.Approved)
		if counted(t, "csr_signer_errors_total", nil) == refused {
			return errors.New("it is not")
		}
		return nil
	})
	if state := csr.StateOf(reload(t, waiting)); state != csr.Approved {
		t.Errorf("without the signer's role, a request is %s", state)
	}
	binding.ResourceVersion, binding.UID = "", ""
	create(t, admin(t), binding)
	reaches(t, waiting, csr.Issued)
}

// startLoopAs runs the controllers of opts in one manager, as cfg's user.
func startLoopAs(t testing.TB, cfg *rest.Config, opts csrenv.Options) (stop func()) {
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
	stop = func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
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
