package probe

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Round holds the answers of all servers at about the same time.
type Round struct {
	// At is the time of the last answer.
	At time.Time
	// Answers are by Target.Name.
	Answers map[string]Answer
}

const (
	// patience is the number of intervals for which a server may give no valid answer without losing its streak.
	patience = 3
	// leastAnswers is the number of answers that a streak needs. A single answer may come from a server that was
	// about to stop.
	leastAnswers = 2
)

// Tracker follows the answers of all servers until each has given the wanted answer for long enough. It is pure, and
// not safe for concurrent use.
type Tracker struct {
	want    Trust
	every   time.Duration
	last    time.Time
	streaks map[string]*streak
}

// streak is an unbroken series of wanted answers from one server.
type streak struct {
	answer  Answer // the last answer
	since   time.Time
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

// Add records a round. It drops servers that are not in the round. A new server begins its own streak.
func (t *Tracker) Add(round Round) {
	if round.At.Before(t.last) {
		clear(t.streaks) // the clock was set back: earlier answers can't be compared
	}
	t.last = round.At
	maps.DeleteFunc(t.streaks, func(name string, _ *streak) bool { _, asked := round.Answers[name]; return !asked })
	for name, answer := range round.Answers {
		one, known := t.streaks[name]
		if !known {
			one = &streak{}
			t.streaks[name] = one
		}
		t.add(one, answer, round.At)
	}
}

func (t *Tracker) add(one *streak, answer Answer, at time.Time) {
	one.answer = answer
	gap := at.Sub(one.last)
	switch {
	case answer.Trust == Unknown && one.answers > 0 && gap <= patience*t.every:
	case answer.Trust != t.want || answer.Trust == Unknown:
		*one = streak{answer: answer}
	case one.answers == 0 || gap > patience*t.every:
		*one = streak{answer: answer, since: at, last: at, answers: 1}
	default:
		one.answers++
		one.lasted += min(gap, t.every)
		one.last = at
	}
}

// Proven reports whether every server has given the wanted answer for at least settleFor, at least twice, and
// recently. Otherwise missing says what each server lacks. Without a server nothing is proven.
func (t *Tracker) Proven(settleFor time.Duration, now time.Time) (proven bool, missing []string) {
	switch age := now.Sub(t.last); {
	case len(t.streaks) == 0:
		return false, []string{"no API server has been asked"}
	case age < 0:
		return false, []string{"the clock has been set back since the API servers were asked"}
	case age > patience*t.every:
		return false, []string{fmt.Sprintf("the API servers were last asked %s ago", age.Round(time.Second))}
	}
	for _, name := range slices.Sorted(maps.Keys(t.streaks)) {
		one := t.streaks[name]
		switch {
		case one.answer.Trust != t.want:
			missing = append(missing, fmt.Sprintf("%s: %s", name, one.answer.Evidence))
		case one.answers < leastAnswers || one.lasted < settleFor:
			missing = append(missing, fmt.Sprintf("%s: the wanted answer was seen %d time(s), for %s of %s",
				name, one.answers, one.lasted.Round(time.Second), settleFor))
		}
	}
	return len(missing) == 0, missing
}

// Settling reports whether every server gives the wanted answer, even if not yet for long enough.
func (t *Tracker) Settling() bool {
	for _, one := range t.streaks {
		if one.answer.Trust != t.want {
			return false
		}
	}
	return len(t.streaks) > 0
}

// Standing is the last answer of a server.
type Standing struct {
	Name string
	Answer
	// Since is the time from which the server has given the wanted answer without a break. It is zero if the server
	// does not give it.
	Since time.Time
}

// Standings returns the Standing of every server, sorted by name.
func (t *Tracker) Standings() []Standing {
	standings := make([]Standing, 0, len(t.streaks))
	for _, name := range slices.Sorted(maps.Keys(t.streaks)) {
		one := t.streaks[name]
		standings = append(standings, Standing{Name: name, Answer: one.answer, Since: one.since})
	}
	return standings
}
