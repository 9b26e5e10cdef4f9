package csr

import (
	"cmp"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// The reasons of a Refused request (docs/reference/reasons.md).
const (
	ReasonMalformed       = "Malformed"
	ReasonTooLarge        = "RequestTooLarge"
	ReasonKeyNotPermitted = "KeyNotPermitted"
)

// Refused reports that no signer can ever sign a request, because its immutable spec breaks a rule. Reason is a token
// of docs/reference/reasons.md.
type Refused struct{ Reason, Message string }

// Error implements error.
func (r *Refused) Error() string { return r.Message }

// Limits limits the size of a request, before anything else of it is parsed, verified or printed. A larger request is
// never approved, and Failed once approved: `RequestTooLarge`. Without limits, a user who may only create requests fills the
// manager's memory. In Go, a zero field has its default.
type Limits struct {
	// RequestBytes limits `spec.request`.
	RequestBytes int `json:"maxRequestBytes" min:"1"`
	// DERBytes limits the PKCS#10 request in its first PEM block.
	DERBytes int `json:"maxDERBytes" min:"1"`
	// SubjectAttributes limits the attributes of the subject.
	SubjectAttributes int `json:"maxSubjectAttributes" min:"1"`
	// Names limits the subjectAltNames of all types together.
	Names int `json:"maxNames" min:"1"`
	// Extensions limits PKCS#10 attributes and requested extensions together.
	Extensions int `json:"maxExtensions" min:"1"`
	// Entries limits each list and each map beside `spec.request`: labels, annotations, finalizers, owners, usages, and the
	// groups and the extra of the requester.
	Entries int `json:"maxEntries" min:"1"`
	// ObjectBytes limits the bytes of metadata and spec without `spec.request`, as protobuf. `kubectl apply` adds a copy of `spec.request`,
	// a third longer, so it fits up to about 45 kB: use `kubectl create` for more.
	ObjectBytes int `json:"maxObjectBytes" min:"1"`
}

// DefaultLimits are large enough for a node with hundreds of network interfaces.
var DefaultLimits = Limits{
	RequestBytes: 128 << 10, DERBytes: 64 << 10, SubjectAttributes: 256, Names: 1000, Extensions: 100,
	Entries: 1000, ObjectBytes: 64 << 10,
}

func (l Limits) withDefaults() Limits {
	return Limits{
		RequestBytes:      cmp.Or(l.RequestBytes, DefaultLimits.RequestBytes),
		DERBytes:          cmp.Or(l.DERBytes, DefaultLimits.DERBytes),
		SubjectAttributes: cmp.Or(l.SubjectAttributes, DefaultLimits.SubjectAttributes),
		Names:             cmp.Or(l.Names, DefaultLimits.Names),
		Extensions:        cmp.Or(l.Extensions, DefaultLimits.Extensions),
		Entries:           cmp.Or(l.Entries, DefaultLimits.Entries),
		ObjectBytes:       cmp.Or(l.ObjectBytes, DefaultLimits.ObjectBytes),
	}
}

// The most bytes of one value, by its kind. A longer name of an object is RequestTooLarge, because no URL may hold it. The
// conditions of approval rules read no value that is longer.
const (
	MaxName       = 253  // of an object, and of a DNS name (RFC 1035 section 2.3.4, as text)
	MaxEmail      = 320  // RFC 5321 section 4.5.3.1: 64 before the @ and 255 behind it
	MaxURI        = 2048 // SPIFFE-ID section 2.3
	MaxCommonName = 64   // RFC 5280 appendix A, ub-common-name and ub-organization-name
)

func tooLarge(what string, most int, unit, setting string) *Refused {
	return &Refused{ReasonTooLarge, fmt.Sprintf("%s more than %d %s (requestLimits.%s)", what, most, unit, setting)}
}

// check returns why obj is above a limit, or nil. It counts before it looks at any value. Managed fields do not count: only
// ConditionTime reads them, and Trim removes them.
func (l Limits) check(obj *certificatesv1.CertificateSigningRequest) *Refused {
	if Oversized(obj) {
		return &Refused{ReasonTooLarge, string(obj.Spec.Request[len(oversizedRequest):])}
	}
	if len(obj.Name) > MaxName {
		return &Refused{ReasonTooLarge, fmt.Sprintf("metadata.name has more than %d bytes", MaxName)}
	}
	if len(obj.Spec.Request) > l.RequestBytes {
		return tooLarge("spec.request has", l.RequestBytes, "bytes", "maxRequestBytes")
	}
	extra := len(obj.Spec.Extra)
	for _, values := range obj.Spec.Extra {
		extra = max(extra, len(values))
	}
	for _, list := range []struct {
		name    string
		entries int
	}{
		{"metadata.labels", len(obj.Labels)}, {"metadata.annotations", len(obj.Annotations)},
		{"metadata.finalizers", len(obj.Finalizers)}, {"metadata.ownerReferences", len(obj.OwnerReferences)},
		{"spec.usages", len(obj.Spec.Usages)}, {"spec.groups", len(obj.Spec.Groups)}, {"spec.extra", extra},
	} {
		if list.entries > l.Entries {
			return tooLarge(list.name+" has", l.Entries, "entries", "maxEntries")
		}
	}
	rest := certificatesv1.CertificateSigningRequest{ObjectMeta: obj.ObjectMeta, Spec: obj.Spec}
	rest.ManagedFields, rest.Spec.Request = nil, nil
	if rest.Size() > l.ObjectBytes {
		return tooLarge("the metadata, usages and requester have", l.ObjectBytes, "bytes", "maxObjectBytes")
	}
	return nil
}

// maxNameInURL is the most bytes of the name of an object in a URL. RFC 9110 section 4.1 recommends support for URIs of 8,000
// bytes, and proxies have limits of their own. Each name of at most MaxName bytes is shorter. API servers store names of
// 400,000 control characters, of which each takes three bytes in a URL, and read no URL above a megabyte.
const maxNameInURL = 2048

// Reachable reports whether a controller may name obj in a URL. No controller writes to any other request, or deletes it,
// because the cache would have to hold its name. The policy in config/request-limits prevents such names.
func Reachable(obj *certificatesv1.CertificateSigningRequest) bool {
	return len(obj.Name) <= maxNameInURL && len(url.PathEscape(obj.Name)) <= maxNameInURL && !strings.Contains(obj.Name, cutName)
}

// pkcs10 is a PKCS#10 request (RFC 2986 section 4), decoded only as far as the limits need. It has the structure that crypto/x509 decodes first, so both refuse the same DER with the same error.
type pkcs10 struct {
	Raw                asn1.RawContent
	Info               pkcs10Info
	SignatureAlgorithm pkix.AlgorithmIdentifier
	Signature          asn1.BitString
}

type pkcs10Info struct {
	Raw       asn1.RawContent
	Version   int
	Subject   asn1.RawValue
	PublicKey struct {
		Raw       asn1.RawContent
		Algorithm pkix.AlgorithmIdentifier
		PublicKey asn1.BitString
	}
	Attributes []asn1.RawValue `asn1:"tag:0"`
}

// attribute is an attribute of a PKCS#10 request (RFC 2986 section 4.1).
type attribute struct {
	ID     asn1.ObjectIdentifier
	Values asn1.RawValue
}

// unmarshal decodes der, and returns an error if anything follows.
func unmarshal(der []byte, into any) error {
	rest, err := asn1.Unmarshal(der, into)
	if err == nil && len(rest) > 0 {
		err = asn1.SyntaxError{Msg: "trailing data"}
	}
	return err
}

// decode decodes the request in the first PEM block of data as far as the limits of its content need, and checks them.
func (l Limits) decode(data []byte) (der []byte, info *pkcs10Info, refused *Refused) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, nil, &Refused{ReasonMalformed, "spec.request is not a PEM block of type CERTIFICATE REQUEST"}
	}
	if len(block.Bytes) > l.DERBytes {
		return nil, nil, tooLarge("the PKCS#10 request in spec.request has", l.DERBytes, "bytes of DER", "maxDERBytes")
	}
	var read pkcs10
	if err := unmarshal(block.Bytes, &read); err != nil {
		return nil, nil, malformed(err)
	}
	return block.Bytes, &read.Info, l.checkCounts(&read.Info)
}

