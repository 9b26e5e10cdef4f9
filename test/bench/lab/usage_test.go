package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSamples(t *testing.T) {
	t.Parallel()
	const body = `# HELP calls_total Calls.
calls_total{code="200",verb="PUT"} 3
calls_total{code="201",verb="POST"} 1e+06
calls_total_more{code="200"} 5
live 2.5
`
	want := []sample{
		{map[string]string{"code": "200", "verb": "PUT"}, 3},
		{map[string]string{"code": "201", "verb": "POST"}, 1e6},
	}
	if diff := cmp.Diff(want, samples([]byte(body), "calls_total"), cmp.AllowUnexported(sample{})); diff != "" {
		t.Error(diff)
	}
	if got := samples([]byte(body), "live"); len(got) != 1 || got[0].value != 2.5 {
		t.Errorf("a metric without labels is %v", got)
	}
}
