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
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const kubelet = "kubernetes.io/kube-apiserver-client-kubelet"

func (s *server) nodes(clock *clocktesting.FakePassiveClock) *ledger.Nodes {
	return ledger.NewNodes(s, s, secret, clock)
}

func certificateOf(node, signerName, keyID string, notBefore time.Duration, lifetime time.Duration) ledger.Certificate {
	return ledger.Certificate{Node: node, Signer: signerName, KeyID: keyID, NotBefore: now.Add(notBefore), NotAfter: now.Add(notBefore + lifetime)}
}

func read(t *testing.T, nodes *ledger.Nodes) []ledger.Certificate {
	t.Helper()
	all, err := nodes.Read(t.Context())
	succeed(t, err)
	return all
}

// TestNodes checks that the newest certificate of each node and signer is kept, and left out after it has expired.
func TestNodes(t *testing.T) {
	t.Parallel()
	s, clock := newServer(), clocktesting.NewFakePassiveClock(now)
	nodes := s.nodes(clock)
	newer := certificateOf("a", node, other, time.Hour, 2*time.Hour)
	for _, one := range []ledger.Certificate{
		certificateOf("a", node, key, 0, 48*time.Hour), newer, certificateOf("a", node, key, time.Minute, 48*time.Hour),
		certificateOf("a", kubelet, key, 0, 24*time.Hour), certificateOf("b", kubelet, key, 0, time.Hour), certificateOf("", web, key, 0, time.Hour),
	} {
		nodes.Note(one)
	}
	succeed(t, nodes.Flush(t.Context()))
	want := []ledger.Certificate{certificateOf("a", kubelet, key, 0, 24*time.Hour), newer, certificateOf("b", kubelet, key, 0, time.Hour)}
	if diff := cmp.Diff(want, read(t, nodes)); diff != "" {
		t.Error(diff)
	}
	writes := s.writes.Load()
	again := s.nodes(clock)
	again.Note(certificateOf("a", node, key, 0, 48*time.Hour)) // seen again after a restart
	succeed(t, again.Flush(t.Context()))
	succeed(t, again.Flush(t.Context()))
	if s.writes.Load() > writes {
		t.Error("what is known was written again")
	}
	clock.SetTime(now.Add(3 * time.Hour))
	if diff := cmp.Diff(want[:1], read(t, nodes)); diff != "" {
		t.Error(diff)
	}
}

// TestNodesThatCannotBeStored checks that unsaved notes are kept for the next Flush, and that unreadable data is not
// overwritten.
func TestNodesThatCannotBeStored(t *testing.T) {
	t.Parallel()
	s, clock := newServer(), clocktesting.NewFakePassiveClock(now)
	nodes := s.nodes(clock)
	nodes.Note(certificateOf("a", node, key, 0, time.Hour))
	s.before = func() error { return errors.New("no route") }
	if err := nodes.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "no route") {
		t.Errorf("flush: %v", err)
	}
	s.before = nil
	nodes.Note(certificateOf("a", kubelet, key, 0, time.Hour))
	succeed(t, nodes.Flush(t.Context()))
	if got := read(t, nodes); len(got) != 2 {
		t.Errorf("read %v", got)
	}
	for _, name := range ledger.NodesNames("ca") {
		obj := &corev1.ConfigMap{}
		if s.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, obj) == nil {
			obj.Data["a"] = "broken"
			succeed(t, s.Update(t.Context(), obj))
		}
	}
	again := s.nodes(clock)
	again.Note(certificateOf("a", node, key, 0, 2*time.Hour))
	if err := again.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "read the certificates of node a") {
		t.Errorf("flush: %v", err)
	}
}

// TestABrokenShardHidesNoOther checks that the other ConfigMaps are still read and written.
func TestABrokenShardHidesNoOther(t *testing.T) {
	t.Parallel()
	s, clock := newServer(), clocktesting.NewFakePassiveClock(now)
	nodes := s.nodes(clock)
	names := make([]string, 200) // enough for each shard
	for i := range names {
		names[i] = fmt.Sprintf("node-%03d", i)
		nodes.Note(certificateOf(names[i], node, key, 0, time.Hour))
	}
	succeed(t, nodes.Flush(t.Context()))
	first := &corev1.ConfigMap{}
	succeed(t, s.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: ledger.NodesNames("ca")[0]}, first))
	lost := len(first.Data)
	first.Data["broken"] = "broken"
	succeed(t, s.Update(t.Context(), first))

	got, err := nodes.Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), first.Name) || len(got) != len(names)-lost || lost == 0 {
		t.Errorf("read %d of %d, of which %d are broken: %v", len(got), len(names), lost, err)
	}
	again := s.nodes(clock)
	for _, name := range names {
		again.Note(certificateOf(name, node, other, time.Minute, time.Hour))
	}
	if err := again.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), first.Name) {
		t.Errorf("flush: %v", err)
	}
	got, err = nodes.Read(t.Context())
	if err == nil || len(got) != len(names)-lost {
		t.Errorf("read %d of %d, of which %d are broken: %v", len(got), len(names), lost, err)
	}
	for _, one := range got {
		if one.KeyID != other {
			t.Errorf("node %s was not written: %+v", one.Node, one)
		}
	}
}

