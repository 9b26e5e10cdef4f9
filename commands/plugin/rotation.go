package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/retry"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// rotationVerb is a subcommand of rotation.
type rotationVerb struct {
	name, short string
	// goal is what is true when it is done. An operation without done is done when the manager has accepted it.
	goal string
	done func(before, now *v1alpha1.SigningAuthorityStatus) (bool, error)
	// effect is what an operation does that cannot be undone.
	effect string
}

const recorded = "the manager has recorded it"

// rotationVerbs holds two verbs that request nothing, and one for each operation.
var rotationVerbs = []rotationVerb{
	{name: "status", short: "Show which CA signs, what the manager waits for, and which nodes still use the old CA"},
	{
		name: "wait", short: "Wait for the step that is under way", done: nothingOutstanding,
		goal: "no certificate of the old CA is valid, or rotation accept was run",
	},
	{
		name: "start", short: "Create a new CA and wait until every API server trusts it", done: started,
		goal: "the new CA is trusted and signs",
	},
	{
		name: "complete", short: "Stop trusting the old CA and destroy its key", done: completed,
		goal: "every API server refuses the old CA and its key is destroyed",
		effect: "rotation complete removes the retiring CA from every trust bundle and destroys its key. You cannot go back. The " +
			"manager refuses it while a certificate of this CA is valid, unless you ran rotation accept.",
	},
	{name: "rollback", short: "Go back to the old CA", done: rolledBack, goal: "the old CA signs again"},
	{
		name: "renew-certificate", short: "Renew the certificate of the signing CA with the same key, and wait until it signs", done: renewed,
		goal: "the renewed certificate signs",
	},
	{name: "confirm", short: "Confirm that verifiers which cannot be probed trust the new CA", goal: recorded},
	{
		name: "accept", short: "Accept that certificates of the old CA stop working", goal: recorded,
		effect: "Whoever uses a certificate of the retiring CA that is still valid loses access at rotation complete. rotation " +
			"status lists the nodes.",
	},
	{
		name: "attest", short: "State that nobody uses certificates which others issued from an adopted CA", goal: recorded,
		effect: "The manager does not check it. Check admin.conf, the kubeconfigs of kube-controller-manager and kube-scheduler, the " +
			"API server's client certificate for kubelets, and every kubeconfig of people and scripts. Any of them that is still in " +
			"use stops working at rotation complete.",
	},
}

func started(before, now *v1alpha1.SigningAuthorityStatus) (bool, error) {
	if now.Phase == v1alpha1.Completed && v1alpha1.SameCA(before.Signing, now.Signing) {
		return false, errors.New("the new CA does not sign: the rotation was rolled back meanwhile")
	}
	return now.Phase != v1alpha1.Preparing && now.Phase != v1alpha1.New, nil
}

func completed(before, now *v1alpha1.SigningAuthorityStatus) (bool, error) {
	if last := now.LastOperation; now.Phase == v1alpha1.Prepared && last != nil && last.Result == v1alpha1.Refused { // it was stopped
		return false, errors.New(last.Message)
	}
	return before.Retiring == nil || v1alpha1.SameCA(before.Retiring, now.LastRetired), nil
}

func rolledBack(before, now *v1alpha1.SigningAuthorityStatus) (bool, error) {
	goal := before.Signing
	if before.Phase == v1alpha1.Prepared {
		goal = before.Retiring
	}
	return v1alpha1.SameCA(goal, now.Signing) && now.Phase != v1alpha1.Preparing, nil
}

func renewed(before, now *v1alpha1.SigningAuthorityStatus) (bool, error) {
	signs := !v1alpha1.SameCA(before.Signing, now.Signing)
	if !signs && !now.Renewing() {
		return false, errors.New("the renewed certificate was dropped, and does not sign")
	}
	return signs, nil
}

// nothingOutstanding reports whether no certificate of the retiring CA prevents a completion.
func nothingOutstanding(_, now *v1alpha1.SigningAuthorityStatus) (bool, error) {
	accepted := now.Retiring != nil && now.Retiring.OutstandingAcceptedAt != nil
	return now.Phase != v1alpha1.Prepared || len(now.Outstanding) == 0 || accepted, nil
}

