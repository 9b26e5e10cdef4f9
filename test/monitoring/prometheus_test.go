package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// patience bounds every wait. Only a failing test needs all of it.
const patience = time.Minute

// prometheus is a running server, which scrapes and evaluates the rules every second.
type prometheus struct {
	*cluster.Process
	address string
}

func startPrometheus(t *testing.T, managers ...string) *prometheus {
	t.Helper()
	config := filepath.Join(t.TempDir(), "prometheus.yaml")
	kit.Write(t, config, fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
- job_name: csr-controller-manager
  static_configs: [{targets: [%s]}]
`, kit.Must(filepath.Abs(plainFile))(t), strings.Join(managers, ", ")))
	p := &prometheus{address: kit.FreeAddress(t)}
	p.Process = kit.Must(kit.ControlPlane(t).StartProcess("prometheus", tool(t, "PROMETHEUS"), "--config.file", config,
		"--storage.tsdb.path", t.TempDir(), "--web.listen-address", p.address))(t)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of Prometheus' log:\n%s", p.Tail(30))
		}
	})
	return p
}

func (p *prometheus) ask(ctx context.Context, path string, query url.Values, answer any) error {
	status, text := cluster.Get(ctx, p.address, "/api/v1/"+path+"?"+query.Encode())
	var body struct {
		Status, Error   string
		Data            json.RawMessage
		Warnings, Infos []string
	}
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		return fmt.Errorf("status %d, %w: %s", status, err, text)
	}
	if body.Status != "success" || len(body.Warnings) > 0 || len(body.Infos) > 0 {
		return fmt.Errorf("%s: %s %v %v", body.Status, body.Error, body.Warnings, body.Infos)
	}
	return json.Unmarshal(body.Data, answer)
}

// sample is one series in the result of a query. Its value is a time and a number.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (p *prometheus) query(ctx context.Context, query string) ([]sample, error) {
	var answer struct{ Result []sample }
	err := p.ask(ctx, "query", url.Values{"query": {query}}, &answer)
	return answer.Result, err
}

// data returns why query has no number to show, or nil.
func (p *prometheus) data(ctx context.Context, query string) error {
	samples, err := p.query(ctx, query)
	isNumber := func(s sample) bool { return s.Value[1] != "NaN" }
	return kit.OrError(slices.ContainsFunc(samples, isNumber), "%s: no data in %v, error %w", query, samples, err)
}

// alertRule is a rule as Prometheus reports it.
type alertRule struct {
	Name, State, Health, LastError string
	Labels                         map[string]string
	LastEvaluation                 time.Time
	Alerts                         []any
}

func (p *prometheus) rules(ctx context.Context) (all []alertRule, err error) {
	var answer struct {
		Groups []struct{ Rules []alertRule }
	}
	err = p.ask(ctx, "rules", nil, &answer)
	for _, group := range answer.Groups {
		all = append(all, group.Rules...)
	}
	return all, err
}
