package keypair

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

const kubeletClient, kubeletServing = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"

var (
	now           = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	secret        = Secret{Namespace: "ns", Name: "ca"}
	guardedSecret = Guarded{Secret: secret}
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// root is a CA in PEM, with the ID of its key.
type root struct {
	cert, key []byte
	id        string
}

// newRoot makes a CA that is valid from an hour before now to lifetime after now.
func newRoot(lifetime time.Duration) root {
	authority, key, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: lifetime}, now)
	return root{must(authority, err).CertificatePEM(), key, authority.KeyID()}
}

func (r root) pair() Pair { return Pair{Cert: r.cert, Key: r.key} }

// tlsSecret returns a Secret with a key pair, as anybody makes it.
func tlsSecret(of root) *corev1.Secret {
	return &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": of.cert, "tls.key": of.key}}
}

// world is a KeyPair in the state after its manager's setup, with its environment.
type world struct {
	*KeyPair
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	woken    <-chan struct{}
}

func newWorld(source Source) *world {
	w := &world{KeyPair: New(source), clock: clocktesting.NewFakePassiveClock(now), recorder: events.NewFakeRecorder(100)}
	w.Clock, w.Reporter, w.woken = w.clock, report.New(w.recorder, w.clock), w.Subscribe()
	return w
}

// load offers a CA, and refuse says that there is none.
func (w *world) load(of root) { w.Load(of.cert, of.key) }

func (w *world) refuse(message string) { w.Refuse(&Unavailable{Reason: "CAMissing", Message: message}) }

// state returns the ID of the key in use, or the reason and message why there is none.
func (w *world) state(now time.Time) string {
	authority, err := w.Authority(now)
	var unavailable *Unavailable
	switch {
	case err == nil:
		return authority.KeyID()
	case errors.As(err, &unavailable):
		return unavailable.Reason + ": " + unavailable.Message
	}
	return "not an *Unavailable: " + err.Error()
}

// told returns the Events since the last call, without those that have one of the reasons.
func (w *world) told(without ...string) string {
	var told []string
	for len(w.recorder.Events) > 0 {
		if event := <-w.recorder.Events; !slices.Contains(without, strings.Fields(event)[1]) {
			told = append(told, event)
		}
	}
	return strings.Join(told, "\n")
}

// check checks what a step has changed: the state, the Events, and whether the subscriber was woken.
func (w *world) check(t *testing.T, step, state, want, told string, wakes bool) {
	t.Helper()
	if state != want {
		t.Errorf("%s: %s, want %s", step, state, want)
	}
	if got := w.told(); got != told {
		t.Errorf("%s: Events %q, want %q", step, got, told)
	}
	if woken := len(w.woken) > 0; woken != wakes {
		t.Errorf("%s: wakes %t", step, woken)
	} else if woken {
		<-w.woken
	}
}
