package rotation

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func newCA(t *testing.T, lifetime time.Duration) *ca.Authority {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: lifetime}, noon)
	succeed(t, err)
	return made
}

func succeed(t *testing.T, errs ...error) {
	t.Helper()
	expect.NoError(t, errors.Join(errs...))
}

// signingWith returns an authority that signs with made, or without a CA if made is nil.
func signingWith(name string, made *ca.Authority, signers ...string) *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1", Generation: 1}}
	obj.Spec.Secret, obj.Spec.Signers = v1alpha1.SecretReference{Namespace: "ns", Name: name}, signers
	obj.Status.Phase = v1alpha1.Completed
	if made != nil {
		obj.Status.Signing = factsOf(made)
	}
	return obj
}

// reconciler returns a Reconciler whose API server has only objects, and whose clock stands at noon.
func reconciler(objects ...client.Object) *Reconciler {
	server := fake.NewClientBuilder().WithScheme(modelScheme).WithObjects(objects...).Build()
	clock := testingclock.NewFakePassiveClock(noon)
	return &Reconciler{Clock: clock, ServerTime: servertime.Of(clock), Client: server, Live: server, config: &rest.Config{},
		served: &publish.Publisher{Client: server, Live: server}}
}

// TestIssuedLater checks which requests with a certificate the ledger controller handles, as the manager's cache holds them.
func TestIssuedLater(t *testing.T) {
	obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "2"}}
	without := obj.DeepCopy()
	earlier := without.DeepCopy()
	earlier.ResourceVersion = "1"
	obj.Spec.SignerName, obj.Status.Certificate = clientSigner, []byte("a certificate")
	_, err := csr.Trim{}.Transform(obj)
	succeed(t, err)
	for name, test := range map[string]struct{ got, want bool }{
		"in the first list":             {issuedLater.Create(event.CreateEvent{Object: obj, IsInInitialList: true}), false},
		"listed again":                  {issuedLater.Update(event.UpdateEvent{ObjectOld: obj, ObjectNew: obj}), false},
		"created with a certificate":    {issuedLater.Create(event.CreateEvent{Object: obj}), true},
		"issued":                        {issuedLater.Update(event.UpdateEvent{ObjectOld: earlier, ObjectNew: obj}), true},
		"created without a certificate": {issuedLater.Create(event.CreateEvent{Object: without}), false},
		"deleted":                       {issuedLater.Delete(event.DeleteEvent{Object: obj}), false},
	} {
		expect.Equal(t, name+": handled", test.got, test.want)
	}
}

// TestTrimmedCertificatesAreRecorded checks requests in a cache that recognizes the certificates of the CAs from the time on at which
// the controller has told it of them. The controller then reads the requests from before that from the API server.
func TestTrimmedCertificatesAreRecorded(t *testing.T) {
	for _, algorithm := range []ca.Algorithm{ca.ECDSAP256, ca.MLDSA44, ca.MLDSA87} {
		made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Algorithm: algorithm}, noon)
		if fips140.Version() == "v1.0.0" && algorithm != ca.ECDSAP256 {
			expect.Error(t, string(algorithm), err, "make CA key: mldsa: unavailable in FIPS 140-3 Go Cryptographic Module v1.0.0")
			continue
		}
		succeed(t, err)
		profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
		succeed(t, err)
		obj := signingWith("csr", made, clientSigner)
		r := reconciler(obj)
		trim := csr.Trim{Authorities: r.Authorities}
		issue := func(name string) reconcile.Request { // as another program does, and as the cache learns of it
			issued, err := made.Issue(profile, ca.Request{PublicKey: leafKey}, noon)
			succeed(t, err)
			whole := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
			whole.Spec.SignerName, whole.Status.Certificate = name, issued.PEM
			trimmed, err := trim.Transform(whole.DeepCopy())
			succeed(t, err, r.served.Live.(client.Client).Create(t.Context(), whole), r.served.Client.Create(t.Context(), trimmed.(client.Object)))
			return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
		}
		r.served.Client = fake.NewClientBuilder().WithScheme(modelScheme).Build()
		succeed(t, r.recorder(obj).Open(t.Context(), made.KeyID()))
		recorded := func(key reconcile.Request, want ...string) {
			t.Helper()
			_, err := r.recordIssued(t.Context(), key)
			succeed(t, err, r.recorder(obj).Flush(t.Context()))
			accounts, err := r.recorder(obj).Read(t.Context())
			succeed(t, err)
			expect.Equal(t, fmt.Sprintf("%s: after %q, recorded", algorithm, key.Name), accounts[made.KeyID()].SignerNames(), want)
		}
		first := issue("a")
		recorded(first)
		recorded(everyRequest, "a")
		recorded(issue("b"), "a", "b")
		recorded(first, "a", "b")
	}
}

