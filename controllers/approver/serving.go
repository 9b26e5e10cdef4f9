package approver

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// oddNames are those that are neither the name of a host (RFC 1123) nor an address: what looks like another name to
// somebody else must not be judged by how it looks to us. A wildcard is left to what is reserved.
func oddNames(names []string) []string {
	var odd []string
	for _, name := range names {
		san := inventory.ParseSAN(strings.TrimPrefix(name, "*."))
		if san.Name != "" && (len(validation.IsDNS1123Subdomain(san.Name)) > 0 || allDigits(san.Name[strings.LastIndex(san.Name, ".")+1:])) {
			odd = append(odd, name)
		}
	}
	return odd
}

// allDigits says whether a last label could be read as a part of an address.
func allDigits(label string) bool { return strings.Trim(label, "0123456789") == "" }

// servingFacts are what is known about a request for a serving certificate beyond its content.
type servingFacts struct {
	// entry is what is known of the node, or nil; unavailable is why nobody can say.
	entry       *inventory.Entry
	unavailable string
	names       []sanFacts // of each name that was asked for, in order
}

// sanFacts are what is known about one name or address.
type sanFacts struct {
	san inventory.SAN
	// reserved says why nobody can have it, ever; taken which Service has it at the moment; apiServer what of the API servers
	// it is; contested who else has a better claim.
	reserved, taken, apiServer, contested string
	// contest is why other Nodes that report it stand in the way.
	contest inventory.Contest
	// unpublished is that several nodes may have it, and this one's Node does not report it.
	unpublished bool
}

// reviewServing judges what the request holds, before anything is looked up: the three rules of the TLS bootstrapping
// document for kubernetes.io/kubelet-serving, each exactly.
func reviewServing(req *csr.Request) []verdict.Result {
	var found []verdict.Result
	deny := func(broken bool, reason, format string, args ...any) {
		if broken {
			found = append(found, verdict.Deny.Because(reason, format, args...))
		}
	}
	subject := req.Cert.Subject
	deny(!req.Requester.IsNode(), "RequesterNotNode",
		"the requester is user %q with groups %q, which is no kubelet: only a node (user system:node:NAME, group system:nodes) may ask for its serving certificate",
		csr.Shorten(req.Requester.Username), csr.ShortenAll(req.Requester.Groups))
	deny(subject.CommonName != req.Requester.Username || req.NodeName() == "", "CommonNameMismatch",
		"common name %q is not the requester's user name %q", csr.Shorten(subject.CommonName), csr.Shorten(req.Requester.Username))
	deny(!slices.Equal(subject.Organization, []string{csr.NodeGroup}), "ShapeMismatch",
		"organization is %q, and must be exactly system:nodes", csr.ShortenAll(subject.Organization))
	deny(!req.HasServingUsages(), "UsagesNotPermitted",
		"usages are %q, and must be digital signature and server auth, with or without key encipherment", req.Usages)
	deny(len(req.Cert.EmailAddresses) > 0, "SANTypeNotPermitted", "e-mail addresses %q are not permitted", csr.ShortenAll(req.Cert.EmailAddresses))
	deny(len(req.Cert.URIs) > 0, "SANTypeNotPermitted", "%d URI(s) are not permitted", len(req.Cert.URIs))
	unexpected := slices.Concat(req.OtherSubject(), req.Dropped)
	deny(len(unexpected) > 0, "UnexpectedContent", "it holds what no kubelet asks for: %q", csr.ShortenAll(unexpected))
	names := len(req.Cert.DNSNames) + len(req.Cert.IPAddresses)
	impossible := slices.DeleteFunc(slices.Clone(req.Cert.DNSNames), func(name string) bool { return ca.CheckDNSName(name, true) == nil })
	deny(len(impossible) > 0, "NameNotPermitted", "%+q are neither DNS names nor canonical IP addresses", csr.ShortenAll(impossible))
	odd := oddNames(req.Cert.DNSNames)
	deny(len(odd) > 0 && len(impossible) == 0, "UnexpectedContent", "%q are no names of hosts", csr.ShortenAll(odd))
	deny(names == 0, "SANMissing", "it asks for no DNS name and no IP address")
	return found
}

