package signer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// audited returns parts that sign and write an audit log, and a function that returns its events.
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

// certificates returns the number of different certificates that were written.
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
	for range 3 * maxStores {
		if _, err := p.reconcile(t); err == nil {
			break
		}
	}
	if got := events(); p.certificates() != 1 || len(p.written) != maxStores || got != "Signed, Uncertain, NotSigned NotStored" {
		t.Errorf("%d certificates in %d writes: %s", p.certificates(), len(p.written), got)
	}
	if _, err := p.reconcile(t); err != nil || p.certificates() != 1 {
		t.Errorf("looked at again: %d certificates, error %v", p.certificates(), err)
	}
	if told := taken(p.recorder); len(told) != 1 || !strings.Contains(told[0], "NotStored the API server has refused 20 times") {
		t.Errorf("told %q", told)
	}
}

// TestAnOutageIsNoRefusal checks that no certificate is given up while the API server is unreachable. The same holds
// while it refuses the manager rather than the request.
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
		for range 3 * maxStores {
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

// TestACertificateIsGivenUpWhenSomethingChanges checks that a certificate is written again only while the same
// certificate would be issued.
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
		"another request with the same name": {func(_ *testing.T, p *parts) {
			p.served = p.served.DeepCopy()
			p.served.UID = "another"
		}, 2, "Signed, Uncertain, Signed"},
		"the lifetime would be shorter": {func(t *testing.T, p *parts) {
			signer := p.reconciler.Signers[p.served.Spec.SignerName]
			signer.Profile = signer.Profile.Within(time.Hour)
			p.reconciler.Signers[p.served.Spec.SignerName] = signer
		}, 2, "Signed, Uncertain, Signed"},
		"the request is too old": {func(_ *testing.T, p *parts) { p.clock.SetTime(now.Add(2 * time.Hour)) }, 1, "Signed, Uncertain, NotSigned RequestTooOld"},
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
		"the certificate fits":            {1 << 20, nil, "Signed"},
		"too large with its certificate":  {1<<20 + 1<<19 - 1<<12, nil, "NotSigned RequestTooLarge"},
		"the API server refuses the size": {10, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), "Signed, Discarded, NotSigned RequestTooLarge"},
		"etcd refuses the size":           {10, apierrors.NewInternalError(errors.New("etcdserver: request is too large")), "Signed, Discarded, NotSigned RequestTooLarge"},
		"etcd's client refuses the size":  {10, apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2099474 vs. 2097152)")), "Signed, Discarded, NotSigned RequestTooLarge"},
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

// TestAFullObjectIsSigned checks a request that fills an object together with the longest possible certificate. With
// one byte more, the request is refused.
func TestAFullObjectIsSigned(t *testing.T) {
	t.Parallel()
	p := newParts(t, nil)
	root := newRoot(t, 365*24*time.Hour)
	p.pair.Load(root.cert, root.key)
	obj := object(t)
	req := must(p.reconciler.Requests.Parse(obj, csr.Limits{}))
	largest := 1536<<10 - 4<<10 - must(p.pair.Authority(now)).LongestPEM(req.Cert)
	for more, want := range map[int]string{0: "Issued", 1: "Failed"} {
		padTo(t, obj, largest+more)
		if judged := p.reconciler.Judge(obj, now); judged.Outcome() != want {
			t.Errorf("with %d bytes more: %s (%s), want %s", more, judged.Outcome(), judged.Message, want)
		}
	}
}

// TestALostAnswerAboutAFailure checks that a Failed condition is reported once, even if its write had no answer.
func TestALostAnswerAboutAFailure(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		live  func(p *parts, now *request) error
		fails bool // the first time
	}{
		"stored":                {live: func(p *parts, now *request) error { *now = *p.written[0]; return nil }},
		"observed by the watch": {live: func(*parts, *request) error { return down }, fails: true},
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

// liveFunc answers the API server's read of a request.
type liveFunc func(*request) error

func (f liveFunc) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	return f(obj.(*request))
}

func (liveFunc) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list")
}

