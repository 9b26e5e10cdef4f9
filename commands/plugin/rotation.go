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

// rotationVerb is a subcommand of rotation.
type rotationVerb struct {
	name, short string
	operation   v1alpha1.Operation // empty if it requests none
	goal        string             // what is true when it is done
}

var rotationVerbs = []rotationVerb{
	{"status", "Show which CA signs, what the manager waits for, and which nodes still use the old CA", "", ""},
	{"wait", "Wait for the step that is under way", "", "no certificate of the old CA is valid, or rotation accept was run"},
	{
		"start", "Create a new CA and wait until every API server trusts it", v1alpha1.OperationStart,
		"the new CA is trusted and signs",
	},
	{
		"complete", "Stop trusting the old CA and destroy its key", v1alpha1.OperationComplete,
		"every API server refuses the old CA and its key is destroyed",
	},
	{"rollback", "Go back to the old CA", v1alpha1.OperationRollback, "the old CA signs again"},
	{
		"confirm", "Confirm that verifiers which cannot be probed trust the new CA", v1alpha1.OperationConfirm,
		"the manager has recorded it",
	},
	{
		"accept", "Accept that certificates of the old CA stop working", v1alpha1.OperationAccept,
		"the manager has recorded it",
	},
	{
		"attest", "State that nobody uses certificates which others issued from an adopted CA", v1alpha1.OperationAttest,
		"the manager has recorded it",
	},
}

// rotation shows SigningAuthorities, and requests operations from the manager with an annotation.
type rotation struct {
	*cluster
	verb      rotationVerb
	timeout   time.Duration
	wait, yes bool
	asJSON    *bool // of status
	// out is for the result, and aside for remarks about it.
	out, aside io.Writer
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
	for _, verb := range rotationVerbs {
		r := &rotation{verb: verb}
		cmd.AddCommand(r.command(connect))
	}
	return cmd
}

// command returns the subcommand for r.
func (r *rotation) command(connect connector) *cobra.Command {
	cmd := &cobra.Command{
		Use: r.verb.name + " [NAME]", Short: r.verb.short, Long: r.verb.short + ".",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	if r.verb.name == "status" {
		r.asJSON = jsonFlag(cmd)
	}
	if r.verb.operation != "" {
		cmd.Flags().BoolVar(&r.wait, "wait", true, "wait until it is done; with false, only request it")
		cmd.Flags().BoolVar(&r.yes, "yes", false, "complete, accept, attest: do it, although it cannot be undone")
	}
	cmd.Flags().DurationVar(&r.timeout, "timeout", 15*time.Minute, "longest `time` to wait; the manager continues after it")
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, args []string) error {
		r.cluster, r.out, r.aside = c, cmd.OutOrStdout(), cmd.ErrOrStderr()
		ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout)
		defer cancel()
		err := r.run(ctx, strings.Join(args, ""))
		prefix := "rotation " + r.verb.name
		if err != nil && !strings.HasPrefix(err.Error(), prefix) { // a refusal has it already
			return fmt.Errorf("%s: %w", prefix, err)
		}
		return err
	})
	return cmd
}

// run runs the command for the SigningAuthority of that name, or for the only one if name is empty.
func (r *rotation) run(ctx context.Context, name string) error {
	objs, err := r.listAuthorities(ctx, name)
	switch {
	case err != nil:
		return err
	case r.verb.name == "status":
		return r.status(ctx, objs)
	case len(objs) > 1:
		var names []string
		for _, obj := range objs {
			names = append(names, obj.Name)
		}
		return fmt.Errorf("there are %d SigningAuthorities: add the name of one: %s", len(objs), strings.Join(names, ", "))
	case r.verb.operation == "":
		return r.attach(ctx, &objs[0])
	}
	return r.operate(ctx, &objs[0])
}

