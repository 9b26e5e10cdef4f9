package report

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func twoRounds() *Case {
	c := &Case{Scenario: "burst", Name: "2,000 requests", Rounds: []Round{
		{Number: 1, Entry: "ours", Values: Values{Rate: 300, CPU: 1}, Calls: map[string]float64{"POST leases": 0.5}},
		{Number: 1, Entry: "floor", Values: Values{Rate: 200}},
		{Number: 2, Entry: "floor", Values: Values{Rate: 100}},
		{Number: 2, Entry: "ours", Values: Values{Rate: 100, CPU: 3}},
	}}
	c.Compare()
	return c
}

func TestCompareDividesValuesOfTheSameRound(t *testing.T) {
	t.Parallel()
	want := []Ratio{{Rate, "ours", "floor", Spread{Median: 1.25, Low: 1, High: 1.5}}}
	if diff := cmp.Diff(want, twoRounds().Ratios); diff != "" {
		t.Error(diff)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	values := []time.Duration{4, 1, 3, 2}
	for share, want := range map[float64]time.Duration{0: 1, 0.25: 1, 0.5: 2, 0.75: 3, 0.99: 4, 1: 4} {
		if got := Percentile(values, share); got != want {
			t.Errorf("percentile %v is %d, want %d", share, got, want)
		}
	}
	if got := Percentile(nil, 0.5); got != 0 {
		t.Errorf("percentile of no values is %d", got)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	r := &Report{
		Revision: "v1", Form: "quick", Started: time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC),
		Cases:   []*Case{twoRounds()},
		Machine: Machine{CPUs: 2, Model: "Example", MemoryMiB: 4096, Kernel: "6.1", Go: "go1.26", Kubernetes: "v1.37.1"},
	}
	want := `# Benchmark of v1

2026-03-01, quick form. 2 CPUs (Example), 4096 MiB of memory, Linux 6.1, go1.26, Kubernetes v1.37.1. ` +
		`A value is the median of the rounds. The lowest and the highest value are in brackets.

## burst

### 2,000 requests

|  | certificates/s | own CPU ms/certificate |
|---|---|---|
| ours | 200 (100–300) | 2.00 (1.00–3.00) |
| floor | 150 (100–200) |  |

| ratio of ours to | floor |
|---|---|
| certificates/s | 1.25 (1.00–1.50) |

| API calls/certificate | ours | floor |
|---|---|---|
| POST leases | 0.50 |  |
`
	if diff := cmp.Diff(want, r.Markdown()); diff != "" {
		t.Error(diff)
	}
}
