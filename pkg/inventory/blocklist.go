package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// blockListKey is the key of the ConfigMap that holds the names.
const blockListKey = "nodes"

// parseBlockList reads one name a line; # begins a comment. A line that is wrong is left out and reported by number.
func parseBlockList(text string) (names map[string]bool, problems []string) {
	names = map[string]bool{}
	for number, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		name := strings.ToLower(strings.TrimSpace(line))
		switch {
		case name == "":
		case strings.HasPrefix(name, csr.NodeUserPrefix):
			problems = append(problems, fmt.Sprintf("line %d: %q is a user's name: leave out %s", number+1, csr.Shorten(name), csr.NodeUserPrefix))
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			problems = append(problems, fmt.Sprintf("line %d: %q is no node's name", number+1, csr.Shorten(name)))
		default:
			names[name] = true
		}
	}
	return names, problems
}

// aboutNodes are the names of the nodes that req is for and from, in lower case.
func aboutNodes(req *csr.Request) []string {
	var names []string
	if name := req.NodeName(); name != "" {
		names = append(names, strings.ToLower(name))
	}
	if name, found := strings.CutPrefix(req.Requester.Username, csr.NodeUserPrefix); found && name != "" {
		names = append(names, strings.ToLower(name))
	}
	return names
}

// isOfNode says whether req is about a node: by the subject, by the requester, or by the signer.
func isOfNode(req *csr.Request) bool {
	switch req.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName:
		return true
	}
	return len(aboutNodes(req)) > 0
}

// sorted are the names in names, in order.
func sorted(names map[string]bool) []string { return slices.Sorted(maps.Keys(names)) }

// inWords says which nodes are blocked.
func inWords(names map[string]bool) string {
	if len(names) == 0 {
		return "no node is blocked"
	}
	return "blocked: " + few(sorted(names))
}

// few shortens a list for a message.
func few(all []string) string {
	const most = 10
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}
