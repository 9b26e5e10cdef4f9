package probe

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

var unreadable = interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
	return errors.New("no answer")
}}

// verifier is an API server that trusts some CAs, by its own clock. It records the certificates that clients present.
type verifier struct {
	mu    sync.Mutex
	cas   []*ca.Authority
	ahead time.Duration
	shown []string
	hook  func()
}

func (v *verifier) trust(cas ...*ca.Authority) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cas = cas
}

func (v *verifier) answer(clock *clocktesting.FakeClock) func(*x509.Certificate) (int, any) {
	return func(shown *x509.Certificate) (int, any) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.hook != nil {
			v.hook()
		}
		v.shown = append(v.shown, shown.Subject.CommonName)
		pool := x509.NewCertPool()
		for _, one := range v.cas {
			pool.AppendCertsFromPEM(one.CertificatePEM())
		}
		_, err := shown.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: clock.Now().Add(v.ahead), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			return http.StatusUnauthorized, statusOf(401, metav1.StatusReasonUnauthorized)
		}
		return http.StatusCreated, reviewFor(shown.Subject.CommonName, idOf(shown))
	}
}

func (v *verifier) target(t *testing.T, clock *clocktesting.FakeClock) Target {
	t.Helper()
	s, cluster := serveAt(t, clock.Now, v.answer(clock)) // its Date does not show its clock
	return Target{Name: s.Listener.Addr().String(), Cluster: cluster}
}

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
	r := &rig{
		Prober: &Prober{Clock: clock}, clock: clock, old: authority(t, time.Hour), new: authority(t, time.Hour),
		first: &verifier{}, second: &verifier{},
	}
	r.first.trust(r.new)
	r.second.trust(r.new)
	r.targets = []Target{r.first.target(t, clock), r.second.target(t, clock)}
	return r
}

func (r *rig) want(t *testing.T, round Round, first, second Trust, evidence string) {
	t.Helper()
	if !round.At.Equal(r.clock.Now()) || len(round.Answers) != 2 {
		t.Errorf("the round is %+v", round)
	}
	all := ""
	for i, want := range []Trust{first, second} {
		got := round.Answers[r.targets[i].Name]
		all += got.Evidence + "\n"
		if got.Trust != want {
			t.Errorf("server %d: %s, want %s: %s", i+1, got.Trust, want, got.Evidence)
		}
	}
	if !strings.Contains(all, evidence) {
		t.Errorf("evidence is %q, want %q", all, evidence)
	}
}

func TestRecognise(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.second.trust(r.old)
	r.want(t, r.Recognise(t.Context(), r.new, r.targets), Recognised, Refused, "401")
	r.second.trust(r.old, r.new)
	r.want(t, r.Recognise(t.Context(), r.new, r.targets), Recognised, Recognised, "")
	r.targets[1].Cluster.Host = "https://" + unused(t)
	r.want(t, r.Recognise(t.Context(), r.new, r.targets), Recognised, Unknown, "no conclusive answer")
}

func unused(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// TestRefuse checks that a refusal counts only if the sole possible reason is that the CA is not trusted.
func TestRefuse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		set           func(*rig)
		first, second Trust
		evidence      string
	}{
		"by all":                   {func(*rig) {}, Refused, Refused, "401"},
		"one still trusts it":      {func(r *rig) { r.second.trust(r.old, r.new) }, Refused, Recognised, "knows the subject"},
		"one refuses everything":   {func(r *rig) { r.second.trust() }, Refused, Unknown, "that proves nothing"},
		"the clock of one is fast": {func(r *rig) { r.second.trust(r.old, r.new); r.second.ahead = 6 * time.Minute }, Refused, Unknown, "that proves nothing"},
		"the clock of one is slow": {func(r *rig) { r.second.trust(r.old, r.new); r.second.ahead = -6 * time.Minute }, Refused, Unknown, "that proves nothing"},
		"our clock stands still": {func(r *rig) {
			r.second.trust(r.old, r.new)
			r.second.hook = func() { r.second.ahead = 10 * time.Minute }
		}, Refused, Unknown, "that proves nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			test.set(r)
			r.want(t, r.Refuse(t.Context(), r.old, r.new, r.targets), test.first, test.second, test.evidence)
		})
	}
}

// TestAnEndedCertificateIsNotShown asks for an hour. The retiring certificate is never valid for less time than the
// other.
func TestAnEndedCertificateIsNotShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.Audit = log
	for range 45 { // half an hour
		r.clock.Step(40 * time.Second)
		r.want(t, r.Refuse(t.Context(), r.old, r.new, r.targets), Refused, Refused, "")
		r.want(t, r.Recognise(t.Context(), r.new, r.targets), Recognised, Recognised, "")
		for _, one := range r.minted {
			if left := one.NotAfter.Sub(r.clock.Now()); left < margin+2*timeout || !r.minted[kindOf(r.new)].within(r.minted[kindOf(r.old)]) {
				t.Fatalf("%s is left", left)
			}
		}
	}
	records := strings.Count(readFile(t, file), `"event":"TrustProbe"`)
	if records < 14 || records > 24 {
		t.Errorf("%d certificates in half an hour, want two every three or four minutes, each with a record", records)
	}
}

// TestALateAnswerDoesNotCount checks that an answer does not count if the certificate has expired by then.
func TestALateAnswerDoesNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	late := func() { r.clock.Step(5 * time.Minute) } // a machine that sleeps
	r.second.hook = late
	start := r.clock.Now() // as the server's Date: it sees nothing of the sleep
	s, cluster := serveAt(t, func() time.Time { return start }, r.second.answer(r.clock))
	targets := []Target{{Name: s.Listener.Addr().String(), Cluster: cluster}}
	for name, ask := range map[string]func() Round{
		"recognise": func() Round { return r.Recognise(t.Context(), r.new, targets) },
		"refuse":    func() Round { return r.Refuse(t.Context(), r.old, r.new, targets) },
	} {
		start = r.clock.Now()
		if got := ask().Answers[targets[0].Name]; got.Trust != Unknown || !strings.Contains(got.Evidence, "but the answer came at") {
			t.Errorf("%s: %s: %s", name, got.Trust, got.Evidence)
		}
	}
}

// TestACAThatEndsProvesNothing checks that a CA that is about to expire is not probed: a refusal would prove nothing.
func TestACAThatEndsProvesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.clock.Step(57 * time.Minute)
	r.want(t, r.Refuse(t.Context(), r.old, r.new, r.targets), Unknown, Unknown, "the CA itself expires at")
	r.want(t, r.Recognise(t.Context(), r.new, r.targets), Unknown, Unknown, "the CA itself expires at")
	if len(r.first.shown) > 0 {
		t.Errorf("%q were shown", r.first.shown)
	}
}

func TestManyAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var targets []Target
	for i := range 3 * atOnce {
		target := r.targets[i%2]
		target.Name = fmt.Sprint(i)
		targets = append(targets, target)
	}
	if round := r.Recognise(t.Context(), r.new, targets); len(round.Answers) != len(targets) {
		t.Errorf("%d answers of %d", len(round.Answers), len(targets))
	}
	if round := r.Recognise(t.Context(), r.new, nil); len(round.Answers) != 0 {
		t.Errorf("answers of nobody: %v", round.Answers)
	}
}
