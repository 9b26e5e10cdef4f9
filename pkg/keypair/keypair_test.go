package keypair

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
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
	w.Clock, w.Recorder, w.woken = w.clock, w.recorder, w.Subscribe()
	return w
}

// load offers a CA, and refuse says that there is none.
func (w *world) load(of root) { w.Load(of.cert, of.key, nil) }

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
	expect.Equal(t, step, state, want)
	expect.Equal(t, step+": Events", w.told(), told)
	if expect.Equal(t, step+": wakes", len(w.woken) > 0, wakes); len(w.woken) > 0 {
		<-w.woken
	}
}

// TestKeyPair offers one candidate after the other.
func TestKeyPair(t *testing.T) {
	w := newWorld(secret)
	one, two, future := newRoot(day), newRoot(2*day), newRoot(2*day)
	const (
		refused  = "Secret ns/ca can't be used: "
		noCert   = refused + "no PEM block of type CERTIFICATE found"
		noRoot   = refused + "ca.crt: it holds no certificate: remove it, or correct its PEM"
		half     = refused + "the private key does not match any of the 1 certificate(s)"
		oneEnded = refused + `the signing certificate has expired: "CN=CA" expired at 2026-03-02T12:00:00Z`
		twoEnded = refused + `the signing certificate has expired: "CN=CA" expired at 2026-03-03T12:00:00Z`
		early    = refused + `the signing certificate "CN=CA" is not valid before 2026-03-01T11:00:00Z`
		noSecret = "Secret ns/ca does not exist"
		stays    = "; the last good CA stays in use"
	)
	loaded := func(of root, end string) string {
		return "Normal CALoaded signing with key " + of.id + " until " + end + "T12:00:00Z"
	}
	load := func(of root) func() { return func() { w.load(of) } }
	at := func(time time.Duration, of root) func() {
		return func() {
			w.clock.SetTime(now.Add(time))
			w.load(of)
		}
	}
	missing := func() { w.refuse(noSecret) }
	bad := func() { w.Load(nil, one.key, nil) }
	for _, step := range []struct {
		what  string
		do    func()
		at    time.Duration
		want  string
		told  string
		wakes bool
	}{
		{"at first", func() {}, 0, "CAMissing: Secret ns/ca has not been read yet", "", false},
		{"no Secret", missing, 0, "CAMissing: " + noSecret, "Warning CAMissing " + noSecret, false},
		{"an empty one", bad, 0, "CAInvalid: " + noCert, "Warning CAInvalid " + noCert, false},
		{"a good one", load(one), 0, one.id, loaded(one, "2026-03-02"), true},
		{"the same", load(root{cert: bytes.Clone(one.cert), key: bytes.Clone(one.key)}), 0, one.id, "", false},
		{"a bad one", bad, 0, one.id, "Warning CAInvalid " + noCert + stays, false},
		{"the same with an empty ca.crt", func() { w.Load(one.cert, one.key, []byte{}) }, 0, one.id, "Warning CAInvalid " + noRoot + stays, false},
		{"the same with itself", func() { w.Load(one.cert, one.key, one.cert) }, 0, one.id, loaded(one, "2026-03-02"), true},
		{"half a new one", load(root{cert: two.cert, key: one.key}), 0, one.id, "Warning CAInvalid " + half + stays, false},
		{"deleted", missing, 0, one.id, "Warning CAMissing " + noSecret + stays, false},
		{"another one", load(two), 0, two.id, loaded(two, "2026-03-03"), true},
		{"one that has expired", at(day, one), day, two.id, "Warning CAExpired " + oneEnded + stays, false},
		{"expired while in use", func() {}, 2 * day, "CAExpired: " + twoEnded + "; its replacement: " + oneEnded, "", false},
		{"looked at again then", at(2*day, two), 2 * day, "CAExpired: " + twoEnded, "Warning CAExpired " + twoEnded, false},
		{"one that is not yet valid", at(-2*time.Hour, future), 0, two.id, "Warning CAInvalid " + early, false},
		{"now it is", at(0, future), 0, future.id, loaded(future, "2026-03-03"), true},
	} {
		step.do()
		w.check(t, step.what, w.state(now.Add(step.at)), step.want, step.told, step.wakes)
	}
}

