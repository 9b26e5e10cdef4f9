package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// explanation is what is known about one request.
type explanation struct {
	*explain.Facts
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
		var objs []*certificatesv1.CertificateSigningRequest
		state := ""
		if node != "" {
			var err error
			if objs, err = c.newestOf(cmd.Context(), node); err != nil {
				return err
			}
			state = c.nodeState(cmd.Context(), node)
		} else {
			obj, err := c.request(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			objs = append(objs, obj)
		}
		all := []*explanation{} // never null
		for _, obj := range objs {
			all = append(all, c.explain(cmd.Context(), obj))
		}
		switch {
		case *asJSON && node == "":
			return writeJSON(cmd.OutOrStdout(), all[0])
		case *asJSON:
			return writeJSON(cmd.OutOrStdout(), map[string]any{"node": node, "state": state, "requests": all})
		}
		return c.writeExplanations(cmd.OutOrStdout(), all, node, state)
	})
	return cmd
}

// explain collects what is known about obj.
func (c *cluster) explain(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *explanation {
	facts, _ := explain.Of(obj)
	e := &explanation{Facts: facts}
	var err error
	if e.Said, err = c.said(ctx, obj); err != nil {
		e.Unknown = append(e.Unknown, err.Error())
	}
	if e.Leaders, err = c.leaders(ctx); err != nil {
		e.Unknown = append(e.Unknown, err.Error())
	}
	alive := err != nil || slices.ContainsFunc(e.Leaders, func(each leader) bool { return each.Alive })
	e.NextStep, e.Command = e.nextStep(obj, current(e.Said, obj, c.now()), alive)
	return e
}

// nextStep returns what to do about obj, and a command that does it, if there is one. It follows from the object, and
// then from what the manager said last, while that stands. alive says that a manager runs, or that it is not known.
func (e *explanation) nextStep(
	obj *certificatesv1.CertificateSigningRequest, said *statement, alive bool,
) (text, command string) {
	switch {
	case inCharge(e.State) == "":
		return e.afterEnd(), ""
	case e.Refusal != nil:
		return fmt.Sprintf("The signer would refuse the request (%s): %s. %s",
			e.Refusal.Reason, e.Refusal.Message, explain.NextStep(csr.Approved, e.Refusal.Reason)), ""
	case said != nil && said.Reason == "NotAuthorized":
		advice := check.BindRequester(obj)
		if _, command, found := strings.Cut(advice, ": kubectl create"); found {
			return explain.NextStep(e.State, said.Reason), "kubectl create" + command
		}
		return strings.ToUpper(advice[:1]) + advice[1:] + ".", ""
	case said != nil:
		return cmp.Or(explain.NextStep(e.State, said.Reason), "Do what the manager's Event says."), ""
	case !alive:
		return "No manager renews its Lease in the namespaces that were read: run \"kubectl csr check\". If the manager runs in " +
			"another namespace, name it with -n.", ""
	case e.State == csr.Approved:
		return "Wait a minute. If the request stays without a certificate and without an Event, no manager serves this signer: " +
			"find out which program signs for it.", ""
	}
	return "Wait a minute. If the request stays without an Event, no rule of a manager is for this signer: if you know who made " +
		"the request and why, approve it by hand.", "kubectl csr approve " + check.Argument(obj.Name)
}

// afterEnd returns what to do about a request that is issued, denied or failed.
func (e *explanation) afterEnd() string {
	if e.State == csr.Issued {
		return "Nothing to do: the request has its certificate."
	}
	for _, condition := range e.Conditions {
		if text := explain.NextStep(e.State, condition.Reason); text != "" && condition.Type == string(e.State) {
			return text
		}
	}
	return "Correct what the condition names, then make a new request. A kubelet makes one when it restarts."
}

// writeExplanations writes all as text. node and state are empty for one request by name.
func (c *cluster) writeExplanations(out io.Writer, all []*explanation, node, state string) error {
	page := explain.NewPage(c.now())
	if node != "" {
		page.Title("Node " + strconv.Quote(csr.Shorten(node)))
		page.Text(state)
		if len(all) == 0 {
			page.Text("There is no request for it. Requests are deleted after use. If the node has no certificate, find out " +
				"whether its kubelet runs and reaches the API server (journalctl -u kubelet).")
		}
	}
	for _, e := range all {
		page.Title(fmt.Sprintf("CertificateSigningRequest %q: %s", e.Name, e.State))
		page.Title("Next step")
		page.Text(e.NextStep)
		page.Command(e.Command)
		page.Facts(e.Facts)
		writeSaid(page, e.Said, 5)
		page.Title("Managers, by their Leases (anyone who may write these Leases can write this)")
		for _, each := range e.Leaders {
			page.Row(map[bool]string{true: "alive", false: "not alive"}[each.Alive],
				fmt.Sprintf("%s, held by %q, renewed %s", each.Lease, each.Holder, page.Age(each.Renewed)))
		}
		if len(e.Leaders) == 0 {
			page.Text("none found")
		}
		for _, unknown := range e.Unknown {
			page.Row("unknown", unknown)
		}
	}
	_, err := io.WriteString(out, page.String())
	return err
}

// writeSaid writes the newest statements of all, at most that many.
func writeSaid(page *explain.Page, all []statement, most int) {
	page.Title("Said by the manager (anyone who may create Events can write this)")
	for _, said := range all[:min(len(all), most)] {
		page.Row(page.Age(said.At), said.By+" "+said.Reason, said.Message)
	}
	if len(all) == 0 {
		page.Text("nothing")
	} else if len(all) > most {
		page.Text(fmt.Sprintf("and %d older Events", len(all)-most))
	}
}

// credible reports whether the node itself or a bootstrap token has made obj. Other requesters can write the name of
// the node, too.
func credible(obj *certificatesv1.CertificateSigningRequest, node string) bool {
	return obj.Spec.Username == csr.NodeUserPrefix+node || slices.ContainsFunc(obj.Spec.Groups, check.IsBootstrapGroup)
}

// ofNode returns all requests for the certificates of node.
func (c *cluster) ofNode(ctx context.Context, node string) ([]*certificatesv1.CertificateSigningRequest, error) {
	var found []*certificatesv1.CertificateSigningRequest
	err := c.requests(ctx, metav1.ListOptions{}, func(obj *certificatesv1.CertificateSigningRequest) {
		if req, err := csr.Parse(obj); err == nil && req.NodeName() == node {
			found = append(found, obj.DeepCopy()) // the page itself can be released
		}
	})
	return found, err
}

// newestOf returns, for each signer of kubelets, the newest credible request of node, or the newest one if none is.
func (c *cluster) newestOf(ctx context.Context, node string) ([]*certificatesv1.CertificateSigningRequest, error) {
	all, err := c.ofNode(ctx, node)
	slices.SortFunc(all, func(a, b *certificatesv1.CertificateSigningRequest) int {
		if credible(a, node) != credible(b, node) {
			return map[bool]int{true: -1, false: 1}[credible(a, node)]
		}
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	var newest []*certificatesv1.CertificateSigningRequest
	for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName} {
		ofSigner := func(obj *certificatesv1.CertificateSigningRequest) bool { return obj.Spec.SignerName == signer }
		if i := slices.IndexFunc(all, ofSigner); i >= 0 {
			newest = append(newest, all[i])
		}
	}
	return newest, err
}

// nodeState says whether the Node exists and is Ready.
func (c *cluster) nodeState(ctx context.Context, name string) string {
	node, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "there is no such Node"
	case err != nil:
		return check.ReadError("get the node", err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return fmt.Sprintf("Ready is %s: %s", condition.Status, csr.Shorten(condition.Message))
		}
	}
	return "it has no condition Ready"
}
