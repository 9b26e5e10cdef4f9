package integration

import (
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

// startLoop runs approver, signer and cleaner in process on the shared control plane until stop is called or the test ends. Each
// runs in a manager of its own, whose identity has only the roles that are shipped for this controller. If some are named, the
// others do not run.
func startLoop(t testing.TB, opts csrenv.Options, some ...string) (stop func()) {
	t.Helper()
	if len(some) == 0 {
		some = []string{"approver", "signer", "cleaner"}
	}
	if opts.CA == nil {
		opts.CA = controlPlane(t).CA
	}
	customize := opts.Customize
	var customized *controllers.Options
	var stops []func()
	for _, controller := range some {
		opts.Customize = func(o *controllers.Options) {
			own := o.Requests
			if customized != nil {
				*o = *customized
			} else if customize != nil {
				customize(o)
			}
			all := *o
			customized = &all
			only(o, controller)
			o.Requests = own // a cache belongs to one manager
		}
		stops = append(stops, startLoopAs(t, roleConfig(t, controller), opts))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// only removes every controller but one.
func only(o *controllers.Options, controller string) {
	if controller != "approver" {
		o.Approver = nil
	}
	if controller != "signer" {
		o.Signer = nil
	}
	if controller != "cleaner" {
		o.Cleaner = nil
	}
}

// TestLoopsHaveOneRoleEach checks that each identity of startLoop may do the work of its own controller, and not that of another.
func TestLoopsHaveOneRoleEach(t *testing.T) {
	parallel(t)
	work := map[string]string{"approver": "update certificatesigningrequests/approval", "signer": "update certificatesigningrequests/status", "cleaner": "delete certificatesigningrequests"}
	accounts := map[string]*rest.Config{}
	for controller := range work {
		accounts[controller] = roleConfig(t, controller)
	}
	for controller, cfg := range accounts {
		for of, right := range work {
			verb, resource, _ := strings.Cut(right, " ")
			asked := check.Right{Verb: verb, Group: certificatesv1.GroupName, Resource: resource}
			as, err := client.New(cfg, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			result := check.RightsByRules(t.Context(), as, []check.Right{asked})[0]
			if may := result.Status == check.OK; may != (of == controller) {
				t.Errorf("the %s may %s: %t (%s)", controller, right, may, result.Evidence)
			}
		}
	}
}

// startLoopAs is startLoop with all controllers in one manager, which runs as cfg's user.
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
