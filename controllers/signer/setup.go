package signer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client;kubernetes.io/kube-apiserver-client-kubelet;kubernetes.io/kubelet-serving,verbs=sign
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager sets nil fields and registers the controller, the sources of its key pairs, and a readiness check.
// The check fails while a signer has no CA to sign with, unless a leader provides it.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if err := r.fillProfiles(); err != nil {
		return err
	}
	r.fill(mgr)
	r.Requests.Want(r.RequestLimits, func(obj *certificatesv1.CertificateSigningRequest) bool {
		return r.signable(obj) || r.DryRun && r.approved(obj)
	})
	ctrl := builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(r.queueEvents())).
		WithOptions(options)
	ctrl.WatchesRawSource(r.atElection())
	ctrl.WatchesRawSource(r.ahead.source())
	pairs := r.keyPairs()
	for _, pair := range pairs {
		if err := r.setupPair(mgr, pair); err != nil {
			return err
		}
		ctrl.WatchesRawSource(r.wakeAfter(pair))
	}
	if err := r.askTrust(mgr, pairs); err != nil {
		return err
	}
	if r.BlockList != nil {
		ctrl.WatchesRawSource(r.BlockList.Source(func(ctx context.Context, queue requestQueue) {
			r.enqueueWaiting(ctx, nil, queue)
		}))
	}
	err := mgr.AddReadyzCheck("signing-ca", func(*http.Request) error {
		for _, pair := range pairs {
			if err := pair.Ready(r.Clock.Now()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return ctrl.Complete(r)
}

// setupPair sets the fields of pair, and registers its source.
func (r *Reconciler) setupPair(mgr manager.Manager, pair *keypair.KeyPair) error {
	pair.Clock, pair.Reporter, pair.Audit, pair.Log = r.Clock, r.Reporter, r.Audit, mgr.GetLogger().WithName(Name)
	if r.DryRun {
		pair.Create = nil
	}
	if shared := pair.SharesServing(); len(shared) > 0 {
		report.Warn(mgr.GetLogger(), "Kubelet serving certificates and client certificates have the same CA: "+
			"only their usages distinguish them", "logger", Name, "source", pair.Name(), "signers", shared)
	}
	return pair.SetupWithManager(mgr, r.Live)
}

// fill sets nil fields.
func (r *Reconciler) fill(mgr manager.Manager) {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Live == nil {
		r.Live = mgr.GetAPIReader()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.ServerTime == nil {
		r.ServerTime = servertime.Of(r.Clock)
	}
	if r.Reporter == nil {
		r.Reporter = report.New(mgr.GetEventRecorder(Name), r.Clock)
	}
}

// fillProfiles completes the profile of each signer. It returns an error that names the signers without a KeyPair.
func (r *Reconciler) fillProfiles() error {
	var errs []error
	filled := make(map[string]Signer, len(r.Signers))
	for _, name := range slices.Sorted(maps.Keys(r.Signers)) {
		signer := r.Signers[name]
		if signer.KeyPair == nil {
			errs = append(errs, fmt.Errorf("signer %s has no KeyPair", name))
		}
		profile, err := signer.Profile.OrForbidding(forbiddenByDefault)
		errs = append(errs, err)
		signer.Profile = profile.Containing(contentsOf(name, signer.Usages))
		filled[name] = signer
		lifetimeSeconds.WithLabelValues(name).Set(profile.Lifetime().Seconds())
		// A counter needs a value before its first event, so that its rate includes that event.
		for _, counter := range []*prometheus.CounterVec{lifetimeCutTotal, discardedTotal, mismatchesTotal, foreignTotal} {
			counter.WithLabelValues(name)
		}
		for _, histogram := range []*prometheus.HistogramVec{approvedToIssued, createdToIssued} {
			histogram.WithLabelValues(name)
		}
	}
	r.Signers = filled
	return errors.Join(errs...)
}

// keyPairs returns the key pairs of Signers, each once. It sets the signers and lifetimes of each pair.
func (r *Reconciler) keyPairs() []*keypair.KeyPair {
	var pairs []*keypair.KeyPair
	for name, signer := range r.Signers {
		if !slices.Contains(pairs, signer.KeyPair) {
			pairs = append(pairs, signer.KeyPair)
		}
		if signer.KeyPair.Lifetimes == nil {
			signer.KeyPair.Lifetimes = map[string]time.Duration{}
		}
		signer.KeyPair.Lifetimes[name] = signer.Profile.Lifetime()
	}
	return pairs
}

// ReadOnce prepares r for Judge without a manager. It reads the CAs of signerNames once, or all CAs if there are no
// names. The map has, by signer, the error of a CA that could not be read. A missing or defective CA is no such error,
// because Judge reports it. r needs its Clock.
func (r *Reconciler) ReadOnce(
	ctx context.Context, reader client.Reader, signerNames ...string,
) (map[string]error, error) {
	if err := r.fillProfiles(); err != nil {
		return nil, err
	}
	if r.ServerTime == nil {
		r.ServerTime = servertime.Of(r.Clock)
	}
	if len(signerNames) == 0 {
		signerNames = slices.Collect(maps.Keys(r.Signers))
	}
	read, unread := map[*keypair.KeyPair]error{}, map[string]error{}
	for _, name := range signerNames {
		pair := r.Signers[name].KeyPair
		err, again := read[pair]
		if !again {
			pair.Clock = r.Clock
			err = pair.ReadOnce(ctx, reader)
			read[pair] = err
		}
		if err != nil {
			unread[name] = err
		}
	}
	return unread, nil
}

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// wakeAfter returns a source that enqueues the requests that wait for pair whenever its Authority changes.
func (r *Reconciler) wakeAfter(pair *keypair.KeyPair) source.Source {
	changed := pair.Subscribe()
	return source.Func(func(ctx context.Context, queue requestQueue) error {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					r.enqueueWaiting(ctx, pair, queue)
				}
			}
		}()
		return nil
	})
}

// enqueueWaiting enqueues the requests that wait for a certificate of pair, or of any pair if pair is nil.
func (r *Reconciler) enqueueWaiting(ctx context.Context, pair *keypair.KeyPair, queue requestQueue) {
	for _, waiting := range r.pending.All() {
		if pair != nil && r.Signers[waiting.Signer].KeyPair != pair {
			continue
		}
		key := reconcile.Request{NamespacedName: types.NamespacedName{Name: waiting.Name}}
		obj := &certificatesv1.CertificateSigningRequest{}
		// A dry run also indexes requests that another signer has signed.
		if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err == nil && r.signable(obj) {
			queue.Add(key)
		}
	}
}

// NewQueue returns the storage of this controller's work queue. In that queue no requester delays the others.
func (r *Reconciler) NewQueue() workqueue.Queue[reconcile.Request] {
	return pending.NewQueue(r.pending.Get)
}

// queueEvents returns a predicate that accepts the events that enqueue a request. It drops the state of deleted
// requests.
func (r *Reconciler) queueEvents() predicate.Predicate {
	events := predicate.NewPredicateFuncs(r.queues)
	events.UpdateFunc = func(change event.UpdateEvent) bool {
		foreign := r.gotForeign(change.ObjectOld, change.ObjectNew)
		return r.queues(change.ObjectNew) || foreign
	}
	events.DeleteFunc = func(gone event.DeleteEvent) bool {
		_, unanswered := r.issued.Of(gone.Object)
		unanswered = r.certificates.underWay(gone.Object.GetName()) || unanswered
		if last, ok := gone.Object.(*certificatesv1.CertificateSigningRequest); ok && unanswered {
			r.gone.Keep(last, goneRequest{last.UID, csr.CertificateDigest(last), !gone.DeleteStateUnknown})
		}
		r.drop(gone.Object)
		return unanswered // Reconcile says what became of the certificate
	}
	return events
}

// Waits reports whether obj waits for a certificate from one of Signers.
func (r *Reconciler) Waits(obj *certificatesv1.CertificateSigningRequest) bool {
	return r.signable(obj)
}

// Track prepares r for a Reconcile of obj outside of the controller. Drop ends that.
func (*Reconciler) Track(*certificatesv1.CertificateSigningRequest) {}

// Drop forgets obj, which was deleted or needs no Reconcile any more.
func (r *Reconciler) Drop(obj client.Object) {
	r.issued.Drop(obj.GetName())
	r.drop(obj)
}

// drop is Drop, but a certificate whose write has no answer stays.
func (r *Reconciler) drop(obj client.Object) {
	name := obj.GetName()
	r.pending.Remove(name)
	r.ahead.drop(name)
	r.ended.Drop(name)
	r.failures.Drop(name)
	r.certificates.drop(name)
	r.Reporter.Forget(obj)
}

// queues reports whether to enqueue obj, and indexes its position in the queue. It parses each request once.
func (r *Reconciler) queues(obj client.Object) bool {
	request, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return false
	}
	request = r.ahead.observe(request)
	if !r.signable(request) && (!r.DryRun || !r.approved(request)) {
		r.pending.Remove(request.Name)
		return false
	}
	r.index(request)
	return true
}

// index records the position of request in the queue.
func (r *Reconciler) index(request *certificatesv1.CertificateSigningRequest) {
	if known, found := r.pending.Get(request.Name); found && known.UID == request.UID {
		return
	}
	var req *csr.Request
	if whole := r.Requests.Held(request); !csr.Stripped(whole) {
		req, _ = r.Requests.Parse(whole, r.RequestLimits)
	}
	r.pending.Put(pending.Of(request, req))
}
