package csr_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// mldsaKinds are the parameter sets of FIPS 204.
var mldsaKinds = []string{"ML-DSA-44", "ML-DSA-65", "ML-DSA-87"}

// mldsaRequest returns a kubelet's request with a key of that kind, such as ML-DSA-44. It is a file, because a program with version
// v1.0.0 of the FIPS 140-3 module can't make the key.
func mldsaRequest(t testing.TB, kind string) []byte {
	t.Helper()
	return []byte(expect.File(t, "testdata/"+kind+".pem"))
}

// TestMLDSA signs requests with ML-DSA keys. The part test-fips of `make nightly` runs it with version v1.0.0 of the FIPS 140-3 module,
// which has no such keys: the refusal says so.
func TestMLDSA(t *testing.T) {
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	authority, profile := must(made, err), must(ca.NewProfile(ca.ProfileConfig{}))
	for i, kind := range mldsaKinds {
		data := mldsaRequest(t, kind)
		if fips140.Version() == "v1.0.0" {
			expect.Equal(t, kind, refusal(csr.Limits{}, payload(data)), "KeyNotPermitted: the public key can't be read: mldsa: unavailable in "+
				"FIPS 140-3 Go Cryptographic Module v1.0.0; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519")
			continue
		}
		req := parse(payload(data))
		public, is := req.Cert.PublicKey.(*mldsa.PublicKey)
		expect.True(t, is && public.Parameters().String() == kind, "%s: a key of type %T", kind, req.Cert.PublicKey)
		if violation := req.Check(profile); violation != nil {
			t.Errorf("%s: %s: %s", kind, violation.Reason, violation.Message)
		}
		issued, err := authority.Issue(profile, req.Cert, now)
		expect.NoError(t, err)
		first, _ := pem.Decode(issued.PEM)
		expect.True(t, public.Equal(must(x509.ParseCertificate(first.Bytes)).PublicKey), "%s: the certificate has another key", kind)

		block, _ := pem.Decode(data)
		renamed := bytes.Replace(block.Bytes, []byte("system:node:a"), []byte("system:node:b"), 1)
		expect.Error(t, kind+", changed after it was signed", parse(withRequest(renamed)).CheckSignature(),
			"the signature in spec.request does not match its public key: x509: ML-DSA verification failure: mldsa: invalid signature")
		short := key(asn1.RawValue{}, public.Bytes()[1:], 2, 16, 840, 1, 101, 3, 4, 3, 17+i)
		expect.Equal(t, kind+", short", refusal(csr.Limits{}, withRequest(derOf(short))),
			"KeyNotPermitted: the public key can't be read: mldsa: invalid public key length; "+ca.PermittedKeys())
	}
}

// TestMLDSAInFIPSMode runs TestMLDSA in each FIPS mode of Go. None of them changes what a program can do with ML-DSA.
func TestMLDSAInFIPSMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"on", "only"} {
		command := exec.CommandContext(t.Context(), must(os.Executable()), "-test.run=^TestMLDSA$", "-test.v")
		command.Env = append(os.Environ(), "GODEBUG=fips140="+mode)
		output, err := command.CombinedOutput()
		expect.True(t, err == nil && strings.Contains(string(output), "--- PASS: TestMLDSA "), "fips140=%s: %v\n%s", mode, err, output)
	}
}

// BenchmarkCheckSignature verifies requests with keys of each kind. A client chooses the key, and the manager pays for it.
func BenchmarkCheckSignature(b *testing.B) {
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	keys := map[string]crypto.Signer{
		"RSA-2048": must(rsa.GenerateKey(rand.Reader, 2048)), "RSA-8192": must(rsa.GenerateKey(rand.Reader, 8192)), "Ed25519": must(edKey, err),
		"P-256": leafKey(), "P-384": must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)), "P-521": must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)),
	}
	for _, parameters := range []mldsa.Parameters{mldsa.MLDSA44(), mldsa.MLDSA65(), mldsa.MLDSA87()} {
		keys[parameters.String()] = must(mldsa.GenerateKey(parameters))
	}
	for name, key := range keys {
		obj := object(withRequest(must(x509.CreateCertificateRequest(rand.Reader, nodeRequest(), key))))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				expect.NoError(b, must(csr.Parse(obj)).CheckSignature())
			}
			b.ReportMetric(float64(len(obj.Spec.Request)), "request-bytes")
		})
	}
}
