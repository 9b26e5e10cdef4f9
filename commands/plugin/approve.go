package plugin

import (
	"bufio"
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

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// approvedByHand is the reason of the Approved condition.
	approvedByHand = "ApprovedByHand"
	// handManager is the field manager of approvals by hand.
	handManager = "kubectl-csr-approve"
	// blockListName is the ConfigMap of the manifests with blocked nodes and certificates.
	blockListName = "csr-node-block-list"
	// mostNotOffered bounds the requests that --node lists and does not offer: any user can make many.
	mostNotOffered = 20
)

// outcome is the result for one request.
type outcome struct {
	*Facts
	Approved bool `json:"approved"`
	// Problem says why the request was not approved, and NextStep what to do instead.
	Problem  string `json:"problem,omitempty"`
	NextStep string `json:"nextStep,omitempty"`
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
		Long: `approve shows each request: its subject, names, requester and age, what the manager's rules say about a request of a
kubelet, and Events about it. It asks, and then approves the requests with your rights. It refuses a request that the signer
would refuse, as far as the object shows it, and a request that the block list names. With --node it offers the pending
requests for kubelet certificates of a node that the manager's rules let pass, and says why it does not offer others. The
exit code is 1 if a request was not approved.`,
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
		if err := c.write(cmd.OutOrStdout(), *asJSON, all, func(p *page) { p.outcomes(all) }); err != nil {
			return err
		}
		refused := slices.DeleteFunc(slices.Clone(all), func(each *outcome) bool { return each.Approved })
		if len(refused) > 0 {
			return fmt.Errorf("%d of %d requests not approved", len(refused), len(all))
		}
		return nil
	})
	return cmd
}

// outcomes returns the requests with these names, or the pending ones of a node. Those with a Problem are not approved.
func (a *approval) outcomes(ctx context.Context, names []string) (all []*outcome, err error) {
	blocked, unread := a.readBlockList(ctx)
	notOffered := 0
	add := func(obj *certificatesv1.CertificateSigningRequest) {
		each := &outcome{Facts: factsOf(obj)}
		if each.Problem, each.NextStep = a.problem(ctx, each.Facts, blocked, unread); a.node != "" && each.Problem != "" {
			if notOffered++; notOffered > mostNotOffered {
				return
			}
		}
		all = append(all, each)
	}
	for _, name := range names {
		obj, err := a.request(ctx, name)
		if err != nil {
			return nil, err
		}
		add(obj)
	}
	if a.node != "" {
		err = a.ofNode(ctx, a.node, func(obj *certificatesv1.CertificateSigningRequest) {
			if csr.StateOf(obj) == csr.Pending {
				add(obj)
			}
		})
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("node %q has no pending request for a kubelet certificate; \"kubectl csr pending\" lists the requests "+
				"that wait", a.node)
		}
	}
	if notOffered > mostNotOffered {
		_, _ = fmt.Fprintf(a.aside, "%d more requests for this node are not offered.\n", notOffered-mostNotOffered)
	}
	return all, err
}

// problem returns why a request must not be approved, and what to do instead. With --node, that is also a request that the
// manager's rules do not let pass.
func (a *approval) problem(ctx context.Context, facts *Facts, blocked entries.Entries, unread string) (problem, nextStep string) {
	switch {
	case facts.State != csr.Pending:
		return "the request is already " + strings.ToLower(string(facts.State)), ""
	case facts.obj.DeletionTimestamp != nil:
		return "the request is being deleted", "Make a new request."
	case facts.Refusal != nil:
		return fmt.Sprintf("the signer would refuse the request (%s): %s", facts.Refusal.Reason, facts.Refusal.Message),
			reasonStep(csr.Approved, facts.Refusal.Reason)
	case unread != "":
		return "it is unknown whether the node is blocked: the block list is " + unread,
			"Correct the ConfigMap, or get the right to read it. If nothing is blocked, use --block-list=."
	}
	if decision := blocked.Check(facts.req, a.blockList); decision.Made() {
		return decision.Reason + ": " + decision.Message, reasonStep(csr.Pending, decision.Reason)
	}
	a.judge(ctx, facts)
	if a.node != "" && !facts.passes {
		return fmt.Sprintf("not offered, because the manager's rules do not let it pass (%s): %s", facts.Judged.Reason, facts.Judged.Message),
			reasonStep(csr.Pending, facts.Judged.Reason) + " If you know who made the request and why, approve it by its name."
	}
	return "", ""
}