// TestSealOfALostAccount checks that a lost account is replaced by a closed, empty one only if nothing depends on its
// content.
func TestSealOfALostAccount(t *testing.T) {
	for name, test := range map[string]struct {
		retiring *v1alpha1.CAStatus
		sealed   bool
	}{
		"certificates may live":            {noted("old"), false},
		"the CA has ended":                 {noted("ended:old"), true},
		"the owner accepts what may break": {with(prepared(), accepted).Retiring, true},
	} {
		r, obj := reconciler(), signingWith("cluster", nil)
		obj.Status.Retiring = test.retiring
		if err := r.seal(t.Context(), obj, noon); (err == nil) != test.sealed || err != nil && !errors.Is(err, ledger.ErrNoAccount) {
			t.Errorf("%s: %v", name, err)
		}
		accounts, err := r.recorder(obj).Read(t.Context())
		expect.True(t, err == nil && accounts["old"].Sealed == test.sealed, "%s: the ledger has %v, %v", name, accounts, err)
	}
}

// TestAChangeInterrupts checks that a change of the authority stops the step under way, except a change of annotations
// only: these may change at any time.
func TestAChangeInterrupts(t *testing.T) {
	seen := signingWith("cluster", nil)
	for name, test := range map[string]struct {
		change     func(*v1alpha1.SigningAuthority)
		interrupts bool
	}{
		"nothing": {func(*v1alpha1.SigningAuthority) {}, false},
		"annotation": {func(a *v1alpha1.SigningAuthority) {
			a.Annotations = map[string]string{v1alpha1.OperationAnnotation: "x"}
		}, false},
		"spec":    {func(a *v1alpha1.SigningAuthority) { a.Generation = 2 }, true},
		"status":  {func(a *v1alpha1.SigningAuthority) { a.Status.Phase = v1alpha1.Prepared }, true},
		"another": {func(a *v1alpha1.SigningAuthority) { a.UID = "2" }, true},
	} {
		latest := seen.DeepCopy()
		test.change(latest)
		latest.ResourceVersion = "7"
		err := reconciler(latest).current(t.Context(), seen)
		expect.True(t, apierrors.IsConflict(err) == test.interrupts && err != nil == test.interrupts, "%s: %v", name, err)
	}
}

// TestSecretChangesWhileAStepIsTaken checks that another client's change of metadata does not stop a step, and stays, and
// that a change of the data stops it.
func TestSecretChangesWhileAStepIsTaken(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Secret)
		done   bool
	}{
		"an annotation": {func(s *corev1.Secret) { s.Annotations = map[string]string{"time": "noon"} }, true},
		"a key":         {func(s *corev1.Secret) { s.Data["tls.crt"] = []byte("x") }, false},
	} {
		obj := signingWith("cluster", newCA(t, day), clientSigner)
		stored := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cluster", UID: "7"}, Data: map[string][]byte{"tls.crt": {}}}
		r := reconciler(stored)
		read := func() *corev1.Secret {
			latest := &corev1.Secret{}
			succeed(t, r.Live.Get(t.Context(), client.ObjectKeyFromObject(stored), latest))
			return latest
		}
		o, changed := &observation{object: read()}, read()
		test.change(changed)
		succeed(t, r.Client.Update(t.Context(), changed))
		err := r.act(t.Context(), obj, step{Action: Permit}, o)
		after := read()
		_, done := after.Data["authority.json"]
		if done != test.done || apierrors.IsConflict(err) == test.done || len(after.Annotations) != len(changed.Annotations) {
			t.Errorf("%s: done %t, error %v: %+v", name, done, err, after.ObjectMeta)
		}
	}
}

