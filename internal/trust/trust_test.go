package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func newCert(t testing.TB, name string, lifetime time.Duration) (*x509.Certificate, string) {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: name, Lifetime: lifetime}, now)
	expect.NoError(t, err)
	return made.Certificate(), string(made.CertificatePEM())
}

// FuzzBundle checks the bundle of any of some certificates at any time, in any order.
func FuzzBundle(f *testing.F) {
	var certs []*x509.Certificate
	for _, lifetime := range []time.Duration{time.Minute, time.Hour, time.Hour, 24 * time.Hour} {
		cert, _ := newCert(f, "CA", lifetime)
		again, err := x509.ParseCertificate(cert.Raw)
		if err != nil {
			f.Fatal(err)
		}
		certs = append(certs, cert, again)
	}
	f.Add([]byte{0, 1, 2}, int64(0))
	f.Add([]byte{2, 0, 6}, int64(59))         // a second before the first one ends
	f.Add([]byte{6, 7, 6, 3, 2}, int64(3600)) // when two of them end
	f.Add([]byte{0, 2}, int64(3600))
	f.Add([]byte{2, 0}, int64(-86400)) // before they are valid
	f.Add([]byte{}, int64(60))
	f.Fuzz(func(t *testing.T, selected []byte, seconds int64) {
		var given []*x509.Certificate
		for _, choice := range selected[:min(len(selected), 20)] {
			given = append(given, certs[int(choice)%len(certs)])
		}
		checkBundle(t, now.Add(time.Duration(seconds%100_000)*time.Second), given)
	})
}

// checkBundle checks that the bundle of given is as the API server requires it of a ClusterTrustBundle: CERTIFICATE
// blocks without headers, without text in between, without duplicates. It holds each of given that has not expired, in
// order.
func checkBundle(t *testing.T, at time.Time, given []*x509.Certificate) {
	t.Helper()
	var want []*x509.Certificate
	var exact []byte
	for _, cert := range given {
		if at.Before(cert.NotAfter) && !slices.ContainsFunc(want, cert.Equal) {
			want = append(want, cert)
			exact = append(exact, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	bundle := Bundle(at, given...)
	again, err := ca.ParseCertificates(bundle)
	expect.True(t, err == nil && slices.EqualFunc(again, want, (*x509.Certificate).Equal) && bytes.Equal(bundle, exact),
		"%d certificates, want %d, error %v:\n%s", len(again), len(want), err, bundle)
}

// FuzzReadBundle reads any bytes as a trust bundle. der becomes one more block, so that the fuzzer changes a certificate and
// not only its base64. The result must agree with the readers of crypto/x509 and of API servers, and a bundle that is written
// from it must be read as the same certificates.
func FuzzReadBundle(f *testing.F) {
	cert, text := newCert(f, "CA", time.Hour)
	other, otherText := newCert(f, "other", time.Hour)
	f.Add([]byte(text), other.Raw)
	f.Add([]byte(text+text+otherText), []byte(nil))
	f.Add([]byte("# text\n"+strings.ReplaceAll(text, "\n", "\r\n")+"-----BEGIN CERTIFICATE-----\n"), cert.Raw)
	f.Add([]byte(strings.Replace(text, "-----\n", "-----\nComment: a\n\n", 1)), append(slices.Clone(other.Raw), 0))
	f.Add([]byte(strings.ReplaceAll(text, "CERTIFICATE", "TRUSTED CERTIFICATE")), []byte("garbage"))
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, data, der []byte) {
		if len(der) > 0 {
			data = slices.Concat(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		}
		certs, err := ca.ParseCertificates(data)
		ofAPIServer, refused := certutil.ParseCertsPEM(data)
		var headers bool // API servers and crypto/x509 ignore certificates with headers
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			headers = headers || len(block.Headers) > 0
		}
		if err != nil {
			expect.True(t, len(certs) == 0 && (refused != nil || headers), "%d certificates, error %v, but API servers accept it", len(certs), err)
			return
		}
		pool, want := x509.NewCertPool(), x509.NewCertPool()
		for _, each := range certs {
			pool.AddCert(each)
		}
		want.AppendCertsFromPEM(data)
		expect.True(t, headers || pool.Equal(want) && slices.EqualFunc(certs, ofAPIServer, (*x509.Certificate).Equal),
			"%d certificates, API servers read %d, and crypto/x509 others", len(certs), len(ofAPIServer))
		checkBundle(t, time.Time{}, certs)
	})
}
