package keypair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

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
	m.Audit, m.Reporter = must(audit.Open(audit.Options{Path: m.log, MaxSize: 1})), report.New(m, m.clock)
	return m
}

// Eventf implements EventRecorder. Events with the same action and reason count as one.
func (m *maker) Eventf(_, _ runtime.Object, _, reason, action, note string, args ...any) {
	m.events = append(m.events, action+" "+reason+": "+fmt.Sprintf(note, args...))
}

// Create stores the Secret.
func (m *maker) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	if deadline, found := ctx.Deadline(); found && time.Until(deadline) < 40*time.Second || ctx.Err() != nil {
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
			m.create(stopping, m.secret, m.clock.Now())
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
	if got := strings.Join(told, ", "); got != events {
		m.t.Errorf("Events %s, want %s", got, events)
	}
	if got := strings.Join(written, ", "); got != records {
		m.t.Errorf("audit log %s, want %s", got, records)
	}
}

// TestCreateWhatIsMissing checks the Secret that is created, and that the CA is loaded from it. Another generation has another
// common name.
func TestCreateWhatIsMissing(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for range 2 {
		m := newMaker(t, "a-name-that-is-rather-long-for-a-common-name.example.com")
		m.look()
		data := m.stored.Data
		if m.stored.Type != corev1.SecretTypeTLS || len(data) != 3 || string(data["ca.crt"]) != string(data["tls.crt"]) {
			t.Errorf("Secret of type %s with %d keys", m.stored.Type, len(data))
		}
		if strings.Join(m.stored.Finalizers, " ") != Finalizer {
			t.Errorf("the only copy of the CA has the finalizers %q", m.stored.Finalizers)
		}
		loaded := must(ca.Load(data["tls.crt"], data["tls.key"], data["ca.crt"]))
		name := loaded.Certificate().Subject.CommonName
		if want := "csr-controller-manager:a-name-that-is-rather-long-for-a"; !strings.HasPrefix(name, want+":") || len(name) != len(want)+9 {
			t.Errorf("common name %s", name)
		}
		names[name] = true
		if got := m.state(now); got != loaded.KeyID() {
			t.Errorf("in use: %s, want %s", got, loaded.KeyID())
		}
		m.expect("Load CAMissing, Create CACreated, Load CALoaded", "CACreated")
	}
	if len(names) != 2 {
		t.Error("twice the same name")
	}
}

// TestCreateNothing checks that neither a standby nor the signer of a CA that is rotated creates a Secret, and that a Secret that
// can't be used stays unchanged, because it may belong to another owner.
func TestCreateNothing(t *testing.T) {
	t.Parallel()
	standby, rotated, m := newMaker(t, "ca"), newMaker(t, "ca"), newMaker(t, "ca")
	standby.elected, rotated.guarded = nil, true
	standby.look()
	rotated.look()
	if standby.stored != nil || rotated.stored != nil {
		t.Errorf("a standby creates a CA: %t, the signer of a CA that is rotated: %t", standby.stored != nil, rotated.stored != nil)
	}
	m.stored = tlsSecret(root{})
	m.look()
	if len(m.stored.Data["tls.crt"]) > 0 {
		t.Error("it was overwritten")
	}
	m.expect("Load CAInvalid", "")
}

// TestCreateNothingWhileInUse checks that a deleted Secret is not replaced by another CA while its CA signs. A Secret
// whose CA has expired is replaced.
func TestCreateNothingWhileInUse(t *testing.T) {
	t.Parallel()
	m := newMaker(t, "ca")
	m.look()
	first := m.state(now)
	m.events, m.stored = nil, nil
	m.look()
	const want = "Load CAMissing: Secret ns/ca does not exist: its CA is still in use, so no new CA is created; restore the Secret; " +
		"the last good CA stays in use"
	if got := strings.Join(m.events, "\n"); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	m.create(t.Context(), m.secret, now)
	if m.stored != nil {
		t.Error("made another one")
	}
	m.clock.SetTime(now.Add(25 * time.Hour))
	m.look()
	if again := m.state(m.clock.Now()); m.stored == nil || again == first {
		t.Errorf("after the end: %s", again)
	}
}

// TestCreateFaults checks what is told and recorded if the Secret can't be created, and that the CA in the Secret signs in the end.
// A wrong clock creates none.
func TestCreateFaults(t *testing.T) {
	t.Parallel()
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
		"a wrong clock": {func(m *maker) { m.CheckClock = func(context.Context) error { return errors.New("a day ahead") } }, "a day ahead",
			again, "CACreated"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMaker(t, "ca")
			m.Offer(nil)
			test.first(m)
			m.create(t.Context(), m.secret, now)
			told, want := strings.Join(m.events, "\n"), "Create CAMissing: Secret ns/ca does not exist and can't be created: "+test.cause
			if (test.cause != "") != strings.HasSuffix(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
			m.CheckClock = nil
			m.look()
			m.Offer(m.stored)
			m.expect(test.events, test.records)
			if stored := must(ca.Load(m.stored.Data["tls.crt"], m.stored.Data["tls.key"])); m.state(now) != stored.KeyID() {
				t.Errorf("in use: %s, want %s", m.state(now), stored.KeyID())
			}
		})
	}
}
