package integration

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
	unshared(t)
	startLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Client, o.Signer.Client = failing{clientOf(t, roleConfig(t, "approver"))}, failing{clientOf(t, roleConfig(t, "signer"))}
		o.Concurrency.Approver, o.Concurrency.Signer = 1, 1
	}})
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	fails := func(obj *request) { obj.Labels = map[string]string{"fails": "yes"} }
	failed := counted(t, "csr_approver_errors_total", nil)
	unapproved := createRequest(t, as(t, "joiner"), nodeRequest(t, "bad", fails))
	unsigned := createRequest(t, admin(t), nodeRequest(t, "bad", fails))
	approve(t, unsigned)
	eventually(t, "both are tried", func(context.Context) error {
		if counted(t, "csr_approver_errors_total", nil) == failed || counted(t, "csr_signer_errors_total", nil) == 0 {
			return errors.New("they are not")
		}
		return nil
	})
	for range 3 {
		reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "good")), csr.Issued)
	}
	for obj, want := range map[*request]csr.State{unapproved: csr.Pending, unsigned: csr.Approved} {
		if got := csr.StateOf(reload(t, obj)); got != want {
			t.Errorf("request %s is %s, want %s", obj.Name, got, want)
		}
	}
}
