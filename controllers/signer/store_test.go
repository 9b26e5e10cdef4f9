package signer

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

// audited returns parts that sign and keep an audit log, and a function that returns the events in it.
func audited(t *testing.T, obj *request) (p *parts, events func() string) {
	t.Helper()
	p = newParts(t, obj)
	root := newRoot(t, 365*24*time.Hour)
	p.pair.Load(root.cert, root.key)
	file := filepath.Join(t.TempDir(), "audit.log")
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	p.reconciler.Audit = opened
	taken(p.recorder)
	return p, func() string {
		t.Helper()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for line := range bytes.Lines(data) {
			var record audit.Record
			if err := json.Unmarshal(line, &record); err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.TrimSpace(string(record.Event)+" "+record.Reason))
		}
		return strings.Join(all, ", ")
	}
}

// certificates returns how many different certificates were written.
func (p *parts) certificates() int {
	different := map[string]bool{}
	for _, written := range p.written {
		different[string(written.Status.Certificate)] = true
	}
	return len(different)
}

func TestTheSameCertificateIsWrittenAgain(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	for _, fault := range []error{apierrors.NewInternalError(errors.New("no")), errors.New("no answer"), apierrors.NewTooManyRequests("later", 1), apierrors.NewForbidden(requests, "csr-1", nil), nil} {
		p.writeFault = fault
		if result, err := p.reconcile(t); (err != nil || result.RequeueAfter > 0) != (fault != nil) {
			t.Errorf("%v: %+v, error %v", fault, result, err)
		}
	}
	if got := events(); p.certificates() != 1 || len(p.written) != 5 || got != "Signed, Uncertain, Stored" {
		t.Errorf("%d certificates in %d writes: %s", p.certificates(), len(p.written), got)
	}
}

func TestAWriteThatFailsForGoodIsBounded(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	p.writeFault = apierrors.NewInternalError(errors.New("admission webhook failed"))
	for range 3 * mostTries {
		if _, err := p.reconcile(t); err == nil {
			break
		}
	}
	if got := events(); p.certificates() != 1 || len(p.written) != mostTries || got != "Signed, Uncertain, NotSigned NotStored" {
		t.Errorf("%d certificates in %d writes: %s", p.certificates(), len(p.written), got)
	}
	if _, err := p.reconcile(t); err != nil || p.certificates() != 1 {
		t.Errorf("looked at again: %d certificates, error %v", p.certificates(), err)
	}
	if told := taken(p.recorder); len(told) != 1 || !strings.Contains(told[0], "NotStored the API server has refused 20 times") {
		t.Errorf("told %q", told)
	}
}

// While the API server can't be reached, or refuses the manager and not the request, nothing is given up.
func TestAnOutageIsNoRefusal(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*parts){
		"no answer": func(p *parts) { p.writeFault = errors.New("connection refused") },
		"forbidden": func(p *parts) { p.writeFault = apierrors.NewForbidden(requests, "csr-1", nil) },
		"reads fail": func(p *parts) {
			p.writeFault = apierrors.NewInternalError(errors.New("no leader"))
			p.reconciler.Live = liveFunc(func(*request) error { return errors.New("no leader") })
		},
		"overload": func(p *parts) { p.writeFault = apierrors.NewTooManyRequests("later", 1) },
	} {
		p, _ := audited(t, object(t))
		change(p)
		for range 3 * mostTries {
			if result, err := p.reconcile(t); err == nil && result.RequeueAfter == 0 {
				t.Fatalf("%s: given up", name)
			}
		}
		p.writeFault = nil
		if _, err := p.reconcile(t); err != nil || p.certificates() != 1 {
			t.Errorf("%s: %d certificates, error %v", name, p.certificates(), err)
		}
	}
}