// rotation shows SigningAuthorities, and requests operations from the manager with an annotation.
type rotation struct {
	*cluster // the home cluster, with the SigningAuthority
	served   *cluster
	rotationVerb
	timeout   time.Duration
	wait, yes bool
	// out is for the result, and aside for remarks about it.
	out, aside io.Writer

	// before is the object when the command began. From the moment that the manager has accepted the operation, answered
	// is true.
	before   *v1alpha1.SigningAuthority
	answered bool
	start    time.Time
	printed  string // the last progress
}

// rotationCommand returns the command that shows and controls the rotation of signing CAs.
func rotationCommand(connect connector) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotation COMMAND [NAME]",
		Short: "Show and control the rotation of a signing CA",
		Long: `rotation shows how far the rotation of a signing CA is, and requests the next step from the manager. It
reads no Secret. NAME is the name of a SigningAuthority. If there is only one, you may leave it out.
The exit code is 0 if the command did what it says, otherwise 1.`,
	}
	home := cmd.PersistentFlags().String("home-kubeconfig", "", "`file` to reach the cluster with the SigningAuthority, if it is not the one with the nodes")
	for _, verb := range rotationVerbs {
		r := &rotation{rotationVerb: verb}
		each := &cobra.Command{
			Use: verb.name + " [NAME]", Short: verb.short, Long: verb.short + ".",
			Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		}
		asJSON := new(bool)
		switch verb.name {
		case "status":
			asJSON = jsonFlag(each)
		case "wait":
		default:
			each.Flags().BoolVar(&r.wait, "wait", true, "wait until it is done; with false, only request it")
			each.Flags().BoolVar(&r.yes, "yes", false, "complete, accept, attest: do it, although it cannot be undone")
		}
		each.Flags().DurationVar(&r.timeout, "timeout", 15*time.Minute, "longest `time` to wait; the manager continues after it")
		each.RunE = run(connect, func(cmd *cobra.Command, c *cluster, args []string) error {
			if err := r.reach(cmd, c, *home); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout)
			defer cancel()
			err := r.run(ctx, strings.Join(args, ""), *asJSON)
			prefix := "rotation " + verb.name
			if err != nil && !strings.HasPrefix(err.Error(), prefix) { // a refusal has it already
				return fmt.Errorf("%s: %w", prefix, err)
			}
			return err
		})
		cmd.AddCommand(each)
	}
	cmd.AddCommand(moveNodesCommand(connect, home))
	return cmd
}

// reach sets the clusters of r, and where it writes. Home is the kubeconfig of the home cluster, if it is not served.
func (r *rotation) reach(cmd *cobra.Command, served *cluster, home string) (err error) {
	r.cluster, r.served, r.out, r.aside = served, served, cmd.OutOrStdout(), cmd.ErrOrStderr()
	if home != "" {
		overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: served.namespace}}
		r.cluster, err = connectTo(cmd.Root().Version, &clientcmd.ClientConfigLoadingRules{ExplicitPath: home}, overrides)
	}
	return err
}

// run runs the command for the SigningAuthority of that name, or for the only one if name is empty.
func (r *rotation) run(ctx context.Context, name string, asJSON bool) error {
	objs, err := r.find(ctx, name)
	if err != nil {
		return err
	}
	if r.name == "status" {
		return r.status(ctx, objs, asJSON)
	}
	if r.before, err = only(objs); err != nil {
		return err
	}
	if r.name == "wait" {
		return r.attach(ctx)
	}
	return r.operate(ctx)
}

// only returns the one object in objs. If there are more, its error names them.
func only(objs []v1alpha1.SigningAuthority) (*v1alpha1.SigningAuthority, error) {
	if len(objs) == 1 {
		return &objs[0], nil
	}
	var names []string
	for _, obj := range objs {
		names = append(names, obj.Name)
	}
	return nil, fmt.Errorf("there are %d SigningAuthorities: add the name of one: %s", len(objs), strings.Join(names, ", "))
}

