package plugin

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/docs"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// explanation is what is known about one request.
type explanation struct {
	*Facts
	// Said holds the manager's Events, the newest first.
	Said    []statement `json:"said"`
	Leaders []leader    `json:"leaders"`
	// Unknown says what could not be read.
	Unknown []string `json:"unknown,omitempty"`
	// NextStep says what to do. Command is a command that does it, if there is one.
	NextStep string `json:"nextStep"`
	Command  string `json:"command,omitempty"`
}

// explainCommand returns the command that explains a request, or the newest requests of a node.
func explainCommand(connect connector) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "explain {NAME | --node NODE}",
		Short: "Show a request, what the manager said about it, and what to do",
		Long: `explain shows the content of a request and its conditions, what the manager said about it in its Events, whether
a manager renews its Lease, and what to do. With --node it shows the newest request of the node for each of the two
signers of kubelets. It changes nothing.`,
		Args: namesOr(&node, 1),
	}
	cmd.Flags().StringVar(&node, "node", "", "explain the newest requests of the node with this `name`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, args []string) error {
		if node == "" {
			obj, err := c.request(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			e := c.explain(cmd.Context(), obj)
			return c.write(cmd.OutOrStdout(), *asJSON, e, func(p *page) { p.explanation(e) })
		}
		objs, err := c.newestOf(cmd.Context(), node)
		if err != nil {
			return err
		}
		all := []*explanation{} // never null
		for _, obj := range objs {
			all = append(all, c.explain(cmd.Context(), obj))
		}
		return c.write(cmd.OutOrStdout(), *asJSON, map[string]any{"node": node, "requests": all}, func(p *page) {
			for _, e := range all {
				p.explanation(e)
			}
			if len(all) == 0 {
				p.title("There is no request for node " + strconv.Quote(csr.Shorten(node)) + ". Requests are deleted after use. If the " +
					"node has no certificate, find out whether its kubelet runs and reaches the API server (journalctl -u kubelet).")
			}
		})
	})
	return cmd
}

