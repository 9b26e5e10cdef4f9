package keypair

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

var (
	secret        = Secret{Namespace: "ns", Name: "ca"}
	guardedSecret = Guarded{Secret: secret}
)

const kubeletClient, kubeletServing = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"

// ringSecret returns a Secret as a rotation writes it: signing signs for kubeletClient. change may add a candidate or
// a retiring pair.
func ringSecret(t testing.TB, signing root, change ...func(*Ring)) *corev1.Secret {
	t.Helper()
	ring := Ring{
		Signing: Pair{Cert: signing.cert, Key: signing.key}, TLS: Pair{Cert: []byte("tls.crt"), Key: []byte("tls.key")},
		Permit: Permit{Authority: "cluster", Signers: []string{kubeletClient}},
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

// allowed returns the key and the cap with which pair may sign for signerName at now, or the reason why it may not.
func allowed(pair *KeyPair, signerName string) string {
	authority, longest, err := pair.AuthorityFor(signerName, now)
	if err == nil {
		return fmt.Sprintf("%s %s", authority.KeyID(), longest)
	}
	var unavailable *Unavailable
	errors.As(err, &unavailable)
	return unavailable.Reason + ": " + unavailable.Message
}

func TestGuarded(t *testing.T) {
	t.Parallel()
	pair, _, recorder := newPair(guardedSecret)
	one, two := newRoot(t, 24*time.Hour), newRoot(t, 48*time.Hour)
	oneID, twoID := keyID(t, one), keyID(t, two)
	woken := pair.Subscribe()
	const unproven = "CANotProven: the CA in Secret ns/ca is not proven to be trusted by the verifiers of certificates of signer kubernetes.io/kubelet-serving: " +
		"that signer must be in spec.signers of its SigningAuthority cluster before the CA begins to sign"
	noPair := func(r *Ring) { r.Signing = Pair{} }
	capped := func(r *Ring) { r.Permit.LifetimeCap = time.Hour }
	both := func(r *Ring) { r.Permit.Signers = append(r.Permit.Signers, kubeletServing) }
	const none = "CANotProven: Secret ns/ca holds no CA yet that its verifiers are proven to trust: kubectl get signingauthorities -o wide shows what it waits for"
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
		{"a candidate alone", ringSecret(t, one, noPair, func(r *Ring) { r.Candidate = Pair{Cert: one.cert, Key: one.key} }), none, none, 0, false},
		{"one that signs", ringSecret(t, one), oneID + " 0s", unproven, 1, true},
		{"the same", ringSecret(t, one), oneID + " 0s", unproven, 0, false},
		{"a wish of its owner", ringSecret(t, one, func(r *Ring) { r.TLS = Pair{Cert: two.cert, Key: two.key} }), oneID + " 0s", unproven, 0, false},
		{"for shorter", ringSecret(t, one, capped), oneID + " 1h0m0s", unproven, 0, true},
		{"half a Secret", broken, oneID + " 1h0m0s", unproven, 1, false},
		{"for another signer, with a pair that can't be used", ringSecret(t, root{two.cert, one.key}, both), oneID + " 1h0m0s", unproven, 1, false},
		{"the switch", ringSecret(t, two, both), twoID + " 0s", twoID + " 0s", 1, true},
		{"the pair goes", ringSecret(t, two, noPair), twoID + " 0s", twoID + " 0s", 1, false},
	} {
		pair.Offer(step.secret)
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

// TestReplicaIsReadyWhileALeaderProvidesTheCA checks that a replica does not wait for a step that only a leader of
// its own version takes. A Deployment keeps the old leader until the new replica is ready.
func TestReplicaIsReadyWhileALeaderProvidesTheCA(t *testing.T) {
	t.Parallel()
	good := newRoot(t, 24*time.Hour)
	plain := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": good.cert, "tls.key": good.key}}
	broken := ringSecret(t, good)
	broken.Data["authority.json"] = []byte("{")
	made := func(k *KeyPair) { k.Create = &Creation{} }
	for name, test := range map[string]struct {
		source Source // nil means secret
		change func(*KeyPair)
		secret *corev1.Secret // nil means that it does not exist
		want   string         // empty means ready
	}{
		"the Secret is of another type":                 {secret: &corev1.Secret{Type: corev1.SecretTypeOpaque}, want: "has type"},
		"the Secret is the operator's":                  {want: "create it"},
		"the Secret is the leader's to create":          {change: made},
		"the leader can't create it":                    {change: func(k *KeyPair) { made(k); k.notCreated(errors.New("forbidden")) }, want: "forbidden"},
		"rotation: the Secret is the leader's":          {source: guardedSecret},
		"rotation: no leader has proven the CA yet":     {source: guardedSecret, secret: plain},
		"rotation: the pair is proven":                  {source: guardedSecret, secret: ringSecret(t, good)},
		"rotation: what the Secret holds can't be used": {source: guardedSecret, secret: broken, want: "can't be used"},
	} {
		source := test.source
		if source == nil {
			source = secret
		}
		pair, _, _ := newPair(source)
		if test.change != nil {
			test.change(pair)
		}
		pair.Offer(test.secret)
		if got := fmt.Sprint(pair.Ready(now)); test.want == "" && got != "<nil>" || !strings.Contains(got, test.want) {
			t.Errorf("%s: ready says %s, want %q", name, got, test.want)
		}
	}
}

// TestSecretCountsWhileItCannotBeRead checks that signing continues if the API server is unreachable, or if the right
// is withdrawn. A right that has been missing since the start is reported.
func TestSecretCountsWhileItCannotBeRead(t *testing.T) {
	t.Parallel()
	pair, _, _ := newPair(secret)
	good := newRoot(t, 24*time.Hour)
	w := &secretWatch{name: secret, pair: pair}
	w.secret = &informer.Informer[*corev1.Secret]{OnFailure: w.fail}
	says := func(what, want string) {
		t.Helper()
		got := "signs"
		if _, err := pair.Authority(now); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("secrets"), "ca", errors.New("no right to list"))
	w.observe()
	says("before it is read", "Secret ns/ca has not been read yet")
	w.secret.Fake(errors.New("down"))
	says("without an API server", "Secret ns/ca has not been read yet")
	w.secret.Fake(forbidden)
	says("without the right", `Secret ns/ca can't be read: secrets "ca" is forbidden: no right to list`)
	w.secret.Fake(nil, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ca", UID: "1"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": good.cert, "tls.key": good.key},
	})
	w.observe()
	says("once it is read", "signs")
	if object, ok := pair.object.(*corev1.Secret); !ok || object.UID != "1" || len(object.Data) > 0 {
		t.Errorf("Events are about %v", pair.object)
	}
	for _, err := range []error{errors.New("down"), forbidden} {
		w.secret.Fake(err)
		w.observe()
		says(err.Error(), "signs")
		if problem := pair.value.State().Problem; problem != nil {
			t.Errorf("%v: reported %v", err, problem)
		}
	}
	w.secret.Fake(nil)
	w.observe()
	problem := pair.value.State().Problem
	if problem == nil || problem.Error() != "Secret ns/ca does not exist: create it with type kubernetes.io/tls" {
		t.Errorf("when it is deleted: %v", problem)
	}
}
