package plugin

import (
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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// rotationOptions are the command line.
type rotationOptions struct {
	verb      string
	operation v1alpha1.Operation // empty for status and wait
	name      string
	timeout   time.Duration
	wait, yes bool
	output    string // the format of status
}

// rotation shows SigningAuthorities, and requests operations from the manager with an annotation.
type rotation struct {
	rotationOptions
	*cluster
	// out is for the result, and aside for remarks about it.
	out, aside io.Writer
	interval   time.Duration // between two observations
}

// rotationVerb is a subcommand of rotation.
type rotationVerb struct {
	name, short string
	operation   v1alpha1.Operation // empty if it requests none
}

var rotationVerbs = []rotationVerb{
	{"status", "Show which CA signs, what the manager waits for, and which nodes still use the old CA", ""},
	{"wait", "Wait for the step that is under way", ""},
	{"start", "Create a new CA and wait until every API server trusts it", v1alpha1.OperationStart},
	{"complete", "Stop trusting the old CA and destroy its key", v1alpha1.OperationComplete},
	{"rollback", "Go back to the old CA", v1alpha1.OperationRollback},
	{"confirm", "Confirm that verifiers which cannot be probed trust the new CA", v1alpha1.OperationConfirm},
	{"accept", "Accept that certificates of the old CA stop working", v1alpha1.OperationAccept},
	{"attest", "State that nobody uses certificates which others issued from an adopted CA", v1alpha1.OperationAttest},
}

// rotationCommand returns the command that shows and controls the rotation of signing CAs.
func rotationCommand(connect connector) *cobra.Command {
	o := &rotationOptions{}
	cmd := &cobra.Command{
		Use:   "rotation COMMAND [NAME]",
		Short: "Show and control the rotation of a signing CA",
		Long: `rotation shows how far the rotation of a signing CA is, and requests the next step from the manager. It
reads no Secret. NAME is the name of a SigningAuthority. If there is only one, you may leave it out.
The exit code is 0 if the command did what it says, otherwise 1.`,
	}
	for _, verb := range rotationVerbs {
		cmd.AddCommand(o.command(verb, connect))
	}
	cmd.PersistentFlags().DurationVar(&o.timeout, "timeout", 15*time.Minute,
		"longest `time` to wait; the manager continues after it")
	return cmd
}

// command returns the subcommand for verb.
func (o *rotationOptions) command(verb rotationVerb, connect connector) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb.name + " [NAME]", Short: verb.short, Long: verb.short + ".", ValidArgsFunction: cobra.NoFileCompletions,
	}
	format := new(string)
	switch {
	case verb.name == "status":
		format = formatFlag(cmd)
	case verb.operation != "":
		cmd.Flags().BoolVar(&o.wait, "wait", true, "wait until it is done; with false, only request it")
		cmd.Flags().BoolVar(&o.yes, "yes", false, "complete, accept, attest: do it, although it cannot be undone")
	}
	check := func(args []string) error {
		switch {
		case len(args) > 1:
			return noArgs(args[1:])
		case o.timeout <= 0:
			return fmt.Errorf("--timeout: %s is not a time to wait; use for example 15m", o.timeout)
		}
		return checkFormat(*format)
	}
	cmd.RunE = run(connect, check, func(cmd *cobra.Command, c *cluster, args []string) error {
		o.verb, o.operation, o.name, o.output = verb.name, verb.operation, strings.Join(args, ""), *format
		r := &rotation{
			rotationOptions: *o, cluster: c, out: cmd.OutOrStdout(), aside: cmd.ErrOrStderr(),
			interval: time.Second,
		}
		err := r.run(cmd.Context())
		prefix := "rotation " + verb.name
		if err != nil && !strings.HasPrefix(err.Error(), prefix) { // a refusal has it already
			return fmt.Errorf("%s: %w", prefix, err)
		}
		return err
	})
	return cmd
}