// TestFiles changes the files one by one. The running source finds a change, and ends with its manager.
func TestFiles(t *testing.T) {
	root, next, folder := newRoot(time.Hour), newRoot(time.Hour), t.TempDir()
	files := Files{Cert: filepath.Join(folder, "tls.crt"), Key: filepath.Join(folder, "tls.key")}
	const noFile, noKey = ": no such file or directory", "no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY"
	name := "files " + files.Cert + " and " + files.Key
	replace := func(file string, data []byte) {
		expect.NoError(t, errors.Join(os.WriteFile(file+".new", data, 0o600), os.Rename(file+".new", file)))
	}
	w := newWorld(files)
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "CAMissing: " + name + ": open " + files.Cert + noFile + "\nopen " + files.Key + noFile},
		{func() { replace(files.Cert, root.cert) }, "CAMissing: " + name + ": open " + files.Key + noFile},
		{func() { replace(files.Key, nil) }, "CAInvalid: " + name + " can't be used: " + noKey},
		{func() { replace(files.Key, root.key) }, root.id},
		{func() { replace(files.Cert, []byte("half")) }, root.id},
		{func() { _ = os.Remove(files.Key) }, root.id},
	} {
		step.do()
		files.load(w.KeyPair)
		expect.Equal(t, "state", w.state(now), step.want)
	}
	unreadable := newWorld(Files{Cert: folder, Key: files.Cert})
	Files{Cert: folder, Key: files.Cert}.load(unreadable.KeyPair)
	if got := unreadable.state(now); !strings.HasSuffix(got, "can't be read: read "+folder+": is a directory") {
		t.Errorf("a folder: %s", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- files.poll(ctx, w.KeyPair) }()
	<-w.woken // of the first CA
	replace(files.Cert, next.cert)
	replace(files.Key, next.key)
	<-w.woken
	expect.Equal(t, "changed", w.state(now), next.id)
	cancel()
	expect.Error(t, "stopped", <-stopped, "")
}

// leading returns a world of the leader, for those signers. elect makes it the leader.
func leading(signers ...string) (w *world, elect func()) {
	w = newWorld(secret)
	elected := make(chan struct{})
	w.elected, w.Signers = elected, signers
	return w, func() { close(elected) }
}

// TestTheEndOfACAIsForetold follows a CA to its end. Every candidate is offered twice, and each warning is told once, by the
// leader only. After a restart, only the current step is told. Another CA has its own steps.
func TestTheEndOfACAIsForetold(t *testing.T) {
	w, elect := leading("example.com/signer")
	elect()
	old, next := newRoot(100*day), newRoot(200*day)
	const end = "2026-06-09T12:00:00Z"
	ends := func(days string) string {
		return "Warning CAExpiring the signing CA with key " + old.id + " expires in less than " + days + " days, at " + end +
			", together with all certificates that it has signed: replace it"
	}
	const invalid = "Warning CAInvalid Secret ns/ca can't be used: no PEM block of type CERTIFICATE found; the last good CA stays in use"
	const expired = `Warning CAExpired Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at ` + end
	bad := root{key: old.key}
	for _, step := range []struct {
		left    time.Duration // of the old CA
		offered root
		want    string
	}{
		{90*day + 1, old, ""},
		{90 * day, old, ends("90")},
		{30 * day, old, ends("30")},
		{20 * day, bad, invalid},
		{7 * day, bad, ends("7")},
		{0, old, expired},
		{-day, next, ""},
	} {
		w.clock.SetTime(now.Add(100*day - step.left))
		w.load(step.offered)
		w.load(step.offered)
		expect.Equal(t, fmt.Sprintf("%s before the end", step.left), w.told("CALoaded"), step.want)
	}

	w, elect = leading()
	w.clock.SetTime(now.Add(80 * day)) // 20 days before the end
	w.load(old)
	expect.Equal(t, "told by a standby", w.told("CALoaded"), "")
	elect()
	for i, want := range []string{ends("30"), ""} {
		w.load([]root{old, next}[i])
		w.load([]root{old, next}[i])
		expect.Equal(t, "after a restart", w.told("CALoaded"), want)
	}
}

