package rotation

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// newCA returns a CA that is valid from noon on.
func newCA(t *testing.T, lifetime time.Duration) *ca.Authority {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: lifetime}, noon)
	succeed(t, err)
	return made
}

func succeed(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// sharing returns an authority that signs with made, or without a CA if made is nil.
func sharing(name string, made *ca.Authority, signers ...string) *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1", Generation: 1}}
	obj.Spec.Secret, obj.Spec.Signers = v1alpha1.SecretReference{Namespace: "ns", Name: name}, signers
	obj.Status.Phase = v1alpha1.Completed
	if made != nil {
		obj.Status.Signing = factsOf(made)
	}
	return obj
}

// leaving returns sharing with made as the retiring CA.
func leaving(phase v1alpha1.Phase, name string, made *ca.Authority, signers ...string) *v1alpha1.SigningAuthority {
	obj := sharing(name, nil, signers...)
	obj.Status.Phase, obj.Status.Retiring = phase, factsOf(made)
	return obj
}

// reconciler returns a Reconciler whose API server has only objects, and whose clock stands at noon.
func reconciler(objects ...client.Object) *Reconciler {
	server := fake.NewClientBuilder().WithScheme(modelScheme).WithObjects(objects...).Build()
	return &Reconciler{
		Clock: testingclock.NewFakePassiveClock(noon), Client: server, Live: server, runUntilStopped: func(func(context.Context)) {},
	}
}

// trimmed returns a request with certificate, as the manager's cache holds it.
func trimmed(t *testing.T, name, signer string, certificate []byte) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", ResourceVersion: "2"}}
	obj.Spec.SignerName, obj.Status.Certificate = signer, certificate
	got, err := csr.Trim{}.Transform(obj)
	if err != nil || !csr.Trimmed(obj) {
		t.Fatalf("not trimmed: %v", err)
	}
	return got.(*certificatesv1.CertificateSigningRequest)
}

// TestWhoseLedger has two authorities with one CA, as spec.from creates them. A certificate counts for the authority
// that serves its signer, even if that authority no longer has the CA. Otherwise it would keep the other authority from
// removing the CA. If no authority serves the signer, the certificate counts for both.
func TestWhoseLedger(t *testing.T) {
	t.Parallel()
	const other = "example.com/others"
	made := newCA(t, day)
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
	succeed(t, err)
	leaf, err := made.Issue(profile, ca.Request{PublicKey: leafKey}, noon)
	succeed(t, err)
	users, kubelets, left := sharing("users", made, clientSigner), sharing("kubelets", made, servingSigner), sharing("nodes", nil, kubeletSigner)
	left.Status.LastRetired = factsOf(made)
	objects := []client.Object{users, kubelets, left}
	for i, signer := range []string{clientSigner, servingSigner, other, kubeletSigner} {
		objects = append(objects, trimmed(t, fmt.Sprint(i), signer, leaf.PEM))
	}
	r := reconciler(objects...)
	for _, obj := range []*v1alpha1.SigningAuthority{users, kubelets} {
		succeed(t, r.recorder(obj).Book.Open(t.Context(), made.KeyID()))
	}
	for _, obj := range objects[3:] {
		_, err := r.recordIssued(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
		succeed(t, err)
	}
	for obj, want := range map[*v1alpha1.SigningAuthority][]string{users: {other, clientSigner}, kubelets: {other, servingSigner}} {
		recorder := r.recorder(obj)
		flushed := recorder.Flush(t.Context())
		accounts, err := recorder.Book.Read(t.Context())
		succeed(t, flushed, err)
		if diff := cmp.Diff(want, accounts[made.KeyID()].SignerNames()); diff != "" {
			t.Errorf("noted for %s (-want +got):\n%s", obj.Name, diff)
		}
	}
}

// TestIssuedLater checks which requests with a certificate the ledger controller handles.
func TestIssuedLater(t *testing.T) {
	t.Parallel()
	obj := trimmed(t, "a", clientSigner, []byte("a certificate"))
	without := obj.DeepCopy()
	without.Status.Certificate = nil
	earlier := without.DeepCopy()
	earlier.ResourceVersion = "1"
	for name, test := range map[string]struct{ got, want bool }{
		"in the first list":             {issuedLater.Create(event.CreateEvent{Object: obj, IsInInitialList: true}), false},
		"listed again":                  {issuedLater.Update(event.UpdateEvent{ObjectOld: obj, ObjectNew: obj}), false},
		"created with a certificate":    {issuedLater.Create(event.CreateEvent{Object: obj}), true},
		"issued":                        {issuedLater.Update(event.UpdateEvent{ObjectOld: earlier, ObjectNew: obj}), true},
		"created without a certificate": {issuedLater.Create(event.CreateEvent{Object: without}), false},
		"deleted":                       {issuedLater.Delete(event.DeleteEvent{Object: obj}), false},
	} {
		if test.got != test.want {
			t.Errorf("%s: handled: %t, want %t", name, test.got, test.want)
		}
	}
}

// TestSealOfALostAccount checks that a lost account is replaced by a closed, empty one only if nothing depends on its
// content.
func TestSealOfALostAccount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		retiring *v1alpha1.CAStatus
		sealed   bool
	}{
		"certificates may live":            {noted("old"), false},
		"the CA has ended":                 {noted("ended:old"), true},
		"the owner accepts what may break": {with(prepared(), accepted).Retiring, true},
	} {
		r, obj := reconciler(), sharing("cluster", nil)
		obj.Status.Retiring = test.retiring
		if err := r.seal(t.Context(), obj); (err == nil) != test.sealed || err != nil && !errors.Is(err, ledger.ErrNoAccount) {
			t.Errorf("%s: %v", name, err)
		}
		accounts, err := r.recorder(obj).Book.Read(t.Context())
		if err != nil || accounts["old"].Sealed != test.sealed {
			t.Errorf("%s: the ledger has %v, %v", name, accounts, err)
		}
	}
}

