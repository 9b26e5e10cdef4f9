package rotation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/trust"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-rotation"

const (
	// DefaultOldLifetimeCap has kubelets move within a day.
	DefaultOldLifetimeCap = 24 * time.Hour
	// DefaultSettleFor is longer than an API server takes to notice another client CA file (it looks every minute).
	DefaultSettleFor = 90 * time.Second
	// calm is the time between two looks at an authority that nothing is going on with.
	calm = 30 * time.Second
	// atOnce is how many authorities' verifiers are asked at the same time. Their steps are taken one after the other.
	atOnce = 8
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

	publisher *trust.Publisher
	prober    *probe.Prober
	watches   watches
	deciding  sync.Mutex
	records   records
	secrets   secrets
	group     group
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
	r.secrets.watch(ctx, obj)
	asked, err := r.verify(ctx, obj)
	if err != nil {
		return reconcile.Result{}, r.unready(ctx, obj, fmt.Errorf("look at what there is: %w", err))
	}
	r.deciding.Lock() // what is seen of another authority holds until the step is taken
	defer r.deciding.Unlock()
	seen, err := r.look(ctx, obj, asked)
	if err != nil {
		return reconcile.Result{}, r.unready(ctx, obj, fmt.Errorf("look at what there is: %w", err))
	}
	step := Next(&obj.Spec, &obj.Status, seen.Facts)
	again := obj.Status.Intent == string(step.Action)
	busy, err := r.note(ctx, obj, step, seen.Facts)
	if err == nil && step.Action != None {
		err = r.take(ctx, obj, step.Action, seen, again)
	}
	busy = busy || step.Action != None && !again // what somebody else undoes is not done again at once
	return r.result(obj, busy, err)
}

// result returns when to reconcile obj again: at once while it is busy. After a conflict it waits without an error.
func (r *Reconciler) result(obj *v1alpha1.SigningAuthority, busy bool, err error) (reconcile.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: r.every(obj)}, nil
	case err != nil:
		return reconcile.Result{}, err
	case busy:
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	default:
		return reconcile.Result{RequeueAfter: r.pause(obj)}, nil
	}
}

// forget forgets an authority that is gone, which err says, or returns err.
func (r *Reconciler) forget(authority string, err error) error {
	if apierrors.IsNotFound(err) {
		r.watches.forget(authority)
		r.secrets.forget(authority)
	}
	return client.IgnoreNotFound(err)
}

// take takes action, and records that once. Who led before may come to it late: the intent that is noted just before says that
// nobody has gone on since what was seen; where it was noted before, that is asked.
func (r *Reconciler) take(ctx context.Context, obj *v1alpha1.SigningAuthority, action Action, seen *seen, again bool) error {
	if !again {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, recordOf(obj, action))
	} else if err := r.current(ctx, obj); err != nil {
		return err
	}
	if err := r.act(ctx, obj, action, seen); err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	log.FromContext(ctx).Info("Took a step of a rotation", "action", action, "phase", obj.Status.Phase, "generation", obj.Status.Generation)
	return nil
}

// recordOf names the CA that action is about: the one that is to sign, or to go.
func recordOf(obj *v1alpha1.SigningAuthority, action Action) audit.Record {
	status := &obj.Status
	one := cmp.Or(status.Candidate, status.Signing)
	switch action {
	case SwapBack, Seal, Unseal, Prune, DestroyRetiring:
		one = cmp.Or(status.Retiring, one)
	}
	record := audit.Record{Name: obj.Name, UID: obj.UID, Reason: string(action), Message: sentence(status)}
	if one != nil {
		record.IssuerKeyID = one.KeyID
	}
	return record
}

// pause until the next look.
func (r *Reconciler) pause(obj *v1alpha1.SigningAuthority) time.Duration {
	if obj.Status.Phase == v1alpha1.Completed {
		return calm
	}
	return r.every(obj)
}

// every is the time between two questions to an API server.
func (r *Reconciler) every(obj *v1alpha1.SigningAuthority) time.Duration {
	return min(max(r.settleFor(obj)/5, time.Second), calm)
}

