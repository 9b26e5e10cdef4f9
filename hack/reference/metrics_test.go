package reference

import (
	"errors"
	"fmt"
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
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

// findMetrics returns the metrics that the code makes, by name.
func findMetrics(root string) ([]metric, error) {
	dirs, err := packages(root, "controllers", "internal", "pkg")
	if err != nil {
		return nil, err
	}
	var all []metric
	for _, dir := range dirs {
		parsed, err := files(dir)
		if err != nil {
			return nil, err
		}
		for _, file := range parsed {
			ast.Inspect(file, func(node ast.Node) bool {
				if call, is := node.(*ast.CallExpr); is && err == nil {
					var found *metric
					if found, err = readMetric(call); found != nil {
						all = append(all, *found)
					}
				}
				return true
			})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.ToSlash(dir), err)
		}
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// readMetric returns the metric that call makes, or nil. A description is that of a gauge: the code makes no other.
func readMetric(call *ast.CallExpr) (*metric, error) {
	kind := constructed(call)
	m := &metric{kind: strings.ToLower(kind)}
	var labels ast.Expr
	switch kind {
	case "Counter", "Gauge", "Histogram", "Summary":
		m.readOptions(call.Args[0])
		if len(call.Args) > 1 {
			labels = call.Args[1]
		}
	case "Desc":
		m.kind = "gauge"
		m.name, _ = text(call.Args[0])
		m.help, _ = text(call.Args[1])
		labels = call.Args[2]
	default:
		return nil, nil
	}
	if m.name == "" || m.help == "" {
		return nil, fmt.Errorf("a %s whose name and help are no literals", kind)
	}
	var err error
	m.labels, err = literals(labels)
	if err != nil {
		return nil, fmt.Errorf("labels of %s: %w", m.name, err)
	}
	return m, nil
}

// literals returns the strings in a literal list, or nothing if list is absent or nil.
func literals(list ast.Expr) ([]string, error) {
	if name, is := list.(*ast.Ident); list == nil || is && name.Name == "nil" {
		return nil, nil
	}
	literal, is := list.(*ast.CompositeLit)
	if !is {
		return nil, errors.New("want a literal list")
	}
	var all []string
	for _, element := range literal.Elts {
		each, is := text(element)
		if !is {
			return nil, errors.New("want literals")
		}
		all = append(all, each)
	}
	return all, nil
}

// constructed returns what call constructs: X if it calls prometheus.NewX or prometheus.NewXVec, else "".
func constructed(call *ast.CallExpr) string {
	function, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return ""
	}
	if from, is := function.X.(*ast.Ident); !is || from.Name != "prometheus" || len(call.Args) == 0 {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(function.Sel.Name, "New"), "Vec")
}

// readOptions reads the name and the help of m.
func (m *metric) readOptions(options ast.Expr) {
	literal, is := options.(*ast.CompositeLit)
	if !is {
		return
	}
	for _, element := range literal.Elts {
		pair, is := element.(*ast.KeyValueExpr)
		if !is {
			continue
		}
		switch key, _ := pair.Key.(*ast.Ident); key.Name {
		case "Name":
			m.name, _ = text(pair.Value)
		case "Help":
			m.help, _ = text(pair.Value)
		}
	}
}
