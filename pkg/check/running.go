package check

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Running checks whether a manager runs and leads. Reader must not be a cache.
type Running struct {
	Reader client.Reader
	// Leases are the places where the manager's Lease may be, the likeliest first. A Lease has the name of its Deployment.
	Leases []types.NamespacedName
	// Pause is how long a leader takes at most to renew its Lease.
	Pause time.Duration
	Clock clock.Clock
}

// startManager is the next step if no manager runs.
const startManager = "find out why no manager runs: kubectl get deployments,pods in that namespace, and the log of " +
	"its pods; if the manager has another Lease, pass its configuration with --config"

// Check returns a Result about the Lease, and one about the Deployment beside it if it can be read.
func (r Running) Check(ctx context.Context) []Result {
	result := Result{
		Check: ManagerRunning, Status: Failed, Evidence: "there is no such Lease: no manager has ever led",
		NextStep: startManager,
	}
	for i, name := range r.Leases {
		lease := &coordinationv1.Lease{}
		err := r.Reader.Get(ctx, name, lease)
		if apierrors.IsNotFound(err) && i < len(r.Leases)-1 {
			continue
		}
		result.Subject = "Lease " + name.String()
		switch {
		case apierrors.IsNotFound(err):
			result.Subject = "Lease " + r.Leases[0].String()
		case err != nil:
			result.Status, result.Evidence, result.NextStep = Unknown, ReadError("get leases", err), askAgain
		default:
			r.judge(ctx, lease, &result)
		}
		return append([]Result{result}, r.deployment(ctx, name)...)
	}
	return []Result{result}
}

// judge sets result to who holds lease and whether it is renewed. Clocks may differ, so a Lease that looks old must
// also stay unchanged for a while. judge ignores the duration in the Lease, because whoever may write the Lease chooses it.
func (r Running) judge(ctx context.Context, lease *coordinationv1.Lease, result *Result) {
	holder, renewed := ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Spec.RenewTime
	if holder == "" || renewed == nil {
		result.Evidence = "it has no holder: the last leader has ended"
		return
	}
	age := r.Clock.Since(renewed.Time).Round(time.Second)
	switch moving, err := r.moves(ctx, lease, age); {
	case err != nil:
		result.Status, result.Evidence, result.NextStep = Unknown, ReadError("get leases", err), askAgain
	case moving:
		result.Status, result.NextStep = OK, ""
		result.Evidence = fmt.Sprintf("held by %s, renewed %s ago", holder, age)
	default:
		result.Evidence = fmt.Sprintf("held by %s, but last renewed %s ago, and a leader renews it every few seconds",
			holder, age)
	}
}

// moves reports whether lease was renewed less than a pause ago, or is renewed while it is watched for a pause.
func (r Running) moves(ctx context.Context, lease *coordinationv1.Lease, age time.Duration) (bool, error) {
	if age.Abs() <= r.Pause {
		return true, nil
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-r.Clock.After(r.Pause):
	}
	again := &coordinationv1.Lease{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(lease), again); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return !again.Spec.RenewTime.Equal(lease.Spec.RenewTime) && ptr.Deref(again.Spec.HolderIdentity, "") != "", nil
}

// deployment returns a Result about the Deployment called name, or nothing if it can't be read. A manager may run
// without a Deployment, and has no right to read one.
func (r Running) deployment(ctx context.Context, name types.NamespacedName) []Result {
	found := &appsv1.Deployment{}
	if err := r.Reader.Get(ctx, name, found); err != nil {
		return nil
	}
	wanted, ready := ptr.Deref(found.Spec.Replicas, 1), found.Status.ReadyReplicas
	result := Result{
		Check: ManagerRunning, Subject: "Deployment " + name.String(), Status: OK,
		Evidence: fmt.Sprintf("%d of %d replicas are ready", ready, wanted),
	}
	if ready < wanted || wanted == 0 {
		result.Status = Failed
		result.NextStep = "find out why: kubectl -n " + name.Namespace + " describe pods, and their /readyz"
	}
	return []Result{result}
}