// judgeServing judges a request that reviewServing has nothing against.
func judgeServing(req *csr.Request, facts servingFacts) Decision {
	violations := reviewServing(req)
	if len(violations) == 0 {
		violations = judgeNames(req.NodeName(), facts)
	}
	if len(violations) > 0 {
		return refused(req, violations)
	}
	return Decision{Rule: "kubelet-serving", Result: verdict.Approve.Because("AutoApproved",
		"Auto approving kubelet serving certificate: every name belongs to the node, says %s.", facts.entry.Source)}
}

func judgeNames(node string, facts servingFacts) []verdict.Result {
	var found []verdict.Result
	for _, each := range facts.names {
		switch {
		case each.reserved != "":
			found = append(found, verdict.Deny.Because("SANReserved", "%s is %s, which no node can have", each.san, each.reserved))
		case each.taken != "":
			found = append(found, verdict.Wait.Because("SANReserved", "%s is a name or an address of %s, which no node can have", each.san, each.taken))
		case each.apiServer != "":
			found = append(found, verdict.Wait.Because("SANReserved", "%s is a name or an address of the API server (%s), which no node can have: if one runs on this node, name the node in approval.kubeletServing.apiServerNodes", each.san, each.apiServer))
		}
	}
	switch {
	case len(found) > 0:
		return found
	case facts.unavailable != "":
		return []verdict.Result{verdict.Wait.Because("InventoryUnavailable", "what belongs to node %q can't be found out: %s", csr.Shorten(node), facts.unavailable)}
	case facts.entry == nil:
		return []verdict.Result{verdict.Wait.Because("NodeNotFound", "no source knows node %q", csr.Shorten(node))}
	case facts.entry.Bound != "" && facts.entry.Bound != node:
		return []verdict.Result{verdict.Wait.Because("SANNotOwned", "nothing belongs to node %q: %s has become node %q", csr.Shorten(node), facts.entry.Source, csr.Shorten(facts.entry.Bound))}
	case facts.entry.Empty():
		return []verdict.Result{verdict.Wait.Because("AddressNotPublished", "%s has no names and no addresses yet", facts.entry.Source)}
	}
	return judgeOwnership(node, facts)
}

func judgeOwnership(node string, facts servingFacts) []verdict.Result {
	var found []verdict.Result
	var foreign []string
	for _, each := range facts.names {
		switch {
		case !facts.entry.Owns(each.san):
			foreign = append(foreign, each.san.String())
		case each.contested != "":
			found = append(found, verdict.Wait.Because("SANContested", "%s is claimed by node %q and by %s, which has the better claim", each.san, csr.Shorten(node), each.contested))
		case each.contest.Better != "":
			found = append(found, verdict.Wait.Because("SANContested", "%s is claimed by node %q and by Node %s, which has the better claim", each.san, csr.Shorten(node), each.contest.Better))
		case each.contest.Contested():
			found = append(found, verdict.Wait.Because("SANContested", "%s", disputed(node, each.san, each.contest)))
		case each.unpublished:
			found = append(found, verdict.Wait.Because("AddressNotPublished", "%s may be several nodes', says %s, and Node %q does not report it", each.san, facts.entry.Source, csr.Shorten(node)))
		}
	}
	if len(foreign) > 0 {
		found = append([]verdict.Result{verdict.Wait.Because("SANNotOwned", "%q do not belong to the node: %s has %s", csr.ShortenAll(foreign), facts.entry.Source, facts.entry)}, found...)
	}
	return found
}

// adviceOf says what helps against what is denied: only the requester, or the configuration, which reserves names.
func adviceOf(violations []verdict.Result) string {
	for _, each := range violations {
		if each.Verdict == verdict.Deny && !ByConfiguration(each.Reason) {
			return "a new request is needed"
		}
	}
	return "a new request is needed, or a configuration that permits this one"
}

// refused is the decision of all violations together: the first one's reason, and Deny if one of them is for good.
func refused(req *csr.Request, violations []verdict.Result) Decision {
	decision := Decision{Result: verdict.Result{Verdict: verdict.Wait, Reason: violations[0].Reason}}
	sentences := make([]string, len(violations))
	for i, each := range violations {
		sentences[i] = each.Message
		if each.Verdict == verdict.Deny && decision.Verdict != verdict.Deny {
			decision.Verdict, decision.Reason = verdict.Deny, each.Reason
		}
	}
	advice := "it is looked at again when that changes"
	if decision.Verdict == verdict.Deny {
		advice = adviceOf(violations)
	}
	decision.Message = fmt.Sprintf("not a request that signer %s may be asked for: %s; %s", req.SignerName, strings.Join(sentences, "; "), advice)
	return decision
}
