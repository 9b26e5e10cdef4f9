package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/spf13/cobra"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// rotationOptions are the command line.
type rotationOptions struct {
	verb      string
	operation v1alpha1.Operation // empty for status and wait
	name      string
	timeout   time.Duration
	wait, yes bool
	// output is the format of status. watch makes status print again after each change.
	output string
	watch  bool
	// program is the command line up to the verb, such as "kubectl csr rotation".
	program string
}

// rotation shows SigningAuthorities, and requests operations from the manager with an annotation.
type rotation struct {
	rotationOptions
	api   client.Client
	clock clock.PassiveClock
	// out is for the result, and aside for remarks about it.
	out, aside io.Writer
	// interval is the time between two observations. eventTimeout bounds the wait for the Event about a refusal.
	interval, eventTimeout time.Duration
}

// rotationVerb is a subcommand of rotation.
type rotationVerb struct {
	name, short string
	operation   v1alpha1.Operation // empty if it requests none
}

var rotationVerbs = []rotationVerb{
	{"status", "Show which CA signs, what the manager waits for, and which nodes still use the old CA", ""},
	{"wait", "Wait for the step that is under way", ""},
	{"start", "Create a new CA and wait until every API server trusts it", v1alpha1.RotateStart},
	{"complete", "Stop trusting the old CA and destroy its key", v1alpha1.RotateComplete},
	{"rollback", "Go back to the old CA", v1alpha1.RotateRollback},
	{"confirm", "Confirm that verifiers which cannot be probed trust the new CA", v1alpha1.TrustConfirmed},
	{"accept", "Accept that certificates of the old CA stop working", v1alpha1.OutstandingAccepted},
	{"attest", "State that nobody uses certificates which others issued from an adopted CA", v1alpha1.AdoptionAttested},
}

// NewRotationCommand returns the command that shows and controls the rotation of signing CAs.
func NewRotationCommand(source Source) *cobra.Command {
	o := &rotationOptions{}
	cmd := &cobra.Command{
		Use:   "rotation COMMAND [NAME]",
		Short: "Show and control the rotation of a signing CA",
		Long: `rotation shows how far the rotation of a signing CA is, and requests the next step from the manager. It uses
your kubeconfig and reads no Secret. NAME is the name of a SigningAuthority. If there is only one, you may leave it out.
The exit code is 0 if the command did what it says, otherwise 1.`,
	}
	var names []string
	for _, verb := range rotationVerbs {
		names = append(names, verb.name)
		cmd.AddCommand(o.command(verb, source))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problem := errors.New("a command is missing")
		if len(args) > 0 {
			problem = fmt.Errorf("unknown subcommand %q", args[0])
		}
		return usageError(cmd, fmt.Errorf("%w: use one of %s", problem, strings.Join(names, ", ")))
	}
	cmd.PersistentFlags().DurationVar(&o.timeout, "timeout", 15*time.Minute,
		"longest `time` to wait; the manager continues after it")
	source.Bind(cmd, APIServer)
	return cmd
}

// command returns the subcommand for verb.
func (o *rotationOptions) command(verb rotationVerb, source Source) *cobra.Command {
	format := new(string)
	cmd := &cobra.Command{
		Use: verb.name + " [NAME]", Short: verb.short, Long: verb.short + ".", ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.output = *format
			if err := usageError(cmd, o.check(args)...); err != nil {
				return err
			}
			o.verb, o.operation, o.name = verb.name, verb.operation, strings.Join(args, "")
			o.program = cmd.Parent().CommandPath()
			err := runRotation(cmd, source, *o)
			prefix := "rotation " + verb.name
			if err != nil && !strings.HasPrefix(err.Error(), prefix) { // a refusal has it already
				return fmt.Errorf("%s: %w", prefix, err)
			}
			return err
		},
	}
	flags := cmd.Flags()
	switch {
	case verb.name == "status":
		format = outputFlag(cmd, "table")
		flags.BoolVarP(&o.watch, "watch", "w", false, "print the status again after each change, for --timeout")
	case verb.operation != "":
		flags.BoolVar(&o.wait, "wait", true, "wait until it is done; with false, only request it")
		flags.BoolVar(&o.yes, "yes", false, "complete, accept, attest: do it, although it cannot be undone")
	}
	return cmd
}

// check returns every mistake in the command line.
func (o *rotationOptions) check(args []string) []error {
	problems := []error{atMost(1, args), checkOutput(o.output)}
	if o.timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout: %s is not a time to wait; use for example 15m", o.timeout))
	}
	return problems
}

func runRotation(cmd *cobra.Command, source Source, options rotationOptions) error {
	ctx := cmd.Context()
	server, err := connect(ctx, source, cmd)
	if err != nil {
		return err
	}
	r := &rotation{
		rotationOptions: options, api: server.api, clock: server.clock,
		out: cmd.OutOrStdout(), aside: cmd.ErrOrStderr(),
		interval: time.Second, eventTimeout: 5 * time.Second,
	}
	return r.run(ctx)
}

