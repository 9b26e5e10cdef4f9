package rotation

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-rotation"

const (
	// DefaultOldLifetimeCap has kubelets move within a day.
	DefaultOldLifetimeCap = 24 * time.Hour
	// DefaultSettleFor is longer than an API server takes to notice another client CA file (it looks every minute).
	DefaultSettleFor = 90 * time.Second
	// idleInterval is the time between two looks at an authority that nothing is going on with.
	idleInterval = 30 * time.Second
	// maxConcurrent is how many authorities' verifiers are asked at the same time. Their steps are taken one after the other.
	maxConcurrent = 8
)

// Reconciler brings SigningAuthorities from one CA to the next. Fields left nil are filled in from the manager.
type Reconciler struct {
	// OldLifetimeCap and SettleFor are for authorities that say nothing else.
	OldLifetimeCap, SettleFor time.Duration

	Client client.Client
	// Live reads past the cache: a step must not be taken by what was true before the last one.
	Live     client.Reader
	Reporter *report.Reporter
	Clock    clock.PassiveClock
	Audit    *audit.Log
	// Cluster is how to reach and to know the API servers. Nothing else of it is used.
	Cluster *rest.Config

	publisher     *trust.Publisher
	prober        *probe.Prober
	trackers      trackers
	deciding      sync.Mutex
	recorders     recorders
	secretWatches secretWatches
	group         group
}

// Reconcile looks at one authority, notes what is decided, and does one thing.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &v1alpha1.SigningAuthority{}
	if err := r.Live.Get(ctx, key.NamespacedName, obj); err != nil {
		return reconcile.Result{}, r.forget(key.Name, err)
	}
	if obj.DeletionTimestamp != nil { // the Secret stays, and goes on to sign
		return reconcile.Result{}, nil
	}
	r.secretWatches.watch(ctx, obj)
	asked, err := r.verify(ctx, obj)
	if err != nil {
		return reconcile.Result{}, r.reportFailure(ctx, obj, fmt.Errorf("look at what there is: %w", err))
	}
	r.deciding.Lock() // what is seen of another authority holds until the step is taken
	defer r.deciding.Unlock()
	seen, err := r.observeAgain(ctx, obj, asked)
	if err != nil {
		return reconcile.Result{}, r.reportFailure(ctx, obj, fmt.Errorf("look at what there is: %w", err))
	}
	step := Next(&obj.Spec, &obj.Status, seen.Facts)
	again := obj.Status.Intent == string(step.Action)
	busy, err := r.storeStatus(ctx, obj, step, seen.Facts)
	if err == nil && step.Action != None {
		err = r.execute(ctx, obj, step.Action, seen, again)
	}
	busy = busy || step.Action != None && !again // what somebody else undoes is not done again at once
	return r.result(obj, busy, err)
}

// result returns when to reconcile obj again: at once while it is busy. After a conflict it waits without an error.
func (r *Reconciler) result(obj *v1alpha1.SigningAuthority, busy bool, err error) (reconcile.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: r.interval(obj)}, nil
	case err != nil:
		return reconcile.Result{}, err
	case busy:
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	default:
		return reconcile.Result{RequeueAfter: r.requeueInterval(obj)}, nil
	}
}

// requeueInterval until the next look.
func (r *Reconciler) requeueInterval(obj *v1alpha1.SigningAuthority) time.Duration {
	if obj.Status.Phase == v1alpha1.Completed {
		return idleInterval
	}
	return r.interval(obj)
}

// interval is the time between two questions to an API server.
func (r *Reconciler) interval(obj *v1alpha1.SigningAuthority) time.Duration {
	return min(max(r.settleFor(obj)/5, time.Second), idleInterval)
}

func (r *Reconciler) settleFor(obj *v1alpha1.SigningAuthority) time.Duration {
	if own := obj.Spec.Verification.SettleFor; own != nil {
		return own.Duration
	}
	return r.SettleFor
}

// forget forgets an authority that is gone, which err says, or returns err.
func (r *Reconciler) forget(authority string, err error) error {
	if apierrors.IsNotFound(err) {
		r.trackers.forget(authority)
		r.secretWatches.forget(authority)
	}
	return client.IgnoreNotFound(err)
}