// authority returns a call about the SigningAuthority of that name, or about all of them if name is empty.
func (c *cluster) authority(verb, name string) *rest.Request {
	return c.authorities.Verb(verb).
		AbsPath("apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "signingauthorities", name).
		SetHeader("Accept", "application/json")
}

// listAuthorities returns the SigningAuthority of that name, or all of them if name is empty. If there is none, it returns
// an error.
func (c *cluster) listAuthorities(ctx context.Context, name string) ([]v1alpha1.SigningAuthority, error) {
	list := v1alpha1.SigningAuthorityList{}
	data, err := c.authority("GET", name).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err) && name != "":
		return nil, fmt.Errorf("there is no SigningAuthority %q: %w", name, err)
	case apierrors.IsNotFound(err):
		return nil, errors.New("this cluster does not serve SigningAuthorities: install config/rotation")
	case err == nil && name != "":
		list.Items = make([]v1alpha1.SigningAuthority, 1)
		err = json.Unmarshal(data, &list.Items[0])
	case err == nil:
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read SigningAuthorities: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("there is no SigningAuthority: create one as in docs/how-to/rotate-a-ca.md#set-up")
	}
	return list.Items, nil
}

// operate requests the operation, and waits until it is done or refused.
func (r *rotation) operate(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	if warning := warning(r.verb.operation, obj); warning != "" && !r.yes {
		if err := r.allows(obj); err != nil {
			return err
		}
		if err := r.remark("%s", warning); err != nil {
			return err
		}
		return fmt.Errorf("not requested: to do it, run %s --yes", r.commandFor(r.verb.name, obj))
	}
	if err := r.request(ctx, obj.Name); err != nil {
		return err
	}
	if !r.wait {
		return r.print("%s: requested %s; to follow it, run %s",
			obj.Name, r.verb.operation.Command(), r.commandFor("wait", obj))
	}
	return (&follower{rotation: r, operation: r.verb.operation, before: obj}).follow(ctx)
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
		objs, err := r.listAuthorities(ctx, name)
		if err != nil {
			return err
		}
		obj := &objs[0]
		switch pending := requested(obj); {
		case pending == "" && obj.Status.Answered(): // it would take another request for the one that it has just answered
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("signingauthorities").GroupResource(), name,
				errors.New("the manager has not finished with "+obj.Status.LastOperation.Name.Command()))
		case pending == r.verb.operation:
			return nil // it was requested before
		case pending != "":
			return r.refused(obj, fmt.Sprintf("the manager has not picked up %s yet, which was requested before", pending.Command()))
		}
		if err := r.allows(obj); err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": obj.ResourceVersion,
			"annotations":     map[string]any{v1alpha1.OperationAnnotation: r.verb.operation},
		}})
		if err != nil {
			return err
		}
		return r.authority("PATCH", name).SetHeader("Content-Type", string(types.MergePatchType)).Body(patch).Do(ctx).Error()
	})
}

// allows returns an error if the manager refuses the operation in the phase of obj.
func (r *rotation) allows(obj *v1alpha1.SigningAuthority) error {
	if slices.Contains(v1alpha1.Allowed(obj.Status.Phase), r.verb.operation) {
		return nil
	}
	return r.refused(obj, "the phase is "+phase(&obj.Status))
}

// refused returns the manager's own text for a refusal.
func (r *rotation) refused(obj *v1alpha1.SigningAuthority, why string) error {
	return fmt.Errorf("%s is refused: %s; allowed now: %s",
		r.verb.operation.Command(), why, v1alpha1.AllowedText(obj.Status.Phase))
}

// requested returns the operation that obj requests and that the manager has not picked up yet.
func requested(obj *v1alpha1.SigningAuthority) v1alpha1.Operation {
	return v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
}

// warning returns the effect of an operation that cannot be undone, or an empty text.
func warning(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority) string {
	retiring, adopted := "the retiring CA", "the adopted CA"
	if obj.Status.Retiring != nil {
		retiring += " " + obj.Status.Retiring.KeyID
	}
	for _, ca := range []*v1alpha1.CAStatus{obj.Status.Candidate, obj.Status.Signing, obj.Status.Retiring} {
		if ca != nil && ca.AdoptedAt != nil {
			adopted += " " + ca.KeyID
		}
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
