package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
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
	// Said holds the newest Events in the name of the manager.
	Said    []statement `json:"said"`
	Leaders []leader    `json:"leaders"`
	// Enforced says, if the block list stops the request, which API servers follow the list, and since when.
	Enforced []string `json:"enforced,omitempty"`
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
		Short: "Show a request, why it waits, and what to do",
		Long: `explain shows the content of a request and its conditions, what the manager's rules say about a request of a kubelet,
whether a manager renews its Lease, and what to do. It quotes Events, and nothing follows from them. With --node it shows the
newest request of the node for each of the two signers of kubelets. It changes nothing.`,
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

// newestOf returns one request for each signer of kubelets: the newest that the node itself has made, or else the newest of a
// bootstrap token, or else the newest of another user, because any user can write the name of the node.
func (c *cluster) newestOf(ctx context.Context, node string) (all []*certificatesv1.CertificateSigningRequest, err error) {
	rank := func(obj *certificatesv1.CertificateSigningRequest) int {
		who := csr.Requester{Username: obj.Spec.Username, Groups: obj.Spec.Groups}
		switch {
		case who.IsNode() && who.Username == csr.NodeUserPrefix+node:
			return 0
		case slices.ContainsFunc(who.Groups, check.IsBootstrapGroup):
			return 1
		}
		return 2
	}
	best := map[string]*certificatesv1.CertificateSigningRequest{}
	err = c.ofNode(ctx, node, func(obj *certificatesv1.CertificateSigningRequest) {
		before := best[obj.Spec.SignerName]
		if before == nil || cmp.Or(cmp.Compare(rank(obj), rank(before)), before.CreationTimestamp.Compare(obj.CreationTimestamp.Time)) < 0 {
			best[obj.Spec.SignerName] = obj
		}
	})
	for _, signer := range slices.Sorted(maps.Keys(best)) {
		all = append(all, best[signer])
	}
	return all, err
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
	c.judge(ctx, e.Facts)
	if e.req != nil && inCharge(e.State) != "" {
		list := &approval{cluster: c, blockList: blockListName, aside: io.Discard}
		blocked, unread := list.readBlockList(ctx)
		if unread != "" {
			e.Unknown = append(e.Unknown, "block list: "+unread)
		}
		if decision := blocked.Check(e.req, list.blockList); decision.Made() {
			e.Judged, e.passes = findingOf(decision), false
			servers, note := c.checkBlockList(ctx)
			for _, server := range servers {
				e.Enforced = append(e.Enforced, server.Subject+": "+server.Evidence)
			}
			if note != "" {
				e.Enforced = []string{note}
			}
		}
	}
	e.NextStep, e.Command = e.nextStep(alive)
	return e
}

// nextStep returns what to do about a request, and a command that does it, if there is one. It never follows from an Event, and
// gives the requester no right. alive says that a manager runs, or that it is not known.
func (e *explanation) nextStep(alive bool) (text, command string) {
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
	case e.Judged != nil && !e.passes:
		return fmt.Sprintf("The manager's rules do not let the request pass (%s, see rules), unless its configuration permits more. %s",
			e.Judged.Reason, reasonStep(e.State, e.Judged.Reason)), ""
	case !alive:
		return "No manager renews its Lease in the namespaces that were read: run \"kubectl csr check\". If the manager runs in " +
			"another namespace, name it with -n.", ""
	case e.State == csr.Approved:
		return "Wait a minute. If the request stays without a certificate, run \"kubectl csr check\", and read the log of the manager " +
			"and the Events below. If they do not name the request, no manager serves this signer.", ""
	}
	text = "Wait a minute. If the request stays pending, the log of the manager and the Events below say why."
	if e.passes {
		return text + " If you know who made the request and why, approve it by hand.", commandFor("kubectl csr approve", e.obj.Name)
	}
	return text + " Before you approve it by hand, find out who made it and why.", ""
}

// explanation writes e.
func (p *page) explanation(e *explanation) {
	p.title(fmt.Sprintf("CertificateSigningRequest %q: %s", e.Name, e.State))
	p.title("Next step")
	p.line("  " + e.NextStep)
	if e.Command != "" {
		p.line("    " + e.Command)
	}
	for _, server := range e.Enforced {
		p.line("  " + server)
	}
	p.facts(e.Facts)
	p.said(e.Said)
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

// said quotes Events.
func (p *page) said(all []statement) {
	p.title("Said in Events in the name of the manager (anyone who may create Events there can write this)")
	for _, said := range all {
		p.row(p.age(said.At), said.By+" "+cell(said.Reason)+"  "+strconv.Quote(said.Message))
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
