package approver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Decision is what the approver says of a request. Rule names the recogniser that approved it, if any. Pending reports
// that the request waits for an answer that is on its way: then nothing has been decided.
type Decision struct {
	verdict.Result
	Rule    string
	Pending bool
}

// Rule says how requests of one signer are judged: by their shape, then by asking for the permission of each
// recogniser that knows them, in order; or by Judge, if that is set.
type Rule struct {
	SignerName  string
	Shape       func(*csr.Request) error
	Recognisers []Recogniser
	Judge       Judge

	// needsServices and needsLeases tell what else of an Inventory must run for Judge and the Gates.
	needsServices, needsLeases bool
}

// Recogniser matches one kind of requester, and names the permission that this requester needs.
type Recogniser struct {
	Name       string
	Matches    func(*csr.Request) bool
	Permission authorizationv1.ResourceAttributes
	// Gate, if set, comes before the question for the permission, and Confirm after it. Their decisions stand unless they
	// have no reason.
	Gate, Confirm Gate
	// Message is the message of the Approved condition.
	Message string
}

// Asks is the permission in words.
func (r Recogniser) Asks() string {
	what := r.Permission
	return fmt.Sprintf("%s %s/%s (API group %s)", what.Verb, what.Resource, what.Subresource, what.Group)
}

// review is the part of the judgement before anybody is asked: either a final decision or the recognisers to ask for.
func (r Rule) review(req *csr.Request) ([]Recogniser, Decision) {
	if err := r.Shape(req); err != nil {
		return nil, Decision{Result: verdict.Deny.Because("ShapeMismatch",
			"not a request that signer %s may sign: %v; a new request is needed", req.SignerName, err)}
	}
	var recognisers []Recogniser
	for _, recogniser := range r.Recognisers {
		if recogniser.Matches(req) {
			recognisers = append(recognisers, recogniser)
		}
	}
	if len(recognisers) == 0 {
		return nil, boundElsewhere(req)
	}
	return recognisers, Decision{}
}

// looksUp says whether what is known of nodes matters.
func (r Rule) looksUp() bool {
	return r.Judge != nil || slices.ContainsFunc(r.Recognisers, func(each Recogniser) bool { return each.Gate != nil })
}

func approved(by Recogniser) Decision {
	return Decision{
		Result: verdict.Result{Verdict: verdict.Approve, Reason: "AutoApproved", Message: by.Message}, Rule: by.Name,
	}
}

// notAuthorized is the decision when every review said no.
func notAuthorized(req *csr.Request, asked []Recogniser) Decision {
	wanted := make([]string, len(asked))
	for i, recogniser := range asked {
		wanted[i] = recogniser.Asks()
	}
	return Decision{Result: verdict.Wait.Because("NotAuthorized",
		"user %q with groups %q asks for subject %q but may not %s: if this requester is to join nodes, "+
			"bind a ClusterRole with that permission to it; looked at again within a minute",
		csr.Shorten(req.Requester.Username), csr.ShortenAll(req.Requester.Groups), req.SubjectText(),
		strings.Join(wanted, " or "))}
}

// unread is the Decision about a request that csr.Limits.Parse returns err for.
func unread(err error) Decision {
	refused := (*csr.Refused)(nil)
	if !errors.As(err, &refused) {
		return Decision{Result: verdict.Wait.Because("InternalError", "%s", csr.Fault(err))}
	}
	remedy := "a new request is needed"
	if ByConfiguration(refused.Reason) {
		remedy += ", or a configuration that permits this one"
	}
	return Decision{Result: verdict.Deny.Because(refused.Reason, "%s; %s", refused.Message, remedy)}
}

// isWaiting reports whether err means that an answer is on its way.
func isWaiting(err error) bool {
	waiting := (*pending.Waiting)(nil)
	return errors.As(err, &waiting)
}

// ByConfiguration reports whether a denial for reason depends on the configuration: another one may approve the same
// request.
func ByConfiguration(reason string) bool {
	return reason == "SANReserved" || reason == "RequestTooLarge"
}

// NodeClient is the rule for kubelet client certificates, as KEP-266 and the TLS bootstrapping document describe it
// and kube-controller-manager applies it (pkg/controller/certificates/approver/sarapprove.go): a node may renew its
// own certificate, and whoever is trusted to bootstrap may ask for any node's. A node that may not renew is tried as
// a bootstrapper too. Only a bootstrap token that is bound to a node is not good for another one.
func NodeClient() Rule {
	return Rule{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Shape:      csr.KubeletClientShape,
		Recognisers: []Recogniser{
			{
				Name:       "selfnodeclient",
				Matches:    func(req *csr.Request) bool { return req.Requester.Username == req.Cert.Subject.CommonName },
				Permission: createPermission("selfnodeclient"),
				Message:    "Auto approving self kubelet client certificate after SubjectAccessReview.",
			},
			{
				Name:       "nodeclient",
				Matches:    func(req *csr.Request) bool { return bindingOf(req) != boundToAnother },
				Permission: createPermission("nodeclient"),
				Message:    "Auto approving kubelet client certificate after SubjectAccessReview.",
			},
		},
	}
}

func createPermission(subresource string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{
		Group:       certificatesv1.GroupName,
		Resource:    "certificatesigningrequests",
		Verb:        "create",
		Subresource: subresource,
		Version:     "*",
	}
}
