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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// rotationOptions are the command line.
type rotationOptions struct {
	verb, name, kubeconfig string
	timeout                time.Duration
	wait, yes              bool
}

// rotation talks to the manager by its SigningAuthorities.
type rotation struct {
	rotationOptions
	api   client.Client
	clock clock.PassiveClock
	out   io.Writer
	// every is the time between two looks while it waits, patience how long the reason of a refusal may take to arrive.
	every, patience time.Duration
}

// rotationVerb is a command below rotation. Each but status asks for an operation.
type rotationVerb struct {
	name, short string
	operation   v1alpha1.Operation
}

var rotationVerbs = []rotationVerb{
	{"status", "Show what signs, what is waited for, who has not moved to the new CA", ""},
	{"start", "Make a new CA, and have it trusted beside the one that signs", v1alpha1.RotateStart},
	{"complete", "Leave the old CA and destroy its key", v1alpha1.RotateComplete},
	{"rollback", "Go back to the old CA", v1alpha1.RotateRollback},
	{"confirm", "Say that those trust the new CA who can't be asked", v1alpha1.TrustConfirmed},
	{"accept", "Say that what still lives on the old CA may break", v1alpha1.OutstandingAccepted},
	{"attest", "Say that nothing is left of what others have issued from an adopted CA", v1alpha1.AdoptionAttested},
}

