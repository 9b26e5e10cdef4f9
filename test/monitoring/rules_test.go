// Package monitoring tests the monitoring of the manager: alert rules, their runbooks and the dashboard. It uses
// promtool and a real Prometheus that scrapes real managers.
package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	operatorFile = "../../config/prometheus/rules.yaml"  // the source
	plainFile    = "../../config/prometheus/alerts.yaml" // made from it
	runbook      = "../../docs/runbooks/README.md"
	runbookURL   = "https://github.com/csr-controller-manager/csr-controller-manager/blob/main/docs/runbooks/README.md"
)

// The live tests share a control plane.
func TestMain(m *testing.M) { kit.Main(m, 1) }

type rule struct {
	Alert         string            `json:"alert"`
	Expr          string            `json:"expr"`
	For           string            `json:"for,omitempty"`
	KeepFiringFor string            `json:"keep_firing_for,omitempty"`
	Labels        map[string]string `json:"labels"`
	Annotations   map[string]string `json:"annotations"`
}

// ruleFile is a rule file in Prometheus' own form.
type ruleFile struct {
	Groups []struct {
		Name  string  `json:"name"`
		Rules []*rule `json:"rules"`
	} `json:"groups"`
}

func (f ruleFile) rules() []*rule {
	var all []*rule
	for _, group := range f.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	return kit.Must(os.ReadFile(path))(t)
}

func readRules(t *testing.T) ruleFile {
	t.Helper()
	var file ruleFile
	kit.NoError(t, yaml.UnmarshalStrict(read(t, plainFile), &file))
	return file
}

// TestPlainRules compares the two forms line by line, including comments. With UPDATE=1 it writes the plain form.
func TestPlainRules(t *testing.T) {
	_, spec, found := bytes.Cut(read(t, operatorFile), []byte("\nspec:\n"))
	kit.Require(t, found, "no spec")
	want := regexp.MustCompile(`(?m)^  `).ReplaceAll(spec, nil)
	if os.Getenv("UPDATE") != "" {
		kit.NoError(t, os.WriteFile(plainFile, want, 0o600))
	}
	kit.Equal(t, "UPDATE=1 go test -run TestPlainRules ./test/monitoring makes it right", string(read(t, plainFile)), string(want))
}

// TestRunbooks checks that each alert has the annotations that its reader needs, and a section in the runbook, and that there
// are no other sections.
func TestRunbooks(t *testing.T) {
	intro, text, _ := strings.Cut(string(read(t, runbook)), "\n## What each replica says\n")
	sections := map[string]string{}
	for _, section := range strings.Split(text, "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	alerts := map[string]bool{}
	for _, r := range readRules(t).rules() {
		alerts[r.Alert] = true
		severity, anchor, annotations := r.Labels["severity"], "#"+strings.ToLower(r.Alert), r.Annotations
		kit.Check(t, slices.Contains([]string{"info", "warning", "critical"}, severity), "%s has severity %q", r.Alert, severity)
		kit.Check(t, annotations["runbook_url"] == runbookURL+anchor, "%s has runbook_url %s", r.Alert, annotations["runbook_url"])
		kit.Check(t, annotations["summary"] != "" && annotations["description"] != "", "%s has annotations %v", r.Alert, annotations)
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^- \[%s\]\(%s\):.*\b%s\b`, r.Alert, anchor, severity))
		kit.Check(t, row.MatchString(intro), "%s does not list %s with severity %s", runbook, r.Alert, severity)
		for _, part := range []string{"\n**Meaning:** ", "\n```sh\n", "\n**Do:**", "\n**Over** "} {
			kit.Check(t, strings.Contains(sections[r.Alert], part), "section %s of %s has no %q", r.Alert, runbook, part)
		}
	}
	kit.Equal(t, "sections of "+runbook, slices.Sorted(maps.Keys(sections)), slices.Sorted(maps.Keys(alerts)))
}

// tool returns the path of a program of hack/monitoring/get.sh.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	kit.Require(t, path != "", "%s is not set: run the tests with make test", variable)
	return path
}

func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), tool(t, "PROMTOOL"), args...).CombinedOutput()
	return string(output), err
}

func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", plainFile}, append([]string{"test", "rules"}, ruleTests(t)...)} {
		output, err := promtool(t, args...)
		kit.Check(t, err == nil, "%v\n%s", err, output)
	}
}

func ruleTests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("rules/*.yaml")
	kit.Require(t, err == nil && len(files) > 0, "%d files, error %v", len(files), err)
	return files
}

const dashboardFile = "../../config/grafana/csr-controller-manager.json"

type datasource struct{ Type, UID string }

