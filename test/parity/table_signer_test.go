package parity

import (
	"net"
	"net/url"
	"time"
)

var justApproved = conditions(since("Approved", 0))

var (
	client  = row{user: stranger, conditions: justApproved, want: approvedIssued}
	serving = row{
		signer: kubeletServing, subject: nodeName("n1"), user: stranger, usages: usages("digital signature", "server auth"),
		names: sans("n1.example.org"), conditions: justApproved, want: approvedIssued,
	}
	byHand = with(node, func(r *row) { r.user, r.conditions = stranger, justApproved })
	// legacy can't be created through the API any more, see testCreation. Ours does not serve its signer.
	legacy = deviates(row{signer: legacyUnknown, stored: true, user: stranger, conditions: justApproved, want: approvedIssued},
		"legacy-unknown", approvedOnly)
)

// failed returns base with a change that its signer refuses in KCM's words.
func failed(base row, change func(*row)) row {
	return with(base, func(r *row) {
		r.want = approvedFailed
		if r.subject != nil {
			copied := *r.subject
			r.subject = &copied
		}
	}, change)
}

// signerRows test which requests are signed, and the messages of the others.
var signerRows = map[string]row{
	"client":                          with(client, func(r *row) { r.use = true }),
	"client, with key encipherment":   with(client, func(r *row) { r.usages = usages("key encipherment", "digital signature", "client auth") }),
	"client, client auth only":        with(client, func(r *row) { r.usages = usages("client auth") }),
	"client, all kinds of names":      with(client, func(r *row) { r.names = allNames }),
	"client, not approved":            with(client, func(r *row) { r.conditions, r.want = nil, untouched }),
	"client, denied":                  with(client, func(r *row) { r.conditions, r.want = conditions(since("Denied", 0)), denied }),
	"client, server auth more":        failed(client, func(r *row) { r.usages = usages("client auth", "server auth", "any") }),
	"client, any first":               failed(client, func(r *row) { r.usages = usages("any", "client auth", "server auth") }),
	"client, signing":                 failed(client, func(r *row) { r.usages = usages("signing", "client auth") }),
	"client, no client auth":          failed(client, func(r *row) { r.usages = usages("digital signature", "key encipherment") }),
	"client, unknown usage":           failed(client, func(r *row) { r.stored = true; r.usages = usages("client auth", "unknown") }),
	"kubelet client by hand":          byHand,
	"kubelet client, organization":    failed(byHand, func(r *row) { r.subject.Organization = nil }),
	"kubelet client, system:masters":  failed(byHand, func(r *row) { r.subject.Organization = []string{"system:masters"} }),
	"kubelet client, two groups":      failed(byHand, func(r *row) { r.subject.Organization = append(r.subject.Organization, "more") }),
	"kubelet client, DNS":             failed(byHand, func(r *row) { r.names = sans("n1") }),
	"kubelet client, DNS and email":   failed(byHand, func(r *row) { r.names = allNames }),
	"kubelet client, email":           failed(byHand, func(r *row) { r.names.EmailAddresses = []string{"a@example.org"} }),
	"kubelet client, email and IP":    failed(byHand, func(r *row) { r.names = allNames; r.names.DNSNames = nil }),
	"kubelet client, IP":              failed(byHand, func(r *row) { r.names.IPAddresses = []net.IP{net.IPv6loopback} }),
	"kubelet client, IP and URI":      failed(byHand, func(r *row) { r.names = allNames; r.names.DNSNames, r.names.EmailAddresses = nil, nil }),
	"kubelet client, URI":             failed(byHand, func(r *row) { r.names.URIs = []*url.URL{spiffe} }),
	"kubelet client, URI before name": failed(byHand, func(r *row) { r.names.URIs = []*url.URL{spiffe}; r.subject.CommonName = "n1" }),
	"kubelet client, common name":     failed(byHand, func(r *row) { r.subject.CommonName = "n1" }),
	"kubelet client, name and usages": failed(byHand, func(r *row) { r.subject.CommonName = "n1"; r.usages = usages("server auth") }),
	"kubelet client, group and DNS":   failed(byHand, func(r *row) { r.subject.Organization = nil; r.names = sans("n1") }),
	"kubelet client, usages":          failed(byHand, func(r *row) { r.usages = usages("digital signature", "server auth") }),
	"kubelet client, usages missing":  failed(byHand, func(r *row) { r.usages = usages("client auth", "key encipherment") }),
	"kubelet client, usage more":      failed(byHand, func(r *row) { r.usages = usages("digital signature", "client auth", "any") }),
	"serving":                         serving,
	"serving, with key encipherment":  with(serving, func(r *row) { r.usages = usages("server auth", "key encipherment", "digital signature") }),
	"serving, IP only":                with(serving, func(r *row) { r.names = ips("10.0.0.1", "fd00::1") }),
	"serving, DNS and IP":             with(serving, func(r *row) { r.names.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }),
	"serving, organization":           failed(serving, func(r *row) { r.subject.Organization = []string{"nodes"} }),
	"serving, system:masters":         failed(serving, func(r *row) { r.subject.Organization = []string{"system:masters"} }),
	"serving, no names":               failed(serving, func(r *row) { r.names.DNSNames = nil }),
	"serving, no names but URI":       failed(serving, func(r *row) { r.names.DNSNames = nil; r.names.URIs = []*url.URL{spiffe} }),
	"serving, email":                  failed(serving, func(r *row) { r.names.EmailAddresses = []string{"a@example.org"} }),
	"serving, email and URI":          failed(serving, func(r *row) { r.names = allNames }),
	"serving, URI":                    failed(serving, func(r *row) { r.names.URIs = []*url.URL{spiffe} }),
	"serving, common name":            failed(serving, func(r *row) { r.subject.CommonName = "n1" }),
	"serving, usages before name":     failed(serving, func(r *row) { r.subject.CommonName = "n1"; r.usages = usages("client auth") }),
	"serving, usages":                 failed(serving, func(r *row) { r.usages = usages("digital signature", "client auth") }),
	"serving, usages missing":         failed(serving, func(r *row) { r.usages = usages("server auth", "key encipherment") }),
	"serving, client auth more":       failed(serving, func(r *row) { r.usages = usages("digital signature", "server auth", "client auth") }),
	"legacy":                          legacy,
	"foreign signer, approved":        with(client, func(r *row) { r.signer, r.want = "example.com/client", approvedOnly }),
	"unknown Kubernetes signer":       with(client, func(r *row) { r.signer, r.want = "kubernetes.io/parity", approvedOnly }),
	"approved and failed": with(client, func(r *row) {
		r.conditions = conditions(since("Approved", 0), since("Failed", 0))
		r.want = approvedFailed
	}),
	"approved and denied": with(client, func(r *row) {
		r.stored, r.conditions, r.want = true, conditions(since("Approved", 0), since("Denied", 0)), "Approved Denied"
	}),
	"foreign condition too": with(client, func(r *row) {
		r.conditions = conditions(since("Approved", 0), since("Example", 0))
		r.want = "Approved Example Issued"
	}),

	"approved and issued before": with(client, func(r *row) { r.stored, r.endedAgo, r.conditions = true, -time.Hour, conditions(since("Approved", 0)) }),
	"approved 50 minutes ago":    with(client, func(r *row) { r.conditions = conditions(since("Approved", 50*time.Minute)) }),
}