func (r *Reconciler) settleFor(obj *v1alpha1.SigningAuthority) time.Duration {
	if own := obj.Spec.Verification.SettleFor; own != nil {
		return own.Duration
	}
	return r.SettleFor
}

// note writes what was decided before anything is done, and says whether the decision goes on from here at once.
func (r *Reconciler) note(ctx context.Context, obj *v1alpha1.SigningAuthority, step Step, f Facts) (busy bool, err error) {
	before := obj.Status.DeepCopy()
	obj.Status = step.Status
	describe(obj, f)
	if !equality.Semantic.DeepEqual(*before, obj.Status) {
		if err := r.Client.Status().Update(ctx, obj); err != nil {
			return false, err
		}
	}
	r.tell(ctx, obj, before, step)
	if step.Take {
		if step.Refused == "" && before.TakenOperation == "" {
			r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, recordOf(obj, Action(obj.Status.TakenOperation)))
		}
		return true, r.takeOperation(ctx, obj)
	}
	return decided(before) != decided(&obj.Status), nil
}

// unready says in the status why nothing can be decided, and returns err.
func (r *Reconciler) unready(ctx context.Context, obj *v1alpha1.SigningAuthority, err error) error {
	before := obj.Status.DeepCopy()
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "RotationStuck", Message: err.Error(),
		ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	if equality.Semantic.DeepEqual(*before, obj.Status) {
		return err
	}
	r.event(obj, corev1.EventTypeWarning, "RotationStuck", err.Error())
	return errors.Join(err, r.Client.Status().Update(ctx, obj))
}

// decided is what of a status a next step depends on, and not the time alone.
func decided(status *v1alpha1.SigningAuthorityStatus) string {
	var b strings.Builder
	fmt.Fprint(&b, status.Phase, status.Generation, status.Intent, status.TakenOperation, status.UnpublishedAt == nil)
	for _, one := range []*v1alpha1.CAStatus{status.Signing, status.Candidate, status.Retiring} {
		if one != nil {
			fmt.Fprint(&b, "|", one.Fingerprint)
		}
	}
	return b.String()
}

// takeOperation removes the annotation, unless it is another one by now.
func (r *Reconciler) takeOperation(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
	delete(obj.Annotations, v1alpha1.OperationAnnotation)
	return r.Client.Patch(ctx, obj, patch)
}

// tell writes Events about what an owner wants to know.
func (r *Reconciler) tell(ctx context.Context, obj *v1alpha1.SigningAuthority, before *v1alpha1.SigningAuthorityStatus, step Step) {
	if step.Refused != "" {
		r.event(obj, corev1.EventTypeWarning, "RotationRefused", step.Refused)
		log.FromContext(ctx).Info("Refused", "why", step.Refused)
	}
	if before.Phase != obj.Status.Phase {
		reached := "Rotation" + string(obj.Status.Phase)
		r.event(obj, corev1.EventTypeNormal, reached, sentence(&obj.Status))
	}
	if !slices.Equal(before.WaitingFor, obj.Status.WaitingFor) && len(obj.Status.WaitingFor) > 0 {
		log.FromContext(ctx).Info("Waits", "for", obj.Status.WaitingFor)
	}
	measure(obj)
}

func (r *Reconciler) event(obj *v1alpha1.SigningAuthority, eventType, reason, message string) {
	r.Reporter.Object(obj, eventType, "Rotate", reason, message)
}

// sentence says what a phase means.
func sentence(status *v1alpha1.SigningAuthorityStatus) string {
	key := func(one *v1alpha1.CAStatus) string {
		if one == nil {
			return "none yet"
		}
		return one.KeyID
	}
	switch status.Phase {
	case v1alpha1.Preparing:
		return fmt.Sprintf("CA generation %d waits to be trusted; what signs is %s", status.Generation, key(status.Signing))
	case v1alpha1.Prepared:
		return fmt.Sprintf("signing with %s; %s is trusted until rotate-complete", key(status.Signing), key(status.Retiring))
	case v1alpha1.Completing:
		return fmt.Sprintf("%s is leaving what is published", key(status.Retiring))
	default:
		return fmt.Sprintf("signing with %s, and nothing else is trusted", key(status.Signing))
	}
}