// checkCounts returns why info has too many attributes, extensions or names, or nil. It stops counting at the limit.
func (l Limits) checkCounts(info *pkcs10Info) *Refused {
	if len(nested(info.Subject.Bytes, l.SubjectAttributes+1)) > l.SubjectAttributes {
		return tooLarge("the subject has", l.SubjectAttributes, "attributes", "maxSubjectAttributes")
	}
	extensions, names := len(info.Attributes), 0
	for i := 0; i < len(info.Attributes) && extensions <= l.Extensions; i++ {
		requested := requestedExtensions(info.Attributes[i], l.Extensions+1)
		if extensions += len(requested); extensions > l.Extensions {
			break
		}
		for _, extension := range requested {
			names += len(subjectAltNames(extension, l.Names+1))
		}
	}
	if extensions > l.Extensions {
		return tooLarge("the request holds", l.Extensions, "attributes and extensions", "maxExtensions")
	}
	if names > l.Names {
		return tooLarge("the request asks for", l.Names, "names and addresses", "maxNames")
	}
	return nil
}

// requestedExtensions returns up to most extensions in raw, if it is an extensionRequest attribute (RFC 2985 section
// 5.4.2).
func requestedExtensions(raw asn1.RawValue, most int) []asn1.RawValue {
	var found attribute
	if _, err := asn1.Unmarshal(raw.FullBytes, &found); err != nil || !found.ID.Equal(oidExtensionRequest) {
		return nil
	}
	return nested(found.Values.Bytes, most)
}

