package approver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

// Judge decides about a request. An error means that it could not find out.
type Judge func(context.Context, *csr.Request) (judge.Decision, error)

// Rule says how to judge the requests for one signer. Shape checks the content. Then the permission of each matching
// recogniser is reviewed, in order. Judge, if set, replaces both.
type Rule struct {
	SignerName  string
	Shape       func(*csr.Request) error
	Recognisers []Recogniser
	Judge       Judge
	// Policy, if set, replaces the rest by approval rules, which never deny.
	Policy *Policy

	// needsServices and needsLeases say what else the Inventory must watch for Judge and Confirm.
	needsServices, needsLeases bool
}

// Recogniser matches a kind of requester, and names the permission that this requester needs.
type Recogniser struct {
	Name       string
	Matches    func(*csr.Request) bool
	Permission authorizationv1.ResourceAttributes
	// Unreviewed skips the review of the permission: Gate and Confirm decide alone.
	Unreviewed bool
	// Gate, if set, runs before the review of the permission, and Confirm after it. Only Confirm uses the inventory. A
	// decision with a reason is final.
	Gate, Confirm Judge
	// Message is the message of the Approved condition.
	Message string
}

// pass calls j, and reports whether its answer is final. A nil Judge lets every request pass.
func (j Judge) pass(ctx context.Context, req *csr.Request) (_ judge.Decision, final bool, _ error) {
	if j == nil {
		return judge.Decision{}, false, nil
	}
	decision, err := j(ctx, req)
	return decision, err != nil || decision.Reason != "", err
}

// Asks describes the permission in words.
func (r Recogniser) Asks() string {
	what := r.Permission
	return fmt.Sprintf("%s %s/%s (API group %s)", what.Verb, what.Resource, what.Subresource, what.Group)
}

// decide judges req by Shape, and then by each matching recogniser, in order. It asks by for permissions.
func (r Rule) decide(ctx context.Context, req *csr.Request, by authz.Authorizer) (judge.Decision, error) {
	if err := r.Shape(req); err != nil {
		return judge.Deny.Because("ShapeMismatch",
			"the request for signer %s is not approved: %v; a new request is needed", req.SignerName, err), nil
	}
	var wanted []string
	for _, recogniser := range r.Recognisers {
		if !recogniser.Matches(req) {
			continue
		}
		wanted = append(wanted, recogniser.Asks())
		if decision, final, err := recogniser.Gate.pass(ctx, req); final {
			return decision, err
		}
		if !recogniser.Unreviewed {
			allowed, err := by.Allowed(ctx, req.Requester, recogniser.Permission)
			if err != nil {
				return judge.Decision{}, fmt.Errorf("review permission %s of the requester: %w", recogniser.Name, err)
			}
			if !allowed {
				continue
			}
		}
		if decision, final, err := recogniser.Confirm.pass(ctx, req); final {
			return decision, err
		}
		return judge.Decision{Verdict: judge.Approve, Reason: "AutoApproved", Message: recogniser.Message, By: recogniser.Name}, nil
	}
	if len(wanted) == 0 {
		if boundElsewhere(req) {
			return refuseElsewhere(req), nil
		}
		return judge.Decision{}, nil
	}
	return judge.Wait.Because(reasonNotAuthorized,
		"user %q with groups %q requests subject %q but may not %s: if this user may join nodes, "+
			"bind a ClusterRole with this permission to it; the request is checked again within five minutes",
		csr.Shorten(req.Requester.Username), csr.ShortenAll(req.Requester.Groups), req.SubjectText(),
		strings.Join(wanted, " or ")), nil
}

// looksUp reports whether the rule uses the inventory.
func (r Rule) looksUp() bool {
	return r.Judge != nil || slices.ContainsFunc(r.Recognisers, func(each Recogniser) bool { return each.Confirm != nil })
}

// reasonNotAuthorized is the reason of a requester that lacks a permission.
const reasonNotAuthorized = "NotAuthorized"

// unread returns the Decision about a request for which csr.Limits.Parse returned err.
func unread(err error) judge.Decision {
	refused := (*csr.Refused)(nil)
	if !errors.As(err, &refused) {
		return judge.Wait.Because("InternalError", "%s", csr.Fault(err))
	}
	advice := newRequest
	if refused.Reason == "RequestTooLarge" {
		advice += ", or a higher limit"
	}
	return judge.Deny.Because(refused.Reason, "%s; %s", refused.Message, advice)
}

// newRequest is the remedy of a Deny.
const newRequest = "a new request is needed"

// NodeClient returns the rule for kubelet client certificates, as in KEP-266 and the TLS bootstrapping document.
// kube-controller-manager applies the same rule (pkg/controller/certificates/approver/sarapprove.go). A node may renew
// its own certificate, and a bootstrapper may request any node's. A node that may not renew is tried as a bootstrapper
// too. There is one exception: a bootstrap token that is bound to a node is refused for any other node.
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
				Matches:    func(req *csr.Request) bool { return !boundElsewhere(req) },
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
