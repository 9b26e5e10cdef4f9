package check

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	requests = "certificatesigningrequests"
	// bootstrapGroup is in no advice: a role that it has is a role of every token.
	bootstrapGroup = csr.BootstrapGroup
	// kubeadmGroup holds the tokens that kubeadm makes for nodes.
	kubeadmGroup = "system:bootstrappers:kubeadm:default-node-token"

	roleCreate = "system:node-bootstrapper"
	roleJoin   = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	roleRenew  = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// BootstrapGroups and NodeGroups are the groups of kubelets in a cluster of kubeadm.
var (
	BootstrapGroups = []string{bootstrapGroup, kubeadmGroup}
	NodeGroups      = []string{csr.NodeGroup}
)

// Kubelets asks whether nodes can get certificates at all. At least one of bootstrapGroups, if any, must be able to join,
// and each of nodeGroups must be able to renew. The users that it asks about do not exist; only their groups count.
func Kubelets(
	ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, bootstrapGroups, nodeGroups []string,
) (results []Result) {
	if len(bootstrapGroups) > 0 {
		results = append(results, bootstrap(ctx, reviews, bootstrapGroups))
	}
	for _, group := range nodeGroups {
		found := ask(ctx, reviews, csr.NodeUserPrefix+"csr-check", group, roleRenew, "selfnodeclient")
		if found.status != OK { // the approver takes a node that may not renew for a bootstrapper
			if other := ask(ctx, reviews, csr.NodeUserPrefix+"csr-check", group, roleRenew, "nodeclient"); other.status != Failed {
				found = other
			}
		}
		result := found.result("nodes can renew (" + group + ")")
		if result.Status == Failed {
			result.Evidence += ": nodes join, but do not renew, and are lost when their certificates expire"
		}
		results = append(results, result)
	}
	return results
}

// bootstrap returns OK if nodes can join with the bootstrap tokens of one of groups: the group may create requests, and the
// approver approves them.
func bootstrap(ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, groups []string) Result {
	subject := "nodes can join (" + strings.Join(groups, " or ") + ")"
	var found []gap
	var seen []string
	for _, group := range groups {
		each := ask(ctx, reviews, "system:bootstrap:csr-check", group, roleJoin, "nodeclient")
		if each.status == OK {
			return each.result(subject)
		}
		found, seen = append(found, each), append(seen, "group "+group+" "+each.reason)
	}
	result := narrowest(found).result(subject)
	result.Evidence = strings.Join(seen, "; ")
	if result.Status == Failed {
		result.NextStep += "; if nodes join by another group, name it in selfCheck.bootstrapGroups"
	}
	return result
}

// narrowest returns the gap of the group that nodes most likely join by: one that could not be asked, else the one that
// lacks the fewest roles, and of these the one with the longest name. A role for bootstrapGroup would be a role of every
// token, so kubeadm's group takes its place.
func narrowest(gaps []gap) gap {
	least := slices.MinFunc(gaps, func(a, b gap) int {
		return cmp.Or(cmp.Compare(len(a.roles), len(b.roles)), cmp.Compare(len(b.group), len(a.group)))
	})
	if least.group == bootstrapGroup {
		least.group = kubeadmGroup
	}
	return least
}

// gap is the answer about a group. It has the ClusterRoles that the group lacks only if the status is Failed.
type gap struct {
	answer
	group string
	roles []string
}

// result returns g as a Result.
func (g gap) result(subject string) Result {
	result := Result{Check: KubeletRights, Subject: subject, Status: g.status, Evidence: "group " + g.group + " " + g.reason}
	switch g.status {
	case Unknown:
		result.NextStep = askAgain
	case Failed:
		var commands []string
		for _, role := range g.roles {
			commands = append(commands, bind(role, "group", g.group))
		}
		result.NextStep = strings.Join(commands, " && ")
	}
	return result
}

// ask asks whether user in group has what a kubelet needs: client-go's util/certificate/csr creates a request, finds its
// own again, lists and watches. It is approved by the permission for subresource, which belongs to role.
func ask(ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, user, group, role, subresource string) gap {
	found := gap{group: group, answer: answer{OK, "may create " + requests + " and have them approved"}}
	var refused []string
	for _, need := range []struct{ role, verb, resource string }{
		{roleCreate, "create", requests}, {roleCreate, "get", requests}, {roleCreate, "list", requests}, {roleCreate, "watch", requests},
		{role, "create", requests + "/" + subresource},
	} {
		switch got := review(ctx, reviews, user, group, need.verb, need.resource); got.status {
		case Unknown:
			found.answer = got
		case Failed:
			refused, found.roles = append(refused, got.reason), slices.Compact(append(found.roles, need.role))
		}
	}
	if len(refused) > 0 {
		found.answer = answer{Failed, "may not " + strings.Join(refused, ", ")}
	}
	return found
}

// review asks for one right of user in group. If it is refused, the reason names it.
func review(ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, user, group, verb, resource string) answer {
	groups := []string{group, "system:authenticated"}
	if strings.HasPrefix(group, bootstrapGroup+":") { // a token of such a group is in the group of all tokens too
		groups = append(groups, bootstrapGroup)
	}
	right := Right{Verb: verb, Group: certificatesv1.GroupName, Resource: resource}
	asked, err := reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups, ResourceAttributes: right.attributes(),
	}}, metav1.CreateOptions{})
	got := answerOf(asked.Status, err)
	if got.status == Failed {
		got.reason = got.because(verb + " " + resource)
	}
	return got
}

// The parts of a role's name that the name of a binding leaves out, and the characters that it can't have.
var (
	shortRole = strings.NewReplacer("system:certificates.k8s.io:certificatesigningrequests:", "approve-", "system:", "")
	unusual   = regexp.MustCompile(`[^a-z0-9.]`)
)

// bind returns the command that binds role to the user or group called name.
func bind(role, kind, name string) string {
	binding := shortRole.Replace(role) + "-" + unusual.ReplaceAllString(strings.TrimPrefix(name, "system:"), "-")
	return fmt.Sprintf("kubectl create clusterrolebinding %s --clusterrole=%s --%s=%s", binding, role, kind, Word(name))
}

// Word quotes text as one word of a shell, if it needs to be. The text may come from a requester, who also chooses the
// name of a request: the API server permits all characters but a slash and a percent sign there.
func Word(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:.-_/@"
	if strings.Trim(text, harmless) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// IsBootstrapGroup reports whether group holds bootstrap tokens.
func IsBootstrapGroup(group string) bool {
	return group == bootstrapGroup || strings.HasPrefix(group, bootstrapGroup+":")
}