// subjectAltNames returns up to most names in raw, if it is a subjectAltName extension.
func subjectAltNames(raw asn1.RawValue, most int) []asn1.RawValue {
	var extension pkix.Extension
	var names asn1.RawValue
	if _, err := asn1.Unmarshal(raw.FullBytes, &extension); err != nil || !extension.Id.Equal(oidSubjectAltName) {
		return nil
	}
	if _, err := asn1.Unmarshal(extension.Value, &names); err != nil {
		return nil
	}
	return elements(names.Bytes, most)
}

// nested returns up to most of the elements inside each element of der: the attributes of a subject, or the extensions
// in all lists of a request. An empty element stands for itself.
func nested(der []byte, most int) []asn1.RawValue {
	var all []asn1.RawValue
	for _, outer := range elements(der, most) {
		inner := elements(outer.Bytes, most-len(all))
		if len(outer.Bytes) == 0 {
			inner = []asn1.RawValue{outer}
		}
		all = append(all, inner...)
	}
	return all
}

// elements returns the first elements of der, most at the most, up to the first that is missing or malformed.
func elements(der []byte, most int) []asn1.RawValue {
	var all []asn1.RawValue
	for len(all) < most {
		var element asn1.RawValue
		rest, err := asn1.Unmarshal(der, &element)
		if err != nil {
			break
		}
		all, der = append(all, element), rest
	}
	return all
}

// Fault returns the message for an error of Parse that is not a *Refused.
func Fault(err error) string {
	return fmt.Sprintf("%v; this is a bug in csr-controller-manager: report it with this request. "+
		"The request is parsed again within five minutes", err)
}

// Objection says why something is not permitted, in a clause for a message. NoObjection permits it.
type Objection string

// NoObjection is the Objection to what is permitted.
const NoObjection Objection = ""
