package parity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// node is the smallest request that is approved and signed automatically.
var node = row{signer: kubeletClient, subject: nodeName("n1"), user: bootstrapper, want: approvedIssued}

// approverRows are kcm-semantics: which requests are approved, by which rule, and which are ignored.
var approverRows = map[string]row{
	"bootstrapper":                          node,
	"bootstrapper, with key encipherment":   with(node, func(r *row) { r.usages = usages("key encipherment", "digital signature", "client auth") }),
	"bootstrapper, usages in another order": with(node, func(r *row) { r.usages = usages("client auth", "digital signature") }),
	"bootstrapper, P-224":                   deviates(with(node, func(r *row) { r.key = "P-224" }), "key-not-permitted", untouched, ""),
	"bootstrapper, empty node name":         with(node, func(r *row) { r.subject = nodeName("") }),
	"bootstrapper, other attributes":        with(node, func(r *row) { r.subject.OrganizationalUnit = []string{"ou"} }),
	"bootstrapper, bound to the node": with(node, func(r *row) {
		r.user = boundUser("676b8bb84ce7267dd520deca4811c8f10a53e636352f06987f42fe425acedd80")
	}),
	"bootstrapper, bound to another node":       boundElsewhere(untouched, approvedIssued),
	"node renews":                               by(nodeUser("n1", "parity:renewers"), approvedIssued),
	"node renews, may do both":                  by(nodeUser("n1", "parity:renewers", "parity:bootstrappers"), approvedIssued),
	"node renews, refused, but a bootstrapper":  by(nodeUser("n1", "parity:bootstrappers"), approvedIssued),
	"node renews, another name, may only renew": by(nodeUser("n2", "parity:renewers"), untouched),
	"node renews, another name, bootstrapper":   by(nodeUser("n2", "parity:renewers", "parity:bootstrappers"), approvedIssued),
	"node renews, refused":                      by(nodeUser("n1"), untouched),
	"real node renews":                          by(nodeUser("n1", "system:nodes", "parity:renewers"), approvedIssued),
	"user name in another case":                 by(nodeUser("N1", "parity:renewers"), untouched),
	"stranger":                                  by(stranger, untouched),
	"stranger, bound by name":                   by(user{"named", stranger.groups}, approvedIssued),
	"afterwards":                                with(node, func(r *row) { r.live = true }),
	"late permission":                           with(by(user{"late", stranger.groups}, approvedIssued), func(r *row) { r.live, r.grants = true, true }),

	"another organization":       leftAlone(func(r *row) { r.subject.Organization = []string{"system:masters"} }),
	"two organizations":          leftAlone(func(r *row) { r.subject.Organization = []string{"system:nodes", "more"} }),
	"prefix within common name":  leftAlone(func(r *row) { r.subject.CommonName = "x:system:node:n1" }),
	"DNS name":                   leftAlone(func(r *row) { r.names = sans("n1") }),
	"URI":                        leftAlone(func(r *row) { r.names.URIs = []*url.URL{spiffe} }),
	"otherName is not looked at": with(node, func(r *row) { r.names = x509.CertificateRequest{ExtraExtensions: otherName} }),
	"server auth":                leftAlone(func(r *row) { r.usages = usages("digital signature", "server auth") }),
	"server auth more":           leftAlone(func(r *row) { r.usages = usages("digital signature", "client auth", "server auth") }),
	"client auth only":           leftAlone(func(r *row) { r.usages = usages("client auth") }),
	"no client auth":             leftAlone(func(r *row) { r.usages = usages("digital signature", "key encipherment") }),
	"usage twice":                with(node, func(r *row) { r.stored, r.usages = true, usages("digital signature", "client auth", "client auth") }),
	"other signer, client":       leftAlone(func(r *row) { r.signer = apiserverClient }),
	"other signer, serving":      leftAlone(func(r *row) { r.signer, r.names = kubeletServing, sans("n1") }),
	"foreign signer":             leftAlone(func(r *row) { r.signer = "example.com/client" }),
	"legacy signer":              leftAlone(func(r *row) { r.stored, r.signer = true, legacyUnknown }),

	"denied before":                with(node, func(r *row) { r.conditions, r.want = now("Denied"), denied }),
	"denied, then foreign":         with(node, func(r *row) { r.conditions, r.want = now("Denied", "Example"), "Denied Example" }),
	"approved before":              with(node, func(r *row) { r.conditions = now("Approved") }),
	"failed, undecided":            with(node, func(r *row) { r.conditions, r.want = now("Failed"), "Failed Approved" }),
	"failed, undecided, stranger":  with(by(stranger, "Failed"), func(r *row) { r.conditions = now("Failed") }),
	"foreign condition, undecided": with(node, func(r *row) { r.conditions, r.want = now("Example"), "Example Approved Issued" }),
	"certificate without approval": with(node, func(r *row) { r.stored, r.certificate, r.want = true, valid, "Issued" }),
	// The API server accepts a third copy of a condition only if the request already has two.
	"approved twice and failed": with(node, func(r *row) {
		r.stored, r.conditions, r.want = true, now("Approved", "Approved", "Failed"), "Approved Approved Failed"
	}),
	"failed, undecided, bound to another node": with(boundElsewhere("Failed", "Failed Approved"), func(r *row) { r.conditions = now("Failed") }),
	"another condition, bound to another node": with(boundElsewhere("Example", "Example Approved Issued"), func(r *row) {
		r.conditions = now("Example")
	}),
}

