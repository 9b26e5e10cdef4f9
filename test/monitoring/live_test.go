package monitoring

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// absent finds what no query of the lab can find: no kubelet runs here (TestKubeletMetrics checks the names of its metrics), no dry run
// (csrenv/surface looks up the names), and no rotation.
var absent = regexp.MustCompile(`kubelet_|_dry_run_total|csr_rotation_`)

// nothingFound are selectors of the dashboard that find nothing in a healthy cluster. Their queries show 0 then.
var nothingFound = []string{`code="429"`}

// TestLive runs a real Prometheus and two real managers that serve requests on a real control plane, with a fault of
// every possible kind. Every query of the dashboard must show data, and every rule must find its series.
func TestLive(t *testing.T) {
	l := newLab(t)
	l.applyOperatorObjects()
	first, second := kit.FreeAddress(t), kit.FreeAddress(t)
	p := startPrometheus(t, nil, first, second)
	leader := l.startManager("leader", first)
	t.Run("errors", func(t *testing.T) { l.failForWantOfRights(t, p) })
	standby := l.startManager("standby", second)
	t.Run("dashboard", func(t *testing.T) { l.showsData(t, p) })
	t.Run("rules", func(t *testing.T) { l.rulesWork(t, p) })
	t.Run("names", func(t *testing.T) { namesExist(t, p) })
	t.Run("lint", func(t *testing.T) { lintMetrics(t, first) })
	t.Run("no manager", func(t *testing.T) {
		for _, m := range []*kit.Process{leader, standby} {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		}
		p.reach(t, map[string]string{"CSRManagerAbsent critical": "pending", "CSRNoLeader critical": "pending"})
	})
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
	l.breakShortCA()
	waiting := readDashboard(t).queries()
	number := 0
	kit.Within(t, patience, "queries", func(ctx context.Context) error {
		number++
		kit.Reaches(t, l.round(), csr.Issued)
		l.store(fmt.Sprint("due-", number), 25)
		var errs []error
		for name, query := range waiting {
			err := p.data(ctx, query)
			switch {
			case absent.MatchString(query):
				if samples, err := p.query(ctx, query); err != nil || len(samples) > 0 {
					t.Errorf("%s: %v, error %v", name, samples, err)
				}
				delete(waiting, name)
			case err != nil:
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			default:
				delete(waiting, name)
			}
		}
		return errors.Join(errs...)
	})
	t.Logf("%d rounds", number)
}

// rulesWork checks that every rule is evaluated without an error and finds its series. Only the rules whose fault is
// present may fire.
func (l *lab) rulesWork(t *testing.T, p *prometheus) {
	l.store("waits", 1)
	for _, r := range readRules(t).rules() {
		selectors, err := p.selectors(t.Context(), r.Expr)
		if err != nil || len(selectors) == 0 {
			t.Errorf("%s selects %v, error %v", r.Alert, selectors, err)
		}
		for _, s := range selectors {
			if absent.MatchString(s.name) {
				continue
			}
			kit.Within(t, patience, r.Alert, func(ctx context.Context) error { return p.data(ctx, s.String()) })
		}
	}
	p.reach(t, map[string]string{
		"CSRNotApproved warning":       "firing",  // waits
		"CSRSigningCAExpiring warning": "firing",  // the short CA
		"CSRSigningCARejected warning": "pending", // broken
		"CSRLifetimeCut warning":       "firing",  // by the short CA
		"CSRSigningCAMissing critical": "pending", // of example.com/missing
		"CSRErrors warning csr-signer": "pending", // example.com/forbidden

		// Pending at first, for the replica that has just started.
		"CSRNoLeader critical":   "inactive",
		"CSRClockSkewed warning": "inactive", "CSRClockSkewed critical": "inactive",
	})
	rules, err := p.rules(t.Context())
	if err != nil || len(rules) != len(readRules(t).rules()) {
		t.Fatalf("%d rules, error %v", len(rules), err)
	}
	for _, r := range rules {
		if r.Health != "ok" || r.LastError != "" || r.LastEvaluation.IsZero() {
			t.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
		}
		inactive := []string{
			"CSRManagerAbsent", "CSRNoLeader", "CSRKubeletRightsMissing", "CSRSigningCANotTrusted", "CSRKubeletClientExpiring", "CSRKubeletServerExpiring",
			"CSRCertificateMismatch",
		}
		if slices.Contains(inactive, r.Name) && r.State != "inactive" {
			t.Errorf("%s is %s: %v", r.Name, r.State, r.Alerts)
		}
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
		for name, state := range want {
			if got[name] != state {
				return fmt.Errorf("%s is %q, want %s; all: %v", name, got[name], state, got)
			}
		}
		return nil
	})
}

// namesExist checks that every metric of the dashboard is a metric of the manager, and that every selector finds it.
func namesExist(t *testing.T, p *prometheus) {
	for name, query := range readDashboard(t).queries() {
		selectors, err := p.selectors(t.Context(), query)
		if err != nil || len(selectors) == 0 {
			t.Errorf("%s selects %v, error %v", name, selectors, err)
		}
		for _, s := range selectors {
			if absent.MatchString(s.name) || s.name == "ALERTS" {
				continue
			}
			if err := p.data(t.Context(), fmt.Sprintf(`{__name__=%q,job="csr-controller-manager"}`, s.name)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if slices.ContainsFunc(nothingFound, func(part string) bool { return slices.Contains(s.matchers, part) }) {
				continue
			}
			if err := p.data(t.Context(), s.String()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// lintMetrics checks that the manager's metrics follow Prometheus' conventions.
func lintMetrics(t *testing.T, address string) {
	status, text := cluster.Get(t.Context(), address, "/metrics")
	lint := exec.CommandContext(t.Context(), tool(t, "PROMTOOL"), "check", "metrics")
	lint.Stdin = strings.NewReader(text)
	if output, err := lint.CombinedOutput(); err != nil {
		t.Errorf("status %d: %v\n%s", status, err, output)
	}
}
