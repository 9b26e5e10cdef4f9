package plugin

import (
	"cmp"
	"regexp"
	"strings"
	"sync"

	"github.com/csr-controller-manager/csr-controller-manager/docs"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// reasonRow matches the title of a section, or a row | `Reason` | meaning | next step |.
var reasonRow = regexp.MustCompile("(?m)^## (.+)$|^\\| `(\\w+)` \\| .* \\| (.*) \\|$")

// nextSteps returns the next steps in the tables of docs/reference/reasons.md, by "section/reason".
var nextSteps = sync.OnceValue(func() map[string]string {
	section, steps := "", map[string]string{}
	for _, found := range reasonRow.FindAllStringSubmatch(docs.Reasons, -1) {
		section = cmp.Or(found[1], section)
		steps[section+"/"+found[2]] = found[3]
	}
	return steps
})

// reasonStep returns what to do about a reason of the manager about a request in that state, or nothing.
func reasonStep(state csr.State, reason string) string {
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
