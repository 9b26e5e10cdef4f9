package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/spf13/cobra"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// rotationOptions are the command line.
type rotationOptions struct {
	operation v1alpha1.Operation // empty for status
	name      string
	timeout   time.Duration
	wait, yes bool
}

// rotation shows SigningAuthorities, and asks the manager for operations by their annotations.
type rotation struct {
	rotationOptions
	api   client.Client
	clock clock.PassiveClock
	out   io.Writer
	// interval is the time between two observations. eventTimeout bounds the wait for the Event about a refusal.
	interval, eventTimeout time.Duration
}

// rotationVerbs are the commands below rotation. Each but status asks for an operation.
var rotationVerbs = []struct {
	name, short string
	operation   v1alpha1.Operation
}{
	{"status", "Show what signs, what is waited for, who has not moved to the new CA", ""},
	{"start", "Make a new CA, and have it trusted beside the one that signs", v1alpha1.RotateStart},
	{"complete", "Leave the old CA and destroy its key", v1alpha1.RotateComplete},
	{"rollback", "Go back to the old CA", v1alpha1.RotateRollback},
	{"confirm", "Say that those trust the new CA who can't be asked", v1alpha1.TrustConfirmed},
	{"accept", "Say that what still lives on the old CA may break", v1alpha1.OutstandingAccepted},
	{"attest", "Say that nothing is left of what others have issued from an adopted CA", v1alpha1.AdoptionAttested},
}

// NewRotationCommand returns the command that shows and steers the rotation of signing CAs.
func NewRotationCommand(source Source) *cobra.Command {
	o := rotationOptions{}
	cmd := &cobra.Command{
		Use:   "rotation VERB [NAME]",
		Short: "Show how far the rotation of a signing CA is, and ask the manager to go on",
		Long: `rotation shows how far the rotation of a signing CA is, and asks the manager to go on. It acts with your
kubeconfig, and reads no Secret. NAME is that of a SigningAuthority; with only one in the cluster it may be left out.
The exit code is 1 unless what was asked for is done.`,
	}
	var names []string
	for _, verb := range rotationVerbs {
		names = append(names, verb.name)
		cmd.AddCommand(&cobra.Command{
			Use: verb.name + " [NAME]", Short: verb.short, Long: verb.short + ".", ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, args []string) error {
				problem := atMost(1, args)
				if o.timeout <= 0 {
					problem = errors.Join(problem, fmt.Errorf("--timeout: %s is no time to wait", o.timeout))
				}
				if problem != nil {
					return usageError(cmd, problem)
				}
				o.operation, o.name = verb.operation, strings.Join(args, "")
				if err := runRotation(cmd, source, o); err != nil {
					return fmt.Errorf("rotation %s: %w", verb.name, err)
				}
				return nil
			},
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError(cmd, fmt.Errorf("say what: %s", strings.Join(names, ", ")))
		}
		return usageError(cmd, fmt.Errorf("unknown subcommand %q: want one of %s", args[0], strings.Join(names, ", ")))
	}
	flags := cmd.PersistentFlags()
	flags.DurationVar(&o.timeout, "timeout", 15*time.Minute, "`time` to wait, in all, until it is done")
	flags.BoolVar(&o.wait, "wait", true, "wait until it is done; otherwise it is asked for, and that is all")
	flags.BoolVar(&o.yes, "yes", false, "complete, accept, attest: you know what that means")
	source.Bind(cmd, APIServer)
	return cmd
}

func runRotation(cmd *cobra.Command, source Source, options rotationOptions) error {
	ctx := cmd.Context()
	server, err := connect(ctx, source, cmd)
	if err != nil {
		return err
	}
	r := &rotation{options, server.api, server.clock, cmd.OutOrStdout(), time.Second, 5 * time.Second}
	return r.run(ctx)
}

func (r *rotation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	objs, err := r.authorities(ctx)
	if err != nil {
		return err
	}
	if r.operation == "" {
		return r.status(ctx, objs)
	}
	if len(objs) > 1 {
		var names []string
		for i := range objs {
			names = append(names, objs[i].Name)
		}
		return fmt.Errorf("there are %d authorities: name one of %s", len(objs), strings.Join(names, ", "))
	}
	return r.operate(ctx, &objs[0])
}

