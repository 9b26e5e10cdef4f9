// Package kubeletclient judges requests for kubelet client certificates, for the signer
// kubernetes.io/kube-apiserver-client-kubelet (KEP-266, and "TLS bootstrapping" in the Kubernetes documentation). The rule is
// kube-controller-manager's (pkg/controller/certificates/approver/sarapprove.go) with one exception: a bootstrap token that
// is bound to a node is refused for any other node.
package kubeletclient

import (
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

// Permission is a permission by which a request is approved. Its text is the subresource of certificatesigningrequests on
// which the requester needs the verb create.
type Permission string

const (
	// SelfNodeClient permits a node to renew its own certificate.
	SelfNodeClient Permission = "selfnodeclient"
	// NodeClient permits a bootstrapper to request the first certificate of any node.
	NodeClient Permission = "nodeclient"
)

// Attributes returns what a SubjectAccessReview of the permission asks.
func (p Permission) Attributes() authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{
		Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests", Subresource: string(p), Verb: "create",
	}
}

// String describes the permission in words.
func (p Permission) String() string {
	return fmt.Sprintf("create certificatesigningrequests/%s (API group %s)", string(p), certificatesv1.GroupName)
}

// approved has the message of the Approved condition for each permission. They are kube-controller-manager's.
var approved = map[Permission]string{
	SelfNodeClient: "Auto approving self kubelet client certificate after SubjectAccessReview.",
	NodeClient:     "Auto approving kubelet client certificate after SubjectAccessReview.",
}

// Policy says which permissions count. The zero value is kube-controller-manager's rule.
type Policy struct {
	// RenewOnly ends a request of a node for itself if it may not renew. Otherwise such a node is tried as a bootstrapper too.
	RenewOnly bool
}

// Permissions returns the permissions of which the requester needs one, in the order in which they are reviewed. There are
// none if the request cannot be approved whatever its requester may do.
func (p Policy) Permissions(req *csr.Request) []Permission {
	var all []Permission
	if req.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || csr.KubeletClientShape(req) != nil {
		return nil
	}
	renews := req.Requester.Username == req.Cert.Subject.CommonName
	if renews {
		all = append(all, SelfNodeClient)
	}
	if !req.BoundElsewhere() && (!renews || !p.RenewOnly) {
		all = append(all, NodeClient)
	}
	return all
}

// Judge returns the decision about req. It is zero for a request for another signer. allowed holds the permissions that a SubjectAccessReview has allowed.
//
//  1. The content must be that of a kubelet.
//  2. A requester that is bound to other nodes only may not request this node.
//  3. The first of Permissions that is allowed approves the request.
func (p Policy) Judge(req *csr.Request, allowed ...Permission) judge.Decision {
	if req.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return judge.Decision{}
	}
	if err := csr.KubeletClientShape(req); err != nil {
		return judge.Deny.Because("ShapeMismatch", "the request for signer %s is not approved: %v; a new request is needed", req.SignerName, err)
	}
	permissions := p.Permissions(req)
	if len(permissions) == 0 {
		return BoundElsewhere(req)
	}
	var wanted []string
	for _, permission := range permissions {
		if slices.Contains(allowed, permission) {
			return judge.Decision{Verdict: judge.Approve, Reason: "AutoApproved", Message: approved[permission], By: string(permission)}
		}
		wanted = append(wanted, permission.String())
	}
	return judge.Wait.Because("NotAuthorized",
		"user %q with groups %q requests subject %q but may not %s: \"kubectl csr check\" names "+
			"the right that nodes lack; if they lack none, find out who made the request; the request is checked again within five minutes",
		csr.Shorten(req.Requester.Username), csr.ShortenAll(req.Requester.Groups), req.SubjectText(), strings.Join(wanted, " or "))
}

// BoundElsewhere returns the decision about a token for another node. It is final, because neither the groups nor the subject
// of a request change.
func BoundElsewhere(req *csr.Request) judge.Decision {
	return judge.Deny.Because("NotAuthorized",
		"user %q is bound to another node than %q: only a token with the group %s may request this node; a new request is needed",
		csr.Shorten(req.Requester.Username), csr.Shorten(req.NodeName()), csr.TokenGroup(req.NodeName()))
}