// by returns node's request with another requester.
func by(requester user, want string) row {
	return with(node, func(r *row) { r.user, r.want = requester, want })
}

// boundElsewhere returns node's request with the token of another node.
func boundElsewhere(ours, theirs string) row {
	return deviates(by(boundUser("676b8bb84ce7267d"), theirs), "bound-token", ours, "")
}

// leftAlone returns a bootstrapper's request, changed by change, that is not approved.
func leftAlone(change func(*row)) row {
	return with(node, change, func(r *row) { r.want = untouched })
}

var (
	client  = row{user: stranger, conditions: now("Approved"), want: approvedIssued}
	serving = row{
		signer: kubeletServing, subject: nodeName("n1"), user: stranger, usages: usages("digital signature", "server auth"),
		names: sans("n1.example.org"), conditions: now("Approved"), want: approvedIssued,
	}
	byHand = with(node, func(r *row) { r.user, r.conditions = stranger, now("Approved") })
	// legacy can't be created through the API any more. Ours does not serve its signer.
	legacy = deviates(with(client, func(r *row) { r.signer, r.stored = legacyUnknown, true }), "legacy-unknown", approvedOnly, "")
)

// failed returns base with a change that its signer refuses in KCM's words.
func failed(base row, change func(*row)) row {
	return with(base, change, func(r *row) { r.want = approvedFailed })
}