// TestEndOfACertificate checks that the audit log has the outcome of every certificate, whatever the write answered.
// Only an outcome that cannot be known is recorded as uncertain.
func TestEndOfACertificate(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	conflict, gone := apierrors.NewConflict(requests, "csr-1", down), apierrors.NewNotFound(requests, "csr-1")
	for name, test := range map[string]struct {
		write error
		live  func(p *parts, now *request) error // nil means that no read is expected
		want  audit.Event                        // empty means stored at once
		fails bool                               // and the request is retried
	}{
		"stored": {},
		"conflict, changed": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			now.ResourceVersion = "8"
			return nil
		}, want: audit.Discarded},
		"conflict, stored by an earlier attempt": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.ResourceVersion = "8"
			return nil
		}, want: audit.Stored},
		"conflict with another signer": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.ResourceVersion, now.Status.Certificate = "8", []byte("another")
			return nil
		}, want: audit.Discarded},
		"not found": {write: gone, live: func(*parts, *request) error { return gone }, want: audit.Uncertain, fails: true},
		"not found, though it is there": {write: gone, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			return nil
		}, want: audit.Uncertain, fails: true},
		"not found, though it is stored": {write: gone, live: func(p *parts, now *request) error {
			*now = *p.written[0]
			return nil
		}, want: audit.Stored},
		"unauthorized":      {write: apierrors.NewUnauthorized("no"), want: audit.Uncertain, fails: true},
		"too many requests": {write: apierrors.NewTooManyRequests("later", 1), want: audit.Uncertain, fails: true},
		"no answer, stored": {write: down, live: func(p *parts, now *request) error {
			*now = *p.written[0]
			return nil
		}, want: audit.Stored},
		"no answer, stored by another signer": {write: down, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.ResourceVersion, now.Status.Certificate = "8", []byte("another")
			return nil
		}, want: audit.Discarded, fails: true},
		"no answer, changed": {write: down, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			now.ResourceVersion = "8"
			return nil
		}, want: audit.Discarded, fails: true},
		"no answer, another request with the same name": {write: down, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			now.UID, now.ResourceVersion = "another", "8"
			return nil
		}, want: audit.Uncertain, fails: true},
		"no answer, deleted":   {write: down, live: func(*parts, *request) error { return apierrors.NewNotFound(requests, "csr-1") }, want: audit.Uncertain, fails: true},
		"no answer, no change": {write: down, live: func(p *parts, now *request) error { *now = *p.served.DeepCopy(); return nil }, want: audit.Uncertain, fails: true},
		"no answer at all":     {write: down, live: func(*parts, *request) error { return down }, want: audit.Uncertain, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, signer := partsOf(t)
			root := newRoot(t, 365*24*3600e9)
			p.pair.Load(root.cert, root.key)
			file := filepath.Join(t.TempDir(), "audit.log")
			opened, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
			if err != nil {
				t.Fatal(err)
			}
			p.writeFault, p.reconciler.Audit = test.write, opened
			p.reconciler.Live = liveFunc(func(now *request) error {
				if test.live == nil {
					t.Error("asked, though the write said it")
					return down
				}
				return test.live(p, now)
			})
			result, err := p.reconcile(t)
			if again := err != nil || result.RequeueAfter > 0; again != test.fails {
				t.Errorf("result %+v, error %v", result, err)
			}
			signed, end := twoRecords(t, file)
			if signed.CertificateSHA256 != certificateSHA256(p.written[0]) || end.Event != "" && end.CertificateSHA256 != signed.CertificateSHA256 {
				t.Errorf("SHA-256 %q, then %q", signed.CertificateSHA256, end.CertificateSHA256)
			}
			if signed.Event != audit.Signed || end.Event != test.want || end.Event != "" && end.Serial != signed.Serial {
				t.Errorf("%+v, then %+v", signed, end)
			}
			if got := countOf(t, discardedTotal.WithLabelValues(signer)); (got == 1) != (test.want == audit.Discarded) || got > 1 {
				t.Errorf("%v are counted as discarded", got)
			}
		})
	}
}

