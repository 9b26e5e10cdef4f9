package manager

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestFinishedRequestsAreNotTouched has requests that are issued, failed or denied, or are for a signer of others. The manager
// sees them trimmed: when it starts, when they change, and when its CA changes. It makes no call about them, and all of
// them stay as they are.
func TestFinishedRequestsAreNotTouched(t *testing.T) {
	kit.Parallel(t)
	finish := func(name string) []*kit.Request {
		issued, failed, denied := kit.CreateMarked(t, name+"-issued", 10), kit.CreateMarked(t, name+"-failed", 10, kit.WrongUsage), kit.CreateMarked(t, name+"-denied", 10, kit.WrongUsage)
		foreign := kit.CreateMarked(t, name+"-foreign", 10, func(obj *kit.Request) { obj.Spec.SignerName = "example.com/foreign" })
		kit.Decide(t, denied, certificatesv1.CertificateDenied)
		for _, obj := range []*kit.Request{failed, foreign} {
			kit.Approve(t, obj)
		}
		return []*kit.Request{issued, failed, denied, foreign}
	}
	first := finish("first")
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t))
	p := startJoinable(t, proxy.Config)
	finished := append(first, finish("second")...)
	for i, want := range []csr.State{csr.Issued, csr.Failed, csr.Denied, csr.Approved, csr.Issued, csr.Failed, csr.Denied, csr.Approved} {
		kit.Reaches(t, finished[i], want)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}

	calls := len(proxy.Calls())
	kit.StartManager(t, proxy.Config, "--leader-elect=false")
	secret := kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
	for _, change := range []func(){
		func() {}, // the manager has started
		func() {
			for _, obj := range finished {
				obj.Labels["example.com/changed"] = "yes"
				if err := kit.Admin(t).Update(t.Context(), obj); err != nil {
					t.Fatal(err)
				}
			}
		},
		func() { another := kit.NewCA(t); kit.HasLoaded(t, kit.ReplaceSecret(t, secret, another)) },
	} {
		change()
		kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "later")), csr.Issued)
	}
	names := map[string]bool{}
	for _, before := range finished {
		names[before.Name] = true
		after := kit.Reload(t, before.DeepCopy())
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s (-before +after):\n%s", before.Name, diff)
		}
	}
	for _, call := range proxy.Calls()[calls:] {
		if names[call.Name] {
			t.Errorf("the manager called %s %s", call.Verb, call.Path)
		}
	}
}
