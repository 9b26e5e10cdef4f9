package signer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// The right to read the CAs that the cluster trusts is in config/rbac/ca_trust.yaml.

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=clustertrustbundles,verbs=list
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client;kubernetes.io/kube-apiserver-client-kubelet;kubernetes.io/kubelet-serving,verbs=sign
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

type (
	requestQueue  = workqueue.TypedRateLimitingInterface[fairqueue.Key]
	requestSource = source.TypedSource[fairqueue.Key]
)

// SetupWithManager sets nil fields and registers the controller, the sources of its key pairs, and a readiness check.
// The check fails while a signer has no CA to sign with, unless a leader provides it.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	if err := r.FillProfiles(); err != nil {
		return err
	}
	r.Client, r.Live = cmp.Or(r.Client, mgr.GetClient()), cmp.Or(r.Live, mgr.GetAPIReader())
	r.Clock = cmp.Or[clock.PassiveClock](r.Clock, clock.RealClock{})
	r.ServerTime = cmp.Or(r.ServerTime, servertime.Of(r.Clock))
	r.Recorder, r.Workers = cmp.Or[events.EventRecorder](r.Recorder, mgr.GetEventRecorder(Name)), cmp.Or(r.Workers, call.SignerWorkers)
	r.reporter = report.New(r.Recorder, r.Clock)
	pairs := r.keyPairs()
	sources := []requestSource{source.TypedKind(
		mgr.GetCache(), &certificatesv1.CertificateSigningRequest{}, fairqueue.Events(r.enqueue, r.forget))}
	if r.BlockList != nil {
		sources = append(sources, fairqueue.Wake(r.BlockList.Subscribe(), r.BlockList.WaitForFirst, r.waiting.All))
	}
	for _, pair := range pairs {
		pair.Clock, pair.Recorder, pair.Audit, pair.Log = r.Clock, r.Recorder, r.Audit, mgr.GetLogger().WithName(Name)
		pair.CheckClock = r.ServerTime.Agreed
		if pair.Home = r.Home; r.Home != nil {
			pair.Recorder = r.Home.GetEventRecorder(Name)
		}
		if r.DryRun {
			pair.Create = nil
		}
		if err := pair.SetupWithManager(mgr); err != nil {
			return err
		}
		waiting := func() []fairqueue.Key { return r.waitingFor(pair) }
		sources = append(sources, fairqueue.Wake(pair.Subscribe(), nil, waiting))
		// Only certificates of kubelets' servers depend on no trust that the cluster publishes.
		if slices.ContainsFunc(pair.Signers, func(name string) bool { return name != certificatesv1.KubeletServingSignerName }) {
			sources = append(sources, r.followTrust(mgr.GetAPIReader(), pair))
		}
	}
	if err := mgr.AddReadyzCheck("signing-ca", func(*http.Request) error {
		for _, pair := range pairs {
			if err := pair.Ready(r.Clock.Now()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	signing, err := fairqueue.NewController(mgr, Name, r.Workers, r.Clock, r.reconcile)
	if err != nil {
		return fmt.Errorf("create controller: %w", err)
	}
	var errs []error
	for _, each := range sources {
		errs = append(errs, signing.Watch(each))
	}
	return errors.Join(errs...)
}

// FillProfiles completes the profile of each signer, as SetupWithManager does. Then Check works without a manager, an API
// server and CAs. FillProfiles returns an error that names the signers without a KeyPair.
func (r *Reconciler) FillProfiles() error {
	var errs []error
	filled := make(map[string]Signer, len(r.Signers))
	for _, name := range slices.Sorted(maps.Keys(r.Signers)) {
		signer := r.Signers[name]
		if signer.KeyPair == nil {
			errs = append(errs, fmt.Errorf("signer %s has no KeyPair", name))
		}
		signer.Profile = signer.Profile.OrDefault()
		filled[name] = signer
		lifetimeSeconds.WithLabelValues(name).Set(signer.Profile.Lifetime().Seconds())
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

// keyPairs returns the key pairs of Signers, each once. It sets the signers of each pair.
func (r *Reconciler) keyPairs() []*keypair.KeyPair {
	var pairs []*keypair.KeyPair
	for _, name := range slices.Sorted(maps.Keys(r.Signers)) {
		pair := r.Signers[name].KeyPair
		if !slices.Contains(pairs, pair) {
			pairs, pair.Signers = append(pairs, pair), nil
		}
		pair.Signers = append(pair.Signers, name)
	}
	return pairs
}

// waitingFor returns the requests that wait for a certificate of pair.
func (r *Reconciler) waitingFor(pair *keypair.KeyPair) []fairqueue.Key {
	marks := map[uint64]bool{}
	for name, signer := range r.Signers {
		if signer.KeyPair == pair {
			marks[fairqueue.Digest(name)] = true
		}
	}
	return r.waiting.Marked(math.MaxInt, marks)
}
