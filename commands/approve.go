package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/spf13/cobra"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// approveTimeout bounds all calls to the API server together.
	approveTimeout = 2 * time.Minute
	// approvedByHand is the reason of the Approved condition.
	approvedByHand = "ApprovedByHand"
	// handManager is the field manager of approvals by hand.
	handManager = "kubectl-csr-approve"
	// noRule is the reason to override if no rule approves requests for a signer.
	noRule = "NoRule"
)

// approveOptions are the flags of approve.
type approveOptions struct {
	node     string
	override []string
	dryRun   string
	format   *string
}

// NewApproveCommand returns the command that approves requests by hand.
func NewApproveCommand(source Source) *cobra.Command {
	o := &approveOptions{}
	cmd := &cobra.Command{
		Use:   "approve {NAME | --node NAME}",
		Short: "Approve requests by hand, after the rules were checked",
		Long: `approve checks a request against the same rules as the manager, prints what they say, and approves the
request if they permit it. --override approves a request although a rule refuses it: name the reason of the refusal. The
request is not approved if the signer would refuse it, if the block list names its node or the certificate of its
requester, or if the manager does not serve its signer. The exit code is 1 if a request was not approved.`,
		Args: MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return usageError(cmd, err)
			}
			return o.run(cmd, source, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&o.node, "node", "", "approve all pending requests of the node with this `name`, for the "+
		"signers that the manager approves")
	cmd.Flags().StringSliceVar(&o.override, "override", nil, "`reason` of a refusal to override, such as NotAuthorized; "+
		"several are separated by commas")
	cmd.Flags().StringVar(&o.dryRun, "dry-run", "none", "none, client (check the rules and write nothing), or server "+
		"(also send the approval, which the API server does not store)")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "client"
	o.format = outputFlag(cmd, "text")
	source.Bind(cmd, Configuration)
	return cmd
}

// check returns what is wrong with the flags and arguments.
func (o *approveOptions) check(args []string) error {
	err := checkOutput(*o.format)
	if (len(args) > 0) == (o.node != "") {
		err = errors.Join(err, errors.New("give the NAME of a request, or --node NAME"))
	}
	if !slices.Contains([]string{"none", "client", "server"}, o.dryRun) {
		err = errors.Join(err, fmt.Errorf("--dry-run=%s: use none, client or server", o.dryRun))
	}
	for _, reason := range o.override {
		switch {
		case slices.Contains(neverOverridden, reason):
			err = errors.Join(err, fmt.Errorf("--override %s: this reason cannot be overridden. %s", reason,
				explain.NextStep(reason)))
		case reason != noRule && !slices.Contains(explain.Reasons(), reason):
			err = errors.Join(err,
				fmt.Errorf("--override %s: unknown reason; docs/reference/reasons.md lists the reasons", reason))
		}
	}
	return err
}

func (o *approveOptions) run(cmd *cobra.Command, source Source, args []string) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), approveTimeout)
	defer cancel()
	e, server, setup, err := newExplainer(ctx, cmd, source)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := rulesAreKnown(cmd, setup); err != nil {
		return err
	}
	a := &byHand{api: server.api, explainer: e, program: programName(cmd), override: o.override, dryRun: o.dryRun}
	objs, err := a.requests(ctx, o.node, args)
	if err != nil {
		return err
	}
	outcomes, err := a.approve(ctx, objs)
	if err != nil {
		return err
	}
	if err := writeOutcomes(cmd.OutOrStdout(), *o.format, outcomes); err != nil {
		return err
	}
	refused := 0
	for _, outcome := range outcomes {
		if !outcome.Approved {
			refused++
		}
	}
	if refused > 0 {
		return fmt.Errorf("%d of %d requests not approved", refused, len(outcomes))
	}
	return nil
}

// rulesAreKnown returns an error unless all rules of the running manager, or those of --config, are known.
func rulesAreKnown(cmd *cobra.Command, setup *Setup) error {
	switch file := cmd.Flags().Lookup("config"); {
	case file != nil && file.Value.String() != "":
		return nil
	case setup.Incomplete != nil:
		return fmt.Errorf("the rules of the running manager are not fully known: %w; use the version of the manager, or "+
			"give its configuration with --config", setup.Incomplete)
	case len(setup.Managers) == 0:
		return errors.New("the rules of the running manager are unknown: give its configuration with --config")
	}
	return nil
}

