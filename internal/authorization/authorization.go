// Package authorization writes the AuthorizationConfiguration with which an API server refuses what a block list names.
//
// An API server asks its authorizers in turn, until one allows or denies a request. Join puts a Webhook before the
// cluster's own authorizers. Its match condition is true only for what is blocked, so that the API server does
// not ask the webhook about other users. The failurePolicy Deny refuses the blocked even if the webhook can't be reached.
package authorization

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Default is the configuration of an API server with --authorization-mode=Node,RBAC.
const Default = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Node
  name: node
- type: RBAC
  name: rbac
`

// namePrefix begins the names of the authorizers that Join adds. A number follows.
const namePrefix = "csr-block-list-"

// Join returns base with the authorizers that refuse what blocked names, and its canary, but never the user writer, whom the
// next version of the list needs. kubeconfig is the content of the file, at an absolute path, with which the API server
// reaches the webhook.
func Join(base []byte, blocked entries.Entries, writer, path string, kubeconfig []byte) ([]byte, error) {
	joined := map[string]any{}
	if err := yaml.UnmarshalStrict(base, &joined); err != nil {
		return nil, err
	}
	own, _ := joined["authorizers"].([]any)
	if len(own) == 0 {
		return nil, errors.New("authorizers: want a list with one at least: nothing else would allow a request")
	}
	// An API server reads the kubeconfig again only if the configuration has changed, other than in comments of YAML.
	version := fmt.Sprintf("// The SHA-256 of the kubeconfig is %x.\n", sha256.Sum256(kubeconfig))
	var all []any
	for i, expression := range conditions(blocked, writer, maxExpression) {
		all = append(all, map[string]any{
			"type": apiserver.TypeWebhook, "name": namePrefix + strconv.Itoa(i+1),
			"webhook": map[string]any{
				"timeout":                    time.Second.String(),
				"authorizedTTL":              time.Second.String(),   // nothing is ever authorized
				"unauthorizedTTL":            (time.Minute).String(), // a reload begins with an empty cache
				"subjectAccessReviewVersion": "v1",
				"matchConditionSubjectAccessReviewVersion": "v1",
				"failurePolicy":   apiserver.FailurePolicyDeny,
				"connectionInfo":  map[string]any{"type": apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, "kubeConfigFile": path},
				"matchConditions": []any{map[string]any{"expression": version + expression}},
			},
		})
	}
	joined["authorizers"] = append(all, own...)
	return yaml.Marshal(joined)
}

// maxExpression is less than the 100,000 characters that CEL parses, because an expression holds more than the names.
const maxExpression = 90_000

// conditions returns expressions, each of about room characters at most. One is true for a request of what blocked names, or
// of its canary. All are false, and no error, for everybody else: an error would refuse everybody.
func conditions(blocked entries.Entries, writer string, room int) []string {
	users := append([]string{blocked.Canary()}, sets.List(blocked.Users)...)
	var ids []string
	for _, node := range sets.List(blocked.Nodes) {
		users = append(users, csr.NodeUserPrefix+node)
	}
	for _, sum := range sets.List(blocked.Certificates) {
		ids = append(ids, csr.CertificateIDPrefix+sum)
	}
	var all []string
	for _, part := range []struct {
		values []string
		match  string
	}{
		{users, "request.user in [%s]"},
		{sets.List(blocked.Nodes), ofExtra(csr.NodeNameKey)},
		{ids, ofExtra(csr.CredentialIDKey)},
	} {
		var quoted []string
		length := 0
		for i, value := range part.values {
			// A string of Go, in ASCII, is one of CEL if its text is valid UTF-8.
			quoted = append(quoted, strconv.QuoteToASCII(value))
			if length += len(quoted[len(quoted)-1]) + len(", "); length >= room || i == len(part.values)-1 {
				all = append(all, fmt.Sprintf("request.user != %s && (", strconv.QuoteToASCII(writer))+
					fmt.Sprintf(part.match, strings.Join(quoted, ", "))+")")
				quoted, length = nil, 0
			}
		}
	}
	return all
}

// ofExtra returns the form of an expression about the values of key. It is true for more than a hundred values too: a user has
// one at most, but a SubjectAccessReview can hold 100,000, which an API server would compare for half a minute.
func ofExtra(key string) string {
	return fmt.Sprintf("has(request.extra) && %[1]q in request.extra && "+
		"(size(request.extra[%[1]q]) > 100 || request.extra[%[1]q].exists(value, value in [%%s]))", key)
}

// Check reads data, a result of Join, as an API server does, and returns an error if an API server would not load it, or if an
// authorizer of Join refuses a user that the cluster or writer needs, or can't be evaluated for one. It repeats what
// Kubernetes does not export (pkg/kubeapiserver/authorizer/config.go, LoadAndValidateData).
func Check(ctx context.Context, data []byte, blocked entries.Entries, writer string) error {
	read, err := load.LoadFromData(data)
	if err != nil {
		return err
	}
	compiler := cel.NewDefaultCompiler()
	known := sets.New("AlwaysAllow", "AlwaysDeny", "ABAC", "Webhook", "RBAC", "Node")
	if invalid := validation.ValidateAuthorizationConfiguration(compiler, nil, read, known, sets.New("Webhook")); len(invalid) > 0 {
		return invalid.ToAggregate()
	}
	for _, authorizer := range read.Authorizers {
		switch want := strings.ToLower(string(authorizer.Type)); {
		case authorizer.Type != apiserver.TypeWebhook && authorizer.Name != want:
			return fmt.Errorf("authorizer %s has the name %q: an API server wants %s", authorizer.Type, authorizer.Name, want)
		case !strings.HasPrefix(authorizer.Name, namePrefix):
			continue
		}
		matcher, invalid := validation.ValidateAndCompileMatchConditions(compiler, authorizer.Webhook.MatchConditions)
		if len(invalid) > 0 {
			return invalid.ToAggregate()
		}
		for _, user := range needed(blocked, writer) {
			switch refused, err := matcher.Eval(ctx, &authorizationv1.SubjectAccessReview{Spec: user}); {
			case err != nil:
				return fmt.Errorf("authorizer %s can't be evaluated for user %q: %w", authorizer.Name, user.User, err)
			case refused:
				return fmt.Errorf("authorizer %s would refuse user %q, whom the cluster needs", authorizer.Name, user.User)
			}
		}
	}
	return nil
}

// needed returns users that no authorizer of Join may refuse: those that the cluster needs, unless they are blocked by force, a
// user without anything, a node, and writer with what the token of a Pod has.
func needed(blocked entries.Entries, writer string) []authorizationv1.SubjectAccessReviewSpec {
	const node = "not-blocked.csr-controller-manager.io"
	reviews := []authorizationv1.SubjectAccessReviewSpec{
		{User: "user without anything"},
		{User: csr.NodeUserPrefix + node, Groups: []string{csr.NodeGroup}},
		{User: writer, Extra: map[string]authorizationv1.ExtraValue{
			csr.NodeNameKey: sets.List(blocked.Nodes), csr.CredentialIDKey: sets.List(blocked.Certificates),
		}},
	}
	for _, user := range entries.Essential() {
		if !blocked.Users.Has(user) { // a list names one by force only
			reviews = append(reviews, authorizationv1.SubjectAccessReviewSpec{User: user, Groups: []string{"system:authenticated"}})
		}
	}
	return reviews
}
