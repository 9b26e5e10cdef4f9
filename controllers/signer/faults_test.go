package signer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestEndOfACertificate checks that the audit log has the outcome of every certificate, whatever the write and the read
// after it answered. Only an outcome that cannot be known is recorded as uncertain.
func TestEndOfACertificate(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	conflict, gone := apierrors.NewConflict(requests, "csr-1", down), apierrors.NewNotFound(requests, "csr-1")
	forbidden := apierrors.NewForbidden(requests, "csr-1", down)
	invalid := apierrors.NewInvalid(schema.GroupKind{}, "csr-1", nil)
	unchanged := func(p *parts, obj *request) error { *obj = *p.served.DeepCopy(); return nil }
	stored := func(p *parts, obj *request) error {
		*obj = *p.written[0].DeepCopy()
		obj.ResourceVersion = "8"
		return nil
	}
	changed := func(p *parts, obj *request) error { *obj = *p.served.DeepCopy(); obj.ResourceVersion = "8"; return nil }
	anew := func(p *parts, obj *request) error { *obj = *p.served.DeepCopy(); obj.UID = "another"; return nil }
	other := func(p *parts, obj *request) error {
		*obj = *p.written[0].DeepCopy()
		obj.ResourceVersion, obj.Status.Certificate = "8", []byte("another")
		return nil
	}
	deleted := func(*parts, *request) error { return gone }
	silent := func(*parts, *request) error { return down }
	for name, test := range map[string]struct {
		write error
		live  func(p *parts, obj *request) error // nil means that no read is expected
		want  audit.Event                        // empty means stored at once
		fails bool                               // and the error goes to the queue
		again bool                               // after a pause
	}{
		"stored":                                  {},
		"conflict, changed":                       {write: conflict, live: changed, want: audit.Discarded},
		"conflict, stored by an earlier attempt":  {write: conflict, live: stored, want: audit.Stored},
		"conflict with another signer":            {write: conflict, live: other, want: audit.Discarded},
		"conflict, no change":                     {write: conflict, live: unchanged, want: audit.Uncertain, fails: true},
		"conflict, no answer":                     {write: conflict, live: silent, want: audit.Uncertain, fails: true},
		"conflict, another request":               {write: conflict, live: anew, want: audit.Uncertain, fails: true},
		"not found":                               {write: gone, live: deleted, want: audit.Uncertain},
		"not found, though it is there":           {write: gone, live: unchanged, want: audit.Uncertain, fails: true},
		"not found, though it is stored":          {write: gone, live: stored, want: audit.Stored},
		"unauthorized":                            {write: apierrors.NewUnauthorized("no"), live: unchanged, want: audit.Uncertain, fails: true},
		"too many requests":                       {write: apierrors.NewTooManyRequests("later", 1), live: unchanged, want: audit.Uncertain, fails: true},
		"forbidden":                               {write: forbidden, live: unchanged, want: audit.Discarded, again: true},
		"forbidden, stored by an earlier attempt": {write: forbidden, live: stored, want: audit.Stored},
		"forbidden, no answer":                    {write: forbidden, live: silent, want: audit.Uncertain, again: true},
		"invalid":                                 {write: invalid, live: unchanged, want: audit.Discarded, again: true},
		"invalid, stored by an earlier attempt":   {write: invalid, live: stored, want: audit.Stored},
		"no answer, stored":                       {write: down, live: stored, want: audit.Stored},
		"no answer, stored by another signer":     {write: down, live: other, want: audit.Discarded, fails: true},
		"no answer, changed":                      {write: down, live: changed, want: audit.Discarded, fails: true},
		"no answer, another request":              {write: down, live: anew, want: audit.Uncertain, fails: true},
		"no answer, deleted":                      {write: down, live: deleted, want: audit.Uncertain},
		"no answer, no change":                    {write: down, live: unchanged, want: audit.Uncertain, fails: true},
		"no answer at all":                        {write: down, live: silent, want: audit.Uncertain, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, signer := partsOf(t)
			p.load(t, 365*day)
			file := filepath.Join(t.TempDir(), "audit.log")
			p.reconciler.Audit = must(audit.Open(audit.Options{Path: file, MaxSize: 1}))
			p.writeFault = test.write
			p.reconciler.Live = liveFunc(func(obj *request) error {
				if test.live == nil {
					t.Error("read, though the write succeeded")
					return down
				}
				return test.live(p, obj)
			})
			result, err := p.reconcile(t)
			if (err != nil) != test.fails || (result.RequeueAfter > 0) != test.again {
				t.Errorf("result %+v, error %v", result, err)
			}
			records := recordsIn(t, file, audit.Signed, audit.Stored, audit.Discarded, audit.Uncertain)
			signed, end := records[0], append(records, audit.Record{})[1]
			if signed.Event != audit.Signed || signed.CertificateSHA256 != certificateSHA256(p.written[0]) {
				t.Errorf("first record %+v", signed)
			}
			if end.Event != test.want || end.Event != "" && (end.CertificateSHA256 != signed.CertificateSHA256 || end.Message != test.write.Error()) {
				t.Errorf("second record %+v", end)
			}
			if got := countOf(t, discardedTotal.WithLabelValues(signer)); (got == 1) != (test.want == audit.Discarded) || got > 1 {
				t.Errorf("%v are counted as discarded", got)
			}
			if got := countOf(t, outcomesTotal.WithLabelValues(signer, "Issued", "")); (got == 1) != (test.want == audit.Stored || test.want == "") {
				t.Errorf("%v are counted as issued", got)
			}
		})
	}
}