// signerRows test which requests are signed, and the messages of the others. A row with two faults tests which is named.
var signerRows = map[string]row{
	"client":                         client,
	"client, with key encipherment":  with(client, func(r *row) { r.usages = usages("key encipherment", "digital signature", "client auth") }),
	"client, client auth only":       with(client, func(r *row) { r.usages = usages("client auth") }),
	"client, all kinds of names":     with(client, func(r *row) { r.names = allNames }),
	"client, not approved":           with(client, func(r *row) { r.conditions, r.want = nil, untouched }),
	"client, denied":                 with(client, func(r *row) { r.conditions, r.want = now("Denied"), denied }),
	"client, server auth more":       failed(client, func(r *row) { r.usages = usages("client auth", "server auth", "any") }),
	"client, any first":              failed(client, func(r *row) { r.usages = usages("any", "client auth", "server auth") }),
	"client, no client auth":         failed(client, func(r *row) { r.usages = usages("digital signature", "key encipherment") }),
	"client, unknown usage":          failed(client, func(r *row) { r.stored, r.usages = true, usages("client auth", "unknown") }),
	"kubelet client by hand":         byHand,
	"kubelet client, system:masters": failed(byHand, func(r *row) { r.subject.Organization = []string{"system:masters"} }),
	"kubelet client, two groups":     failed(byHand, func(r *row) { r.subject.Organization = append(r.subject.Organization, "more") }),
	"kubelet client, group and DNS":  failed(byHand, func(r *row) { r.subject.Organization, r.names = nil, sans("n1") }),
	"kubelet client, DNS and email":  failed(byHand, func(r *row) { r.names = allNames }),
	"kubelet client, email and IP":   failed(byHand, func(r *row) { r.names = allNames; r.names.DNSNames = nil }),
	"kubelet client, IP and URI": failed(byHand, func(r *row) {
		r.names.IPAddresses, r.names.URIs = []net.IP{net.IPv6loopback}, []*url.URL{spiffe}
	}),
	"kubelet client, URI and name":    failed(byHand, func(r *row) { r.names.URIs, r.subject.CommonName = []*url.URL{spiffe}, "n1" }),
	"kubelet client, name and usages": failed(byHand, func(r *row) { r.subject.CommonName, r.usages = "n1", usages("server auth") }),
	"kubelet client, usages":          failed(byHand, func(r *row) { r.usages = usages("digital signature", "server auth") }),
	"kubelet client, usages missing":  failed(byHand, func(r *row) { r.usages = usages("client auth", "key encipherment") }),
	"kubelet client, usage more":      failed(byHand, func(r *row) { r.usages = usages("digital signature", "client auth", "any") }),
	"serving":                         serving,
	"serving, with key encipherment":  with(serving, func(r *row) { r.usages = usages("server auth", "key encipherment", "digital signature") }),
	"serving, IP only": with(serving, func(r *row) {
		r.names.DNSNames, r.names.IPAddresses = nil, []net.IP{net.IPv4(10, 0, 0, 1), net.ParseIP("fd00::1")}
	}),
	"serving, DNS and IP":         with(serving, func(r *row) { r.names.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }),
	"serving, organization":       failed(serving, func(r *row) { r.subject.Organization = []string{"nodes"} }),
	"serving, no names but URI":   failed(serving, func(r *row) { r.names.DNSNames, r.names.URIs = nil, []*url.URL{spiffe} }),
	"serving, email and URI":      failed(serving, func(r *row) { r.names = allNames }),
	"serving, URI":                failed(serving, func(r *row) { r.names.URIs = []*url.URL{spiffe} }),
	"serving, common name":        failed(serving, func(r *row) { r.subject.CommonName = "n1" }),
	"serving, usages before name": failed(serving, func(r *row) { r.subject.CommonName, r.usages = "n1", usages("client auth") }),
	"serving, usages missing":     failed(serving, func(r *row) { r.usages = usages("server auth", "key encipherment") }),
	"serving, client auth more":   failed(serving, func(r *row) { r.usages = usages("digital signature", "server auth", "client auth") }),
	"legacy":                      legacy,
	"foreign signer, approved":    with(client, func(r *row) { r.signer, r.want = "example.com/client", approvedOnly }),
	"unknown Kubernetes signer":   with(client, func(r *row) { r.signer, r.want = "kubernetes.io/parity", approvedOnly }),
	"approved and failed":         with(client, func(r *row) { r.conditions, r.want = now("Approved", "Failed"), approvedFailed }),
	"approved and denied":         with(client, func(r *row) { r.stored, r.conditions, r.want = true, now("Approved", "Denied"), "Approved Denied" }),
	"foreign condition too":       with(client, func(r *row) { r.conditions, r.want = now("Approved", "Example"), "Approved Example Issued" }),
	"approved and issued before":  with(client, func(r *row) { r.stored, r.certificate = true, valid }),
	"approved 50 minutes ago":     aged(client, since("Approved", 50*time.Minute)),
	"approver's clock is behind":  in(defaults, with(client, decided(since("Approved", 26*time.Hour)))), // without KCM's cleaner, which may be faster than its signer
	"approver's clock is ahead":   with(client, decided(since("Approved", -8*time.Hour))),
}

// aged returns base, made a day ago and with this condition.
func aged(base row, condition certificatesv1.CertificateSigningRequestCondition) row {
	return with(base, decided(condition), func(r *row) { r.stored, r.age = true, 24*time.Hour })
}

func decided(condition certificatesv1.CertificateSigningRequestCondition) func(*row) {
	return func(r *row) { r.conditions = []certificatesv1.CertificateSigningRequestCondition{condition} }
}

