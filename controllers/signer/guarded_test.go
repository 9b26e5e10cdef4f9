package signer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

const kubeletClient, kubeletServing = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"

// ledgerFunc is a Ledger.
type ledgerFunc func(keyID, signerName string, notAfter time.Time) error

func (f ledgerFunc) Cover(_ context.Context, keyID, signerName string, notAfter time.Time) error {
	return f(keyID, signerName, notAfter)
}

// ringSecret is what a rotation writes: signing signs for kubeletClient, and others wait or retire.
func ringSecret(t testing.TB, signing root, change ...func(*keypair.Ring)) *corev1.Secret {
	t.Helper()
	ring := keypair.Ring{
		Signing: keypair.Pair{Cert: signing.cert, Key: signing.key}, TLS: keypair.Pair{Cert: []byte("tls.crt"), Key: []byte("tls.key")},
		Permit: keypair.Permit{Authority: "cluster", Signers: []string{kubeletClient}},
	}
	for _, each := range change {
		each(&ring)
	}
	secret := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	if err := ring.WriteTo(secret.Data); err != nil {
		t.Fatal(err)
	}
	return secret
}

// allowed says what pair may sign for signerName at now: the key and the cap, or why nothing.
func allowed(pair *KeyPair, signerName string) string {
	authority, longest, err := pair.authorityFor(signerName, now)
	if err == nil {
		return fmt.Sprintf("%s %s", authority.KeyID(), longest)
	}
	var unavailable *Unavailable
	errors.As(err, &unavailable)
	return unavailable.Reason + ": " + unavailable.Message
}

func TestGuarded(t *testing.T) {
	t.Parallel()
	pair, _, recorder := newPair()
	pair.source = Guarded{Namespace: "ns", Name: "ca"}
	one, two := newRoot(t, 24*time.Hour), newRoot(t, 48*time.Hour)
	oneID, twoID := keyID(t, one), keyID(t, two)
	woken := pair.subscribe()
	const unproven = "CANotProven: the CA in Secret ns/ca is not proven to be trusted by those who verify certificates of signer kubernetes.io/kubelet-serving: " +
		"that signer must be among spec.signers of its SigningAuthority cluster before the CA begins to sign"
	noPair := func(r *keypair.Ring) { r.Signing = keypair.Pair{} }
	capped := func(r *keypair.Ring) { r.Permit.LifetimeCap = time.Hour }
	both := func(r *keypair.Ring) { r.Permit.Signers = append(r.Permit.Signers, kubeletServing) }
	const none = "CANotProven: Secret ns/ca holds no CA yet that is proven to be trusted: kubectl get signingauthorities -o wide says what is waited for"
	broken := ringSecret(t, two)
	broken.Data["authority.json"] = []byte("{")
	for _, step := range []struct {
		what            string
		secret          *corev1.Secret
		client, serving string
		events          int
		wakes           bool
	}{
		{"a Secret as anybody makes it", &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": one.cert, "tls.key": one.key}}, none, none, 1, false},
		{"a candidate alone", ringSecret(t, one, noPair, func(r *keypair.Ring) { r.Candidate = keypair.Pair{Cert: one.cert, Key: one.key} }), none, none, 0, false},
		{"one that signs", ringSecret(t, one), oneID + " 0s", unproven, 1, true},
		{"the same", ringSecret(t, one), oneID + " 0s", unproven, 0, false},
		{"a wish of its owner", ringSecret(t, one, func(r *keypair.Ring) { r.TLS = keypair.Pair{Cert: two.cert, Key: two.key} }), oneID + " 0s", unproven, 0, false},
		{"for shorter", ringSecret(t, one, capped), oneID + " 1h0m0s", unproven, 0, true},
		{"half a Secret", broken, oneID + " 1h0m0s", unproven, 1, false},
		{"for another signer, with a pair that can't be used", ringSecret(t, root{two.cert, one.key}, both), oneID + " 1h0m0s", unproven, 1, false},
		{"the switch", ringSecret(t, two, both), twoID + " 0s", twoID + " 0s", 1, true},
		{"the pair goes", ringSecret(t, two, noPair), twoID + " 0s", twoID + " 0s", 1, false},
	} {
		pair.offer(step.secret, true)
		if diff := cmp.Diff([]string{step.client, step.serving}, []string{allowed(pair, kubeletClient), allowed(pair, kubeletServing)}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
		if got := taken(recorder); len(got) != step.events {
			t.Errorf("%s: Events %q", step.what, got)
		}
		if wakes := len(woken) > 0; wakes != step.wakes {
			t.Errorf("%s: wakes %t", step.what, wakes)
		} else if wakes {
			<-woken
		}
	}
}

// TestReplicaIsReadyWhileALeaderProvidesTheCA: a Deployment keeps the old leader until the new replica is ready, so a replica
// must not wait for what only a leader of its own version does.
func TestReplicaIsReadyWhileALeaderProvidesTheCA(t *testing.T) {
	t.Parallel()
	good := newRoot(t, 24*time.Hour)
	plain := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": good.cert, "tls.key": good.key}}
	broken := ringSecret(t, good)
	broken.Data["authority.json"] = []byte("{")
	made := func(k *KeyPair) { k.Create, k.creation.absent = &Creation{}, make(chan struct{}, 1) }
	rotated := func(k *KeyPair) { k.source = Guarded{Namespace: "ns", Name: "ca"} }
	for name, test := range map[string]struct {
		change func(*KeyPair)
		secret *corev1.Secret // nil: there is none
		want   string         // empty: it is ready
	}{
		"the Secret is of another type":                 {secret: &corev1.Secret{Type: corev1.SecretTypeOpaque}, want: "has type"},
		"the Secret is the operator's":                  {want: "create it"},
		"the Secret is the leader's to create":          {change: made},
		"the leader can't create it":                    {change: func(k *KeyPair) { made(k); k.notCreated(errors.New("forbidden")) }, want: "forbidden"},
		"rotation: the Secret is the leader's":          {change: rotated},
		"rotation: no leader has proven the CA yet":     {change: rotated, secret: plain},
		"rotation: the pair is proven":                  {change: rotated, secret: ringSecret(t, good)},
		"rotation: what the Secret holds can't be used": {change: rotated, secret: broken, want: "can't be used"},
	} {
		pair, _, _ := newPair()
		if test.change != nil {
			test.change(pair)
		}
		secret := test.secret
		if secret == nil {
			secret = &corev1.Secret{}
		}
		pair.offer(secret, test.secret != nil)
		if got := fmt.Sprint(pair.ready(now)); test.want == "" && got != "<nil>" || !strings.Contains(got, test.want) {
			t.Errorf("%s: ready says %s, want %q", name, got, test.want)
		}
	}
}

// guardedParts sign with a CA that ends after lifetime, as the permit that change makes says, and note it with cover.
func guardedParts(t *testing.T, lifetime time.Duration, cover ledgerFunc, change ...func(*keypair.Ring)) *parts {
	t.Helper()
	p := newParts(t, object(t))
	p.pair.source, p.pair.ledger = Guarded{Namespace: "ns", Name: "ca"}, cover
	p.pair.offer(ringSecret(t, newRoot(t, lifetime), change...), true)
	taken(p.recorder)
	return p
}

// TestCoveredBeforeItIsSigned: what the ledger is told is what is issued, and it is told before.
func TestCoveredBeforeItIsSigned(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lifetime time.Duration // of the CA
		longest  time.Duration
		want     time.Duration // of the certificate
		events   int
	}{
		"the profile's":                            {10 * 365 * 24 * time.Hour, 0, 365*24*time.Hour - 5*time.Minute, 0},
		"no longer than now permitted":             {10 * 365 * 24 * time.Hour, 24 * time.Hour, 24*time.Hour - 5*time.Minute, 0},
		"a permit that is longer than the profile": {10 * 365 * 24 * time.Hour, 9999 * time.Hour, 365*24*time.Hour - 5*time.Minute, 0},
		"cut by the end of the CA":                 {time.Hour, 24 * time.Hour, time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *parts
			var told []string
			p = guardedParts(t, test.lifetime, func(keyID, signerName string, notAfter time.Time) error {
				if len(p.written) > 0 {
					t.Error("written before it was covered")
				}
				told = append(told, keyID, signerName, notAfter.Sub(now).String())
				return nil
			}, func(r *keypair.Ring) { r.Permit.LifetimeCap = test.longest })
			if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
				t.Fatalf("written %d times, error %v", len(p.written), err)
			}
			if diff := cmp.Diff([]string{state(p.pair, now), kubeletClient, test.want.String()}, told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			certs, err := ca.ParseCertificates(p.written[0].Status.Certificate)
			if err != nil || !certs[0].NotAfter.Equal(now.Add(test.want)) {
				t.Errorf("issued until %v, error %v", certs, err)
			}
			if got := taken(p.recorder); len(got) != test.events {
				t.Errorf("Events %q", got)
			}
		})
	}
}