// TestRollbackAndTLS checks that a rollback replaces the CA in tls.crt that it ends, also if it is stored there in another
// form: otherwise it would be adopted again. Any other content stays as another client has written it.
func TestRollbackAndTLS(t *testing.T) {
	pair := func(text string) keypair.Pair { return keypair.Pair{Cert: []byte(text), Key: []byte(text)} }
	brought, signing, candidate, retiring := pair("a"), pair("old"), pair("a\n"), pair("older")
	for name, test := range map[string]struct {
		tls    string
		action Action
		want   keypair.Pair
	}{
		"the candidate, which is dropped":          {"new", DropCandidate, signing},
		"another CA, and the candidate is dropped": {"other", DropCandidate, brought},
		"the CA that signed":                       {"old", SwapBack, retiring},
		"another CA, and the retiring CA signs":    {"other", SwapBack, brought},
		"garbage, and the retiring CA signs":       {"-", SwapBack, brought},
	} {
		o := &observation{ring: keypair.Ring{TLS: brought, Signing: signing, Candidate: candidate, Retiring: retiring}}
		o.Secret = secretFacts{TLS: fact(test.tls), Signing: fact("old"), Candidate: fact("new"), Retiring: fact("older")}
		if ring := editSecret(o, test.action, keypair.Pair{}, keypair.Permit{}); !ring.TLS.Equal(test.want) {
			t.Errorf("%s: %s", name, ring.TLS.Cert)
		}
	}
}

// TestLostStatusDoesNotProveAnEditedCA checks that a status that is rebuilt from the Secret does not permit a signing CA that
// another client has put there.
func TestLostStatusDoesNotProveAnEditedCA(t *testing.T) {
	made, key, err := ca.New(ca.NewOptions{CommonName: "CA"}, noon)
	succeed(t, err)
	for keyID, want := range map[string]int{"": 1, made.KeyID(): 1, "another": 0} {
		stored := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cluster"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
		ring := keypair.Ring{
			Signing: keypair.Pair{Cert: made.CertificatePEM(), Key: key},
			Permit:  keypair.Permit{Authority: "cluster", KeyID: keyID, Signers: []string{clientSigner}},
		}
		succeed(t, ring.WriteTo(stored.Data))
		r, o := reconciler(stored), &observation{facts: facts{Now: noon}}
		r.loadPair = keypair.Pair.Load
		succeed(t, r.readSecret(t.Context(), signingWith("cluster", nil, clientSigner), o))
		if got := len(o.Secret.PermittedSigners); got != want {
			t.Errorf("permit for %q: %d signers, want %d", keyID, got, want)
		}
	}
}

// TestWhatHasEndedIsPublishedAlone checks that an expired CA is published only if there is no other. An empty bundle is
// not possible, and the removed CA would stay published.
func TestWhatHasEndedIsPublishedAlone(t *testing.T) {
	obj := &v1alpha1.SigningAuthority{}
	for _, want := range []*ca.Authority{newCA(t, day), newCA(t, 1000*time.Hour)} {
		obj.Status.Candidate, obj.Status.Signing = obj.Status.Signing, factsOf(want)
		got, err := bundleOf(obj, noon.Add(100*time.Hour))
		expect.True(t, err == nil && string(got.Bundle) == string(want.CertificatePEM()), "got %q, %v", got.Bundle, err)
	}
}

