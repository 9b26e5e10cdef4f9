package parity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

var allNames = x509.CertificateRequest{
	DNSNames:       []string{"b.example.org", "a.example.org", "*.example.org"},
	EmailAddresses: []string{"a@example.org"},
	IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 1).To4(), net.IPv6loopback},
	URIs:           []*url.URL{spiffe},
}

func sans(dns ...string) x509.CertificateRequest { return x509.CertificateRequest{DNSNames: dns} }

func ips(addresses ...string) x509.CertificateRequest {
	var names x509.CertificateRequest
	for _, address := range addresses {
		names.IPAddresses = append(names.IPAddresses, net.ParseIP(address))
	}
	return names
}

// certificateRows test the content and the lifetime of certificates.
var certificateRows = map[string]row{
	"subject, empty":           with(client, func(r *row) { r.subject = &pkix.Name{}; r.names = sans("a.example.org") }),
	"subject, empty, no names": with(client, func(r *row) { r.subject = &pkix.Name{} }),
	"subject, everything":      with(client, func(r *row) { r.subject = everything }),
	"subject, O out of order": with(client, func(r *row) {
		r.rawSubject = name(attribute{organization, "b"}, attribute{organization, "a"}, attribute{commonName, "x"})
	}),
	"subject, O in one RDN":  with(client, func(r *row) { r.rawSubject = oneRDN(attribute{organization, "b"}, attribute{organization, "a"}) }),
	"subject, CN first":      with(client, func(r *row) { r.rawSubject = name(attribute{commonName, "x"}, attribute{organization, "a"}) }),
	"subject, two CN":        with(client, func(r *row) { r.rawSubject = name(attribute{commonName, "x"}, attribute{commonName, "y"}) }),
	"subject, serial number": with(client, func(r *row) { r.rawSubject = name(attribute{serialNumber, "1"}, attribute{serialNumber, "2"}) }),
	"subject, unknown attributes": with(client, func(r *row) {
		r.rawSubject = name(attribute{userID, "u"}, attribute{domainComponent, "d"}, attribute{commonName, "x"})
	}),
	"kubelet, unknown attributes": with(byHand, func(r *row) {
		r.rawSubject = name(attribute{organization, "system:nodes"}, attribute{userID, "u"}, attribute{commonName, "system:node:n1"})
	}),
	"not ASCII":                            with(client, func(r *row) { r.subject = &pkix.Name{CommonName: "Zoë", Organization: []string{"Größe"}} }),
	"asks to be a CA":                      with(client, func(r *row) { r.names.ExtraExtensions = askForCA }),
	"asks for an extension":                with(client, func(r *row) { r.names.ExtraExtensions = custom }),
	"asks for an otherName":                with(client, func(r *row) { r.names.ExtraExtensions = otherName }),
	"names twice":                          with(client, func(r *row) { r.names = sans("a.example.org", "a.example.org") }),
	"key, RSA 2048":                        with(client, func(r *row) { r.key = "RSA-2048" }),
	"key, RSA 4096":                        with(client, func(r *row) { r.key = "RSA-4096" }),
	"key, P-224":                           unpermitted(client, approvedFailed),
	"key, P-224, kubelet client":           unpermitted(byHand, approvedFailed),
	"key, P-224, and any":                  otherReason(unpermitted(client, approvedFailed)),
	"too many subject attributes":          manyAttributes,
	"too many subject attributes, and any": otherReason(manyAttributes),
	"too many subject attributes, undecided": with(node, func(r *row) {
		many := slices.Repeat([]attribute{{userID, "u"}}, 255)
		r.rawSubject = name(append(many, attribute{organization, "system:nodes"}, attribute{commonName, "system:node:n1"})...)
		r.deviation, r.ours = "too-large", untouched
	}),
	"as many subject attributes as fit": with(client, func(r *row) { r.rawSubject = name(slices.Repeat([]attribute{{organization, "o"}}, 256)...) }),
	"name with two names in it":         badName("a, DNS:b", "is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -"),
	"name, address with a zone":         badName("fd00::1%eth0", "is an IP address that is not in canonical form"),
	"name, address, mapped":             badName("::ffff:10.0.0.1", "is an IP address that is not in canonical form"),
	"name, two dots":                    badName("a..", "is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -"),
	"name, underscore":                  with(client, func(r *row) { r.names = sans("_A-b.example.org.") }),
	"name, address":                     with(client, func(r *row) { r.names = sans("10.0.0.1", "fd00::1") }),
	"too many names": tooLarge("the request asks for more than 1000 names and addresses (requestLimits.maxNames)", func(r *row) {
		r.names = sans(slices.Repeat([]string{"a.example.org"}, 1001)...)
	}),
	"as many names as fit": with(client, func(r *row) { r.names = sans(slices.Repeat([]string{"a.example.org"}, 1000)...) }),
	"too much DER": tooLarge("the PKCS#10 request in spec.request has more than 65536 bytes of DER (requestLimits.maxDERBytes)", func(r *row) {
		r.rawSubject = name(attribute{organization, strings.Repeat("o", 64<<10)})
	}),
	"too much after the PEM block": tooLarge("spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)", func(r *row) {
		r.payload = func(data []byte) []byte { return append(data, strings.Repeat("#", 128<<10)...) }
	}),
	"key, P-384":                      with(client, func(r *row) { r.key = "P-384" }),
	"key, P-521":                      with(client, func(r *row) { r.key = "P-521" }),
	"key, Ed25519":                    with(client, func(r *row) { r.key = "Ed25519" }),
	"key, RSA 1024":                   weak(client),
	"key, RSA 1024, kubelet client":   weak(byHand),
	"key, RSA 1024, kubelet serving":  weak(serving),
	"key, RSA 1024, but first usages": failed(client, func(r *row) { r.key = "RSA-1024"; r.usages = usages("client auth", "any") }),

	"seconds, 48 h":             with(client, func(r *row) { r.seconds = 48 * 3600 }),
	"seconds, 24 h":             with(client, func(r *row) { r.seconds = 24 * 3600 }),
	"seconds, over 24 h":        with(client, func(r *row) { r.seconds = 24*3600 + 1 }),
	"seconds, 20 h":             with(client, func(r *row) { r.seconds = 20 * 3600 }),
	"seconds, 10 h":             with(client, func(r *row) { r.seconds = 10 * 3600 }),
	"seconds, 8 h":              with(client, func(r *row) { r.seconds = 8 * 3600 }),
	"seconds, under 8 h":        with(client, func(r *row) { r.seconds = 8*3600 - 1 }),
	"seconds, 2 h":              with(client, func(r *row) { r.seconds = 2 * 3600 }),
	"seconds, 30 min":           with(client, func(r *row) { r.seconds = 1800 }),
	"seconds, 10 min":           with(client, func(r *row) { r.seconds = 600 }),
	"seconds, 10 min, serving":  with(serving, func(r *row) { r.seconds = 600 }),
	"seconds, 599":              with(client, func(r *row) { r.stored, r.seconds, r.want = true, 599, approvedOnly }),
	"seconds, negative":         with(client, func(r *row) { r.stored, r.seconds, r.want = true, -420, approvedOnly }),
	"PEM, trailing data":        with(client, func(r *row) { r.payload = trailing }),
	"PEM, text before":          with(client, func(r *row) { r.payload = textBefore }),
	"PEM, CRLF":                 with(client, func(r *row) { r.payload = carriageReturns }),
	"PEM, twice":                with(client, func(r *row) { r.payload = secondBlock }),
	"PEM, headers":              with(client, func(r *row) { r.payload = withHeaders }),
	"PEM, another block first":  unwritable(otherBlockFirst),
	"PEM, NEW":                  unwritable(newBlockType),
	"PEM, none":                 unwritable(noPEM),
	"PEM, garbage":              unwritable(garbage),
	"bad signature":             unwritable(badSignature),
	"bad signature, undecided":  with(unwritable(badSignature), func(r *row) { r.signer, r.conditions, r.want = kubeletClient, nil, untouched }),
	"garbage, undecided":        with(unwritable(garbage), func(r *row) { r.signer, r.conditions, r.want = kubeletClient, nil, untouched }),
	"garbage, foreign signer":   with(unwritable(garbage), func(r *row) { r.signer = "example.com/client" }),
	"system:masters let in":     masters(client),
	"system:masters among more": masters(with(client, func(r *row) { r.subject = &pkix.Name{Organization: []string{"a", "system:masters"}} })),
	"a group of Kubernetes":     reserved(&pkix.Name{CommonName: "x", Organization: []string{"a", "system:mastersx"}}, "O=system:*"),
	"a group of kubeadm":        reserved(&pkix.Name{CommonName: "x", Organization: []string{"kubeadm:cluster-admins"}}, "O=kubeadm:*"),
	"a user of Kubernetes":      reserved(&pkix.Name{CommonName: "system:kube-scheduler"}, "CN=system:*"),
	"a user of kubeadm":         reserved(&pkix.Name{CommonName: "kubeadm:x"}, "CN=kubeadm:*"),
	"almost a group": with(client, func(r *row) {
		r.subject = &pkix.Name{CommonName: "system", Organization: []string{"kubeadm", "System:masters", " system:x"}}
	}),
}

