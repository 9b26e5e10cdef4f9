//go:build bench

package bench

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

type scenario struct {
	name        string
	experiments []experiment
}

// fast are the programs that no limit of their client slows down.
var fast = []subject{ours, another, unlimited}

// scenarios returns the scenarios. The quick form shows that each works and gives a first impression; only the full form has rounds
// enough to compare.
func scenarios(full bool) []scenario {
	choose := func(quick, otherwise int) int {
		if full {
			return otherwise
		}
		return quick
	}
	few, many := choose(1, 3), choose(1, 5)
	seconds := time.Duration(choose(5, 60)) * time.Second
	pending, ruled := choose(1000, 10000), choose(1500, 10000)
	old := func(count int) experiment {
		return experiment{
			name: fmt.Sprint(count, " finished and foreign requests"), rounds: few, prepare: func(t *testing.T) { seedOld(t, count) },
			entries: append(each(startAmongOld, fast...), entry{"ours, standby", ours, standbyAmongOld}),
		}
	}
	// Requests that exist before the manager starts.
	backlogs := []experiment{
		{name: fmt.Sprint(pending, " pending requests"), rounds: few, entries: each(backlog(pending), fast...)},
		old(choose(10000, 100000)),
	}
	if full {
		backlogs = append(backlogs, old(500000))
	}
	return []scenario{
		{"burst", []experiment{ // nodes join at once, or renew at once
			{name: "1500 requests of one bootstrap token", rounds: many, entries: each(burst(1500, joins), ours, another, asShipped, unlimited)},
			{name: "1500 renewals of as many nodes", rounds: many, entries: each(burst(1500, renewals), fast...)},
		}},
		{"trickle", []experiment{ // nodes join at a constant rate
			{name: "5 requests/s", rounds: many, entries: each(trickle(5, seconds), ours, another, asShipped, unlimited)},
			{name: "200 requests/s", rounds: many, entries: each(trickle(200, seconds), fast...)},
		}},
		{"backlog", backlogs},
		{"rules", []experiment{{ // requests of one ServiceAccount that an approval rule approves, beside as many of kubelets
			name: fmt.Sprint(ruled, " requests of one identity"), rounds: many, prepare: mayUseRule,
			entries: []entry{
				{"ours, kubelets", ours, underRule(byUser, ruled, joins)},
				{"ours, rule by user name", ours, underRule(byUser, ruled, ofAccount)},
				{"ours, rule by ServiceAccount", ours, underRule(byAccount, ruled, ofAccount)},
			},
		}}},
	}
}

// burst creates all requests at once. The rate is from the first creation to the last certificate.
func burst(count int, ask func(*testing.T, int) []asked) func(*testing.T, subject) values {
	return func(t *testing.T, s subject) values {
		return during(t, s, ask(t, min(count, cmp.Or(s.most, count))), atOnce)
	}
}

// underRule is burst with an approval rule that has one condition.
func underRule(condition string, count int, ask func(*testing.T, int) []asked) func(*testing.T, subject) values {
	return func(t *testing.T, s subject) values {
		s.config = ruled(t, condition)
		return burst(count, ask)(t, s)
	}
}

func atOnce(t *testing.T, w *issuing, requests []asked) values {
	start := time.Now()
	create(t, requests)
	_, last := w.wait(t, len(requests))
	return values{rate: float64(len(requests)) / last.Sub(start).Seconds()}
}

// trickle creates requests at a constant rate, in requests/s. The times are from just before a creation to the certificate.
func trickle(perSecond int, lasts time.Duration) func(*testing.T, subject) values {
	return func(t *testing.T, s subject) values {
		return during(t, s, joins(t, int(lasts.Seconds())*perSecond), func(t *testing.T, w *issuing, requests []asked) values {
			begun := createSlowly(t, requests, perSecond)
			w.wait(t, len(requests))
			w.mu.Lock()
			defer w.mu.Unlock()
			var took []float64
			for name, at := range begun {
				took = append(took, float64(w.at[name].Sub(at).Microseconds())/1000)
			}
			return values{p50: share(took, 50), p99: share(took, 99)}
		})
	}
}

// backlog starts the subject after the requests exist. The rate is from the first certificate to the last one, so that it does not
// contain the start.
func backlog(count int) func(*testing.T, subject) values {
	return func(t *testing.T, s subject) values {
		requests := joins(t, count)
		store(t, count, func(i int) *kit.Request { return requests[i].obj })
		defer deleteAll(t)
		w, start := watchIssued(t), time.Now()
		r := launch(t, s)
		defer r.end(t)
		begin, last := w.wait(t, count)
		used := r.cpu(t)
		found := r.memory(t)
		found[rate] = float64(count-1) / last.Sub(begin).Seconds()
		found[first] = begin.Sub(start).Seconds()
		found[cpu] = float64(used.Milliseconds()) / float64(count)
		return found
	}
}

// startAmongOld measures the start until the first certificate of a new request, and the memory.
func startAmongOld(t *testing.T, s subject) values {
	start := time.Now()
	r := launch(t, s)
	defer r.end(t)
	issueOne(t)
	took := time.Since(start).Seconds()
	found := r.memory(t)
	found[first] = took
	return found
}

// standbyAmongOld measures the memory of a replica that does not lead.
func standbyAmongOld(t *testing.T, s subject) values {
	s.args = []string{"--leader-elect"}
	leader := launch(t, s)
	defer leader.end(t)
	issueOne(t)
	standby := launch(t, s)
	defer standby.end(t)
	standby.Answers(t, standby.Probes, "/readyz", 200)
	return standby.memory(t)
}
