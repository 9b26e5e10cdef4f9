package explain

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateExplained = flag.Bool("update-explained", false, "correct docs/reference/reasons.md")

// reasonTables returns the tables of reasons, by their section in docs/reference/reasons.md. Reasons with the same advice of
// both controllers are in a section of their own.
func reasonTables() map[string]map[string]advice {
	both := maps.Clone(approverReasons)
	maps.DeleteFunc(both, func(name string, row advice) bool { return signerReasons[name] != row })
	tables := map[string]map[string]advice{"Approver and signer": both}
	for section, table := range map[string]map[string]advice{"Approver": approverReasons, "Signer": signerReasons} {
		tables[section] = maps.Clone(table)
		maps.DeleteFunc(tables[section], func(name string, _ advice) bool { return both[name] != advice{} })
	}
	return tables
}

var reasonsFile = filepath.Join("..", "..", "docs", "reference", "reasons.md")

func reasonsPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(reasonsFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestReasonsPage checks that docs/reference/reasons.md has a row for each reason in its section, and no other reason.
// With -update-explained it corrects rows. For a new reason, first add a row with its name to the right table.
func TestReasonsPage(t *testing.T) {
	page, tables := reasonsPage(t), reasonTables()
	lines := strings.Split(page, "\n")
	section, found := "", map[string]bool{}
	for i, line := range lines {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
		}
		name, isReason := strings.CutPrefix(line, "| `")
		table, mine := tables[section]
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
	for section, table := range tables {
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

// camelCase matches a string literal that looks like a reason of two or more words.
var camelCase = regexp.MustCompile(`"((?:[A-Z]+[a-z]+){2,}|[A-Z]{2,}[a-z]+\w*)"`)

// noReasons lists literals in the code that look like a reason and are not one.
var noReasons = []string{
	"ControllerManagerConfiguration", "ServiceAccount", "ConfigMap", "NodeLookup", "WithRoot", "CheckRights",
	"NotSigned", "TrustProbe", // records of the audit log
	"DestroyRetiring", "DropCandidate", "MakeCandidate", "RestoreSigning", "SwapBack", "TakeCandidate", // steps of a rotation
	"NotAsked", "NotConfirmed", "NotProven", "NotPublished", // conditions of a SigningAuthority
}

// TestEveryReasonInTheCodeHasARow finds a reason in the controllers and public packages that docs/reference/reasons.md
// does not explain.
func TestEveryReasonInTheCodeHasARow(t *testing.T) {
	page, found := reasonsPage(t), 0
	for _, folder := range []string{"controllers", "pkg"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for line := range strings.Lines(string(source)) {
				if strings.HasPrefix(strings.TrimSpace(line), "//") {
					continue
				}
				for _, match := range camelCase.FindAllStringSubmatch(line, -1) {
					if slices.Contains(noReasons, match[1]) {
						continue
					}
					if found++; !strings.Contains(page, "| `"+match[1]+"` |") {
						t.Errorf("%s: docs/reference/reasons.md has no row for %q; add one, or add it to noReasons if it is no reason", path, match[1])
					}
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 40 {
		t.Errorf("only %d reasons found in the code", found)
	}
}

// TestAdviceIsShort checks that each meaning and each next step has one or two sentences.
func TestAdviceIsShort(t *testing.T) {
	for section, table := range reasonTables() {
		for reason, row := range table {
			for _, text := range []string{row.meaning, row.todo} {
				if sentences := strings.Count(text, ". ") + 1; sentences > 2 || !strings.HasSuffix(text, ".") {
					t.Errorf("%s %s: %d sentences, and want one or two: %q", section, reason, sentences, text)
				}
			}
		}
	}
}
