package approver

import (
	"fmt"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// servingFacts holds what is known about a request for a serving certificate, beside its content.
type servingFacts struct {
	// Found is the entry of the strongest source that knows the node. Its Entry is nil if no source knows the node.
	inventory.Found
	// of returns what is known about a requested name or address.
	of func(value san.SAN) (nameFacts, error)
}

// nameFacts holds what is known about a name or address in a request.
type nameFacts struct {
	// service names the Service that has the value now. apiServer says how the API servers use it, for example as an
	// endpoint.
	service, apiServer string
	claim              inventory.Claim
}

// mostRefused bounds the names and addresses that a refusal lists. The others are not looked up.
const mostRefused = 10

// mostCounted bounds the number of Nodes in a message.
const mostCounted = 10

// judgeServing judges req step by step, and stops at the first step with a violation. It calls lookUp after req itself
// has passed. An error of lookUp or of its facts means that a fact is missing.
func judgeServing(req *csr.Request, reserved san.Reserved, lookUp func() (servingFacts, error)) judge.Decision {
	violations := checkServing(req)
	names := san.Of(req.Cert.DNSNames, req.Cert.IPAddresses)
	if len(violations) == 0 {
		violations = checkReserved(req.NodeName(), names, reserved)
	}
	if len(violations) > 0 {
		return refuse(req, violations)
	}
	facts, err := lookUp()
	if err == nil {
		violations, err = facts.check(req.NodeName(), names)
	}
	switch {
	case err != nil:
		return refuse(req, []judge.Decision{judge.Wait.Because(unknown(err),
			"it is unknown what belongs to node %q: %v", csr.Shorten(req.NodeName()), err)})
	case len(violations) > 0:
		return refuse(req, violations)
	}
	return judge.Decision{Verdict: judge.Approve, Reason: "AutoApproved", By: "kubelet-serving", Message: fmt.Sprintf(
		"Auto approving kubelet serving certificate: according to %s, every name belongs to the node.", facts.Source)}
}

// checkServing returns the violations in the content of req. It checks the three rules of the TLS bootstrapping
// document for kubernetes.io/kubelet-serving, each exactly.
func checkServing(req *csr.Request) []judge.Decision {
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
	// otherReport tells how to change what a kubelet requests: the addresses in the status of its Node.
	otherReport = "correct the addresses that the Node reports (--node-ip and --hostname-override of the kubelet, or its cloud provider)"
	// otherName tells how to change the name of a Node.
	otherName = "give the node another name (--hostname-override of the kubelet, or its cloud provider)"
)

// isName reports whether the kubelet of node may request name as a DNS name. If C programs read a name as an IPv4 address,
// it could be another node's: 10.1 is 10.0.0.1. Only the name of the node itself may look like that, because Kubernetes
// permits Nodes such as 666 and 10. Kubelets request a name that Kubernetes reads as an address, such as 010.0.0.1, as one.
func isName(node, name string) bool {
	value := san.Parse(name)
	own := inventory.IsName(node, value) && netutils.ParseIPSloppy(value.Name) == nil
	return san.CheckDNSName(name, true) == nil && (own || value.Name == "" || !san.IsNumeric(name))
}

// checkReserved returns the first names that no node can have.
func checkReserved(node string, names []san.SAN, reserved san.Reserved) []judge.Decision {
	var found []judge.Decision
	var fixes []string
	for _, name := range names {
		own := inventory.IsName(node, name)
		why, configured := reserved.Why(name, own)
		answer, fix := judge.Deny, otherReport
		switch {
		case why == "" || len(found) == mostRefused:
			continue
		case configured:
			answer, fix = judge.Wait, "correct approval.kubeletServing if it is the node's"
		case own:
			fix = otherName
		}
		found = append(found, answer.Because("SANReserved", "%s is %s, which no node can have", shown(name), why))
		if !slices.Contains(fixes, fix) {
			fixes = append(fixes, fix)
		}
	}
	if len(found) > 0 {
		found[len(found)-1].Message += ": " + strings.Join(fixes, "; ")
	}
	return found
}

// check returns why names do not belong to node. It stops at the first name that another object has. Names that the
// source does not give to the node are listed together.
func (f servingFacts) check(node string, names []san.SAN) ([]judge.Decision, error) {
	if why := f.checkEntry(node); why.Reason != "" {
		return []judge.Decision{why}, nil
	}
	var foreign []string
	var other judge.Decision
	for _, name := range names {
		facts, err := f.of(name)
		if err != nil {
			return nil, err
		}
		if facts.claim.NotOwned && facts.service == "" && facts.apiServer == "" {
			foreign = append(foreign, shown(name))
		} else {
			other = f.checkName(node, name, facts)
		}
		if other.Reason != "" || len(foreign) == mostRefused {
			break
		}
	}
	var found []judge.Decision
	if len(foreign) > 0 {
		found = append(found, judge.Wait.Because("SANNotOwned",
			"%q do not belong to node %q: %s has %s; add them there if they are the node's",
			foreign, csr.Shorten(node), f.Source, f.Entry))
	}
	if other.Reason != "" {
		found = append(found, other)
	}
	return found, nil
}

// checkEntry returns why no name belongs to node, whatever it requests, or a Decision without a reason.
func (f servingFacts) checkEntry(node string) judge.Decision {
	switch {
	case f.Entry == nil:
		return judge.Wait.Because("NodeNotFound",
			"no source knows node %q: register its Node, or add the node to a source of approval.inventory", csr.Shorten(node))
	case f.Bound != "" && f.Bound != node:
		return judge.Wait.Because("SANNotOwned", "%s is node %q, so nothing belongs to node %q: correct its status.nodeRef if that is wrong",
			f.Source, csr.Shorten(f.Bound), csr.Shorten(node))
	case f.Empty():
		return judge.Wait.Because("AddressNotPublished", "%s has no names and no addresses yet: set them, or list them in a static row", f.Source)
	}
	return judge.Decision{}
}

// checkName returns why name does not belong to node, or a Decision without a reason.
func (f servingFacts) checkName(node string, name san.SAN, facts nameFacts) judge.Decision {
	value, node := shown(name), csr.Shorten(node)
	switch {
	case facts.service != "":
		return judge.Wait.Because("SANReserved", "%s is a name or an address of %s, which no node can have: "+
			"delete the Service if it is the node's", value, facts.service)
	case facts.apiServer != "":
		return judge.Wait.Because("SANReserved", "%s is a name or an address of the API server (%s), which no node can have: "+
			"if one runs on this node, add the node to approval.kubeletServing.apiServerNodes", value, facts.apiServer)
	case facts.claim.Owner != "":
		return judge.Wait.Because("SANContested", "%s is claimed by node %q and by %s, which comes from a stronger entry: "+
			"correct that entry if it is wrong", value, node, facts.claim.Owner)
	case facts.claim.Other != "":
		return judge.Wait.Because("SANContested", "%s", contested(node, name, facts.claim))
	case facts.claim.NotReported:
		return judge.Wait.Because("AddressNotPublished", "%s may belong to several nodes, according to %s, "+
			"but Node %q does not report it: add it to the Node's addresses, or list it for this node alone", value, f.Source, node)
	}
	return judge.Decision{}
}

// contested returns why no node gets name because of other Nodes, and the fix.
func contested(node string, name san.SAN, claim inventory.Claim) string {
	value := shown(name)
	switch {
	case claim.Named:
		return fmt.Sprintf("%s is claimed by node %q, and it is the name of another Node, which keeps it: "+
			"delete that Node if it is gone, or list the name for its node in a Machine, a static row or a webhook", value, node)
	case claim.Nodes > 2:
		// This row permits the value for all nodes.
		row := fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}"], addresses: [%q, CIDR of the nodes]}`, value)
		if name.Name != "" {
			row = fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}", %q], addresses: [CIDR of the nodes]}`, value)
		}
		count := fmt.Sprint(claim.Nodes)
		if claim.Nodes > mostCounted {
			count = fmt.Sprintf("more than %d", mostCounted) // a text that changes with each Node would be reported each time
		}
		return fmt.Sprintf("%s is reported by %s Nodes, for example %q and %s, so none of them gets it: "+
			"if they share it, add the row %s to a static source before the other sources", value, count, node, claim.Other, row)
	}
	return fmt.Sprintf("%s is claimed by node %q and by Node %s, so neither gets it: delete the Node of a replaced machine, "+
		"put a Node that lies on the block list, or list the value for its node in a Machine, a static row or a webhook",
		value, node, claim.Other)
}

// shown returns name for a message.
func shown(name san.SAN) string { return csr.Shorten(name.String()) }

// ofNode reports whether name is the name of node, a name that begins with it and a dot, or its first label. No Service
// of that name takes it from the node: a user may give a Service and its namespace any name. The first label alone
// names a Service only in that Service's namespace. An address is none of these, even if it is the name of the node.
func ofNode(node string, name san.SAN) bool {
	node = san.CanonicalName(node)
	short, _, _ := strings.Cut(node, ".")
	return name.Name != "" && (name.Name == node || name.Name == short || strings.HasPrefix(name.Name, node+"."))
}

// refuse combines all violations of req in one Decision. Its reason is the first violation's. If a violation is a
// Deny, the Decision is a Deny with that violation's reason.
func refuse(req *csr.Request, violations []judge.Decision) judge.Decision {
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
		advice = newRequest
	}
	result.Message = fmt.Sprintf("the request for signer %s is not approved: %s; %s",
		req.SignerName, strings.Join(sentences, "; "), advice)
	return result
}
