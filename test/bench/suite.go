package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// Forms of a scenario.
const (
	quick = "quick" // under two minutes
	full  = "full"  // for a nightly run
)

// settle is the pause before the settled memory is measured.
var settle = map[string]time.Duration{quick: 5 * time.Second, full: 150 * time.Second}

// scenario is a situation that a manager meets in a cluster.
type scenario struct {
	name string
	// quick and full are the experiments of the two forms.
	quick, full []experiment
}

// experiment compares entries in turn on a fresh control plane.
type experiment struct {
	name   string
	rounds int
	// prepare prepares the control plane for all rounds. It may be nil.
	prepare func(context.Context, *lab.Lab) error
	// entries are in the order of the report. The first is compared with each other one.
	entries []entry
}

// entry is a subject, or a subject under a named condition.
type entry struct {
	name    string
	subject lab.Subject
	run     round
}

// round measures once.
type round func(context.Context, *lab.Lab) (report.Round, error)

// each returns an entry for each subject.
func each(run func(lab.Subject) round, subjects ...lab.Subject) []entry {
	entries := make([]entry, len(subjects))
	for i, s := range subjects {
		entries[i] = entry{s.Name, s, run(s)}
	}
	return entries
}

// choose returns the chosen scenarios.
func (s *settings) choose() ([]scenario, error) {
	if s.form != quick && s.form != full {
		return nil, fmt.Errorf("-form is %q, want %s or %s", s.form, quick, full)
	}
	if s.scenario == "" {
		return scenarios(), nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(s.scenario, ",") {
		index := slices.IndexFunc(scenarios(), func(one scenario) bool { return one.name == name })
		if index < 0 {
			return nil, fmt.Errorf("no scenario %q, want one of %s", name, strings.Join(scenarioNames(), ", "))
		}
		chosen = append(chosen, scenarios()[index])
	}
	return chosen, nil
}

func scenarioNames() []string {
	var names []string
	for _, one := range scenarios() {
		names = append(names, one.name)
	}
	return names
}

// measure runs the experiments of all chosen scenarios.
func (s *settings) measure(ctx context.Context, chosen []scenario) (*report.Report, error) {
	result := &report.Report{
		Revision: s.revision, Base: s.baseRevision, Form: s.form, Started: time.Now(),
		Metrics: report.Metrics, Cases: []*report.Case{},
	}
	for _, one := range chosen {
		experiments := one.quick
		if s.form == full {
			experiments = one.full
		}
		begun := time.Now()
		for _, e := range experiments {
			if e.entries = s.measured(e.entries); len(e.entries) == 0 || !strings.Contains(e.name, s.experiment) {
				continue
			}
			c, err := s.perform(ctx, e, result)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", one.name, e.name, err)
			}
			c.Scenario = one.name
			result.Cases = append(result.Cases, c)
		}
		fmt.Printf("%s took %s\n", one.name, time.Since(begun).Round(time.Second))
	}
	return result, nil
}

// measured returns the entries that the flags leave. The other revision is left out if there is none.
func (s *settings) measured(entries []entry) []entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e entry) bool {
		chosen := s.subjects == "" || slices.Contains(strings.Split(s.subjects, ","), e.subject.Name)
		return !chosen || s.Base == "" && e.subject.Name == lab.Base.Name
	})
}

// perform runs the rounds of e. Every second round has the reverse order, so that a machine that becomes slower does
// not favour an entry.
func (s *settings) perform(ctx context.Context, e experiment, result *report.Report) (c *report.Case, err error) {
	l, err := lab.Start(ctx, s.Options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Stop()) }()
	if result.Machine, err = l.Machine(); err != nil {
		return nil, err
	}
	if e.prepare != nil {
		if err := e.prepare(ctx, l); err != nil {
			return nil, err
		}
	}
	if s.rounds > 0 {
		e.rounds = s.rounds
	}
	c = &report.Case{Name: e.name}
	for number := 1; number <= e.rounds; number++ {
		order := slices.Clone(e.entries)
		if number%2 == 0 {
			slices.Reverse(order)
		}
		for _, one := range order {
			begun := time.Now()
			measured, err := one.run(ctx, l)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", one.name, number, err)
			}
			measured.Number, measured.Entry = number, one.name
			c.Rounds = append(c.Rounds, measured)
			fmt.Printf("%s, round %d, %s: %s (%s)\n",
				e.name, number, one.name, measured.Values, time.Since(begun).Round(time.Second))
		}
	}
	c.Compare()
	return c, nil
}
