package check

import (
	"errors"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestRightsByRules checks when a rule is enough, and when the API server is asked for a single right. In each row the
// API server denies what it is asked for.
func TestRightsByRules(t *testing.T) {
	t.Parallel()
	rule := func(verb, group, resource string, names ...string) authorizationv1.ResourceRule {
		return authorizationv1.ResourceRule{
			Verbs: []string{"other", verb}, APIGroups: []string{group}, Resources: []string{"others", resource}, ResourceNames: names,
		}
	}
	named, all := Right{Verb: "get", Resource: "secrets", Name: "a", Namespace: "n"}, Right{Verb: "get", Group: "g", Resource: "nodes"}
	for name, test := range map[string]struct {
		right Right
		rules map[string][]authorizationv1.ResourceRule
		want  Status
	}{
		"by name":             {named, map[string][]authorizationv1.ResourceRule{"n": {rule("list", "", "secrets"), rule("get", "", "secrets", "b", "a")}}, OK},
		"all names":           {named, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "", "secrets")}}, OK},
		"all verbs":           {named, map[string][]authorizationv1.ResourceRule{"n": {rule("*", "", "secrets")}}, OK},
		"all groups":          {named, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "*", "secrets")}}, OK},
		"all resources":       {named, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "", "*")}}, OK},
		"another name":        {named, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "", "secrets", "b")}}, Failed},
		"another verb":        {named, map[string][]authorizationv1.ResourceRule{"n": {rule("list", "", "secrets", "a")}}, Failed},
		"another group":       {named, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "g", "secrets", "a")}}, Failed},
		"another resource":    {named, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "", "secrets/status", "a")}}, Failed},
		"another namespace":   {named, map[string][]authorizationv1.ResourceRule{"m": {rule("get", "", "secrets", "a")}}, Failed},
		"everywhere":          {all, map[string][]authorizationv1.ResourceRule{noNamespace: {rule("get", "g", "nodes")}}, OK},
		"in a namespace only": {all, map[string][]authorizationv1.ResourceRule{"n": {rule("get", "g", "nodes")}, "default": {rule("get", "g", "nodes")}}, Failed},
		"a name of all":       {all, map[string][]authorizationv1.ResourceRule{noNamespace: {rule("get", "g", "nodes", "a", "")}}, Failed},
	} {
		asked := 0
		api := reviewer(func(obj client.Object) {
			if review, is := obj.(*authorizationv1.SelfSubjectRulesReview); is {
				review.Status.ResourceRules = test.rules[review.Spec.Namespace]
			} else {
				asked++
			}
		})
		results := RightsByRules(t.Context(), api, []Right{test.right})
		if results[0].Status != test.want || results[0].Subject != test.right.String() {
			t.Errorf("%s: %+v, want %s", name, results, test.want)
		}
		if want := map[Status]int{OK: 0, Failed: 1}[test.want]; asked != want {
			t.Errorf("%s: asked for %d single rights, want %d", name, asked, want)
		}
	}
}

// TestRightsByRulesAsks checks that a rule neither grants nor denies if it is not all that decides.
func TestRightsByRulesAsks(t *testing.T) {
	t.Parallel()
	rights := []Right{{Verb: "get", Resource: "a"}, {Verb: "get", Resource: "b"}, {Verb: "get", Resource: "a", Namespace: "n"}}
	rules := []authorizationv1.ResourceRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"a"}}}
	for name, test := range map[string]struct {
		incomplete bool
		allowed    bool
		want       []Status
		calls      int
	}{
		"complete":               {false, false, []Status{OK, Failed, OK}, 3},
		"complete, but outdated": {false, true, []Status{OK, OK, OK}, 3},
		"incomplete, denied":     {true, false, []Status{Failed, Failed, Failed}, 5},
		"incomplete, allowed":    {true, true, []Status{OK, OK, OK}, 5},
	} {
		calls := 0
		api := reviewer(func(obj client.Object) {
			calls++
			switch review := obj.(type) {
			case *authorizationv1.SelfSubjectRulesReview:
				review.Status.ResourceRules, review.Status.Incomplete = rules, test.incomplete
			case *authorizationv1.SelfSubjectAccessReview:
				review.Status.Allowed = test.allowed
			}
		})
		var got []Status
		for _, result := range RightsByRules(t.Context(), api, rights) {
			got = append(got, result.Status)
		}
		if !slices.Equal(got, test.want) || calls != test.calls {
			t.Errorf("%s: %v with %d calls, want %v with %d", name, got, calls, test.want, test.calls)
		}
	}
}

// TestRightsByRulesWithoutRules checks that a SelfSubjectRulesReview that is refused leaves the single questions, and
// that one that fails leaves nothing known.
func TestRightsByRulesWithoutRules(t *testing.T) {
	t.Parallel()
	refuses := failing(func(obj client.Object) error {
		if _, is := obj.(*authorizationv1.SelfSubjectRulesReview); is {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "selfsubjectrulesreviews"}, "")
		}
		obj.(*authorizationv1.SelfSubjectAccessReview).Status.Allowed = true
		return nil
	})
	down := failing(func(client.Object) error { return errors.New("connection refused") })
	for want, api := range map[Status]client.Client{OK: refuses, Unknown: down} {
		if got := RightsByRules(t.Context(), api, []Right{{Verb: "get", Resource: "a"}}); got[0].Status != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}