// TestFiveThousandNodes checks that no object comes near the limit of 1 MiB, even if every name has the maximum
// length.
func TestFiveThousandNodes(t *testing.T) {
	t.Parallel()
	s, clock := newServer(), clocktesting.NewFakePassiveClock(now)
	nodes := s.nodes(clock)
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("n", 62)+".", 4), ".")
	for n := range 5000 {
		name := fmt.Sprintf("%04d%s", n, long[:249]) // each has the maximum length
		nodes.Note(certificateOf(name, node, key, 0, 8760*time.Hour))
		nodes.Note(certificateOf(name, kubelet, key, 0, 8760*time.Hour))
	}
	succeed(t, nodes.Flush(t.Context()))
	if writes := s.writes.Load(); writes != 16 {
		t.Errorf("%d writes", writes)
	}
	for _, name := range ledger.NodesNames("ca") {
		obj := &corev1.ConfigMap{}
		succeed(t, s.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, obj))
		if size, err := obj.Marshal(); err != nil || len(size) > 256<<10 {
			t.Errorf("%s has %d bytes, error %v", name, len(size), err)
		}
	}
	if got := read(t, nodes); len(got) != 10_000 {
		t.Errorf("read %d", len(got))
	}
}

// authority makes a CA. All CAs have the same name.
func authority(t *testing.T) (*ca.Authority, *x509.Certificate) {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	succeed(t, err)
	certs, err := ca.ParseCertificates(made.CertificatePEM())
	succeed(t, err)
	return made, certs[0]
}

func issued(t *testing.T, by *ca.Authority, commonName string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
	succeed(t, err)
	_, leaf := authority(t)
	req := ca.Request{PublicKey: leaf.PublicKey}
	req.Subject.CommonName = commonName
	made, err := by.Issue(profile, req, now)
	succeed(t, err)
	obj := &certificatesv1.CertificateSigningRequest{}
	obj.Spec.SignerName, obj.Status.Certificate = kubelet, made.PEM
	return obj
}

// forged returns certificate with another signature. Its issuer and all its key identifiers are the same.
func forged(t *testing.T, certificate []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(certificate)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func TestRecognize(t *testing.T) {
	t.Parallel()
	old, oldCert := authority(t)
	next, nextCert := authority(t)
	stranger, _ := authority(t)
	nodeName := csr.NodeUserPrefix + "a"
	with := func(obj *certificatesv1.CertificateSigningRequest, certificate []byte) *certificatesv1.CertificateSigningRequest {
		obj.Status.Certificate = certificate
		return obj
	}
	want := func(node, keyID string) ledger.Certificate {
		return ledger.Certificate{Node: node, Signer: kubelet, KeyID: keyID, NotBefore: now.Add(-5 * time.Minute), NotAfter: now.Add(time.Hour)}
	}
	for name, test := range map[string]struct {
		obj  *certificatesv1.CertificateSigningRequest
		want ledger.Certificate
	}{
		"a node's certificate, old CA": {issued(t, old, nodeName), want("a", old.KeyID())},
		"a node's certificate, new CA": {issued(t, next, nodeName), want("a", next.KeyID())},
		"a user's certificate":         {issued(t, old, "alice"), want("", old.KeyID())},
		"a name that is no node name":  {issued(t, old, csr.NodeUserPrefix+"A/b"), want("", old.KeyID())},
		"with its chain":               {with(issued(t, old, nodeName), append(issued(t, next, nodeName).Status.Certificate, next.CertificatePEM()...)), want("a", next.KeyID())},
		"another CA of the same name":  {issued(t, stranger, nodeName), ledger.Certificate{}},
		"no certificate yet":           {with(issued(t, old, nodeName), nil), ledger.Certificate{}},
		"a signature that was changed": {with(issued(t, old, nodeName), forged(t, issued(t, old, nodeName).Status.Certificate)), ledger.Certificate{}},
		"a broken certificate":         {with(issued(t, old, nodeName), []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), ledger.Certificate{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trimmed, err := csr.Trim{}.Transform(test.obj.DeepCopy())
			succeed(t, err)
			for _, obj := range []*certificatesv1.CertificateSigningRequest{test.obj, trimmed.(*certificatesv1.CertificateSigningRequest)} {
				got, found := ledger.Recognize(obj, []*x509.Certificate{oldCert, nextCert})
				if diff := cmp.Diff(test.want, got); diff != "" || found != (test.want.KeyID != "") {
					t.Errorf("trimmed: %t, found: %t (-want +got):\n%s", csr.Trimmed(obj), found, diff)
				}
			}
		})
	}
}

// TestRecorder checks that notes raise the stored end with one write, and that unsaved notes are kept. Run stores the
// nodes, on which no decision depends. Flush stores only the ends.
func TestRecorder(t *testing.T) {
	t.Parallel()
	s, clock := newServer(empty(key)), clocktesting.NewFakePassiveClock(now)
	recorder := &ledger.Recorder{Book: s.book(), Nodes: s.nodes(clock)}
	for n := range 100 {
		recorder.Note(certificateOf("a", kubelet, key, 0, time.Duration(n)*time.Hour))
	}
	s.before = func() error { return errors.New("no route") }
	if err := recorder.Flush(t.Context()); err == nil {
		t.Error("no error")
	}
	s.before = nil
	writes := s.writes.Load()
	for range 2 {
		succeed(t, recorder.Flush(t.Context()))
	}
	if got := s.writes.Load() - writes; got != 1 {
		t.Errorf("%d writes, want one for the mark", got)
	}
	want := map[string]ledger.Account{key: {Signers: map[string]ledger.Entry{kubelet: {Count: 1, NotAfter: now.Add(99 * time.Hour)}}}}
	if diff := cmp.Diff(want, s.stored(t)); diff != "" {
		t.Error(diff)
	}
	if got := read(t, recorder.Nodes); len(got) != 0 {
		t.Errorf("%d nodes were stored for who asks for the marks", len(got))
	}
	ended, end := context.WithCancel(t.Context())
	end()
	recorder.Run(ended, func(err error) { t.Error(err) })
	if got := read(t, recorder.Nodes); len(got) != 1 {
		t.Errorf("%d nodes were stored at the end", len(got))
	}
}
