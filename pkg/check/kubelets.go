package check

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
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
	// bootstrapGroup holds every bootstrap token (k8s.io/cluster-bootstrap, BootstrapDefaultGroup). No advice names it: a
	// role that it has is a role of every token.
	bootstrapGroup = "system:bootstrappers"
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
) []Result {
	var results []Result
	if len(bootstrapGroups) > 0 {
		results = append(results, bootstrap(ctx, reviews, bootstrapGroups))
	}
	for _, group := range nodeGroups {
		results = append(results, renewal(ctx, reviews, group))
	}
	return results
}

// bootstrap returns OK for the first group whose bootstrap tokens can make requests and have them approved.
func bootstrap(ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, groups []string) Result {
	result := Result{
		Check: KubeletRights, Subject: "nodes can join (" + strings.Join(groups, " or ") + ")", Status: Failed,
	}
	var found []gap
	var seen []string
	for _, group := range groups {
		lacks := ask(ctx, reviews, "system:bootstrap:csr-check", group, roleJoin, [][]Right{{approvalAs("nodeclient")}})
		switch lacks.status {
		case OK:
			result.Status = OK
			result.Evidence = fmt.Sprintf("group %s may create %s and have them approved", group, requests)
			return result
		case Unknown:
			result.Status = Unknown
		}
		found, seen = append(found, lacks), append(seen, "group "+group+" "+lacks.reason)
	}
	result.Evidence, result.NextStep = strings.Join(seen, "; "), askAgain
	if result.Status == Failed {
		result.NextStep = narrowest(found).commands() + "; if nodes join by another group, name it in selfCheck.bootstrapGroups"
	}
	return result
}

// narrowest returns the gap of the group that nodes most likely join by: the one that lacks the fewest roles, and of
// these the one with the longest name. A role for bootstrapGroup would be a role of every token, so kubeadm's group
// takes its place.
func narrowest(gaps []gap) gap {
	least := slices.MinFunc(gaps, func(a, b gap) int {
		return cmp.Or(cmp.Compare(len(a.roles), len(b.roles)), cmp.Compare(len(b.group), len(a.group)))
	})
	if least.group == bootstrapGroup {
		least.group = kubeadmGroup
	}
	return least
}

// renewal asks whether a node in group can make requests and have them approved. As the approver does, it takes a node
// that may not renew for a bootstrapper.
func renewal(ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, group string) Result {
	lacks := ask(ctx, reviews, csr.NodeUserPrefix+"csr-check", group, roleRenew,
		[][]Right{{approvalAs("selfnodeclient"), approvalAs("nodeclient")}})
	result := Result{
		Check: KubeletRights, Subject: "nodes can renew (" + group + ")", Status: lacks.status,
		Evidence: "group " + group + " " + lacks.reason,
	}
	switch lacks.status {
	case OK:
		result.Evidence = fmt.Sprintf("group %s may create %s and have its own renewed", group, requests)
	case Failed:
		result.Evidence += ": nodes join, but do not renew, and are lost when their certificates expire"
		result.NextStep = lacks.commands()
	case Unknown:
		result.NextStep = askAgain
	}
	return result
}

// gap is the answer about a group, with the ClusterRoles that it lacks.
type gap struct {
	answer
	group string
	roles []string
}

// commands returns the commands that bind the roles.
func (g gap) commands() string {
	commands := make([]string, len(g.roles))
	for i, role := range g.roles {
		commands[i] = bind(role, "group", g.group)
	}
	return strings.Join(commands, " && ")
}

// bind returns the command that binds role to the user or group called name.
func bind(role, kind, name string) string {
	plain := func(char rune) rune { // for the name of a binding
		if char >= 'a' && char <= 'z' || char >= '0' && char <= '9' || char == '.' {
			return char
		}
		return '-'
	}
	short := strings.NewReplacer("system:certificates.k8s.io:certificatesigningrequests:", "approve-", "system:", "")
	binding := short.Replace(role) + "-" + strings.Map(plain, strings.TrimPrefix(name, "system:"))
	return fmt.Sprintf("kubectl create clusterrolebinding %s --clusterrole=%s --%s=%s", binding, role, kind, Word(name))
}