var everything = &pkix.Name{
	Country: []string{"DE"}, Organization: []string{"z", "a"}, OrganizationalUnit: []string{"ou2", "ou1"}, Locality: []string{"l"},
	Province: []string{"p"}, StreetAddress: []string{"s"}, PostalCode: []string{"1"}, SerialNumber: "7", CommonName: "x",
}

// weak returns base with a key that ours refuses.
func weak(base row) row {
	return with(base, func(r *row) {
		r.key, r.deviation, r.ours = "RSA-1024", "weak-rsa-key", approvedFailed
		r.message = "KeyTooWeak: RSA key of 1024 bits is too weak: at least 2048 bits are needed"
	})
}

// unpermitted returns base with a kind of key that ours refuses.
func unpermitted(base row, ours string) row {
	return with(base, func(r *row) {
		r.key, r.deviation, r.ours = "P-224", "key-not-permitted", ours
		if ours == approvedFailed {
			r.message = "KeyNotPermitted: ECDSA keys on the curve P-224 are not permitted; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
		}
	})
}

// badName returns a request with an invalid DNS name.
func badName(name, why string) row {
	return with(client, func(r *row) {
		r.names, r.deviation, r.ours = sans(name), "bad-name", approvedFailed
		r.message = fmt.Sprintf("NameNotPermitted: DNS name %q %s", name, why)
	})
}

