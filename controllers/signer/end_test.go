package signer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

// liveFunc is an API server that is asked for one request.
type liveFunc func(*request) error

func (f liveFunc) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	return f(obj.(*request))
}

func (liveFunc) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list")
}

// Whatever a write answers, the records say what became of the certificate; only where nobody can know do they say so.
func TestEndOfACertificate(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	conflict := apierrors.NewConflict(requests, "csr-1", down)
	for name, test := range map[string]struct {
		write error
		live  func(p *parts, now *request) error // not asked when nil
		want  audit.Event                        // none when empty: it was stored as usual
		fails bool                               // and is tried again
	}{
		"stored": {},
		"conflict, changed": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			now.ResourceVersion = "8"
			return nil
		}, want: audit.Discarded},
		"conflict, stored by a try before": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.ResourceVersion = "8"
			return nil
		}, want: audit.Stored},
		"conflict, another signer's": {write: conflict, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.ResourceVersion, now.Status.Certificate = "8", []byte("another")
			return nil
		}, want: audit.Discarded},
		"not found":         {write: apierrors.NewNotFound(requests, "csr-1"), want: audit.Discarded},
		"unauthorized":      {write: apierrors.NewUnauthorized("no"), want: audit.Uncertain, fails: true},
		"too many requests": {write: apierrors.NewTooManyRequests("later", 1), want: audit.Uncertain, fails: true},
		"no answer, stored": {write: down, live: func(p *parts, now *request) error {
			*now = *p.written[0]
			return nil
		}, want: audit.Stored},
		"no answer, another signer's": {write: down, live: func(p *parts, now *request) error {
			*now = *p.written[0].DeepCopy()
			now.ResourceVersion, now.Status.Certificate = "8", []byte("another")
			return nil
		}, want: audit.Discarded, fails: true},
		"no answer, changed": {write: down, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			now.ResourceVersion = "8"
			return nil
		}, want: audit.Discarded, fails: true},
		"no answer, another request of that name": {write: down, live: func(p *parts, now *request) error {
			*now = *p.served.DeepCopy()
			now.UID = "another"
			return nil
		}, want: audit.Uncertain, fails: true},
		"no answer, gone":      {write: down, live: func(*parts, *request) error { return apierrors.NewNotFound(requests, "csr-1") }, want: audit.Uncertain, fails: true},
		"no answer, no change": {write: down, live: func(p *parts, now *request) error { *now = *p.served.DeepCopy(); return nil }, want: audit.Uncertain, fails: true},
		"no answer at all":     {write: down, live: func(*parts, *request) error { return down }, want: audit.Uncertain, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			signer := "example.com/end: " + name
			p := partsOf(t, signer)
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

// certificateSHA256 is the digest of the certificate of obj.
func certificateSHA256(obj *request) string {
	block, _ := pem.Decode(obj.Status.Certificate)
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}

// twoRecords reads the first two records of an audit log, of which the second may be missing.
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
