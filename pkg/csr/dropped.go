package csr

import (
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"slices"
)

var (
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14} // RFC 2985 section 5.4.2
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}                // RFC 5280 section 4.2.1.6
	oidAttributePrefix  = asn1.ObjectIdentifier{2, 5, 4}                     // X.520
)

// repeatable and single are the X.520 attributes that crypto/x509 carries from a request into a certificate, by the
// last arc of their OID: of the single ones it keeps only one value.
var (
	repeatable = []int{6, 7, 8, 9, 10, 11, 17} // C, L, ST, STREET, O, OU, postalCode
	single     = []int{3, 5}                   // CN, serialNumber
)

// generalNames names the kinds of subjectAltName by their tag (RFC 5280 section 4.2.1.6); the empty ones are carried
// into the certificate.
var generalNames = []string{"otherName", "", "", "x400Address", "directoryName", "ediPartyName", "", "", "registeredID"}

// droppedContent lists what payload asks for beyond what its certificate will hold, sorted and without repetition. It
// goes by type and OID and never by comparing bytes, as honest encoders differ in string types.
func droppedContent(payload *x509.CertificateRequest) []string {
	dropped := droppedSubject(payload)
	for _, extension := range payload.Extensions {
		if !extension.Id.Equal(oidSubjectAltName) {
			dropped = append(dropped, "extension "+extension.Id.String())
			continue
		}
		dropped = append(dropped, droppedNames(extension.Value)...)
	}
	dropped = append(dropped, droppedAttributes(payload.RawTBSCertificateRequest)...)
	slices.Sort(dropped)
	return slices.Compact(dropped)
}

func droppedSubject(payload *x509.CertificateRequest) []string {
	var dropped []string
	seen := map[int]bool{}
	for _, attribute := range payload.Subject.Names {
		id := attribute.Type
		_, text := attribute.Value.(string) // crypto/x509 passes over all other values
		known := text && len(id) == 4 && oidAttributePrefix.Equal(id[:3])
		switch {
		case known && slices.Contains(repeatable, id[3]):
		case known && slices.Contains(single, id[3]) && !seen[id[3]]:
			seen[id[3]] = true
		case known && slices.Contains(single, id[3]):
			dropped = append(dropped, "repeated subject attribute "+id.String())
		default:
			dropped = append(dropped, "subject attribute "+id.String())
		}
	}
	return dropped
}

func droppedNames(san []byte) []string {
	var names []asn1.RawValue
	rest, err := asn1.Unmarshal(san, &names)
	if err != nil {
		return []string{"malformed subjectAltName"}
	}
	var dropped []string
	if len(rest) > 0 {
		dropped = append(dropped, "subjectAltName trailing data")
	}
	for _, name := range names {
		kind := fmt.Sprintf("tag %d", name.Tag)
		if name.Class == asn1.ClassContextSpecific && name.Tag < len(generalNames) {
			kind = generalNames[name.Tag]
		}
		if kind == "" && name.IsCompound { // those that are carried are primitive
			kind = fmt.Sprintf("tag %d", name.Tag)
		}
		if kind != "" {
			dropped = append(dropped, "subjectAltName "+kind)
		}
	}
	return dropped
}

// droppedAttributes reads the PKCS#10 attributes (RFC 2986 section 4.1), of which only extensionRequest is used: the
// first value of each that is well formed. The others crypto/x509 passes over, and so not even a malformed one is an
// error.
func droppedAttributes(tbs []byte) []string {
	var info struct {
		Raw        asn1.RawContent
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	if _, err := asn1.Unmarshal(tbs, &info); err != nil {
		return []string{"malformed attributes"}
	}
	var dropped []string
	for _, raw := range info.Attributes {
		var attribute struct {
			ID     asn1.ObjectIdentifier
			Values asn1.RawValue
		}
		if rest, err := asn1.Unmarshal(raw.FullBytes, &attribute); err != nil || len(rest) > 0 {
			dropped = append(dropped, "malformed attribute")
			continue
		}
		var values []asn1.RawValue
		_, err := asn1.UnmarshalWithParams(attribute.Values.FullBytes, &values, "set")
		if !attribute.ID.Equal(oidExtensionRequest) || err != nil || len(values) != 1 {
			dropped = append(dropped, "attribute "+attribute.ID.String())
		}
	}
	return dropped
}
