package ledger_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const kubelet = "kubernetes.io/kube-apiserver-client-kubelet"

func (w *world) recorder() *ledger.Recorder { return ledger.NewRecorder(w, w, secret, w.clock) }

func certificateOf(node, signerName, keyID string, ends time.Duration) ledger.Certificate {
	return ledger.Certificate{Node: node, Signer: signerName, KeyID: keyID, NotAfter: now.Add(ends)}
}

// moved returns the stored nodes that have moved.
func (w *world) moved() map[string]string { return w.configMap(ledger.MovedName("ca")).Data }

// TestMoved checks that the nodes are stored to which the CA that signs has issued a certificate, and that those of another CA are
// removed. Notes that can't be stored are kept for the next flush. What is known needs no write.
func TestMoved(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	recorder := w.recorder()
	for _, one := range []ledger.Certificate{
		certificateOf("a", node, key, time.Hour), certificateOf("a", kubelet, key, time.Hour), certificateOf("b", kubelet, key, time.Hour),
		certificateOf("b", kubelet, other, time.Hour), certificateOf("c", kubelet, other, time.Hour), certificateOf("d", web, key, time.Hour),
		certificateOf("", kubelet, key, time.Hour),
	} {
		recorder.Note(one)
	}
	away := errors.New("no route")
	w.before = func() error { return away }
	w.fails("flush", recorder.FlushMoved(ctx, key), away)
	w.before = nil
	w.succeed(recorder.FlushMoved(ctx, key))
	expect.Equal(t, "moved", w.moved(), map[string]string{"keyID": key, "a": "kube-apiserver-client-kubelet,kubelet-serving", "b": "kube-apiserver-client-kubelet"})
	writes, again := w.writes.Load(), w.recorder()
	again.Note(certificateOf("a", node, key, time.Hour)) // seen again after a restart
	w.succeed(again.FlushMoved(ctx, key), again.FlushMoved(ctx, other))
	expect.Equal(t, "writes, after what is known", w.writes.Load(), writes)
	again.Note(certificateOf("c", kubelet, other, time.Hour))
	w.succeed(again.FlushMoved(ctx, other))
	expect.Equal(t, "moved to another CA", w.moved(), map[string]string{"keyID": other, "c": "kube-apiserver-client-kubelet"})
}

// TestManyNodes checks that 5,000 nodes cost one write, and that no number of nodes makes the object larger than 1 MiB, even if every
// name has the maximum length.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flush := func(nodes int, suffix string) int {
		recorder := w.recorder()
		for n := range nodes {
			recorder.Note(certificateOf(fmt.Sprintf("%05d%s", n, suffix), kubelet, key, time.Hour))
			recorder.Note(certificateOf(fmt.Sprintf("%05d%s", n, suffix), node, key, time.Hour))
		}
		w.succeed(recorder.FlushMoved(t.Context(), key))
		return len(w.moved()) - 1
	}
	expect.Equal(t, "nodes", flush(5000, ".eu-central-1.compute.internal"), 5000)
	expect.Equal(t, "writes", w.writes.Load(), 1)
	stored := flush(5000, strings.Repeat("."+strings.Repeat("n", 61), 4))
	size := w.configMap(ledger.MovedName("ca")).Size()
	expect.Equal(t, "full", w.moved()["isFull"], "true")
	expect.True(t, stored > 5500 && stored < 10_000 && size < 1<<20, "%d nodes in %d bytes", stored, size)
}

// authority makes a CA. All CAs have the same name.
func authority() *ca.Authority {
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	return must(made, err)
}

