package ledger_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const kubelet = "kubernetes.io/kube-apiserver-client-kubelet"

func (w *world) nodes() *ledger.Nodes { return ledger.NewNodes(w, w, secret, w.clock) }

func certificateOf(node, signerName, keyID string, notBefore time.Duration, lifetime time.Duration) ledger.Certificate {
	return ledger.Certificate{Node: node, Signer: signerName, KeyID: keyID, NotBefore: now.Add(notBefore), NotAfter: now.Add(notBefore + lifetime)}
}

func (w *world) read(nodes *ledger.Nodes) []ledger.Certificate {
	w.t.Helper()
	all, err := nodes.Read(w.t.Context())
	w.succeed(err)
	return all
}

// shard returns a ConfigMap with certificates of nodes.
func (w *world) shard(name string) *corev1.ConfigMap {
	w.t.Helper()
	obj := &corev1.ConfigMap{}
	w.succeed(w.Get(w.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, obj))
	return obj
}

// TestNodes checks that the newest certificate of each node and signer is kept, and left out after it has expired. Notes
// that can't be stored are kept for the next Flush.
func TestNodes(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	nodes, newer := w.nodes(), certificateOf("a", node, other, time.Hour, 2*time.Hour)
	for _, one := range []ledger.Certificate{
		certificateOf("a", node, key, 0, 48*time.Hour), newer, certificateOf("a", node, key, time.Minute, 48*time.Hour),
		certificateOf("a", kubelet, key, 0, 24*time.Hour), certificateOf("", web, key, 0, time.Hour),
	} {
		nodes.Note(one)
	}
	away := errors.New("no route")
	w.before = func() error { return away }
	w.fails("flush", nodes.Flush(ctx), away)
	w.before = nil
	nodes.Note(certificateOf("b", kubelet, key, 0, time.Hour))
	w.succeed(nodes.Flush(ctx))
	want := []ledger.Certificate{certificateOf("a", kubelet, key, 0, 24*time.Hour), newer, certificateOf("b", kubelet, key, 0, time.Hour)}
	if diff := cmp.Diff(want, w.read(nodes)); diff != "" {
		t.Error(diff)
	}
	writes, again := w.writes.Load(), w.nodes()
	again.Note(certificateOf("a", node, key, 0, 48*time.Hour)) // seen again after a restart
	if w.succeed(again.Flush(ctx), again.Flush(ctx)); w.writes.Load() > writes {
		t.Error("what is known was written again")
	}
	w.ahead(3 * time.Hour)
	if diff := cmp.Diff(want[:1], w.read(nodes)); diff != "" {
		t.Error(diff)
	}
}

// TestABrokenShardHidesNoOther checks that the other ConfigMaps are still read and written, and that the broken one is
// not overwritten.
func TestABrokenShardHidesNoOther(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	note := func(nodes *ledger.Nodes, keyID string, notBefore time.Duration) *ledger.Nodes {
		for i := range 200 { // enough for each shard
			nodes.Note(certificateOf(fmt.Sprintf("node-%03d", i), node, keyID, notBefore, time.Hour))
		}
		return nodes
	}
	nodes := note(w.nodes(), key, 0)
	w.succeed(nodes.Flush(ctx))
	first := w.shard(ledger.NodesNames("ca")[0])
	lost := len(first.Data)
	first.Data["broken"] = "broken"
	w.succeed(w.Update(ctx, first))
	named := func(what string, err error) {
		if err == nil || !strings.Contains(err.Error(), first.Name+": read the certificates of node broken") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, keyID := range []string{key, other} {
		got, err := nodes.Read(ctx)
		if named("read", err); len(got) != 200-lost || lost == 0 {
			t.Errorf("read %d of 200, of which %d are broken", len(got), lost)
		}
		for _, one := range got {
			if one.KeyID != keyID {
				t.Errorf("node %s was not written: %+v", one.Node, one)
			}
		}
		named("flush", note(w.nodes(), other, time.Minute).Flush(ctx))
	}
	if got := w.shard(first.Name).Data; got["broken"] != "broken" || len(got) != lost+1 {
		t.Errorf("overwritten with %q", got)
	}
}

// TestFiveThousandNodes checks that no object comes near the limit of 1 MiB, even if every name has the maximum
// length.
func TestFiveThousandNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nodes := w.nodes()
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("n", 62)+".", 4), ".")
	for n := range 5000 {
		name := fmt.Sprintf("%04d%s", n, long[:249]) // each has the maximum length
		nodes.Note(certificateOf(name, node, key, 0, 8760*time.Hour))
		nodes.Note(certificateOf(name, kubelet, key, 0, 8760*time.Hour))
	}
	w.succeed(nodes.Flush(t.Context()))
	if writes, got := w.writes.Load(), len(w.read(nodes)); writes != 16 || got != 10_000 {
		t.Errorf("%d writes, read %d", writes, got)
	}
	for _, name := range ledger.NodesNames("ca") {
		if size, err := w.shard(name).Marshal(); err != nil || len(size) > 256<<10 {
			t.Errorf("%s has %d bytes, error %v", name, len(size), err)
		}
	}
}