// call returns a call about SigningAuthorities, or about the one of that name.
func (c *cluster) call(verb, name string) *rest.Request {
	return c.authorities.Verb(verb).
		AbsPath("apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "signingauthorities", name).
		SetHeader("Accept", "application/json")
}

var errNone = errors.New("there is no SigningAuthority")

// find returns the SigningAuthority of that name, or all of them if name is empty. None is errNone.
func (c *cluster) find(ctx context.Context, name string) ([]v1alpha1.SigningAuthority, error) {
	list := v1alpha1.SigningAuthorityList{}
	data, err := c.call("GET", "").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	found := slices.DeleteFunc(list.Items, func(obj v1alpha1.SigningAuthority) bool { return name != "" && obj.Name != name })
	switch {
	case apierrors.IsNotFound(err):
		return nil, errors.New("this cluster does not serve SigningAuthorities: install config/rotation")
	case err != nil:
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	case len(found) == 0 && name != "":
		return nil, fmt.Errorf("%w %q", errNone, name)
	case len(found) == 0:
		return nil, fmt.Errorf("%w: create one as in docs/how-to/rotate-a-ca.md#set-up", errNone)
	}
	return found, nil
}

// operate requests the operation, and waits until it is done or refused.
func (r *rotation) operate(ctx context.Context) error {
	if r.effect != "" && !r.yes {
		err := r.write(r.aside, false, nil, func(p *page) {
			p.cas(&r.before.Status)
			p.title(r.effect)
		})
		return cmp.Or(err, fmt.Errorf("not requested: to do it, run %s --yes", r.commandFor(r.name)))
	}
	if err := r.request(ctx); err != nil {
		return err
	}
	if !r.wait {
		return r.print(r.out, "%s: requested rotation %s; to follow it, run %s", r.before.Name, r.name, r.commandFor("wait"))
	}
	return r.follow(ctx)
}

// commandFor returns the command line of verb.
func (r *rotation) commandFor(verb string) string {
	return strings.Join([]string{"kubectl csr rotation", verb, r.before.Name}, " ")
}

func (r *rotation) print(to io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintln(to, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// requested returns the operation that obj requests and that the manager has not picked up yet.
func requested(obj *v1alpha1.SigningAuthority) v1alpha1.Operation {
	return v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
}

// allowed returns the manager's own text for a refusal if it would refuse the operation at obj.
func (r *rotation) allowed(obj *v1alpha1.SigningAuthority) error {
	why := "the phase is " + phase(&obj.Status)
	if pending := requested(obj); pending != "" {
		why = fmt.Sprintf("the manager has not picked up %s yet, which was requested before", pending.Command())
	} else if slices.Contains(v1alpha1.Allowed(obj.Status.Phase), v1alpha1.Operation(r.name)) {
		return nil
	}
	return fmt.Errorf("rotation %s is refused: %s; allowed now: %s", r.name, why, v1alpha1.AllowedText(obj.Status.Phase))
}

// request sets the annotation for the operation, unless the manager would refuse it.
func (r *rotation) request(ctx context.Context) error {
	name := r.before.Name
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		objs, err := r.find(ctx, name)
		if err != nil {
			return err
		}
		obj := &objs[0]
		pending := requested(obj)
		if pending == "" && obj.Status.Answered() { // it would take another request for the one that it has just answered
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("signingauthorities").GroupResource(), name,
				errors.New("the manager has not finished with "+obj.Status.LastOperation.Name.Command()))
		}
		if pending == v1alpha1.Operation(r.name) {
			return nil // it was requested before
		}
		if err := r.allowed(obj); err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": obj.ResourceVersion, "annotations": map[string]any{v1alpha1.OperationAnnotation: r.name},
		}})
		if err != nil {
			return err
		}
		return r.call("PATCH", name).SetHeader("Content-Type", string(types.MergePatchType)).Body(patch).Do(ctx).Error()
	})
}

