package integration

import (
	"crypto/x509"
	"sync/atomic"
	"testing"
	_ "unsafe" // for go:linkname

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// parsePKCS10 is the parser of package csr. No request is known that makes it panic, so a test must replace it.
//
//go:linkname parsePKCS10 github.com/csr-controller-manager/csr-controller-manager/pkg/csr.parsePKCS10
var parsePKCS10 func([]byte) (*x509.CertificateRequest, error)

// TestPanicOfTheParserEndsNothing has a parser that panics for the requests of one node. Informers, queues and
// workers call it when such a request exists at the start, is created, changed, approved and deleted. Others are
// served.
func TestPanicOfTheParserEndsNothing(t *testing.T) {
	unshared(t)
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
	bad := func() *request { return createRequest(t, admin(t), nodeRequest(t, "panics")) }
	first, approved := bad(), bad()
	approve(t, approved)
	startLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		serving := servingApprover()
		o.Approver.Rules, o.Approver.Inventory = serving.Rules, serving.Inventory
	}})
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	serves := func() {
		t.Helper()
		reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "good")), csr.Issued)
	}
	serves()
	hasEvent(t, first, "InternalError", "panic: index out of range; this is a bug in csr-controller-manager")
	hasEvent(t, approved, "InternalError", "panic: index out of range; this is a bug in csr-controller-manager")
	serving := createRequest(t, kubeletOf(t, "panics"), servingRequest(t, "panics", "192.0.2.1"))
	hasEvent(t, serving, "InternalError")

	first.Labels = map[string]string{"a": "b"}
	if err := admin(t).Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	newNode(t, "panics", "192.0.2.1") // wakes the requests that wait for it
	serves()
	approve(t, reload(t, first))
	hasEventBy(t, first, "csr-signer", "InternalError")
	serves()
	for _, obj := range []*request{first, approved, serving} {
		if state := csr.StateOf(reload(t, obj)); state != csr.Pending && state != csr.Approved {
			t.Errorf("%s is %s", obj.Name, state)
		}
		if err := admin(t).Delete(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	serves()
	if panics.Load() < 5 {
		t.Errorf("the parser panicked %d times only", panics.Load())
	}
}
