package probe

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// verifier is an API server that trusts some CAs, by its own clock. The header Date of its answers does not show its clock.
type verifier struct {
	*server
	target Target

	mu    sync.Mutex
	cas   []*ca.Authority
	ahead time.Duration
	hook  func() // runs before each answer
}

func newVerifier(t *testing.T, clock *clocktesting.FakeClock, cas ...*ca.Authority) *verifier {
	t.Helper()
	v := &verifier{cas: cas, hook: func() {}}
	server, cluster := serve(t, func(shown []*x509.Certificate) (int, any) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.hook()
		pool := x509.NewCertPool()
		for _, one := range v.cas {
			pool.AddCert(one.Certificate())
		}
		client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if _, err := shown[0].Verify(x509.VerifyOptions{Roots: pool, CurrentTime: clock.Now().Add(v.ahead), KeyUsages: client}); err != nil {
			return 401, statusOf(401, metav1.StatusReasonUnauthorized)
		}
		return 201, reviewFor(shown[0].Subject.CommonName, fmt.Sprintf("X509SHA256=%x", sha256.Sum256(shown[0].Raw)))
	})
	server.now = clock.Now
	v.server, v.target = server, Target{Name: server.Listener.Addr().String(), Cluster: cluster}
	return v
}

// rig is a Prober with two verifiers, which trust the CA new.
type rig struct {
	*Prober
	clock         *clocktesting.FakeClock
	old, new      *ca.Authority
	first, second *verifier
	targets       []Target
}

func newRig(t *testing.T) *rig {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	r := &rig{Prober: &Prober{Clock: clock}, clock: clock, old: authority(t, time.Hour), new: authority(t, time.Hour)}
	r.first, r.second = newVerifier(t, clock, r.new), newVerifier(t, clock, r.new)
	r.targets = []Target{r.first.target, r.second.target}
	return r
}

func (r *rig) recognise(t *testing.T) Round { return r.Ask(t.Context(), r.new, nil, r.targets) }

func (r *rig) refuse(t *testing.T) Round { return r.Ask(t.Context(), r.old, r.new, r.targets) }

func (r *rig) want(t *testing.T, round Round, first, second Trust, evidence string) {
	t.Helper()
	if !round.At.Equal(r.clock.Now()) || len(round.Answers) != 2 {
		t.Errorf("the round is %+v", round)
	}
	one, two := round.Answers[r.targets[0].Name], round.Answers[r.targets[1].Name]
	if one.Trust != first || two.Trust != second || !strings.Contains(two.Evidence, evidence) {
		t.Errorf("got %+v, want %s, and %s with %q", round.Answers, first, second, evidence)
	}
}

// TestRounds checks what a round proves. A refusal counts only if the sole possible reason is that the CA is not
// trusted. A CA that is about to expire is not probed.
func TestRounds(t *testing.T) {
	t.Parallel()
	recognise, refuse := (*rig).recognise, (*rig).refuse
	both := func(r *rig) { r.second.cas = []*ca.Authority{r.old, r.new} }
	wrong := func(by time.Duration) func(*rig) { return func(r *rig) { both(r); r.second.ahead = by } }
	late := func(r *rig) { r.clock.Step(57 * time.Minute) }
	for name, test := range map[string]struct {
		ask           func(*rig, *testing.T) Round
		set           func(*rig)
		first, second Trust
		evidence      string
	}{
		"one trusts only the old CA":       {recognise, func(r *rig) { r.second.cas = []*ca.Authority{r.old} }, Recognised, Refused, "401"},
		"both trust the new CA":            {recognise, both, Recognised, Recognised, ""},
		"one is down":                      {recognise, func(r *rig) { r.second.Close() }, Recognised, Unknown, "no conclusive answer"},
		"refused by all":                   {refuse, func(*rig) {}, Refused, Refused, "401"},
		"one still trusts it":              {refuse, both, Refused, Recognised, "knows the subject"},
		"one refuses everything":           {refuse, func(r *rig) { r.second.cas = nil }, Refused, Unknown, "that proves nothing"},
		"the clock of one is fast":         {refuse, wrong(6 * time.Minute), Refused, Unknown, "that proves nothing"},
		"the clock of one is slow":         {refuse, wrong(-6 * time.Minute), Refused, Unknown, "that proves nothing"},
		"a CA that ends is refused anyway": {refuse, late, Unknown, Unknown, "the CA itself expires at"},
		"our clock stands still": {refuse, func(r *rig) {
			both(r)
			r.second.hook = func() { r.second.ahead = 10 * time.Minute }
		}, Refused, Unknown, "that proves nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			test.set(r)
			r.want(t, test.ask(r, t), test.first, test.second, test.evidence)
			if test.first == Unknown && len(r.first.shown) > 0 {
				t.Errorf("%d certificates were shown", len(r.first.shown))
			}
		})
	}
}

// TestAnEndedCertificateIsNotShown asks for half an hour. The retiring certificate is never valid for less time than
// the other.
func TestAnEndedCertificateIsNotShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log, records := auditLog(t)
	r.Audit = log
	for range 45 {
		r.clock.Step(40 * time.Second)
		r.want(t, r.refuse(t), Refused, Refused, "")
		r.want(t, r.recognise(t), Recognised, Recognised, "")
		for _, all := range r.minted {
			for _, one := range all {
				left := one.NotAfter.Sub(r.clock.Now())
				if left < margin+2*timeout || one.NotAfter.After(all[0].NotAfter) || one.NotBefore.Before(all[0].NotBefore) {
					t.Fatalf("%s is left: %+v", left, all)
				}
			}
		}
	}
	if minted := strings.Count(string(records()), `"event":"TrustProbe"`); minted < 21 || minted > 36 {
		t.Errorf("%d certificates in half an hour, want three every three or four minutes, each with a record", minted)
	}
}

// TestALateAnswerDoesNotCount checks that an answer does not count if the certificate has expired by then. The server's
// header Date does not show that time has passed.
func TestALateAnswerDoesNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.second.hook = func() { r.clock.Step(5 * time.Minute) } // a machine that sleeps
	r.targets = r.targets[1:]
	for name, ask := range map[string]func(*testing.T) Round{"recognise": r.recognise, "refuse": r.refuse} {
		start := r.clock.Now()
		r.second.now = func() time.Time { return start }
		wants(t, name, ask(t).Answers[r.targets[0].Name], Unknown, "but the answer came at")
	}
}