// A certificate is written again only as long as the same one would be issued.
func TestACertificateIsGivenUpWhenSomethingChanges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change       func(*testing.T, *parts)
		certificates int
		want         string
	}{
		"nothing": {func(*testing.T, *parts) {}, 1, "Signed, Uncertain, Stored"},
		"another CA": {func(t *testing.T, p *parts) {
			root := newRoot(t, 365*24*time.Hour)
			p.pair.Load(root.cert, root.key)
		}, 2, "Signed, Uncertain, Signed"},
		"the request changes": {func(_ *testing.T, p *parts) {
			p.served = p.served.DeepCopy()
			p.served.ResourceVersion = "8"
		}, 2, "Signed, Uncertain, Discarded, Signed"},
		"the request is denied": {func(_ *testing.T, p *parts) {
			p.served = p.served.DeepCopy()
			p.served.ResourceVersion = "8"
			with("Denied", "True")(p.served)
		}, 1, "Signed, Uncertain, Discarded"},
		"it was stored": {func(_ *testing.T, p *parts) {
			p.served = p.written[0].DeepCopy()
			p.served.ResourceVersion = "8"
		}, 1, "Signed, Uncertain, Stored"},
		"another request of that name": {func(_ *testing.T, p *parts) {
			p.served = p.served.DeepCopy()
			p.served.UID = "another"
		}, 2, "Signed, Uncertain, Signed"},
		"it would live shorter": {func(t *testing.T, p *parts) {
			signer := p.reconciler.Signers[p.served.Spec.SignerName]
			signer.Profile = signer.Profile.Within(time.Hour)
			p.reconciler.Signers[p.served.Spec.SignerName] = signer
		}, 2, "Signed, Uncertain, Signed"},
		"it is too old": {func(_ *testing.T, p *parts) { p.clock.SetTime(now.Add(2 * time.Hour)) }, 1, "Signed, Uncertain, NotSigned RequestTooOld"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, events := audited(t, object(t))
			p.writeFault = apierrors.NewInternalError(errors.New("no"))
			if _, err := p.reconcile(t); err == nil {
				t.Fatal("no error")
			}
			test.change(t, p)
			p.writeFault = nil
			if _, err := p.reconcile(t); err != nil {
				t.Error(err)
			}
			if got := events(); got != test.want || p.certificates() != test.certificates {
				t.Errorf("%d certificates: %s", p.certificates(), got)
			}
			p.served = nil
		})
	}
}

func TestWhatDoesNotFitIntoAnObjectIsFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes int
		write error // of the first write
		want  string
	}{
		"it fits":                          {1 << 20, nil, "Signed"},
		"not with its certificate":         {1<<20 + 1<<19 - 1<<12, nil, "NotSigned RequestTooLarge"},
		"the API server says so":           {10, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), "Signed, Discarded, NotSigned RequestTooLarge"},
		"etcd says so":                     {10, apierrors.NewInternalError(errors.New("etcdserver: request is too large")), "Signed, Discarded, NotSigned RequestTooLarge"},
		"the client of etcd's does say so": {10, apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2099474 vs. 2097152)")), "Signed, Discarded, NotSigned RequestTooLarge"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, events := audited(t, object(t, func(obj *request) { obj.Labels = map[string]string{"a": strings.Repeat("b", test.bytes)} }))
			p.writeFault = test.write
			if _, err := p.reconcile(t); err != nil {
				t.Error(err)
			}
			if got := events(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			last := p.written[len(p.written)-1]
			if failed := len(last.Status.Conditions) == 2 && last.Status.Conditions[1].Reason == "RequestTooLarge" && len(last.Status.Certificate) == 0; failed != strings.Contains(test.want, "TooLarge") {
				t.Errorf("%d conditions", len(last.Status.Conditions))
			}
		})
	}
}

// A Failed condition whose write had no answer is told all the same, once.
func TestALostAnswerAboutAFailure(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		live  func(p *parts, now *request) error
		fails bool // at first
	}{
		"stored":            {live: func(p *parts, now *request) error { *now = *p.written[0]; return nil }},
		"seen by the watch": {live: func(*parts, *request) error { return down }, fails: true},
	} {
		p, events := audited(t, object(t, usages("magic")))
		p.writeFault = down
		p.reconciler.Live = liveFunc(func(now *request) error { return test.live(p, now) })
		if _, err := p.reconcile(t); (err != nil) != test.fails {
			t.Errorf("%s: error %v", name, err)
		}
		p.served = p.written[0]
		for range 2 {
			if _, err := p.reconcile(t); err != nil {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if got := events(); got != "NotSigned SignerValidationFailure" {
			t.Errorf("%s: %s", name, got)
		}
	}
}
