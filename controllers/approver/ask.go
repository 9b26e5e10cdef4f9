package approver

import (
	"context"
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Judge decides about a request. An error means that it could not find out.
type Judge func(context.Context, *csr.Request) (Decision, error)

// ask judges req by rule.
func (r *Reconciler) ask(ctx context.Context, rule *Rule, req *csr.Request) (Decision, error) {
	if rule.Judge != nil {
		return rule.Judge(ctx, req)
	}
	recognisers, decision := rule.review(req)
	if decision.Verdict != Ignore {
		return decision, nil
	}
	for _, recogniser := range recognisers {
		if recogniser.Gate != nil {
			if decision, err := recogniser.Gate(ctx, req); err != nil || decision.Reason != "" {
				return decision, err
			}
		}
		allowed, err := r.Authorizer.Allowed(ctx, req.Requester, recogniser.Permission)
		if err != nil {
			return Decision{}, fmt.Errorf("review whether the requester may %s: %w", recogniser.Name, err)
		}
		if allowed {
			return approved(recogniser), nil
		}
	}
	return notAuthorized(req, recognisers), nil
}
