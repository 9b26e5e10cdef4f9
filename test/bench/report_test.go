package bench

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestTableDividesValuesOfTheSameRound has a second round in which everything is slower, in the reverse order.
func TestTableDividesValuesOfTheSameRound(t *testing.T) {
	t.Parallel()
	want := `|  | certificates/s | own CPU ms/certificate |
|---|---|---|
| ours | 200 (100–300) | 2.00 (1.00–3.00) |
| KCM | 150 (100–200) |  |
| ours ÷ KCM | 1.25 (1.00–1.50) |  |
`
	got := table([]round{
		{1, "ours", values{rate: 300, cpu: 1}}, {1, "KCM", values{rate: 200}},
		{2, "KCM", values{rate: 100}}, {2, "ours", values{rate: 100, cpu: 3}},
	})
	kit.Equal(t, "table", got, want)
}
