package commands

import (
	"bytes"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// writeTable writes rows in columns.
func writeTable(out io.Writer, rows [][]string) error {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(row[i])
		}
		_, _ = io.WriteString(table, strings.Join(row, "\t")+"\n") // a Buffer takes all
	}
	_ = table.Flush()
	_, err := out.Write(text.Bytes())
	return err
}

// oneLine returns text without line ends and other control characters. Text from objects must not look like another row
// of a table, or control the terminal.
func oneLine(text string) string { return ascii.Quote(strings.ReplaceAll(text, "\n", " ")) }
