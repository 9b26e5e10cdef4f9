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
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

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

// guardedParts sign with a CA that ends after lifetime, as the permit that change makes says, and note it with cover.
func guardedParts(t *testing.T, lifetime time.Duration, cover ledgerFunc, change ...func(*keypair.Ring)) *parts {
	t.Helper()
	p := newParts(t, object(t))
	secret := keypair.Secret{Namespace: "ns", Name: "ca"}
	guarded := keypair.New(keypair.Guarded{Secret: secret, Ledger: cover})
	guarded.Clock, guarded.Reporter, p.pair = p.pair.Clock, p.pair.Reporter, guarded
	for name, signer := range p.reconciler.Signers {
		signer.KeyPair = guarded
		p.reconciler.Signers[name] = signer
	}
	signing := newRoot(t, lifetime)
	ring := keypair.Ring{
		Signing: keypair.Pair{Cert: signing.cert, Key: signing.key},
		Permit:  keypair.Permit{Authority: "cluster", Signers: []string{kubeletClient}},
	}
	for _, each := range change {
		each(&ring)
	}
	stored := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	stored.Namespace, stored.Name = secret.Namespace, secret.Name
	if err := ring.WriteTo(stored.Data); err != nil {
		t.Fatal(err)
	}
	if err := guarded.ReadOnce(t.Context(), fake.NewClientBuilder().WithObjects(stored).Build()); err != nil {
		t.Fatal(err)
	}
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
	one := newRoot(t, 24*time.Hour)
	p.pair.Load(one.cert, one.key)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || p.written[0].Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("written %d times, error %v", len(p.written), err)
	}
}
