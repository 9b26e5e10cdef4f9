package main

import (
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// survivor is an entry of accepted.yaml: mutants that no test can kill, with the reason. It names the line by its code,
// because line numbers change.
type survivor struct {
	File     string `json:"file"`
	Mutation string `json:"mutation"`
	Code     string `json:"code"`
	Reason   string `json:"reason"`
	Count    int    `json:"count"` // the number of survivors with this file, mutation and code; 1 by default
}

func (s survivor) String() string { return fmt.Sprintf("%s: %s in %q", s.File, s.Mutation, s.Code) }

// readAccepted reads the entries, and checks that each has a reason and is listed once.
func readAccepted(file string) ([]survivor, error) {
	var all []survivor
	if err := readYAML(file, &all); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i, entry := range all {
		if entry.Reason == "" || entry.Code == "" || entry.Count < 0 || seen[entry.String()] {
			return nil, fmt.Errorf("%s: %s has no reason, no code or no valid count, or is listed twice", file, entry)
		}
		seen[entry.String()] = true
		all[i].Count = max(entry.Count, 1)
	}
	return all, nil
}

func readYAML(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// score is the result of one package.
type score struct{ killed, lived, timedOut, accepted, notCovered, notViable int }

// efficacy returns the percentage of covered mutants that were killed, without those in accepted.yaml. A mutant that timed
// out counts as not killed. Without a covered mutant it is 100.
func (s score) efficacy() float64 { return percent(s.killed, s.killed+s.lived+s.timedOut) }

// coverage returns the percentage of mutants that unit tests cover.
func (s score) coverage() float64 {
	covered := s.killed + s.lived + s.timedOut + s.accepted
	return percent(covered, covered+s.notCovered)
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 100
	}
	return 100 * float64(part) / float64(whole)
}

func (s score) String() string {
	return fmt.Sprintf("killed %.1f %% of covered, covered %.1f %% "+
		"(%d killed, %d survived, %d timed out, %d accepted, %d not covered, %d not viable)",
		s.efficacy(), s.coverage(), s.killed, s.lived, s.timedOut, s.accepted, s.notCovered, s.notViable)
}

// judge counts the mutants, and prints those that were not killed. It returns an error if a floor of t is missed, if a
// mutant survives and t has nothing left to do, if an entry of accepted does not have its number of survivors, or if gremlins reports an
// unknown status.
func judge(t target, all []mutant, accepted []survivor) (score, error) {
	var s score
	var errs []error
	used, files := map[survivor]int{}, map[string]bool{}
	for _, m := range all {
		files[m.file] = true
		entry, listed := m.in(accepted)
		isAccepted := listed && (m.status == lived || m.status == timedOut) && used[entry] < entry.Count
		if isAccepted {
			used[entry]++
		}
		errs = append(errs, s.count(m, isAccepted))
	}
	errs = append(errs, s.below(t)...)
	for _, entry := range accepted {
		if files[entry.File] && used[entry] < entry.Count {
			errs = append(errs, fmt.Errorf("accepted.yaml: %s: %d survive, the entry has %d: correct it", entry, used[entry], entry.Count))
		}
	}
	return s, errors.Join(errs...)
}

// below returns what t wants and s does not have.
func (s score) below(t target) (errs []error) {
	if s.lived > 0 && t.Left == "" {
		errs = append(errs, fmt.Errorf("%d mutants survive: give each a test, or a reason in accepted.yaml", s.lived))
	}
	if s.efficacy() < t.MinKilled {
		errs = append(errs, fmt.Errorf("%.1f %% of the covered mutants are killed, want %g %%", s.efficacy(), t.MinKilled))
	}
	if s.coverage() < t.MinCovered {
		errs = append(errs, fmt.Errorf("unit tests cover %.1f %% of the mutants, want %g %%", s.coverage(), t.MinCovered))
	}
	return errs
}

// Gremlins' status of a mutant.
const (
	killed       = "KILLED"
	lived        = "LIVED"
	timedOut     = "TIMED OUT"
	notCovered   = "NOT COVERED"
	doesNotBuild = "NOT VIABLE"
)

// covered returns the percentage of mutants that unit tests cover, from a dry run. A dry run does not know which mutants
// compile: mostly those of arithmetic, such as "a" - "b", do not. low counts none of these, and high counts all.
func covered(all []mutant) (low, high float64) {
	var counted, additions, uncovered int
	for _, m := range all {
		switch {
		case m.status == notCovered:
			uncovered++
		case m.mutation == "ARITHMETIC_BASE":
			additions++
		default:
			counted++
		}
	}
	return percent(counted, counted+uncovered), percent(counted+additions, counted+additions+uncovered)
}

// count adds m, and prints it if no test has killed it and no entry accepts it.
func (s *score) count(m mutant, isAccepted bool) error {
	switch {
	case isAccepted:
		s.accepted++
	case m.status == killed:
		s.killed++
	case m.status == notCovered:
		s.notCovered++
	case m.status == doesNotBuild:
		s.notViable++
	case m.status == timedOut:
		s.timedOut++
		fmt.Println("timed out:", m)
	case m.status == lived:
		s.lived++
		fmt.Println("survived:", m)
	default:
		return fmt.Errorf("%s: unknown status %q", m, m.status)
	}
	return nil
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d:%d %s in %q", m.file, m.line, m.column, m.mutation, m.code)
}

// in returns the entry of accepted for m, if there is one.
func (m mutant) in(accepted []survivor) (survivor, bool) {
	for _, entry := range accepted {
		if entry.File == m.file && entry.Mutation == m.mutation && entry.Code == m.code {
			return entry, true
		}
	}
	return survivor{}, false
}
