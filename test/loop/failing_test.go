package loop

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// failing answers 500 to every write to a request that has the label "fails".
type failing struct{ client.Client }

type failingWriter struct{ client.SubResourceClient }

func (f failing) SubResource(name string) client.SubResourceClient {
	return failingWriter{f.Client.SubResource(name)}
}

func (f failing) Status() client.SubResourceWriter { return f.SubResource("status") }

func (w failingWriter) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	if obj.GetLabels()["fails"] != "" {
		return apierrors.NewInternalError(errors.New("this request can't be written"))
	}
	return w.SubResourceClient.Update(ctx, obj, opts...)
}

// TestOneThatFailsHoldsUpNoOther checks with one worker that requests whose every write fails are retried, and that
// others are served between the retries.
func TestOneThatFailsHoldsUpNoOther(t *testing.T) {
	kit.Alone(t)
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Client, o.Signer.Client = failing{kit.ClientOf(t, kit.RoleConfig(t, "approver"))}, failing{kit.ClientOf(t, kit.RoleConfig(t, "signer"))}
		o.Concurrency.Approver, o.Concurrency.Signer = 1, 1
	}})
	kit.GrantJoining(t, "joiner")
	fails := func(obj *kit.Request) { obj.Labels = map[string]string{"fails": "yes"} }
	failed := kit.Counted(t, "csr_approver_errors_total", nil)
	unapproved := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "bad", fails))
	unsigned := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "bad", fails))
	kit.Approve(t, unsigned)
	kit.Eventually(t, "both are tried", func(context.Context) error {
		if kit.Counted(t, "csr_approver_errors_total", nil) == failed || kit.Counted(t, "csr_signer_errors_total", nil) == 0 {
			return errors.New("they are not")
		}
		return nil
	})
	for range 3 {
		kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good")), csr.Issued)
	}
	for obj, want := range map[*kit.Request]csr.State{unapproved: csr.Pending, unsigned: csr.Approved} {
		if got := csr.StateOf(kit.Reload(t, obj)); got != want {
			t.Errorf("request %s is %s, want %s", obj.Name, got, want)
		}
	}
}