// TestSharingIsReported checks that a CA that serving certificates share is reported once per process.
func TestSharingIsReported(t *testing.T) {
	const client, custom = "kubernetes.io/kube-apiserver-client", "example.com/custom"
	for shared, signers := range map[string][]string{
		client + " and " + kubeletClient: {custom, client, kubeletClient, kubeletServing}, kubeletClient: {kubeletClient, kubeletServing},
		"none": {custom, kubeletServing}, "no serving at all": {client, kubeletClient},
	} {
		w, elect := leading(signers...)
		elect()
		want := ""
		if strings.Contains(shared, "/") {
			want = "Warning CAShared kubelet serving certificates share this CA with those of " + shared + ": a verifier that trusts this CA " +
				"accepts both, and distinguishes them only by their usages; use a separate CA for kubernetes.io/kubelet-serving"
		}
		for range 2 {
			w.load(newRoot(1000 * day))
			expect.Equal(t, shared, w.told("CALoaded"), want)
			want = ""
		}
	}
}

// maker is the leader's KeyPair, with an API server that holds one Secret, an audit log and an EventRecorder. Other calls than
// Create panic.
type maker struct {
	client.Client
	*world
	t      *testing.T
	secret Secret
	stored *corev1.Secret
	fault  error // of the next Create
	late   bool  // that Create has stored the Secret all the same
	events []string
	log    string // the file of the audit log
}

func newMaker(t *testing.T, name string) *maker {
	elected, source := make(chan struct{}), Secret{Namespace: "ns", Name: name}
	close(elected)
	m := &maker{world: newWorld(source), t: t, secret: source, log: filepath.Join(t.TempDir(), "audit.log")}
	m.KeyPair.Create, m.elected, m.client = &Creation{Lifetime: day}, elected, m
	m.Audit, m.Recorder = must(audit.Open(audit.Options{Path: m.log, MaxSize: 1})), m
	return m
}

// Eventf implements EventRecorder. Events with the same action and reason count as one.
func (m *maker) Eventf(_, _ runtime.Object, _, reason, action, note string, args ...any) {
	m.events = append(m.events, action+" "+reason+": "+fmt.Sprintf(note, args...))
}

// Create stores the Secret.
func (m *maker) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	if deadline, found := ctx.Deadline(); !found || time.Until(deadline) < 40*time.Second || ctx.Err() != nil {
		m.t.Errorf("the Secret is created until %s, error %v: a slow webhook would prevent it", deadline, ctx.Err())
	}
	fault := m.fault
	m.fault = nil
	switch {
	case fault != nil && !m.late:
		return fault
	case m.stored != nil:
		return apierrors.NewAlreadyExists(corev1.Resource("secrets"), "ca")
	}
	m.stored = obj.(*corev1.Secret)
	return fault
}

// look reads the Secret twice, as the source does, and creates it if that is needed. A manager that stops completes what it
// has begun.
func (m *maker) look() {
	stopping, stop := context.WithCancel(m.t.Context())
	stop()
	for range 2 {
		m.Offer(m.stored)
		if m.stored == nil {
			m.create(stopping, m.secret)
		}
	}
}

