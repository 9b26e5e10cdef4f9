package loop

import (
	"crypto/x509"
	"sync/atomic"
	"testing"
	_ "unsafe"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// parsePKCS10 is the parser of package csr. No request is known that makes it panic, so a test must replace it.
//
//go:linkname parsePKCS10 github.com/csr-controller-manager/csr-controller-manager/pkg/csr.parsePKCS10
var parsePKCS10 func([]byte) (*x509.CertificateRequest, error)

// TestPanicOfTheParserEndsNothing has a parser that panics for the requests of one node. Informers, queues and
// workers call it when such a request exists at the start, is created, changed, approved and deleted. Others are
// served.
func TestPanicOfTheParserEndsNothing(t *testing.T) {
	kit.Alone(t)
	original, panics := parsePKCS10, atomic.Int64{}
	parsePKCS10 = func(der []byte) (*x509.CertificateRequest, error) {
		parsed, err := original(der)
		if err == nil && parsed.Subject.CommonName == "system:node:panics" {
			panics.Add(1)
			panic("index out of range")
		}
		return parsed, err
	}
	t.Cleanup(func() { parsePKCS10 = original }) // after the loop has stopped
	bad := func() *kit.Request { return kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "panics")) }
	first, approved := bad(), bad()
	kit.Approve(t, approved)
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		serving := kit.ServingApprover()
		o.Approver.Rules, o.Approver.Inventory = serving.Rules, serving.Inventory
	}})
	kit.GrantJoining(t, "joiner")
	serves := func() {
		t.Helper()
		kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good")), csr.Issued)
	}
	serves()
	kit.HasEvent(t, first, "InternalError", "panic: index out of range; this is a bug in csr-controller-manager")
	kit.HasEvent(t, approved, "InternalError", "panic: index out of range; this is a bug in csr-controller-manager")
	serving := kit.CreateRequest(t, kit.KubeletOf(t, "panics"), kit.ServingRequest(t, "panics", "192.0.2.1"))
	kit.HasEvent(t, serving, "InternalError")

	first.Labels = map[string]string{"a": "b"}
	if err := kit.Admin(t).Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	kit.NewNode(t, "panics", "192.0.2.1") // wakes the requests that wait for it
	serves()
	kit.Approve(t, kit.Reload(t, first))
	kit.HasEventBy(t, first, "csr-signer", "InternalError")
	serves()
	for _, obj := range []*kit.Request{first, approved, serving} {
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && state != csr.Approved {
			t.Errorf("%s is %s", obj.Name, state)
		}
		if err := kit.Admin(t).Delete(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	serves()
	if panics.Load() < 5 {
		t.Errorf("the parser panicked %d times only", panics.Load())
	}
}