// TestConditions checks two conditions. Trusted stays true for a signing CA that no probe asks about any more, and is
// unknown while the owner has not confirmed the verifiers that can't be asked. Refused is unknown if no verifier can be
// asked.
func TestConditions(t *testing.T) {
	const trusted, refused = v1alpha1.ConditionTrusted, v1alpha1.ConditionRefused
	const both = kubeletSigner + " " + servingSigner
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	usedByClients := map[string]ledger.Account{"old": {Signers: map[string]time.Time{clientSigner: noon}}}
	for _, row := range []struct {
		name, kind string
		status     saStatus
		signers    string
		facts      facts
		want       metav1.ConditionStatus
	}{
		{"a candidate that is not proven", trusted, preparing(), kubeletSigner, facts{}, no},
		{"one that signs, and is not recognised now", trusted, prepared(), kubeletSigner, facts{}, no},
		{"nobody is asked while the old one leaves", trusted, completing(true), kubeletSigner, facts{}, yes},
		{"all recognise it", trusted, preparing(), kubeletSigner, facts{Candidate: proven}, yes},
		{"all recognise it, and others are to be confirmed", trusted, preparing(), both, facts{Candidate: proven}, unknown},
		{"not all recognise it, and others are to be confirmed", trusted, preparing(), both, facts{}, no},
		{"all recognise it, and others are confirmed", trusted, with(preparing(), confirmed), both, facts{Candidate: proven}, yes},
		{"others are to be confirmed", trusted, preparing(), servingSigner, facts{}, unknown},
		{"others are confirmed", trusted, with(preparing(), confirmed), servingSigner, facts{}, yes},
		{"all refuse it", refused, completing(true), clientSigner, facts{RetiringRefused: proven}, yes},
		{"not all were asked", refused, completing(true), clientSigner, facts{}, no},
		{"those who verify can't be asked", refused, completing(true), servingSigner, facts{}, unknown},
		{"clients used it", refused, completing(true), servingSigner, facts{Accounts: usedByClients}, no},
	} {
		obj := &v1alpha1.SigningAuthority{Status: row.status}
		obj.Spec.Signers, row.facts.Now = strings.Fields(row.signers), noon
		describe(obj, "", row.facts)
		got := meta.FindStatusCondition(obj.Status.Conditions, row.kind)
		expect.True(t, got != nil && got.Status == row.want, "%s: %+v, want %s", row.name, got, row.want)
	}
}

// TestSigningKeyIsLostWhileCompleting checks that no server is asked without the signing pair, and that the status says
// which CA extension-apiserver-authentication holds.
func TestSigningKeyIsLostWhileCompleting(t *testing.T) {
	obj := signingWith("cluster", nil, clientSigner)
	obj.Status.Retiring, obj.Status.UnpublishedAt = &v1alpha1.CAStatus{Certificate: frontCA}, at(0)
	o := &observation{retiring: newCA(t, day)}
	err := newCluster(nil).reconciler.readClientCAs(t.Context(), obj, o)
	expect.True(t, err == nil && o.Kept, "the retiring CA is not found: %+v, error %v", o.facts, err)
}

// TestOthers checks that an authority knows the CAs of others, also one that retires there and is not published any more,
// and that a Secret's name belongs to the oldest.
func TestOthers(t *testing.T) {
	made, gone := newCA(t, day), newCA(t, day)
	other, here := signingWith("other", made, kubeletSigner), signingWith("here", nil, clientSigner)
	other.Status.Retiring, other.Status.UnpublishedAt = factsOf(gone), at(0)
	o := &observation{facts: facts{Others: map[string]string{}}}
	succeed(t, reconciler(other, here).readOthers(t.Context(), here, o))
	expect.Equal(t, "CAs of others", o.Others, map[string]string{made.KeyID(): "other", gone.KeyID(): "other"})
	here.Spec.Secret = v1alpha1.SecretReference{Namespace: "elsewhere", Name: other.Spec.Secret.Name}
	here.CreationTimestamp = metav1.NewTime(noon)
	err := reconciler(other, here).readOthers(t.Context(), here, o)
	expect.True(t, err != nil && strings.Contains(err.Error(), "SigningAuthority other already uses Secret"),
		"a Secret of the same name: %v", err)
	succeed(t, reconciler(other, here).readOthers(t.Context(), other, o))
}