// expect checks the actions and reasons of the Events since the last call, and everything in the audit log.
func (m *maker) expect(events, records string) {
	m.t.Helper()
	var told, written []string
	for _, event := range m.events {
		if action, _, _ := strings.Cut(event, ":"); action != "Load CAExpiring" { // each CA here ends soon
			told = append(told, action)
		}
	}
	m.events = nil
	data, _ := os.ReadFile(m.log) // without a record there is no file
	for line := range strings.Lines(string(data)) {
		var record audit.Record
		_ = must(record, json.Unmarshal([]byte(line), &record))
		if record.Name != m.secret.String() || record.IssuerKeyID == "" || record.NotAfter.IsZero() || len(record.KeySHA256) != 64 {
			m.t.Errorf("record %s", line)
		}
		written = append(written, string(record.Event))
	}
	expect.Equal(m.t, "Events", strings.Join(told, ", "), events)
	expect.Equal(m.t, "audit log", strings.Join(written, ", "), records)
}

// TestCreateWhatIsMissing checks the Secret that is created, and that the CA is loaded from it. Another generation has another
// common name.
func TestCreateWhatIsMissing(t *testing.T) {
	names := map[string]bool{}
	for range 2 {
		m := newMaker(t, "a-name-that-is-rather-long-for-a-common-name.example.com")
		m.look()
		data := m.stored.Data
		expect.Equal(t, "type, number of keys and ca.crt", []any{m.stored.Type, len(data), string(data["ca.crt"])},
			[]any{corev1.SecretTypeTLS, 3, string(data["tls.crt"])})
		expect.Equal(t, "finalizers", m.stored.Finalizers, []string{Finalizer})
		loaded := must(ca.Load(data["tls.crt"], data["tls.key"], data["ca.crt"]))
		name := loaded.Certificate().Subject.CommonName
		if want := "csr-controller-manager:a-name-that-is-rather-long-for-a"; !strings.HasPrefix(name, want+":") || len(name) != len(want)+9 {
			t.Errorf("common name %s", name)
		}
		names[name] = true
		expect.Equal(t, "in use", m.state(now), loaded.KeyID())
		m.expect("Load CAMissing, Create CACreated, Load CALoaded", "CACreated")
	}
	expect.Equal(t, "different names", len(names), 2)
}

// TestCreateNothing checks that neither a standby nor the signer of a CA that is rotated creates a Secret, and that a Secret that
// can't be used stays unchanged, because it may belong to another owner.
func TestCreateNothing(t *testing.T) {
	standby, rotated, m := newMaker(t, "ca"), newMaker(t, "ca"), newMaker(t, "ca")
	standby.elected, rotated.guarded = nil, true
	standby.look()
	rotated.look()
	expect.Equal(t, "a standby creates a CA", standby.stored != nil, false)
	expect.Equal(t, "the signer of a CA that is rotated creates a CA", rotated.stored != nil, false)
	m.stored = tlsSecret(root{})
	m.look()
	expect.True(t, len(m.stored.Data["tls.crt"]) == 0, "it was overwritten")
	m.expect("Load CAInvalid", "")
}

// TestCreateNothingWhileInUse checks that a deleted Secret is not replaced by another CA while its CA signs. A Secret
// whose CA has expired is replaced.
func TestCreateNothingWhileInUse(t *testing.T) {
	m := newMaker(t, "ca")
	m.look()
	first := m.state(now)
	m.events, m.stored = nil, nil
	m.look()
	const want = "Load CAMissing: Secret ns/ca does not exist: its CA is still in use, so no new CA is created; restore the Secret; " +
		"the last good CA stays in use"
	expect.Equal(t, "told", strings.Join(m.events, "\n"), want)
	right := m.CheckClock
	m.CheckClock = func(context.Context) (time.Time, error) { return now, nil }
	m.clock.SetTime(now.Add(25 * time.Hour)) // the clock of this machine is wrong, and is set right while a CA is created
	m.create(t.Context(), m.secret)
	expect.True(t, m.stored == nil, "made another one")
	m.CheckClock = right
	m.look()
	if again := m.state(m.clock.Now()); m.stored == nil || again == first {
		t.Errorf("after the end: %s", again)
	}
}

