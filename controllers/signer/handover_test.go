package signer

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// handed returns parts that sign, with a pending request in the cache, and the request as it is approved.
func handed(t *testing.T) (p *parts, events func() string, queue requestQueue, approved *request) {
	t.Helper()
	approved = object(t)
	p, events = audited(t, changed(approved, "6", nil))
	p.served.Status.Conditions = nil
	queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(queue.ShutDown)
	if err := p.reconciler.ahead.source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	return p, events, queue, approved
}

// changed returns a copy of obj with another resourceVersion and certificate.
func changed(obj *request, resourceVersion string, certificate []byte) *request {
	other := obj.DeepCopy()
	other.ResourceVersion, other.Status.Certificate = resourceVersion, certificate
	return other
}

// TestHandoverSignsOnce checks that a request is signed before the watch brings its approval, and never again.
func TestHandoverSignsOnce(t *testing.T) {
	t.Parallel()
	p, events, queue, approved := handed(t)
	pending := p.served
	p.reconciler.Handover(pending, approved)
	if queue.Len() != 1 {
		t.Fatalf("%d requests are queued, want 1", queue.Len())
	}
	again := func(when string) {
		t.Helper()
		if result, err := p.reconcile(t); err != nil || result.RequeueAfter != 0 {
			t.Errorf("%s: %+v, error %v", when, result, err)
		}
		if len(p.written) != 1 || p.written[0].ResourceVersion != "7" {
			t.Fatalf("%s: %d certificates, want 1 for version 7", when, len(p.written))
		}
	}
	again("before the watch")
	again("signed")
	if p.reconciler.queues(pending) || p.reconciler.queues(approved) {
		t.Error("a late event enqueues a signed request")
	}
	p.served = approved
	again("with the approval in the cache")
	p.served = changed(approved, "8", p.written[0].Status.Certificate)
	if p.reconciler.queues(p.served) || len(p.reconciler.ahead.versions) > 0 {
		t.Errorf("%d versions are kept of a request that is in the cache", len(p.reconciler.ahead.versions))
	}
	again("with the certificate in the cache")
	if got := events(); got != "Signed" {
		t.Errorf("audit log: %s", got)
	}
}

// TestHandoverKeepsACertificateOfUnknownFate checks that a certificate whose write had no answer is neither reported as
// discarded nor replaced, although the cache is older than its request.
func TestHandoverKeepsACertificateOfUnknownFate(t *testing.T) {
	t.Parallel()
	p, events, _, approved := handed(t)
	p.reconciler.Live = liveFunc(func(obj *request) error {
		*obj = *approved
		return nil
	})
	p.reconciler.Handover(p.served, approved)
	for _, fault := range []error{errors.New("no answer"), errors.New("no answer"), nil} {
		p.writeFault = fault
		if _, err := p.reconcile(t); (err != nil) != (fault != nil) {
			t.Errorf("%v: error %v", fault, err)
		}
	}
	if got := events(); p.certificates() != 1 || len(p.written) != 3 || got != "Signed, Uncertain, Stored" {
		t.Errorf("%d certificates in %d writes: %s", p.certificates(), len(p.written), got)
	}
	stored := changed(approved, "8", p.written[0].Status.Certificate)
	p.served = stored
	if _, err := p.reconcile(t); err != nil || len(p.written) != 3 {
		t.Errorf("stored: %d writes, error %v", len(p.written), err)
	}
}

// TestHandoverFindsAStoredCertificate checks that a certificate that was stored without an answer is not issued again
// while the cache is older.
func TestHandoverFindsAStoredCertificate(t *testing.T) {
	t.Parallel()
	p, events, _, approved := handed(t)
	p.reconciler.Live = liveFunc(func(obj *request) error {
		*obj = *changed(approved, "8", p.written[0].Status.Certificate)
		return nil
	})
	p.reconciler.Handover(p.served, approved)
	p.writeFault = errors.New("no answer")
	for _, cached := range []*request{p.served, approved} {
		p.served = cached
		if _, err := p.reconcile(t); err != nil {
			t.Error(err)
		}
	}
	if got := events(); len(p.written) != 1 || got != "Signed, Stored" {
		t.Errorf("%d writes: %s", len(p.written), got)
	}
}

// TestHandoverFailsOnce checks that a request that cannot be signed is marked as Failed once.
func TestHandoverFailsOnce(t *testing.T) {
	t.Parallel()
	p, _, _, approved := handed(t)
	approved.Spec.Request = []byte("nonsense")
	p.reconciler.Handover(p.served, approved)
	for _, cached := range []*request{p.served, p.served, approved} {
		p.served = cached
		if _, err := p.reconcile(t); err != nil {
			t.Error(err)
		}
	}
	if len(p.written) != 1 || len(taken(p.recorder)) != 1 {
		t.Errorf("%d writes, want 1", len(p.written))
	}
}