// startRows test outcomes that depend on the flags.
var startRows = map[string]row{
	"own CA":                in(ownCAs, byHand),
	"own CA, approved":      in(ownCAs, node),
	"own CA, 10 min":        in(ownCAs, with(byHand, func(r *row) { r.seconds = 600 })),
	"own CA, 1 h":           in(ownCAs, with(byHand, func(r *row) { r.seconds = 3600 })),
	"own CA ends":           in(ownCAs, serving),
	"own CA ends, 10 min":   in(ownCAs, with(serving, func(r *row) { r.seconds = 600 })),
	"own CA, afterwards":    in(ownCAs, with(node, func(r *row) { r.live = true })),
	"no CA for the signer":  in(ownCAs, with(client, func(r *row) { r.want = approvedOnly })),
	"no CA, refused":        in(ownCAs, with(client, func(r *row) { r.want, r.usages = approvedOnly, usages("any") })),
	"approved too long ago": in(ownCAs, deviates(aged(byHand, since("Approved", 2*time.Hour)), "approved-unissued", approvedOnly, "")),

	"default lifetime":           in(defaults, client),
	"default lifetime, 30 days":  in(defaults, with(client, func(r *row) { r.seconds = 30 * 24 * 3600 })),
	"default lifetime, 365 days": in(defaults, with(client, func(r *row) { r.seconds = 365 * 24 * 3600 })),
	"default lifetime, 400 days": in(defaults, with(client, func(r *row) { r.seconds = 400 * 24 * 3600 })),
	"name within constraints":    in(defaults, with(client, func(r *row) { r.names = sans("a.example.org") })),
	"name that the CA excludes": in(defaults, deviates(with(client, func(r *row) { r.names = sans("a.example.com") }), "name-constraints", approvedFailed,
		`NameNotPermitted: the name constraints of the CA exclude the request: DNS name "a.example.com" is not permitted by any constraint; `+
			`"CN=parity CA P-384" permits ["example.org"]`)),
	"CA that is none":  unfit(defaults, byHand, "unfit-ca", "is not a CA"),
	"CA not yet valid": unfit(defaults, serving, "ca-not-yet-valid", "is not valid before"),

	"intermediate CA, 5 min": in(endedCAs, deviates(client, "chain", approvedIssued, "followed by the issuer")),
	"longest, 5 min":         in(endedCAs, deviates(with(client, func(r *row) { r.seconds = 600 }), "chain", approvedIssued, "followed by the issuer")),
	"CA ended":               in(endedCAs, with(byHand, func(r *row) { r.want = approvedOnly })),
	"CA that may not sign":   unfit(endedCAs, serving, "unfit-ca", "may not sign certificates"),
}

func in(start start, base row) row {
	base.start = start
	return base
}

// unfit returns base with a CA that ours refuses for the reason in log.
func unfit(start start, base row, id, log string) row {
	base = in(start, deviates(base, id, approvedOnly, ""))
	base.log = log
	return base
}

