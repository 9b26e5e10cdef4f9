package approver

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// servingFacts holds what is known about a request for a serving certificate, beside its content.
type servingFacts struct {
	// Found is the entry of the strongest source that knows the node. Its Entry is nil if no source knows the node.
	inventory.Found
	// unavailable says why facts are missing, or is empty.
	unavailable string
	names       []nameFacts // in the order of the request
}

// nameFacts holds what is known about a name or address in a request.
type nameFacts struct {
	san san.SAN
	// reserved says why the value can never belong to a node. taken names the Service that has the value now. apiServer
	// says how the API servers use it, for example as an endpoint.
	reserved, taken, apiServer string

	// contested describes the owner of a better claim: a machine or a row. contest holds the claims of other Nodes.
	contested string
	contest   inventory.Contest
	// unpublished reports that several nodes may have it and that this node's Node does not report it.
	unpublished bool
}

// fault records that err prevents a decision. It returns err if the request waits for an answer.
func (f *servingFacts) fault(err error) error {
	if isWaiting(err) {
		return err
	}
	f.unavailable = err.Error()
	return nil
}

// judgeServing judges req step by step, and stops at the first step with a violation. It calls lookUp after req itself
// has passed. It calls compareClaims last, because that takes longest. Both functions add to the facts.
func judgeServing(req *csr.Request, lookUp, compareClaims func(*servingFacts) error) (Decision, error) {
	if violations := checkServing(req); len(violations) > 0 {
		return refuse(req, violations), nil
	}
	facts := &servingFacts{}
	if err := lookUp(facts); err != nil {
		return Decision{}, err
	}
	if violations := facts.checkReserved(); len(violations) > 0 {
		return refuse(req, violations), nil
	}
	if violations := facts.checkOwned(req.NodeName()); len(violations) > 0 {
		return refuse(req, violations), nil
	}
	if err := compareClaims(facts); err != nil {
		return Decision{}, err
	}
	if violations := facts.checkClaims(req.NodeName()); len(violations) > 0 {
		return refuse(req, violations), nil
	}
	return Decision{Rule: "kubelet-serving", Result: verdict.Approve.Because("AutoApproved",
		"Auto approving kubelet serving certificate: according to %s, every name belongs to the node.", facts.Source)}, nil
}

