package reference

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"testing"
)

func TestFill(t *testing.T) {
	t.Parallel()
	part := func(name string) (string, error) {
		if name == "broken" {
			return "", errors.New("no such comment")
		}
		return "new " + name + "\n", nil
	}
	for name, test := range map[string]struct{ page, want, problem string }{
		"no part": {page: "a\n", want: "a\n"},
		"two parts": {
			page: "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb\n<!-- generated: y -->\n<!-- end: y -->\n",
			want: "a\n<!-- generated: x -->\n\nnew x\n\n<!-- end: x -->\nb\n<!-- generated: y -->\n\nnew y\n\n<!-- end: y -->\n",
		},
		"other end":   {page: "<!-- generated: x -->\n<!-- end: y -->", problem: `part "x": ends as "y"`},
		"broken part": {page: "<!-- generated: broken -->\n<!-- end: broken -->", problem: `part "broken": no such comment`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := fill(test.page, part)
			problem := ""
			if err != nil {
				problem = err.Error()
			}
			if problem != test.problem || problem == "" && got != test.want {
				t.Errorf("got %q, error %q; want %q, error %q", got, problem, test.want, test.problem)
			}
		})
	}
}

func TestProse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"one\n  two":                "one two",
		"O=a* or <b> | c_d":         `O=a\* or &lt;b> \| c\_d`,
		"code `*.suffix <x> a_b|c`": "code `*.suffix <x> a_b\\|c`",
	} {
		if got := prose(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestBare(t *testing.T) {
	t.Parallel()
	for comment, want := range map[string]string{
		"Path is a file.":     "A file.",
		"Path lists files.":   "Lists files.",
		"Path of the file.":   "Path of the file.",
		"Path as host:port.":  "Path as host:port.",
		"Files are in folder": "Files are in folder",
	} {
		if got := bare(comment, "Path"); got != want {
			t.Errorf("%q became %q, want %q", comment, got, want)
		}
	}
}

func TestReadMetric(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		`prometheus.NewGauge(prometheus.GaugeOpts{Name: "a", Help: "b" + "c"})`:                    "gauge a: bc []",
		`prometheus.NewCounterVec(prometheus.CounterOpts{Name: "a", Help: "b"}, []string{"x"})`:    "counter a: b [x]",
		`prometheus.NewDesc("a", "b", nil, nil)`:                                                   "gauge a: b []",
		`prometheus.NewCounterVec(prometheus.CounterOpts{Name: "a", Help: "b"}, labels)`:           "labels of a: want a literal list",
		`prometheus.NewCounterVec(prometheus.CounterOpts{Name: "a", Help: "b"}, []string{x, "y"})`: "labels of a: want literals",
		`prometheus.NewGauge(options)`:                                                             "a Gauge whose name and help are no literals",
		`other.NewGauge(options)`:                                                                  "none",
	} {
		call, err := parser.ParseExpr(code)
		if err != nil {
			t.Fatal(err)
		}
		got := "none"
		switch m, err := readMetric(call.(*ast.CallExpr)); {
		case err != nil:
			got = err.Error()
		case m != nil:
			got = fmt.Sprintf("%s %s: %s %v", m.kind, m.name, m.help, m.labels)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", code, got, want)
		}
	}
}