// certificateRows test the content and the lifetime of certificates.
var certificateRows = map[string]row{
	"subject, empty":           with(client, func(r *row) { r.subject, r.names = &pkix.Name{}, sans("a.example.org") }),
	"subject, empty, no names": with(client, func(r *row) { r.subject = &pkix.Name{} }),
	"subject, everything": with(client, func(r *row) {
		r.subject = &pkix.Name{
			Country: []string{"DE"}, Organization: []string{"z", "a"}, OrganizationalUnit: []string{"ou2", "ou1"}, Locality: []string{"l"},
			Province: []string{"p"}, StreetAddress: []string{"s"}, PostalCode: []string{"1"}, SerialNumber: "7", CommonName: "x",
		}
	}),
	"subject, O out of order":     raw(client, name(attribute{organization, "b"}, attribute{organization, "a"}, attribute{commonName, "x"})),
	"subject, O in one RDN":       raw(client, oneRDN(attribute{organization, "b"}, attribute{organization, "a"})),
	"subject, CN first":           raw(client, name(attribute{commonName, "x"}, attribute{organization, "a"})),
	"subject, two CN":             raw(client, name(attribute{commonName, "x"}, attribute{commonName, "y"})),
	"subject, serial number":      raw(client, name(attribute{serialNumber, "1"}, attribute{serialNumber, "2"})),
	"subject, unknown attributes": raw(client, name(attribute{userID, "u"}, attribute{domainComponent, "d"}, attribute{commonName, "x"})),
	"kubelet, unknown attributes": raw(byHand,
		name(attribute{organization, "system:nodes"}, attribute{userID, "u"}, attribute{commonName, "system:node:n1"})),
	"not ASCII":             with(client, func(r *row) { r.subject = &pkix.Name{CommonName: "Zoë", Organization: []string{"Größe"}} }),
	"asks to be a CA":       with(client, func(r *row) { r.names.ExtraExtensions = askForCA }),
	"asks for an extension": with(client, func(r *row) { r.names.ExtraExtensions = custom }),
	"asks for an otherName": with(client, func(r *row) { r.names.ExtraExtensions = otherName }),
	"names twice":           with(client, func(r *row) { r.names = sans("a.example.org", "a.example.org") }),

	"key, RSA 2048":                   keyed("RSA-2048", client),
	"key, P-384":                      keyed("P-384", client),
	"key, P-521":                      keyed("P-521", client),
	"key, Ed25519":                    keyed("Ed25519", client),
	"key, RSA 1024":                   weak(client),
	"key, RSA 1024, kubelet client":   weak(byHand),
	"key, RSA 1024, kubelet serving":  weak(serving),
	"key, RSA 1024, but first usages": failed(keyed("RSA-1024", client), func(r *row) { r.usages = usages("client auth", "any") }),
	"key, P-224":                      unpermitted,
	"key, P-224, and any":             otherReason(unpermitted),

	"as many subject attributes as fit":    raw(client, name(slices.Repeat([]attribute{{organization, "o"}}, 256)...)),
	"too many subject attributes":          manyAttributes,
	"too many subject attributes, and any": otherReason(manyAttributes),
	"too many subject attributes, undecided": deviates(raw(node, name(append(slices.Repeat([]attribute{{userID, "u"}}, 255),
		attribute{organization, "system:nodes"}, attribute{commonName, "system:node:n1"})...)), "too-large", untouched, ""),
	"as many names as fit": with(client, func(r *row) { r.names = sans(slices.Repeat([]string{"a.example.org"}, 1000)...) }),
	"too many names": tooLarge("the request asks for more than 1000 names and addresses (requestLimits.maxNames)", func(r *row) {
		r.names = sans(slices.Repeat([]string{"a.example.org"}, 1001)...)
	}),
	"too much DER": tooLarge("the PKCS#10 request in spec.request has more than 65536 bytes of DER (requestLimits.maxDERBytes)", func(r *row) {
		r.rawSubject = name(attribute{organization, strings.Repeat("o", 64<<10)})
	}),
	"too much after the PEM block": tooLarge("spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)", func(r *row) {
		r.payload = func(data []byte) []byte { return append(data, strings.Repeat("#", 128<<10)...) }
	}),
	"name with two names in it": badName("a, DNS:b", noDNSName),
	"name, two dots":            badName("a..", noDNSName),
	"name, address with a zone": badName("fd00::1%eth0", "is an IP address that is not in canonical form"),
	"name, address, mapped":     badName("::ffff:10.0.0.1", "is an IP address that is not in canonical form"),
	"name, underscore":          with(client, func(r *row) { r.names = sans("_A-b.example.org.") }),
	"name, address":             with(client, func(r *row) { r.names = sans("10.0.0.1", "fd00::1") }),

	"seconds, 48 h":      lasting(48*3600, client),
	"seconds, 24 h":      lasting(24*3600, client),
	"seconds, 20 h":      lasting(20*3600, client),
	"seconds, 8 h":       lasting(8*3600, client),
	"seconds, under 8 h": lasting(8*3600-1, client),
	"seconds, 10 min":    lasting(600, client),
	"seconds, 599":       with(lasting(599, client), func(r *row) { r.stored, r.want = true, approvedOnly }),
	"seconds, negative":  with(lasting(-420, client), func(r *row) { r.stored, r.want = true, approvedOnly }),

	"PEM, trailing data":       with(client, func(r *row) { r.payload = trailing }),
	"PEM, text before":         with(client, func(r *row) { r.payload = textBefore }),
	"PEM, CRLF":                with(client, func(r *row) { r.payload = carriageReturns }),
	"PEM, twice":               with(client, func(r *row) { r.payload = secondBlock }),
	"PEM, headers":             with(client, func(r *row) { r.payload = withHeaders }),
	"PEM, another block first": unwritable(otherBlockFirst),
	"PEM, NEW":                 unwritable(newBlockType),
	"PEM, none":                unwritable(noPEM),
	"PEM, garbage":             unwritable(garbage),
	"bad signature":            unwritable(badSignature),
	"bad signature, undecided": with(unwritable(badSignature), func(r *row) { r.signer, r.conditions, r.want = kubeletClient, nil, untouched }),
	"garbage, undecided":       with(unwritable(garbage), func(r *row) { r.signer, r.conditions, r.want = kubeletClient, nil, untouched }),
	"garbage, foreign signer":  with(unwritable(garbage), func(r *row) { r.signer = "example.com/client" }),

	// An API server without the admission plugin CertificateSubjectRestriction accepts the first two.
	"system:masters let in":     masters("parity", "system:masters"),
	"system:masters among more": masters("", "a", "system:masters"),
	"almost system:masters":     called("system:masters", "System:masters", " system:masters", "system:mastersx"),

	// Users and groups of Kubernetes, of kubeadm, and of programs that get their certificates by this signer.
	"component":           called("system:kube-controller-manager"),
	"kube-proxy":          called("system:kube-proxy", "system:node-proxier"),
	"kubeadm":             called("kubernetes-admin", "kubeadm:cluster-admins"),
	"user of kubeadm":     called("kubeadm:x"),
	"node, client":        called("system:node:n1", "system:nodes"),
	"ServiceAccount":      called("system:serviceaccount:a:b", "system:serviceaccounts", "system:serviceaccounts:a"),
	"network plugin":      called("system:ovn-node:n1", "system:ovn-nodes"),
	"multus":              called("system:multus:n1", "system:multus"),
	"multi-cluster agent": called("system:open-cluster-management:a:b", "system:open-cluster-management:a", "system:open-cluster-management:managed-clusters"),
	"karmada agent":       called("system:karmada:agent:a", "system:karmada:agents"),
	"seed":                called("gardener.cloud:system:seed:a", "gardener.cloud:system:seeds"),
	"node-bootstrapper": called("system:serviceaccount:openshift-machine-config-operator:node-bootstrapper",
		"system:serviceaccounts:openshift-machine-config-operator", "system:serviceaccounts"),
	"groups in one RDN": raw(client, oneRDN(attribute{organization, "system:kube-node"}, attribute{organization, "kubeadm:a"})),
	"masters in one RDN": raw(masters("", "kube-node", "system:masters"),
		oneRDN(attribute{organization, "kube-node"}, attribute{organization, "system:masters"})),
	"node, client of a server": failed(called("system:node:a.example.com", "system:nodes"), func(r *row) {
		r.names, r.usages = sans("a.example.com"), usages("digital signature", "key encipherment", "server auth")
	}),
	"serving, a webhook": with(serving, func(r *row) {
		r.subject, r.names = nodeName("hook.pool.svc.cluster.local"), sans("hook", "hook.pool", "hook.pool.svc", "hook.pool.svc.cluster.local")
	}),
	"name, a URL": badName("https://192.168.99.100:8443", noDNSName),
}

