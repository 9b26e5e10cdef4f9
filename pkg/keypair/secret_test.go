package keypair

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/informertest"
)

// ringSecret returns a Secret as a rotation writes it: signing signs for kubeletClient, unless change says otherwise.
func ringSecret(signing Pair, change ...func(*Ring)) *corev1.Secret {
	ring := Ring{
		Signing: signing, TLS: Pair{Cert: []byte("tls.crt"), Key: []byte("tls.key")},
		Permit: Permit{Authority: "cluster", Signers: []string{kubeletClient}},
	}
	for _, each := range change {
		each(&ring)
	}
	secret := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	_ = must(secret, ring.WriteTo(secret.Data))
	return secret
}

// broken returns a Secret of which half is written.
func broken(signing Pair) *corev1.Secret {
	secret := ringSecret(signing)
	secret.Data["authority.json"] = []byte("{")
	return secret
}

// allowed returns the key and the cap with which w may sign for signerName at now, or the reason why it may not.
func (w *world) allowed(signerName string) string {
	authority, longest, err := w.AuthorityFor(signerName, now)
	if err == nil {
		return fmt.Sprintf("%s %s", authority.KeyID(), longest)
	}
	var unavailable *Unavailable
	errors.As(err, &unavailable)
	return unavailable.Reason + ": " + unavailable.Message
}

// TestGuarded checks which pair of a Secret that is rotated signs, and for whom.
func TestGuarded(t *testing.T) {
	w := newWorld(guardedSecret)
	one, two := newRoot(day), newRoot(2*day)
	const unproven = "CANotProven: the CA in Secret ns/ca is not proven to be trusted by the verifiers of certificates of signer " +
		"kubernetes.io/kubelet-serving: that signer must be in spec.signers of its SigningAuthority cluster before the CA begins to sign"
	const none = "CANotProven: Secret ns/ca holds no CA yet that its verifiers are proven to trust: " +
		"kubectl get signingauthorities -o wide shows what it waits for"
	candidate := func(r *Ring) { r.Candidate = one.pair() }
	capped := func(r *Ring) { r.Permit.LifetimeCap = time.Hour }
	both := func(r *Ring) { r.Permit.Signers = append(r.Permit.Signers, kubeletServing) }
	wish := func(r *Ring) { r.TLS = two.pair() }
	only := func(proven root) func(*Ring) { return func(r *Ring) { r.Permit.KeyID = proven.id } }
	mixed := Pair{Cert: two.cert, Key: one.key}
	for _, step := range []struct {
		what            string
		secret          *corev1.Secret
		client, serving string
		told            string // the reason of the only Event
		wakes           bool
	}{
		{"a Secret as anybody makes it", tlsSecret(one), none, none, "CANotProven", false},
		{"a candidate alone", ringSecret(Pair{}, candidate), none, none, "", false},
		{"one that signs", ringSecret(one.pair()), one.id + " 0s", unproven, "CALoaded", true},
		{"a wish of its owner", ringSecret(one.pair(), wish), one.id + " 0s", unproven, "", false},
		{"for shorter", ringSecret(one.pair(), capped), one.id + " 1h0m0s", unproven, "", true},
		{"half a Secret", broken(two.pair()), one.id + " 1h0m0s", unproven, "CAInvalid", false},
		{"for another signer, with a pair that can't be used", ringSecret(mixed, both), one.id + " 1h0m0s", unproven, "CAInvalid", false},
		{"the same, of a version that names the CA", ringSecret(one.pair(), capped, only(one)), one.id + " 1h0m0s", unproven, "CALoaded", true},
		{"another client's pair", ringSecret(two.pair(), only(one)), one.id + " 1h0m0s", unproven, "CANotProven", false},
		{"the switch", ringSecret(two.pair(), both), two.id + " 0s", two.id + " 0s", "CALoaded", true},
		{"the pair goes", ringSecret(Pair{}), two.id + " 0s", two.id + " 0s", "CANotProven", false},
	} {
		w.Offer(step.secret)
		told := w.told()
		if told != "" {
			told = strings.Fields(told)[1]
		}
		expect.Equal(t, step.what+": told", told, step.told)
		w.check(t, step.what, w.allowed(kubeletClient)+w.allowed(kubeletServing), step.client+step.serving, "", step.wakes)
	}
}