// Word quotes text as one word of a shell, if it needs to be. The text may come from a requester, who also chooses the
// name of a request: the API server permits all characters but a slash and a percent sign there.
func Word(text string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:.-_/@"
	if text != "" && strings.Trim(text, harmless) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Argument is Word for an argument of a command that must not be taken for a flag. It is the last part of the command.
func Argument(text string) string {
	if strings.HasPrefix(text, "-") {
		return "-- " + Word(text)
	}
	return Word(text)
}

// BindRequester returns the next step for obj, the request of a requester that may not have it approved: the command
// that binds the missing role to the narrowest group of the requester, or what to do about a requester that must not
// have it.
func BindRequester(obj *certificatesv1.CertificateSigningRequest) string {
	user, groups := csr.Shorten(obj.Spec.Username), obj.Spec.Groups
	req, err := csr.Parse(obj)
	isNode := strings.HasPrefix(obj.Spec.Username, csr.NodeUserPrefix)
	switch {
	case isNode && (err != nil || req.Cert.Subject.CommonName != obj.Spec.Username):
		return fmt.Sprintf("%s asks for the identity of another node, which no kubelet does: find out who holds its "+
			"credential, which may be stolen; kubectl certificate deny %s", Word(user), Argument(obj.Name))
	case isNode && slices.Contains(groups, csr.NodeGroup):
		return "if nodes are to renew their certificates: " + bind(roleRenew, "group", csr.NodeGroup)
	case isNode:
		return "if this user is to renew its certificate: " + bind(roleRenew, "user", user)
	}
	node := ""
	if err == nil {
		node = req.NodeName()
	}
	return bindToken(user, groups, node)
}

// bindToken is BindRequester for a requester that is no node, and asks for node.
func bindToken(user string, groups []string, node string) string {
	group := ""
	for _, each := range groups {
		if IsBootstrapGroup(each) && len(each) > len(group) {
			group = each
		}
	}
	anyNode := csr.TokenGroup("")
	forOneNode := strings.HasPrefix(group, anyNode[:len(anyNode)-2*sha256.Size]) // the rest is the digest of the node's name
	switch {
	case forOneNode && group != csr.TokenGroup(node):
		return "the token is for another node: give the machine a token for this node, or find out who holds the token"
	case group == "":
		return "if this user is to join nodes: " + bind(roleJoin, "user", user)
	case group == bootstrapGroup:
		return "if this token is to join nodes: add the group " + kubeadmGroup + " to auth-extra-groups of its Secret, and " +
			bind(roleJoin, "group", kubeadmGroup)
	default:
		return "if this group is to join nodes: " + bind(roleJoin, "group", csr.Shorten(group))
	}
}

// IsBootstrapGroup reports whether group holds bootstrap tokens.
func IsBootstrapGroup(group string) bool {
	return group == bootstrapGroup || strings.HasPrefix(group, bootstrapGroup+":")
}

func approvalAs(subresource string) Right {
	return Right{Verb: "create", Group: certificatesv1.GroupName, Resource: requests + "/" + subresource}
}

// creates holds the rights that client-go's util/certificate/csr needs: it creates a request, finds its own again, lists
// and watches.
var creates = [][]Right{
	{{Verb: "create", Group: certificatesv1.GroupName, Resource: requests}},
	{{Verb: "get", Group: certificatesv1.GroupName, Resource: requests}},
	{{Verb: "list", Group: certificatesv1.GroupName, Resource: requests}},
	{{Verb: "watch", Group: certificatesv1.GroupName, Resource: requests}},
}

// ask asks whether user in group can make requests, and has the rights of role. Of each list of rights one is enough.
func ask(
	ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, user, group, role string, rights [][]Right,
) gap {
	lacks := gap{group: group, answer: answer{status: OK}}
	var refused []string
	for _, need := range []struct {
		role   string
		rights [][]Right
	}{{roleCreate, creates}, {role, rights}} {
		before := len(refused)
		for _, wanted := range need.rights {
			switch got := askAny(ctx, reviews, user, group, wanted); {
			case got.status == Failed:
				refused = append(refused, got.reason)
			case got.status == Unknown && lacks.status == OK:
				lacks.answer = got
			}
		}
		if len(refused) > before {
			lacks.roles = append(lacks.roles, need.role)
		}
	}
	if len(refused) > 0 {
		lacks.answer = answer{Failed, "may not " + strings.Join(refused, ", ")}
	}
	return lacks
}

// askAny returns OK if user in group has one of wanted. Otherwise the reason names them.
func askAny(ctx context.Context, reviews reviewsv1.SubjectAccessReviewInterface, user, group string, wanted []Right) answer {
	groups := []string{group, "system:authenticated"}
	if strings.HasPrefix(group, bootstrapGroup+":") { // a token of such a group is in the group of all tokens too
		groups = append(groups, bootstrapGroup)
	}
	worst := answer{status: Failed}
	var names []string
	for _, right := range wanted {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: groups, ResourceAttributes: right.attributes(),
		}}
		review, err := reviews.Create(ctx, review, metav1.CreateOptions{})
		switch got := answerOf(review.Status, err); got.status {
		case OK:
			return got
		case Unknown:
			worst = got
		case Failed:
			names = append(names, got.because(right.Verb+" "+right.Resource))
		}
	}
	if worst.status == Failed {
		worst.reason = strings.Join(names, " or ")
	}
	return worst
}