// called returns a request for kubernetes.io/kube-apiserver-client with that user name and these groups.
func called(user string, groups ...string) row {
	return with(client, func(r *row) { r.subject = &pkix.Name{CommonName: user, Organization: groups} })
}

func raw(base row, subject []byte) row { return with(base, func(r *row) { r.rawSubject = subject }) }

func keyed(kind string, base row) row { return with(base, func(r *row) { r.key = kind }) }

func lasting(seconds int32, base row) row { return with(base, func(r *row) { r.seconds = seconds }) }

func weak(base row) row {
	return deviates(keyed("RSA-1024", base), "weak-rsa-key", approvedFailed,
		"KeyTooWeak: RSA key of 1024 bits is too weak: at least 2048 bits are needed")
}

var unpermitted = deviates(keyed("P-224", client), "key-not-permitted", approvedFailed,
	"KeyNotPermitted: ECDSA keys on the curve P-224 are not permitted; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, Ed25519, or ML-DSA-44, "+
		"ML-DSA-65 or ML-DSA-87")

// mldsaRows have ML-DSA keys. A program that is built with Go 1.26 or earlier can't read them.
var mldsaRows = map[string]row{
	"key, ML-DSA-44":                       keyed("ML-DSA-44", client),
	"key, ML-DSA-65":                       keyed("ML-DSA-65", client),
	"key, ML-DSA-87":                       keyed("ML-DSA-87", client),
	"bootstrapper, ML-DSA-65":              keyed("ML-DSA-65", node),
	"serving, ML-DSA-87":                   keyed("ML-DSA-87", serving),
	"ML-DSA-65, but first another usage":   failed(keyed("ML-DSA-65", client), func(r *row) { r.usages = usages("key encipherment", "client auth", "any") }),
	"ML-DSA-65, client auth only":          mldsaUsages(client, noSignature, "client auth"),
	"ML-DSA-65, with key encipherment":     mldsaUsages(client, enciphers, "key encipherment", "digital signature", "client auth"),
	"ML-DSA-65, both":                      mldsaUsages(client, enciphers+"\n"+noSignature, "client auth", "key encipherment"),
	"kubelet, ML-DSA-65, key encipherment": mldsaUsages(byHand, enciphers, "key encipherment", "digital signature", "client auth"),
	"serving, ML-DSA-65, key encipherment": mldsaUsages(serving, enciphers, "key encipherment", "digital signature", "server auth"),
	"bootstrapper, ML-DSA-65, key encipherment": deviates(with(keyed("ML-DSA-65", node), func(r *row) {
		r.usages = usages("key encipherment", "digital signature", "client auth")
	}), "ml-dsa-usages", untouched, ""),
}