// TestNothingIsSignedThatIsNotCovered: it is tried again, and told once.
func TestNothingIsSignedThatIsNotCovered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault error
		todo  string
	}{
		"unavailable": {errors.New("no route"), ""},
		"sealed":      {fmt.Errorf("issue by key a: %w", ledger.ErrSealed), ""},
		"lost": {fmt.Errorf("read the account of key a: %w", ledger.ErrNoAccount),
			"; it was deleted, or is not yet made: the rotation controller makes it, and then takes what was issued before for outstanding, " +
				"so only see that this controller runs (kubectl get signingauthorities -o wide)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := guardedParts(t, 24*time.Hour, func(string, string, time.Time) error { return test.fault })
			for range 2 {
				if _, err := p.reconcile(t); !errors.Is(err, test.fault) || len(p.written) > 0 {
					t.Errorf("written %d times, error %v", len(p.written), err)
				}
			}
			want := []string{"Warning LedgerUnavailable nothing is signed that the ledger of the CA does not know of: " + test.fault.Error() + test.todo}
			if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotProven: a request of a signer that the permit does not name waits, and no ledger is asked.
func TestNotProven(t *testing.T) {
	t.Parallel()
	p := guardedParts(t, 24*time.Hour, func(string, string, time.Time) error { t.Error("asked"); return nil },
		func(r *keypair.Ring) { r.Permit.Signers = []string{kubeletServing} })
	result, err := p.reconcile(t)
	if err != nil || result.RequeueAfter == 0 || len(p.written) > 0 {
		t.Errorf("result %v, error %v, written %d times", result, err, len(p.written))
	}
	if got := taken(p.recorder); len(got) != 1 || !strings.HasPrefix(got[0], "Warning CANotProven the CA in Secret ns/ca is not proven") {
		t.Errorf("Events %q", got)
	}
}

// TestWithoutRotationNothingIsNoted: the fake client of parts fails the test for any write but the certificate's.
func TestWithoutRotationNothingIsNoted(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.pair.ledger = ledgerFunc(func(string, string, time.Time) error { t.Error("asked"); return nil })
	one := newRoot(t, 24*time.Hour)
	p.pair.Load(one.cert, one.key)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || p.written[0].Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("written %d times, error %v", len(p.written), err)
	}
}