// TestHomeApart checks what a rotation does not believe if its home is another cluster than the served one: what the served
// cluster's administrators can write.
func TestHomeApart(t *testing.T) {
	old := newCA(t, day)
	obj := signingWith("here", newCA(t, day), clientSigner)
	obj.Status.Phase, obj.Status.Retiring, obj.Status.UnpublishedAt = v1alpha1.Prepared, factsOf(old), at(0)
	r, o := reconciler(), &observation{signing: newCA(t, day), retiring: old}
	r.apart, r.prober = true, nil // nothing is asked
	succeed(t, r.askAPIServers(t.Context(), obj, o), r.readClientCAs(t.Context(), obj, o))
	missing := strings.Join(o.Signing.Lacks(), "; ")
	expect.True(t, !o.Signing.Proven && strings.Contains(missing, "list every API server of the served cluster in spec.verification.apiServers"), "%q", missing)
	for signer, noted := range map[string]bool{clientSigner: true, "example.com/other": false} {
		request := &certificatesv1.CertificateSigningRequest{}
		request.Spec.SignerName, request.Status.Certificate = signer, clientCertificate(t, old)
		r := reconciler()
		r.apart, r.Secrets = true, []types.NamespacedName{secretName(obj)}
		r.record(request, []v1alpha1.SigningAuthority{*obj})
		succeed(t, r.recorder(obj).Open(t.Context(), old.KeyID()), r.recorder(obj).Flush(t.Context()))
		accounts, err := r.recorder(obj).Read(t.Context())
		expect.True(t, err == nil && (len(accounts[old.KeyID()].Signers) == 1) == noted, "%s: %v, %v", signer, accounts, err)
	}
}

// TestOwnAuthorities checks that a manager leaves the authorities of other Secrets alone, and that their Secrets may have the same
// name.
func TestOwnAuthorities(t *testing.T) {
	made := newCA(t, day)
	other, here := signingWith("other", made, kubeletSigner), signingWith("here", nil, clientSigner)
	here.Spec.Secret = v1alpha1.SecretReference{Namespace: "elsewhere", Name: other.Spec.Secret.Name}
	here.CreationTimestamp = metav1.NewTime(noon)
	reconcilerOf := func(obj *v1alpha1.SigningAuthority, others ...client.Object) *Reconciler {
		r := reconciler(append(others, obj)...)
		r.apart, r.Secrets = true, []types.NamespacedName{secretName(obj)}
		return r
	}
	r, o := reconcilerOf(here, other), &observation{facts: facts{Others: map[string]string{}}}
	succeed(t, r.readOthers(t.Context(), here, o))
	expect.Equal(t, "CAs of others", o.Others, map[string]string{made.KeyID(): "other"})
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "other"}})
	expect.True(t, err == nil && result == reconcile.Result{}, "another manager's authority: %+v, %v", result, err)
	r.Secrets = nil
	result, err = r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "other"}})
	expect.True(t, err == nil && result == reconcile.Result{}, "an authority at home, and no Secret is configured: %+v, %v", result, err)
	other.Spec.Trust.Secrets = []v1alpha1.TrustEntry{{Namespace: "shared", Name: "trust", Key: "other.crt"}}
	here.Spec.Trust.Secrets = []v1alpha1.TrustEntry{{Namespace: "shared", Name: "trust", Key: "here.crt"}}
	err = reconcilerOf(here, other).readOthers(t.Context(), here, o)
	expect.True(t, err != nil && strings.Contains(err.Error(), "already publishes to Secret shared/trust"), "other keys, and the same field manager: %v", err)
	here.Spec.Trust.Secrets = []v1alpha1.TrustEntry{{Namespace: other.Spec.Secret.Namespace, Name: other.Spec.Secret.Name}}
	err = r.readOthers(t.Context(), here, o)
	expect.True(t, err != nil && strings.Contains(err.Error(), "has the keys of SigningAuthority other"), "published to a signing Secret: %v", err)
}

