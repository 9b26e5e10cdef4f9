package probe

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// patience is the number of intervals for which a server may give no valid answer without losing its streak.
	patience = 3
	// longestGap is the longest time between two answers of a streak, if that is more than patience. If each call to the
	// API server takes as long as an admission webhook may, a rotation asks every few minutes only.
	longestGap = 20 * time.Minute
	// leastAnswers is the number of answers that a streak needs. A single answer may come from a server that was
	// about to stop.
	leastAnswers = 2
)

// Tracker follows the answers of all servers until each has given the wanted answer for long enough. It is pure, and
// not safe for concurrent use.
type Tracker struct {
	want    Trust
	every   time.Duration
	streaks map[string]*streak
}

// streak is an unbroken series of wanted answers from one server.
type streak struct {
	answer  Answer    // the last answer
	last    time.Time // when it last gave the wanted answer
	answers int
	// lasted is the length of the streak. Between two answers at most the interval counts: a clock that is set, or a
	// machine that sleeps, must not prove anything.
	lasted time.Duration
}

// NewTracker returns a Tracker that wants the answer want, and gets a round at the given interval.
func NewTracker(want Trust, every time.Duration) *Tracker {
	return &Tracker{want: want, every: every, streaks: map[string]*streak{}}
}

// Add records the answers of all servers, by Target.Name, at the time of the last answer. Only the time between two calls
// matters. Add drops servers that have no answer. A new server begins its own streak.
func (t *Tracker) Add(at time.Time, answers map[string]Answer) {
	maps.DeleteFunc(t.streaks, func(name string, _ *streak) bool { _, asked := answers[name]; return !asked })
	for name, answer := range answers {
		one, known := t.streaks[name]
		if !known {
			one = &streak{}
			t.streaks[name] = one
		}
		one.answer = answer
		gap := at.Sub(one.last)
		switch {
		case answer.Trust == Unknown && one.answers > 0 && gap <= patience*t.every:
		case answer.Trust != t.want || answer.Trust == Unknown:
			*one = streak{answer: answer}
		case one.answers == 0 || gap > max(patience*t.every, longestGap):
			*one = streak{answer: answer, last: at, answers: 1}
		default:
			one.answers++
			one.lasted += min(max(gap, 0), t.every)
			one.last = at
		}
	}
}

// Proof is what the answers of all servers about one CA prove. The zero value proves nothing.
type Proof struct {
	// Proven reports whether all of them have given the wanted answer for long enough, and at least twice.
	Proven bool
	// Settling reports whether all of them give the wanted answer, but not for long enough yet.
	Settling bool
	// Missing has a sentence for each server that has not given the answer for long enough.
	Missing []string
}

// Lacks returns what proof lacks.
func (proof Proof) Lacks() []string {
	switch {
	case proof.Proven:
		return nil
	case len(proof.Missing) == 0:
		return []string{"not every API server was probed yet"}
	default:
		return proof.Missing
	}
}

// Proof returns what the answers prove at the time of the last Add. Without a server nothing is proven.
func (t *Tracker) Proof(settleFor time.Duration) Proof {
	if len(t.streaks) == 0 {
		return Proof{Missing: []string{"no API server has been asked"}}
	}
	proof := Proof{Settling: true}
	for _, name := range slices.Sorted(maps.Keys(t.streaks)) {
		one := t.streaks[name]
		switch {
		case one.answer.Trust != t.want:
			proof.Settling = false
			proof.Missing = append(proof.Missing, fmt.Sprintf("%s: %s", name, one.answer.Evidence))
		case one.answers < leastAnswers || one.lasted < settleFor:
			proof.Missing = append(proof.Missing, fmt.Sprintf("%s: the wanted answer was seen %d time(s), for %s of %s",
				name, one.answers, one.lasted.Round(time.Second), settleFor))
		}
	}
	proof.Proven = len(proof.Missing) == 0
	proof.Settling = proof.Settling && !proof.Proven
	return proof
}
