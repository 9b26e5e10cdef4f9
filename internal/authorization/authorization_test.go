package authorization

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const writer = "system:serviceaccount:csr-authorization-files:csr-authorization-files"

// joined returns the file for a list with data, and what the list blocks.
func joined(t *testing.T, base string, data map[string]string) ([]byte, entries.Entries) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	expect.Error(t, "", os.WriteFile(kubeconfig, nil, 0o600), "")
	blocked, problems, err := entries.Parse(data)
	expect.Error(t, "", err, "")
	expect.Equal(t, "problems", problems, nil)
	file, err := Join([]byte(base), blocked, writer, kubeconfig, []byte("x"))
	expect.Error(t, "", err, "")
	return file, blocked
}

// compiled returns a function that returns how many of the authorizers in file refuse a user.
func compiled(t *testing.T, file []byte) (refused func(user authorizationv1.SubjectAccessReviewSpec) int) {
	t.Helper()
	var matchers []*cel.CELMatcher
	read, err := load.LoadFromData(file)
	expect.Error(t, "", err, "")
	for _, authorizer := range read.Authorizers {
		if !strings.HasPrefix(authorizer.Name, namePrefix) {
			continue
		}
		expect.Equal(t, "without the webhook", authorizer.Webhook.FailurePolicy, apiserver.FailurePolicyDeny)
		matcher, invalid := validation.ValidateAndCompileMatchConditions(cel.NewDefaultCompiler(), authorizer.Webhook.MatchConditions)
		expect.Equal(t, authorizer.Name, invalid.ToAggregate(), nil)
		matchers = append(matchers, matcher)
	}
	return func(user authorizationv1.SubjectAccessReviewSpec) (count int) {
		for _, matcher := range matchers {
			yes, err := matcher.Eval(t.Context(), &authorizationv1.SubjectAccessReview{Spec: user})
			expect.Error(t, user.User, err, "")
			if yes {
				count++
			}
		}
		return count
	}
}

// extra returns a user called "app" with one value of extra.
func extra(key, value string) authorizationv1.SubjectAccessReviewSpec {
	return authorizationv1.SubjectAccessReviewSpec{User: "app", Extra: map[string]authorizationv1.ExtraValue{key: {value}}}
}

// TestJoin checks who is refused by a list whose names are written to be CEL.
func TestJoin(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	hostile := []string{`"`, `'`, `\`, `\"`, `" || true || "`, "a\nb", "a\x00b", "ü\u202e", `%s`, `{{.}}`, "]", "https://issuer#subject", "$(x)", strings.Repeat("long", 500)}
	users := ""
	for _, name := range hostile {
		users += fmt.Sprintf("%s\n", quoted(name))
	}
	file, blocked := joined(t, Default, map[string]string{"nodes": "w1", "users": users, "certificates": sum})
	expect.Error(t, "", Check(t.Context(), file, blocked, writer), "")
	refused := compiled(t, file)
	for name, user := range map[string]authorizationv1.SubjectAccessReviewSpec{
		"the node": {User: "system:node:w1"}, "its token": extra(csr.NodeNameKey, "w1"), "the certificate": extra(csr.CredentialIDKey, "X509SHA256="+sum),
		"the canary": {User: blocked.Canary()},
	} {
		expect.Equal(t, name, refused(user), 1)
	}
	for _, name := range hostile {
		expect.Equal(t, name, refused(authorizationv1.SubjectAccessReviewSpec{User: name}), 1)
	}
	for name, user := range map[string]authorizationv1.SubjectAccessReviewSpec{
		"another node": {User: "system:node:w10"}, "another node's token": extra(csr.NodeNameKey, "w10"), "another's credential": extra(csr.CredentialIDKey, sum),
		"the key in capitals": extra(strings.ToUpper(csr.NodeNameKey), "w1"), "a part of a name": {User: "true"}, "nobody": {}, "invalid UTF-8": {User: "\xff"},
		"another version's canary": {User: entries.Entries{}.Canary()},
		"the writer on the node":   {User: writer, Extra: extra(csr.NodeNameKey, "w1").Extra},
	} {
		expect.Equal(t, name, refused(user), 0)
	}
}

func quoted(name string) string {
	text := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\x00", `\u0000`).Replace(name)
	return `"` + text + `"`
}

// TestMany checks that more names than fit into one expression are refused too.
func TestMany(t *testing.T) {
	var sums, users strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&sums, "%064x\n", i)
		fmt.Fprintf(&users, "user-%d\n", i)
	}
	file, blocked := joined(t, Default, map[string]string{"nodes": "", "certificates": sums.String(), "users": users.String()})
	expect.Error(t, "", Check(t.Context(), file, blocked, writer), "")
	read, err := load.LoadFromData(file)
	expect.Error(t, "", err, "")
	expect.Equal(t, "authorizers", len(read.Authorizers), 6) // three for certificates, one for users
	refused := compiled(t, file)
	for _, i := range []int{0, 1500, 2999} {
		expect.Equal(t, "certificate", refused(extra(csr.CredentialIDKey, fmt.Sprintf("X509SHA256=%064x", i))), 1)
		expect.Equal(t, "user", refused(authorizationv1.SubjectAccessReviewSpec{User: fmt.Sprintf("user-%d", i)}), 1)
	}
}

