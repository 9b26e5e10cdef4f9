package parity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"time"
)

// The requesters. The cluster binds nodeclient to the group bootstrappers and selfnodeclient to the group renewers.
// Every user may create requests.
var (
	bootstrapper = user{name: "bootstrapper", groups: []string{"parity:bootstrappers", "system:authenticated"}}
	stranger     = user{name: "stranger", groups: []string{"system:authenticated"}}
)

func nodeUser(name string, groups ...string) user {
	return user{name: "system:node:" + name, groups: append([]string{"system:authenticated"}, groups...)}
}

// boundUser returns a user with a bootstrap token for the node whose name has that hash.
func boundUser(hash string) user {
	return user{name: "bound-" + hash, groups: append([]string{"system:bootstrappers:node:" + hash}, bootstrapper.groups...)}
}

// node is the smallest request that is approved and signed automatically.
var node = row{signer: kubeletClient, subject: nodeName("n1"), user: bootstrapper, want: approvedIssued}

var spiffe = &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/n1"}

// approverRows are kcm-semantics: which requests are approved, by which rule, and which are ignored.
var approverRows = map[string]row{
	"bootstrapper":                          node,
	"bootstrapper, with key encipherment":   with(node, func(r *row) { r.usages = usages("digital signature", "key encipherment", "client auth") }),
	"bootstrapper, usages in another order": with(node, func(r *row) { r.usages = usages("client auth", "digital signature") }),
	"bootstrapper, P-224":                   unpermitted(node, untouched),
	"bootstrapper, RSA":                     with(node, func(r *row) { r.key = "RSA-2048" }),
	"bootstrapper, empty node name":         with(node, func(r *row) { r.subject = nodeName("") }),
	"bootstrapper, short lived":             with(node, func(r *row) { r.seconds = 3600 }),
	"bootstrapper, extra extension":         with(node, func(r *row) { r.names.ExtraExtensions = askForCA }),
	"bootstrapper, other attributes": with(node, func(r *row) {
		r.subject = &pkix.Name{Organization: []string{"system:nodes"}, OrganizationalUnit: []string{"ou"}, CommonName: "system:node:n1"}
	}),
	"bootstrapper, bound to the node": with(node, func(r *row) { r.user = boundUser("676b8bb84ce7267dd520deca4811c8f10a53e636352f06987f42fe425acedd80") }),
	"bootstrapper, bound to another node": with(node, func(r *row) {
		r.user, r.deviation, r.ours = boundUser("676b8bb84ce7267d"), "bound-token", untouched
	}),
	"node renews":                               with(node, func(r *row) { r.user = nodeUser("n1", "parity:renewers") }),
	"node renews, may do both":                  with(node, func(r *row) { r.user = nodeUser("n1", "parity:renewers", "parity:bootstrappers") }),
	"node renews, refused, but a bootstrapper":  with(node, func(r *row) { r.user = nodeUser("n1", "parity:bootstrappers") }),
	"node renews, another name, may only renew": with(node, func(r *row) { r.user = nodeUser("n2", "parity:renewers"); r.want = untouched }),
	"node renews, another name, bootstrapper":   with(node, func(r *row) { r.user = nodeUser("n2", "parity:renewers", "parity:bootstrappers") }),
	"node renews, refused":                      with(node, func(r *row) { r.user = nodeUser("n1"); r.want = untouched }),
	"user name in another case":                 with(node, func(r *row) { r.user = nodeUser("N1", "parity:renewers"); r.want = untouched }),
	"stranger":                                  with(node, func(r *row) { r.user = stranger; r.want = untouched }),
	"stranger, bound by name":                   with(node, func(r *row) { r.user = user{name: "named", groups: stranger.groups} }),
	"real node renews":                          with(node, func(r *row) { r.user = nodeUser("n1", "system:nodes", "parity:renewers") }),
	"afterwards":                                with(node, func(r *row) { r.live = true }),
	"late permission":                           with(node, func(r *row) { r.user = user{name: "late", groups: stranger.groups}; r.live, r.grants = true, true }),

	"no organization":            leftAlone(func(r *row) { r.subject = &pkix.Name{CommonName: "system:node:n1"} }),
	"another organization":       leftAlone(func(r *row) { r.subject.Organization = []string{"system:masters"} }),
	"two organizations":          leftAlone(func(r *row) { r.subject.Organization = []string{"system:nodes", "more"} }),
	"organization twice":         leftAlone(func(r *row) { r.subject.Organization = []string{"system:nodes", "system:nodes"} }),
	"foreign common name":        leftAlone(func(r *row) { r.subject.CommonName = "admin" }),
	"no common name":             leftAlone(func(r *row) { r.subject.CommonName = "" }),
	"prefix within common name":  leftAlone(func(r *row) { r.subject.CommonName = "x:system:node:n1" }),
	"prefix without colon":       leftAlone(func(r *row) { r.subject.CommonName = "system:node" }),
	"DNS name":                   leftAlone(func(r *row) { r.names.DNSNames = []string{"n1"} }),
	"IP address":                 leftAlone(func(r *row) { r.names.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }),
	"email address":              leftAlone(func(r *row) { r.names.EmailAddresses = []string{"a@example.org"} }),
	"URI":                        leftAlone(func(r *row) { r.names.URIs = []*url.URL{spiffe} }),
	"otherName is not looked at": with(node, func(r *row) { r.names = x509.CertificateRequest{ExtraExtensions: otherName} }),
	"server auth":                leftAlone(func(r *row) { r.usages = usages("digital signature", "server auth") }),
	"server auth more":           leftAlone(func(r *row) { r.usages = usages("digital signature", "client auth", "server auth") }),
	"client auth only":           leftAlone(func(r *row) { r.usages = usages("client auth") }),
	"no client auth":             leftAlone(func(r *row) { r.usages = usages("digital signature", "key encipherment") }),
	"no digital signature":       leftAlone(func(r *row) { r.usages = usages("key encipherment", "client auth") }),
	"signing for digital":        leftAlone(func(r *row) { r.usages = usages("signing", "client auth") }),
	"other signer, client":       leftAlone(func(r *row) { r.signer = apiserverClient }),
	"other signer, serving":      leftAlone(func(r *row) { r.signer = kubeletServing; r.names.DNSNames = []string{"n1"} }),
	"foreign signer":             leftAlone(func(r *row) { r.signer = "example.com/client" }),
	"usage twice":                with(node, func(r *row) { r.stored = true; r.usages = usages("digital signature", "client auth", "client auth") }),
	"legacy signer":              leftAlone(func(r *row) { r.stored = true; r.signer = legacyUnknown }),
	"denied before":              with(node, func(r *row) { r.conditions = conditions(since("Denied", time.Minute)); r.want = denied }),
	"denied, then foreign": with(node, func(r *row) {
		r.conditions = conditions(since("Denied", time.Minute), since("Example", 0))
		r.want = "Denied Example"
	}),
	"approved before": with(node, func(r *row) { r.conditions = conditions(since("Approved", time.Minute)) }),
	// The API server accepts a third copy of a condition only if the request already has two.
	"approved twice and failed": with(node, func(r *row) {
		r.stored, r.want = true, "Approved Approved Failed"
		r.conditions = conditions(since("Approved", time.Minute), since("Approved", time.Minute), since("Failed", time.Minute))
	}),
	"failed, undecided, bound to another node": with(node, func(r *row) {
		r.conditions = conditions(since("Failed", time.Minute))
		r.want, r.user, r.deviation, r.ours = "Failed Approved", boundUser("676b8bb84ce7267d"), "bound-token", "Failed"
	}),
	"another condition, bound to another node": with(node, func(r *row) {
		r.conditions = conditions(since("Example", time.Minute))
		r.want, r.user, r.deviation, r.ours = "Example Approved Issued", boundUser("676b8bb84ce7267d"), "bound-token", "Example"
	}),
	"failed, undecided": with(node, func(r *row) { r.conditions = conditions(since("Failed", time.Minute)); r.want = "Failed Approved" }),
	"failed, undecided, stranger": with(node, func(r *row) {
		r.user = stranger
		r.conditions = conditions(since("Failed", time.Minute))
		r.want = "Failed"
	}),
	"foreign condition, undecided": with(node, func(r *row) {
		r.conditions = conditions(since("Example", time.Minute))
		r.want = "Example Approved Issued"
	}),
	"certificate without approval": with(node, func(r *row) { r.stored, r.endedAgo, r.want = true, -time.Hour, "Issued" }),
}

// leftAlone returns a bootstrapper's request, changed by change, that is not approved.
func leftAlone(change func(*row)) row {
	return with(node, func(r *row) { r.subject = nodeName("n1"); r.want = untouched }, change)
}
