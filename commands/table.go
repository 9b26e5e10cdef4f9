package commands

import (
	"bytes"
	"io"
	"strings"
	"text/tabwriter"

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

// oneLine keeps what others have written from looking like a row, or from moving the terminal's cursor.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return '?'
		default:
			return r
		}
	}, text)
}