// newestOf returns, for each signer of kubelets, the newest credible request of node, or the newest one if none is.
func (c *cluster) newestOf(ctx context.Context, node string) (all []*certificatesv1.CertificateSigningRequest, err error) {
	err = c.ofNode(ctx, node, func(obj *certificatesv1.CertificateSigningRequest) { all = append(all, obj) })
	slices.SortFunc(all, func(a, b *certificatesv1.CertificateSigningRequest) int {
		rank := map[bool]int{true: 0, false: 1}
		return cmp.Or(cmp.Compare(a.Spec.SignerName, b.Spec.SignerName),
			cmp.Compare(rank[credible(a, node)], rank[credible(b, node)]), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	return slices.CompactFunc(all, func(a, b *certificatesv1.CertificateSigningRequest) bool {
		return a.Spec.SignerName == b.Spec.SignerName
	}), err
}

// credible reports whether the node itself or a bootstrap token has made obj. Other requesters can write the name of
// the node, too.
func credible(obj *certificatesv1.CertificateSigningRequest, node string) bool {
	return obj.Spec.Username == csr.NodeUserPrefix+node || slices.ContainsFunc(obj.Spec.Groups, check.IsBootstrapGroup)
}

// explain collects what is known about obj.
func (c *cluster) explain(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *explanation {
	e := &explanation{Facts: factsOf(obj)}
	var err error
	if e.Said, err = c.said(ctx, obj); err != nil {
		e.Unknown = append(e.Unknown, err.Error())
	}
	if e.Leaders, err = c.leaders(ctx); err != nil {
		e.Unknown = append(e.Unknown, err.Error())
	}
	alive := err != nil || slices.ContainsFunc(e.Leaders, func(each leader) bool { return each.Alive })
	e.NextStep, e.Command = e.nextStep(current(e.Said, obj, c.now()), alive)
	return e
}

// nextStep returns what to do about a request, and a command that does it, if there is one. It follows from the object,
// and then from what the manager said last, while that stands. alive says that a manager runs, or that it is not known.
func (e *explanation) nextStep(said *statement, alive bool) (text, command string) {
	switch {
	case e.State == csr.Issued:
		return "Nothing to do: the request has its certificate.", ""
	case inCharge(e.State) == "":
		text = "Correct what the condition names, then make a new request. A kubelet makes one when it restarts."
		for _, each := range e.Conditions {
			if string(each.Type) == string(e.State) {
				text = cmp.Or(reasonStep(e.State, each.Reason), text)
			}
		}
		return text, ""
	case e.obj.DeletionTimestamp != nil:
		return "The request is being deleted, and waits for its finalizers. Make a new request.", ""
	case e.Refusal != nil:
		return fmt.Sprintf("The signer would refuse the request (%s): %s. %s",
			e.Refusal.Reason, e.Refusal.Message, reasonStep(csr.Approved, e.Refusal.Reason)), ""
	case said != nil:
		return e.stepAfter(said.Reason)
	case !alive:
		return "No manager renews its Lease in the namespaces that were read: run \"kubectl csr check\". If the manager runs in " +
			"another namespace, name it with -n.", ""
	case e.State == csr.Approved:
		return "Wait a minute. If the request stays without a certificate and without an Event, no manager serves this signer: " +
			"find out which program signs for it.", ""
	}
	return "Wait a minute. If the request stays without an Event, no rule of a manager is for this signer: if you know who made " +
		"the request and why, approve it by hand.", "kubectl csr approve " + check.Argument(e.obj.Name)
}

// stepAfter returns the next step after a reason of the controller in charge. The page of reasons says what to do about a
// requester without permission for the kubelets' signer; for the others, the Event names the approval rules.
func (e *explanation) stepAfter(reason string) (text, command string) {
	text = reasonStep(e.State, reason)
	if reason == "NotAuthorized" {
		if e.Signer != certificatesv1.KubeAPIServerClientKubeletSignerName {
			text = ""
		} else if special, bind := check.BindRequester(e.req); special+bind != "" {
			text, command = cmp.Or(special, text), bind
		}
	}
	return cmp.Or(text, "Do what the manager's Event says."), command
}

// explanation writes e.
func (p *page) explanation(e *explanation) {
	p.title(fmt.Sprintf("CertificateSigningRequest %q: %s", e.Name, e.State))
	p.title("Next step")
	p.line("  " + e.NextStep)
	if e.Command != "" {
		p.line("    " + e.Command)
	}
	p.facts(e.Facts)
	p.said(e.Said, 5)
	p.title("Managers, by their Leases (anyone who may write these Leases can write this)")
	for _, each := range e.Leaders {
		alive := map[bool]string{true: "alive", false: "not alive"}[each.Alive]
		p.row(alive, fmt.Sprintf("%s, held by %q, renewed %s", each.Lease, each.Holder, p.age(each.Renewed)))
	}
	if len(e.Leaders) == 0 {
		p.line("  none found")
	}
	for _, unknown := range e.Unknown {
		p.row("unknown", unknown)
	}
}

// said writes at most limit of all statements, the newest ones.
func (p *page) said(all []statement, limit int) {
	p.title("Said by the manager (anyone who may create Events can write this)")
	for _, said := range all[:min(len(all), limit)] {
		p.row(p.age(said.At), said.By+" "+said.Reason, said.Message)
	}
	if len(all) == 0 {
		p.line("  nothing")
	}
}

// reasonRow matches the title of a section, or a row | `Reason` | meaning | next step |.
var reasonRow = regexp.MustCompile("(?m)^## (.+)$|^\\| `(\\w+)` \\| .* \\| (.*) \\|$")

// nextSteps returns the next steps in the tables of docs/reference/reasons.md, by "section/reason".
var nextSteps = sync.OnceValue(func() map[string]string {
	section, steps := "", map[string]string{}
	for _, found := range reasonRow.FindAllStringSubmatch(docs.Reasons, -1) {
		section = cmp.Or(found[1], section)
		steps[section+"/"+found[2]] = found[3]
	}
	return steps
})

// reasonStep returns what to do about a reason of the manager about a request in that state, or nothing.
func reasonStep(state csr.State, reason string) string {
	if strings.HasPrefix(reason, "Would") {
		return "The manager is in a dry run, and only reports what it would do: remove the controller from dryRun."
	}
	section := "Signer"
	if state == csr.Pending || state == csr.Denied {
		section = "Approver"
	}
	for _, section := range []string{section, "Approver and signer"} {
		if step := nextSteps()[section+"/"+reason]; step != "" && step != "Nothing." {
			return step
		}
	}
	return ""
}
