package signer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
)

// TestEventDue tests how often an Event about the same second signer is due.
func TestEventDue(t *testing.T) {
	t.Parallel()
	c := &certificates{}
	for _, step := range []struct {
		after           time.Duration
		signer, manager string
		want            bool
	}{
		{0, "a", "kcm", true}, {0, "a", "kcm", false}, {0, "a", "kubectl", true}, {0, "b", "kcm", true},
		{10*time.Minute - 1, "a", "kcm", false}, {10 * time.Minute, "a", "kcm", true}, {11 * time.Minute, "a", "kcm", false},
	} {
		if got := c.eventDue(step.signer, step.manager, now.Add(step.after)); got != step.want {
			t.Errorf("%+v: %t", step, got)
		}
	}
}

// TestOwnAndForeignCertificates tests what certificates knows about each certificate of a request.
func TestOwnAndForeignCertificates(t *testing.T) {
	t.Parallel()
	c, obj := &certificates{}, object(t)
	c.add(obj.Name, []byte("first"))
	c.add(obj.Name, []byte("second"))
	c.remove(obj.Name, []byte("first"))
	obj.Status.Certificate = []byte("second")
	if c.observe(obj) || c.unreported(obj) {
		t.Error("the second of two own certificates is foreign, because the first was discarded")
	}
	c.add(obj.Name, []byte("only"))
	if c.remove(obj.Name, []byte("only")); len(c.own) != 0 {
		t.Errorf("%d requests have own certificates, though none is left", len(c.own))
	}
	if !c.observe(obj) || !c.unreported(obj) {
		t.Error("a foreign certificate is not noticed")
	}
	other := obj.DeepCopy()
	if other.UID = "uid-2"; c.unreported(other) {
		t.Error("the certificate of an earlier request of this name is to be reported")
	}
	for since, want := range map[time.Duration]bool{handover - 1: true, handover: false} {
		if c.elected = now.Add(-since); c.inHandover(now) != want {
			t.Errorf("in handover %s after the election: %t", since, !want)
		}
	}
}

// TestManagerOfACertificate tests that fields of others, and of no known form, do not hide the field manager.
func TestManagerOfACertificate(t *testing.T) {
	t.Parallel()
	obj := object(t)
	obj.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "none"}, {Manager: "broken", FieldsV1: metav1.NewFieldsV1("{")},
		{Manager: "signer", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:certificate":{}}}`)},
	}
	if got := certificateManager(obj); got != "signer" {
		t.Errorf("field manager %q", got)
	}
}

// TestForeignCertificateOfAnotherRequest reads a request that was made anew since: its field manager says nothing.
func TestForeignCertificateOfAnotherRequest(t *testing.T) {
	t.Parallel()
	p, signer := partsOf(t)
	p.reconciler.certificates.elected = now.Add(-time.Second)
	before, after := p.served, p.served.DeepCopy()
	after.Status.Certificate = []byte("theirs")
	p.served = after
	p.reconciler.Live = liveFunc(func(obj *request) error {
		*obj = *after.DeepCopy()
		obj.UID = "uid-2"
		storedBy("kube-controller-manager", `{"f:status":{"f:certificate":{}}}`)(obj)
		return nil
	})
	if !p.reconciler.queueEvents().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("a foreign certificate is not reported, because its request is finished")
	}
	if _, err := p.reconcile(t); err != nil || countOf(t, foreignTotal.WithLabelValues(signer)) != 0 {
		t.Errorf("reported with the field manager of another request, error %v", err)
	}
}

// TestEnqueueWaiting tests which requests a new CA wakes.
func TestEnqueueWaiting(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	r := p.reconciler
	other, _, _ := newPair()
	r.Signers["example.com/other"] = Signer{Profile: r.Signers["example.com/custom"].Profile, KeyPair: other}
	events := r.queueEvents()
	for i := range 20 { // in no order
		obj := named(t, fmt.Sprintf("other-%d", i), "alice", "a")
		obj.Spec.SignerName = "example.com/other"
		events.Create(event.CreateEvent{Object: obj})
	}
	events.Create(event.CreateEvent{Object: object(t)})
	for name, test := range map[string]struct {
		change func()
		want   int
	}{
		"waits":          {func() {}, 1},
		"is issued":      {func() { p.served.Status.Certificate = []byte("x") }, 0},
		"cannot be read": {func() { p.served = object(t); p.getFault = errors.New("down") }, 0},
	} {
		p.served, p.getFault = object(t), nil
		test.change()
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		r.enqueueWaiting(t.Context(), p.pair, queue)
		if queue.Len() != test.want {
			t.Errorf("%s: %d requests are enqueued, want %d", name, queue.Len(), test.want)
		}
		queue.ShutDown()
	}
}

