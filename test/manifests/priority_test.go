package manifests

import (
	"context"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestManagerHasAShareOfItsOwn checks, as the manager, by which FlowSchema a real API server handles its requests.
// Reviews of requesters must use config/priority-and-fairness. TokenReviews, which any pod can cause, must use
// another FlowSchema.
func TestManagerHasAShareOfItsOwn(t *testing.T) {
	ctx := t.Context()
	all := kustomize(t, "priority-and-fairness")
	for name, obj := range all {
		if err := admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { _ = admin.Delete(context.Background(), obj) })
	}
	schema := &flowcontrolv1.FlowSchema{}
	if err := admin.Get(ctx, client.ObjectKey{Name: "csr-controller-manager"}, schema); err != nil {
		t.Fatal(err)
	}
	var taken string
	cfg := rest.CopyConfig(shared.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:csr-controller-manager-system:csr-controller-manager", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				taken = response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")
			}
			return response, err
		})
	})
	manager, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		_ = manager.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "a"}}) // denied
		return taken == string(schema.UID), nil
	})
	if err != nil {
		t.Errorf("a SubjectAccessReview is taken by FlowSchema %q, want %s", taken, schema.UID)
	}
	_ = manager.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "a"}})
	if taken == "" || taken == string(schema.UID) {
		t.Errorf("a TokenReview is taken by FlowSchema %q, as the manager's writes are", taken)
	}
}

// TestShareInChart compares the chart's objects with those of config/priority-and-fairness, which name all
// identities.
func TestShareInChart(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, values := range []string{"--set=split=false", "--set=split=true,config.rotation.enabled=true"} {
		without, got := helm(t, values), helm(t, values, "--set=priorityAndFairness.enabled=true")
		maps.DeleteFunc(got, func(name string, _ *unstructured.Unstructured) bool { return without[name] != nil })
		want := kustomize(t, "priority-and-fairness")
		mine := typed[flowcontrolv1.FlowSchema](t, got, "FlowSchema")["csr-controller-manager"].Spec
		theirs := typed[flowcontrolv1.FlowSchema](t, want, "FlowSchema")["csr-controller-manager"].Spec
		for _, subject := range mine.Rules[0].Subjects {
			named[subject.ServiceAccount.Name] = true
		}
		mine.Rules[0].Subjects = theirs.Rules[0].Subjects
		if diff := cmp.Diff(theirs, mine); diff != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", values, diff)
		}
		level := func(all objects) any {
			return typed[flowcontrolv1.PriorityLevelConfiguration](t, all, "PriorityLevelConfiguration")["csr-controller-manager"].Spec
		}
		if diff := cmp.Diff(level(want), level(got)); diff != "" || len(got) != 2 {
			t.Errorf("%s: %d objects (-kustomize +helm):\n%s", values, len(got), diff)
		}
	}
	for _, subject := range typed[flowcontrolv1.FlowSchema](t, kustomize(t, "priority-and-fairness"), "FlowSchema")["csr-controller-manager"].Spec.Rules[0].Subjects {
		if !named[subject.ServiceAccount.Name] {
			t.Errorf("config/priority-and-fairness names %s, which no chart does", subject.ServiceAccount.Name)
		}
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