// authorities returns the SigningAuthority of the given name, or all of them.
func (r *rotation) authorities(ctx context.Context) ([]v1alpha1.SigningAuthority, error) {
	list := &v1alpha1.SigningAuthorityList{}
	var err error
	if r.name != "" {
		list.Items = make([]v1alpha1.SigningAuthority, 1)
		err = r.api.Get(ctx, client.ObjectKey{Name: r.name}, &list.Items[0])
	} else {
		err = r.api.List(ctx, list)
	}
	switch {
	case meta.IsNoMatchError(err):
		return nil, errors.New("this cluster knows no SigningAuthority: config/rotation is not installed")
	case err != nil:
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	case len(list.Items) == 0:
		return nil, errors.New("there is no SigningAuthority: docs/reference/rotation.md says how to make one")
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.SigningAuthority) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// operate asks for the operation, and waits until it is done or refused.
func (r *rotation) operate(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	if warning := warning(r.operation, obj); warning != "" && !r.yes {
		if err := r.print("%s", warning); err != nil {
			return err
		}
		return errors.New("not asked for: add --yes if that is what you want")
	}
	f := &follower{rotation: r, before: obj, start: r.clock.Now()}
	for _, event := range f.refusals(ctx) {
		f.seen = append(f.seen, event.UID)
	}
	if err := r.request(ctx, obj); err != nil {
		return err
	}
	if !r.wait {
		return r.print("%s: asked for %s; rotation status %s shows what becomes of it", obj.Name, r.operation, obj.Name)
	}
	err := wait.PollUntilContextCancel(ctx, r.interval, true, f.observe)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not done within %s: %s; the manager goes on", r.timeout, f.printed)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped waiting: %s; the manager goes on", f.printed)
	}
	return err
}

func (r *rotation) print(format string, args ...any) error {
	_, err := fmt.Fprintln(r.out, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// request sets the annotation for the operation, unless the manager would refuse it.
func (r *rotation) request(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	refused := func(why string) error { // the manager's own text
		return fmt.Errorf("%s is refused: %s; allowed now: %s", r.operation, why, v1alpha1.AllowedText(obj.Status.Phase))
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := r.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return fmt.Errorf("read SigningAuthority %s: %w", obj.Name, err)
		}
		pending := v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
		switch {
		case pending == r.operation:
			return nil // somebody has asked for it already
		case pending != "":
			return refused(fmt.Sprintf("%s was asked for, and the manager has not taken it yet", pending))
		case !slices.Contains(v1alpha1.Allowed(obj.Status.Phase), r.operation):
			return refused("the phase is " + phase(&obj.Status))
		}
		patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(r.operation))
		return r.api.Patch(ctx, obj, patch)
	})
}

// follower waits for the outcome of an operation.
type follower struct {
	*rotation
	before  *v1alpha1.SigningAuthority // as it was when the operation was requested
	start   time.Time
	printed string // last
	// unfollowed is when the manager was first seen to have taken the operation without following it.
	unfollowed time.Time
	// seen are the Events about earlier refusals, and eventsErr is why Events can't be read.
	seen      []types.UID
	eventsErr error
}

// observe reports whether the operation is done, and prints progress.
func (f *follower) observe(ctx context.Context) (bool, error) {
	obj := &v1alpha1.SigningAuthority{}
	if err := f.api.Get(ctx, client.ObjectKeyFromObject(f.before), obj); apierrors.IsNotFound(err) {
		return false, fmt.Errorf("SigningAuthority %s is gone", f.before.Name)
	} else if err != nil {
		return false, f.progress(fmt.Sprintf("no answer: %v", err))
	}
	for _, event := range f.refusals(ctx) {
		if strings.HasPrefix(event.Note, string(f.operation)+" is refused") ||
			f.operation == v1alpha1.RotateComplete && strings.HasPrefix(event.Note, "completion stops") {
			return false, errors.New(oneLine(event.Note))
		}
	}
	if obj.Annotations[v1alpha1.OperationAnnotation] != "" || obj.Status.TakenOperation != "" {
		return false, f.progress(fmt.Sprintf("the manager has not taken %s yet", f.operation))
	}
	followed, done := outcome(f.operation, &f.before.Status, &obj.Status)
	switch {
	case done:
		return true, f.print("%s: done: %s", obj.Name, summary(&obj.Status))
	case followed:
		f.unfollowed = time.Time{}
		return false, f.progress(summary(&obj.Status))
	}
	return false, f.unexplained(obj)
}

// unexplained returns an error once the manager has not followed the operation for longer than an Event takes to
// arrive.
func (f *follower) unexplained(obj *v1alpha1.SigningAuthority) error {
	now := f.clock.Now()
	f.unfollowed = cmp.Or(f.unfollowed, now)
	if now.Sub(f.unfollowed) <= f.eventTimeout {
		return nil
	}
	why := ", and no Event says why"
	if f.eventsErr != nil {
		why = fmt.Sprintf("; why is in an Event that could not be read (%v)", f.eventsErr)
	}
	return fmt.Errorf("%s is refused%s; allowed now: %s", f.operation, why, v1alpha1.AllowedText(obj.Status.Phase))
}

// progress prints text unless it was printed last.
func (f *follower) progress(text string) error {
	if text = oneLine(text); text == f.printed {
		return nil
	}
	f.printed = text
	return f.print("%5s  %s", f.clock.Now().Sub(f.start).Round(time.Second), text)
}

