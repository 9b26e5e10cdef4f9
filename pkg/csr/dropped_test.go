package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganization     = asn1.ObjectIdentifier{2, 5, 4, 10}
	oidEmail            = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}
	oidUserID           = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
	oidSAN              = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
	oidChallenge        = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}
)

// subject returns a change that sets a subject with one RDN for each attribute.
func subject(attributes ...pkix.AttributeTypeAndValue) func(*content) {
	return func(said *content) {
		var name pkix.RDNSequence
		for _, attribute := range attributes {
			name = append(name, pkix.RelativeDistinguishedNameSET{attribute})
		}
		said.Subject = raw(name)
	}
}

func node(more ...pkix.AttributeTypeAndValue) func(*content) {
	return subject(append([]pkix.AttributeTypeAndValue{{Type: oidOrganization, Value: "system:nodes"}, {Type: oidCommonName, Value: "system:node:a"}}, more...)...)
}

func extensions(wanted ...pkix.Extension) func(*content) {
	return func(said *content) {
		said.Attributes = append(said.Attributes, attribute(oidExtensionRequest, raw([]asn1.RawValue{raw(wanted)}, "set")))
	}
}

func attribute(id asn1.ObjectIdentifier, values asn1.RawValue) asn1.RawValue {
	return raw(struct {
		ID     asn1.ObjectIdentifier
		Values asn1.RawValue
	}{id, values})
}

func names(wanted ...asn1.RawValue) func(*content) {
	return extensions(pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal(wanted))})
}

func generalName(tag int, compound bool, value []byte) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: compound, Bytes: value}
}

