package commands

import (
	"bytes"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

// writeTable writes results, one a row, the next step below its evidence.
func writeTable(out io.Writer, heading string, results []check.Result) error {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { _, _ = io.WriteString(table, strings.Join(cells, "\t")+"\n") } // a Buffer takes all
	row("CHECK", "WHAT", "STATUS", "EVIDENCE AND NEXT STEP")
	for _, result := range results {
		row(result.Check, result.Subject, string(result.Status), oneLine(result.Evidence))
		if result.NextStep != "" {
			row("", "", "", "-> "+oneLine(result.NextStep))
		}
	}
	_ = table.Flush()
	_, err := io.WriteString(out, heading+"\n\n"+text.String())
	return err
}

// oneLine keeps what others have written from looking like a row, and from steering the terminal.
func oneLine(text string) string { return ascii.Quote(strings.ReplaceAll(text, "\n", " ")) }
