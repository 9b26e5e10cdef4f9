package probe

import (
	"cmp"
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
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
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
	r := &rig{Prober: &Prober{Now: clock.Now}, clock: clock, old: authority(time.Hour), new: authority(time.Hour)}
	r.first, r.second = newVerifier(t, clock, r.new), newVerifier(t, clock, r.new)
	r.targets = []Target{r.first.target, r.second.target}
	return r
}

func (r *rig) recognise(t *testing.T) map[string]Answer {
	return r.Ask(t.Context(), r.new, nil, r.targets)
}

func (r *rig) refuse(t *testing.T) map[string]Answer {
	return r.Ask(t.Context(), r.old, r.new, r.targets)
}

func (r *rig) want(t *testing.T, answers map[string]Answer, first, second Trust, evidence string) {
	t.Helper()
	expect.Equal(t, "number of answers", len(answers), 2)
	one, two := answers[r.targets[0].Name], answers[r.targets[1].Name]
	expect.True(t, one.Trust == first && two.Trust == second && strings.Contains(two.Evidence, evidence),
		"got %+v, want %s, and %s with %q", answers, first, second, evidence)
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
		ask           func(*rig, *testing.T) map[string]Answer
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
			expect.True(t, test.first != Unknown || len(r.first.shown) == 0, "%d certificates were shown", len(r.first.shown))
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
	for name, ask := range map[string]func(*testing.T) map[string]Answer{"recognise": r.recognise, "refuse": r.refuse} {
		start := r.clock.Now()
		r.second.now = func() time.Time { return start }
		wants(t, name, ask(t)[r.targets[0].Name], Unknown, "but the answer came at")
	}
}

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const every = 10 * time.Second

var said = map[rune]Answer{'+': {Recognised, "knows it"}, '-': {Refused, "says 401"}, '?': {Unknown, "times out"}}

// answers returns the answers of a round: one letter for each server, and a space for a server that is not present.
func answers(letters string) map[string]Answer {
	round := map[string]Answer{}
	for i, letter := range letters {
		name := string(rune('a' + i))
		if letter != ' ' {
			round[name] = said[letter]
		}
	}
	return round
}

// TestTracker checks when each server has given the wanted answer for long enough, and what is missing otherwise.
func TestTracker(t *testing.T) {
	t.Parallel()
	type round struct {
		at      time.Time
		answers map[string]Answer
	}
	// each returns one round per interval.
	each := func(letters ...string) (rounds []round) {
		for i, one := range letters {
			rounds = append(rounds, round{start.Add(time.Duration(i) * every), answers(one)})
		}
		return rounds
	}
	// at returns rounds of one server, that long after the start.
	at := func(times ...time.Duration) (rounds []round) {
		for _, after := range times {
			rounds = append(rounds, round{start.Add(after), answers("+")})
		}
		return rounds
	}
	for name, test := range map[string]struct {
		want    Trust
		settle  time.Duration
		rounds  []round
		missing string // empty if proven
	}{
		"there is no server":      {settle: every, rounds: each("+", "+", "", "", ""), missing: "no API server has been asked"},
		"once":                    {rounds: each("+"), missing: "a: the wanted answer was seen 1 time(s), for 0s of 0s"},
		"twice, without settling": {rounds: each("+", "+")},
		"long enough":             {settle: 3 * every, rounds: each("++", "++", "++", "++")},
		"not long enough": {settle: 3*every + 1, rounds: each("++", "++", "++", "++"),
			missing: "a: the wanted answer was seen 4 time(s), for 30s of 30.000000001s|b: the wanted answer"},
		"one lags":                     {settle: every, rounds: each("+-", "+-", "+-"), missing: "b: says 401"},
		"one changed its answer":       {settle: 2 * every, rounds: each("+", "+", "-", "+", "+"), missing: "for 10s of 20s"},
		"one that was added":           {settle: 3 * every, rounds: each("+", "+", "+", "++", "++"), missing: "b: the wanted answer was seen 2"},
		"one that was removed":         {settle: 3 * every, rounds: each("+-", "+-", "+", "+")},
		"one that returns":             {settle: 3 * every, rounds: each("++", "++", "+", "++", "++"), missing: "b: the wanted answer was seen 2"},
		"no answer at the end":         {settle: every, rounds: each("+", "+", "+", "?"), missing: "a: times out"},
		"a short silence":              {settle: 3 * every, rounds: each("+", "+", "?", "?", "+", "+")},
		"a silence proves an interval": {settle: 3*every + 1, rounds: each("+", "+", "?", "?", "+", "+"), missing: "for 30s of"},
		"a long silence":               {settle: 2 * every, rounds: each("+", "+", "?", "?", "?", "?", "+", "+"), missing: "for 10s of"},
		"silence only":                 {rounds: each("?", "?", "?"), missing: "a: times out"},
		"a gap of three intervals":     {settle: 2 * every, rounds: at(0, every, 4*every)},
		"slow calls between rounds":    {settle: 2 * every, rounds: at(0, every, every+longestGap)},
		"a longer gap":                 {settle: every, rounds: at(0, every, every+longestGap+1), missing: "seen 1 time(s)"},
		"the clock jumps ahead":        {settle: every, rounds: at(0, time.Hour), missing: "seen 1 time(s), for 0s"},
		"by less than three intervals": {settle: 2 * every, rounds: at(0, 2*every), missing: "for 10s of 20s"},
		"the clock jumps back":         {settle: every, rounds: at(time.Hour, 0), missing: "seen 2 time(s), for 0s"},
		"faster than the interval":     {settle: every, rounds: at(0, 1, 2), missing: "a: the wanted answer was seen 3 time(s), for 0s of 10s"},
		"refused by all":               {want: Refused, settle: every, rounds: each("--", "--")},
		"still recognised by one":      {want: Refused, settle: every, rounds: each("--", "-+", "-+"), missing: "b: knows it"},
		"silence refuses nothing":      {want: Refused, rounds: each("-?", "-?", "-?"), missing: "b: times out"},
	} {
		tracker := NewTracker(cmp.Or(test.want, Recognised), every)
		for _, round := range test.rounds {
			tracker.Add(round.at, round.answers)
		}
		proof := tracker.Proof(test.settle)
		expect.True(t, proof.Proven == (test.missing == "") && proof.Proven == (len(proof.Lacks()) == 0) && (!proof.Proven || !proof.Settling),
			"%s: got %+v", name, proof)
		for i, part := range strings.Split(test.missing, "|") {
			expect.True(t, part == "" || i < len(proof.Missing) && strings.Contains(proof.Missing[i], part),
				"%s: missing %q, want %q", name, proof.Missing, test.missing)
		}
	}
}

// TestSettling checks that settling needs only the wanted answers, while Proven also needs time.
func TestSettling(t *testing.T) {
	t.Parallel()
	for letters, want := range map[string]bool{"": false, "+": true, "++": true, "+-": false, "+?": false, "-": false} {
		tracker := NewTracker(Recognised, every)
		tracker.Add(start, answers(letters))
		expect.Equal(t, letters+": settling", tracker.Proof(every).Settling, want)
	}
	expect.Equal(t, "what it lacks if nothing was asked", (Proof{}).Lacks(), []string{"not every API server was probed yet"})
}
