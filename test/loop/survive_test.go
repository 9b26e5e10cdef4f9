package loop

import (
	"context"
	"crypto/x509"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	_ "unsafe" // for go:linkname

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestOneThatFailsHoldsUpNoOther checks with one worker that requests whose every write is answered 500 are retried, and that
// others are served between the retries.
func TestOneThatFailsHoldsUpNoOther(t *testing.T) {
	kit.Parallel(t)
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t), faults.Rule{Path: regexp.MustCompile(`/fails-[^/]+/approval$`), Do: faults.Answer(500)},
		faults.Rule{Path: regexp.MustCompile(`/fails-[^/]+/status$`), Do: faults.Answer(500)})
	kit.StartLoopAs(t, proxy.Config, csrenv.Options{Customize: func(o *controllers.Options) { o.Concurrency.Approver, o.Concurrency.Signer = 1, 1 }})
	kit.GrantJoining(t, "joiner")
	fails := func(obj *kit.Request) { obj.GenerateName = "fails-" }
	unapproved := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "bad", fails))
	unsigned := kit.Approve(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "bad", kit.WrongUsage, fails)))
	kit.Eventually(t, "both are tried twice", func(context.Context) error {
		applied := proxy.Applied()
		return kit.OrError(slices.Min(applied) >= 2, "%d attempts", applied)
	})
	for range 3 {
		kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good")), csr.Issued)
	}
	kit.IsIn(t, unapproved, csr.Pending)
	kit.IsIn(t, unsigned, csr.Approved)
}

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
	first, approved := bad(), kit.Approve(t, bad())
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Inventory = &approver.Inventory{Sources: []approver.SourceBuilder{approver.NodeSource}}
		o.Approver.Rules = append(o.Approver.Rules, approver.KubeletServing(approver.Serving{Inventory: o.Approver.Inventory}))
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
	kit.Update(t, first)
	kit.NewNode(t, "panics", "192.0.2.1") // wakes the requests that wait for it
	serves()
	kit.Approve(t, kit.Reload(t, first))
	kit.HasEventBy(t, first, "csr-signer", "InternalError")
	serves()
	for _, obj := range []*kit.Request{first, approved, serving} {
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && state != csr.Approved {
			t.Errorf("%s is %s", obj.Name, state)
		}
		kit.Remove(t, obj)
	}
	serves()
	if panics.Load() < 5 {
		t.Errorf("the parser panicked %d times only", panics.Load())
	}
}
