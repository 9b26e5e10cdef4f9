package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

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
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&node, "node", "", "explain the newest requests of the node with this `name`")
	format := formatFlag(cmd)
	check := func(args []string) error {
		if len(args) > 1 {
			return noArgs(args[1:])
		}
		return cmp.Or(oneOf(args, node), checkFormat(*format))
	}
	cmd.RunE = run(connect, check, func(cmd *cobra.Command, c *cluster, args []string) error {
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
		if *format == "json" && node == "" {
			return writeJSON(cmd.OutOrStdout(), all[0])
		}
		if *format == "json" {
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
	var eventsErr, leasesErr error
	e.Said, eventsErr = c.said(ctx, obj)
	e.Leaders, leasesErr = c.leaders(ctx)
	for _, err := range []error{eventsErr, leasesErr} {
		if err != nil {
			e.Unknown = append(e.Unknown, err.Error())
		}
	}
	e.NextStep, e.Command = e.nextStep(obj, current(e.Said, obj, c.now()), leasesErr == nil)
	return e
}

// nextStep returns what to do about obj, and a command that does it, if there is one. It follows from the object, and
// then from what the manager said last, while that stands.
func (e *explanation) nextStep(
	obj *certificatesv1.CertificateSigningRequest, said *statement, leasesRead bool,
) (text, command string) {
	switch {
	case inCharge(e.State) == "":
		return e.afterEnd(), ""
	case e.Refusal != nil:
		return fmt.Sprintf("The signer would refuse the request (%s): %s. %s",
			e.Refusal.Reason, e.Refusal.Message, explain.NextStep(csr.Approved, e.Refusal.Reason)), ""
	case said != nil && said.Reason == "NotAuthorized":
		advice := check.BindRequester(obj)
		if _, found, ok := strings.Cut(advice, ": kubectl create"); ok {
			command = "kubectl create" + found
		}
		if command == "" {
			return ended(advice), ""
		}
		return explain.NextStep(e.State, said.Reason), command
	case said != nil:
		return cmp.Or(explain.NextStep(e.State, said.Reason), "Do what the manager's Event says."), ""
	case leasesRead && !anyAlive(e.Leaders):
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

// ended returns advice as a sentence.
func ended(advice string) string { return strings.ToUpper(advice[:1]) + advice[1:] + "." }

func anyAlive(leaders []leader) bool {
	for _, each := range leaders {
		if each.Alive {
			return true
		}
	}
	return false
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
		page.Title("Said by the manager (anyone who may create Events can write this)")
		if len(e.Said) == 0 {
			page.Text("nothing")
		}
		for i, said := range e.Said {
			if i == 5 {
				page.Text(fmt.Sprintf("and %d older Events", len(e.Said)-i))
				break
			}
			page.Row(page.Age(said.At), said.By+" "+said.Reason, said.Message)
		}
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

// credible reports whether the node itself or a bootstrap token has made obj. Other requesters can write the name of
// the node, too.
func credible(obj *certificatesv1.CertificateSigningRequest, node string) bool {
	if obj.Spec.Username == csr.NodeUserPrefix+node {
		return true
	}
	for _, group := range obj.Spec.Groups {
		if check.IsBootstrapGroup(group) {
			return true
		}
	}
	return false
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
	if err != nil {
		return nil, err
	}
	var newest []*certificatesv1.CertificateSigningRequest
	for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName} {
		var best *certificatesv1.CertificateSigningRequest
		for _, obj := range all {
			switch {
			case obj.Spec.SignerName != signer:
			case best == nil,
				credible(obj, node) && !credible(best, node),
				credible(obj, node) == credible(best, node) && best.CreationTimestamp.Before(&obj.CreationTimestamp):
				best = obj
			}
		}
		if best != nil {
			newest = append(newest, best)
		}
	}
	return newest, nil
}

// nodeState says whether the Node exists and is Ready, and when its kubelet has renewed its Lease, which it can only do
// with a valid certificate.
func (c *cluster) nodeState(ctx context.Context, name string) string {
	lease, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	renewed := "its Lease was never renewed"
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		renewed = check.ReadError("get its lease", err)
	case lease.Spec.RenewTime != nil:
		renewed = "its Lease was renewed " + duration.HumanDuration(c.now().Sub(lease.Spec.RenewTime.Time)) + " ago"
	}
	node, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "there is no such Node; " + renewed
	case err != nil:
		return check.ReadError("get the node", err) + "; " + renewed
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return fmt.Sprintf("Ready is %s; %s", condition.Status, renewed)
		}
	}
	return "it has no condition Ready; " + renewed
}
