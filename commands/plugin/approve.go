package plugin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// approvedByHand is the reason of the Approved condition.
	approvedByHand = "ApprovedByHand"
	// handManager is the field manager of approvals by hand.
	handManager = "kubectl-csr-approve"
	// blockListName is the ConfigMap of the manifests with blocked nodes and certificates.
	blockListName = "csr-node-block-list"
)

// outcome is the result for one request.
type outcome struct {
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	Signer    string `json:"signer"`
	Requester string `json:"requester"`
	Approved  bool   `json:"approved"`
	// Problem says why the request was not approved, and NextStep what to do instead.
	Problem  string `json:"problem,omitempty"`
	NextStep string `json:"nextStep,omitempty"`

	obj   *certificatesv1.CertificateSigningRequest
	facts *explain.Facts
}

// approval approves requests for one run of the command.
type approval struct {
	*cluster
	node, blockList string
	yes             bool
	aside           io.Writer
}

// approveCommand returns the command that approves requests by hand.
func approveCommand(connect connector) *cobra.Command {
	a := &approval{}
	cmd := &cobra.Command{
		Use:   "approve {NAME… | --node NODE}",
		Short: "Approve requests by hand, after you have seen what they ask for",
		Long: `approve shows each request: its subject, names, requester and age, and what the manager said last. It asks, and
then approves the requests with your rights. It refuses a request that the signer would refuse, as far as the object shows
it, and a request that the block list names. With --node it takes the pending requests for kubelet certificates of a
node, if the node itself or a bootstrap token has made them. The exit code is 1 if a request was not approved.`,
		Args: namesOr(&a.node, math.MaxInt),
	}
	cmd.Flags().StringVar(&a.node, "node", "", "approve the pending requests of the node with this `name`")
	cmd.Flags().BoolVar(&a.yes, "yes", false, "approve without asking; not with --node")
	cmd.Flags().StringVar(&a.blockList, "block-list", blockListName,
		"`name` of the ConfigMap with blocked nodes and certificates, in the namespace of the manager or as namespace/name; "+
			"empty for none")
	asJSON := jsonFlag(cmd)
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, args []string) error {
		switch {
		case *asJSON && !a.yes:
			return errors.New("-o json asks nothing: add --yes")
		case a.yes && a.node != "":
			return errors.New("--yes needs the names of the requests: other requesters can make requests for a node, too")
		}
		a.cluster, a.aside = c, cmd.ErrOrStderr()
		all, err := a.outcomes(cmd.Context(), args)
		if err != nil {
			return err
		}
		if err := a.decide(cmd.Context(), all, cmd.InOrStdin()); err != nil {
			return err
		}
		if err := writeOutcomes(cmd.OutOrStdout(), *asJSON, all); err != nil {
			return err
		}
		refused := 0
		for i := range all {
			if !all[i].Approved {
				refused++
			}
		}
		if refused > 0 {
			return fmt.Errorf("%d of %d requests not approved", refused, len(all))
		}
		return nil
	})
	return cmd
}

// outcomes returns the requests with these names, or the pending ones of a node. Those with a Problem are not approved.
func (a *approval) outcomes(ctx context.Context, names []string) ([]outcome, error) {
	var objs []*certificatesv1.CertificateSigningRequest
	for _, name := range names {
		obj, err := a.request(ctx, name)
		if err != nil {
			return nil, err
		}
		objs = append(objs, obj)
	}
	if a.node != "" {
		found, err := a.ofNode(ctx, a.node)
		if err != nil {
			return nil, err
		}
		for _, obj := range found {
			builtin, _ := csr.BuiltinSigner(obj.Spec.SignerName)
			if csr.StateOf(obj) == csr.Pending && builtin.Contents.CommonNamePrefix != "" {
				objs = append(objs, obj)
			}
		}
		if len(objs) == 0 {
			return nil, fmt.Errorf("node %q has no pending request for a kubelet certificate; \"kubectl csr pending\" lists "+
				"the requests that wait", a.node)
		}
	}
	blocked := a.readBlockList(ctx)
	all := make([]outcome, len(objs))
	for i, obj := range objs {
		facts, req := explain.Of(obj)
		problem, nextStep := a.problem(obj, facts, req, blocked)
		all[i] = outcome{
			Name: facts.Name, Node: facts.Node, Signer: facts.Signer, Requester: facts.Requester,
			Problem: problem, NextStep: nextStep, obj: obj, facts: facts,
		}
	}
	return all, nil
}

// problem returns why a request must not be approved, and what to do instead.
func (a *approval) problem(
	obj *certificatesv1.CertificateSigningRequest, facts *explain.Facts, req *csr.Request, blocked blockList,
) (problem, nextStep string) {
	switch {
	case facts.State != csr.Pending:
		return fmt.Sprintf("the request is already %s", strings.ToLower(string(facts.State))), ""
	case obj.DeletionTimestamp != nil:
		return "the request is being deleted", "Make a new request."
	case facts.Refusal != nil:
		return fmt.Sprintf("the signer would refuse the request (%s): %s", facts.Refusal.Reason, facts.Refusal.Message),
			explain.NextStep(csr.Approved, facts.Refusal.Reason)
	case a.node != "" && !credible(obj, a.node):
		return fmt.Sprintf("%q, who is neither the node nor a bootstrap token, has made the request", facts.Requester),
			"If you know who that is and why it asks for this node's certificate, approve the request by its name."
	case blocked.unread != "":
		return "it is unknown whether the node is blocked: the block list is " + blocked.unread,
			"Run the command as a user who may get this ConfigMap, or with --block-list= if nothing is blocked."
	}
	if reason := blocked.reason(req); reason != "" {
		return fmt.Sprintf("%s: the block list, ConfigMap %s, names it", reason, a.blockList), explain.NextStep(csr.Pending, reason)
	}
	return "", ""
}