const (
	enciphers   = "usage key encipherment cannot be used with an ML-DSA signed certificate request"
	noSignature = "usages must contain at least one of [cert sign content commitment crl sign digital signature]"
)

// mldsaUsages returns a request that kube-controller-manager refuses from version 1.38 on, for why.
func mldsaUsages(base row, why string, all ...certificatesv1.KeyUsage) row {
	return deviates(with(keyed("ML-DSA-65", base), func(r *row) { r.usages = all }), "ml-dsa-usages", approvedFailed,
		"SignerValidationFailure: validating usages for ml-dsa key: "+why)
}

const noDNSName = "is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -"

// badName returns a request with an invalid DNS name.
func badName(name, why string) row {
	return deviates(with(client, func(r *row) { r.names = sans(name) }), "bad-name", approvedFailed,
		fmt.Sprintf("NameNotPermitted: DNS name %q %s", name, why))
}

// tooLarge returns a request that change makes larger than our limits.
func tooLarge(message string, change func(*row)) row {
	return deviates(with(client, change), "too-large", approvedFailed, "RequestTooLarge: "+message)
}

var manyAttributes = tooLarge("the subject has more than 256 attributes (requestLimits.maxSubjectAttributes)", func(r *row) {
	r.rawSubject = name(slices.Repeat([]attribute{{organization, "o"}}, 257)...)
})

// otherReason returns base with a usage that kube-controller-manager refuses. Ours fails it for another reason, which it
// checks first.
func otherReason(base row) row {
	return with(base, func(r *row) { r.usages, r.want = usages("client auth", "any"), approvedFailed })
}

// masters returns a stored request in the group system:masters, which every signer of ours forbids.
func masters(user string, groups ...string) row {
	base := with(called(user, groups...), func(r *row) { r.stored = true })
	return deviates(base, "forbidden-subject", approvedFailed,
		`SubjectNotPermitted: subject "`+base.subject.String()+`" is not permitted: this signer never issues O=system:masters`)
}

// unwritable returns an approved request for which the API server refuses every update.
func unwritable(payload func([]byte) []byte) row {
	return with(client, func(r *row) { r.stored, r.payload, r.want = true, payload, approvedOnly })
}

// The ages are ten minutes before a limit, and one minute after it.
const (
	underHour, overHour = 50 * time.Minute, 61 * time.Minute
	underDay, overDay   = 24*time.Hour - 10*time.Minute, 24*time.Hour + time.Minute
	month               = 30 * 24 * time.Hour
)