// byHand approves requests by hand.
type byHand struct {
	api       client.Client
	explainer *explain.Explainer
	program   string // as the user calls it
	override  []string
	dryRun    string
}

// handOutcome is the result for one request.
type handOutcome struct {
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	Signer    string `json:"signer"`
	Requester string `json:"requester"`
	Approved  bool   `json:"approved"`
	// DryRun is set if nothing was stored.
	DryRun string `json:"dryRun,omitempty"`
	// Rules holds the answer of the rules. Overridden holds the reasons that the user has overridden.
	Rules      string   `json:"rules"`
	Overridden []string `json:"overridden,omitempty"`
	// Problem says why the request was not approved. NextStep says what to do instead.
	Problem  string `json:"problem,omitempty"`
	NextStep string `json:"nextStep,omitempty"`
}

// requests returns the request that args name, or the pending ones of node.
func (a *byHand) requests(
	ctx context.Context, node string, args []string,
) ([]*certificatesv1.CertificateSigningRequest, error) {
	if node == "" {
		obj, err := explain.Get(ctx, a.api, args[0])
		return []*certificatesv1.CertificateSigningRequest{obj}, err
	}
	objs, err := a.ofNode(ctx, node)
	if err == nil && len(objs) == 0 {
		err = fmt.Errorf("node %q has no pending request for a signer that the manager approves; \"%s pending\" lists the "+
			"requests that wait", node, a.program)
	}
	return objs, err
}

// ofNode returns the pending requests for the certificates of node, for the signers that the manager approves.
func (a *byHand) ofNode(ctx context.Context, node string) ([]*certificatesv1.CertificateSigningRequest, error) {
	var objs []*certificatesv1.CertificateSigningRequest
	for next := ""; ; {
		list := &certificatesv1.CertificateSigningRequestList{}
		if err := a.api.List(ctx, list, client.Limit(listPage), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list requests: %w", err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			if csr.StateOf(obj) != csr.Pending || !a.explainer.Approves(obj.Spec.SignerName) {
				continue
			}
			if req, err := a.explainer.Limits().Parse(obj); err == nil && req.NodeName() == node {
				objs = append(objs, obj.DeepCopy()) // the page itself can be released
			}
		}
		if next = list.Continue; next == "" {
			return objs, nil
		}
	}
}

// approve checks each of objs against the rules, and then approves those that the rules or the user permit. It returns
// an error and approves nothing if an override is for a reason that refuses none of objs.
func (a *byHand) approve(
	ctx context.Context, objs []*certificatesv1.CertificateSigningRequest,
) ([]handOutcome, error) {
	if len(a.override) > 0 && slices.ContainsFunc(objs, func(obj *certificatesv1.CertificateSigningRequest) bool {
		return obj.Spec.Username != objs[0].Spec.Username
	}) {
		return nil, errors.New("--override: the pending requests of the node have different requesters, and one of them may " +
			"be a stranger; run the command without --override to see them, then name one request")
	}
	var all []assessment
	unused := slices.Clone(a.override)
	for _, obj := range objs {
		one := a.assess(ctx, obj)
		all = append(all, one)
		unused = slices.DeleteFunc(unused, one.refusedFor)
	}
	if len(unused) > 0 {
		var said []string
		for i, one := range all {
			said = append(said, oneLine(fmt.Sprintf("%s: %s", check.Word(objs[i].Name), one.sentence())))
		}
		return nil, fmt.Errorf("--override %s: no rule refuses a request for that reason, so nothing was approved. %s",
			strings.Join(unused, ","), strings.Join(said, " "))
	}
	user := a.whoAmI(ctx)
	var outcomes []handOutcome
	for i, obj := range objs {
		outcomes = append(outcomes, a.approveOne(ctx, obj, all[i], user))
	}
	return outcomes, nil
}