// TestHandoverAfterTheWatch checks that a request is not signed again if the watch brought its approval before the
// approver handed it over.
func TestHandoverAfterTheWatch(t *testing.T) {
	t.Parallel()
	p, events, queue, approved := handed(t)
	pending := p.served
	p.served = approved
	for range 2 {
		if _, err := p.reconcile(t); err != nil {
			t.Error(err)
		}
		p.reconciler.Handover(pending, approved)
	}
	if got := events(); len(p.written) != 1 || got != "Signed" || queue.Len() > 0 {
		t.Errorf("%d writes, %d requests are queued: %s", len(p.written), queue.Len(), got)
	}
	p.served = changed(approved, "8", p.written[0].Status.Certificate)
	p.reconciler.Handover(pending, approved)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || len(p.reconciler.ahead.versions) > 0 {
		t.Errorf("%d writes, %d versions are kept, error %v", len(p.written), len(p.reconciler.ahead.versions), err)
	}
}

// TestTheWatchIsFasterThanTheAnswer checks that no version is kept that the cache had before the write was answered.
func TestTheWatchIsFasterThanTheAnswer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *parts, approved *request){
		"stored": func(p *parts, approved *request) { p.served = changed(approved, "8", []byte("x")) },
		"gone":   func(p *parts, _ *request) { p.getFault = apierrors.NewNotFound(requests, "csr-1") },
	} {
		p, _, _, approved := handed(t)
		p.served = approved
		change(p, approved)
		p.reconciler.wrote(t.Context(), "7", changed(approved, "8", []byte("x")))
		if kept := len(p.reconciler.ahead.versions); kept > 0 {
			t.Errorf("%s: %d versions are kept", name, kept)
		}
	}
}

// TestHandoverEndsWhenTheCacheIsNewer checks that the request in the cache counts as soon as it is not older.
func TestHandoverEndsWhenTheCacheIsNewer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *parts){
		"denied meanwhile": func(p *parts) {
			p.served = changed(p.served, "9", nil)
			with("Denied", "True")(p.served)
		},
		"another request of the same name": func(p *parts) {
			p.served = p.served.DeepCopy()
			p.served.UID = "uid-2"
		},
		"deleted": func(p *parts) { p.getFault = apierrors.NewNotFound(requests, "csr-1") },
		"deleted, as the watch says": func(p *parts) {
			p.reconciler.queueEvents().Delete(event.DeleteEvent{Object: p.served})
		},
	} {
		p, _, _, approved := handed(t)
		p.reconciler.Handover(p.served, approved)
		change(p)
		if _, err := p.reconcile(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(p.written) > 0 || len(p.reconciler.ahead.versions) > 0 {
			t.Errorf("%s: %d writes, %d versions are kept", name, len(p.written), len(p.reconciler.ahead.versions))
		}
	}
}

// TestHandoverTakesTheLargestRequest hands a request over that has as many bytes as are permitted.
func TestHandoverTakesTheLargestRequest(t *testing.T) {
	t.Parallel()
	p, _, queue, approved := handed(t)
	padTo(t, approved, 16<<10)
	p.reconciler.Handover(p.served, approved)
	if queue.Len() != 1 {
		t.Error("not handed over")
	}
}

// TestHandoverWaitsForTheWatch checks that a request whose approval is not clear is not handed over.
func TestHandoverWaitsForTheWatch(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *parts, approved *request){
		"another UID":           func(_ *parts, approved *request) { approved.UID = "uid-2" },
		"another name":          func(_ *parts, approved *request) { approved.Name = "csr-2" },
		"not approved":          func(_ *parts, approved *request) { approved.Status.Conditions = nil },
		"denied too":            func(_ *parts, approved *request) { with("Denied", "True")(approved) },
		"already signed":        func(_ *parts, approved *request) { approved.Status.Certificate = []byte("x") },
		"another signer":        func(_ *parts, approved *request) { approved.Spec.SignerName = "example.com/other" },
		"too large":             func(_ *parts, approved *request) { padTo(t, approved, 16<<10+1) },
		"the same version":      func(_ *parts, approved *request) { approved.ResourceVersion = "6" },
		"without a version":     func(_ *parts, approved *request) { approved.ResourceVersion = "" },
		"dry run":               func(p *parts, _ *request) { p.reconciler.DryRun = true },
		"controller is stopped": func(p *parts, _ *request) { p.reconciler.ahead.queue = nil },
		"too many": func(p *parts, approved *request) {
			for i := range mostAhead {
				other := approved.DeepCopy()
				other.Name = fmt.Sprint("other-", i)
				p.reconciler.ahead.put("6", other)
			}
		},
	} {
		p, _, queue, approved := handed(t)
		change(p, approved)
		p.reconciler.Handover(p.served, approved)
		if queue.Len() > 0 {
			t.Errorf("%s: handed over", name)
		}
	}
}