// tooLarge returns a request that change makes larger than our limits.
func tooLarge(message string, change func(*row)) row {
	return with(client, change, func(r *row) {
		r.deviation, r.ours, r.message = "too-large", approvedFailed, "RequestTooLarge: "+message
	})
}

var manyAttributes = tooLarge("the subject has more than 256 attributes (requestLimits.maxSubjectAttributes)", func(r *row) {
	r.rawSubject = name(slices.Repeat([]attribute{{organization, "o"}}, 257)...)
})

// otherReason returns base with a usage that kube-controller-manager refuses. Ours fails it for another reason, which it
// checks first.
func otherReason(base row) row {
	return with(base, func(r *row) { r.usages, r.want = usages("client auth", "any"), approvedFailed })
}

// reserved returns a request for a user or a group of Kubernetes or kubeadm, which pattern forbids.
func reserved(subject *pkix.Name, pattern string) row {
	return with(client, func(r *row) {
		r.subject, r.deviation, r.ours = subject, "forbidden-subject", approvedFailed
		r.message = `SubjectNotPermitted: subject "` + subject.String() + `" is not permitted: this signer never issues ` + pattern
	})
}

// masters returns base as an API server without the admission plugin CertificateSubjectRestriction would accept it.
func masters(base row) row {
	return with(base, func(r *row) {
		if r.subject == nil {
			r.subject = &pkix.Name{CommonName: "parity", Organization: []string{"system:masters"}}
		}
		r.stored, r.deviation, r.ours = true, "forbidden-subject", approvedFailed
		r.message = `SubjectNotPermitted: subject "` + r.subject.String() + `" is not permitted: this signer never issues O=system:*`
	})
}

// unwritable returns an approved request for which the API server refuses every update.
func unwritable(payload func([]byte) []byte) row {
	return with(client, func(r *row) { r.stored, r.payload, r.want = true, payload, approvedOnly })
}
