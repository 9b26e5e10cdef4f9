package manifests

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestManagerHasAShareOfItsOwn checks, as the manager, by which FlowSchema a real API server handles its requests.
// Reviews of requesters must use config/priority-and-fairness. TokenReviews, which any pod can cause, must use
// another FlowSchema.
func TestManagerHasAShareOfItsOwn(t *testing.T) {
	ctx := t.Context()
	all := kustomize(t, "priority-and-fairness")
	applyAll(t, all)
	t.Cleanup(func() {
		for _, obj := range all {
			_ = admin.Delete(context.Background(), obj)
		}
	})
	own := string(all["FlowSchema /"+common].GetUID())
	var taken string
	cfg := impersonating(account+common, "system:serviceaccounts")
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kit.RoundTrip(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				taken = response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")
			}
			return response, err
		})
	})
	manager := kit.ClientOf(t, cfg)
	kit.Eventually(t, "the FlowSchema of a SubjectAccessReview", func(ctx context.Context) error {
		_ = manager.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "a"}}) // denied
		if taken != own || own == "" {
			return fmt.Errorf("%q, want %s", taken, own)
		}
		return nil
	})
	_ = manager.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "a"}})
	if taken == "" || taken == own {
		t.Errorf("a TokenReview is taken by FlowSchema %q, as the manager's writes are", taken)
	}
}
