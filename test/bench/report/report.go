// Package report holds the results of a benchmark and writes them as JSON and as Markdown. It does no other I/O.
package report

import (
	"encoding/json"
	"os"
	"slices"
	"time"
)

// Report is the result of one run on one machine.
type Report struct {
	Machine Machine `json:"machine"`
	// Revision is the version of the manager under test.
	Revision string `json:"revision"`
	// Base is the version that it is compared with, if there is one.
	Base string `json:"base,omitempty"`
	// Form is quick or full.
	Form    string    `json:"form"`
	Started time.Time `json:"started"`
	// Metrics describes the keys of Values.
	Metrics []Metric `json:"metrics"`
	Cases   []*Case  `json:"cases"`
}

// Machine describes where the benchmark ran.
type Machine struct {
	CPUs       int    `json:"cpus"`
	Model      string `json:"model"`
	MemoryMiB  int    `json:"memoryMiB"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
}

// Case is one experiment of a scenario, with all its rounds.
type Case struct {
	Scenario string  `json:"scenario"`
	Name     string  `json:"name"`
	Rounds   []Round `json:"rounds"`
	Ratios   []Ratio `json:"ratios"`
}

// Round is one measurement of one entry. An entry is a subject, or a subject under a named condition.
type Round struct {
	Number int    `json:"number"`
	Entry  string `json:"entry"`
	Values Values `json:"values"`
	// Calls counts the API calls for each certificate, by verb and resource.
	Calls map[string]float64 `json:"calls,omitempty"`
}

// Values are measurements by the key of their metric.
type Values map[string]float64

// Ratio compares the first entry of a case with another. A ratio of a rate above 1 means that the first entry is
// faster; a ratio of a time or of an amount below 1 means that it needs less.
type Ratio struct {
	Metric  string `json:"metric"`
	Entry   string `json:"entry"`
	Against string `json:"against"`
	Spread
}

// Spread describes the values of several rounds.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Entries returns the entries of c in the order of their first rounds.
func (c *Case) Entries() []string {
	var entries []string
	for _, round := range c.Rounds {
		if !slices.Contains(entries, round.Entry) {
			entries = append(entries, round.Entry)
		}
	}
	return entries
}

// Spread returns the spread of a metric of an entry. It reports false if no round measured it.
func (c *Case) Spread(entry, metric string) (Spread, bool) {
	var values []float64
	for _, round := range c.Rounds {
		if value, measured := round.Values[metric]; measured && round.Entry == entry {
			values = append(values, value)
		}
	}
	return spreadOf(values)
}

// Compare computes the ratios of the first entry to each other entry. A ratio compares the values of one round, so that
// a machine that becomes slower during a run changes both.
func (c *Case) Compare() {
	entries := c.Entries()
	if len(entries) == 0 {
		return
	}
	byRound := map[int]map[string]Values{}
	for _, round := range c.Rounds {
		if byRound[round.Number] == nil {
			byRound[round.Number] = map[string]Values{}
		}
		byRound[round.Number][round.Entry] = round.Values
	}
	c.Ratios = []Ratio{}
	for _, other := range entries[1:] {
		for _, metric := range Metrics {
			var ratios []float64
			for _, round := range byRound {
				of, by := round[entries[0]][metric.Key], round[other][metric.Key]
				if of > 0 && by > 0 {
					ratios = append(ratios, of/by)
				}
			}
			if spread, measured := spreadOf(ratios); measured {
				c.Ratios = append(c.Ratios, Ratio{metric.Key, entries[0], other, spread})
			}
		}
	}
}

// spreadOf reports false if values is empty.
func spreadOf(values []float64) (Spread, bool) {
	if len(values) == 0 {
		return Spread{}, false
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	s := Spread{Median: sorted[middle], Low: sorted[0], High: sorted[len(sorted)-1]}
	if len(sorted)%2 == 0 {
		s.Median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return s, true
}

// Percentile returns the smallest of values that at least the given share of them does not exceed. It returns 0 for no
// values.
func Percentile(values []time.Duration, share float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	index := int(share*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(index, 0), len(sorted)-1)]
}

// Latencies returns the percentiles of values.
func Latencies(values []time.Duration) Values {
	return Values{
		P50: milliseconds(Percentile(values, 0.50)), P99: milliseconds(Percentile(values, 0.99)),
		Longest: milliseconds(Percentile(values, 1)),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// WriteJSON writes r to path.
func (r *Report) WriteJSON(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
