// Package serving judges requests for kubelet serving certificates, for the signer kubernetes.io/kubelet-serving ("TLS
// bootstrapping", "Certificate rotation", in the Kubernetes documentation). kube-controller-manager approves none of them.
// The request must have exactly a kubelet's content, and its requester must be that kubelet. Every name and address in it
// must belong to the node.
package serving

import (
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	netutils "k8s.io/utils/net"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Policy says what no node may request.
type Policy struct {
	// Reserved holds the names and addresses that no node can have. The zero value is for the cluster domain cluster.local.
	Reserved san.Reserved
	// APIServerNodes are the nodes on which an API server runs. The API server's endpoint is such a node's own address,
	// and the node already holds the API server's key. Sources cannot add to this list.
	APIServerNodes []string
}

// Facts holds what is known about a request, beside its content. All of it must have been read: a caller that cannot read
// one of the facts waits.
type Facts struct {
	// Entry is what the strongest source that knows the node knows about it. It is nil if no source knows the node.
	Entry *inventory.Entry
	// Names holds what is known about each name and address in the request (san.Of). An entry says that all of Name was read. A
	// value without an entry is not approved.
	Names map[san.SAN]Name
}

// Name holds what is known about a name or an address in a request.
type Name struct {
	// Holders are the Nodes that report the value, or have it as their name (inventory.IsName), without the Nodes whose
	// reports do not count.
	Holders []string
	// Service is the Service that has the value as its cluster address, or as a name by which pods find it. Publisher is the
	// Service that publishes it as an external address, or as the address or name of its load balancer. Each is empty if there
	// is none.
	Service, Publisher string
	// APIServer says how the API servers use the value, for example as an endpoint. It is empty if they do not.
	APIServer string
	// Owner is the machine or the row to which a source that is stronger than that of Facts.Entry assigns the value alone. It
	// is empty if there is none (inventory.Sources.Owner).
	Owner string
}

// mostRefused bounds the names and addresses that a refusal lists, and mostCounted the number of Nodes in a message.
const mostRefused, mostCounted = 10, 10

// Judge returns the decision about req. It is zero for a request for another signer. It stops at the first step with a
// violation.
//
//  1. The content is exactly that of a kubelet, and the requester is this kubelet (Check).
//  2. No name is reserved (Check).
//  3. A source knows the node, and names or addresses of it.
//  4. Each name belongs to the node (checkName).
func (p Policy) Judge(req *csr.Request, facts Facts) judge.Decision {
	if req.SignerName != certificatesv1.KubeletServingSignerName {
		return judge.Decision{}
	}
	if refused := p.Check(req); refused.Made() {
		return refused
	}
	if why := checkEntry(req.NodeName(), facts.Entry); why.Made() {
		return refuse(req, why)
	}
	if why := p.checkNames(req, facts); len(why) > 0 {
		return refuse(req, why...)
	}
	return judge.Decision{Verdict: judge.Approve, Reason: "AutoApproved", By: "kubelet-serving", Message: fmt.Sprintf(
		"Auto approving kubelet serving certificate: according to %s, every name belongs to the node.", facts.Entry.Source)}
}

// Check returns why req is refused whatever is known about the node, or the zero Decision.
func (p Policy) Check(req *csr.Request) judge.Decision {
	if why := checkContent(req); len(why) > 0 {
		return refuse(req, why...)
	}
	if why := p.checkReserved(req); len(why) > 0 {
		return refuse(req, why...)
	}
	return judge.Decision{}
}

// checkContent returns the violations in the content of req. It checks the three rules of the TLS bootstrapping
// document for kubernetes.io/kubelet-serving, each exactly.
func checkContent(req *csr.Request) []judge.Decision {
	var found []judge.Decision
	deny := func(broken bool, reason, format string, args ...any) {
		if broken {
			found = append(found, judge.Deny.Because(reason, format, args...))
		}
	}
	subject := req.Cert.Subject
	deny(!req.Requester.IsNode(), "RequesterNotNode", "user %q with groups %q is not a kubelet: "+
		"only a node (user system:node:NAME, group system:nodes) may request its serving certificate",
		csr.Shorten(req.Requester.Username), csr.ShortenAll(req.Requester.Groups))
	deny(subject.CommonName != req.Requester.Username || req.NodeName() == "", "CommonNameMismatch",
		"common name %q is not the requester's user name %q",
		csr.Shorten(subject.CommonName), csr.Shorten(req.Requester.Username))
	deny(!slices.Equal(subject.Organization, []string{csr.NodeGroup}), "ShapeMismatch",
		"organization is %q, but must be exactly system:nodes", csr.ShortenAll(subject.Organization))
	deny(!req.HasServingUsages(), "UsagesNotPermitted",
		"usages are %q, but must be digital signature and server auth, with or without key encipherment", req.Usages)
	wrong := req.CheckMLDSAUsages()
	deny(wrong != nil, "UsagesNotPermitted", "%v", wrong)
	deny(len(req.Cert.EmailAddresses) > 0, "SANTypeNotPermitted",
		"e-mail addresses %q are not permitted", csr.ShortenAll(req.Cert.EmailAddresses))
	deny(len(req.Cert.URIs) > 0, "SANTypeNotPermitted", "%d URI(s) are not permitted", len(req.Cert.URIs))
	unexpected := slices.Concat(req.OtherSubject(), req.Dropped)
	deny(len(unexpected) > 0, "UnexpectedContent",
		"the request has content that no kubelet requests: %q", csr.ShortenAll(unexpected))
	invalid := slices.DeleteFunc(slices.Clone(req.Cert.DNSNames), func(name string) bool { return isName(req.NodeName(), name) })
	deny(len(invalid) > 0, "NameNotPermitted", "%+q are neither DNS names nor canonical IP addresses: %s", csr.ShortenAll(invalid), otherReport)
	deny(len(req.Cert.DNSNames)+len(req.Cert.IPAddresses) == 0, "SANMissing",
		"the request has no DNS name and no IP address: %s", otherReport)
	return found
}

const (
	// otherReport says how to change what a kubelet requests: the addresses in the status of its Node.
	otherReport = "correct the addresses that the Node reports (--node-ip and --hostname-override of the kubelet, or its cloud provider)"
	// otherName says how to change the name of a Node.
	otherName = "give the node another name (--hostname-override of the kubelet, or its cloud provider)"
	// otherSetting says how to permit a value that the configuration reserves.
	otherSetting = "correct approval.kubeletServing if it is the node's"
)

// isName reports whether the kubelet of node may request name as a DNS name. If C programs read a name as an IPv4 address,
// it could be another node's: 10.1 is 10.0.0.1. Only the name of the node itself may look like that, because Kubernetes
// permits Nodes such as 666 and 10. Kubelets request a name that Kubernetes reads as an address, such as 010.0.0.1, as one.
func isName(node, name string) bool {
	value := san.Parse(name)
	own := inventory.IsName(node, value) && netutils.ParseIPSloppy(value.Name) == nil
	return san.CheckDNSName(name, true) == nil && (own || value.Name == "" || !san.IsNumeric(name))
}

// checkReserved returns the first names in req that no node can have. The last one has the fixes of all.
func (p Policy) checkReserved(req *csr.Request) []judge.Decision {
	var found []judge.Decision
	var fixes []string
	for _, value := range namesOf(req) {
		own := inventory.IsName(req.NodeName(), value)
		why, configured := p.Reserved.Why(value, own)
		answer, fix := judge.Deny, otherReport
		switch {
		case why == "" || len(found) == mostRefused:
			continue
		case configured:
			answer, fix = judge.Wait, otherSetting
		case own:
			fix = otherName
		}
		found = append(found, answer.Because("SANReserved", "%s is %s, which no node can have", shown(value), why))
		if !slices.Contains(fixes, fix) {
			fixes = append(fixes, fix)
		}
	}
	if len(found) > 0 {
		found[len(found)-1].Message += ": " + strings.Join(fixes, "; ")
	}
	return found
}

// checkEntry returns why no name belongs to node, whatever it requests, or the zero Decision.
func checkEntry(node string, entry *inventory.Entry) judge.Decision {
	switch {
	case entry == nil:
		return judge.Wait.Because("NodeNotFound",
			"no source knows node %q: register its Node, or add the node to a source of approval.inventory", csr.Shorten(node))
	case entry.Bound != "" && entry.Bound != node:
		return judge.Wait.Because("SANNotOwned", "%s is node %q, so nothing belongs to node %q: correct its status.nodeRef if that is wrong",
			entry.Source, csr.Shorten(entry.Bound), csr.Shorten(node))
	case entry.Empty():
		return judge.Wait.Because("AddressNotPublished", "%s has no names and no addresses yet: set them, or list them in a static row", entry.Source)
	}
	return judge.Decision{}
}

// checkNames returns why names in req do not belong to its node. It stops at the first name that another object has. Names
// that the source does not give to the node are listed together.
func (p Policy) checkNames(req *csr.Request, facts Facts) (found []judge.Decision) {
	var foreign []string
	var other judge.Decision
	for _, value := range namesOf(req) {
		why, owned := p.checkName(req.NodeName(), value, facts)
		if !owned {
			foreign = append(foreign, shown(value))
		}
		other = why
		if other.Made() || len(foreign) == mostRefused {
			break
		}
	}
	if len(foreign) > 0 {
		found = append(found, judge.Wait.Because("SANNotOwned", "%q do not belong to node %q: %s has %s; add them there if they are the node's",
			foreign, csr.Shorten(req.NodeName()), facts.Entry.Source, facts.Entry))
	}
	if other.Made() {
		found = append(found, other)
	}
	return found
}

// checkName returns why value does not belong to node, or the zero Decision. owned is false if the source of the node does not
// give the value to it.
//
//  1. Its facts must have been read.
//  2. No Service may have it, unless it is a name of the node.
//  3. No Service may publish it, unless a Node reports it.
//  4. An API server may have it only on one of APIServerNodes.
//  5. The inventory must give it to the node alone (inventory.Entry.Claim).
func (p Policy) checkName(node string, value san.SAN, facts Facts) (why judge.Decision, owned bool) {
	known, read := facts.Names[value]
	holders := known.Holders
	if known.APIServer != "" { // it belongs to the nodes on which an API server runs, whatever others report
		holders = slices.DeleteFunc(slices.Clone(holders), func(holder string) bool { return !slices.Contains(p.APIServerNodes, holder) })
	}
	service := known.Service
	if ofNode(node, value) {
		service = ""
	}
	if service == "" && len(holders) == 0 {
		service = known.Publisher
	}
	claim, runsAPIServer := facts.Entry.Claim(node, value, holders, known.Owner), slices.Contains(p.APIServerNodes, node)
	text, node := shown(value), csr.Shorten(node)
	switch {
	case !read:
		return judge.Wait.Because("InventoryUnavailable", "it is unknown to which objects %s belongs", text), true
	case service != "":
		return judge.Wait.Because("SANReserved", "%s is a name or an address of %s, which no node can have: "+
			"delete the Service if it is the node's", text, service), true
	case known.APIServer != "" && !runsAPIServer:
		return judge.Wait.Because("SANReserved", "%s is a name or an address of the API server (%s), which no node can have: "+
			"if one runs on this node, add the node to approval.kubeletServing.apiServerNodes", text, known.APIServer), true
	case claim.NotOwned:
		return judge.Decision{}, false
	case claim.Owner != "":
		return judge.Wait.Because("SANContested", "%s is claimed by node %q and by %s, which comes from a stronger entry: "+
			"correct that entry if it is wrong", text, node, claim.Owner), true
	case claim.Other != "":
		return judge.Wait.Because("SANContested", "%s", contested(node, value, claim)), true
	case claim.NotReported:
		return judge.Wait.Because("AddressNotPublished", "%s may belong to several nodes, according to %s, "+
			"but Node %q does not report it: add it to the Node's addresses, or list it for this node alone", text, facts.Entry.Source, node), true
	}
	return judge.Decision{}, true
}

// contested returns why no node gets value because of other Nodes, and the fix.
func contested(node string, value san.SAN, claim inventory.Claim) string {
	text := shown(value)
	switch {
	case claim.Named:
		return fmt.Sprintf("%s is claimed by node %q, and it is the name of another Node, which keeps it: "+
			"delete that Node if it is gone, or list the name for its node in a Machine, a static row or a webhook", text, node)
	case claim.Nodes > 2:
		// This row permits the value for all nodes.
		row := fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}"], addresses: [%q, CIDR of the nodes]}`, text)
		if value.Name != "" {
			row = fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}", %q], addresses: [CIDR of the nodes]}`, text)
		}
		count := fmt.Sprint(claim.Nodes)
		if claim.Nodes > mostCounted {
			count = fmt.Sprintf("more than %d", mostCounted) // a text that changes with each Node would be reported each time
		}
		return fmt.Sprintf("%s is reported by %s Nodes, for example %q and %s, so none of them gets it: "+
			"if they share it, add the row %s to a static source before the other sources", text, count, node, claim.Other, row)
	}
	return fmt.Sprintf("%s is claimed by node %q and by Node %s, so neither gets it: delete the Node of a replaced machine, "+
		"put a Node that lies on the block list, or list the value for its node in a Machine, a static row or a webhook",
		text, node, claim.Other)
}