// recordsIn returns the records of an audit log that are about certificates, in order.
func recordsIn(t *testing.T, file string, events ...audit.Event) []audit.Record {
	t.Helper()
	var all []audit.Record
	for line := range bytes.Lines(must(os.ReadFile(file))) {
		var record audit.Record
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(events, record.Event) {
			all = append(all, record)
		}
	}
	return all
}

// TestEachAttemptIssuesACertificate checks that nothing of a failed attempt is kept.
func TestEachAttemptIssuesACertificate(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	p.reconciler.Live = liveFunc(func(obj *request) error { *obj = *p.served.DeepCopy(); return nil })
	for _, fault := range []error{apierrors.NewInternalError(errors.New("no")), errors.New("no answer"), apierrors.NewForbidden(requests, "csr-1", nil), nil} {
		p.writeFault = fault
		_, _ = p.reconcile(t)
	}
	different := map[string]bool{}
	for _, written := range p.written {
		different[string(written.Status.Certificate)] = true
	}
	const want = "Signed, Uncertain, Signed, Uncertain, Signed, Discarded, NotSigned NotStored, Signed"
	if got := events(); len(different) != 4 || got != want {
		t.Errorf("%d certificates: %s", len(different), got)
	}
}

// server is an API server that holds one request and answers wrongly. A cache shows its versions late.
type server struct {
	t       *testing.T
	random  *rand.Rand
	file    string // the audit log
	obj     *request
	cached  *request
	version int
	written map[string]bool // digests of the certificates that were sent, and whether they were stored
}

func (s *server) chance(percent int) bool { return s.random.IntN(100) < percent }

// change stores a change by somebody else.
func (s *server) change(change func(*request)) {
	s.version++
	changed := s.obj.DeepCopy()
	changed.ResourceVersion = fmt.Sprint(s.version)
	change(changed)
	s.obj = changed
}

// update answers a write of the signer.
func (s *server) update(sent *request) error {
	digest := ""
	if len(sent.Status.Certificate) > 0 {
		digest = certificateSHA256(sent)
		s.written[digest] = false
		if !slices.ContainsFunc(recordsIn(s.t, s.file, audit.Signed), func(r audit.Record) bool { return r.CertificateSHA256 == digest }) {
			s.t.Errorf("certificate %s is written before its record", digest)
		}
	}
	if s.chance(15) {
		s.change(func(obj *request) { obj.Labels = map[string]string{"at": obj.ResourceVersion} })
	}
	if s.chance(5) {
		s.change(func(obj *request) { obj.UID = types.UID("uid-" + obj.ResourceVersion) })
	}
	for try := 0; ; try++ {
		switch { // before the write
		case s.chance(10):
			return apierrors.NewForbidden(requests, sent.Name, errors.New("no right"))
		case s.chance(10):
			return apierrors.NewInvalid(schema.GroupKind{}, sent.Name, nil)
		case s.chance(10):
			return errors.New("connection refused")
		case sent.UID != s.obj.UID || sent.ResourceVersion != s.obj.ResourceVersion:
			return apierrors.NewConflict(requests, sent.Name, errors.New("changed"))
		}
		s.change(func(obj *request) { obj.Status = sent.DeepCopy().Status })
		if digest != "" {
			s.written[digest] = true
		}
		switch { // after the write
		case s.chance(20) && try == 0:
			continue // client-go repeats the write after a 503 with Retry-After
		case s.chance(30):
			return errors.New("connection reset")
		default:
			return nil
		}
	}
}

func (s *server) read(obj *request) error {
	switch {
	case s.chance(15):
		return errors.New("timeout")
	case s.chance(5):
		return apierrors.NewNotFound(requests, s.obj.Name)
	}
	*obj = *s.obj.DeepCopy()
	return nil
}

