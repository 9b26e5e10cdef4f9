//go:build parityfuzz

package parity

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// requestsInRound is the number of requests that each program gets in one start.
	requestsInRound = 150
	// quietFor is how long no request may change until a program counts as idle.
	quietFor = time.Second
	marker   = "marker"
)

// TestRandomParity sends random requests through kube-controller-manager and through this manager, round after round.
// It compares the outcomes field by field. A difference must be a deviation that the table lists for a request of that
// kind, and a listed deviation must differ. PARITY_FUZZ_FOR bounds the time. PARITY_SEED repeats a round: round n of seed
// s is the first round of seed s+n.
func TestRandomParity(t *testing.T) {
	seed, duration := rand.Uint64()%1_000_000_000, time.Minute
	if text := os.Getenv("PARITY_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		kit.NoError(t, err)
		seed = given
	}
	if text := os.Getenv("PARITY_FUZZ_FOR"); text != "" {
		given, err := time.ParseDuration(text)
		kit.NoError(t, err)
		duration = given
	}
	e := startEnv(t)
	kcm, own := kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")), csrControllerManager(e.ownBinary(t))
	tally, began := tally{}, time.Now()
	for ; (time.Since(began) < duration || tally["rounds"] == 0) && !t.Failed(); seed++ {
		t.Logf("seed %d", seed)
		e.identify(t)
		rows := newRandom(seed).rows(t, requestsInRound)
		theirs := e.randomTurn(t, kcm, rows, nil)
		ours := e.randomTurn(t, own, rows, theirs)
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			tally.count(t, seed, rows[key], key, theirs, ours)
		}
		tally["rounds"]++
	}
	t.Log(tally)
	for _, least := range []string{"the same", "issued", "failed", "left alone"} {
		if !t.Failed() && tally[least] < 10*tally["rounds"] {
			t.Errorf("%s: only %d times: the requests prove too little", least, tally[least])
		}
	}
}

// tally counts outcomes, so that a run shows what it has tested.
type tally map[string]int

func (c tally) count(t *testing.T, seed uint64, s sample, key string, theirs, ours map[string]outcome) {
	t.Helper()
	their, existed := theirs[key]
	our, exists := ours[key]
	if !existed && !exists {
		c["refused by the API server"]++
		return
	}
	problem := s.judge(their, our)
	if existed != exists {
		problem = fmt.Sprintf("the API server accepted it for one program only: %t, %t", existed, exists)
	}
	switch {
	case problem != "":
		t.Errorf("seed %d, request %s: %s\n%s", seed, key, problem, s.description())
	case gocmp.Equal(their, our):
		c["the same"]++
	default:
		c["deviation "+strings.Join(s.traits, " ")]++
	}
	switch {
	case strings.HasSuffix(our.State, "Issued"):
		c["issued"]++
	case strings.HasSuffix(our.State, "Failed"):
		c["failed"]++
	case our.State == untouched:
		c["left alone"]++
	}
}

// judge returns what is wrong with a pair of outcomes, or "".
func (s sample) judge(theirs, ours outcome) string {
	diff := gocmp.Diff(theirs, ours)
	permitted := s.permitted(theirs.State)
	switch {
	case diff == "" && len(permitted) > 0:
		return fmt.Sprintf("it has the traits %q, and no listed deviation differs", s.traits)
	case diff == "":
		return ""
	case len(permitted) == 0:
		return "a difference that is no listed deviation (-kube-controller-manager +ours):\n" + diff
	}
	last := cmp.Or(strings.Join(ours.Conditions[max(0, len(ours.Conditions)-1):], ""), "none")
	for _, p := range permitted {
		if p.state == ours.State && (p.reason == "" || strings.HasPrefix(last, "Failed=True "+p.reason+": ")) {
			return ""
		}
	}
	return fmt.Sprintf("it has the traits %q, whose deviations are listed as %+v (-kube-controller-manager +ours):\n%s", s.traits, permitted, diff)
}

// permittedOutcome is our outcome in a deviation, with the reason of the Failed condition, if there is one.
type permittedOutcome struct{ state, reason string }