// TestReplicaIsReadyWhileALeaderProvidesTheCA checks that a replica does not wait for a step that only a leader of
// its own version takes. A Deployment keeps the old leader until the new replica is ready.
func TestReplicaIsReadyWhileALeaderProvidesTheCA(t *testing.T) {
	good := newRoot(day)
	unchanged := func(*KeyPair) {}
	made := func(k *KeyPair) { k.Create = &Creation{} }
	notMade := func(k *KeyPair) {
		made(k)
		k.notCreated(errors.New("forbidden"))
	}
	for name, test := range map[string]struct {
		source Source
		change func(*KeyPair)
		secret *corev1.Secret // nil means that it does not exist
		want   string         // empty means ready
	}{
		"the Secret is of another type":                 {secret, unchanged, &corev1.Secret{Type: corev1.SecretTypeOpaque}, "has type"},
		"the Secret is the operator's":                  {secret, unchanged, nil, "create it"},
		"the Secret is the leader's to create":          {secret, made, nil, ""},
		"the leader can't create it":                    {secret, notMade, nil, "forbidden"},
		"rotation: the Secret is the leader's":          {guardedSecret, unchanged, nil, ""},
		"rotation: no leader has proven the CA yet":     {guardedSecret, unchanged, tlsSecret(good), ""},
		"rotation: what the Secret holds can't be used": {guardedSecret, unchanged, broken(good.pair()), "can't be used"},
	} {
		w := newWorld(test.source)
		test.change(w.KeyPair)
		w.Offer(test.secret)
		if got := fmt.Sprint(w.Ready(now)); test.want == "" && got != "<nil>" || !strings.Contains(got, test.want) {
			t.Errorf("%s: ready says %s, want %q", name, got, test.want)
		}
	}
}

// TestSecretCountsWhileItCannotBeRead checks that signing continues if the API server is unreachable, or if the right
// is withdrawn. A right that has been missing since the start is reported.
func TestSecretCountsWhileItCannotBeRead(t *testing.T) {
	w, good := newWorld(secret), newRoot(day)
	watch := &secretWatch{name: secret, pair: w.KeyPair}
	resource := informer.Resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("secrets")}
	watch.secret = informer.One(resource, types.NamespacedName(secret), logr.Discard(), watch.wake, watch.fail)
	stored := tlsSecret(good)
	stored.Namespace, stored.Name, stored.UID = "ns", "ca", "1"
	refused, forbidden := apierrors.NewUnauthorized("who"), apierrors.NewForbidden(corev1.Resource("secrets"), "ca", errors.New("no right to list"))
	fails := func(err error) func() { return func() { informertest.Fail(t, watch.secret, err) } }
	reads := func(objs ...runtime.Object) func() { return func() { informertest.Read(t, watch.secret, objs...) } }
	const unread = "CAMissing: Secret ns/ca has not been read yet"
	const deleted = "Secret ns/ca does not exist: create it with type kubernetes.io/tls"
	for _, step := range []struct {
		what    string
		read    func()
		want    string
		problem string // that is reported
	}{
		{"before it is read", func() {}, unread, ""},
		{"without the right", fails(forbidden),
			`CAMissing: Secret ns/ca can't be read: grant list and watch on secrets: secrets "ca" is forbidden: no right to list`,
			`Secret ns/ca can't be read: grant list and watch on secrets: secrets "ca" is forbidden: no right to list`},
		{"once it is read", reads(stored), good.id, ""},
		{"and the API server refuses", fails(refused), good.id, ""},
		{"and the right", fails(forbidden), good.id, ""},
		{"when it is deleted", reads(), good.id, deleted},
	} {
		step.read()
		watch.offer(t.Context())
		problem := ""
		if state := w.value.State(); state.Problem != nil {
			problem = state.Problem.Error()
		}
		expect.Equal(t, step.what, []string{w.state(now), problem}, []string{step.want, step.problem})
		if object := w.object.(*corev1.Secret); (object.UID == "1") != (problem == "" && step.want == good.id) || len(object.Data) > 0 {
			t.Errorf("%s: Events are about %v", step.what, object)
		}
	}
}

// TestRoundTrip checks that a written ring is read again and keeps foreign keys, and that an empty ring leaves nothing but
// them and an empty tls.crt and tls.key.
func TestRoundTrip(t *testing.T) {
	full := Ring{
		TLS:       Pair{[]byte("tc"), []byte("tk")},
		Signing:   Pair{[]byte("sc"), []byte("sk")},
		Candidate: Pair{[]byte("cc"), []byte("ck")},
		Retiring:  Pair{[]byte("rc"), []byte("rk")},
		Permit:    Permit{Authority: "cluster", KeyID: "a", Signers: []string{"example.com/client"}, LifetimeCap: time.Hour},
	}
	data := map[string][]byte{"else": []byte("kept")}
	err := full.WriteTo(data)
	if got := must(ParseRing(data)); err != nil || !reflect.DeepEqual(got, full) || len(data) != 10 {
		t.Errorf("got %+v from %d keys, %v", got, len(data), err)
	}
	err = Ring{}.WriteTo(data)
	want := map[string][]byte{"tls.crt": {}, "tls.key": {}, "else": []byte("kept")}
	expect.True(t, err == nil && maps.EqualFunc(data, want, bytes.Equal) && data["tls.crt"] != nil && data["tls.key"] != nil,
		"left %v, error %v", data, err)
}