func TestDropped(t *testing.T) {
	t.Parallel()
	dns, text := generalName(2, false, []byte("a.example.com")), must(asn1.Marshal("text"))
	rsaSAN := pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal([]asn1.RawValue{dns}))}
	for name, test := range map[string]struct {
		change func(*content)
		want   []string
	}{
		"honest":                     {change: func(*content) {}},
		"UTF8String as OpenSSL does": {change: subject(pkix.AttributeTypeAndValue{Type: oidOrganization, Value: raw("system:nodes", "utf8")}, pkix.AttributeTypeAndValue{Type: oidCommonName, Value: raw("system:node:a", "utf8")})},
		"several organizations":      {change: node(pkix.AttributeTypeAndValue{Type: oidOrganization, Value: "another"})},
		"names of the four kinds": {change: names(
			generalName(1, false, []byte("a@example.com")), dns, generalName(6, false, []byte("urn:a")), generalName(7, false, []byte{10, 0, 0, 1}))},
		"no attribute values asked for": {change: extensions()},

		"user ID":                 {change: node(pkix.AttributeTypeAndValue{Type: oidUserID, Value: "a"}), want: []string{"subject attribute 0.9.2342.19200300.100.1.1"}},
		"e-mail":                  {change: node(pkix.AttributeTypeAndValue{Type: oidEmail, Value: raw("a@example.com", "ia5")}), want: []string{"subject attribute 1.2.840.113549.1.9.1"}},
		"surname":                 {change: node(pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 4}, Value: "a"}), want: []string{"subject attribute 2.5.4.4"}},
		"longer OID":              {change: node(pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3, 1}, Value: "a"}), want: []string{"subject attribute 2.5.4.3.1"}},
		"two common names":        {change: node(pkix.AttributeTypeAndValue{Type: oidCommonName, Value: "system:node:b"}), want: []string{"subject attribute 2.5.4.3"}},
		"a value that is no text": {change: node(pkix.AttributeTypeAndValue{Type: oidOrganization, Value: 7}), want: []string{"subject attribute 2.5.4.10"}},

		"otherName":              {change: names(dns, generalName(0, true, text)), want: []string{"subjectAltName otherName"}},
		"x400Address":            {change: names(generalName(3, true, text)), want: []string{"subjectAltName x400Address"}},
		"directoryName":          {change: names(generalName(4, true, text)), want: []string{"subjectAltName directoryName"}},
		"ediPartyName":           {change: names(generalName(5, true, text)), want: []string{"subjectAltName ediPartyName"}},
		"registeredID":           {change: names(generalName(8, false, []byte{42})), want: []string{"subjectAltName registeredID"}},
		"an unknown kind":        {change: names(generalName(9, false, text)), want: []string{"subjectAltName tag 9"}},
		"a DNS name in pieces":   {change: names(generalName(2, true, text)), want: []string{"subjectAltName tag 2"}},
		"a string without a tag": {change: names(raw("a.example.com")), want: []string{"subjectAltName tag 19"}},
		"the same twice":         {change: names(generalName(8, false, []byte{42}), generalName(8, false, []byte{43})), want: []string{"subjectAltName registeredID"}},

		"CA:TRUE":       {change: extensions(pkix.Extension{Id: oidBasicConstraints, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}), want: []string{"extension 2.5.29.19"}},
		"own extension": {change: extensions(rsaSAN, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}), want: []string{"extension 1.2.3"}},
		"two of them":   {change: extensions(pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 4}, Value: []byte{5, 0}}), want: []string{"extension 1.2.3", "extension 1.2.4"}},
		"key usage":     {change: extensions(pkix.Extension{Id: oidKeyUsage, Value: []byte{3, 2, 5, 0xa0}}), want: []string{"extension 2.5.29.15"}},

		"challenge password": {
			change: func(said *content) {
				said.Attributes = append(said.Attributes, attribute(oidChallenge, raw([]string{"secret"}, "set")))
			},
			want: []string{"attribute 1.2.840.113549.1.9.7"},
		},
		"a second list of extensions": {
			change: func(said *content) {
				said.Attributes = append(said.Attributes, attribute(oidExtensionRequest, raw([]asn1.RawValue{
					raw([]pkix.Extension{rsaSAN}), raw([]pkix.Extension{{Id: oidBasicConstraints, Value: []byte{0x30, 3, 1, 1, 0xff}}}),
				}, "set")))
			},
			want: []string{"attribute 1.2.840.113549.1.9.14", "extension 2.5.29.19"}, // DER orders the lists, this one comes first
		},
		"no list of extensions": {
			change: func(said *content) {
				said.Attributes = append(said.Attributes, attribute(oidExtensionRequest, raw([]asn1.RawValue{}, "set")))
			},
			want: []string{"attribute 1.2.840.113549.1.9.14"},
		},
		"an invalid attribute": {
			change: func(said *content) { said.Attributes = append(said.Attributes, raw(7)) },
			want:   []string{"malformed attribute"},
		},
		"an invalid attribute before another": {
			change: func(said *content) {
				said.Attributes = append(said.Attributes, raw(7), attribute(oidChallenge, raw([]string{"secret"}, "set")))
			},
			want: []string{"attribute 1.2.840.113549.1.9.7", "malformed attribute"},
		},
		"bytes after the subjectAltNames": {
			change: extensions(pkix.Extension{Id: oidSAN, Value: []byte{0x30, 0, 5, 0}}),
			want:   []string{"subjectAltName trailing data"},
		},
		"extensions in another attribute": {
			change: func(said *content) {
				said.Attributes = append(said.Attributes, attribute(oidExtensionRequest, raw([]asn1.RawValue{raw([]pkix.Extension{rsaSAN})})))
			},
			want: []string{"attribute 1.2.840.113549.1.9.14"},
		},
		"all at once": {
			change: func(said *content) {
				node(pkix.AttributeTypeAndValue{Type: oidUserID, Value: "a"}, pkix.AttributeTypeAndValue{Type: oidEmail, Value: "b"})(said)
				names(generalName(8, false, []byte{42}))(said)
			},
			want: []string{"subject attribute 0.9.2342.19200300.100.1.1", "subject attribute 1.2.840.113549.1.9.1", "subjectAltName registeredID"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := parse(t, withRequest(derOf(t, test.change)))
			if diff := cmp.Diff(test.want, req.Dropped, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
			if err := req.CheckSignature(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNothingIsDroppedFromWhatGoWrites(t *testing.T) {
	t.Parallel()
	req := parse(t, withRequest(der(t, &x509.CertificateRequest{
		Subject:        pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}, SerialNumber: "7", Country: []string{"DE"}},
		DNSNames:       []string{"a", "a.example.com"},
		EmailAddresses: []string{"a@example.com"},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")},
		URIs:           []*url.URL{{Scheme: "urn", Opaque: "a"}},
	})))
	if len(req.Dropped) > 0 {
		t.Errorf("dropped %q", req.Dropped)
	}
}

func TestParseRefusesWhatItCannotList(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*content)
		want   string
	}{
		"the same extension twice": {
			change: func(said *content) {
				names(generalName(2, false, []byte("a")))(said)
				names(generalName(2, false, []byte("b")))(said)
			},
			want: "spec.request is not a valid PKCS#10 request: x509: certificate request contains duplicate requested extensions",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := csr.Parse(object(t, withRequest(derOf(t, test.change))))
			if diff := cmp.Diff(test.want, errorText(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}