func (r *rotation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if r.verb == "status" {
		return r.status(ctx)
	}
	objs, err := r.authorities(ctx)
	if err != nil {
		return err
	}
	if len(objs) > 1 {
		var names []string
		for i := range objs {
			names = append(names, objs[i].Name)
		}
		return fmt.Errorf("there are %d SigningAuthorities: add the name of one: %s", len(objs), strings.Join(names, ", "))
	}
	if r.operation == "" {
		return r.attach(ctx, &objs[0])
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
		return nil, errors.New("this cluster does not serve SigningAuthorities: install config/rotation")
	case err != nil:
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	case len(list.Items) == 0:
		return nil, errors.New("there is no SigningAuthority: create one as in docs/how-to/rotate-a-ca.md")
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.SigningAuthority) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// operate requests the operation, and waits until it is done or refused.
func (r *rotation) operate(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	if warning := warning(r.operation, obj); warning != "" && !r.yes {
		if !slices.Contains(v1alpha1.Allowed(obj.Status.Phase), r.operation) {
			return r.refused(obj, "the phase is "+phase(&obj.Status))
		}
		if err := r.remark("%s", warning); err != nil {
			return err
		}
		return fmt.Errorf("not requested: to do it, run %s --yes", r.commandFor(r.verb, obj))
	}
	f := r.newFollower(ctx, obj, r.operation)
	if err := r.request(ctx, obj); err != nil {
		return err
	}
	if !r.wait {
		return r.print("%s: requested %s; to follow it, run %s",
			obj.Name, r.operation.Command(), r.commandFor("wait", obj))
	}
	return f.follow(ctx)
}

// commandFor returns the command line of verb for obj.
func (r *rotation) commandFor(verb string, obj *v1alpha1.SigningAuthority) string {
	return strings.Join([]string{r.program, verb, obj.Name}, " ")
}

func (r *rotation) print(format string, args ...any) error {
	_, err := fmt.Fprintln(r.out, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// remark prints what is not the result.
func (r *rotation) remark(format string, args ...any) error {
	_, err := fmt.Fprintln(r.aside, oneLine(fmt.Sprintf(format, args...)))
	return err
}

// request sets the annotation for the operation, unless the manager would refuse it.
func (r *rotation) request(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := r.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return fmt.Errorf("read SigningAuthority %s: %w", obj.Name, err)
		}
		pending := requested(obj)
		switch {
		case pending == r.operation:
			return nil // it was requested before
		case pending != "":
			return r.refused(obj, fmt.Sprintf("the manager has not picked up %s yet, which was requested before", pending.Command()))
		case !slices.Contains(v1alpha1.Allowed(obj.Status.Phase), r.operation):
			return r.refused(obj, "the phase is "+phase(&obj.Status))
		}
		patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(r.operation))
		return r.api.Patch(ctx, obj, patch)
	})
}

// refused returns the manager's own text for a refusal.
func (r *rotation) refused(obj *v1alpha1.SigningAuthority, why string) error {
	return fmt.Errorf("%s is refused: %s; allowed now: %s",
		r.operation.Command(), why, v1alpha1.AllowedText(obj.Status.Phase))
}

// requested returns the operation that obj requests and that the manager has not picked up yet.
func requested(obj *v1alpha1.SigningAuthority) v1alpha1.Operation {
	return v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
}

// warning returns the effect of an operation that cannot be undone, or an empty text.
func warning(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority) string {
	retiring := "the retiring CA"
	if obj.Status.Retiring != nil {
		retiring += " " + obj.Status.Retiring.KeyID
	}
	adopted := "the adopted CA"
	wasAdopted := func(ca *v1alpha1.CAStatus) bool { return ca.AdoptedAt != nil }
	if ids := keyIDs(&obj.Status, wasAdopted); len(ids) > 0 {
		adopted += " " + strings.Join(ids, " and ")
	}
	switch operation {
	case v1alpha1.RotateComplete:
		return fmt.Sprintf("rotation complete removes %s from every trust bundle and destroys its key. You cannot go back. "+
			"The manager refuses it while a certificate of this CA is valid, unless you ran rotation accept.", retiring)
	case v1alpha1.OutstandingAccepted:
		return fmt.Sprintf("rotation accept allows rotation complete although up to %d certificates of %s are still valid. "+
			"rotation status lists them. Whoever uses one of them loses access at rotation complete.",
			obj.Status.OutstandingOnRetiring, retiring)
	case v1alpha1.AdoptionAttested:
		return fmt.Sprintf("rotation attest states that nobody uses a certificate which others than this manager issued "+
			"from %s. Check admin.conf, the kubeconfigs of kube-controller-manager and kube-scheduler, the API server's client "+
			"certificate for kubelets, and every kubeconfig of people and scripts. The manager does not check them. Any of "+
			"them that is still in use stops working at rotation complete.", adopted)
	default:
		return ""
	}
}
