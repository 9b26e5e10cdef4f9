package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// benchReport is what the charts need of the report that test/bench writes.
type benchReport struct {
	Metrics []struct {
		Key   string `json:"key"`
		Title string `json:"title"`
		Chart bool   `json:"chart"`
	} `json:"metrics"`
	Cases []benchCase `json:"cases"`
}

type benchCase struct {
	Scenario string `json:"scenario"`
	Name     string `json:"name"`
	Rounds   []struct {
		Entry  string             `json:"entry"`
		Values map[string]float64 `json:"values"`
	} `json:"rounds"`
}

// bar is the spread of a metric of one entry in one case.
type bar struct{ median, low, high float64 }

// palette has colours that are distinct for colour-blind readers too (Okabe and Ito).
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{213, 94, 0, 255},
}

// charts draws an SVG for each scenario and each metric that the report wants a chart of.
func charts(reportFile, folder string) error {
	data, err := os.ReadFile(reportFile)
	if err != nil {
		return err
	}
	var report benchReport
	if err := json.Unmarshal(data, &report); err != nil {
		return fmt.Errorf("read %s: %w", reportFile, err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	byScenario, scenarios := map[string][]benchCase{}, []string{}
	for _, c := range report.Cases {
		if !slices.Contains(scenarios, c.Scenario) {
			scenarios = append(scenarios, c.Scenario)
		}
		byScenario[c.Scenario] = append(byScenario[c.Scenario], c)
	}
	for _, scenario := range scenarios {
		for _, metric := range report.Metrics {
			if !metric.Chart {
				continue
			}
			file := filepath.Join(folder, scenario+"-"+fileName(metric.Title)+".svg")
			if err := chart(file, scenario, metric.Key, metric.Title, byScenario[scenario]); err != nil {
				return fmt.Errorf("draw %s: %w", file, err)
			}
		}
	}
	return nil
}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

func fileName(title string) string {
	return strings.Trim(notName.ReplaceAllString(strings.ToLower(title), "-"), "-")
}

// chart draws a group of bars for each case, and a bar for each entry with a line from its lowest to its highest
// value. It draws nothing if no case has the metric.
func chart(file, scenario, key, title string, cases []benchCase) error {
	cases = slices.DeleteFunc(slices.Clone(cases), func(c benchCase) bool { return len(c.entries(key)) == 0 })
	if len(cases) == 0 {
		return nil
	}
	var entries []string
	p := plot.New()
	p.Title.Text, p.Y.Label.Text, p.Y.Min = scenario, title, 0
	p.Legend.Top, p.Legend.Left = true, true
	names := make([]string, len(cases))
	for i, c := range cases {
		names[i] = c.Name
		for _, entry := range c.entries(key) {
			if !slices.Contains(entries, entry) {
				entries = append(entries, entry)
			}
		}
	}
	p.NominalX(names...)
	width := vg.Points(18)
	for i, entry := range entries {
		offset := width * vg.Length(float64(i)-float64(len(entries)-1)/2)
		if err := addBars(p, cases, entry, key, offset, width, palette[i%len(palette)]); err != nil {
			return err
		}
	}
	p.X.Min, p.X.Max = -0.5, float64(len(cases))-0.5
	p.Legend.Padding = vg.Points(3)
	p.Y.Max *= 1 + 0.09*float64(len(entries)) // room for the legend
	longest := len(slices.MaxFunc(names, func(a, b string) int { return len(a) - len(b) }))
	group := max(width*vg.Length(len(entries)+2), vg.Points(7*float64(longest))) // letters are 7 points wide
	across := max(group*vg.Length(len(cases))+vg.Inch, 6*vg.Inch)
	return p.Save(across, 4*vg.Inch, file)
}

// entries returns the entries of c that measured the metric, in the order of their rounds.
func (c benchCase) entries(key string) []string {
	var entries []string
	for _, round := range c.Rounds {
		if _, measured := round.Values[key]; measured && !slices.Contains(entries, round.Entry) {
			entries = append(entries, round.Entry)
		}
	}
	return entries
}

func (c benchCase) bar(entry, key string) bar {
	var values []float64
	for _, round := range c.Rounds {
		if value, measured := round.Values[key]; measured && round.Entry == entry {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		return bar{}
	}
	slices.Sort(values)
	middle := len(values) / 2
	b := bar{values[middle], values[0], values[len(values)-1]}
	if len(values)%2 == 0 {
		b.median = (values[middle-1] + values[middle]) / 2
	}
	return b
}

// addBars adds the bars of one entry.
func addBars(p *plot.Plot, cases []benchCase, entry, key string, offset, width vg.Length, fill color.Color) error {
	bars := make([]bar, len(cases))
	medians := make(plotter.Values, len(cases))
	for i, c := range cases {
		bars[i] = c.bar(entry, key)
		medians[i] = bars[i].median
	}
	chart, err := plotter.NewBarChart(medians, width)
	if err != nil {
		return err
	}
	chart.Color, chart.Offset, chart.LineStyle.Width = fill, offset, 0
	spread, err := plotter.NewYErrorBars(spreads(bars))
	if err != nil {
		return err
	}
	p.Add(chart, shifted{spread, offset})
	p.Legend.Add(entry, chart)
	return nil
}

// spreads are the bars as points with an error each.
type spreads []bar

func (s spreads) Len() int                { return len(s) }
func (s spreads) XY(i int) (x, y float64) { return float64(i), s[i].median }
func (s spreads) YError(i int) (low, high float64) {
	return s[i].low - s[i].median, s[i].high - s[i].median
}

// shifted draws error bars where a bar chart with the same offset has its bars.
type shifted struct {
	*plotter.YErrorBars
	offset vg.Length
}

func (s shifted) Plot(c draw.Canvas, p *plot.Plot) {
	c.Rectangle = c.Add(vg.Point{X: s.offset})
	s.YErrorBars.Plot(c, p)
}