func (r *rotation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if r.verb == "status" {
		return r.status(ctx)
	}
	objs, err := r.named(ctx)
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

// errNoAuthorities is the error of a cluster that does not serve SigningAuthorities.
var errNoAuthorities = errors.New("this cluster does not serve SigningAuthorities: install config/rotation")

// authority returns a call about the SigningAuthority of that name, or about all of them if name is empty.
func (c *cluster) authority(verb, name string) *rest.Request {
	return c.authorities.Verb(verb).
		AbsPath("apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "signingauthorities", name).
		SetHeader("Accept", "application/json")
}

// listAuthorities returns the SigningAuthority of that name if it exists, or all of them if name is empty.
func (c *cluster) listAuthorities(ctx context.Context, name string) ([]v1alpha1.SigningAuthority, error) {
	data, err := c.authority("GET", name).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err) && name != "":
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, errNoAuthorities
	case err != nil:
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	}
	list := v1alpha1.SigningAuthorityList{}
	if name == "" {
		err = json.Unmarshal(data, &list)
	} else {
		list.Items = make([]v1alpha1.SigningAuthority, 1)
		err = json.Unmarshal(data, &list.Items[0])
	}
	objs := list.Items
	if err != nil {
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	}
	slices.SortFunc(objs, func(a, b v1alpha1.SigningAuthority) int { return strings.Compare(a.Name, b.Name) })
	return objs, nil
}

// get reads obj again.
func (r *rotation) get(ctx context.Context, name string) (*v1alpha1.SigningAuthority, error) {
	objs, err := r.listAuthorities(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case len(objs) == 0:
		return nil, fmt.Errorf("SigningAuthority %s does not exist", name)
	}
	return &objs[0], nil
}

// named returns the SigningAuthority that the command line names, or all of them.
func (r *rotation) named(ctx context.Context) ([]v1alpha1.SigningAuthority, error) {
	objs, err := r.listAuthorities(ctx, r.name)
	switch {
	case err != nil:
		return nil, err
	case len(objs) == 0 && r.name != "":
		return nil, fmt.Errorf("there is no SigningAuthority %q", r.name)
	case len(objs) == 0:
		return nil, errors.New("there is no SigningAuthority: create one as in docs/how-to/rotate-a-ca.md#set-up")
	}
	return objs, nil
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
	f := r.newFollower(obj, r.operation)
	if err := r.request(ctx, obj.Name); err != nil {
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
	return strings.Join([]string{"kubectl csr rotation", verb, obj.Name}, " ")
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
func (r *rotation) request(ctx context.Context, name string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		obj, err := r.get(ctx, name)
		if err != nil {
			return err
		}
		pending := requested(obj)
		switch {
		case pending == "" && obj.Status.Answered(): // it would take another request for the one that it has just answered
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("signingauthorities").GroupResource(), name,
				errors.New("the manager has not finished with "+obj.Status.LastOperation.Name.Command()))
		case pending == r.operation:
			return nil // it was requested before
		case pending != "":
			return r.refused(obj, fmt.Sprintf("the manager has not picked up %s yet, which was requested before", pending.Command()))
		case !slices.Contains(v1alpha1.Allowed(obj.Status.Phase), r.operation):
			return r.refused(obj, "the phase is "+phase(&obj.Status))
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": obj.ResourceVersion,
			"annotations":     map[string]any{v1alpha1.OperationAnnotation: r.operation},
		}})
		if err != nil {
			return err
		}
		return r.authority("PATCH", name).SetHeader("Content-Type", string(types.MergePatchType)).Body(patch).Do(ctx).Error()
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
	case v1alpha1.OperationComplete:
		return fmt.Sprintf("rotation complete removes %s from every trust bundle and destroys its key. You cannot go back. "+
			"The manager refuses it while a certificate of this CA is valid, unless you ran rotation accept.", retiring)
	case v1alpha1.OperationAccept:
		return fmt.Sprintf("rotation accept allows rotation complete although certificates of %s are still valid. "+
			"rotation status lists them. Whoever uses one of them loses access at rotation complete.", retiring)
	case v1alpha1.OperationAttest:
		return fmt.Sprintf("rotation attest states that nobody uses a certificate which others than this manager issued "+
			"from %s. Check admin.conf, the kubeconfigs of kube-controller-manager and kube-scheduler, the API server's client "+
			"certificate for kubelets, and every kubeconfig of people and scripts. The manager does not check them. Any of "+
			"them that is still in use stops working at rotation complete.", adopted)
	default:
		return ""
	}
}
