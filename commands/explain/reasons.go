package explain

import (
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/docs"
)

// advice is what docs/reasons.md says, by section ("Approver" or "Signer") and reason.
type advice map[[2]string]reasonRow

type reasonRow struct{ meaning, todo string }

// nothing is what there is to do about a success.
const nothing = "Nothing."

func readAdvice() advice {
	rows := advice{}
	section := ""
	for line := range strings.Lines(docs.Reasons) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if strings.HasPrefix(line, "| `") && len(cells) == 3 {
			rows[[2]string{section, strings.Trim(cells[0], "`")}] = reasonRow{meaning: cells[1], todo: cells[2]}
		}
	}
	return rows
}

// write adds what reason means and what to do about it, if there is anything to do.
func (a advice) write(p *page, section, reason string) {
	if row, found := a[[2]string{section, reason}]; found && row.todo != nothing {
		p.row("meaning", row.meaning)
		p.row("what to do", row.todo)
	}
}
