package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	requests       = "certificatesigningrequests"
	bootstrapGroup = "system:bootstrappers" // every bootstrap token is in it (k8s.io/cluster-bootstrap, BootstrapDefaultGroup)

	roleCreate = "system:node-bootstrapper"
	roleJoin   = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	roleRenew  = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// Kubelets asks whether nodes can get certificates at all: at least one of bootstrapGroups must be able to join, and
// each of nodeGroups to renew. It asks for users of those groups that do not exist.
func Kubelets(ctx context.Context, c client.Client, bootstrapGroups, nodeGroups []string) []Result {
	results := []Result{bootstrap(ctx, c, bootstrapGroups)}
	for _, group := range nodeGroups {
		results = append(results, renewal(ctx, c, group))
	}
	return results
}

// bootstrap is OK with the first group that can join.
func bootstrap(ctx context.Context, c client.Client, groups []string) Result {
	result := Result{Check: KubeletRights, Subject: "nodes can join (" + strings.Join(groups, " or ") + ")", Status: Unknown}
	var seen []string
	var gaps []gap
	failed := 0
	for _, group := range groups {
		status, lacks, why := joins(ctx, c, group)
		switch status {
		case OK:
			result.Status = OK
			result.Evidence = fmt.Sprintf("group %s may create %s and have them approved", group, requests)
			return result
		case Failed:
			failed++
		}
		seen, gaps = append(seen, "group "+group+" "+why), append(gaps, lacks)
	}
	result.Evidence, result.NextStep = strings.Join(seen, "; "), askAgain
	if failed < len(groups) {
		return result
	}
	result.Status = Failed
	// The group that lacks least is the one that was meant.
	least := slices.MinFunc(gaps, func(a, b gap) int { return len(a.roles) - len(b.roles) })
	result.NextStep = least.commands() + "; if nodes join by another group, name it in selfCheck.bootstrapGroups"
	return result
}

// gap are ClusterRoles that a group lacks.
type gap struct {
	group string
	roles []string
}

// commands bind the roles.
func (g gap) commands() string {
	commands := make([]string, len(g.roles))
	for i, role := range g.roles {
		commands[i] = bind(role, "group", g.group)
	}
	return strings.Join(commands, " && ")
}

// bind is the command that binds role to the user or group called name.
func bind(role, kind, name string) string {
	binding := strings.NewReplacer("system:certificates.k8s.io:certificatesigningrequests:", "approve-", "system:", "").Replace(role) +
		"-" + strings.Map(plain, strings.TrimPrefix(name, "system:"))
	return fmt.Sprintf("kubectl create clusterrolebinding %s --clusterrole=%s --%s=%s", binding, role, kind, word(name))
}

// isBootstrapGroup says whether bootstrap tokens are what is in group.
func isBootstrapGroup(group string) bool {
	return group == bootstrapGroup || strings.HasPrefix(group, bootstrapGroup+":")
}

// plain is what can be in the name of a binding.
func plain(char rune) rune {
	if char >= 'a' && char <= 'z' || char >= '0' && char <= '9' || char == '.' {
		return char
	}
	return '-'
}

// word makes one word of a shell's of what somebody else has chosen.
func word(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:.-_/"
	if text != "" && strings.Trim(text, harmless) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// joins says whether a bootstrap token in group can make requests and have them approved.
func joins(ctx context.Context, c client.Client, group string) (Status, gap, string) {
	const user = "system:bootstrap:csr-check"
	return ask(ctx, c, user, group, []need{
		{roleCreate, makeRequests()},
		{roleJoin, []alternatives{{approvalAs("nodeclient")}}},
	})
}

// renewal says whether a node in group can make requests and have them approved. As the approver does, it takes a node
// that may not renew for a bootstrapper.
func renewal(ctx context.Context, c client.Client, group string) Result {
	const user = csr.NodeUserPrefix + "csr-check"
	result := Result{Check: KubeletRights, Subject: "nodes can renew (" + group + ")"}
	status, lacks, why := ask(ctx, c, user, group, []need{
		{roleCreate, makeRequests()},
		{roleRenew, []alternatives{{approvalAs("selfnodeclient"), approvalAs("nodeclient")}}},
	})
	result.Status, result.Evidence = status, "group "+group+" "+why
	switch status {
	case OK:
		result.Evidence = fmt.Sprintf("group %s may create %s and have its own renewed", group, requests)
	case Failed:
		result.Evidence += ": nodes join, but do not renew, and drop out when their certificates run out"
		result.NextStep = lacks.commands()
	case Unknown:
		result.NextStep = askAgain
	}
	return result
}

// alternatives are rights of which one is enough.
type alternatives []authorizationv1.ResourceAttributes

// need is a ClusterRole with what it is for.
type need struct {
	role string
	all  []alternatives
}

// makeRequests is what client-go's util/certificate/csr does: it creates, finds its own again, lists and watches.
func makeRequests() []alternatives {
	var all []alternatives
	for _, verb := range []string{"create", "get", "list", "watch"} {
		all = append(all, alternatives{{Group: certificatesv1.GroupName, Version: "*", Resource: requests, Verb: verb}})
	}
	return all
}

func approvalAs(subresource string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Group: certificatesv1.GroupName, Version: "*", Resource: requests, Subresource: subresource, Verb: "create"}
}

// ask says whether user in group has all needs, and if not, which roles would help, in a part of a sentence.
func ask(ctx context.Context, c client.Client, user, group string, needs []need) (Status, gap, string) {
	lacks := gap{group: group}
	var refused, untold []string
	for _, need := range needs {
		missing := false
		for _, wanted := range need.all {
			switch got := askAny(ctx, c, user, group, wanted); got.status {
			case Failed:
				missing = true
				refused = append(refused, got.reason)
			case Unknown:
				untold = append(untold, got.reason)
			}
		}
		if missing {
			lacks.roles = append(lacks.roles, need.role)
		}
	}
	switch {
	case len(refused) > 0:
		return Failed, lacks, "may not " + strings.Join(refused, ", ")
	case len(untold) > 0:
		return Unknown, gap{}, untold[0]
	default:
		return OK, gap{}, ""
	}
}

// askAny is OK when one of wanted is; else the reason names them.
func askAny(ctx context.Context, c client.Client, user, group string, wanted alternatives) answer {
	worst := answer{status: Failed}
	var names []string
	for _, what := range wanted {
		got := may(ctx, c, user, groupsWith(group), what)
		switch got.status {
		case OK:
			return got
		case Unknown:
			worst = got
		case Failed:
			names = append(names, got.because(what.Verb+" "+joinResource(what.Resource, what.Subresource)))
		}
	}
	if worst.status == Failed {
		worst.reason = strings.Join(names, " or ")
	}
	return worst
}

// groupsWith are the groups of a user of group: with a valid credential, and as a token that joins nodes has them.
func groupsWith(group string) []string {
	groups := []string{group, "system:authenticated"}
	if strings.HasPrefix(group, bootstrapGroup+":") {
		groups = append(groups, bootstrapGroup)
	}
	return groups
}