// TestCreateFaults checks what is told and recorded if the Secret can't be created, and that the CA in the Secret signs in the end.
// A wrong clock creates none.
func TestCreateFaults(t *testing.T) {
	failed := func(fault error) func(*maker) { return func(m *maker) { m.fault = fault } }
	forbidden := apierrors.NewForbidden(corev1.Resource("secrets"), "ca", errors.New("no right"))
	const again = "Load CAMissing, Create CAMissing, Create CACreated, Load CALoaded"
	for name, test := range map[string]struct {
		first           func(m *maker) // before the first attempt
		cause           string         // in the Event of the failed attempt
		events, records string
	}{
		"a fault": {failed(errors.New("down")), "down", again, "CACreated, Uncertain, CACreated"},
		"refused": {failed(forbidden), `secrets "ca" is forbidden: no right`, again, "CACreated, Discarded, CACreated"},
		"stored, but without a response": {func(m *maker) { m.fault, m.late = errors.New("no answer"), true }, "no answer",
			"Load CAMissing, Create CAMissing, Load CALoaded", "CACreated, Uncertain"},
		"another writer is faster": {func(m *maker) { m.stored = tlsSecret(newRoot(time.Hour)) }, "",
			"Load CAMissing, Load CALoaded", "CACreated, Uncertain"},
		"a wrong clock": {func(m *maker) {
			m.CheckClock = func(context.Context) (time.Time, error) { return now, errors.New("a day ahead") }
		}, "a day ahead", again, "CACreated"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMaker(t, "ca")
			right := m.CheckClock
			m.Offer(nil)
			test.first(m)
			m.create(t.Context(), m.secret)
			told, want := strings.Join(m.events, "\n"), "Create CAMissing: Secret ns/ca does not exist and can't be created: "+test.cause
			expect.Equal(t, fmt.Sprintf("told %q, with %q", told, want), test.cause != "", strings.HasSuffix(told, want))
			m.CheckClock = right
			m.look()
			m.Offer(m.stored)
			m.expect(test.events, test.records)
			expect.Equal(t, "in use", m.state(now), must(ca.Load(m.stored.Data["tls.crt"], m.stored.Data["tls.key"], nil)).KeyID())
		})
	}
}

// TestStagedRenewal gives a KeyPair its CA and a renewal for the same key that is not valid yet. The CA signs until its end, and the
// renewal from its beginning, without a new Secret.
func TestStagedRenewal(t *testing.T) {
	link := newLink("staged", nil)
	renewal := *link.cert
	renewal.NotBefore, renewal.NotAfter = link.cert.NotAfter.Add(-time.Minute), link.cert.NotAfter.Add(time.Hour)
	der := must(x509.CreateCertificate(rand.Reader, &renewal, &renewal, link.key.Public(), link.key))
	certs := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), link.pem...)
	w := newWorld(secret)
	w.Signers = []string{"example.com/staged"}
	for after, want := range map[time.Duration]time.Time{0: link.cert.NotAfter, 2*time.Hour - time.Second: renewal.NotAfter, 2 * time.Hour: renewal.NotAfter} {
		w.clock.SetTime(now.Add(after))
		w.Load(certs, link.keyPEM, nil)
		authority, err := w.Authority(w.clock.Now())
		expect.Error(t, fmt.Sprint("after ", after), err, "")
		expect.Equal(t, fmt.Sprint("the end after ", after), authority.NotAfter(w.clock.Now()), want)
		var metric dto.Metric
		err = caNotAfter.WithLabelValues("example.com/staged").Write(&metric)
		expect.Error(t, "the metric", err, "")
		expect.Equal(t, fmt.Sprint("the metric after ", after), metric.GetGauge().GetValue(), float64(want.Unix()))
	}
	w.clock.SetTime(renewal.NotAfter)
	w.Load(certs, link.keyPEM, nil)
	_, err := w.Authority(w.clock.Now())
	expect.Error(t, "after the end of both", err, `Secret ns/ca can't be used: the signing certificate has expired: "CN=staged" expired at `+
		renewal.NotAfter.Format(time.RFC3339))
}