// authority makes a CA. All CAs have the same name.
func authority(t *testing.T) *ca.Authority {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// issued returns a certificate.
func issued(t *testing.T, by *ca.Authority, commonName string) []byte {
	t.Helper()
	profile, profileErr := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
	req := ca.Request{PublicKey: authority(t).Certificate().PublicKey}
	req.Subject.CommonName = commonName
	made, err := by.Issue(profile, req, now)
	if err := errors.Join(profileErr, err); err != nil {
		t.Fatal(err)
	}
	return made.PEM
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
	old, next, stranger := authority(t), authority(t), authority(t)
	nodeName := csr.NodeUserPrefix + "a"
	want := func(node string, by *ca.Authority) ledger.Certificate {
		return certificateOf(node, kubelet, by.KeyID(), -5*time.Minute, time.Hour+5*time.Minute)
	}
	for name, test := range map[string]struct {
		certificate []byte
		want        ledger.Certificate
	}{
		"a node's certificate, old CA": {issued(t, old, nodeName), want("a", old)},
		"a node's certificate, new CA": {issued(t, next, nodeName), want("a", next)},
		"a user's certificate":         {issued(t, old, "alice"), want("", old)},
		"a name that is no node name":  {issued(t, old, csr.NodeUserPrefix+"A/b"), want("", old)},
		"with its chain":               {append(issued(t, next, nodeName), next.CertificatePEM()...), want("a", next)},
		"another CA of the same name":  {issued(t, stranger, nodeName), ledger.Certificate{}},
		"no certificate yet":           {nil, ledger.Certificate{}},
		"a signature that was changed": {forged(issued(t, old, nodeName)), ledger.Certificate{}},
		"a broken certificate":         {[]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ledger.Certificate{}},
	} {
		obj := &certificatesv1.CertificateSigningRequest{}
		obj.Spec.SignerName, obj.Status.Certificate = kubelet, test.certificate
		trimmed, err := csr.Trim{}.Transform(obj.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range []*certificatesv1.CertificateSigningRequest{obj, trimmed.(*certificatesv1.CertificateSigningRequest)} {
			got, found := ledger.Recognize(obj, []*x509.Certificate{old.Certificate(), next.Certificate()})
			if diff := cmp.Diff(test.want, got); diff != "" || found != (test.want.KeyID != "") {
				t.Errorf("%s: trimmed: %t, found: %t (-want +got):\n%s", name, csr.Trimmed(obj), found, diff)
			}
		}
	}
}

// TestRecorder checks that notes raise the stored end with one write, and that unsaved notes are kept. A missing account
// fails no Flush and loses no note. Run stores the nodes, on which no decision depends. Flush stores only the ends.
func TestRecorder(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, other), t.Context()
	recorder := &ledger.Recorder{Book: w.Book, Nodes: w.nodes()}
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
	if got := w.writes.Load() - writes; got != 1 {
		t.Errorf("%d writes, want one for the mark", got)
	}
	want := map[string]ledger.Account{other: {Signers: map[string]time.Time{kubelet: now.Add(99 * time.Hour)}}}
	if diff := cmp.Diff(want, w.stored()); diff != "" {
		t.Errorf("without an account: %s", diff)
	}
	w.open()
	w.succeed(recorder.Flush(ctx))
	want[key] = ledger.Account{Signers: map[string]time.Time{web: now.Add(time.Hour)}}
	if diff := cmp.Diff(want, w.stored()); diff != "" {
		t.Errorf("with one: %s", diff)
	}
	if got := w.read(recorder.Nodes); len(got) != 0 {
		t.Errorf("%d nodes were stored for who asks for the marks", len(got))
	}
	ended, end := context.WithCancel(ctx)
	end()
	recorder.Run(ended, func(err error) { t.Error(err) })
	if got := w.read(recorder.Nodes); len(got) != 1 {
		t.Errorf("%d nodes were stored at the end", len(got))
	}
}