// dashboard is the part of Grafana's model that the tests read.
type dashboard struct {
	UID, Title string
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type, AllValue string
			IncludeAll           bool
			Query                any
			Datasource           datasource
		}
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               datasource
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                datasource
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	kit.NoError(t, json.Unmarshal(read(t, dashboardFile), &d))
	return d
}

// queries returns the queries of the panels by panel and letter, with values for Grafana's variables.
func (d dashboard) queries() map[string]string {
	found := map[string]string{}
	values := strings.NewReplacer("$__rate_interval", "1m", "$cluster", ".*", "$job", ".+")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			found[p.Title+" "+target.RefID] = values.Replace(target.Expr)
		}
	}
	return found
}

// TestDashboard checks that the dashboard works on any Grafana: panels do not overlap, have descriptions, and use the data source and the
// clusters that the user selects. The variables choose all by default, also where series have no label cluster.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	variables := map[string]string{"datasource": "", "cluster": ".*", "job": ".+"}
	for _, v := range d.Templating.List {
		all, known := variables[v.Name]
		isSource := v.Type == "datasource" && v.Query == "prometheus"
		isRight := known && v.AllValue == all && v.IncludeAll == (all != "") && isSource == (v.Name == "datasource")
		kit.Check(t, isRight, "variable %s: %+v", v.Name, v)
		delete(variables, v.Name)
	}
	kit.Check(t, len(variables) == 0, "no variables %v", variables)
	chosen := datasource{"prometheus", "${datasource}"}
	cells, ids, targets := map[[2]int]string{}, map[int]bool{}, 0
	for _, p := range d.Panels {
		kit.Check(t, !ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				cell := [2]int{x, y}
				kit.Check(t, cells[cell] == "" && x < 24, "panel %s is over %s, or beyond the edge", p.Title, cells[cell])
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		kit.Check(t, p.Description != "" && p.Datasource == chosen && len(p.Targets) > 0,
			"panel %s has description %q, data source %v, %d queries", p.Title, p.Description, p.Datasource, len(p.Targets))
		for _, target := range p.Targets {
			targets++
			isRight := target.Datasource == chosen && target.LegendFormat != "" && strings.Contains(target.Expr, `cluster=~"$cluster"`)
			kit.Check(t, isRight, "panel %s, query %s: %+v", p.Title, target.RefID, target)
		}
	}
	queries := d.queries()
	kit.Check(t, len(queries) == targets && targets > 0, "%d queries have %d names", targets, len(queries))
	for name, query := range queries { // TestLive runs them
		kit.Check(t, !strings.Contains(query, "$"), "%s has an unknown variable: %s", name, query)
	}
}

// absent finds what no query of the lab can find: no kubelet runs here (test/e2e looks its metrics up), no dry run
// (csrenv/surface looks up the names), and no rotation.
var absent = regexp.MustCompile(`kubelet_|_dry_run_total|csr_rotation_`)

// selector finds the names of metrics in a query, with their label matchers.
var selector = regexp.MustCompile(`\b(?:csr|kubelet|leader_election|rest_client|workqueue|process|controller_runtime)_\w+(?:\{[^}]*\})?`)

// labConfig has one signer whose CA expires soon, one for which the manager may not sign, and one without a CA. The API server does not
// enforce the block list.
const labConfig = `
nodeBlockList: ` + kit.BlockListName + `
blockListEnforcement: {enabled: true, apiServers: [%[3]q], serverName: localhost}
signing:
  secret: csr-controller-manager-system/csr-signer
  signers:
  - {name: example.com/short, certFile: %[1]q, keyFile: %[2]q, usages: [digital signature, server auth]}
  - {name: example.com/forbidden, certFile: %[1]q, keyFile: %[2]q, usages: [digital signature, server auth]}
  - {name: example.com/missing, secret: csr-controller-manager-system/no-such, usages: [digital signature, server auth]}
`

// lab is a control plane with a joiner, who may join nodes, and a stranger, who may only create requests. Its objects belong to the whole
// test: they stay when a part of the test ends.
type lab struct{ *testing.T }

