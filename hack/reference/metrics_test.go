package reference

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// metric is one of the manager's own metrics.
type metric struct {
	name, kind, help string
	labels           []string
}

// metrics returns a table of the manager's metrics, and of their labels.
func metrics(root string) (string, error) {
	all, err := findMetrics(root)
	if err != nil {
		return "", err
	}
	rows, used := newTable("metric", "meaning"), map[string]bool{}
	for _, m := range all {
		if err := m.findLabels(used); err != nil {
			return "", err
		}
		row, err := m.row()
		if err != nil {
			return "", err
		}
		rows.row(row...)
	}
	labels, err := describeLabels(used)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s\n## Labels\n\n%s", rows, labels), nil
}

// labelValues returns the values of labels, by "metric label" or by "label".
func labelValues() map[string]string {
	const reason = "a token of [reasons](reasons.md)"
	names := []string{check.OwnRights, check.OptionalRights, check.KubeletRights}
	phases := []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed}
	verdicts := []verdict.Verdict{verdict.Ignore, verdict.Approve, verdict.Wait, verdict.Deny}
	return map[string]string{
		"signer":                              "a configured signer name",
		"csr_requests signer":                 "a configured signer name, or `other`",
		"csr_requests_oldest_seconds signer":  "a configured signer name, or `other`",
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

// findLabels marks the values of the labels of m as used.
func (m metric) findLabels(used map[string]bool) error {
	known := labelValues()
	for _, label := range m.labels {
		key := m.name + " " + label
		if known[key] == "" {
			key = label
		}
		if known[key] == "" {
			return fmt.Errorf("%s: the values of the label %q are unknown: add them to labelValues", m.name, label)
		}
		used[key] = true
	}
	return nil
}

// row returns the cells of m. The type of a metric shows in its row or in its name: counters end in _total.
func (m metric) row() ([]string, error) {
	if (m.kind == "counter") != strings.HasSuffix(m.name, "_total") {
		return nil, fmt.Errorf("%s is a %s: the names of counters end in _total, and no others", m.name, m.kind)
	}
	name, help := m.name, prose(m.help)
	if len(m.labels) > 0 {
		name += "{" + strings.Join(m.labels, ",") + "}"
	}
	if m.kind == "histogram" {
		help = "Histogram: " + strings.ToLower(help[:1]) + help[1:]
	}
	return []string{quote(name), help}, nil
}

// describeLabels returns a table of the labels with their values, which must all be used.
func describeLabels(used map[string]bool) (*table, error) {
	known := labelValues()
	of := map[[2]string][]string{} // metrics by label and values
	for key, values := range known {
		if !used[key] {
			return nil, fmt.Errorf("no metric has the label %q", key)
		}
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
	return rows, nil
}

var (
	// constructor finds the start of a metric. A description is that of a gauge: the code makes no other.
	constructor = regexp.MustCompile(`prometheus\.New(Counter|Gauge|Histogram|Summary|Desc)(Vec)?\(`)
	// named finds the name and the help of a metric, and labelled its labels.
	named    = regexp.MustCompile(`^(?:prometheus\.\w+Opts\{\s*Name: *)?("[a-z_]+"),\s*(?:Help: *)?((?:"(?:[^"\\]|\\.)*"(?:\s\+\s+)?)+),`)
	labelled = regexp.MustCompile(`\[\]string\{([^}]*)\}`)
)

// findMetrics returns the metrics that the code makes, by name.
func findMetrics(root string) (all []metric, err error) {
	for _, folder := range []string{"controllers", "internal", "pkg"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			starts := constructor.FindAllSubmatchIndex(source, -1)
			for i, at := range starts {
				end := len(source)
				if i+1 < len(starts) {
					end = starts[i+1][0]
				}
				m, err := readMetric(string(source[at[2]:at[3]]), at[4] >= 0, string(source[at[1]:end]))
				if err != nil {
					return fmt.Errorf("%s: %w: %s", path, err, source[at[0]:at[1]])
				}
				all = append(all, m)
			}
			return nil
		}))
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return all, err
}

// readMetric reads the metric of that kind whose arguments text begins with.
func readMetric(kind string, vector bool, text string) (m metric, err error) {
	text, _, _ = strings.Cut(text, "\n\n")
	found := named.FindStringSubmatch(text)
	if found == nil {
		return metric{}, errors.New("want literals for name and help")
	}
	m.kind = strings.Replace(strings.ToLower(kind), "desc", "gauge", 1)
	texts := []string{found[1]}
	if vector || kind == "Desc" {
		labels := labelled.FindStringSubmatch(text)
		if labels == nil {
			return metric{}, errors.New("want a literal list of labels")
		}
		texts = append(texts, strings.Split(labels[1], ", ")...)
	}
	for i := range texts {
		if texts[i], err = strconv.Unquote(texts[i]); err != nil {
			return metric{}, err
		}
	}
	m.name, m.labels = texts[0], texts[1:]
	m.help, err = strconv.Unquote(regexp.MustCompile(`"\s\+\s+"`).ReplaceAllString(found[2], ""))
	return m, err
}
