// Package keypair holds the signing CA in use. It reads the key pair from a source (a Secret, a Secret that is
// rotated, files, memory), and reports whether the CA is usable and when it expires. It creates a CA if the Secret is
// missing.
package keypair

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/lastgood"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var (
	// reloadsTotal counts new signing CAs by result, accepted or rejected.
	reloadsTotal = metric.Counter("csr_signer_ca_reloads_total",
		"New signing CAs: accepted, or rejected (the last good one stays in use).", "result")

	// caRejected shows the current state, while reloadsTotal counts events.
	caRejected = metric.Gauge("csr_signer_ca_rejected", "1 while the newest content of the signing CA can't be used.", "signer")

	// caNotAfter is per signer, because alerts are about a signer.
	caNotAfter = metric.Gauge("csr_signer_ca_expiration_timestamp_seconds",
		"End of the signing CA in use; 0 if there was none yet.", "signer")
)

// Unavailable reports why there is no Authority to sign with. Reason is a token of docs/reference/reasons.md, and
// Message is a sentence.
type Unavailable struct {
	Reason, Message string
	// Awaited reports that a leader provides the CA: a replica can only wait for it.
	Awaited bool

	action string // of the Event; empty means Load
}

func (u *Unavailable) Error() string { return u.Message }

func unavailable(reason, format string, args ...any) *Unavailable {
	return &Unavailable{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// awaited sets Awaited, and returns u.
func (u *Unavailable) awaited() *Unavailable {
	u.Awaited = true
	return u
}

// Source feeds a KeyPair: Secret, Guarded, Files or Static.
type Source interface {
	// Describe returns the name of the source in messages, and the object that Events are about, or nil.
	Describe() (name string, object client.Object)
	// SetupWithManager adds runnables to mgr that keep pair up to date. They call Load with each new key pair, and
	// Refuse while there is none.
	SetupWithManager(mgr manager.Manager, pair *KeyPair) error
}

// KeyPair holds the Authority in use, which a Source provides. If a new candidate can't be used, KeyPair reports it
// and keeps the last good Authority. A good candidate notifies all subscribers. KeyPair is safe for concurrent use.
// Create it with New, and set its fields before its first use. Signers that share a CA share a KeyPair.
type KeyPair struct {
	// Chain selects the certificates that come with an issued certificate.
	Chain ca.Chain
	// Create, if set, describes the CA that the leader creates if the source is a Secret that does not exist.
	Create *Creation
	// Signers are the names of the signers that use the CA, in order. The signer's SetupWithManager sets them.
	Signers []string
	// Clock is the clock that the CA's validity is compared with.
	Clock clock.PassiveClock
	// CheckClock returns the time by which a CA is created, Clock's by default, or an error while that time may be wrong. No CA
	// is created then: it would not be valid yet, or not any more, when the clock is right again.
	CheckClock func(context.Context) (time.Time, error)
	// Home, if set, is the cluster of the Secret and of its ledger, if it is not the manager's.
	Home cluster.Cluster
	// Recorder, if set, writes Events about the object of the source.
	Recorder events.EventRecorder
	// Audit, if set, records the creation of a CA.
	Audit *audit.Log
	Log   logr.Logger

	source  Source
	guarded bool
	ledger  Ledger // of a Guarded source
	name    string
	elected <-chan struct{} // closed for the leader
	client  client.Client   // creates the CA

	value lastgood.Value[inUse]

	offering sync.Mutex // held while a candidate is judged and reported
	warned   sets.Set[string]

	mu      sync.Mutex
	object  client.Object
	notMade error // why the last attempt to create the CA failed
}

// inUse is a CA to sign with.
type inUse struct {
	authority *ca.Authority
	from      string // the certificates, the key and the anchors in PEM, from which authority was loaded
	permit    Permit // of a Guarded source
}

// New returns a KeyPair without an Authority.
func New(source Source) *KeyPair {
	name, object := source.Describe()
	k := &KeyPair{Clock: clock.RealClock{}, source: source, name: name, object: object, warned: sets.New[string]()}
	if guarded, ok := source.(Guarded); ok {
		k.guarded, k.ledger = true, guarded.Ledger
	}
	k.value.Same = func(a, b inUse) bool { return a.from == b.from && a.permit.Equal(b.permit) }
	k.value.Report = k.report
	k.CheckClock = func(context.Context) (time.Time, error) { return k.Clock.Now(), nil }
	return k
}

// SetupWithManager adds the source to mgr.
func (k *KeyPair) SetupWithManager(mgr manager.Manager) error {
	k.elected, k.Home = mgr.Elected(), cmp.Or[cluster.Cluster](k.Home, mgr)
	k.client = k.Home.GetClient()
	return k.source.SetupWithManager(mgr, k)
}

// leads reports whether this process is the leader.
func (k *KeyPair) leads() bool {
	select {
	case <-k.elected:
		return true
	default:
		return false
	}
}

// Name returns the name of the source, for messages.
func (k *KeyPair) Name() string { return k.name }

// ClientSigners returns the signers of k whose certificates API servers must accept, in order.
func (k *KeyPair) ClientSigners() []string {
	return slices.DeleteFunc(slices.Clone(k.Signers), func(name string) bool { return !csr.VerifiedByAPIServers(name) })
}

// Authority returns the CA to sign with at now. An error is always an *Unavailable.
func (k *KeyPair) Authority(now time.Time) (*ca.Authority, error) {
	current, err := k.at(now)
	return current.authority, err
}

// AuthorityFor returns the CA to sign with for one signer at now. It also returns the longest permitted lifetime of
// its certificates, or zero if there is no limit. An error is always an *Unavailable.
func (k *KeyPair) AuthorityFor(signerName string, now time.Time) (*ca.Authority, time.Duration, error) {
	current, err := k.at(now)
	if err != nil || !k.guarded {
		return current.authority, 0, err
	}
	if !slices.Contains(current.permit.Signers, signerName) {
		return nil, 0, unavailable("CANotProven", "the CA in %s is not proven to be trusted by the verifiers of "+
			"certificates of signer %s: that signer must be in spec.signers of its SigningAuthority %s before the CA "+
			"begins to sign", k.name, signerName, current.permit.Authority)
	}
	return current.authority, current.permit.LifetimeCap, nil
}

// at returns the CA in use if it is usable at now.
func (k *KeyPair) at(now time.Time) (inUse, error) {
	state := k.value.State()
	if !state.Known {
		if state.Problem != nil {
			return inUse{}, state.Problem
		}
		return inUse{}, unavailable("CAMissing", "%s has not been read yet", k.name)
	}
	err := state.Good.authority.Usable(now)
	if err == nil {
		return state.Good, nil
	}
	ended := k.unusable(err)
	if state.Problem != nil && state.Problem.Error() != ended.Message {
		ended.Message += "; its replacement: " + state.Problem.Error()
	}
	return inUse{}, ended
}

// Ready returns why a replica is not ready to sign, or nil. A replica that waits for a CA from the leader is ready: a
// Deployment stops the old leader only once the new replica is ready.
func (k *KeyPair) Ready(now time.Time) error {
	_, err := k.Authority(now)
	var why *Unavailable
	if errors.As(err, &why) && why.Awaited {
		return nil
	}
	return err
}

// Load offers a candidate. certPEM may hold several certificates. caPEM is the content of ca.crt, or nil. See ca.Load.
func (k *KeyPair) Load(certPEM, keyPEM, caPEM []byte) {
	k.offerPair(certPEM, keyPEM, caPEM, Permit{})
}

// offerPair offers a candidate and its permit. Both are used, or neither is.
func (k *KeyPair) offerPair(certPEM, keyPEM, anchors []byte, permit Permit) {
	k.offering.Lock()
	defer k.offering.Unlock()
	defer k.warnAhead()
	from := fmt.Sprint(string(bytes.Join([][]byte{certPEM, keyPEM, anchors}, []byte{0})), anchors != nil)
	next, state := inUse{from: from, permit: permit}, k.value.State()
	if state.Known && state.Good.from == from {
		next.authority = state.Good.authority
	} else {
		var err error
		if next.authority, err = ca.Load(certPEM, keyPEM, anchors); err == nil {
			next.authority, err = next.authority.WithChain(k.Chain)
		}
		if err != nil {
			k.value.Refuse(unavailable("CAInvalid", "%s can't be used: %v", k.name, err))
			return
		}
	}
	if keyID := next.authority.KeyID(); permit.KeyID != "" && keyID != permit.KeyID {
		k.value.Refuse(unavailable("CANotProven", "%s holds the signing CA %s, but only the CA %s is proven to be trusted by its verifiers: "+
			"kubectl get signingauthorities -o wide shows how to restore it", k.name, keyID, permit.KeyID))
		return
	}
	now := k.Clock.Now()
	if err := next.authority.Usable(now); err != nil { // includes a CA in use that has expired
		k.value.Refuse(k.unusable(err))
		return
	}
	k.value.Use(next, nil)
	k.measure(caNotAfter, float64(next.authority.NotAfter(now).Unix())) // a staged renewal moves it without a new CA
}

// Refuse reports that the source has no candidate that can be used.
func (k *KeyPair) Refuse(problem *Unavailable) {
	k.offering.Lock()
	defer k.offering.Unlock()
	defer k.warnAhead()
	k.value.Refuse(problem)
}

func (k *KeyPair) unusable(err error) *Unavailable {
	reason := "CAInvalid"
	if errors.Is(err, ca.ErrExpired) {
		reason = "CAExpired"
	}
	return unavailable(reason, "%s can't be used: %v", k.name, err)
}

// report reports another CA, another permit, or a candidate that can't be used.
func (k *KeyPair) report(before, after lastgood.State[inUse]) {
	if problem, ok := errors.AsType[*Unavailable](after.Problem); ok {
		k.reportProblem(problem, after)
		return
	}
	authority, permit := after.Good.authority, after.Good.permit
	if before.Problem != nil || !before.Known || before.Good.from != after.Good.from {
		reloadsTotal.WithLabelValues("accepted").Inc()
		k.measure(caRejected, 0)
		end := authority.NotAfter(k.Clock.Now())
		k.Log.Info("Loaded signing CA", "source", k.name, "issuerKeyID", authority.KeyID(), "notAfter", end)
		k.event("Load", corev1.EventTypeNormal, "CALoaded",
			fmt.Sprintf("signing with key %s until %s", authority.KeyID(), end.Format(time.RFC3339)))
	}
	if !permit.Equal(before.Good.permit) {
		k.Log.Info("May sign", "source", k.name,
			"authority", permit.Authority, "signers", permit.Signers, "lifetimeCap", permit.LifetimeCap)
	}
}

// reportProblem reports that the newest candidate can't be used.
func (k *KeyPair) reportProblem(problem *Unavailable, state lastgood.State[inUse]) {
	reloadsTotal.WithLabelValues("rejected").Inc()
	k.measure(caRejected, 1)
	message := problem.Message
	switch {
	case !state.Known:
		k.measure(caNotAfter, 0)
	case state.Good.authority.Usable(k.Clock.Now()) == nil:
		message += "; the last good CA stays in use"
	}
	k.Log.Error(nil, "Refused signing CA", "source", k.name, "reason", problem.Reason, "message", message)
	k.event(cmp.Or(problem.action, "Load"), corev1.EventTypeWarning, problem.Reason, message)
}

func (k *KeyPair) measure(gauge *prometheus.GaugeVec, value float64) {
	for _, name := range k.Signers {
		gauge.WithLabelValues(name).Set(value)
	}
}

// Warn writes an Event about the object of the source.
func (k *KeyPair) Warn(reason, message string) {
	k.event("Load", corev1.EventTypeWarning, reason, message)
}

// event writes an Event about an action.
func (k *KeyPair) event(action, eventType, reason, message string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.object != nil {
		report.Event(k.Recorder, k.object, eventType, action, reason, message)
	}
}

// Subscribe returns a channel that receives a value after each new Authority or Permit.
func (k *KeyPair) Subscribe() <-chan struct{} { return k.value.Subscribe() }

const day = 24 * time.Hour

// expirySteps are the remaining lifetimes of a CA at which CAExpiring is reported, the last step first. The alerts
// use the same steps.
var expirySteps = []time.Duration{7 * day, 30 * day, 90 * day}

// warnAhead reports upcoming problems of the CA in use, if this process is the leader. The caller holds offering.
func (k *KeyPair) warnAhead() {
	authority := k.value.State().Good.authority
	if authority == nil || !k.leads() {
		return
	}
	if slices.Contains(k.Signers, certificatesv1.KubeletServingSignerName) && len(k.ClientSigners()) > 0 {
		k.warnOnce("CAShared", "kubelet serving certificates share this CA with those of %s: a verifier that trusts this CA "+
			"accepts both, and distinguishes them only by their usages; "+
			"use a separate CA for kubernetes.io/kubelet-serving", strings.Join(k.ClientSigners(), " and "))
	}
	now := k.Clock.Now()
	end := authority.NotAfter(now)
	if !now.Before(end) {
		return // CAExpired is reported instead
	}
	step := slices.IndexFunc(expirySteps, func(step time.Duration) bool { return end.Sub(now) <= step })
	if step >= 0 {
		k.warnOnce("CAExpiring", "the signing CA with key %s expires in less than %d days, at %s, "+
			"together with all certificates that it has signed: replace it",
			authority.KeyID(), expirySteps[step]/day, end.Format(time.RFC3339))
	}
}

// warnOnce reports a warning in the log and as an Event. It does not repeat a message. The caller holds offering.
func (k *KeyPair) warnOnce(reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if k.warned.Has(message) {
		return
	}
	k.warned.Insert(message)
	k.Log.Error(nil, "Signing CA needs attention", "source", k.name, "reason", reason, "message", message)
	k.event("Load", corev1.EventTypeWarning, reason, message)
}