// checkServing returns the violations in the content of req. It checks the three rules of the TLS bootstrapping
// document for kubernetes.io/kubelet-serving, each exactly.
func checkServing(req *csr.Request) []verdict.Result {
	var found []verdict.Result
	deny := func(broken bool, reason, format string, args ...any) {
		if broken {
			found = append(found, verdict.Deny.Because(reason, format, args...))
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
	isName := func(name string) bool { return san.CheckDNSName(name, true) == nil }
	invalid := slices.DeleteFunc(slices.Clone(req.Cert.DNSNames), isName)
	deny(len(invalid) > 0, "NameNotPermitted",
		"%+q are neither DNS names nor canonical IP addresses", csr.ShortenAll(invalid))
	ambiguous := slices.DeleteFunc(slices.Clone(req.Cert.DNSNames), isHostName)
	deny(len(ambiguous) > 0 && len(invalid) == 0, "UnexpectedContent",
		"%q are not host names", csr.ShortenAll(ambiguous))
	deny(len(req.Cert.DNSNames)+len(req.Cert.IPAddresses) == 0, "SANMissing",
		"the request has no DNS name and no IP address")
	return found
}

// isHostName reports whether name is an address, or a host name (RFC 1123) that no program parses as an address.
// checkReserved handles wildcards.
func isHostName(name string) bool {
	if name = san.Parse(strings.TrimPrefix(name, "*.")).Name; name == "" {
		return true
	}
	lastLabel := name[strings.LastIndex(name, ".")+1:]
	return len(validation.IsDNS1123Subdomain(name)) == 0 && strings.Trim(lastLabel, "0123456789") != ""
}

// checkReserved returns the names that no node can have.
func (f *servingFacts) checkReserved() []verdict.Result {
	var reserved []verdict.Result
	for _, each := range f.names {
		switch {
		case each.reserved != "":
			reserved = append(reserved, verdict.Deny.Because("SANReserved",
				"%s is %s, which no node can have", each.san, each.reserved))
		case each.taken != "":
			reserved = append(reserved, verdict.Wait.Because("SANReserved",
				"%s is a name or an address of %s, which no node can have", each.san, each.taken))
		case each.apiServer != "":
			reserved = append(reserved, verdict.Wait.Because("SANReserved",
				"%s is a name or an address of the API server (%s), which no node can have: "+
					"if one runs on this node, add the node to approval.kubeletServing.apiServerNodes",
				each.san, each.apiServer))
		}
	}
	return reserved
}

// checkOwned returns why the names do not belong to node, according to the source that knows the node.
func (f *servingFacts) checkOwned(node string) []verdict.Result {
	wait := func(reason, format string, args ...any) []verdict.Result {
		return []verdict.Result{verdict.Wait.Because(reason, format, args...)}
	}
	switch {
	case f.unavailable != "":
		return f.unknown(node)
	case f.Entry == nil:
		return wait("NodeNotFound", "no source knows node %q", csr.Shorten(node))
	case f.Bound != "" && f.Bound != node:
		return wait("SANNotOwned", "%s is node %q, so nothing belongs to node %q",
			f.Source, csr.Shorten(f.Bound), csr.Shorten(node))
	case f.Empty():
		return wait("AddressNotPublished", "%s has no names and no addresses yet", f.Source)
	}
	var foreign []string
	for _, each := range f.names {
		if !f.Owns(each.san) {
			foreign = append(foreign, each.san.String())
		}
	}
	if len(foreign) > 0 {
		return wait("SANNotOwned", "%q do not belong to the node: %s has %s", csr.ShortenAll(foreign), f.Source, f.Entry)
	}
	return nil
}

// unknown returns the violation that facts are missing.
func (f *servingFacts) unknown(node string) []verdict.Result {
	return []verdict.Result{verdict.Wait.Because("InventoryUnavailable",
		"it is unknown what belongs to node %q: %s", csr.Shorten(node), f.unavailable)}
}

// checkClaims returns the names that other nodes claim too.
func (f *servingFacts) checkClaims(node string) []verdict.Result {
	if f.unavailable != "" {
		return f.unknown(node)
	}
	var found []verdict.Result
	wait := func(reason, format string, args ...any) {
		found = append(found, verdict.Wait.Because(reason, format, args...))
	}
	for _, each := range f.names {
		switch {
		case each.contested != "":
			wait("SANContested", "%s is claimed by node %q and by %s, which has the better claim",
				each.san, csr.Shorten(node), each.contested)
		case each.contest.Better != "":
			wait("SANContested", "%s is claimed by node %q and by Node %s, which has the better claim",
				each.san, csr.Shorten(node), each.contest.Better)
		case each.contest.Contested():
			wait("SANContested", "%s", disputed(node, each.san, each.contest))
		case each.unpublished:
			wait("AddressNotPublished", "%s may belong to several nodes, according to %s, but Node %q does not report it",
				each.san, f.Source, csr.Shorten(node))
		}
	}
	return found
}

// disputed returns why no node gets name for now, and the fix.
func disputed(node string, name san.SAN, contest inventory.Contest) string {
	node = csr.Shorten(node)
	switch {
	case contest.LeftOut != nil:
		return fmt.Sprintf("Node %q is left out of the comparison, so what it reports does not count: %s; "+
			"find out what runs on it, or describe the node in a Machine, a static row or a webhook",
			node, contest.LeftOut)
	case contest.Twice != "":
		return fmt.Sprintf("%s belongs to node %q alone and to Node %s alone, according to the same source, "+
			"so neither gets it: correct the source, or delete the Node of a replaced machine",
			name, node, contest.Twice)
	}
	// This row permits name for all nodes.
	row := fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}"], addresses: [%q, CIDR of the nodes]}`, name)
	if name.Name != "" {
		row = fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}", %q], addresses: [CIDR of the nodes]}`,
			csr.Shorten(name.Name))
	}
	if contest.Reporters > 2 {
		return fmt.Sprintf("%s is reported by %d Nodes, for example %q and %s, so none of them gets it: "+
			"if they share it, add the row %s to a static source before the other sources",
			name, contest.Reporters, node, contest.Equal[0], row)
	}
	return fmt.Sprintf("%s is claimed by node %q and by Node %s with equal claims, so neither gets it: "+
		"delete the Node of a replaced machine, or name the owner in a Machine, a static row or a webhook; "+
		"if they share it, add the row %s to a static source before the other sources",
		name, node, contest.Equal[0], row)
}

// refuse combines all violations of req in one Decision. Its reason is the first violation's. If a violation is a
// Deny, the Decision is a Deny with that violation's reason. If only the configuration prevents the request, the
// advice names the configuration.
func refuse(req *csr.Request, violations []verdict.Result) Decision {
	result := verdict.Result{Verdict: verdict.Wait, Reason: violations[0].Reason}
	sentences := make([]string, len(violations))
	configurable := true
	for i, each := range violations {
		sentences[i] = each.Message
		if each.Verdict != verdict.Deny {
			continue
		}
		if result.Verdict != verdict.Deny {
			result.Verdict, result.Reason = verdict.Deny, each.Reason
		}
		configurable = configurable && ByConfiguration(each.Reason)
	}
	advice := "the request is checked again when this changes"
	switch {
	case result.Verdict == verdict.Deny && configurable:
		advice = "a new request is needed, or a configuration that permits this one"
	case result.Verdict == verdict.Deny:
		advice = "a new request is needed"
	}
	result.Message = fmt.Sprintf("the request for signer %s is not approved: %s; %s",
		req.SignerName, strings.Join(sentences, "; "), advice)
	return Decision{Result: result}
}