// TestLive runs a real Prometheus and two real managers that serve requests on a real control plane, with a fault of
// every possible kind. Every query of the dashboard must show data, and every rule must find its series.
func TestLive(t *testing.T) {
	kit.Alone(t)
	l, plane := &lab{t}, kit.ControlPlane(t)
	l.applyOperatorObjects(plane)
	shortCert, shortKey := filepath.Join(t.TempDir(), "short.crt"), filepath.Join(t.TempDir(), "short.key")
	short := kit.IssueCA(t, "short", kit.NewKey(t), nil, 20*24*time.Hour)
	kit.Write(t, shortCert, short.PEM())
	kit.Write(t, shortKey, short.KeyPEM(t))
	config := kit.Configure(t, fmt.Sprintf(labConfig, shortCert, shortKey, strings.TrimPrefix(plane.Config.Host, "https://")))
	account := kit.ManagerConfig(t)
	kit.BlockList(t, "")
	kit.Apply(t, "node-block-list")
	kit.Apply(t, "block-list-enforced")
	kit.Create(t, kit.Admin(t), kit.SigningSecret(plane.CA.CertPEM, plane.CA.KeyPEM))
	kit.MaySign(t, kit.ManagerAccount, "example.com/short", "example.com/missing")
	kit.GrantJoining(t, "joiner")
	kit.Grant(t, "stranger", kit.MayCreate)
	for _, role := range []string{kit.MayCreate, kit.MayJoin} { // the self-check asks for them
		kit.GrantGroup(t, kit.BootstrapperTeam, role)
	}
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)

	first, second := kit.FreeAddress(t), kit.FreeAddress(t)
	p := startPrometheus(t, first, second)
	leader := kit.StartNamed(t, "leader", account, config, "--metrics-bind-address", first)
	t.Run("errors", func(t *testing.T) { l.failForWantOfRights(t, p) })
	standby := kit.StartNamed(t, "standby", account, config, "--metrics-bind-address", second)
	kit.Write(t, shortCert, []byte("not PEM\n")) // the manager continues with the old CA
	t.Run("dashboard", func(t *testing.T) { l.showsData(t, p) })
	t.Run("rules", func(t *testing.T) { l.rulesWork(t, p) })
	t.Run("lint", func(t *testing.T) {
		status, text := cluster.Get(t.Context(), first, "/metrics")
		lint := exec.CommandContext(t.Context(), tool(t, "PROMTOOL"), "check", "metrics")
		lint.Stdin = strings.NewReader(text)
		output, err := lint.CombinedOutput()
		kit.Check(t, err == nil, "status %d: %v\n%s", status, err, output)
	})
	t.Run("no manager", func(t *testing.T) {
		kit.NoError(t, errors.Join(leader.Stop(), standby.Stop()))
		p.reach(t, map[string]string{"CSRManagerAbsent critical": "pending", "CSRNoLeader critical": "pending"})
	})
}

// applyOperatorObjects validates the objects of config/prometheus for the prometheus-operator with its
// CustomResourceDefinitions.
func (l *lab) applyOperatorObjects(plane *cluster.Cluster) {
	l.Helper()
	kubeconfig, dir := kit.Must(plane.WriteKubeconfig("admin", plane.Config))(l), l.TempDir()
	component := kit.Must(filepath.Rel(dir, kit.Must(filepath.Abs("../../config/prometheus"))(l)))(l)
	kit.Write(l.T, filepath.Join(dir, "kustomization.yaml"),
		fmt.Appendf(nil, "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\ncomponents: [%q]\n", component))
	for _, args := range [][]string{
		{"create", "-f", tool(l.T, "PROMETHEUS_CRDS")},
		{"wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"},
		{"apply", "--validate=strict", "-k", dir},
		{"-n", kit.SystemNamespace, "get", "prometheusrules/csr-controller-manager", "servicemonitors/csr-controller-manager"},
	} {
		kit.Kubectl(l.T, kubeconfig, args...)
	}
}

// round creates requests for every outcome, and returns the request that will be issued. The others are never
// approved, fail, are cut short, may not be signed, or wait for a CA.
func (l *lab) round() *kit.Request {
	l.Helper()
	kit.CreateRequest(l.T, kit.As(l.T, "stranger"), kit.NodeRequest(l.T, "stays"))
	for suffix, signer := range map[string]string{
		"fails": certificatesv1.KubeAPIServerClientSignerName, "short": "example.com/short",
		"forbidden": "example.com/forbidden", "missing": "example.com/missing",
	} {
		kit.Approve(l.T, kit.CreateRequest(l.T, kit.Admin(l.T), kit.NodeRequest(l.T, suffix, func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages[1] = signer, certificatesv1.UsageServerAuth
		})))
	}
	kit.Approve(l.T, kit.CreateRequest(l.T, kit.Admin(l.T), kit.ServingRequest(l.T, "serves", "serves")))
	return kit.CreateRequest(l.T, kit.As(l.T, "joiner"), kit.NodeRequest(l.T, "joins"))
}

// store stores a request of a stranger that is hours old.
func (l *lab) store(name string, hours time.Duration) {
	l.Helper()
	obj := kit.NodeRequest(l.T, name)
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	obj.GenerateName, obj.Name = "", name
	obj.UID, obj.CreationTimestamp = types.UID(name), metav1.NewTime(time.Now().Add(-hours*time.Hour))
	obj.Spec.Username = "stranger"
	kit.NoError(l, kit.ControlPlane(l.T).Store(l.Context(), "certificatesigningrequests/"+name, obj))
}

