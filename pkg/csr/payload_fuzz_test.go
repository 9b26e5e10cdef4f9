package csr_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// FuzzStrip checks that all that a cache needs of a request survives Strip, that the result is small, and that the end
// of a certificate is the one that crypto/x509 reads.
func FuzzStrip(f *testing.F) {
	node := block("CERTIFICATE REQUEST", der(f, nodeRequest()))
	valid := certificateUntil(f, now.Add(time.Hour))
	f.Add(node, valid, "user", "kubernetes.io/kubelet-serving", "True", uint8(1), int64(0), int64(60))
	f.Add(node, []byte(nil), strings.Repeat("ü", 300), "kubernetes.io/kube-apiserver-client-kubelet", "", uint8(0), int64(5), int64(0))
	f.Add([]byte("x"), append(block("OTHER", []byte{1}), valid...), "", "example.com/a", "False", uint8(6), int64(-1), int64(1)<<33)
	f.Add(node, append(slices.Clone(valid), valid...), "", "", "True", uint8(9), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, payload, certificate []byte, user, signer, status string, kinds uint8, created, updated int64) {
		const years = 1 << 35 // metav1.Time has no JSON form after the year 9999
		obj := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(created%years, 0)},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: payload, SignerName: signer, Username: user},
			Status:     certificatesv1.CertificateSigningRequestStatus{Certificate: certificate},
		}
		for i, kind := range []certificatesv1.RequestConditionType{"Approved", "Denied", "Failed", "Example"} {
			if kinds&(1<<i) == 0 {
				continue
			}
			obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Message: user})
			at := &obj.Status.Conditions[len(obj.Status.Conditions)-1]
			if kinds&(16<<i) == 0 {
				at.LastUpdateTime, at.Status = metav1.Unix(updated%years, 0), "True"
			}
		}
		checkStripped(t, obj)
		checkEnd(t, obj)
	})
}

func checkStripped(t *testing.T, obj *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	before := obj.DeepCopy()
	small := csr.Strip(obj, csr.Parse)
	if size := small.Size() - len(obj.Spec.SignerName); size > 1100 {
		t.Errorf("%d bytes beside the signer's name", size)
	}
	if before.String() != obj.String() {
		t.Error("Strip has changed the request")
	}
	if csr.StateOf(small) != csr.StateOf(obj) || csr.Undecided(small) != csr.Undecided(obj) ||
		!csr.ApprovedAt(small).Equal(csr.ApprovedAt(obj)) || csr.CertificateDigest(small) != csr.CertificateDigest(obj) {
		t.Errorf("state %s, approved at %s; want %s, %s", csr.StateOf(small), csr.ApprovedAt(small), csr.StateOf(obj), csr.ApprovedAt(obj))
	}
	got, gotOK := csr.RetentionPolicy{}.Deadline(small)
	want, wantOK := csr.RetentionPolicy{}.Deadline(obj)
	if gotOK != wantOK || !got.Equal(want) {
		t.Errorf("deadline %s %t, want %s %t", got, gotOK, want, wantOK)
	}
	gotReq, gotOK := csr.Limits{}.Supersedable(small)
	wantReq, wantOK := csr.Limits{}.Supersedable(obj)
	if gotOK != wantOK || wantOK && (gotReq.NodeName() != csr.Bounded(wantReq.NodeName()) || gotReq.Requester.Username != csr.Bounded(wantReq.Requester.Username)) {
		t.Errorf("supersedable %+v %t, want %+v %t", gotReq, gotOK, wantReq, wantOK)
	}
}

// checkEnd compares the end of the certificate with that of crypto/x509.
func checkEnd(t *testing.T, obj *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	first, _ := pem.Decode(obj.Status.Certificate)
	if first == nil {
		return
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil || cert.NotAfter.IsZero() {
		return
	}
	const ever = time.Duration(-1)
	onlyExpired := csr.RetentionPolicy{Default: csr.Retention{Approved: ever, Denied: ever, Failed: ever, Pending: ever}}
	approved := obj.DeepCopy()
	csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", now)
	if at, ok := onlyExpired.Deadline(approved); !ok || !at.Equal(cert.NotAfter) {
		t.Errorf("the certificate ends at %s %t, crypto/x509 reads %s", at, ok, cert.NotAfter)
	}
}