// TestOwnCertificate checks that the manager finds out whether the retiring CA has issued its own client certificate, also in a file that
// changes.
func TestOwnCertificate(t *testing.T) {
	old, next := newCA(t, day), newCA(t, day)
	file := filepath.Join(t.TempDir(), "client.crt")
	obj := signingWith("cluster", next, clientSigner)
	obj.Status.Retiring = factsOf(old)
	config := &rest.Config{}
	for _, step := range []struct {
		what   string
		change func()
		want   bool
	}{
		{"a token", func() { config.BearerToken = "t" }, false},
		{"embedded", func() { config.CertData = clientCertificate(t, old) }, true},
		{"embedded, of the new CA", func() { config.CertData = clientCertificate(t, next) }, false},
		{"a file", func() {
			config.CertData, config.CertFile = nil, file
			succeed(t, os.WriteFile(file, clientCertificate(t, old), 0o600))
		}, true},
		{"the renewed file", func() { succeed(t, os.WriteFile(file, clientCertificate(t, next), 0o600)) }, false},
		{"nothing retires", func() { obj.Status.Retiring = nil; succeed(t, os.WriteFile(file, clientCertificate(t, old), 0o600)) }, false},
	} {
		step.change()
		r, o := reconciler(), &observation{}
		r.config = config
		succeed(t, r.readOwnCertificate(t.Context(), obj, o))
		expect.True(t, o.OwnCertificate == step.want, "%s: %t", step.what, o.OwnCertificate)
	}
	obj.Status.Retiring = factsOf(old)
	succeed(t, os.Remove(file))
	r := reconciler()
	r.config = config
	expect.True(t, r.readOwnCertificate(t.Context(), obj, &observation{}) != nil, "a missing file is no error")
}

// clientCertificate returns a client certificate of a CA, in PEM.
func clientCertificate(t *testing.T, of *ca.Authority) []byte {
	t.Helper()
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
	succeed(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	succeed(t, err)
	issued, err := of.Issue(profile, ca.Request{
		PublicKey: key.Public(), Subject: pkix.Name{CommonName: "jane"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, noon)
	succeed(t, err)
	return issued.PEM
}

// TestDefaultTimes checks that probe certificates have the API servers' time, and that its default is the given clock.
func TestDefaultTimes(t *testing.T) {
	own, server := testingclock.NewFakePassiveClock(noon), testingclock.NewFakePassiveClock(noon.Add(5*time.Minute))
	mgr, err := manager.New(&rest.Config{}, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	succeed(t, err)
	for want, r := range map[time.Time]*Reconciler{
		server.Now(): {Clock: own, ServerTime: servertime.Apart(own, server)}, own.Now(): {Clock: own},
	} {
		succeed(t, r.setDefaults(mgr))
		expect.Equal(t, "the prober's time", r.prober.(*probe.Prober).Now(), want)
	}
}

// TestLongOperation checks that the annotation can't make the status too large, and is the same operation each time.
func TestLongOperation(t *testing.T) {
	obj := signingWith("here", nil)
	obj.Annotations = map[string]string{v1alpha1.OperationAnnotation: strings.Repeat("<\x01", 100_000)}
	got := operationOf(obj)
	expect.True(t, len(got) <= v1alpha1.LongestOperation && got != "" && got == operationOf(obj), "%d bytes: %q", len(got), got)
	for _, operation := range v1alpha1.Allowed(v1alpha1.Prepared) {
		obj.Annotations[v1alpha1.OperationAnnotation] = string(operation)
		expect.Equal(t, "operation", operationOf(obj), operation)
	}
}

// TestGaugesGo checks that the gauges of an authority follow its signers, and go with it.
func TestGaugesGo(t *testing.T) {
	obj := signingWith("gauges", nil, "gauges.test/a", "gauges.test/b")
	obj.Status.InitiatedAt, obj.Status.Phase = at(0), v1alpha1.Preparing
	has := func(signers ...string) {
		t.Helper()
		families, err := metrics.Registry.Gather()
		succeed(t, err)
		found := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.Metric {
				for _, label := range metric.Label {
					if strings.HasPrefix(label.GetValue(), "gauges.test/") {
						found[label.GetValue()]++
						if family.GetName() == "csr_rotation_initiated_timestamp_seconds" {
							found[label.GetValue()] += metric.GetGauge().GetValue()
						}
					}
				}
			}
		}
		want := map[string]float64{}
		for _, signer := range signers { // each phase is a gauge of its own
			want[signer] = float64(len(allGauges)+3) + float64(noon.Unix())
		}
		expect.Equal(t, "gauges", found, want)
	}
	rotations.authorities.Store(obj.Name, obj.DeepCopy())
	has("gauges.test/a", "gauges.test/b")
	obj.Spec.Signers = obj.Spec.Signers[1:]
	rotations.authorities.Store(obj.Name, obj)
	has("gauges.test/b")
	_, err := reconciler().Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
	succeed(t, err)
	has() // obj was deleted
}
