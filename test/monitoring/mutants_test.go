//go:build mutants

package monitoring

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// mutants change a rule so that its tests must notice. They return false if the rule has nothing to change.
var mutants = map[string]func(*rule) bool{
	"never fires":  func(r *rule) bool { r.Expr = "vector(0) > 1"; return true },
	"always fires": func(r *rule) bool { r.Expr = "vector(1)"; return true },
	"at once":      func(r *rule) bool { had := r.For != ""; r.For = ""; return had },
	"after twice as long": func(r *rule) bool {
		amount, unit := 0, ""
		if _, err := fmt.Sscanf(r.For, "%d%s", &amount, &unit); err != nil {
			return false
		}
		r.For = fmt.Sprint(2*amount, unit)
		return true
	},
	"does not linger": func(r *rule) bool { had := r.KeepFiringFor != ""; r.KeepFiringFor = ""; return had },
	"at the boundary": func(r *rule) bool {
		other := strings.NewReplacer(">=", ">", "<=", "<", ">", ">=", "<", "<=")
		return replace(r, regexp.MustCompile(`[<>]=?( |$)`), other.Replace)
	},
	"one more": func(r *rule) bool { return shift(r, 1) },
	"one less": func(r *rule) bool { return shift(r, -1) },
	"each replica for itself": func(r *rule) bool {
		return replace(r, regexp.MustCompile(`by \(([a-z, ]*)\)`), strings.NewReplacer(")", ", pod)").Replace)
	},
	"only what was never seen": func(r *rule) bool {
		return r.Alert == "CSRManagerAbsent" && replace(r, regexp.MustCompile(`(?s)\s+or\s.*`), func(string) string { return "" })
	},
	"only what has gone": func(r *rule) bool {
		return r.Alert == "CSRManagerAbsent" && replace(r, regexp.MustCompile(`(?s)^.*\sor\s+`), func(string) string { return "" })
	},
	"all clusters together": func(r *rule) bool {
		return slices.Contains([]string{"CSRNotIssued", "CSRKubeletClientExpiring", "CSRManagerAbsent"}, r.Alert) &&
			replace(r, regexp.MustCompile(`\(cluster(, )?`), func(string) string { return "(" })
	},
}

func replace(r *rule, pattern *regexp.Regexp, by func(string) string) bool {
	changed := pattern.ReplaceAllStringFunc(r.Expr, by)
	different := changed != r.Expr
	r.Expr = changed
	return different
}

// shift changes a threshold of seconds.
func shift(r *rule, by int) bool {
	return replace(r, regexp.MustCompile(`\b(300|86400)\b`), func(number string) string {
		value := 0
		_, _ = fmt.Sscan(number, &value)
		return fmt.Sprint(value + by)
	})
}

// TestRulesAreTested changes one rule of each name at a time, and checks that promtool fails on each of them.
func TestRulesAreTested(t *testing.T) {
	t.Parallel()
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for nth := 0; ; nth++ {
				file, seen := readRules(t), map[string]int{}
				var changed []string
				for _, r := range file.rules() { // change the nth rule of each name
					if seen[r.Alert] == nth && mutant(r) {
						changed = append(changed, r.Alert)
					}
					seen[r.Alert]++
				}
				kit.Check(t, len(changed) > 0 || nth != 0, "no rule to change")
				if len(changed) == 0 {
					return
				}
				for _, alert := range survivors(t, file, changed) {
					t.Errorf("no test fails when rule %d of %s %s", nth, alert, name)
				}
			}
		})
	}
}

// survivors returns the alerts for which no rule test fails. It leaves out the other rules, which is faster.
func survivors(t *testing.T, file ruleFile, alerts []string) []string {
	t.Helper()
	dir, args := t.TempDir(), []string{"test", "rules"}
	for i := range file.Groups {
		file.Groups[i].Rules = slices.DeleteFunc(file.Groups[i].Rules, func(r *rule) bool { return !slices.Contains(alerts, r.Alert) })
	}
	kit.Write(t, filepath.Join(dir, "alerts.yaml"), kit.Must(yaml.Marshal(file))(t))
	for _, path := range ruleTests(t) {
		text := string(read(t, path))
		if slices.ContainsFunc(alerts, func(alert string) bool { return strings.Contains(text, "alertname: "+alert) }) {
			moved := filepath.Join(dir, filepath.Base(path))
			kit.Write(t, moved, []byte(strings.Replace(text, "../../../config/prometheus/alerts.yaml", "alerts.yaml", 1)))
			args = append(args, moved)
		}
	}
	output, _ := promtool(t, args...)
	return slices.DeleteFunc(alerts, func(alert string) bool {
		return strings.Contains(output, "alertname: "+alert+",") || strings.Contains(output, "rule: "+alert+",")
	})
}
