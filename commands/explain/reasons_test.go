package explain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reasonTables are the tables of reasons, by their section in docs/reference/reasons.md.
var reasonTables = map[string]map[string]advice{"Approver": approverReasons, "Signer": signerReasons}

var reasonsFile = filepath.Join("..", "..", "docs", "reference", "reasons.md")

func reasonsPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(reasonsFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestReasonsPage wants each reason in docs/reference/reasons.md, in its section and with its row, and no other reason there.
// With -update-explained it corrects rows. A new reason needs a row for its name first, in the table that it belongs
// in.
func TestReasonsPage(t *testing.T) {
	page := reasonsPage(t)
	lines := strings.Split(page, "\n")
	section, found := "", map[string]bool{}
	for i, line := range lines {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
		}
		name, isReason := strings.CutPrefix(line, "| `")
		table, mine := reasonTables[section]
		if !isReason || !mine {
			continue
		}
		name, _, _ = strings.Cut(name, "`")
		row, known := table[name]
		if !known {
			t.Errorf("docs/reference/reasons.md has %s in section %s, and the table of reasons has not", name, section)
			continue
		}
		found[section+name] = true
		if lines[i] = fmt.Sprintf("| `%s` | %s | %s |", name, row.meaning, row.todo); lines[i] != line && !*updateExplained {
			t.Errorf("docs/reference/reasons.md has\n%s\nwant\n%s\ngo test ./commands/explain -update-explained corrects it", line, lines[i])
		}
	}
	for section, table := range reasonTables {
		for name := range table {
			if !found[section+name] {
				t.Errorf("docs/reference/reasons.md has no row for %s in section %s", name, section)
			}
		}
	}
	if corrected := strings.Join(lines, "\n"); *updateExplained && corrected != page {
		if err := os.WriteFile(reasonsFile, []byte(corrected), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