// TestWritesToARequestThatIsGoneAreForgotten deletes a request whose write was not answered, or was answered NotFound. The
// last version of the request says what became of its certificate, if the watch has brought that version.
func TestWritesToARequestThatIsGoneAreForgotten(t *testing.T) {
	t.Parallel()
	down, gone := errors.New("down"), apierrors.NewNotFound(requests, "csr-1")
	for name, test := range map[string]struct {
		change func(*request)
		write  error
		stored bool // in the last version
		missed bool // by the watch
		want   string
	}{
		"no answer, no certificate":         {write: down, want: "Signed, Uncertain, Discarded"},
		"no answer, stored":                 {write: down, stored: true, want: "Signed, Uncertain, Stored"},
		"not found, no certificate":         {write: gone, want: "Signed, Uncertain, Discarded"},
		"not found, though it was stored":   {write: gone, stored: true, want: "Signed, Uncertain, Stored"},
		"not found, and the watch was down": {write: gone, missed: true, want: "Signed, Uncertain"},
		"stored, and the watch was down":    {write: gone, stored: true, missed: true, want: "Signed, Uncertain, Stored"},
		"failure":                           {change: usages("digital signature"), write: down},
	} {
		obj := object(t)
		if test.change != nil {
			test.change(obj)
		}
		p, events := audited(t, obj)
		p.writeFault, p.reconciler.Live = test.write, liveFunc(func(*request) error { return gone })
		if _, err := p.reconcile(t); err == nil {
			t.Errorf("%s: the write is not tried again", name)
		}
		last := p.served.DeepCopy()
		if test.stored {
			last.Status.Certificate = p.written[0].Status.Certificate
		}
		p.getFault = gone
		if p.reconciler.queueEvents().Delete(event.DeleteEvent{Object: last, DeleteStateUnknown: test.missed}) != (test.change == nil) {
			t.Errorf("%s: want the request of a certificate in the queue, to complete its record", name)
		}
		if _, err := p.reconcile(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, issued := p.reconciler.issued.Of(p.served)
		_, left := p.reconciler.gone.Of(p.served)
		if _, failed := p.reconciler.failures.Of(p.served); issued || failed || left || len(p.reconciler.certificates.own) > 0 {
			t.Errorf("%s: something of it takes room for ever", name)
		}
		if test.change != nil {
			continue // nothing was signed
		}
		if got := events(); got != test.want {
			t.Errorf("%s: recorded %s, want %s", name, got, test.want)
		}
	}
}

// TestADeletionAfterTheAnswerIsNotKept deletes requests without an unanswered write. If something were kept of them, there
// would be no room for other deletions.
func TestADeletionAfterTheAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	if p.reconciler.queueEvents().Delete(event.DeleteEvent{Object: p.served}) {
		t.Error("enqueued")
	}
	if _, kept := p.reconciler.gone.Take("csr-1"); kept {
		t.Error("the deletion is kept")
	}
}

// TestDeletedDuringTheWrite deletes the request while the write to it is under way.
func TestDeletedDuringTheWrite(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	gone := apierrors.NewNotFound(requests, "csr-1")
	p.writeFault, p.reconciler.Live = gone, liveFunc(func(*request) error {
		p.reconciler.queueEvents().Delete(event.DeleteEvent{Object: p.served})
		return gone
	})
	for range 2 {
		_, _ = p.reconcile(t)
		p.getFault = gone
	}
	if got := events(); got != "Signed, Uncertain, Discarded" {
		t.Errorf("recorded %s", got)
	}
}

// goneLater is a client that finds a request only once.
type goneLater struct {
	client.Client
	reads int
}

func (g *goneLater) Get(ctx context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	if g.reads++; g.reads > 1 {
		return apierrors.NewNotFound(requests, key.Name)
	}
	return g.Client.Get(ctx, key, obj, options...)
}

// TestReplacedBeforeTheWrite has another request of the same name by the time the certificate is signed. Nothing is
// written.
func TestReplacedBeforeTheWrite(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	judged := p.reconciler.Judge(p.served, now)
	obj := p.served.DeepCopy()
	p.served.UID = "uid-2"
	if err := p.reconciler.sign(t.Context(), obj, judged, now); err != nil || len(p.written) > 0 {
		t.Errorf("%d writes, error %v", len(p.written), err)
	}
	if got := events(); got != "Signed, Discarded" {
		t.Errorf("recorded %s", got)
	}
}