// Certificates that are stored with a request.
var (
	valid      = expires(time.Now().AddDate(1, 0, 0))
	ended      = expires(time.Now().Add(-time.Minute))
	unparsable = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	// timeless is a condition as it was before the API server set times.
	timeless = certificatesv1.CertificateSigningRequestCondition{Type: "Approved", Status: corev1.ConditionTrue}
)

// old returns a stored request for an unknown signer, so that only the cleaner handles it.
func old(age time.Duration, want string, list ...certificatesv1.CertificateSigningRequestCondition) row {
	return row{signer: "example.com/client", stored: true, age: age, user: stranger, conditions: list, want: want}
}

// issued adds a certificate to base.
func issued(certificate []byte, base row) row {
	base.certificate = certificate
	return base
}

// cleanerRows test which requests are deleted, and when.
var cleanerRows = map[string]row{
	"pending, under a day":            old(underDay, untouched),
	"pending, over a day":             old(overDay, gone),
	"pending, over a day, served":     with(old(overDay, gone), func(r *row) { r.signer = apiserverClient }),
	"pending, over a day, unreadable": with(old(overDay, gone), func(r *row) { r.payload = garbage }),
	"approved, under an hour":         old(month, approvedOnly, since("Approved", underHour)),
	"approved, over an hour":          deviates(old(month, approvedOnly, since("Approved", overHour)), "approved-unissued", gone, ""),
	"approved, over a day":            old(month, gone, since("Approved", overDay)),
	"approved, no time":               old(month, approvedOnly, timeless),
	"denied, under an hour":           old(month, denied, since("Denied", underHour)),
	"denied, over an hour":            old(month, gone, since("Denied", overHour)),
	"failed, under an hour":           old(month, "Failed", since("Failed", underHour)),
	"failed, over an hour":            old(month, gone, since("Failed", overHour)),
	"failed long after approval":      old(month, approvedFailed, since("Approved", underHour), since("Failed", 0)),
	"failed, approved just now":       old(month, gone, since("Approved", 0), since("Failed", overHour)),
	"approved and denied, one old":    old(month, gone, since("Approved", 0), since("Denied", overHour)),
	"approved over an hour, failed":   old(month, approvedFailed, since("Approved", 2*overHour), since("Failed", underHour)),
	"approved over a day, failed": deviates(old(month, gone, since("Approved", overDay), since("Failed", underHour)),
		"failed-alone", approvedFailed, ""),
	"denier's clock is behind": deviates(with(old(0, gone, since("Denied", overHour)), func(r *row) { r.stored = false }),
		"decision-time", denied, ""),
	"denied, due in a moment":        {user: stranger, conditions: now("Denied"), want: denied, deviation: "on-time", ours: gone, live: true},
	"issued, under an hour":          issued(valid, old(month, approvedIssued, since("Approved", underHour))),
	"issued, over an hour":           issued(valid, old(month, gone, since("Approved", overHour))),
	"issued and ended":               issued(ended, old(time.Minute, gone, since("Approved", 0))),
	"issued and ended, no time":      issued(ended, old(time.Minute, gone, timeless)),
	"issued and unparsable":          issued(unparsable, old(month, approvedIssued, since("Approved", 0))),
	"issued, never approved":         issued(valid, old(underDay, "Issued")),
	"issued, never approved, old":    issued(valid, old(overDay, gone)),
	"ended, never approved":          issued(ended, old(underDay, "Issued")),
	"ended, denied":                  issued(ended, old(month, "Denied Issued", since("Denied", 0))),
	"ended, then garbage":            issued(slices.Concat(ended, unparsable), old(0, gone, since("Approved", 0))),
	"garbage, then ended":            issued(slices.Concat(unparsable, ended), old(month, approvedIssued, since("Approved", 0))),
	"another block, then ended":      issued(otherBlockFirst(ended), old(month, approvedIssued, since("Approved", 0))),
	"foreign condition, under a day": old(underDay, "Example", since("Example", month)),
	"foreign condition, over a day":  deviates(old(25*time.Hour, "Example", since("Example", month)), "foreign-conditions", gone, ""),
	"foreign condition and approved": old(month, "Example Approved", since("Example", month), since("Approved", underHour)),
}
