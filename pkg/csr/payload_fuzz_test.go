package csr_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// FuzzPayload checks that Parse agrees with the reader of kube-controller-manager, which is encoding/pem and
// crypto/x509. Parse accepts no payload that this reader refuses. It refuses any other payload only for its size or its
// key. What it accepts is within the limits.
func FuzzPayload(f *testing.F) {
	good := block("CERTIFICATE REQUEST", der(f, nodeRequest()))
	names := block("CERTIFICATE REQUEST", der(f, &x509.CertificateRequest{
		DNSNames: []string{"a", "b.example.com"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, EmailAddresses: []string{"a@b"},
	}))
	for _, seed := range [][]byte{
		good, names, nil, []byte("no PEM"), block("NEW CERTIFICATE REQUEST", der(f, nodeRequest())), block("CERTIFICATE REQUEST", []byte("x")),
		append([]byte("Subject: a\r\n\r\n"), good...), append(slices.Clone(good), names...),
		[]byte(strings.ReplaceAll(string(good), "\n", "\r\n")), []byte(strings.Replace(string(good), "\n", "\nComment: a\n\n", 1)),
		append(block("OTHER", []byte{1}), good...), block("CERTIFICATE REQUEST", append(der(f, nodeRequest()), 0)),
	} {
		f.Add(seed)
	}
	small := csr.Limits{RequestBytes: 4096, DERBytes: 2048, SubjectAttributes: 3, Names: 4, Extensions: 3}
	large := csr.Limits{RequestBytes: 1 << 30, DERBytes: 1 << 30, SubjectAttributes: 1 << 30, Names: 1 << 30, Extensions: 1 << 30}
	f.Fuzz(func(t *testing.T, data []byte) {
		obj := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Request: data}}
		var want *x509.CertificateRequest
		if first, _ := pem.Decode(data); first != nil && first.Type == "CERTIFICATE REQUEST" {
			want, _ = x509.ParseCertificateRequest(first.Bytes)
		}
		req, err := large.Parse(obj)
		switch {
		case err == nil && want == nil:
			t.Fatal("accepted, but kube-controller-manager's reader refuses it")
		case err != nil && want != nil && ca.CheckKey(want.PublicKey) == nil:
			t.Fatalf("refused without a limit: %v", err)
		case err == nil && ca.CheckKey(want.PublicKey) != nil:
			t.Fatal("accepted with a key that is never permitted")
		}
		checkRefusal(t, err)
		bounded, err := small.Parse(obj)
		checkRefusal(t, err)
		if err == nil {
			checkWithin(t, small, data, want, bounded)
		}
		if err == nil && bounded.SubjectText() != req.SubjectText() {
			t.Errorf("the subject is %s, and with other limits %s", bounded.SubjectText(), req.SubjectText())
		}
	})
}

// checkRefusal checks that err is a verdict about the payload and not a fault, and that its message is bounded.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	refused := (*csr.Refused)(nil)
	if err == nil {
		return
	}
	if !errors.As(err, &refused) {
		t.Fatalf("a fault: %v", err)
	}
	if !slices.Contains([]string{"Malformed", "RequestTooLarge", "KeyNotPermitted"}, refused.Reason) || len(refused.Message) > 1024 {
		t.Errorf("reason %s, message of %d bytes", refused.Reason, len(refused.Message))
	}
}

func checkWithin(t *testing.T, limits csr.Limits, data []byte, payload *x509.CertificateRequest, req *csr.Request) {
	t.Helper()
	names := len(payload.DNSNames) + len(payload.EmailAddresses) + len(payload.IPAddresses) + len(payload.URIs)
	first, _ := pem.Decode(data)
	if len(data) > limits.RequestBytes || len(first.Bytes) > limits.DERBytes || names > limits.Names ||
		len(payload.Subject.Names) > limits.SubjectAttributes || len(payload.Extensions) > limits.Extensions-1 {
		t.Errorf("accepted over the limits: %d bytes, %d of DER, %d names, %d subject attributes, %d extensions",
			len(data), len(first.Bytes), names, len(payload.Subject.Names), len(payload.Extensions))
	}
	if req.Cert.Subject.CommonName != payload.Subject.CommonName || !slices.Equal(req.Cert.Subject.Organization, payload.Subject.Organization) ||
		!slices.Equal(req.Cert.DNSNames, payload.DNSNames) || len(req.Cert.Subject.ExtraNames) > 0 {
		t.Errorf("judged as %+v, but the payload is %+v", req.Cert, payload.Subject)
	}
}
