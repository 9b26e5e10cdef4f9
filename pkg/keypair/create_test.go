package keypair

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// maker is a creator with its environment.
type maker struct {
	*creator
	live     client.Reader
	recorder *events.FakeRecorder
	file     string
	fault    error // of the next Create
	stored   bool  // the failed Create has stored the Secret all the same
}

func newMaker(t *testing.T, name string, objects ...client.Object) *maker {
	t.Helper()
	secret := Secret{Namespace: "ns", Name: name}
	pair, _, recorder := newPair(secret)
	pair.Create = &Creation{Lifetime: 24 * time.Hour}
	m := &maker{recorder: recorder, file: filepath.Join(t.TempDir(), "audit.log")}
	log, err := audit.Open(audit.Options{Path: m.file, MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.CreateOption) error {
			if deadline, found := ctx.Deadline(); found && time.Until(deadline) < 40*time.Second || ctx.Err() != nil {
				t.Errorf("the Secret is created until %s, error %v: a slow webhook would prevent it", deadline, ctx.Err())
			}
			fault := m.fault
			m.fault = nil
			if fault != nil && !m.stored {
				return fault
			}
			return errors.Join(fault, c.Create(ctx, obj, options...))
		},
	}).Build()
	pair.Audit = log
	m.creator, m.live = &creator{secret: secret, pair: pair, client: c}, c
	return m
}

// read offers the Secret as the source does.
func (m *maker) read(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	err := m.live.Get(t.Context(), types.NamespacedName(m.secret), secret)
	switch {
	case apierrors.IsNotFound(err):
		secret = nil
	case err != nil:
		t.Fatal(err)
	}
	m.pair.Offer(secret)
}

// look reads the Secret as the source does, and creates it if that is needed.
func (m *maker) look(t *testing.T) *corev1.Secret {
	t.Helper()
	for range 2 {
		m.read(t)
		if m.pair.absent.Swap(false) {
			stopping, stop := context.WithCancel(t.Context())
			stop() // a manager that stops completes what it has begun
			m.create(stopping, m.pair.Clock.Now())
		}
	}
	secret := &corev1.Secret{}
	if err := client.IgnoreNotFound(m.live.Get(t.Context(), client.ObjectKey(m.secret), secret)); err != nil {
		t.Fatal(err)
	}
	return secret
}

// audited returns the events in the audit log.
func (m *maker) audited(t *testing.T) []audit.Event {
	t.Helper()
	data, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	var found []audit.Event
	for line := range strings.Lines(string(data)) {
		var record audit.Record
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		if record.Name != "ns/"+m.secret.Name || record.IssuerKeyID == "" || record.NotAfter == nil || len(record.KeySHA256) != 64 {
			t.Errorf("record %s", line)
		}
		found = append(found, record.Event)
	}
	return found
}

// reasons returns the reasons of the Events since the last call.
func (m *maker) reasons() []string {
	var found []string
	for _, each := range taken(m.recorder) {
		found = append(found, strings.Fields(each)[1])
	}
	return found
}

func TestCreateWhatIsMissing(t *testing.T) {
	t.Parallel()
	m := newMaker(t, "a-name-that-is-rather-long-for-a-common-name.example.com")
	secret := m.look(t)
	if secret.Type != corev1.SecretTypeTLS || len(secret.Data) != 3 || string(secret.Data["ca.crt"]) != string(secret.Data["tls.crt"]) {
		t.Errorf("Secret of type %s with %d keys", secret.Type, len(secret.Data))
	}
	loaded, err := ca.Load(secret.Data["tls.crt"], secret.Data["tls.key"], secret.Data["ca.crt"])
	if err != nil {
		t.Fatal(err)
	}
	name := loaded.Certificate().Subject.CommonName
	if want := "csr-controller-manager:a-name-that-is-rather-long-for-a"; !strings.HasPrefix(name, want+":") || len(name) != len(want)+9 {
		t.Errorf("common name %s", name)
	}
	if got := state(m.pair, now); got != loaded.KeyID() {
		t.Errorf("in use: %s, want %s", got, loaded.KeyID())
	}
	if diff := cmp.Diff([]string{"CAMissing", "CACreated", "CALoaded"}, m.reasons()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]audit.Event{"CACreated"}, m.audited(t)); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	// Another generation has another common name.
	again := newMaker(t, m.secret.Name)
	if other := again.look(t); string(other.Data["tls.crt"]) == string(secret.Data["tls.crt"]) {
		t.Error("twice the same")
	} else if certs, err := ca.ParseCertificates(other.Data["tls.crt"]); err != nil || certs[0].Subject.CommonName == name {
		t.Errorf("twice the same name, error %v", err)
	}
}