// TestLongestNames checks that the longest names that a list may hold fit, whatever their letters.
func TestLongestNames(t *testing.T) {
	var users strings.Builder
	for i := range 30 {
		fmt.Fprintf(&users, "\"%s%d\"\n", strings.Repeat(`\u0001`, 1990), i)
	}
	file, blocked := joined(t, Default, map[string]string{"nodes": "", "users": users.String()})
	expect.Error(t, "", Check(t.Context(), file, blocked, writer), "")
}

// TestManyValues checks that a review with more values than anybody has is refused, and costs little, also if each value is new.
func TestManyValues(t *testing.T) {
	var nodes strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&nodes, "node-%04d\n", i)
	}
	file, _ := joined(t, Default, map[string]string{"nodes": nodes.String()})
	refused := compiled(t, file)
	values := make([]string, 100_000)
	for i := range values {
		values[i] = fmt.Sprintf("other-%d", i)
	}
	began := time.Now()
	for count, want := range map[int]int{1: 0, 100: 0, 101: 1, len(values): 1} {
		user := authorizationv1.SubjectAccessReviewSpec{User: "app", Extra: map[string]authorizationv1.ExtraValue{csr.NodeNameKey: values[:count]}}
		expect.Equal(t, fmt.Sprint(count), refused(user), want)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("four reviews took %s", took)
	}
}

// TestJoinedBase checks that a file that Join made is no base: its names would stay blocked for ever.
func TestJoinedBase(t *testing.T) {
	file, blocked := joined(t, Default, map[string]string{"nodes": "w1"})
	again, err := Join(file, blocked, writer, "/x", nil)
	expect.Error(t, "", err, "")
	if err := Check(t.Context(), again, blocked, writer); err == nil || !strings.Contains(err.Error(), `Duplicate value: "csr-block-list-1"`) {
		t.Errorf("error %v", err)
	}
}

// TestCheck checks which files are not written.
func TestCheck(t *testing.T) {
	file, blocked := joined(t, Default, map[string]string{"nodes": "", "forcedUsers": "system:kube-scheduler\nbob"})
	expect.Error(t, "by force", Check(t.Context(), file, blocked, writer), "")
	expect.Error(t, "not by force", Check(t.Context(), file, entries.Entries{}, writer), "authorizer csr-block-list-1 would refuse user \"system:kube-scheduler\", whom the cluster needs")
	expect.Error(t, "another writer", Check(t.Context(), file, blocked, "bob"), "authorizer csr-block-list-1 would refuse user \"bob\", whom the cluster needs")
	for name, test := range map[string]struct{ from, to, want string }{
		"unknown kind":         {"kind: AuthorizationConfiguration", "kind: Other", "no kind"},
		"unknown field":        {"name: node", "name: node\n  webhoOk: {}", "unknown field"},
		"unknown type":         {"type: RBAC", "type: Rbac", "Unsupported value"},
		"a type twice":         {"type: RBAC\n  name: rbac", "type: Node\n  name: other", "Duplicate"},
		"another name":         {"name: rbac", "name: roles", "an API server wants rbac"},
		"a name twice":         {"- type: RBAC", strings.Repeat("- type: Webhook\n  name: own\n", 2) + "- type: RBAC", "Duplicate"},
		"condition that fails": {"request.user !=", "int(request.user) != 1 || request.user !=", "can't be evaluated for user"},
	} {
		base := strings.Replace(Default, test.from, test.to, 1)
		file, _ := joined(t, base, map[string]string{"nodes": ""})
		file = []byte(strings.Replace(string(file), test.from, test.to, 1))
		err := Check(t.Context(), file, entries.Entries{}, writer)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// TestNoAuthorizers checks that a base without authorizers is refused. With the block list alone, an API server would start, and
// refuse everybody.
func TestNoAuthorizers(t *testing.T) {
	for _, base := range []string{"a: b", "authorizers: []", "authorizers: {}", "authorizers:"} {
		_, err := Join([]byte(base), entries.Entries{}, writer, "/x", nil)
		expect.Error(t, base, err, "authorizers: want a list with one at least: nothing else would allow a request")
	}
}

// TestKubeconfigChangesConfiguration checks that an API server reads another kubeconfig: it compares the configurations that it
// has parsed, without comments.
func TestKubeconfigChangesConfiguration(t *testing.T) {
	parsed := func(kubeconfig string) *apiserver.AuthorizationConfiguration {
		file, err := Join([]byte(Default), entries.Entries{}, writer, "/kubeconfig", []byte(kubeconfig))
		expect.Error(t, kubeconfig, err, "")
		read, err := load.LoadFromData(file)
		expect.Error(t, kubeconfig, err, "")
		return read
	}
	if reflect.DeepEqual(parsed("a"), parsed("b")) {
		t.Error("another kubeconfig makes the same configuration")
	}
}
