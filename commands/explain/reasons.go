package explain

import (
	"strings"
	"sync"

	"github.com/csr-controller-manager/csr-controller-manager/docs"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// nextSteps returns the next steps in the tables of docs/reference/reasons.md, by "section/reason".
var nextSteps = sync.OnceValue(func() map[string]string {
	section, steps := "", map[string]string{}
	for line := range strings.Lines(docs.Reasons) {
		if title, found := strings.CutPrefix(line, "## "); found {
			section = strings.TrimSpace(title)
		}
		// A row is | `Reason` | meaning | next step |
		if reason, rest, found := strings.Cut(strings.TrimPrefix(line, "| `"), "` | "); found {
			if _, step, found := strings.Cut(strings.TrimSuffix(rest, " |\n"), " | "); found {
				steps[section+"/"+reason] = step
			}
		}
	}
	return steps
})

// NextStep returns what to do about a reason of the manager about a request in that state, or nothing.
func NextStep(state csr.State, reason string) string {
	if strings.HasPrefix(reason, "Would") {
		return "The manager is in a dry run, and only reports what it would do: remove the controller from dryRun."
	}
	section := "Signer"
	if state == csr.Pending || state == csr.Denied {
		section = "Approver"
	}
	for _, section := range []string{section, "Approver and signer"} {
		if step := nextSteps()[section+"/"+reason]; step != "" && step != "Nothing." {
			return step
		}
	}
	return ""
}