// TestFrontProxyEqual tests that each part counts.
func TestFrontProxyEqual(t *testing.T) {
	t.Parallel()
	one := frontProxy{unread: "down", trusted: true, names: []string{"front"}}
	for name, other := range map[string]frontProxy{
		"unread":  {unread: "up", trusted: true, names: []string{"front"}},
		"trusted": {unread: "down", names: []string{"front"}},
		"names":   {unread: "down", trusted: true, names: []string{"back"}},
		"all":     {},
	} {
		if one.equal(other) {
			t.Errorf("%s: equal", name)
		}
	}
	if !one.equal(one) {
		t.Error("not equal to itself")
	}
}

// TestWholeIsReadWhenNeeded tests for which requests the signer needs more than what the informer holds.
func TestWholeIsReadWhenNeeded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*parts)
		reads  int
	}{
		"waits for its certificate": {func(*parts) {}, 1},
		"issued":                    {func(p *parts) { p.served.Status.Certificate = []byte("x") }, 0},
		"issued, and a dry run":     {func(p *parts) { p.served.Status.Certificate, p.reconciler.DryRun = []byte("x"), true }, 1},
		"pending, and a dry run":    {func(p *parts) { p.served.Status.Conditions, p.reconciler.DryRun = nil, true }, 0},
		"issued, and a write unanswered": {func(p *parts) {
			p.served.Status.Certificate = []byte("x")
			p.reconciler.issued.Keep(p.served, &issuance{})
		}, 1},
		"issued, and a failure unanswered": {func(p *parts) {
			p.served.Status.Certificate = []byte("x")
			p.reconciler.failures.Keep(p.served, Judgement{})
		}, 1},
	} {
		p := newParts(t, object(t))
		test.change(p)
		reads := 0
		p.reconciler.Live = liveFunc(func(obj *request) error { reads++; *obj = *p.served.DeepCopy(); return nil })
		stripped, err := (&requestcache.Cache{}).CacheOptions().DefaultTransform(p.served.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.reconciler.whole(t.Context(), stripped.(*request)); err != nil || reads != test.reads {
			t.Errorf("%s: %d reads, want %d; error %v", name, reads, test.reads, err)
		}
	}
}

// TestEndedForAnotherVersion checks that a request is signed again after a change, although it was given up before.
func TestEndedForAnotherVersion(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	root := newRoot(t, 24*time.Hour)
	p.pair.Load(root.cert, root.key)
	p.reconciler.ended.Keep(p.served, "another version")
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
		t.Errorf("%d writes, error %v", len(p.written), err)
	}
}

// TestAheadIsBounded fills the versions that are newer than the cache.
func TestAheadIsBounded(t *testing.T) {
	t.Parallel()
	a := &ahead{}
	for i := range mostAhead + 1 {
		obj := object(t)
		obj.Name, obj.UID = fmt.Sprint(i), types.UID(fmt.Sprint(i))
		a.follow("6", obj)
	}
	if len(a.versions) != mostAhead {
		t.Errorf("%d versions, want %d", len(a.versions), mostAhead)
	}
}

// TestObserveEndsTheHandover tests which versions of the watch end it.
func TestObserveEndsTheHandover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*request)
		kept   int
	}{
		"the version itself":      {func(*request) {}, 0},
		"another, still approved": {func(obj *request) { obj.ResourceVersion = "9" }, 1},
		"another, still pending":  {func(obj *request) { obj.ResourceVersion, obj.Status.Conditions = "9", nil }, 1},
		"another, denied":         {func(obj *request) { obj.ResourceVersion = "9"; with("Denied", "True")(obj) }, 0},
		"another request":         {func(obj *request) { obj.ResourceVersion, obj.UID = "9", "uid-2" }, 0},
	} {
		a, obj := &ahead{}, object(t)
		a.follow("6", obj.DeepCopy())
		test.change(obj)
		if a.observe(obj); len(a.versions) != test.kept {
			t.Errorf("%s: %d versions are kept, want %d", name, len(a.versions), test.kept)
		}
	}
}

// TestErrorsAreCountedOnce checks that only an attempt with an error is counted.
func TestErrorsAreCountedOnce(t *testing.T) { // not parallel, because the counter is the process's
	p := newParts(t, object(t))
	down := errorsTotal.WithLabelValues("Other")
	before := countOf(t, down)
	if _, err := p.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p.served)}); err != nil || countOf(t, down) != before {
		t.Errorf("%v errors are counted, error %v", countOf(t, down)-before, err)
	}
	p.getFault = errors.New("down")
	if _, _ = p.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p.served)}); countOf(t, down) != before+1 {
		t.Errorf("%v errors are counted, want 1", countOf(t, down)-before)
	}
}
