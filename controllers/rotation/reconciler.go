package rotation

import (
	"context"
	"crypto/x509"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-rotation"

// maxConcurrent is how many authorities are read at the same time. Their steps are executed one after the other.
const maxConcurrent = 8

// Reconciler rotates the CAs of SigningAuthorities. SetupWithManager fills in nil fields.
type Reconciler struct {
	// OldLifetimeCap and SettleFor apply to authorities whose spec has none. Zero means v1alpha1.DefaultOldLifetimeCap
	// and v1alpha1.DefaultSettleFor.
	OldLifetimeCap, SettleFor time.Duration

	// Home is the cluster of the authorities, their Secrets, ledgers and published ConfigMaps and Secrets, if it is not the
	// manager's. Then nothing that the manager's cluster holds decides a step: its administrators may not be those of the CAs.
	Home crcluster.Cluster
	// Secrets are those of the authorities to rotate, if Home is set. Managers of other served clusters rotate the others there.
	Secrets []types.NamespacedName
	// Client is a client of the home.
	Client client.Client
	// Live reads from the home without the cache: a step must not depend on the state before the last step.
	Live client.Reader
	// Recorder records Events about authorities.
	Recorder events.EventRecorder
	// ServerTime is the clock by which ages and ends count; nil means Clock. No step is taken while the clocks differ.
	ServerTime *servertime.Clock
	// Clock is for the pauses between probes, and for audit records.
	Clock clock.PassiveClock
	Audit *audit.Log

	// apart reports whether the home is another cluster than the served one, which is the manager's.
	apart bool
	// config reaches the served cluster. It says how to verify its API servers, and has the manager's own client certificate.
	config   *rest.Config
	reporter *report.Reporter
	// publisher publishes what decides a step, served in the served cluster. They are the same if that is the home.
	publisher, served *publish.Publisher
	prober            prober
	loadPair          func(keypair.Pair) (*ca.Authority, error)
	deciding          sync.Mutex
	// trackers maps the name of an authority to the answers so far, and recorders a Secret to its ledger.Recorder. The
	// answers are in memory only: after a restart the manager proves everything again.
	trackers, recorders sync.Map
	// updating has the names of the authorities for which updateServed is at work.
	updating sync.Map
	// authorities are the CAs whose certificates are recorded.
	authorities atomic.Pointer[[]*x509.Certificate]
}

// prober probes servers about CAs. It is a probe.Prober, except in tests.
type prober interface {
	Ask(ctx context.Context, authority, control *ca.Authority, targets []probe.Target) map[string]probe.Answer
}

// Reconcile takes at most one step of a rotation:
//  1. It reads the authority, and what the decision depends on.
//  2. It decides with next.
//  3. It stores the decision, before any action: after a crash, the next leader continues.
//  4. It takes the action.
//  5. It returns at once for the next step, or after interval while nothing changes.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &v1alpha1.SigningAuthority{}
	if err := call.Get(ctx, r.Live, key.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.trackers.Delete(key.Name)
			rotations.authorities.Delete(key.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err) // deleted: done; otherwise retried by the queue
	}
	if obj.DeletionTimestamp != nil || !r.owns(obj) {
		return reconcile.Result{}, nil // done: its CA still signs, or another manager rotates it
	}
	o, err := r.readFacts(ctx, obj) // API servers may be slow to answer, so other authorities do not wait for it
	r.deciding.Lock()               // no other authority changes until the action is done
	defer r.deciding.Unlock()
	if err == nil {
		err = r.readOthers(ctx, obj, o)
	}
	if err != nil {
		return reconcile.Result{}, r.reportFailure(ctx, obj, err) // retried by the queue
	}
	step := next(&obj.Spec, &obj.Status, o.facts)
	again := obj.Status.Intent == string(step.Action)
	busy, err := r.storeStatus(ctx, obj, step, o.facts)
	if err == nil && r.apart {
		r.updateServed(ctx, obj.DeepCopy(), o.Now)
	}
	if err == nil && step.Action != None {
		err = r.execute(ctx, obj, step, o, again)
	}
	busy = busy || step.Action != None && !again // an action that another client undoes is not repeated at once
	return r.result(obj, busy, err)
}

// owns reports whether r rotates obj.
func (r *Reconciler) owns(obj *v1alpha1.SigningAuthority) bool {
	return !r.apart || slices.Contains(r.Secrets, secretName(obj))
}

// result returns when to reconcile obj again: at once while it is busy. A conflict is no error: another leader, or a
// client, has changed an object.
func (r *Reconciler) result(obj *v1alpha1.SigningAuthority, busy bool, err error) (reconcile.Result, error) {
	switch {
	case err != nil && !apierrors.IsConflict(err):
		return reconcile.Result{}, err // retried by the queue
	case err == nil && busy:
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil // the next step follows
	default:
		return reconcile.Result{RequeueAfter: r.interval(obj)}, nil // the next probe is due
	}
}

// interval returns the time between two reconciles of an authority, and so between two probes of an API server.
func (r *Reconciler) interval(obj *v1alpha1.SigningAuthority) time.Duration {
	return min(max(r.settleFor(obj)/5, time.Second), 30*time.Second)
}

func (r *Reconciler) settleFor(obj *v1alpha1.SigningAuthority) time.Duration {
	if own := obj.Spec.Verification.SettleFor; own != nil {
		return own.Duration
	}
	return r.SettleFor
}
