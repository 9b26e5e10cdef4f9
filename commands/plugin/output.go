package plugin

import (
	"encoding/json"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

// writeJSON writes value. Text that is not printable ASCII is escaped, so that it cannot change a terminal.
func writeJSON(out io.Writer, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = out.Write(append(ascii.JSON(data), '\n'))
	return err
}

// writeTable writes rows in columns.
func writeTable(out io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = oneLine(cell)
		}
		if _, err := io.WriteString(table, strings.Join(cells, "\t")+"\n"); err != nil {
			return err
		}
	}
	return table.Flush()
}

// oneLine returns text without line ends and other control characters. Text from objects must not look like another row
// of a table, or control the terminal.
func oneLine(text string) string { return ascii.Quote(strings.ReplaceAll(text, "\n", " ")) }

// word returns text that somebody else chose as one word of a shell, or a dash.
func word(text string) string {
	if text == "" {
		return "-"
	}
	return check.Word(text)
}
