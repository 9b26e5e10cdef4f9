package parity

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
)

// Content that a request may have and no certificate of these signers holds.
var (
	askForCA = []pkix.Extension{
		{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: der(struct{ CA bool }{true})},
		{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: der(asn1.BitString{Bytes: []byte{4}, BitLength: 6})},
	}
	custom    = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: der("anything")}}
	otherName = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der([]asn1.RawValue{{
		Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true,
		Bytes: append(der(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 20, 2, 3}),
			der(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: der("upn@example.org")})...),
	}})}}
)

// attribute is one RDN of a subject.
type attribute struct {
	oid   asn1.ObjectIdentifier
	value string
}

var (
	userID          = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
	domainComponent = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 25}
	commonName      = asn1.ObjectIdentifier{2, 5, 4, 3}
	serialNumber    = asn1.ObjectIdentifier{2, 5, 4, 5}
	organization    = asn1.ObjectIdentifier{2, 5, 4, 10}
)

// name returns a subject with these attributes, in order, each in its own RDN.
func name(attributes ...attribute) []byte {
	var sequence pkix.RDNSequence
	for _, one := range attributes {
		sequence = append(sequence, pkix.RelativeDistinguishedNameSET{{Type: one.oid, Value: one.value}})
	}
	return der(sequence)
}

// oneRDN returns a subject with these attributes in one RDN.
func oneRDN(attributes ...attribute) []byte {
	var set pkix.RelativeDistinguishedNameSET
	for _, one := range attributes {
		set = append(set, pkix.AttributeTypeAndValue{Type: one.oid, Value: one.value})
	}
	return der(pkix.RDNSequence{set})
}

func der(value any) []byte { return must(asn1.Marshal(value)) }

// Encodings of the payload that PEM readers treat differently.

func trailing(request []byte) []byte { return append(request, "and more\n"...) }

func textBefore(request []byte) []byte { return append([]byte("Subject: parity\n\n"), request...) }

func carriageReturns(request []byte) []byte {
	return bytes.ReplaceAll(request, []byte("\n"), []byte("\r\n"))
}

func secondBlock(request []byte) []byte { return append(request, request...) }

func otherBlockFirst(request []byte) []byte {
	return append(pem.EncodeToMemory(&pem.Block{Type: "PARITY", Bytes: []byte{1}}), request...)
}

func withHeaders(request []byte) []byte {
	block, _ := pem.Decode(request)
	block.Headers = map[string]string{"Comment": "parity"}
	return pem.EncodeToMemory(block)
}

func newBlockType(request []byte) []byte {
	return bytes.ReplaceAll(request, []byte("CERTIFICATE REQUEST"), []byte("NEW CERTIFICATE REQUEST"))
}

func noPEM([]byte) []byte { return []byte("no PEM at all") }

func badSignature(request []byte) []byte {
	block, _ := pem.Decode(request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func garbage([]byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("garbage")})
}