// readBlockList returns what the manager's block list blocks, or why that is unknown. It only ever refuses a request. A list
// that does not exist blocks nothing. Of a list with mistakes the rest counts, as for the manager.
func (a *approval) readBlockList(ctx context.Context) (blocked entries.Entries, unread string) {
	if a.blockList == "" {
		return blocked, ""
	}
	list := a.listName(a.blockList)
	a.blockList = list.String()
	obj, err := a.CoreV1().ConfigMaps(list.Namespace).Get(ctx, list.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, _ = fmt.Fprintf(a.aside, "There is no block list %s.\n", oneLine(a.blockList))
		return blocked, ""
	}
	if err != nil {
		return blocked, check.ReadError("get ConfigMap "+a.blockList, err)
	}
	blocked, problems, err := entries.ParseConfigMap(obj)
	if err != nil {
		return blocked, fmt.Sprintf("not valid: ConfigMap %s: %v", a.blockList, err)
	}
	for _, problem := range problems {
		_, _ = fmt.Fprintf(a.aside, "The block list has a mistake, which is ignored: %s.\n", oneLine(problem))
	}
	return blocked, ""
}

// decide shows the requests without a problem, asks whether to approve them unless --yes is given, and approves them.
func (a *approval) decide(ctx context.Context, all []*outcome, in io.Reader) error {
	open := slices.DeleteFunc(slices.Clone(all), func(each *outcome) bool { return each.Problem != "" })
	for _, each := range open {
		said, err := a.said(ctx, each.obj)
		writeErr := a.write(a.aside, false, nil, func(p *page) {
			p.line("")
			p.line(fmt.Sprintf("CertificateSigningRequest %q", each.Name))
			p.facts(each.Facts)
			p.said(said)
			if err != nil {
				p.row("unknown", err.Error())
			}
		})
		if writeErr != nil {
			return writeErr
		}
	}
	if len(open) == 0 {
		return nil
	}
	if !a.yes {
		if !confirmed(in, a.aside, fmt.Sprintf("Approve %d of %d requests", len(open), len(all))) {
			for _, each := range open {
				each.Problem = "you did not confirm it"
			}
			return nil
		}
		a.objects, a.answers = nil, map[string]bool{} // what is known may have changed while the person read
		blocked, unread := a.readBlockList(ctx)
		for _, each := range open {
			each.Problem, each.NextStep = a.problem(ctx, each.Facts, blocked, unread)
		}
	}
	user := "an unknown user"
	if me, err := a.self(ctx); err == nil && me.Username != "" {
		user = fmt.Sprintf("user %q", csr.Shorten(me.Username))
	}
	message := ascii.Quote("Approved by hand by " + user + " with kubectl csr approve.")
	for _, each := range open {
		if each.Problem == "" {
			each.Problem, each.NextStep = a.approve(ctx, each.obj.DeepCopy(), message)
			each.Approved = each.Problem == ""
		}
	}
	return nil
}

// confirmed asks a person, and reports whether the answer is yes.
func confirmed(in io.Reader, aside io.Writer, question string) bool {
	_, _ = fmt.Fprintf(aside, "\n%s? [y/N] ", question)
	answer, _ := bufio.NewReader(in).ReadString('\n') // an end of the input is a no
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// self returns the user of the plugin as API servers see it.
func (c *cluster) self(ctx context.Context) (me csr.Requester, err error) {
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return me, err
	}
	info := review.Status.UserInfo
	me = csr.Requester{Username: info.Username, Groups: info.Groups, Extra: map[string]certificatesv1.ExtraValue{}}
	for key, values := range info.Extra {
		me.Extra[key] = certificatesv1.ExtraValue(values)
	}
	return me, nil
}

// approve stores the approval in obj, which is the object that was shown. If it has changed since, the API server
// refuses the write.
func (a *approval) approve(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, message string) (problem, nextStep string) {
	csr.AddCondition(obj, certificatesv1.CertificateApproved, approvedByHand, message, time.Time{})
	_, err := a.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, obj.Name, obj,
		metav1.UpdateOptions{FieldManager: handManager})
	again := "To see what has happened to it: " + commandFor("kubectl csr explain", obj.Name)
	switch {
	case err == nil:
		return "", ""
	case apierrors.IsForbidden(err):
		return "the API server does not permit it: " + err.Error(),
			"Run the command as a user who may update certificatesigningrequests/approval and approve for this signer."
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return "the request has changed or was deleted since it was read", again
	default:
		return "the API server did not confirm the approval, which may be stored or not: " + err.Error(), again
	}
}

// outcomes writes all.
func (p *page) outcomes(all []*outcome) {
	for _, each := range all {
		if each.Approved {
			p.line(check.Word(each.Name) + "  approved")
			continue
		}
		p.line(check.Word(each.Name) + "  not approved: " + each.Problem)
		if each.NextStep != "" {
			p.line("  -> " + each.NextStep)
		}
	}
}