// TestAChangeInterrupts checks that a change of the authority stops the step under way, except a change of annotations
// only: these may change at any time.
func TestAChangeInterrupts(t *testing.T) {
	t.Parallel()
	seen := sharing("cluster", nil)
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
		if err := reconciler(latest).current(t.Context(), seen); apierrors.IsConflict(err) != test.interrupts || err != nil != test.interrupts {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEditSecretSetsThePermit checks that each edit gives the signer the new permit, except the copy of another
// authority's CA, with which nothing signs yet. The lifetime cap ends with the candidate.
func TestEditSecretSetsThePermit(t *testing.T) {
	t.Parallel()
	pair := func(name string) keypair.Pair { return keypair.Pair{Cert: []byte(name), Key: []byte(name)} }
	before, permit := keypair.Permit{Authority: "before"}, keypair.Permit{Authority: "cluster", LifetimeCap: time.Hour}
	old, made := pair("old"), pair("made")
	for action, want := range map[Action]keypair.Ring{
		CopyFrom:      {TLS: made, Signing: old, Permit: before},
		MakeCandidate: {TLS: old, Signing: old, Candidate: made, Permit: permit},
		Permit:        {TLS: old, Signing: old, Permit: keypair.Permit{Authority: "cluster"}},
		Seal:          {TLS: old, Signing: old, Permit: before}, // which is an error
	} {
		got, err := editSecret(keypair.Ring{TLS: old, Signing: old, Permit: before}, action, made, permit)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (action == Seal) {
			t.Errorf("%s: error %v, (-want +got):\n%s", action, err, diff)
		}
	}
}

// TestSharing checks that API servers must refuse a retiring CA, unless they must trust it as a client CA for another
// authority.
func TestSharing(t *testing.T) {
	t.Parallel()
	made := newCA(t, day)
	waits, unpublished := sharing("other", nil, kubeletSigner), leaving(v1alpha1.Completed, "other", made, kubeletSigner)
	waits.Status.Candidate, unpublished.Status.UnpublishedAt = factsOf(made), at(0)
	for name, test := range map[string]struct {
		other *v1alpha1.SigningAuthority
		want  []string
	}{
		"it signs for others":                     {sharing("other", made, kubeletSigner), []string{"other"}},
		"it signs for clients of a custom signer": {sharing("other", made, "example.com/users"), []string{"other"}},
		"it signs for kubelets' servers alone":    {sharing("other", made, servingSigner), nil},
		"it retires there too":                    {leaving(v1alpha1.Completed, "other", made, kubeletSigner), []string{"other"}},
		"it waits there to be trusted":            {waits, []string{"other"}},
		"it is published nowhere":                 {unpublished, nil},
	} {
		obj, o := leaving(v1alpha1.Completing, "leaving", made, clientSigner), &observation{}
		succeed(t, reconciler(obj, test.other).observeAuthorities(t.Context(), obj, o))
		if diff := cmp.Diff(test.want, o.Sharing); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestASignerThatCameLater checks that certificates count as outstanding here if another authority with the same CA has
// issued them for a signer that was added here later.
func TestASignerThatCameLater(t *testing.T) {
	t.Parallel()
	made, until := newCA(t, day), *at(8760 * time.Hour)
	other, here := sharing("other", made, clientSigner), leaving(v1alpha1.Prepared, "leaving", made, servingSigner)
	r, o := reconciler(other, here), &observation{}
	theirs, ours := r.recorder(other).Book, r.recorder(here).Book
	succeed(t, theirs.Open(t.Context(), made.KeyID()), ours.Open(t.Context(), made.KeyID()),
		theirs.Raise(t.Context(), made.KeyID(), servingSigner, until.Time), theirs.Raise(t.Context(), made.KeyID(), clientSigner, until.Time),
		r.observeAuthorities(t.Context(), here, o), r.readLedger(t.Context(), here, o))
	if len(o.Outstanding) != 1 || o.Outstanding[0].Signer != servingSigner || !o.Outstanding[0].Until.Equal(&until) {
		t.Errorf("outstanding is %+v", o.Outstanding)
	}
}

// TestWhatHasEndedIsPublishedAlone checks that an expired CA is published only if there is no other. An empty bundle is
// not possible, and the removed CA would stay published.
func TestWhatHasEndedIsPublishedAlone(t *testing.T) {
	t.Parallel()
	obj := &v1alpha1.SigningAuthority{}
	for _, want := range []*ca.Authority{newCA(t, day), newCA(t, 1000*time.Hour)} {
		obj.Status.Candidate, obj.Status.Signing = obj.Status.Signing, factsOf(want)
		got, err := bundleOf(obj, noon.Add(100*time.Hour))
		if err != nil || string(got.Bundle) != string(want.CertificatePEM()) {
			t.Errorf("got %q, %v", got.Bundle, err)
		}
	}
}

// TestRefusedWriteIsNamed checks that a refused write of an object is reported in the place of how the object reads, and
// that nothing else is.
func TestRefusedWriteIsNamed(t *testing.T) {
	t.Parallel()
	problem := func(where, why string, cause error) trust.Problem {
		return trust.Problem{Where: where, Why: why, Cause: cause}
	}
	resource := schema.GroupResource{Resource: "configmaps"}
	forbidden, conflict := apierrors.NewForbidden(resource, "b", nil), apierrors.NewConflict(resource, "b", nil)
	read, refused := problem("ConfigMap a/b", "is not up to date", nil), problem("ConfigMap a/b", "grant it", forbidden)
	for name, test := range map[string]struct {
		last any
		want trust.Problem
	}{
		"nothing was written": {nil, read},
		"the write succeeded": {[]trust.Problem(nil), read},
		"refused":             {[]trust.Problem{problem("ConfigMap a/a", "", forbidden), refused}, refused},
		"another was refused": {[]trust.Problem{problem("ConfigMap a/c", "", forbidden)}, read},
		"another error":       {[]trust.Problem{problem("ConfigMap a/b", "x", conflict)}, read},
	} {
		r, obj := &Reconciler{}, sharing("cluster", nil)
		r.refusedWrites.Store("other", []trust.Problem{refused})
		if test.last != nil {
			r.refusedWrites.Store(obj.Name, test.last)
		}
		if got := r.whyUnpublished(obj, read); got.Error() != test.want.Error() {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestConditions checks two conditions. Trusted stays true for a signing CA that no probe asks about any more. Refused
// is unknown if no verifier can be asked.
func TestConditions(t *testing.T) {
	t.Parallel()
	const trusted, refused = v1alpha1.ConditionTrusted, v1alpha1.ConditionRefused
	for _, row := range []struct {
		name, kind string
		status     saStatus
		signer     string
		facts      Facts
		want       metav1.ConditionStatus
	}{
		{"a candidate that is not proven", trusted, preparing(), kubeletSigner, Facts{}, metav1.ConditionFalse},
		{"one that signs, and is not recognised now", trusted, prepared(), kubeletSigner, Facts{}, metav1.ConditionFalse},
		{"nobody is asked while the old one leaves", trusted, completing(true), kubeletSigner, Facts{}, metav1.ConditionTrue},
		{"nobody is asked", trusted, completed(), kubeletSigner, Facts{}, metav1.ConditionTrue},
		{"all refuse it", refused, completing(true), clientSigner, Facts{Answers: Answers{RetiringRefused: proven}}, metav1.ConditionTrue},
		{"not all were asked", refused, completing(true), clientSigner, Facts{}, metav1.ConditionFalse},
		{"it is another authority's too", refused, completing(true), clientSigner, Facts{Sharing: []string{"other"}}, metav1.ConditionUnknown},
		{"those who verify can't be asked", refused, completing(true), servingSigner, Facts{}, metav1.ConditionUnknown},
		{"clients used it", refused, completing(true), servingSigner, Facts{RetiringSigners: []string{clientSigner}}, metav1.ConditionFalse},
	} {
		obj := &v1alpha1.SigningAuthority{Status: row.status}
		obj.Spec.Signers, row.facts.Now = []string{row.signer}, noon
		describe(obj, row.facts)
		if got := meta.FindStatusCondition(obj.Status.Conditions, row.kind); got == nil || got.Status != row.want {
			t.Errorf("%s: %+v, want %s", row.name, got, row.want)
		}
	}
}

// TestSigningKeyIsLostWhileCompleting checks that no server is asked without the signing pair, and that the status says
// which CA extension-apiserver-authentication holds.
func TestSigningKeyIsLostWhileCompleting(t *testing.T) {
	t.Parallel()
	obj := sharing("cluster", nil, clientSigner)
	obj.Status.Retiring, obj.Status.UnpublishedAt = &v1alpha1.CAStatus{Certificate: frontCA}, at(0)
	o := &observation{secret: &caSecret{retiring: newCA(t, day)}}
	if err := newCluster(nil).reconciler.findHolders(t.Context(), obj, o); err != nil || !o.Kept {
		t.Errorf("the retiring CA is not found: %+v, error %v", o.Answers, err)
	}
}

// TestAnswersAboutOtherCAs checks that answers about another CA do not count. The Secret may change while API servers
// are asked.
func TestAnswersAboutOtherCAs(t *testing.T) {
	t.Parallel()
	asked, other := newCA(t, day), newCA(t, day)
	obj := sharing("cluster", asked, clientSigner)
	obj.Status.Phase = v1alpha1.Preparing
	verified := &observation{secret: &caSecret{candidate: asked}}
	verified.Candidate = proven
	for name, test := range map[string]struct {
		candidate *ca.Authority
		sharing   []string
		verified  *observation
		want      bool
	}{
		"the same candidate":           {asked, nil, verified, true},
		"another candidate":            {other, nil, verified, false},
		"another authority needs it":   {asked, []string{"other"}, verified, false},
		"nothing was asked, as in New": {asked, nil, nil, false},
	} {
		seen := &observation{secret: &caSecret{candidate: test.candidate}, Facts: Facts{Sharing: test.sharing}}
		if reconciler().useAnswers(obj, seen, test.verified); seen.Candidate.Proven != test.want {
			t.Errorf("%s: used %t, want %t", name, seen.Candidate.Proven, test.want)
		}
	}
}
