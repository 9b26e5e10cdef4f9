package monitoring

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

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