// whoAmI returns the user of the command, in the words of a sentence.
func (a *byHand) whoAmI(ctx context.Context) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := a.api.Create(ctx, review); err != nil || review.Status.UserInfo.Username == "" {
		return "an unknown user"
	}
	return fmt.Sprintf("user %q", csr.Shorten(review.Status.UserInfo.Username))
}

// approveOne approves obj if the rules permit it, or the user overrides each rule that refuses it.
func (a *byHand) approveOne(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, one assessment, user string,
) handOutcome {
	outcome := handOutcome{
		Name: obj.Name, Node: one.node, Signer: obj.Spec.SignerName, Requester: csr.Shorten(obj.Spec.Username),
		Rules: one.sentence(),
	}
	missing := one.notIn(a.override)
	switch {
	case one.never != "":
		outcome.Problem, outcome.NextStep = one.never, one.instead
		return outcome
	case len(missing) > 0:
		outcome.Problem = "a rule refuses the request: " + strings.Join(missing, ", ")
		outcome.NextStep = fmt.Sprintf("%s To approve it anyway: %s approve --override %s %s",
			explain.NextStep(missing[0]), a.program, strings.Join(one.reasons(), ","), check.Argument(obj.Name))
		outcome.NextStep = strings.TrimSpace(outcome.NextStep)
		return outcome
	}
	outcome.Overridden = one.reasons()
	if a.dryRun != "none" {
		outcome.DryRun = a.dryRun
	}
	if err := a.write(ctx, obj, one.message(a.program, user)); err != nil {
		outcome.Problem, outcome.NextStep = a.notWritten(ctx, obj, err)
		return outcome
	}
	outcome.Approved = true
	return outcome
}

// write stores the approval in obj, which is the object that was judged. If it has changed since, the API server
// refuses the write.
func (a *byHand) write(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, message string) error {
	if a.dryRun == "client" {
		return nil
	}
	options := []client.SubResourceUpdateOption{client.FieldOwner(handManager)}
	if a.dryRun == "server" {
		options = append(options, client.DryRunAll)
	}
	approved := obj.DeepCopy()
	csr.AddCondition(approved, certificatesv1.CertificateApproved, approvedByHand, ascii.Quote(message), time.Time{})
	return a.api.SubResource("approval").Update(ctx, approved, options...)
}

// notWritten returns why the approval of obj was not stored, and what to do.
func (a *byHand) notWritten(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, err error,
) (problem, nextStep string) {
	again := fmt.Sprintf("To see what has happened to it, run %s explain %s", a.program, check.Argument(obj.Name))
	switch {
	case apierrors.IsForbidden(err):
		return "the API server does not permit it: " + err.Error(),
			"Run the command as a user who may update certificatesigningrequests/approval and approve for this signer."
	case apierrors.IsNotFound(err):
		return "the request was deleted while the rules were checked", "Wait for the next request of the node."
	case apierrors.IsConflict(err):
		current := &certificatesv1.CertificateSigningRequest{}
		if err := a.api.Get(ctx, client.ObjectKeyFromObject(obj), current); err != nil || current.UID != obj.UID {
			return "the request was changed while the rules were checked", again
		}
		return fmt.Sprintf("the request was changed while the rules were checked; it is now %s", csr.StateOf(current)), again
	default:
		return "the API server did not confirm the approval, which may be stored or not: " + err.Error(), again
	}
}

// writeOutcomes writes outcomes in that format.
func writeOutcomes(out io.Writer, format string, outcomes []handOutcome) error {
	if isFields(format) {
		return writeFields(out, format, outcomes)
	}
	var text strings.Builder
	for _, outcome := range outcomes {
		result := "not approved: " + outcome.Problem
		switch {
		case outcome.Approved && outcome.DryRun != "":
			result = "would be approved (dry run: " + outcome.DryRun + ")"
		case outcome.Approved:
			result = "approved"
		}
		for _, line := range []struct{ label, value string }{
			{check.Word(outcome.Name), result}, {"  requester ", outcome.Requester}, {"  rules     ", outcome.Rules},
			{"  overridden", strings.Join(outcome.Overridden, ", ")}, {"  next step ", outcome.NextStep},
		} {
			if line.value != "" {
				text.WriteString(oneLine(line.label+"  "+line.value) + "\n")
			}
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}
