package keypair

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
)

// leading returns a KeyPair of the leader for signers with those default lifetimes.
func leading(lifetimes map[string]time.Duration) (*KeyPair, *clocktesting.FakePassiveClock, *events.FakeRecorder) {
	pair, clock, recorder := newPair(secret)
	elected := make(chan struct{})
	close(elected)
	pair.elected, pair.Lifetimes = elected, lifetimes
	return pair, clock, recorder
}

// warnings returns the Events from recorder, without CALoaded.
func warnings(recorder *events.FakeRecorder) []string {
	var found []string
	for _, each := range taken(recorder) {
		if !strings.Contains(each, "CALoaded") {
			found = append(found, each)
		}
	}
	return found
}

func TestTheEndOfACAIsForetold(t *testing.T) {
	t.Parallel()
	pair, clock, recorder := leading(map[string]time.Duration{"example.com/short": time.Hour, "example.com/long": 60 * day})
	old, next := newRoot(t, 100*day), newRoot(t, 200*day)
	ends := func(id, days string) string {
		return "Warning CAExpiring the signing CA with key " + id + " expires in less than " + days + " days, at 2026-06-09T12:00:00Z, together with all certificates that it has signed: replace it"
	}
	cut := func(id, signers string) string {
		return "Warning LifetimeCut certificates for " + signers + " have a shorter lifetime than configured, because the CA with key " + id + " expires earlier, at 2026-06-09T12:00:00Z: replace it"
	}
	id := keyID(t, old)
	for _, step := range []struct {
		left   time.Duration // of the old CA
		during func()
		want   []string
	}{
		{left: 100 * day},
		{left: 90*day + 1},
		{left: 90 * day, want: []string{ends(id, "90")}},
		{left: 89 * day},
		{left: 60*day - 5*time.Minute},
		{left: 60*day - 6*time.Minute, want: []string{cut(id, "example.com/long")}},
		{left: 30 * day, want: []string{ends(id, "30")}},
		{left: 20 * day, during: func() { pair.Load(nil, old.key) }, want: []string{"Warning CAInvalid Secret ns/ca can't be used: no PEM block of type CERTIFICATE found; the last good CA stays in use"}},
		{left: 7 * day, during: func() { pair.Load(nil, old.key) }, want: []string{ends(id, "7")}},
		{left: 6 * day},
		{left: 30 * time.Minute, want: []string{cut(id, "example.com/long, example.com/short")}},
		{left: 0, want: []string{`Warning CAExpired Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at 2026-06-09T12:00:00Z`}},
		{left: -day},
		{left: -day, during: func() { pair.Load(next.cert, next.key) }},
	} {
		clock.SetTime(now.Add(100*day - step.left))
		load := step.during
		if load == nil {
			load = func() { pair.Load(bytes.Clone(old.cert), old.key) }
		}
		for range 2 { // checked again
			load()
		}
		if diff := cmp.Diff(step.want, warnings(recorder)); diff != "" {
			t.Errorf("%s before the end (-want +got):\n%s", step.left, diff)
		}
	}
}

// TestTheEndOfACAIsForetoldOnceByTheLeader checks that a restart reports only the current step, and that a standby
// reports nothing until it leads. A new certificate has its own steps.
func TestTheEndOfACAIsForetoldOnceByTheLeader(t *testing.T) {
	t.Parallel()
	first, next := newRoot(t, 20*day), newRoot(t, 25*day)
	standby, _, recorder := newPair(secret)
	elected := make(chan struct{})
	standby.elected = elected
	load := func(one root, want int) {
		t.Helper()
		standby.Load(one.cert, one.key)
		told := warnings(recorder)
		if len(told) != want || want > 0 && !strings.Contains(told[0], "less than 30 days") {
			t.Errorf("told %q, want %d", told, want)
		}
	}
	load(first, 0)
	close(elected)
	load(first, 1)
	load(first, 0)
	load(next, 1)
	load(next, 0)
}

// A CA that serving certificates share is reported once per process.
func TestSharingIsReported(t *testing.T) {
	t.Parallel()
	const serving, kubelet, client = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kube-apiserver-client"
	for name, test := range map[string]struct {
		signers []string
		want    string
	}{
		"all":               {[]string{kubelet, serving, client, "example.com/custom"}, client + " and " + kubelet},
		"one of them":       {[]string{kubelet, serving}, kubelet},
		"its own":           {[]string{serving, "example.com/custom"}, ""},
		"no serving at all": {[]string{kubelet, client}, ""},
	} {
		lifetimes := map[string]time.Duration{}
		for _, signer := range test.signers {
			lifetimes[signer] = time.Hour
		}
		pair, _, recorder := leading(lifetimes)
		one, two := newRoot(t, 1000*day), newRoot(t, 1000*day)
		pair.Load(one.cert, one.key)
		var want []string
		if test.want != "" {
			want = []string{"Warning CAShared kubelet serving certificates share this CA with those of " + test.want +
				": a verifier that trusts this CA accepts both, and distinguishes them only by their usages; " +
				"use a separate CA for kubernetes.io/kubelet-serving"}
		}
		if diff := cmp.Diff(want, warnings(recorder)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", name, diff)
		}
		pair.Load(two.cert, two.key)
		if again := warnings(recorder); len(again) > 0 {
			t.Errorf("%s: again: %q", name, again)
		}
	}
}
