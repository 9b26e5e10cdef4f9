// Package authz asks the API server whether a requester may do something. It decides nothing itself.
package authz

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Authorizer reports whether a requester may perform an action. An error means "unknown, ask again", never "no".
type Authorizer interface {
	Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error)
}

// Func is a function that implements Authorizer.
type Func func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error)

// Allowed calls f.
func (f Func) Allowed(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	return f(ctx, who, what)
}

// SubjectAccess asks the API server with a SubjectAccessReview. It reads only status.allowed, as
// kube-controller-manager does (pkg/controller/certificates/approver/sarapprove.go, authorize).
type SubjectAccess struct{ Client client.Client }

// Allowed creates the SubjectAccessReview.
func (s SubjectAccess) Allowed(
	ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes,
) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(who.Extra))
	for key, values := range who.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               who.Username,
			UID:                who.UID,
			Groups:             who.Groups,
			Extra:              extra,
			ResourceAttributes: &what,
		},
	}
	if err := s.Client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	return review.Status.Allowed, nil
}
