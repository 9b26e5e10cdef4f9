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

// repeatable and single are the X.520 attributes that crypto/x509 copies from a request into a certificate, by the
// last arc of their OID. It copies only one value of a single attribute.
var (
	repeatable = []int{6, 7, 8, 9, 10, 11, 17} // C, L, ST, STREET, O, OU, postalCode
	single     = []int{3, 5}                   // CN, serialNumber
)

// generalNames names the kinds of subjectAltName by their tag (RFC 5280 section 4.2.1.6). Kinds with an empty name
// are copied into the certificate.
var generalNames = []string{"otherName", "", "", "x400Address", "directoryName", "ediPartyName", "", "", "registeredID"}

// droppedContent lists the requested content that the certificate will not hold, sorted and without repetition. It
// compares types and OIDs, never bytes, because honest encoders differ in string types.
func droppedContent(payload *x509.CertificateRequest, attributes []asn1.RawValue) []string {
	dropped := droppedSubject(payload)
	for _, extension := range payload.Extensions {
		if !extension.Id.Equal(oidSubjectAltName) {
			dropped = append(dropped, "extension "+extension.Id.String())
			continue
		}
		dropped = append(dropped, droppedNames(extension.Value)...)
	}
	dropped = append(dropped, droppedAttributes(attributes)...)
	slices.Sort(dropped)
	return slices.Compact(dropped)
}

func droppedSubject(payload *x509.CertificateRequest) []string {
	var dropped []string
	seen := map[int]bool{}
	for _, attribute := range payload.Subject.Names {
		id := attribute.Type
		_, text := attribute.Value.(string) // crypto/x509 ignores values of other types
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
		if kind == "" && name.IsCompound { // the names that are copied are primitive
			kind = fmt.Sprintf("tag %d", name.Tag)
		}
		if kind != "" {
			dropped = append(dropped, "subjectAltName "+kind)
		}
	}
	return dropped
}

// droppedAttributes lists the PKCS#10 attributes (RFC 2986 section 4.1) that crypto/x509 does not use. It uses only
// the first value of each well-formed extensionRequest. It ignores all other attributes, so even a malformed one is
// not an error.
func droppedAttributes(attributes []asn1.RawValue) []string {
	var dropped []string
	for _, raw := range attributes {
		var found attribute
		if rest, err := asn1.Unmarshal(raw.FullBytes, &found); err != nil || len(rest) > 0 {
			dropped = append(dropped, "malformed attribute")
			continue
		}
		var values []asn1.RawValue
		_, err := asn1.UnmarshalWithParams(found.Values.FullBytes, &values, "set")
		if !found.ID.Equal(oidExtensionRequest) || err != nil || len(values) != 1 {
			dropped = append(dropped, "attribute "+found.ID.String())
		}
	}
	return dropped
}
