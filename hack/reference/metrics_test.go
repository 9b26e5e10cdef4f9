package reference

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// metric is one of the manager's own metrics.
type metric struct {
	name, kind, help string
	labels           []string
}

// metrics returns a table of the manager's metrics, and of their labels. The type of a metric shows in its row or in its name: counters end
// in _total.
func metrics(t *testing.T) string {
	t.Helper()
	rows, known, used := newTable("metric", "meaning"), labelValues(), map[string]bool{}
	for _, m := range findMetrics(t) {
		expect.True(t, (m.kind == "counter") == strings.HasSuffix(m.name, "_total"),
			"%s is a %s: the names of counters end in _total, and no others", m.name, m.kind)
		name, help := m.name, prose(m.help)
		if len(m.labels) > 0 {
			name += "{" + strings.Join(m.labels, ",") + "}"
		}
		if m.kind == "histogram" {
			help = "Histogram: " + strings.ToLower(help[:1]) + help[1:]
		}
		rows.row(quote(name), help)
		for _, label := range m.labels {
			key := m.name + " " + label
			if known[key] == "" {
				key = label
			}
			used[key] = true
		}
	}
	expect.Equal(t, "labels of labelValues that metrics have", slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(known)))
	return fmt.Sprintf("%s\n## Labels\n\n%s", rows, describeLabels(known))
}

// labelValues returns the values of labels, by "metric label" or by "label".
func labelValues() map[string]string {
	const reason = "a token of [reasons](reasons.md)"
	names := []string{check.OwnRights, check.OptionalRights, check.KubeletRights}
	phases := []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed}
	verdicts := []judge.Verdict{judge.Ignore, judge.Approve, judge.Wait, judge.Deny}
	return map[string]string{
		"signer":                              "a configured signer name",
		"csr_requests signer":                 "a configured signer name, or `other`",
		"csr_requests_oldest_seconds signer":  "a configured signer name, or `other`",
		"cluster":                             "`home` or `served`; empty if [both are one](../how-to/host-a-control-plane-elsewhere.md)",
		"state":                               values(csr.States()),
		"phase":                               values(phases),
		"verdict":                             values(verdicts),
		"rule":                                "`selfnodeclient`, `nodeclient`, `kubelet-serving`, a configured approval rule, or empty if no rule approves",
		"csr_approver_rule_total rule":        "a configured approval rule",
		"csr_approver_rule_total verdict":     "`Approve`, `Wait`, `Unknown`",
		"csr_approver_decisions_total reason": reason,
		"csr_approver_dry_run_total reason":   reason,
		"csr_signer_outcomes_total reason":    reason + ", empty for `Issued`",
		"csr_signer_dry_run_total reason":     reason,
		"csr_cleaner_deleted_total reason":    "`Due`",
		"csr_cleaner_dry_run_total reason":    "`Due`",
		"reason": "the API server's reason: `Conflict`, `Forbidden`, `Unauthorized`, `InternalError`, `ServerTimeout`, " +
			"`ServiceUnavailable`, `Timeout`, `TooManyRequests`; or `Other`",
		"outcome":                            "`Issued`, `Failed`, `Wait`, `Ignore`",
		"csr_approver_review_seconds result": "`allowed`, `refused`, `error`",
		"csr_signer_ca_reloads_total result": "`accepted`, `rejected`",
		"csr_check_result result":            values(check.Statuses()),
		"check":                              quoted(names),
		"server":                             "the `host:port` of an API server",
		"verb":                               "such as `update`",
		"resource":                           "such as `certificatesigningrequests/approval.certificates.k8s.io`",
	}
}

// values returns all as code, separated by commas.
func values[T any](all []T) string {
	var texts []string
	for _, value := range all {
		texts = append(texts, fmt.Sprint(value))
	}
	return quoted(texts)
}

// describeLabels returns a table of the labels with their values.
func describeLabels(known map[string]string) *table {
	of := map[[2]string][]string{} // metrics by label and values
	for key, values := range known {
		if metric, label, special := strings.Cut(key, " "); special {
			of[[2]string{label, values}] = append(of[[2]string{label, values}], metric)
		} else {
			of[[2]string{key, values}] = nil
		}
	}
	rows := newTable("label", "values")
	for _, key := range slices.SortedFunc(maps.Keys(of), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		label := quote(key[0])
		if metrics := of[key]; len(metrics) > 0 {
			slices.Sort(metrics)
			label += " of " + quoted(metrics)
		}
		rows.row(label, key[1])
	}
	return rows
}

var (
	// constructor finds the start of a metric. Only gauges are made without the package metric: those that rotation registers
	// together, and descriptions.
	constructor = regexp.MustCompile(`\b(?:metric\.|prometheus\.New)(Counter|Gauge|Histogram|Summary|Desc)\w*\(`)
	// arguments finds the name, the help and the labels of a metric, and literal a text in them.
	arguments = regexp.MustCompile(`^(?:prometheus\.GaugeOpts\{\s*Name: *)?"([a-z_]+)",\s*(?:Help: *)?((?:"(?:[^"\\]|\\.)*"(?:\s*\+\s+)?)+),?([^)]*)\)`)
	literal   = regexp.MustCompile(`"([a-z_]+)"`)
)

// findMetrics returns the metrics that the code makes, by name.
func findMetrics(t *testing.T) (all []metric) {
	t.Helper()
	for _, folder := range []string{"controllers", "internal", "pkg"} {
		expect.NoError(t, fs.WalkDir(os.DirFS(root), folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || path == "internal/metric/metric.go" {
				return err
			}
			source := read(t, path)
			for _, at := range constructor.FindAllStringSubmatchIndex(source, -1) {
				found := arguments.FindStringSubmatch(source[at[1]:])
				if found == nil {
					t.Errorf("%s: want literals for name, help and labels: %s", path, source[at[0]:at[1]])
					continue
				}
				m := metric{name: found[1], kind: strings.Replace(strings.ToLower(source[at[2]:at[3]]), "desc", "gauge", 1)}
				for _, label := range literal.FindAllStringSubmatch(found[3], -1) {
					m.labels = append(m.labels, label[1])
				}
				m.help, err = strconv.Unquote(regexp.MustCompile(`"\s*\+\s+"`).ReplaceAllString(found[2], ""))
				if err != nil {
					return err
				}
				all = append(all, m)
			}
			return nil
		}))
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return all
}
