package ledger_test

import (
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const kubelet = "kubernetes.io/kube-apiserver-client-kubelet"

func (w *world) recorder() *ledger.Recorder { return ledger.NewRecorder(w, w, secret, w.clock) }

func certificateOf(node, signerName, keyID string, notBefore time.Duration, lifetime time.Duration) ledger.Certificate {
	return ledger.Certificate{Node: node, Signer: signerName, KeyID: keyID, NotBefore: now.Add(notBefore), NotAfter: now.Add(notBefore + lifetime)}
}

// read returns the stored certificates of nodes, without those that can't be read.
func (w *world) read() (all []ledger.Certificate) {
	w.t.Helper()
	for _, name := range ledger.NodesNames("ca") {
		for node, text := range w.configMap(name).Data {
			var bySigner map[string]ledger.Certificate
			_ = json.Unmarshal([]byte(text), &bySigner)
			for signerName, one := range bySigner {
				one.Node, one.Signer = node, signerName
				all = append(all, one)
			}
		}
	}
	slices.SortFunc(all, func(a, b ledger.Certificate) int { return cmp.Compare(a.Node+a.Signer, b.Node+b.Signer) })
	return all
}

// TestNodes checks that the newest certificate of each node and signer is kept, and that a change removes those that have
// expired. Notes that can't be stored are kept for the next flush.
func TestNodes(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	recorder, newer := w.recorder(), certificateOf("a", node, other, time.Hour, 2*time.Hour)
	for _, one := range []ledger.Certificate{
		certificateOf("a", node, key, 0, 48*time.Hour), newer, certificateOf("a", node, key, time.Minute, 48*time.Hour),
		certificateOf("a", kubelet, key, 0, 24*time.Hour), certificateOf("", web, key, 0, time.Hour),
	} {
		recorder.Note(one)
	}
	away := errors.New("no route")
	w.before = func() error { return away }
	w.fails("flush", recorder.FlushNodes(ctx, now), away)
	w.before = nil
	recorder.Note(certificateOf("b", kubelet, key, 0, time.Hour))
	w.succeed(recorder.FlushNodes(ctx, now))
	want := []ledger.Certificate{certificateOf("a", kubelet, key, 0, 24*time.Hour), newer, certificateOf("b", kubelet, key, 0, time.Hour)}
	expect.Equal(t, "certificates", w.read(), want)
	writes, again := w.writes.Load(), w.recorder()
	again.Note(certificateOf("a", node, key, 0, 48*time.Hour)) // seen again after a restart
	w.succeed(again.FlushNodes(ctx, now), again.FlushNodes(ctx, now))
	expect.Equal(t, "writes, after what is known", w.writes.Load(), writes)
	want[0] = certificateOf("a", kubelet, key, time.Hour, 24*time.Hour)
	again.Note(want[0])
	w.succeed(again.FlushNodes(ctx, now.Add(3*time.Hour)))
	if diff := gocmp.Diff(want[:1], w.read()[:1]); diff != "" || slices.Contains(w.read(), newer) {
		t.Errorf("%v: %s", w.read(), diff)
	}
}

// TestABrokenShardHidesNoOther checks that the other ConfigMaps are still written, and that the broken one is not
// overwritten.
func TestABrokenShardHidesNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flush := func(keyID string, notBefore time.Duration) error {
		recorder := w.recorder()
		for i := range 200 { // enough for each shard
			recorder.Note(certificateOf(fmt.Sprint("node-", i), node, keyID, notBefore, time.Hour))
		}
		return recorder.FlushNodes(t.Context(), now)
	}
	w.succeed(flush(key, 0))
	broken := w.configMap(ledger.NodesNames("ca")[0])
	inBroken := len(broken.Data)
	broken.Data["broken"] = "broken"
	w.succeed(w.Update(t.Context(), broken))
	err := flush(other, time.Minute)
	expect.True(t, err != nil && strings.Contains(err.Error(), broken.Name+": read the certificates of node broken"), "flush: %v", err)
	stored := map[string]int{}
	for _, one := range w.read() {
		stored[one.KeyID]++
	}
	expect.True(t, stored[key] == inBroken && stored[other] == 200-inBroken && inBroken != 0,
		"stored %v, of which %d are in the broken ConfigMap", stored, inBroken)
	expect.Equal(t, "overwritten", w.configMap(broken.Name).Data, broken.Data)
}

// TestManyNodes checks that 5,000 nodes cost 16 writes, and that any number of nodes makes no object larger than 1 MiB,
// even if every name has the maximum length. Then those whose certificates end first are missing.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	recorder, long := w.recorder(), strings.Repeat(strings.Repeat("n", 61)+".", 4)
	name := func(n int) string { return fmt.Sprintf("%05d%s", n, long) }
	note := func(n int) {
		for _, signerName := range []string{node, kubelet} {
			recorder.Note(certificateOf(name(n), signerName, key, 0, 8760*time.Hour+time.Duration(n)*time.Second))
		}
	}
	for n := range 5000 {
		note(n)
	}
	w.succeed(recorder.FlushNodes(t.Context(), now))
	expect.Equal(t, "writes", w.writes.Load(), 16)
	expect.Equal(t, "certificates", len(w.read()), 10_000)
	recorder = w.recorder()
	for n, more := 5000, 0; more < 1500; n++ {
		sum := fnv.New32a() // as Note chooses the ConfigMap
		if _, _ = sum.Write([]byte(name(n))); sum.Sum32()%16 == 0 {
			note(n)
			more++
		}
	}
	w.succeed(recorder.FlushNodes(t.Context(), now))
	stored := w.configMap(ledger.NodesNames("ca")[0])
	if size, err := stored.Marshal(); err != nil || len(size) > 1<<20 || len(stored.Data) != 1500 {
		t.Errorf("%d nodes in %d bytes, error %v", len(stored.Data), len(size), err)
	}
	first := slices.Min(slices.Collect(maps.Keys(stored.Data)))
	expect.True(t, first >= "05000", "%.5s is among those that end first, and was kept", first)
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
	nodeName := csr.NodeUserPrefix + "a"
	want := func(node string, by *ca.Authority) ledger.Certificate {
		return certificateOf(node, kubelet, by.KeyID(), -5*time.Minute, time.Hour+5*time.Minute)
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
		trimmed := must(csr.Trim{}.Transform(obj.DeepCopy())).(*certificatesv1.CertificateSigningRequest)
		for _, obj := range []*certificatesv1.CertificateSigningRequest{obj, trimmed} {
			got, found := ledger.Recognize(obj, []*x509.Certificate{old.Certificate(), next.Certificate()})
			expect.Equal(t, fmt.Sprintf("%s, trimmed: %t", name, csr.Trimmed(obj)), got, test.want)
			expect.Equal(t, name+": found", found, test.want.KeyID != "")
		}
	}
}

// TestRecorder checks that notes raise the stored end with one write, and that unsaved notes are kept. A missing account
// fails no Flush and loses no note. Flush does not store the nodes, on which no decision depends.
func TestRecorder(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, other), t.Context()
	recorder := w.recorder()
	recorder.Note(certificateOf("", web, key, 0, time.Hour))
	for n := range 100 {
		recorder.Note(certificateOf("a", kubelet, other, 0, time.Duration(n)*time.Hour))
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
