package manifests

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	schema := &flowcontrolv1.FlowSchema{}
	kit.NoError(t, admin.Get(ctx, client.ObjectKey{Name: "csr-controller-manager"}, schema))
	var taken string
	cfg := impersonating(account+"csr-controller-manager", "system:serviceaccounts")
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
		if taken != string(schema.UID) {
			return fmt.Errorf("%q, want %s", taken, schema.UID)
		}
		return nil
	})
	_ = manager.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "a"}})
	if taken == "" || taken == string(schema.UID) {
		t.Errorf("a TokenReview is taken by FlowSchema %q, as the manager's writes are", taken)
	}
}

// TestOnlyNamedNamespacesReachTheMetrics checks the NetworkPolicy: each token that a client presents there costs the
// API server a review.
func TestOnlyNamedNamespacesReachTheMetrics(t *testing.T) {
	t.Parallel()
	for what, all := range map[string]objects{"default": kustomize(t, "default"), "split": kustomize(t, "overlays/split"), "chart": helm(t)} {
		policy := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")["csr-controller-manager"]
		if len(policy.Spec.Ingress) == 0 {
			t.Errorf("%s lets in nobody", what)
		}
		for _, rule := range policy.Spec.Ingress {
			if len(rule.From) != 1 || rule.From[0].NamespaceSelector == nil || len(rule.From[0].NamespaceSelector.MatchLabels) == 0 {
				t.Errorf("%s lets in %+v", what, rule.From)
			}
		}
	}
}