// refusals returns the Events about refused operations, but for those that it has seen.
func (f *follower) refusals(ctx context.Context) []eventsv1.Event {
	list := &eventsv1.EventList{}
	f.eventsErr = f.api.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{
		"reason": "RotationRefused", "regarding.kind": "SigningAuthority", "regarding.name": f.before.Name,
	})
	return slices.DeleteFunc(list.Items, func(event eventsv1.Event) bool { return slices.Contains(f.seen, event.UID) })
}

// outcome reports whether the manager follows the operation, which was requested at before, and whether it is done.
func outcome(operation v1alpha1.Operation, before, now *v1alpha1.SigningAuthorityStatus) (followed, done bool) {
	switch operation {
	case v1alpha1.RotateStart:
		followed = now.Generation > before.Generation
		return followed, followed && now.Phase != v1alpha1.Preparing
	case v1alpha1.RotateComplete:
		followed = slices.Contains([]v1alpha1.Phase{v1alpha1.Completing, v1alpha1.Completed}, now.Phase)
		return followed, now.Phase == v1alpha1.Completed
	case v1alpha1.RotateRollback:
		done = rolledBack(before, now)
		return done || now.Intent == "SwapBack", done
	case v1alpha1.TrustConfirmed:
		done = isConfirmed(now.Candidate) || isConfirmed(now.Signing)
	case v1alpha1.OutstandingAccepted:
		done = now.Retiring == nil || now.Retiring.OutstandingAcceptedAt != nil
	case v1alpha1.AdoptionAttested:
		attested := func(ca *v1alpha1.CAStatus) bool { return ca.AttestedAt != nil }
		done = len(keyIDs(now, attested)) > len(keyIDs(before, attested))
	}
	return done, done
}

func isConfirmed(ca *v1alpha1.CAStatus) bool { return ca != nil && ca.TrustConfirmedAt != nil }

// rolledBack reports whether the CA signs that a rollback from before returns to.
func rolledBack(before, now *v1alpha1.SigningAuthorityStatus) bool {
	goal := before.Signing
	if before.Phase == v1alpha1.Prepared {
		goal = before.Retiring
	}
	signs := goal != nil && now.Signing != nil && now.Signing.Fingerprint == goal.Fingerprint
	return signs && now.Phase != v1alpha1.Preparing
}

// keyIDs returns the key IDs of the CAs in status that match.
func keyIDs(status *v1alpha1.SigningAuthorityStatus, match func(*v1alpha1.CAStatus) bool) []string {
	var ids []string
	for _, ca := range []*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring} {
		if ca != nil && match(ca) {
			ids = append(ids, ca.KeyID)
		}
	}
	return ids
}

func phase(status *v1alpha1.SigningAuthorityStatus) string {
	return cmp.Or(string(status.Phase), "not begun")
}

// summary returns status in one line.
func summary(status *v1alpha1.SigningAuthorityStatus) string {
	text := fmt.Sprintf("%s, generation %d", phase(status), status.Generation)
	switch {
	case len(status.WaitingFor) > 0:
		text += ", waits for " + strings.Join(status.WaitingFor, "; ")
	case status.Intent != "":
		text += ", at " + status.Intent
	}
	return text
}

// warning returns what the operation does that can't be undone, if anything.
func warning(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority) string {
	retiring := "the CA that retires"
	if obj.Status.Retiring != nil {
		retiring = "the CA " + obj.Status.Retiring.KeyID + ", which retires,"
	}
	adopted := "an adopted CA"
	wasAdopted := func(ca *v1alpha1.CAStatus) bool { return ca.AdoptedAt != nil }
	if ids := keyIDs(&obj.Status, wasAdopted); len(ids) > 0 {
		adopted = "the CA " + strings.Join(ids, " and ")
	}
	switch operation {
	case v1alpha1.RotateComplete:
		return fmt.Sprintf("complete has %s trusted by nobody any more, and destroys its key. There is no way back. It is "+
			"refused while a certificate of it is known to be valid, unless its owner has accepted that.", retiring)
	case v1alpha1.OutstandingAccepted:
		return fmt.Sprintf("accept says that up to %d certificates of %s may break, whoever holds them: rotation status "+
			"lists them. They are refused from rotation complete on.", obj.Status.OutstandingOnRetiring, retiring)
	case v1alpha1.AdoptionAttested:
		return fmt.Sprintf("attest says that nobody uses anything any more that others than this manager have issued from "+
			"%s: admin.conf, kube-controller-manager's and the scheduler's kubeconfig, the API server's client certificate for "+
			"kubelets, what kubectl and scripts hold. It is not looked at again, and breaks at rotation complete.", adopted)
	default:
		return ""
	}
}