// rotationCommand returns the command that shows and steers the rotation of signing CAs.
func rotationCommand() *cobra.Command {
	o := rotationOptions{}
	cmd := &cobra.Command{
		Use:   "rotation VERB [NAME]",
		Short: "Show how far the rotation of a signing CA is, and ask the manager to go on",
		Long: `rotation shows how far the rotation of a signing CA is, and asks the manager to go on. It acts with your kubeconfig, and
reads no Secret. NAME is that of a SigningAuthority; with only one in the cluster it may be left out.
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
				o.verb, o.name = verb.name, strings.Join(args, "")
				if err := runRotation(cmd.Context(), o, cmd.OutOrStdout()); err != nil {
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
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"`file` to reach the API server with (default as kubectl: $KUBECONFIG, ~/.kube/config)")
	flags.DurationVar(&o.timeout, "timeout", 15*time.Minute, "`time` to wait, in all, until it is done")
	flags.BoolVar(&o.wait, "wait", true, "wait until it is done; otherwise it is asked for, and that is all")
	flags.BoolVar(&o.yes, "yes", false, "complete, accept, attest: you know what that means")
	return cmd
}

func runRotation(ctx context.Context, options rotationOptions, out io.Writer) error {
	c := config.Default()
	c.Kubeconfig = options.kubeconfig
	server, err := connect(ctx, c)
	if err != nil {
		return err
	}
	r := &rotation{options, server.api, server.clock, out, time.Second, 5 * time.Second}
	return r.run(ctx)
}

func (r *rotation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	objs, err := r.authorities(ctx)
	if err != nil {
		return err
	}
	if r.verb == "status" {
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

// authorities are the one of that name, or all.
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
		return nil, errors.New("there is no SigningAuthority: docs/ca-rotation.md says how to make one")
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.SigningAuthority) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// operate asks for an operation, and waits for what it brings.
func (r *rotation) operate(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	i := slices.IndexFunc(rotationVerbs, func(verb rotationVerb) bool { return verb.name == r.verb })
	operation := rotationVerbs[i].operation
	if meaning := meaning(operation, obj); meaning != "" && !r.yes {
		if err := r.say("%s", meaning); err != nil {
			return err
		}
		return errors.New("not asked for: add --yes if that is what you want")
	}
	before := &refusals{}
	before.read(ctx, r.api, obj)
	if err := r.ask(ctx, obj, operation); err != nil {
		return err
	}
	if !r.wait {
		return r.say("%s: asked for %s; rotation status %s shows what becomes of it", obj.Name, operation, obj.Name)
	}
	return r.follow(ctx, obj, operation, before)
}

func (r *rotation) say(format string, args ...any) error {
	_, err := fmt.Fprintln(r.out, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// ask sets the annotation, unless it would be refused.
func (r *rotation) ask(ctx context.Context, obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := r.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return fmt.Errorf("read SigningAuthority %s: %w", obj.Name, err)
		}
		pending := v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
		switch {
		case pending == operation:
			return nil // somebody has asked for it already
		case pending != "":
			return refused(operation, obj, fmt.Sprintf("%s was asked for, and the manager has not taken it yet", pending))
		case !slices.Contains(v1alpha1.Allowed(obj.Status.Phase), operation):
			return refused(operation, obj, "the phase is "+phase(&obj.Status))
		}
		patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(operation))
		return r.api.Patch(ctx, obj, patch)
	})
}

// refused is the manager's own text.
func refused(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority, why string) error {
	return fmt.Errorf("%s is refused: %s; allowed now: %s", operation, why, v1alpha1.AllowedText(obj.Status.Phase))
}

// follow waits until operation, which has been asked for on before, is done or refused.
func (r *rotation) follow(ctx context.Context, before *v1alpha1.SigningAuthority, operation v1alpha1.Operation, known *refusals) error {
	f := &follower{rotation: r, before: before, operation: operation, known: known, start: r.clock.Now()}
	err := wait.PollUntilContextCancel(ctx, r.every, true, f.look)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("not done within %s: %s; the manager goes on", r.timeout, f.said)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped waiting: %s; the manager goes on", f.said)
	}
	return err
}

type follower struct {
	*rotation
	before    *v1alpha1.SigningAuthority
	operation v1alpha1.Operation
	known     *refusals
	start     time.Time
	said      string
	// unfollowed is since when it has been taken, and is not followed.
	unfollowed time.Time
}

// look says whether it is done, and tells about what is new.
func (f *follower) look(ctx context.Context) (bool, error) {
	obj := &v1alpha1.SigningAuthority{}
	if err := f.api.Get(ctx, client.ObjectKeyFromObject(f.before), obj); apierrors.IsNotFound(err) {
		return false, fmt.Errorf("SigningAuthority %s is gone", f.before.Name)
	} else if err != nil {
		return false, f.progress(fmt.Sprintf("no answer: %v", err))
	}
	if why := f.known.since(ctx, f.api, obj, f.operation); why != "" {
		return false, errors.New(oneLine(why))
	}
	if obj.Annotations[v1alpha1.OperationAnnotation] != "" || obj.Status.TakenOperation != "" {
		return false, f.progress(fmt.Sprintf("the manager has not taken %s yet", f.operation))
	}
	followed, done := outcome(f.operation, &f.before.Status, &obj.Status)
	switch {
	case done:
		return true, f.say("%s: done: %s", obj.Name, summary(&obj.Status))
	case followed:
		f.unfollowed = time.Time{}
		return false, f.progress(summary(&obj.Status))
	case f.unfollowed.IsZero():
		f.unfollowed = f.clock.Now()
	case f.clock.Now().Sub(f.unfollowed) > f.patience:
		return false, fmt.Errorf("%s is refused%s; allowed now: %s", f.operation, f.known.unread(), v1alpha1.AllowedText(obj.Status.Phase))
	}
	return false, nil
}

// progress says what is new.
func (f *follower) progress(text string) error {
	if text = oneLine(text); text == f.said {
		return nil
	}
	f.said = text
	return f.say("%5s  %s", f.clock.Now().Sub(f.start).Round(time.Second), text)
}

// refusals are the Events by which operations were refused.
type refusals struct {
	uids []types.UID
	err  error // why they can't be read
}

func (k *refusals) list(ctx context.Context, api client.Reader, obj *v1alpha1.SigningAuthority) []eventsv1.Event {
	list := &eventsv1.EventList{}
	k.err = api.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{
		"reason": "RotationRefused", "regarding.kind": "SigningAuthority", "regarding.name": obj.Name,
	})
	return list.Items
}

func (k *refusals) read(ctx context.Context, api client.Reader, obj *v1alpha1.SigningAuthority) {
	for _, event := range k.list(ctx, api, obj) {
		k.uids = append(k.uids, event.UID)
	}
}

// since is the text of one about operation that was not known, or empty.
func (k *refusals) since(ctx context.Context, api client.Reader, obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation) string {
	for _, event := range k.list(ctx, api, obj) {
		about := strings.HasPrefix(event.Note, string(operation)+" is refused") ||
			operation == v1alpha1.RotateComplete && strings.HasPrefix(event.Note, "completion stops")
		if about && !slices.Contains(k.uids, event.UID) {
			return event.Note
		}
	}
	return ""
}

// unread says why there is no reason to show.
func (k *refusals) unread() string {
	if k.err != nil {
		return fmt.Sprintf("; why is in an Event that could not be read (%v)", k.err)
	}
	return ", and no Event says why"
}

// outcome says of operation, which was asked for at before, whether it is followed, and whether what it is for is
// reached.
func outcome(operation v1alpha1.Operation, before, now *v1alpha1.SigningAuthorityStatus) (followed, done bool) {
	switch operation {
	case v1alpha1.RotateStart:
		followed = now.Generation > before.Generation
		return followed, followed && now.Phase != v1alpha1.Preparing
	case v1alpha1.RotateComplete:
		done = now.Phase == v1alpha1.Completed
		return done || now.Phase == v1alpha1.Completing, done
	case v1alpha1.RotateRollback:
		done = back(before, now)
		return done || now.Intent == "SwapBack", done
	default:
		done = noted(operation, before, now)
		return done, done
	}
}

// noted says whether the owner's word is.
func noted(operation v1alpha1.Operation, before, now *v1alpha1.SigningAuthorityStatus) bool {
	switch operation {
	case v1alpha1.TrustConfirmed:
		return confirmed(now.Candidate) || confirmed(now.Signing)
	case v1alpha1.OutstandingAccepted:
		return now.Retiring == nil || now.Retiring.OutstandingAcceptedAt != nil
	default:
		return attested(now) > attested(before)
	}
}

// back says whether the CA signs that is to be gone back to.
func back(before, now *v1alpha1.SigningAuthorityStatus) bool {
	goal := before.Signing
	if before.Phase == v1alpha1.Prepared {
		goal = before.Retiring
	}
	return now.Phase != v1alpha1.Preparing && goal != nil && now.Signing != nil && now.Signing.Fingerprint == goal.Fingerprint
}

func confirmed(one *v1alpha1.CAStatus) bool { return one != nil && one.TrustConfirmedAt != nil }

func attested(status *v1alpha1.SigningAuthorityStatus) int {
	count := 0
	for _, one := range known(status) {
		if one.AttestedAt != nil {
			count++
		}
	}
	return count
}

// known are the CAs of a status, the new one first.
func known(status *v1alpha1.SigningAuthorityStatus) []*v1alpha1.CAStatus {
	all := []*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring}
	return slices.DeleteFunc(all, func(one *v1alpha1.CAStatus) bool { return one == nil })
}

func phase(status *v1alpha1.SigningAuthorityStatus) string {
	return cmp.Or(string(status.Phase), "not begun")
}

// summary is a status in a line.
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

// meaning is what an operation does that can't be undone, or empty.
func meaning(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority) string {
	retiring := "the CA that retires"
	if obj.Status.Retiring != nil {
		retiring = "the CA " + obj.Status.Retiring.KeyID + ", which retires,"
	}
	switch operation {
	case v1alpha1.RotateComplete:
		return fmt.Sprintf("complete has %s trusted by nobody any more, and destroys its key. There is no way back. It is refused while a certificate of it is known to be valid, unless its owner has accepted that.", retiring)
	case v1alpha1.OutstandingAccepted:
		return fmt.Sprintf("accept says that up to %d certificates of %s may break, whoever holds them: rotation status lists them. They are refused from rotation complete on.", obj.Status.OutstandingOnRetiring, retiring)
	case v1alpha1.AdoptionAttested:
		return fmt.Sprintf("attest says that nobody uses anything any more that others than this manager have issued from %s: admin.conf, kube-controller-manager's and the scheduler's kubeconfig, the API server's client certificate for kubelets, what kubectl and scripts hold. It is not looked at again, and breaks at rotation complete.", adopted(obj))
	default:
		return ""
	}
}

// adopted names the CAs that were not made here.
func adopted(obj *v1alpha1.SigningAuthority) string {
	var keyIDs []string
	for _, one := range known(&obj.Status) {
		if one.AdoptedAt != nil {
			keyIDs = append(keyIDs, one.KeyID)
		}
	}
	if len(keyIDs) == 0 {
		return "an adopted CA"
	}
	return "the CA " + strings.Join(keyIDs, " and ")
}
