package signer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// Unavailable is why there is no Authority to sign with: a reason token of docs/reasons.md and a sentence.
type Unavailable struct {
	Reason, Message string
	// Awaited says that a leader provides the CA: a replica has nothing to do but to wait for it.
	Awaited bool
}

func (u *Unavailable) Error() string { return u.Message }

// Source feeds a KeyPair: Secret, Guarded, Files or Static.
type Source interface {
	// describe names the source in messages, and the object that Events are about, if there is one.
	describe() (string, client.Object)
	// runnable returns what keeps pair up to date once mgr runs it.
	runnable(mgr manager.Manager, pair *KeyPair) (manager.Runnable, error)
	// readOnce feeds pair without a manager. An error says that reader could not find out.
	readOnce(ctx context.Context, reader client.Reader, pair *KeyPair) error
}

var (
	_ Source = Secret{}
	_ Source = Guarded{}
	_ Source = Files{}
	_ Source = Static{}
)

// KeyPair holds the Authority of the moment, fed by a source. A candidate that can't be used leaves the last good one
// in place and is reported; a good one wakes whoever waits. It is safe for concurrent use; NewKeyPair makes one.
type KeyPair struct {
	// Chain says what certificates come with.
	Chain ca.Chain
	// Create, if set, has the leader make a CA where the source is a Secret that does not exist.
	Create *Creation

	source Source
	name   string
	object client.Object

	signers   []string                 // whose certificates it signs, for metrics
	lifetimes map[string]time.Duration // that they have by default
	sharing   []string                 // signers that should not share it with kubelet-serving
	elected   <-chan struct{}          // closed for the leader
	clock     clock.PassiveClock
	reporter  *report.Reporter
	log       logr.Logger

	mu        sync.Mutex
	certPEM   []byte
	keyPEM    []byte
	caPEM     []byte
	authority *ca.Authority
	problem   *Unavailable // of the newest candidate; nil when it is the one in use
	changed   []chan struct{}

	foretold    foretold
	toldSharing bool
	creation    creation
	trusted     clientTrust
	front       frontProxyTrust
	// asksFrontProxy is set if the trust asker keeps front up to date.
	asksFrontProxy bool

	guard // of a Guarded source
}

// NewKeyPair returns a KeyPair without an Authority; the manager that a Reconciler is set up with runs source.
// Signers that share a CA share a KeyPair.
func NewKeyPair(source Source) *KeyPair {
	name, object := source.describe()
	return &KeyPair{source: source, name: name, object: object}
}

// Authority returns the one to sign with at now. An error is always an *Unavailable.
func (k *KeyPair) Authority(now time.Time) (*ca.Authority, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.authorityAt(now)
}

// authorityAt is Authority for who holds mu.
func (k *KeyPair) authorityAt(now time.Time) (*ca.Authority, error) {
	switch {
	case k.authority != nil && k.authority.Usable(now) == nil:
		return k.authority, nil
	case k.authority != nil:
		ended := k.unusable(k.authority.Usable(now))
		if k.problem != nil && *k.problem != *ended {
			ended.Message += "; its replacement: " + k.problem.Message
		}
		return nil, ended
	case k.problem != nil:
		return nil, k.problem
	default:
		return nil, &Unavailable{Reason: "CAMissing", Message: k.name + " has not been read yet"}
	}
}

// Load offers a candidate; certPEM may hold several certificates, and caPEM is the content of ca.crt, see ca.Load.
func (k *KeyPair) Load(certPEM, keyPEM []byte, caPEM ...[]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load(certPEM, keyPEM, slices.Concat(caPEM...))
}

// load is Load for who holds mu.
func (k *KeyPair) load(certPEM, keyPEM, anchors []byte) {
	defer k.foretell()
	now := k.clock.Now()
	inUse := k.authority != nil && slices.Equal(certPEM, k.certPEM) && slices.Equal(keyPEM, k.keyPEM) && slices.Equal(anchors, k.caPEM)
	if inUse && k.problem == nil && k.authority.Usable(now) == nil {
		return
	}
	authority, err := k.parse(certPEM, keyPEM, anchors)
	if err != nil {
		k.reject(&Unavailable{Reason: "CAInvalid", Message: fmt.Sprintf("%s can't be used: %v", k.name, err)})
		return
	}
	if err := authority.Usable(now); err != nil { // one in use that has ended too
		k.reject(k.unusable(err))
		return
	}
	k.replaced(authority)
	k.certPEM, k.keyPEM, k.caPEM, k.authority, k.problem = certPEM, keyPEM, anchors, authority, nil
	reloadsTotal.WithLabelValues("accepted").Inc()
	k.measure(caRejected, 0)
	k.measure(caNotAfter, float64(authority.NotAfter().Unix()))
	k.log.Info("Loaded signing CA", "source", k.name, "issuerKeyID", authority.KeyID(), "notAfter", authority.NotAfter())
	k.tell(corev1.EventTypeNormal, "CALoaded", InUse(authority))
	k.wake()
}

