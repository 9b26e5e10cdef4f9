package csr_test

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// FuzzParse checks that no payload makes the parser panic. It also checks that a payload that parses and passes the
// profile can be issued. The certificate then has all requested content except that in Dropped.
func FuzzParse(f *testing.F) {
	serving := nodeRequest()
	serving.DNSNames, serving.IPAddresses = []string{"a"}, []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}
	serving.EmailAddresses, serving.URIs = []string{"a@example.com"}, []*url.URL{{Scheme: "urn", Opaque: "a"}}
	f.Add(der(nodeRequest()))
	f.Add(der(serving))
	f.Add(der(&x509.CertificateRequest{}))
	f.Add(derOf(node(attr(oidUserID, "a"), attr(oidCommonName, "b"))))
	f.Add(derOf(node(attr(oidOrganization, asn1.RawValue{Tag: asn1.TagT61String, Bytes: []byte{0xfc}}))))
	f.Add(derOf(extensions(pkix.Extension{Id: oidBasicConstraints, Value: []byte{0x30, 3, 1, 1, 0xff}})))
	f.Add(derOf(names(generalName(8, false, []byte{42}), generalName(6, false, []byte("HTTP://A.example.com/%41?#")))))
	f.Add(derOf(asking(oidChallenge, raw([]string{"secret"}, "set"))))
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	authority, profile := must(made, err), must(ca.NewProfile(ca.ProfileConfig{}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = csr.Parse(object(payload(data)))
		req, err := csr.Parse(object(withRequest(data)))
		if err != nil {
			return
		}
		for _, shape := range []func(*csr.Request) error{csr.KubeletClientShape, csr.KubeletServingShape, csr.APIServerClientShape} {
			_ = shape(req)
		}
		_ = req.CheckSignature()
		if len(profile.Check(req.Cert)) > 0 {
			return
		}
		issued, err := authority.Issue(profile, req.Cert, now)
		if err != nil {
			t.Fatalf("what was parsed cannot be issued: %v", err)
		}
		first, _ := pem.Decode(issued.PEM)
		cert, err := x509.ParseCertificate(first.Bytes)
		if err != nil {
			t.Fatalf("what was issued does not parse: %v", err)
		}
		checkNothingIsLost(t, data, req, cert)
	})
}

func checkNothingIsLost(t *testing.T, data []byte, req *csr.Request, cert *x509.Certificate) {
	t.Helper()
	payload := must(x509.ParseCertificateRequest(data))
	if !payload.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(cert.PublicKey) {
		t.Error("another public key")
	}
	told := func(prefix string) bool {
		return slices.ContainsFunc(req.Dropped, func(entry string) bool { return strings.HasPrefix(entry, prefix) })
	}
	for _, asked := range payload.Subject.Names {
		kept := slices.ContainsFunc(cert.Subject.Names, func(have pkix.AttributeTypeAndValue) bool {
			return have.Type.Equal(asked.Type) && reflect.DeepEqual(have.Value, asked.Value)
		})
		if !kept && asked.Value != "" && !told("subject attribute "+asked.Type.String()) {
			t.Errorf("subject attribute %s=%v is lost and not in %q", asked.Type, asked.Value, req.Dropped)
		}
	}
	if len(cert.Subject.Names) > len(payload.Subject.Names) {
		t.Errorf("subject %s, asked for %s", cert.Subject, payload.Subject)
	}
	asked, carried := 0, len(cert.DNSNames)+len(cert.EmailAddresses)+len(cert.IPAddresses)+len(cert.URIs)
	for _, extension := range payload.Extensions {
		if !extension.Id.Equal(oidSAN) {
			if !told("extension " + extension.Id.String()) {
				t.Errorf("extension %s is lost and not in %q", extension.Id, req.Dropped)
			}
			continue
		}
		var names []asn1.RawValue
		_, _ = asn1.Unmarshal(extension.Value, &names)
		asked = len(names)
	}
	if carried > asked || carried < asked && !told("subjectAltName ") {
		t.Errorf("%d of %d subjectAltNames are carried, dropped %q", carried, asked, req.Dropped)
	}
	got := fmt.Sprint(cert.DNSNames, cert.EmailAddresses, cert.IPAddresses, cert.URIs)
	if want := fmt.Sprint(payload.DNSNames, payload.EmailAddresses, payload.IPAddresses, payload.URIs); got != want {
		t.Errorf("names %s, asked for %s", got, want)
	}
}

// FuzzPayload checks that Parse agrees with the reader of kube-controller-manager, which is encoding/pem and
// crypto/x509. Parse accepts no payload that this reader refuses. It refuses any other payload only for its size or its
// key. What it accepts is within the limits.
func FuzzPayload(f *testing.F) {
	good := block("CERTIFICATE REQUEST", der(nodeRequest()))
	names := block("CERTIFICATE REQUEST", der(&x509.CertificateRequest{
		DNSNames: []string{"a", "b.example.com"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, EmailAddresses: []string{"a@b"},
	}))
	for _, seed := range [][]byte{
		good, names, nil, []byte("no PEM"), block("NEW CERTIFICATE REQUEST", der(nodeRequest())), block("CERTIFICATE REQUEST", []byte("x")),
		append([]byte("Subject: a\r\n\r\n"), good...), append(slices.Clone(good), names...), append(slices.Clone(good), "garbage"...),
		append(slices.Clone(good), block("CERTIFICATE REQUEST", []byte("broken"))...), append(slices.Clone(good), block("PRIVATE KEY", nil)...),
		[]byte(strings.TrimSpace(string(good))),
		[]byte(strings.ReplaceAll(string(good), "\n", "\r\n")), []byte(strings.Replace(string(good), "\n", "\nComment: a\n\n", 1)),
		append(block("OTHER", []byte{1}), good...), block("CERTIFICATE REQUEST", append(der(nodeRequest()), 0)),
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

// FuzzTrim checks that every reader gives the same answer about a whole and about a trimmed object, that a trimmed object
// stays as it is, and that the end of a certificate is the one that crypto/x509 reads.
func FuzzTrim(f *testing.F) {
	node := block("CERTIFICATE REQUEST", der(nodeRequest()))
	valid := certificateUntil(now.Add(time.Hour))
	f.Add(node, valid, "user", "kubernetes.io/kubelet-serving", "True", uint8(1), int64(0), int64(60))
	f.Add(node, []byte(nil), strings.Repeat("ü", 300), "kubernetes.io/kube-apiserver-client-kubelet", "", uint8(0), int64(5), int64(0))
	f.Add([]byte("x"), append(block("OTHER", []byte{1}), valid...), "", "example.com/a", "False", uint8(6), int64(-1), int64(1)<<33)
	f.Add(node, append(slices.Clone(valid), valid...), "", "", "True", uint8(9), int64(0), int64(0))
	f.Add([]byte("trimmed by csr-controller-manager"), valid, "", "", "", uint8(2), int64(0), int64(0))
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
		checkTrimmed(t, obj)
		if !csr.Trimmed(obj) {
			checkEnd(t, obj)
		}
	})
}

// checkEnd compares the end of the certificate with that of crypto/x509.
func checkEnd(t *testing.T, obj *request) {
	t.Helper()
	first, _ := pem.Decode(obj.Status.Certificate)
	if first == nil {
		return
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil || cert.NotAfter.IsZero() {
		return
	}
	approved := obj.DeepCopy()
	csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", now)
	if at, ok := onlyExpired.Deadline(approved); !ok || !at.Equal(cert.NotAfter) {
		t.Errorf("the certificate ends at %s %t, crypto/x509 reads %s", at, ok, cert.NotAfter)
	}
}