// blockList holds the lines of the ConfigMap that the manager reads. It only ever refuses a request.
type blockList struct {
	nodes, certificates string
	unread              string // why the list can't be read; empty if it was read, or if there is none
}

// readBlockList reads the block list. A list that does not exist blocks nothing.
func (a *approval) readBlockList(ctx context.Context) blockList {
	if a.blockList == "" {
		return blockList{}
	}
	if !strings.Contains(a.blockList, "/") {
		a.blockList = cmp.Or(a.namespace, defaultNamespace) + "/" + a.blockList
	}
	namespace, name, _ := strings.Cut(a.blockList, "/")
	obj, err := a.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, _ = fmt.Fprintf(a.aside, "There is no block list %s.\n", oneLine(a.blockList))
		return blockList{}
	case err != nil:
		return blockList{unread: check.ReadError("get ConfigMap "+a.blockList, err)}
	}
	return blockList{nodes: strings.ToLower(obj.Data["nodes"]), certificates: strings.ToLower(obj.Data["certificates"])}
}

// reason returns NodeBlocked or CertificateBlocked if the list names the node that req is for or comes from, or the
// certificate with which it was made.
func (b blockList) reason(req *csr.Request) string {
	from := strings.TrimPrefix(req.Requester.Username, csr.NodeUserPrefix)
	for line := range strings.Lines(b.nodes) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" &&
			(strings.EqualFold(line, req.NodeName()) || strings.EqualFold(line, from)) {
			return "NodeBlocked"
		}
	}
	digits := strings.ReplaceAll(b.certificates, ":", "") // as openssl prints a digest
	for _, sum := range req.Requester.Certificates() {
		if strings.Contains(digits, sum) {
			return "CertificateBlocked"
		}
	}
	return ""
}

// decide shows the requests without a problem, asks whether to approve them unless --yes is given, and approves them.
func (a *approval) decide(ctx context.Context, all []outcome, in io.Reader) error {
	var open []*outcome
	for i := range all {
		if all[i].Problem == "" {
			open = append(open, &all[i])
			if err := a.show(ctx, &all[i]); err != nil {
				return err
			}
		}
	}
	if len(open) == 0 {
		return nil
	}
	confirmed := a.yes
	if !confirmed {
		_, _ = fmt.Fprintf(a.aside, "\nApprove %d of %d requests? [y/N] ", len(open), len(all))
		answer, _ := bufio.NewReader(in).ReadString('\n') // an end of the input is a no
		confirmed = slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
	}
	user := a.whoAmI(ctx)
	for _, each := range open {
		each.Problem = "you did not confirm it"
		if confirmed {
			each.Approved, each.Problem, each.NextStep = a.approve(ctx, each.obj, user)
		}
	}
	return nil
}

// show writes what a person must know before the approval.
func (a *approval) show(ctx context.Context, one *outcome) error {
	page := explain.NewPage(a.now())
	page.Title(fmt.Sprintf("CertificateSigningRequest %q", one.Name))
	page.Facts(one.facts)
	said, err := a.said(ctx, one.obj)
	writeSaid(page, said, 1)
	if err != nil {
		page.Row("unknown", err.Error())
	}
	_, err = io.WriteString(a.aside, "\n"+page.String())
	return err
}

// whoAmI returns the user of the command, in the words of a sentence.
func (a *approval) whoAmI(ctx context.Context) string {
	review, err := a.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username == "" {
		return "an unknown user"
	}
	return fmt.Sprintf("user %q", csr.Shorten(review.Status.UserInfo.Username))
}

// approve stores the approval in obj, which is the object that was shown. If it has changed since, the API server
// refuses the write.
func (a *approval) approve(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, user string,
) (approved bool, problem, nextStep string) {
	obj = obj.DeepCopy()
	message := ascii.Quote(fmt.Sprintf("Approved by hand by %s with kubectl csr approve.", user))
	csr.AddCondition(obj, certificatesv1.CertificateApproved, approvedByHand, message, time.Time{})
	_, err := a.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, obj.Name, obj,
		metav1.UpdateOptions{FieldManager: handManager})
	again := "To see what has happened to it: kubectl csr explain " + check.Argument(obj.Name)
	switch {
	case err == nil:
		return true, "", ""
	case apierrors.IsForbidden(err):
		return false, "the API server does not permit it: " + err.Error(),
			"Run the command as a user who may update certificatesigningrequests/approval and approve for this signer."
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, "the request has changed or was deleted since it was read", again
	default:
		return false, "the API server did not confirm the approval, which may be stored or not: " + err.Error(), again
	}
}

// writeOutcomes writes all as JSON or as text.
func writeOutcomes(out io.Writer, asJSON bool, all []outcome) error {
	if asJSON {
		return writeJSON(out, all)
	}
	var text strings.Builder
	for _, each := range all {
		outcome := "approved"
		if !each.Approved {
			outcome = "not approved: " + each.Problem
		}
		text.WriteString(oneLine(check.Word(each.Name)+"  "+outcome) + "\n")
		if each.NextStep != "" {
			text.WriteString("  -> " + oneLine(each.NextStep) + "\n")
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}
