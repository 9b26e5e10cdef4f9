package main

import (
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// survivor is an entry of accepted.yaml: a mutant that no test can kill, with the reason. It names the line by its code,
// because line numbers change.
type survivor struct {
	File     string `json:"file"`
	Mutation string `json:"mutation"`
	Code     string `json:"code"`
	Reason   string `json:"reason"`
}

func (s survivor) String() string { return fmt.Sprintf("%s: %s in %q", s.File, s.Mutation, s.Code) }

// readAccepted reads the entries, and checks that each has a reason and is listed once.
func readAccepted(file string) ([]survivor, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []survivor
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	seen := map[string]bool{}
	for _, one := range all {
		if one.Reason == "" || one.Code == "" || seen[one.String()] {
			return nil, fmt.Errorf("%s: %s has no reason or no code, or is listed twice", file, one)
		}
		seen[one.String()] = true
	}
	return all, nil
}

// score is the result of one package.
type score struct{ killed, lived, accepted, notCovered, timedOut int }

// efficacy returns the percentage of covered mutants that were killed. A mutant that timed out counts as neither, as in
// gremlins. Without a covered mutant it is 100.
func (s score) efficacy() float64 { return percent(s.killed, s.killed+s.lived) }

// coverage returns the percentage of mutants that unit tests cover.
func (s score) coverage() float64 {
	covered := s.killed + s.lived + s.accepted + s.timedOut
	return percent(covered, covered+s.notCovered)
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 100
	}
	return 100 * float64(part) / float64(whole)
}

func (s score) String() string {
	return fmt.Sprintf("killed %.1f %% of covered, covered %.1f %% (%d killed, %d survived, %d accepted, %d not covered, %d timed out)",
		s.efficacy(), s.coverage(), s.killed, s.lived, s.accepted, s.notCovered, s.timedOut)
}

// judge counts the mutants, and prints the survivors. It returns an error if a threshold is missed, or if an accepted
// mutant of these files did not survive.
func judge(all []mutant, accepted []survivor) (score, error) {
	var s score
	used, files := map[survivor]bool{}, map[string]bool{}
	for _, m := range all {
		files[m.file] = true
		entry, isAccepted := m.in(accepted)
		s.count(m, isAccepted)
		used[entry] = used[entry] || m.status == lived
	}
	var errs []error
	if s.efficacy() < minEfficacy {
		errs = append(errs, fmt.Errorf("%.1f %% of the covered mutants are killed, want %d %%", s.efficacy(), minEfficacy))
	}
	if s.coverage() < minCoverage {
		errs = append(errs, fmt.Errorf("unit tests cover %.1f %% of the mutants, want %d %%", s.coverage(), minCoverage))
	}
	for _, entry := range accepted {
		if files[entry.File] && !used[entry] {
			errs = append(errs, fmt.Errorf("accepted.yaml: %s does not survive any more: remove the entry", entry))
		}
	}
	return s, errors.Join(errs...)
}

// lived is gremlins' status of a survivor.
const lived = "LIVED"

// count adds m, and prints it if it survived without a reason.
func (s *score) count(m mutant, isAccepted bool) {
	switch {
	case m.status == "KILLED":
		s.killed++
	case m.status == "NOT COVERED":
		s.notCovered++
	case m.status == "TIMED OUT":
		s.timedOut++
	case m.status == lived && isAccepted:
		s.accepted++
	case m.status == lived:
		s.lived++
		fmt.Printf("survived: %s:%d:%d %s in %q\n", m.file, m.line, m.column, m.mutation, m.code)
	}
}

// in returns the entry of accepted for m, if there is one.
func (m mutant) in(accepted []survivor) (survivor, bool) {
	for _, one := range accepted {
		if one.File == m.file && one.Mutation == m.mutation && one.Code == m.code {
			return one, true
		}
	}
	return survivor{}, false
}
