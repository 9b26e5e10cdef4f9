package plugin

import (
	"encoding/json"
	"io"
	"strings"

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

// oneLine returns text without line ends and other control characters. Text from objects must not look like another row
// of a table, or control the terminal.
func oneLine(text string) string { return ascii.Quote(strings.ReplaceAll(text, "\n", " ")) }

// word returns text that somebody else chose as one word of a shell.
func word(text string) string {
	if text == "" {
		return ""
	}
	return check.Word(text)
}
