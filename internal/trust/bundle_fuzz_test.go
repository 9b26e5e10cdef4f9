package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// FuzzBundle checks that the bundle is as the API server requires it of a ClusterTrustBundle: CERTIFICATE blocks without
// headers, without text in between, without duplicates. It holds each given certificate that has not expired, in order.
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
	f.Add([]byte{6, 7, 6, 3, 2}, int64(3600))
	f.Add([]byte{}, int64(60))
	f.Fuzz(func(t *testing.T, selected []byte, seconds int64) {
		at := now.Add(time.Duration(seconds%100_000) * time.Second)
		var given, want []*x509.Certificate
		for _, choice := range selected[:min(len(selected), 20)] {
			cert := certs[int(choice)%len(certs)]
			given = append(given, cert)
			if at.Before(cert.NotAfter) && !slices.ContainsFunc(want, cert.Equal) {
				want = append(want, cert)
			}
		}
		bundle := Bundle(at, given...)
		var exact []byte
		got, err := ca.ParseCertificates(bundle)
		for _, cert := range got {
			exact = append(exact, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
		if err != nil || !bytes.Equal(exact, bundle) {
			t.Errorf("not only certificates, error %v:\n%s", err, bundle)
		}
		if !slices.EqualFunc(got, want, (*x509.Certificate).Equal) {
			t.Errorf("%d certificates, want %d", len(got), len(want))
		}
	})
}

// FuzzWithout checks that the bundle of API servers loses the retired CA and no other certificate, and that all other
// bytes stay.
func FuzzWithout(f *testing.F) {
	old, oldPEM := newCert(f, "same name", time.Hour)
	_, namesakePEM := newCert(f, "same name", time.Hour)
	_, otherPEM := newCert(f, "other", time.Hour)
	headers := func(text, header string) string { return strings.Replace(text, "-----\n", "-----\n"+header+"\n\n", 1) }
	parts := []string{
		oldPEM, otherPEM, namesakePEM, strings.ReplaceAll(oldPEM, "\n", "\r\n"), headers(oldPEM, "Comment: a"), headers(oldPEM, "Comment: -----BEGIN CERTIFICATE-----"),
		headers(otherPEM, "Comment: b"), "-----BEGIN SOMETHING-----\nAAAA\n-----END SOMETHING-----\n", "-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n",
		"-----BEGIN ", "\n", " ", strings.TrimSuffix(oldPEM, "\n"), oldPEM[:100], "=\n",
	}
	f.Add([]byte{0, 1}, "")
	f.Add([]byte{16, 0, 1, 16, 3, 11, 2}, "# text\n")
	f.Add([]byte{7, 0, 6, 4}, "x")
	f.Add([]byte{8, 0, 1, 9, 10, 0}, "-----")
	f.Add([]byte{14, 0, 13, 11, 1}, "")
	f.Add([]byte{5, 1}, "")
	f.Fuzz(func(t *testing.T, recipe []byte, text string) {
		parts := append(slices.Clone(parts), text)
		var data string
		for _, choice := range recipe[:min(len(recipe), 24)] {
			data += parts[int(choice)%len(parts)]
		}
		got, err := without([]byte(data), old)
		before, parseErr := ca.ParseCertificates([]byte(data))
		isOld := func(cert *x509.Certificate) bool { return SameCA(cert, old) }
		want := slices.DeleteFunc(slices.Clone(before), isOld)
		switch {
		case parseErr != nil || len(want) == 0 && len(before) > 0:
			if err == nil {
				t.Errorf("no error, but %q", got)
			}
			return
		case err != nil:
			t.Fatal(err)
		}
		after, err := ca.ParseCertificates(got)
		if err != nil || !slices.EqualFunc(after, want, (*x509.Certificate).Equal) {
			t.Errorf("%d certificates are left, want %d, error %v:\n%s\nof\n%s", len(after), len(want), err, got, data)
		}
		if len(want) == len(before) && string(got) != data {
			t.Errorf("there was nothing to remove, but %q became %q", data, got)
		}
		if !subsequence(string(got), data) {
			t.Errorf("%q is not a part of %q", got, data)
		}
		if again, err := without(got, old); err != nil || !bytes.Equal(again, got) {
			t.Errorf("a second removal makes %q of %q, error %v", again, got, err)
		}
	})
}

// subsequence reports whether whole has the bytes of part in that order.
func subsequence(part, whole string) bool {
	for i := 0; i < len(whole) && part != ""; i++ {
		if whole[i] == part[0] {
			part = part[1:]
		}
	}
	return part == ""
}