// TestNoFaultFalsifiesTheRecords signs requests while API servers answer wrongly, in many orders. Every certificate has a
// record before its write. None that was stored is recorded as discarded, and none that was not is recorded as stored.
func TestNoFaultFalsifiesTheRecords(t *testing.T) {
	t.Parallel()
	events := map[audit.Event]int{}
	for seed := range uint64(150) {
		p := newParts(t, object(t))
		p.load(t, 365*day)
		s := &server{
			t: t, random: rand.New(rand.NewPCG(seed, seed)), file: filepath.Join(t.TempDir(), "audit.log"),
			obj: p.served, cached: p.served, version: 7, written: map[string]bool{},
		}
		p.reconciler.Audit = must(audit.Open(audit.Options{Path: s.file, MaxSize: 10}))
		p.reconciler.Live = liveFunc(s.read)
		p.reconciler.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
				*obj.(*request) = *s.cached
				return nil
			},
			SubResourceUpdate: func(_ context.Context, _ client.Client, _ string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
				return s.update(obj.(*request))
			},
		})
		for try := 0; csr.StateOf(s.cached) == csr.Approved && try < 100; try++ {
			_, _ = p.reconciler.Reconcile(t.Context(), keyOf(s.cached))
			if s.chance(70) {
				s.cached = s.obj
			}
		}
		if csr.StateOf(s.cached) != csr.Issued {
			t.Errorf("seed %d: the request is %s", seed, csr.StateOf(s.cached))
		}
		ends := map[string]audit.Event{}
		for _, record := range recordsIn(t, s.file, audit.Stored, audit.Discarded, audit.Uncertain) {
			events[record.Event]++
			if before, twice := ends[record.CertificateSHA256]; twice {
				t.Errorf("seed %d: %s and %s are recorded of one certificate", seed, before, record.Event)
			}
			ends[record.CertificateSHA256] = record.Event
			switch stored := s.written[record.CertificateSHA256]; {
			case record.Event == audit.Discarded && stored, record.Event == audit.Stored && !stored:
				t.Errorf("seed %d: recorded as %s, stored: %t", seed, record.Event, stored)
			}
		}
		for digest, stored := range s.written {
			if !stored && ends[digest] == "" {
				t.Errorf("seed %d: no record says that certificate %s was not stored", seed, digest)
			}
		}
		for _, told := range taken(p.recorder) {
			if strings.Contains(told, "SecondSigner") {
				t.Errorf("seed %d: the signer takes itself for another one: %s", seed, told)
			}
		}
	}
	for _, event := range []audit.Event{audit.Stored, audit.Discarded, audit.Uncertain} {
		if events[event] == 0 {
			t.Errorf("no certificate was recorded as %s: the test is too weak", event)
		}
	}
}

// TestSecondSigner checks that a certificate of another CA is reported when it makes the signer's own write fail, and
// that a certificate of the signer's CA is not: a stale cache and a former leader are no second signer.
func TestSecondSigner(t *testing.T) {
	t.Parallel()
	const advice = "but this manager signs for %s too: disable that signer in one of the two, and check the issuer of this certificate"
	for name, test := range map[string]struct {
		certificate func(t *testing.T, p *parts) []byte
		want        string // empty means that it is not reported
	}{
		"no certificate": {func(*testing.T, *parts) []byte { return nil }, ""},
		"another CA":     {func(t *testing.T, p *parts) []byte { return signedBy(t, p, newRoot(t, day)) }, `issued by the CA "CN=CA"`},
		"not readable":   {func(*testing.T, *parts) []byte { return []byte("theirs") }, "issued by an unknown CA"},
		"the own CA": {func(t *testing.T, p *parts) []byte {
			return must(must(p.pair.Authority(now)).Issue(p.reconciler.Signers[p.served.Spec.SignerName].Profile, must(csr.Parse(p.served)).Cert, now)).PEM
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, signer := partsOf(t)
			p.load(t, 365*day)
			p.writeFault = apierrors.NewConflict(requests, "csr-1", errors.New("changed"))
			certificate := test.certificate(t, p)
			p.reconciler.Live = liveFunc(func(obj *request) error {
				*obj = *p.served.DeepCopy()
				obj.ResourceVersion, obj.Status.Certificate = "8", certificate
				return nil
			})
			for range 2 {
				if _, err := p.reconcile(t); err != nil {
					t.Fatal(err)
				}
			}
			told, count := taken(p.recorder), countOf(t, foreignTotal.WithLabelValues(signer))
			if test.want == "" {
				if len(told) != 0 || count != 0 {
					t.Errorf("Events %q, %v counted", told, count)
				}
				return
			}
			want := "Warning SecondSigner another program has stored the certificate of this request, " + test.want + ", " + fmt.Sprintf(advice, signer)
			if len(told) != 1 || told[0] != want || count != 2 {
				t.Errorf("Events %q, %v counted, want %q", told, count, want)
			}
		})
	}
}

// signedBy returns a certificate for the request of p by another CA.
func signedBy(t *testing.T, p *parts, other root) []byte {
	t.Helper()
	pair, _, _ := newPair()
	pair.Load(other.cert, other.key)
	return must(must(pair.Authority(now)).Issue(p.reconciler.Signers[p.served.Spec.SignerName].Profile, must(csr.Parse(p.served)).Cert, now)).PEM
}