// permitted returns our outcomes in the rows of the table that have a deviation of s, and kube-controller-manager's
// outcome theirs.
func (s sample) permitted(theirs string) []permittedOutcome {
	var all []permittedOutcome
	for _, listed := range table {
		if listed.deviation != "" && listed.want == theirs && slices.Contains(s.traits, listed.deviation) {
			reason, _, _ := strings.Cut(listed.message, ":")
			all = append(all, permittedOutcome{listed.ours, reason})
		}
	}
	return all
}

// description returns the content of r, so that a finding can become a row of the table.
func (r row) description() string {
	var kinds []string
	for _, condition := range r.conditions {
		kinds = append(kinds, string(condition.Type))
	}
	request, _ := r.pem()
	if len(request) > 8<<10 {
		request = append(request[:8<<10:8<<10], "..."...)
	}
	return fmt.Sprintf("signer %s, usages %q, seconds %d, user %+v, key %q, conditions %q, stored %t, spec.request %q",
		r.signerName(), r.usages, r.seconds, r.user, r.key, kinds, r.stored, request)
}

// randomTurn gives the requests to one program and returns the outcomes of those that the API server accepted. If theirs
// is not nil, it waits until each outcome is permitted, as long as anything changes.
func (e *env) randomTurn(t *testing.T, p program, rows map[string]sample, theirs map[string]outcome) map[string]outcome {
	t.Helper()
	turn := e.turn(t, p)
	turn.make(t, marker, node)
	accepted := map[string]sample{}
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		turn.names[key], turn.from[key] = p.id+"-"+key, time.Now()
		switch err := turn.create(t, turn.names[key], rows[key].row); {
		case err == nil:
			accepted[key] = rows[key]
		case !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err):
			t.Fatalf("create request %s: %v\n%s", key, err, rows[key].description())
		}
	}
	turn.run(t, e.byStart[oneCA]...)
	turn.idle(t)
	if theirs != nil {
		turn.settleAll(t, accepted, theirs)
	}
	objs, outcomes := turn.list(t), map[string]outcome{}
	for key, s := range accepted {
		outcomes[key] = turn.read(t, s.row, key, objs[turn.names[key]])
	}
	turn.running.check(t)
	turn.clear(t)
	return outcomes
}

// idle waits until the program has handled all requests. Its queues are in order, so a marker that is created after the
// first one was issued follows every request of the start. After it, only what was in progress can still change.
func (p *pass) idle(t *testing.T) {
	t.Helper()
	for _, name := range []string{marker, marker + "-last"} {
		if p.names[name] == "" {
			p.make(t, name, node)
		}
		if !p.settle(t, map[string]string{p.names[name]: approvedIssued}) {
			t.Fatalf("%s does not issue the %s:\n%s", p.id, name, p.running.tail())
		}
	}
	last, since := "", time.Now()
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		if versions := versionsOf(p.list(t)); versions != last {
			last, since = versions, time.Now()
		}
		return time.Since(since) > quietFor, nil
	})
	if err != nil {
		t.Fatalf("%s is never idle: %v", p.id, err)
	}
}

func versionsOf(objs map[string]*certificatesv1.CertificateSigningRequest) string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(objs)) {
		all.WriteString(objs[name].ResourceVersion + " ")
	}
	return all.String()
}

// settleAll waits until every outcome is permitted. It gives up when nothing has changed for a while.
func (p *pass) settleAll(t *testing.T, rows map[string]sample, theirs map[string]outcome) {
	t.Helper()
	last, since := "", time.Now()
	_ = wait.PollUntilContextCancel(t.Context(), pollInterval, true, func(context.Context) (bool, error) {
		objs := p.list(t)
		if versions := versionsOf(objs); versions != last {
			last, since = versions, time.Now()
		}
		for key, s := range rows {
			if their, existed := theirs[key]; existed && s.judge(their, p.read(t, s.row, key, objs[p.names[key]])) != "" {
				return time.Since(since) > p.patience, nil
			}
		}
		return true, nil
	})
}

// parsed returns the PKCS#10 request of r, or nil if it can't be parsed.
func (r row) parsed() (request []byte, payload *x509.CertificateRequest) {
	request, err := r.pem()
	if err != nil {
		return nil, nil
	}
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return request, nil
	}
	payload, _ = x509.ParseCertificateRequest(block.Bytes)
	return request, payload
}
