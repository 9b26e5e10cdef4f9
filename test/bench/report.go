// Package bench measures this manager beside kube-controller-manager, on real control planes. "make bench" runs it, and
// docs/explanation/performance.md has the results.
package bench

import (
	"fmt"
	"slices"
	"strings"
)

const (
	rate    = "certificates/s"
	p50     = "p50 ms"
	p99     = "p99 ms"
	first   = "start to first certificate s"
	cpu     = "own CPU ms/certificate"
	calls   = "API calls/certificate"
	peak    = "peak memory MiB"
	settled = "settled memory MiB"
	live    = "live heap MiB"
)

// columns are all metrics, in their order in a table.
var columns = []string{rate, p50, p99, first, cpu, calls, peak, settled, live}

// values are the measurements of a round, by their metric.
type values map[string]float64

// round is one measurement of one entry. An entry is a program, or a program under a named condition.
type round struct {
	number int
	entry  string
	values values
}

// table returns a table with a row for each entry, and for the ratio of the first entry to each other one. A ratio compares the values of
// one round, so that a machine that becomes slower during a run changes both.
func table(rounds []round) string {
	var entries, header []string
	measured := map[string]map[int]values{}
	for _, one := range rounds {
		if measured[one.entry] == nil {
			entries, measured[one.entry] = append(entries, one.entry), map[int]values{}
		}
		measured[one.entry][one.number] = one.values
	}
	for _, metric := range columns {
		if slices.ContainsFunc(rounds, func(one round) bool { return one.values[metric] > 0 }) {
			header = append(header, metric)
		}
	}
	text := "|  | " + strings.Join(header, " | ") + " |\n" + strings.Repeat("|---", len(header)+1) + "|\n"
	row := func(name string, of, by map[int]values) {
		text += "| " + name
		for _, metric := range header {
			text += " | " + spread(known(of, by, metric))
		}
		text += " |\n"
	}
	for _, entry := range entries {
		row(entry, measured[entry], nil)
	}
	for _, other := range entries[min(1, len(entries)):] {
		row(entries[0]+" ÷ "+other, measured[entries[0]], measured[other])
	}
	return text
}

// known returns what was measured of metric in each round of one entry, divided by that of the entry by in the same round unless by is nil.
func known(of, by map[int]values, metric string) []float64 {
	var all []float64
	for number, one := range of {
		switch value, divisor := one[metric], by[number][metric]; {
		case value > 0 && by == nil:
			all = append(all, value)
		case value > 0 && divisor > 0:
			all = append(all, value/divisor)
		}
	}
	return all
}

// spread returns the median of all, and the lowest and the highest value if there are several.
func spread(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	middle := (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	if len(all) == 1 {
		return digits(middle)
	}
	return fmt.Sprintf("%s (%s–%s)", digits(middle), digits(all[0]), digits(all[len(all)-1]))
}

func digits(value float64) string {
	if value < 10 {
		return fmt.Sprintf("%.2f", value)
	}
	return fmt.Sprintf("%.0f", value)
}