// failForWantOfRights waits for errors of all three controllers, and then grants the rights of config/rbac.
func (l *lab) failForWantOfRights(t *testing.T, p *prometheus) {
	var giveBack []func()
	for _, role := range []string{"csr-approver", "csr-cleaner"} { // it may still watch
		giveBack = append(giveBack, kit.TakeRole(l.T, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}}))
	}
	node := l.round()
	l.store("due", 25)
	for _, controller := range []string{"approver", "signer", "cleaner"} {
		kit.Within(t, patience, controller, func(ctx context.Context) error {
			return p.data(ctx, fmt.Sprintf(`csr_%s_errors_total{reason="Forbidden"} > 0`, controller))
		})
	}
	for _, give := range giveBack {
		give()
	}
	kit.Reaches(t, node, csr.Issued)
}

// showsData creates requests until each query of the dashboard has shown a number. Rates need more than one request.
func (l *lab) showsData(t *testing.T, p *prometheus) {
	waiting := readDashboard(t).queries()
	number := 0
	kit.Within(t, patience, "queries", func(ctx context.Context) error {
		number++
		kit.Reaches(t, l.round(), csr.Issued)
		l.store(fmt.Sprint("due-", number), 25)
		var errs []error
		maps.DeleteFunc(waiting, func(name, query string) bool {
			if absent.MatchString(query) {
				samples, err := p.query(ctx, query)
				kit.Check(t, err == nil && len(samples) == 0, "%s: %v, error %v", name, samples, err)
				return true
			}
			err := p.data(ctx, query)
			errs = append(errs, err)
			return err == nil
		})
		return errors.Join(errs...)
	})
}

// rulesWork checks that every selector of the rules and the dashboard finds its series, and that every rule is evaluated without an error.
// Only the rules whose fault is present may fire.
func (l *lab) rulesWork(t *testing.T, p *prometheus) {
	l.store("waits", 1)
	queries := readDashboard(t).queries()
	for i, r := range readRules(t).rules() {
		queries[fmt.Sprint(r.Alert, i)] = r.Expr
	}
	for name, query := range queries {
		selectors := selector.FindAllString(query, -1)
		kit.Check(t, len(selectors) > 0 || strings.Contains(query, "ALERTS"), "%s selects nothing: %s", name, query)
		for _, wanted := range selectors {
			if absent.MatchString(wanted) {
				continue
			}
			if metric, _, has := strings.Cut(wanted, "{"); has && strings.Contains(wanted, `code="429"`) { // a healthy API server has none
				wanted = metric
			}
			kit.Within(t, patience, name, func(ctx context.Context) error { return p.data(ctx, wanted) })
		}
	}
	p.reach(t, map[string]string{
		"CSRNotApproved warning":       "firing",  // waits
		"CSRSigningCAExpiring warning": "firing",  // the short CA
		"CSRSigningCARejected warning": "pending", // broken
		"CSRLifetimeCut warning":       "firing",  // by the short CA
		"CSRSigningCAMissing critical": "pending", // of example.com/missing
		"CSRErrors warning csr-signer": "pending", // example.com/forbidden

		"CSRRevocationNotEnforced critical": "pending",

		// Pending at first, for the replica that has just started.
		"CSRNoLeader critical":   "inactive",
		"CSRClockSkewed warning": "inactive", "CSRClockSkewed critical": "inactive",
	})
	rules, err := p.rules(t.Context())
	kit.Require(t, err == nil && len(rules) == len(readRules(t).rules()), "%d rules, error %v", len(rules), err)
	inactive := []string{
		"CSRManagerAbsent", "CSRNoLeader", "CSRKubeletRightsMissing", "CSRSigningCANotTrusted", "CSRKubeletClientExpiring", "CSRKubeletServerExpiring",
		"CSRCertificateMismatch",
	}
	for _, r := range rules {
		isRight := r.Health == "ok" && r.LastError == "" && !r.LastEvaluation.IsZero() && (r.State == "inactive" || !slices.Contains(inactive, r.Name))
		kit.Check(t, isRight, "%s is %s and %s: %s %v", r.Name, r.Health, r.State, r.LastError, r.Alerts)
	}
}

// reach waits until rules, by name, severity and controller, are in a state.
func (p *prometheus) reach(t *testing.T, want map[string]string) {
	t.Helper()
	kit.Within(t, patience, "alerts", func(ctx context.Context) error {
		rules, err := p.rules(ctx)
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, r := range rules {
			got[strings.TrimSpace(r.Name+" "+r.Labels["severity"]+" "+r.Labels["controller"])] = r.State
		}
		wrong := maps.Clone(want)
		maps.DeleteFunc(wrong, func(name, state string) bool { return got[name] == state })
		return kit.OrError(len(wrong) == 0, "want %v; all: %v", wrong, got)
	})
}
