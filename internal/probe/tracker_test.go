package probe

import (
	"cmp"
	"strings"
	"testing"
	"time"
)

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
	// each returns one round per interval.
	each := func(letters ...string) (rounds []Round) {
		for i, one := range letters {
			rounds = append(rounds, Round{start.Add(time.Duration(i) * every), answers(one)})
		}
		return rounds
	}
	// at returns rounds of one server, that long after the start.
	at := func(times ...time.Duration) (rounds []Round) {
		for _, after := range times {
			rounds = append(rounds, Round{start.Add(after), answers("+")})
		}
		return rounds
	}
	for name, test := range map[string]struct {
		want    Trust
		settle  time.Duration
		rounds  []Round
		later   time.Duration // the time from the last round to now
		missing string        // empty if proven
	}{
		"there is no server":      {settle: every, rounds: each("+", "+", "", "", ""), missing: "no API server has been asked"},
		"once":                    {rounds: each("+"), missing: "a: the wanted answer was seen 1 time(s), for 0s of 0s"},
		"twice, without settling": {rounds: each("+", "+")},
		"long enough":             {settle: 3 * every, rounds: each("++", "++", "++", "++")},
		"not long enough": {settle: 3*every + 1, rounds: each("++", "++", "++", "++"),
			missing: "a: the wanted answer was seen 4 time(s), for 30s of 30.000000001s|b: the wanted answer"},
		"waiting is no answer":         {settle: 4 * every, rounds: each("+", "+", "+"), later: 2 * every, missing: "for 20s of 40s"},
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
		"a longer gap":                 {settle: every, rounds: at(0, every, 4*every+1), missing: "seen 1 time(s)"},
		"the clock jumps ahead":        {settle: every, rounds: at(0, time.Hour), missing: "seen 1 time(s), for 0s"},
		"by less than three intervals": {settle: 2 * every, rounds: at(0, 2*every), missing: "for 10s of 20s"},
		"the clock jumps back":         {settle: every, rounds: at(time.Hour, time.Hour+every, 0), missing: "seen 1 time(s)"},
		"now is long after":            {settle: every, rounds: each("+", "+", "+"), later: 4 * every, missing: "were last asked 40s ago"},
		"now is before":                {settle: every, rounds: each("+", "+", "+"), later: -1, missing: "the clock has been set back"},
		"faster than the interval":     {settle: every, rounds: at(0, 1, 2), missing: "a: the wanted answer was seen 3 time(s), for 0s of 10s"},
		"refused by all":               {want: Refused, settle: every, rounds: each("--", "--")},
		"still recognised by one":      {want: Refused, settle: every, rounds: each("--", "-+", "-+"), missing: "b: knows it"},
		"silence refuses nothing":      {want: Refused, rounds: each("-?", "-?", "-?"), missing: "b: times out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tracker := NewTracker(cmp.Or(test.want, Recognised), every)
			now := start
			for _, round := range test.rounds {
				now = round.At.Add(test.later)
				tracker.Add(round)
			}
			proof := tracker.Proof(test.settle, now)
			if proof.Proven != (test.missing == "") || proof.Proven != (len(proof.Lacks()) == 0) || proof.Proven && proof.Settling {
				t.Errorf("got %+v", proof)
			}
			for i, part := range strings.Split(test.missing, "|") {
				if part != "" && (i >= len(proof.Missing) || !strings.Contains(proof.Missing[i], part)) {
					t.Errorf("missing %q, want %q", proof.Missing, test.missing)
				}
			}
		})
	}
}

// TestSettling checks that settling needs only the wanted answers, while Proven also needs time.
func TestSettling(t *testing.T) {
	t.Parallel()
	for letters, want := range map[string]bool{"": false, "+": true, "++": true, "+-": false, "+?": false, "-": false} {
		tracker := NewTracker(Recognised, every)
		tracker.Add(Round{start, answers(letters)})
		if got := tracker.Proof(every, start).Settling; got != want {
			t.Errorf("%q: %t", letters, got)
		}
	}
	if lacks := (Proof{}).Lacks(); len(lacks) != 1 {
		t.Errorf("nothing was asked, and it lacks %q", lacks)
	}
}
