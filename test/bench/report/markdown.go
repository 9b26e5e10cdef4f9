package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Markdown returns r as a page with a table for each case.
func (r *Report) Markdown() string {
	var page strings.Builder
	fmt.Fprintf(&page, "# Benchmark of %s\n\n", r.Revision)
	if r.Base != "" {
		fmt.Fprintf(&page, "Compared with %s.\n\n", r.Base)
	}
	fmt.Fprintf(&page, "%s, %s form. %d CPUs (%s), %d MiB of memory, Linux %s, %s, Kubernetes %s. ",
		r.Started.UTC().Format(time.DateOnly), r.Form, r.Machine.CPUs, r.Machine.Model, r.Machine.MemoryMiB,
		r.Machine.Kernel, r.Machine.Go, r.Machine.Kubernetes)
	page.WriteString("A value is the median of the rounds. The lowest and the highest value are in brackets.\n")
	scenario := ""
	for _, c := range r.Cases {
		if c.Scenario != scenario {
			scenario = c.Scenario
			fmt.Fprintf(&page, "\n## %s\n", scenario)
		}
		fmt.Fprintf(&page, "\n### %s\n\n%s", c.Name, c.table())
		page.WriteString(c.ratioTable())
		page.WriteString(c.callTable())
	}
	return page.String()
}

// table returns a row for each entry and a column for each metric that a round has measured.
func (c *Case) table() string {
	columns := slices.DeleteFunc(slices.Clone(Metrics), func(m Metric) bool {
		return !slices.ContainsFunc(c.Rounds, func(r Round) bool { _, measured := r.Values[m.Key]; return measured })
	})
	header := []string{""}
	for _, column := range columns {
		header = append(header, column.Title)
	}
	rows := [][]string{header}
	for _, entry := range c.Entries() {
		row := []string{entry}
		for _, column := range columns {
			spread, measured := c.Spread(entry, column.Key)
			row = append(row, cell(spread, measured, column.Decimals))
		}
		rows = append(rows, row)
	}
	return markdownTable(rows)
}

// ratioTable returns a row for each metric that was compared, and a column for each entry that it was compared with.
func (c *Case) ratioTable() string {
	entries := c.Entries()
	if len(c.Ratios) == 0 {
		return ""
	}
	header := []string{"ratio of " + entries[0] + " to"}
	rows := [][]string{append(header, entries[1:]...)}
	for _, metric := range Metrics {
		row, any := []string{metric.Title}, false
		for _, other := range entries[1:] {
			index := slices.IndexFunc(c.Ratios, func(r Ratio) bool { return r.Metric == metric.Key && r.Against == other })
			if index < 0 {
				row = append(row, "")
				continue
			}
			row, any = append(row, cell(c.Ratios[index].Spread, true, 2)), true
		}
		if any {
			rows = append(rows, row)
		}
	}
	return "\n" + markdownTable(rows)
}

// callTable returns the API calls of the last round of each entry.
func (c *Case) callTable() string {
	last, names := map[string]map[string]float64{}, map[string]bool{}
	for _, round := range c.Rounds {
		if len(round.Calls) > 0 {
			last[round.Entry] = round.Calls
		}
		for name := range round.Calls {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return ""
	}
	rows := [][]string{append([]string{"API calls/certificate"}, c.Entries()...)}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := []string{name}
		for _, entry := range c.Entries() {
			count, measured := last[entry][name]
			row = append(row, cell(Spread{count, count, count}, measured, 2))
		}
		rows = append(rows, row)
	}
	return "\n" + markdownTable(rows)
}

// cell formats one value of a table.
func cell(s Spread, measured bool, decimals int) string {
	switch {
	case !measured:
		return ""
	case s.Low == s.High:
		return fmt.Sprintf("%.*f", decimals, s.Median)
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", decimals, s.Median, decimals, s.Low, decimals, s.High)
}

// markdownTable takes the header as the first row.
func markdownTable(rows [][]string) string {
	var table strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&table, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			table.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return table.String()
}