// wake wakes whoever waits. The caller holds mu.
func (k *KeyPair) wake() {
	for _, changed := range k.changed {
		select {
		case changed <- struct{}{}:
		default: // a wake-up is already on its way
		}
	}
}

func (k *KeyPair) parse(certPEM, keyPEM, caPEM []byte) (*ca.Authority, error) {
	authority, err := ca.Load(certPEM, keyPEM, caPEM)
	if err != nil {
		return nil, err
	}
	return authority.WithChain(k.Chain)
}

// ReadRight is what one must be allowed to, to read the source: for messages.
func (k *KeyPair) ReadRight() string {
	switch source := k.source.(type) {
	case Secret:
		return fmt.Sprintf("get secrets in namespace %s (%s)", source.Namespace, source.Name)
	case Guarded:
		return fmt.Sprintf("get secrets in namespace %s (%s)", source.Namespace, source.Name)
	default:
		return "read " + k.name
	}
}

// InUse is the sentence of the Event about a CA that is in use.
func InUse(authority *ca.Authority) string {
	return fmt.Sprintf("signing with key %s until %s", authority.KeyID(), authority.NotAfter().Format(time.RFC3339))
}

// identify makes Events be about object, once it is known better than by name.
func (k *KeyPair) identify(object client.Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.object = object
}

// Refuse reports that the source has no candidate, or none that can be one.
func (k *KeyPair) Refuse(reason, message string) {
	k.refuse(&Unavailable{Reason: reason, Message: message})
}

func (k *KeyPair) refuse(problem *Unavailable) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.foretell()
	k.reject(problem)
}

// ready returns why a replica is not ready to sign. Waiting for a CA that a leader provides does not count: a Deployment
// stops the old leader only once the new replica is ready.
func (k *KeyPair) ready(now time.Time) error {
	_, err := k.Authority(now)
	var why *Unavailable
	if errors.As(err, &why) && why.Awaited {
		return nil
	}
	return err
}

func (k *KeyPair) unusable(err error) *Unavailable {
	reason := "CAInvalid"
	if errors.Is(err, ca.ErrExpired) {
		reason = "CAExpired"
	}
	return &Unavailable{Reason: reason, Message: fmt.Sprintf("%s can't be used: %v", k.name, err)}
}

// reject keeps what is in use, and reports a problem that is not the last one.
func (k *KeyPair) reject(problem *Unavailable) {
	if k.problem != nil && *k.problem == *problem {
		return
	}
	k.problem = problem
	reloadsTotal.WithLabelValues("rejected").Inc()
	k.measure(caRejected, 1)
	message := problem.Message
	if k.authority == nil {
		k.measure(caNotAfter, 0)
	} else if k.authority.Usable(k.clock.Now()) == nil {
		message += "; the last good one stays in use"
	}
	k.log.Error(nil, "Refused signing CA", "source", k.name, "reason", problem.Reason, "message", message)
	k.tell(corev1.EventTypeWarning, problem.Reason, message)
}

func (k *KeyPair) measure(gauge *prometheus.GaugeVec, value float64) {
	for _, name := range k.signers {
		gauge.WithLabelValues(name).Set(value)
	}
}

func (k *KeyPair) tell(eventType, reason, message string) {
	k.tellOf("Load", eventType, reason, message)
}

// tellOf tells what came of an action. Within minutes another message for the same action and reason counts as the same Event.
func (k *KeyPair) tellOf(action, eventType, reason, message string) {
	if k.object != nil && k.reporter != nil {
		k.reporter.Object(k.object, eventType, action, reason, message)
	}
}

// subscribe returns a channel that yields after each new Authority.
func (k *KeyPair) subscribe() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := make(chan struct{}, 1)
	k.changed = append(k.changed, changed)
	return changed
}
