package keypair

import (
	"bytes"
	"encoding/pem"
	"maps"
	"slices"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// FuzzRing checks that a written Ring is read again unchanged, that foreign keys of the Secret stay, that a removed pair
// leaves no byte, and that a reader without a guard accepts each pair that it accepted before. recipe selects the CA in
// tls.crt, so that no corpus holds a key.
func FuzzRing(f *testing.F) {
	rootKey, _ := newKey(f, "root")
	root, rootCert := issued(f, "root", rootKey, nil, nil)
	key, keyPEM := newKey(f, "below")
	below, _ := issued(f, "below", key, rootCert, rootKey)
	self, _ := issued(f, "below", key, nil, nil)
	otherKey, otherKeyPEM := newKey(f, "other")
	otherCert, _ := issued(f, "other", otherKey, nil, nil)
	other := Pair{otherCert, otherKeyPEM}
	parts := [][]byte{below, keyPEM, root, self, other.Cert, other.Key, []byte("text"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})}
	cook := func(recipe []byte) (all []byte) {
		for _, choice := range recipe[:min(len(recipe), 8)] {
			all = append(all, parts[int(choice)%len(parts)]...)
		}
		return all
	}
	f.Add([]byte{0}, []byte{1}, []byte{2}, []byte("sc"), []byte("sk"), []byte("cc"), []byte(`{"authority":"a","signers":["b"],"lifetimeCap":5}`), "other")
	f.Add([]byte{0, 2}, []byte{1}, []byte{2, 3}, []byte(nil), []byte(nil), []byte(nil), []byte(nil), "ca.crt.old")
	f.Add([]byte{3}, []byte{1}, []byte{4}, []byte("x"), []byte(nil), []byte("y"), []byte("{}"), "")
	f.Add([]byte{4, 7}, []byte{5}, []byte{6, 7}, []byte(nil), []byte(nil), []byte(nil), []byte("null"), "a")
	f.Fuzz(func(t *testing.T, cert, key, roots, signing, signingSecret, candidate, permit []byte, foreign string) {
		data := map[string][]byte{
			"tls.crt": cook(cert), "tls.key": cook(key), "ca.crt": cook(roots), "signing.crt": signing, "signing.key": signingSecret,
			"candidate.crt": candidate, "retiring.key": signingSecret, "authority.json": permit,
		}
		if _, ours := data[foreign]; ours || foreign == "candidate.key" || foreign == "retiring.crt" {
			return
		}
		data[foreign] = []byte("kept")
		ring, err := ParseRing(data)
		if err != nil {
			return
		}
		written := maps.Clone(data)
		if err := ring.WriteTo(written); err != nil {
			t.Fatal(err)
		}
		checkWritten(t, ring, written, foreign)
		before, errBefore := ca.Load(data["tls.crt"], data["tls.key"], data["ca.crt"])
		after, errAfter := ca.Load(written["tls.crt"], written["tls.key"], written["ca.crt"])
		if errBefore == nil && (errAfter != nil || !bytes.Equal(before.CertificatePEM(), after.CertificatePEM())) {
			t.Errorf("a reader had %v, and has %v, %v", before.KeyID(), after, errAfter)
		}
		ring.TLS = other
		if err := ring.WriteTo(written); err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Load(written["tls.crt"], written["tls.key"], written["ca.crt"]); err != nil {
			t.Errorf("a reader refuses a new CA: %v", err)
		}
		ring.Candidate, ring.Retiring, ring.Signing, ring.Permit = Pair{}, Pair{}, Pair{}, Permit{}
		if err := ring.WriteTo(written); err != nil {
			t.Fatal(err)
		}
		left := slices.DeleteFunc(slices.Sorted(maps.Keys(written)), func(name string) bool {
			return name == foreign || name == "tls.crt" || name == "tls.key" || name == "ca.crt"
		})
		if len(left) > 0 {
			t.Errorf("a removed pair leaves %q", left)
		}
	})
}

// checkWritten reads what ring has written, and writes it again.
func checkWritten(t *testing.T, ring Ring, written map[string][]byte, foreign string) {
	t.Helper()
	read, err := ParseRing(written)
	if err != nil {
		t.Fatalf("what was written can't be read: %v", err)
	}
	if !read.TLS.Equal(ring.TLS) || !read.Signing.Equal(ring.Signing) || !read.Candidate.Equal(ring.Candidate) || !read.Retiring.Equal(ring.Retiring) {
		t.Errorf("wrote %+v, and read %+v", ring, read)
	}
	if ring.Permit.Authority != "" && !read.Permit.Equal(ring.Permit) || ring.Permit.Authority == "" && !read.Permit.Equal(Permit{}) {
		t.Errorf("wrote the permit %+v, and read %+v", ring.Permit, read.Permit)
	}
	if string(written[foreign]) != "kept" {
		t.Errorf("the key %q is lost", foreign)
	}
	again := maps.Clone(written)
	if err := read.WriteTo(again); err != nil || !maps.EqualFunc(written, again, bytes.Equal) {
		t.Errorf("a second write changes the Secret, error %v", err)
	}
}
