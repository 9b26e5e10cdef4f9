package csr

import (
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
)

var (
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14} // RFC 2985 section 5.4.2
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}                // RFC 5280 section 4.2.1.6
)

// generalNames names the kinds of subjectAltName by their tag (RFC 5280 section 4.2.1.6). Kinds with an empty name
// are copied into the certificate.
var generalNames = []string{"otherName", "", "", "x400Address", "directoryName", "ediPartyName", "", "", "registeredID"}

// droppedContent lists the requested content that the certificate will not hold, sorted and without repetition. It
// compares types and OIDs, never bytes, because honest encoders differ in string types.
func droppedContent(payload *x509.CertificateRequest, attributes []asn1.RawValue) []string {
	dropped := droppedSubject(payload.Subject)
	for _, extension := range payload.Extensions {
		if !extension.Id.Equal(oidSubjectAltName) {
			dropped = append(dropped, "extension "+extension.Id.String())
			continue
		}
		dropped = append(dropped, droppedNames(extension.Value)...)
	}
	// Of the PKCS#10 attributes (RFC 2986 section 4.1), crypto/x509 uses only the first value of each well-formed
	// extensionRequest. It ignores all others, so even a malformed one is not an error.
	for _, raw := range attributes {
		var found attribute
		var values []asn1.RawValue
		malformed := unmarshal(raw.FullBytes, &found)
		_, err := asn1.UnmarshalWithParams(found.Values.FullBytes, &values, "set")
		switch {
		case malformed != nil:
			dropped = append(dropped, "malformed attribute")
		case !found.ID.Equal(oidExtensionRequest) || err != nil || len(values) != 1:
			dropped = append(dropped, "attribute "+found.ID.String())
		}
	}
	slices.Sort(dropped)
	return slices.Compact(dropped)
}

// droppedSubject lists the attributes of a parsed subject that crypto/x509 does not write again: those that it does not
// know, values that are no text, and repetitions of an attribute of which it keeps one value.
func droppedSubject(subject pkix.Name) []string {
	kept := map[string]int{}
	for _, rdn := range subject.ToRDNSequence() {
		kept[rdn[0].Type.String()] = len(rdn)
	}
	var dropped []string
	for _, attribute := range subject.Names {
		id := attribute.Type.String()
		if kept[id]--; kept[id] < 0 {
			dropped = append(dropped, "subject attribute "+id)
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
		kind, known := "", name.Class == asn1.ClassContextSpecific && name.Tag < len(generalNames)
		if known {
			kind = generalNames[name.Tag]
		}
		if !known || kind != "" || name.IsCompound { // the names that are copied are primitive
			dropped = append(dropped, "subjectAltName "+cmp.Or(kind, fmt.Sprintf("tag %d", name.Tag)))
		}
	}
	return dropped
}