// link is a CA for a key, in PEM. The key is computed from its name, so that two CAs can share it. It protects nothing.
type link struct {
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	pem    []byte
	keyPEM []byte
}

// newLink returns a CA of that name, issued by parent or self-signed. A self-signed CA expires later.
func newLink(name string, parent *link) *link {
	seed := sha256.Sum256([]byte("csr-controller-manager " + name))
	key := must(ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:]))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
	}
	if parent == nil {
		parent = &link{key: key, cert: template}
		template.NotAfter = template.NotAfter.Add(time.Hour)
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key))
	return &link{
		key: key, cert: must(x509.ParseCertificate(der)), pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}),
	}
}

// TestRootsComeAlong checks that an intermediate CA is adopted with the root from ca.crt, and that no reader refuses
// the written Secret.
func TestRootsComeAlong(t *testing.T) {
	root, other := newLink("root", nil), newLink("other", nil)
	below, self := newLink("below", root), newLink("below", nil) // the same key and name, and expires later
	renewed := must(must(ca.Load(self.pem, self.keyPEM, nil)).Renew(3*time.Hour, now))
	both := append(bytes.Clone(below.pem), root.pem...)
	negative := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes.Replace(root.cert.Raw, []byte{2, 1, 1}, []byte{2, 1, 0xff}, 1)})
	broken := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	for name, test := range map[string]struct {
		signs       *link
		cert, roots []byte
		want        []byte // tls.crt as it is read
		kept        bool   // whether ca.crt is kept
		complete    bool   // whether the chain has a root
	}{
		"intermediate":             {below, below.pem, root.pem, both, true, true},
		"without its last newline": {below, bytes.TrimSpace(below.pem), root.pem, both, true, true},
		"self-signed":              {other, other.pem, other.pem, other.pem, true, true},
		"another for its key":      {below, below.pem, self.pem, below.pem, true, false},
		"from before a renewal":    {&link{cert: renewed.Certificate(), keyPEM: self.keyPEM}, renewed.CertificatePEM(), self.pem, renewed.CertificatePEM(), false, true},
		"of an earlier CA":         {other, other.pem, root.pem, other.pem, false, true},
		"not its root":             {below, below.pem, other.pem, below.pem, false, false},
		"with an unreadable one":   {below, below.pem, append(bytes.Clone(root.pem), negative...), slices.Concat(both, negative), true, true},
		"beside an unreadable one": {below, append(bytes.Clone(below.pem), negative...), root.pem, slices.Concat(below.pem, negative, root.pem), true, true},
	} {
		data := map[string][]byte{"tls.crt": test.cert, "tls.key": test.signs.keyPEM}
		if test.roots != nil {
			data[rootsKey] = test.roots
		}
		ring := must(ParseRing(data))
		expect.Equal(t, name+": read", string(ring.TLS.Cert), string(test.want))
		ring.Signing = ring.TLS
		err := ring.WriteTo(data)
		if again := must(ParseRing(data)); err != nil || !again.TLS.Equal(again.Signing) {
			t.Errorf("%s: what is written looks like an edit: %+v, error %v", name, again, err)
		}
		_, kept := data[rootsKey]
		expect.Equal(t, name+": ca.crt is kept", kept, test.kept)
		unguarded := must(ca.Load(data["tls.crt"], data["tls.key"], data[rootsKey]))
		guarded := must(ring.Signing.Load())
		expect.Equal(t, name+": signs without a guard", unguarded.KeyID(), ca.KeyID(test.signs.cert.RawSubjectPublicKeyInfo))
		expect.Equal(t, name+": signs with a guard", guarded.Certificate(), test.signs.cert)
		if _, err := guarded.WithChain(ca.WithRoot); (err == nil) != test.complete {
			t.Errorf("%s: its chain to the root: error %v", name, err)
		}

		// A rotation removes an earlier ca.crt.
		ring.TLS = Pair{other.pem, other.keyPEM}
		_ = must(ring, ring.WriteTo(data))
		if _, err := ca.Load(data["tls.crt"], data["tls.key"], data[rootsKey]); err != nil {
			t.Errorf("%s: after a rotation, without a guard: %v", name, err)
		}
	}
	data := map[string][]byte{"tls.crt": other.pem, "tls.key": other.keyPEM, rootsKey: broken}
	ring := must(ParseRing(data))
	_, err := ring.TLS.Load()
	expect.Error(t, "a damaged ca.crt", err, "parse certificate 2: x509: malformed certificate")
	if err := ring.WriteTo(data); err != nil || !bytes.Equal(data[rootsKey], broken) {
		t.Errorf("a damaged ca.crt is not kept: error %v", err)
	}
}