// TestCreateLeavesABadSecret checks that a Secret that can't be used stays unchanged, because it may belong to
// another owner.
func TestCreateLeavesABadSecret(t *testing.T) {
	t.Parallel()
	bad := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ca"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": nil, "tls.key": nil}}
	m := newMaker(t, "ca", bad)
	if secret := m.look(t); len(secret.Data["tls.crt"]) > 0 || len(m.audited(t)) > 0 {
		t.Error("it was overwritten, or another CA was made")
	}
	if diff := cmp.Diff([]string{"CAInvalid"}, m.reasons()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// TestCreateNothingWhileInUse checks that a deleted Secret is not replaced by another CA while its CA signs. A Secret
// whose CA has expired is replaced.
func TestCreateNothingWhileInUse(t *testing.T) {
	t.Parallel()
	m := newMaker(t, "ca")
	first := m.look(t)
	m.reasons()
	if !slices.Contains(first.Finalizers, Finalizer) {
		t.Errorf("the only copy of the CA has the finalizers %q", first.Finalizers)
	}
	released := first.DeepCopy()
	released.Finalizers = nil
	if err := m.client.Update(t.Context(), released); err != nil {
		t.Fatal(err)
	}
	if err := m.client.Delete(t.Context(), released); err != nil {
		t.Fatal(err)
	}
	if secret := m.look(t); len(secret.Data) > 0 {
		t.Error("made another one")
	}
	const want = "Warning CAMissing Secret ns/ca does not exist: its CA is still in use, so no new CA is created; restore the Secret; the last good CA stays in use"
	if diff := cmp.Diff([]string{want}, taken(m.recorder)); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	m.create(t.Context(), now) // a notification from before
	m.pair.Clock.(interface{ SetTime(time.Time) }).SetTime(now.Add(25 * time.Hour))
	if secret := m.look(t); string(secret.Data["tls.crt"]) == string(first.Data["tls.crt"]) || len(secret.Data) != 3 {
		t.Error("made none after the end")
	}
}

// actions is an EventRecorder that notes the actions. Events with the same action and reason count as one.
type actions struct {
	*events.FakeRecorder
	told []string
}

func (a *actions) Eventf(object, related runtime.Object, kind, reason, action, note string, args ...any) {
	a.told = append(a.told, action+" "+reason)
	a.FakeRecorder.Eventf(object, related, kind, reason, action, note, args...)
}

// TestNoCAIsCreatedByAWrongClock checks that the CA is created when the clock is right again.
func TestNoCAIsCreatedByAWrongClock(t *testing.T) {
	t.Parallel()
	m := newMaker(t, "ca")
	wrong := errors.New("the clock is a day ahead")
	m.pair.CheckClock = func(context.Context) error { return wrong }
	m.read(t)
	m.create(t.Context(), now)
	const want = "Warning CAMissing Secret ns/ca does not exist and can't be created: the clock is a day ahead"
	if told := taken(m.recorder); len(told) != 2 || told[1] != want || len(m.audited(t)) > 0 {
		t.Errorf("told %q, audit log %q", told, m.audited(t))
	}
	wrong = nil
	m.look(t)
	if diff := cmp.Diff([]audit.Event{"CACreated"}, m.audited(t)); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
}

func TestCreateFaults(t *testing.T) {
	t.Parallel()
	m := newMaker(t, "ca")
	told := &actions{FakeRecorder: m.recorder}
	m.pair.Reporter = report.New(told, clock.RealClock{})
	m.fault = errors.New("forbidden")
	m.look(t) // the next attempt succeeds
	const want = "Warning CAMissing Secret ns/ca does not exist and can't be created: forbidden"
	if told := taken(m.recorder); len(told) != 3 || told[1] != want || !strings.HasPrefix(told[2], "Normal CACreated ") {
		t.Errorf("told %q", told)
	}
	if diff := cmp.Diff([]string{"Load CAMissing", "Create CAMissing", "Create CACreated"}, told.told); diff != "" {
		t.Errorf("actions and reasons (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]audit.Event{"CACreated", "Uncertain", "CACreated"}, m.audited(t)); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	// The API server refuses the Secret for certain.
	m = newMaker(t, "ca")
	m.fault = apierrors.NewForbidden(corev1.Resource("secrets"), "ca", errors.New("no right"))
	m.look(t)
	if diff := cmp.Diff([]audit.Event{"CACreated", "Discarded", "CACreated"}, m.audited(t)); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	// Stored, but without a response.
	m = newMaker(t, "ca")
	m.fault, m.stored = errors.New("no answer"), true
	m.read(t)
	m.create(t.Context(), now)
	m.look(t)
	if diff := cmp.Diff([]string{"CAMissing", "CAMissing", "CALoaded"}, m.reasons()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]audit.Event{"CACreated", "Uncertain"}, m.audited(t)); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
	// Another writer is faster.
	root := newRoot(t, time.Hour)
	m = newMaker(t, "ca")
	m.read(t)
	theirs := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ca"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": root.cert, "tls.key": root.key},
	}
	if err := m.client.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	m.create(t.Context(), now)
	m.look(t)
	if got := state(m.pair, now); got != keyID(t, root) {
		t.Errorf("in use: %s", got)
	}
	if diff := cmp.Diff([]audit.Event{"CACreated", "Uncertain"}, m.audited(t)); diff != "" {
		t.Errorf("audit log (-want +got):\n%s", diff)
	}
}