// attach waits for what is under way.
func (r *rotation) attach(ctx context.Context) error {
	status, pending := &r.before.Status, requested(r.before)
	underWay := v1alpha1.Operation("")
	r.answered = true
	switch {
	case pending != "" && !status.Answered():
		underWay, r.answered = pending, false
	case status.Phase == v1alpha1.New, status.Phase == v1alpha1.Preparing:
		underWay = v1alpha1.OperationStart
	case status.Phase == v1alpha1.Completing:
		underWay = v1alpha1.OperationComplete
	case status.Phase == v1alpha1.Prepared && status.Intent == "SwapBack": // a rollback that was accepted
		underWay = v1alpha1.OperationRollback
	case status.Renewing():
		underWay = v1alpha1.OperationRenewCertificate
	case status.Phase != v1alpha1.Prepared:
		return r.print(r.out, "%s: nothing is under way: %s", r.before.Name, summary(status))
	}
	for _, verb := range rotationVerbs {
		if verb.name == string(underWay) {
			r.rotationVerb = verb
		}
	}
	return r.follow(ctx)
}

// follow waits until the operation is done or refused.
func (r *rotation) follow(ctx context.Context) error {
	r.start = r.now()
	if err := r.print(r.aside, "%s: waiting at most %s (--timeout) until %s", r.before.Name, r.timeout, r.goal); err != nil {
		return err
	}
	err := wait.PollUntilContextCancel(ctx, time.Second, true, r.poll)
	ended := "stopped waiting"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		ended = fmt.Sprintf("not done within %s", r.timeout)
	case !errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("%s: %s; the manager continues, and %s waits again", ended, r.printed, r.commandFor("wait"))
}

// poll reports whether the operation is done, and prints progress.
func (r *rotation) poll(ctx context.Context) (bool, error) {
	objs, err := r.find(ctx, r.before.Name)
	switch {
	case errors.Is(err, errNone), err == nil && objs[0].UID != r.before.UID:
		return false, fmt.Errorf("SigningAuthority %s was deleted", r.before.Name)
	case err != nil && ctx.Err() != nil && r.printed != "": // the end of the time says nothing of the API server
		return false, nil
	case err != nil:
		return false, r.progress(fmt.Sprintf("the API server does not answer: %v", err))
	}
	if !r.answered {
		if r.answered, err = r.answer(&objs[0]); !r.answered || err != nil {
			return false, err
		}
	}
	status, done := &objs[0].Status, true
	if r.done != nil {
		done, err = r.done(&r.before.Status, status)
	}
	switch {
	case err != nil:
		return false, err
	case done:
		return true, r.print(r.out, "%s: done: %s", r.before.Name, summary(status))
	}
	return false, r.progress(summary(status))
}

// answer reports whether the manager has accepted the operation. If it was refused, the error says why.
func (r *rotation) answer(obj *v1alpha1.SigningAuthority) (bool, error) {
	last, before := obj.Status.LastOperation, r.before.Status.LastOperation
	switch {
	case requested(obj) != "", last == nil, last.Annotated, before != nil && before.Time.Equal(&last.Time):
		return false, r.progress(fmt.Sprintf("the manager has not picked up rotation %s yet", r.name))
	case string(last.Name) != r.name:
		return false, fmt.Errorf("rotation %s was answered, and then %s was requested: run %s",
			r.name, last.Name.Command(), r.commandFor("status"))
	case last.Result != v1alpha1.Accepted:
		return false, errors.New(last.Message)
	}
	return true, nil
}

// progress prints text unless it was printed last.
func (r *rotation) progress(text string) error {
	if text == r.printed {
		return nil
	}
	r.printed = text
	return r.print(r.aside, "%5s  %s", r.now().Sub(r.start).Round(time.Second), text)
}

func phase(status *v1alpha1.SigningAuthorityStatus) string {
	return cmp.Or(string(status.Phase), "New")
}

// summary returns status in one line.
func summary(status *v1alpha1.SigningAuthorityStatus) string {
	text := fmt.Sprintf("%s, generation %d", phase(status), status.Generation)
	switch {
	case len(status.WaitingFor) > 0:
		text += ", waiting: " + strings.Join(status.WaitingFor, "; ")
	case status.Intent != "":
		text += ", step " + status.Intent
	}
	return text
}