// TestDeletedBeforeTheWrite deletes the request while its certificate is signed, so that nothing is written.
func TestDeletedBeforeTheWrite(t *testing.T) {
	t.Parallel()
	p, events := audited(t, object(t))
	p.reconciler.Client = &goneLater{Client: p.reconciler.Client}
	if _, err := p.reconcile(t); err != nil || len(p.written) > 0 || len(p.reconciler.certificates.own) > 0 {
		t.Errorf("%d writes, %d certificates are kept, error %v", len(p.written), len(p.reconciler.certificates.own), err)
	}
	if got := events(); got != "Signed, Discarded" {
		t.Errorf("recorded %s", got)
	}
}

// TestMadeAnewAfterADeletion checks that nothing is kept of a deleted request when another one has its name.
func TestMadeAnewAfterADeletion(t *testing.T) {
	t.Parallel()
	p, _ := audited(t, object(t))
	p.reconciler.gone.Keep(p.served, goneRequest{uid: p.served.UID})
	again := p.served.DeepCopy()
	again.UID = "uid-2"
	p.served = again
	if _, err := p.reconcile(t); err != nil {
		t.Error(err)
	}
	if _, kept := p.reconciler.gone.Take("csr-1"); kept {
		t.Error("what is known of the deleted request takes room for ever")
	}
}

// certificateSHA256 returns the digest of the certificate in obj.
func certificateSHA256(obj *request) string {
	block, _ := pem.Decode(obj.Status.Certificate)
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}

// twoRecords reads the first two records of an audit log. The second may be missing.
func twoRecords(t *testing.T, file string) (first, second audit.Record) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i, record := range []*audit.Record{&first, &second} {
		if i < len(lines) {
			if err := json.Unmarshal([]byte(lines[i]), record); err != nil {
				t.Fatal(err)
			}
		}
	}
	return first, second
}

// TestAMismatchIsNeverStored removes a signer's rules for requests, like a defect in them. The finished certificate
// must be discarded, counted, recorded and reported, and nothing may be written.
func TestAMismatchIsNeverStored(t *testing.T) {
	const name = "example.com/custom"
	p := newParts(t, object(t, signerName(name), usages("client auth"), template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} })))
	root := newRoot(t, 365*24*time.Hour)
	p.pair.Load(root.cert, root.key)
	p.note(probe.Refused)
	signer := p.reconciler.Signers[name]
	within := contentsOf("kubernetes.io/kube-apiserver-client-kubelet", nil)
	signer.Profile = signer.Profile.Containing(within)
	p.reconciler.Signers[name] = signer
	file := filepath.Join(t.TempDir(), "audit.log")
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.reconciler.Audit = opened
	const mismatches, discards = "csr_signer_certificate_mismatches_total", "csr_signer_discarded_total"
	before, discardedBefore := counted(t, mismatches, name), counted(t, discards, name)
	taken(p.recorder)
	if _, err := p.reconcile(t); err == nil || !strings.Contains(err.Error(), "a DNS name is not permitted in this profile") || !strings.Contains(err.Error(), "terminal error") {
		t.Errorf("error %v", err)
	}
	if _, err := p.reconcile(t); err != nil {
		t.Errorf("looked at again: %v", err)
	}
	if len(p.written) > 0 {
		t.Error("it was written")
	}
	if got, gotDiscarded := counted(t, mismatches, name)-before, counted(t, discards, name)-discardedBefore; got != 1 || gotDiscarded != 1 {
		t.Errorf("counted as a mismatch %v times, as discarded %v times", got, gotDiscarded)
	}
	discarded, told := twoRecords(t, file)
	if discarded.Event != audit.Discarded || discarded.Serial == "" || discarded.IssuerKeyID == "" || told.Event != audit.NotSigned || told.Reason != "CertificateMismatch" {
		t.Errorf("%+v, then %+v", discarded, told)
	}
	if events := taken(p.recorder); len(events) != 1 || !strings.Contains(events[0], "CertificateMismatch") {
		t.Errorf("told %q", events)
	}
}

// counted returns the value of a counter for a signer.
func counted(t *testing.T, counter, signerName string) (value float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == counter && metric.GetLabel()[0].GetValue() == signerName {
				value = metric.GetCounter().GetValue()
			}
		}
	}
	return value
}

