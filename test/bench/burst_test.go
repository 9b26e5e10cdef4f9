//go:build nightly

package main

import (
	"os"
	"slices"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestMain lets the test program be the subject "floor".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lab.FloorCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestBurst runs a small burst as a smoke test. No time makes it fail.
func TestBurst(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	binary, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	s := settings{form: quick, Options: lab.Options{Binary: binary}}
	result, err := s.measure(t.Context(), []scenario{{name: "burst", quick: []experiment{{
		name: "100 requests", rounds: 1, entries: each(burst(100, 10), lab.Ours, lab.Unlimited, lab.Floor),
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	c := result.Cases[0]
	if got := c.Entries(); !slices.Equal(got, []string{"ours", "KCM unlimited", "floor"}) {
		t.Errorf("entries are %q", got)
	}
	for _, round := range c.Rounds {
		for _, metric := range []string{report.Rate, report.CPU, report.Calls, report.Peak} {
			if round.Values[metric] <= 0 {
				t.Errorf("%s has no %s: %v", round.Entry, metric, round.Values)
			}
		}
	}
}
