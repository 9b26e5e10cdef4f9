package csr_test

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// FuzzParse checks that no payload makes the parser panic. It also checks that a payload that parses and passes the
// profile can be issued. The certificate then has all requested content except that in Dropped.
func FuzzParse(f *testing.F) {
	serving := nodeRequest()
	serving.DNSNames, serving.IPAddresses = []string{"a"}, []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}
	serving.EmailAddresses, serving.URIs = []string{"a@example.com"}, []*url.URL{{Scheme: "urn", Opaque: "a"}}
	f.Add(der(f, nodeRequest()))
	f.Add(der(f, serving))
	f.Add(der(f, &x509.CertificateRequest{}))
	f.Add(derOf(f, node(pkix.AttributeTypeAndValue{Type: oidUserID, Value: "a"}, pkix.AttributeTypeAndValue{Type: oidCommonName, Value: "b"})))
	f.Add(derOf(f, node(pkix.AttributeTypeAndValue{Type: oidOrganization, Value: asn1.RawValue{Tag: asn1.TagT61String, Bytes: []byte{0xfc}}})))
	f.Add(derOf(f, extensions(pkix.Extension{Id: oidBasicConstraints, Value: []byte{0x30, 3, 1, 1, 0xff}})))
	f.Add(derOf(f, names(generalName(8, false, []byte{42}), generalName(6, false, []byte("HTTP://A.example.com/%41?#")))))
	f.Add(derOf(f, func(said *content) {
		said.Attributes = append(said.Attributes, attribute(oidChallenge, raw([]string{"secret"}, "set")))
	}))
	authority, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, now)
	if err != nil {
		f.Fatal(err)
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{})
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = csr.Parse(object(t, func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Request = data }))
		req, err := csr.Parse(object(t, withRequest(data)))
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
	payload, err := x509.ParseCertificateRequest(data)
	if err != nil {
		t.Fatal(err)
	}
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
	for _, have := range cert.Subject.Names {
		if !slices.ContainsFunc(payload.Subject.Names, func(asked pkix.AttributeTypeAndValue) bool {
			return have.Type.Equal(asked.Type) && reflect.DeepEqual(have.Value, asked.Value)
		}) {
			t.Errorf("subject attribute %s=%v was not asked for", have.Type, have.Value)
		}
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
	if len(cert.DNSNames) != len(payload.DNSNames) || !slices.Equal(cert.DNSNames, payload.DNSNames) || !slices.Equal(cert.EmailAddresses, payload.EmailAddresses) {
		t.Errorf("names %q %q, asked for %q %q", cert.DNSNames, cert.EmailAddresses, payload.DNSNames, payload.EmailAddresses)
	}
	if !slices.EqualFunc(cert.IPAddresses, payload.IPAddresses, net.IP.Equal) {
		t.Errorf("addresses %v, asked for %v", cert.IPAddresses, payload.IPAddresses)
	}
	if !slices.EqualFunc(cert.URIs, payload.URIs, func(a, b *url.URL) bool { return a.String() == b.String() }) {
		t.Errorf("URIs %v, asked for %v", cert.URIs, payload.URIs)
	}
}