// TestEachSignerHasContents checks that certificates may contain exactly what each signer may be asked for.
func TestEachSignerHasContents(t *testing.T) {
	t.Parallel()
	r := newParts(t, object(t)).reconciler
	if err := r.fillProfiles(); err != nil {
		t.Fatal(err)
	}
	signing, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*x509.CertificateRequest)
		usages []certificatesv1.KeyUsage
		want   string // part of the error
	}{
		"kubernetes.io/kube-apiserver-client": {func(r *x509.CertificateRequest) {
			r.Subject.CommonName = "admin"
			r.EmailAddresses = []string{"a@b.ch"}
		}, []certificatesv1.KeyUsage{"client auth", "key encipherment"}, ""},
		"kubernetes.io/kube-apiserver-client-kubelet": {func(*x509.CertificateRequest) {}, []certificatesv1.KeyUsage{"client auth", "server auth"}, "extended key usage 1"},
		"kubernetes.io/kubelet-serving":               {func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} }, []certificatesv1.KeyUsage{"server auth", "cert sign"}, "key usage 100000"},
		"example.com/custom":                          {func(r *x509.CertificateRequest) { r.Subject.CommonName = "x" }, []certificatesv1.KeyUsage{"any"}, "extended key usage 0"},
	} {
		obj := object(t, signerName(name), template(t, test.change))
		obj.Spec.Usages = test.usages
		req, err := csr.Parse(obj)
		if err != nil {
			t.Fatal(err)
		}
		_, err = signing.Issue(r.Signers[name].Profile, req.Cert, now)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// TestIssuedLifetimeIsWhatOthersGetToo checks the gauge that alerts use. A CA that ends soon shortens it; a
// requester's own lifetime does not. The test is not parallel, because all tests share the gauge.
func TestIssuedLifetimeIsWhatOthersGetToo(t *testing.T) {
	lifetime := func(ca time.Duration, change ...func(*request)) time.Duration {
		t.Helper()
		p := newParts(t, object(t, change...))
		root := newRoot(t, ca)
		p.pair.Load(root.cert, root.key)
		if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
			t.Fatalf("%d writes, error %v", len(p.written), err)
		}
		metric := &dto.Metric{}
		if err := issuedLifetimeSeconds.WithLabelValues(p.written[0].Spec.SignerName).Write(metric); err != nil {
			t.Fatal(err)
		}
		return time.Duration(metric.GetGauge().GetValue()) * time.Second
	}
	const year = 365 * 24 * time.Hour
	if got := lifetime(10 * year); got != year {
		t.Errorf("%s, want the configured year", got)
	}
	tenMinutes := int32(600)
	if got := lifetime(10*year, func(obj *request) { obj.Spec.ExpirationSeconds = &tenMinutes }); got != year {
		t.Errorf("%s after a requester asked for ten minutes: nobody else gets that", got)
	}
	if got := lifetime(24 * time.Hour); got > 25*time.Hour {
		t.Errorf("%s, but the CA ends in a day", got)
	}
}

const kubeletClient, kubeletServing = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"

// ledgerFunc implements Ledger.
type ledgerFunc func(keyID, signerName string, notAfter time.Time) error

func (f ledgerFunc) Cover(_ context.Context, keyID, signerName string, notAfter time.Time) error {
	return f(keyID, signerName, notAfter)
}

// guardedParts returns parts with a CA that ends after lifetime. The permit is changed by change, and cover is the
// ledger.
func guardedParts(t *testing.T, lifetime time.Duration, cover ledgerFunc, change ...func(*keypair.Ring)) *parts {
	t.Helper()
	p := newParts(t, object(t))
	secret := keypair.Secret{Namespace: "ns", Name: "ca"}
	guarded := keypair.New(keypair.Guarded{Secret: secret, Ledger: cover})
	guarded.Clock, guarded.Reporter, p.pair = p.pair.Clock, p.pair.Reporter, guarded
	for name, signer := range p.reconciler.Signers {
		signer.KeyPair = guarded
		p.reconciler.Signers[name] = signer
	}
	signing := newRoot(t, lifetime)
	ring := keypair.Ring{
		Signing: keypair.Pair{Cert: signing.cert, Key: signing.key},
		Permit:  keypair.Permit{Authority: "cluster", Signers: []string{kubeletClient}},
	}
	for _, each := range change {
		each(&ring)
	}
	stored := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	stored.Namespace, stored.Name = secret.Namespace, secret.Name
	if err := ring.WriteTo(stored.Data); err != nil {
		t.Fatal(err)
	}
	if err := guarded.ReadOnce(t.Context(), fake.NewClientBuilder().WithObjects(stored).Build()); err != nil {
		t.Fatal(err)
	}
	taken(p.recorder)
	return p
}