func issued(by *ca.Authority, commonName string) []byte {
	req := ca.Request{PublicKey: authority().Certificate().PublicKey, Subject: pkix.Name{CommonName: commonName}}
	return must(by.Issue(must(ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})), req, now)).PEM
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// forged returns certificate with another signature. Its issuer and all its key identifiers are the same.
func forged(certificate []byte) []byte {
	block, _ := pem.Decode(certificate)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

// TestRecognize checks that the signature decides, for a request as the API server sends it and for a trimmed one.
func TestRecognize(t *testing.T) {
	t.Parallel()
	old, next, stranger := authority(), authority(), authority()
	known := []*x509.Certificate{old.Certificate(), next.Certificate()}
	trim := csr.Trim{Authorities: func() []*x509.Certificate { return known }}
	nodeName := csr.NodeUserPrefix + "a"
	want := func(node string, by *ca.Authority) ledger.Certificate {
		return certificateOf(node, kubelet, by.KeyID(), time.Hour)
	}
	for name, test := range map[string]struct {
		certificate []byte
		want        ledger.Certificate
	}{
		"a node's certificate, old CA": {issued(old, nodeName), want("a", old)},
		"a node's certificate, new CA": {issued(next, nodeName), want("a", next)},
		"a user's certificate":         {issued(old, "alice"), want("", old)},
		"a name that is no node name":  {issued(old, csr.NodeUserPrefix+"A/b"), want("", old)},
		"with its chain":               {append(issued(next, nodeName), next.CertificatePEM()...), want("a", next)},
		"another CA of the same name":  {issued(stranger, nodeName), ledger.Certificate{}},
		"no certificate yet":           {nil, ledger.Certificate{}},
		"a signature that was changed": {forged(issued(old, nodeName)), ledger.Certificate{}},
		"a broken certificate":         {[]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ledger.Certificate{}},
	} {
		obj := &certificatesv1.CertificateSigningRequest{}
		obj.Spec.SignerName, obj.Status.Certificate = kubelet, test.certificate
		trimmed := must(trim.Transform(obj.DeepCopy())).(*certificatesv1.CertificateSigningRequest)
		for _, obj := range []*certificatesv1.CertificateSigningRequest{obj, trimmed} {
			got, found := ledger.Recognize(obj, known)
			expect.Equal(t, fmt.Sprintf("%s, trimmed: %t", name, csr.Trimmed(obj)), got, test.want)
			expect.Equal(t, name+": found", found, test.want.KeyID != "")
		}
	}
}

// TestManySigners checks that the names of 5,000 signers cost one write and little room, that a built-in signer keeps its own end, and
// that no end is lost.
func TestManySigners(t *testing.T) {
	t.Parallel()
	w := newWorld(t, key)
	recorder := w.recorder()
	for n := range 5000 {
		recorder.Note(certificateOf("", fmt.Sprintf("%05d%s.com/a", n, strings.Repeat(".example", 60)), key, time.Duration(n)*time.Hour))
	}
	w.succeed(recorder.Flush(t.Context()))
	first := w.stored()[key].SignerNames()[0]
	recorder.Note(certificateOf("a", kubelet, key, time.Hour))
	recorder.Note(certificateOf("", first, key, 4999*time.Hour))
	w.succeed(recorder.Flush(t.Context()), w.cover(web, time.Hour))
	stored := w.stored()[key].Signers
	expect.Equal(t, "a name that is known", stored[first], now.Add(4999*time.Hour))
	expect.Equal(t, "writes", w.writes.Load(), 3)
	expect.Equal(t, "a built-in signer", stored[kubelet], now.Add(time.Hour))
	expect.True(t, !stored[web].Before(now.Add(time.Hour)), "a signer of ours is not recorded")
	last := now
	for _, end := range stored {
		last = slices.MaxFunc([]time.Time{last, end}, time.Time.Compare)
	}
	expect.Equal(t, "the last end", last, now.Add(4999*time.Hour))
	size := w.configMap("ca-ledger").Size()
	expect.True(t, len(stored) == 23 && size < 20_000, "%d signers in %d bytes", len(stored), size)
}

// TestRecorder checks that notes raise the stored end with one write, and that unsaved notes are kept. A missing account
// fails no Flush and loses no note. Flush does not store the nodes, on which no decision depends.
func TestRecorder(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, other), t.Context()
	recorder := w.recorder()
	recorder.Note(certificateOf("", web, key, time.Hour))
	for n := range 100 {
		recorder.Note(certificateOf("a", kubelet, other, time.Duration(n)*time.Hour))
	}
	away := errors.New("no route")
	w.before = func() error { return away }
	w.fails("flush", recorder.Flush(ctx), away)
	w.before = nil
	writes := w.writes.Load()
	w.succeed(recorder.Flush(ctx), recorder.Flush(ctx))
	expect.Equal(t, "writes", w.writes.Load()-writes, 1)
	want := map[string]ledger.Account{other: {Signers: map[string]time.Time{kubelet: now.Add(99 * time.Hour)}}}
	expect.Equal(t, "without an account", w.stored(), want)
	w.open()
	w.succeed(recorder.Flush(ctx))
	want[key] = ledger.Account{Signers: map[string]time.Time{web: now.Add(time.Hour)}}
	expect.Equal(t, "with one", w.stored(), want)
}