// namesOf returns the names and addresses in req, each once.
func namesOf(req *csr.Request) []san.SAN { return san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) }

// shown returns value for a message.
func shown(value san.SAN) string { return csr.Shorten(value.String()) }

// ofNode reports whether value is the name of node, a name that begins with it and a dot, or its first label. No Service
// of that name takes it from the node: a user may give a Service and its namespace any name. The first label alone
// names a Service only in that Service's namespace. An address is none of these, even if it is the name of the node.
func ofNode(node string, value san.SAN) bool {
	node = san.CanonicalName(node)
	short, _, _ := strings.Cut(node, ".")
	return value.Name != "" && (value.Name == node || value.Name == short || strings.HasPrefix(value.Name, node+"."))
}

// refuse combines all violations of req in one Decision. Its reason is the first violation's. If a violation is a
// Deny, the Decision is a Deny with that violation's reason.
func refuse(req *csr.Request, violations ...judge.Decision) judge.Decision {
	result := judge.Decision{Verdict: judge.Wait, Reason: violations[0].Reason}
	sentences := make([]string, len(violations))
	for i, each := range violations {
		sentences[i] = each.Message
		if each.Verdict == judge.Deny && result.Verdict != judge.Deny {
			result.Verdict, result.Reason = judge.Deny, each.Reason
		}
	}
	advice := "the request is checked again when this changes, or within five minutes"
	if result.Verdict == judge.Deny {
		advice = "a new request is needed"
	}
	result.Message = fmt.Sprintf("the request for signer %s is not approved: %s; %s",
		req.SignerName, strings.Join(sentences, "; "), advice)
	return result
}