// TestCoveredBeforeItIsSigned checks that the ledger records the same end as the certificate, and records it first.
func TestCoveredBeforeItIsSigned(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lifetime time.Duration // of the CA
		longest  time.Duration
		want     time.Duration // of the certificate
		events   int
	}{
		"the profile's lifetime":   {10 * 365 * 24 * time.Hour, 0, 365*24*time.Hour - 5*time.Minute, 0},
		"the permit's cap":         {10 * 365 * 24 * time.Hour, 24 * time.Hour, 24*time.Hour - 5*time.Minute, 0},
		"a cap above the profile":  {10 * 365 * 24 * time.Hour, 9999 * time.Hour, 365*24*time.Hour - 5*time.Minute, 0},
		"cut by the end of the CA": {time.Hour, 24 * time.Hour, time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *parts
			var told []string
			p = guardedParts(t, test.lifetime, func(keyID, signerName string, notAfter time.Time) error {
				if len(p.written) > 0 {
					t.Error("written before it was covered")
				}
				told = append(told, keyID, signerName, notAfter.Sub(now).String())
				return nil
			}, func(r *keypair.Ring) { r.Permit.LifetimeCap = test.longest })
			if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
				t.Fatalf("written %d times, error %v", len(p.written), err)
			}
			if diff := cmp.Diff([]string{state(p.pair, now), kubeletClient, test.want.String()}, told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			certs, err := ca.ParseCertificates(p.written[0].Status.Certificate)
			if err != nil || !certs[0].NotAfter.Equal(now.Add(test.want)) {
				t.Errorf("issued until %v, error %v", certs, err)
			}
			if got := taken(p.recorder); len(got) != test.events {
				t.Errorf("Events %q", got)
			}
		})
	}
}

// TestNothingIsSignedThatIsNotCovered checks that a failed ledger write is retried and reported once.
func TestNothingIsSignedThatIsNotCovered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault error
		todo  string
	}{
		"unavailable": {errors.New("no route"), ""},
		"sealed":      {fmt.Errorf("issue by key a: %w", ledger.ErrSealed), ""},
		"lost": {fmt.Errorf("read the account of key a: %w", ledger.ErrNoAccount),
			"; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
				"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := guardedParts(t, 24*time.Hour, func(string, string, time.Time) error { return test.fault })
			for range 2 {
				if _, err := p.reconcile(t); !errors.Is(err, test.fault) || len(p.written) > 0 {
					t.Errorf("written %d times, error %v", len(p.written), err)
				}
			}
			want := []string{"Warning LedgerUnavailable the certificate is not signed, because the CA's ledger cannot record it: " + test.fault.Error() + test.todo}
			if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotProven checks that a request waits if the permit does not name its signer. The ledger is not asked.
func TestNotProven(t *testing.T) {
	t.Parallel()
	p := guardedParts(t, 24*time.Hour, func(string, string, time.Time) error { t.Error("asked"); return nil },
		func(r *keypair.Ring) { r.Permit.Signers = []string{kubeletServing} })
	result, err := p.reconcile(t)
	if err != nil || result.RequeueAfter == 0 || len(p.written) > 0 {
		t.Errorf("result %v, error %v, written %d times", result, err, len(p.written))
	}
	if got := taken(p.recorder); len(got) != 1 || !strings.HasPrefix(got[0], "Warning CANotProven the CA in Secret ns/ca is not proven") {
		t.Errorf("Events %q", got)
	}
}

// TestWithoutRotationNothingIsNoted checks that without rotation only the certificate is written. The fake client
// fails the test for any other write.
func TestWithoutRotationNothingIsNoted(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	one := newRoot(t, 24*time.Hour)
	p.pair.Load(one.cert, one.key)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || p.written[0].Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("written %d times, error %v", len(p.written), err)
	}
}
