package probe

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Round is what all servers answered at about the same time.
type Round struct {
	// At is when the last of them had.
	At time.Time
	// Answers by Target.Name.
	Answers map[string]Answer
}

const (
	// patience is for how many intervals a server may give no answer that counts without losing its streak.
	patience = 3
	// leastAnswers make a streak: one alone may have come from a server that was about to end.
	leastAnswers = 2
)

// Tracker follows the answers of all servers until each has given the wanted one for long enough. It is pure, and not
// safe for concurrent use.
type Tracker struct {
	want    Trust
	every   time.Duration
	last    time.Time
	streaks map[string]*streak
}

// streak is a server's. It stands while it gives the wanted answer.
type streak struct {
	answer  Answer // the last one
	since   time.Time
	last    time.Time // when it last gave the wanted answer
	answers int
	// lasted is how long it has stood. Between two answers no more than the interval counts: a clock that is set, or a
	// machine that sleeps, must not prove anything.
	lasted time.Duration
}

// NewTracker returns one for answers that are to be want, asked for at the given interval.
func NewTracker(want Trust, every time.Duration) *Tracker {
	return &Tracker{want: want, every: every, streaks: map[string]*streak{}}
}

// Add takes note of a round. A server that is not in it is forgotten, one that is new begins its own streak.
func (t *Tracker) Add(round Round) {
	if round.At.Before(t.last) {
		clear(t.streaks) // the clock has been set back: what was before can't be compared
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

// Proven reports whether every server has given the wanted answer for at least settleFor, at least twice, and not too
// long before now. Otherwise missing says what each server lacks. Without a server nothing is proven.
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
			missing = append(missing, fmt.Sprintf("%s: it has been seen %d time(s), for %s of %s",
				name, one.answers, one.lasted.Round(time.Second), settleFor))
		}
	}
	return len(missing) == 0, missing
}

// Settling reports whether every server gives the wanted answer, even if not for long enough yet.
func (t *Tracker) Settling() bool {
	for _, one := range t.streaks {
		if one.answer.Trust != t.want {
			return false
		}
	}
	return len(t.streaks) > 0
}

// Standing is what a server said last.
type Standing struct {
	Name string
	Answer
	// Since is from when on it gives the wanted answer without a break; zero if it does not.
	Since time.Time
}

// Standings are those of all servers, by name.
func (t *Tracker) Standings() []Standing {
	standings := make([]Standing, 0, len(t.streaks))
	for _, name := range slices.Sorted(maps.Keys(t.streaks)) {
		one := t.streaks[name]
		standings = append(standings, Standing{Name: name, Answer: one.answer, Since: one.since})
	}
	return standings
}
