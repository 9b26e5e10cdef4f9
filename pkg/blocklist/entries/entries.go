// Package entries reads the content of a block list, and decides which requests it blocks. The manager and the kubectl
// plugin share it. It does no I/O.
package entries

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

// The keys in the ConfigMap. It must have nodesKey, and may have certificatesKey.
const (
	nodesKey        = "nodes"
	certificatesKey = "certificates"
)

// Entries are what one version of a list blocks: the names of nodes in lower case, and the SHA-256 of certificates in hex.
type Entries struct{ Nodes, Certificates sets.Set[string] }

// Equal reports whether e and other block the same.
func (e Entries) Equal(other Entries) bool {
	return e.Nodes.Equal(other.Nodes) && e.Certificates.Equal(other.Certificates)
}

// String lists what is blocked, for a message.
func (e Entries) String() string {
	return fmt.Sprintf("blocked nodes: %s; blocked certificates: %s", few(e.Nodes), few(e.Certificates))
}

// few lists some of the entries of all.
func few(all sets.Set[string]) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(csr.ShortenAll(sets.List(all)), ", ")
}

// Parse reads the data of a ConfigMap. It skips invalid lines and unknown keys, and returns them as problems. Without the
// key for nodes it returns an error: the ConfigMap is no block list.
func Parse(data map[string]string) (read Entries, problems []string, err error) {
	if _, found := data[nodesKey]; !found {
		return read, nil, fmt.Errorf("it has no key %s: add it, with an empty value if no node is blocked", nodesKey)
	}
	read = Entries{Nodes: sets.New[string](), Certificates: sets.New[string]()}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		into, check := read.Nodes, parseNode
		switch key {
		case nodesKey:
		case certificatesKey:
			into, check = read.Certificates, parseCertificate
		default:
			problems = append(problems, fmt.Sprintf("key %q is unknown: the keys are %s and %s",
				csr.Shorten(key), nodesKey, certificatesKey))
			continue
		}
		for number, line := range strings.Split(data[key], "\n") {
			line, _, _ = strings.Cut(line, "#")                                           // # begins a comment
			line = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))) // a file may begin with that mark
			if line == "" {
				continue
			}
			entry, problem := check(line)
			if problem != "" {
				problems = append(problems, fmt.Sprintf("%s, line %d: %q %s", key, number+1, csr.Shorten(line), problem))
				continue
			}
			into.Insert(entry)
		}
	}
	return read, problems, nil
}

// parseNode reads the name of a node.
func parseNode(line string) (name, problem string) {
	switch {
	case strings.HasPrefix(line, csr.NodeUserPrefix):
		return "", "is a user name: remove the prefix " + csr.NodeUserPrefix
	case len(validation.IsDNS1123Subdomain(line)) > 0:
		return "", "is not a node name"
	}
	return line, ""
}

// parseCertificate reads the SHA-256 of a certificate: hex digits as in the audit log, with the prefix as in a request,
// with colons as openssl prints it, or with spaces as a browser does.
func parseCertificate(line string) (sha256Hex, problem string) {
	text := strings.TrimPrefix(line, strings.ToLower(csr.CertificateIDPrefix))
	text = strings.NewReplacer(":", "", " ", "").Replace(strings.TrimPrefix(text, "sha256 fingerprint="))
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != sha256.Size {
		return "", "is not the SHA-256 of a certificate: write its 64 hex digits"
	}
	return text, ""
}

// Check decides that req waits: NodeBlocked because of the node that it is for or comes from, or CertificateBlocked because of
// the certificate with which it was made. Otherwise no Decision is made. list names the ConfigMap.
func (e Entries) Check(req *csr.Request, list string) judge.Decision {
	names := []string{req.NodeName()} // empty if req is not for a node
	if name, found := strings.CutPrefix(req.Requester.Username, csr.NodeUserPrefix); found {
		names = append(names, name)
	}
	for _, name := range names {
		if name = strings.ToLower(name); e.Nodes.Has(name) {
			return judge.Wait.Because("NodeBlocked", "node %q is on the block list, ConfigMap %s: nothing is approved or signed "+
				"for it until its name is removed from the list", csr.Shorten(name), list)
		}
	}
	for _, sum := range req.Requester.Certificates() {
		if e.Certificates.Has(sum) {
			return judge.Wait.Because("CertificateBlocked", "client certificate %s is on the block list, ConfigMap %s: nothing is "+
				"approved or signed for a request that was made with it until its SHA-256 is removed from the list", sum, list)
		}
	}
	return judge.Decision{}
}

// MayBlock reports whether a list could block req: it is for a node or a kubelet, or comes from a node, or was made with a
// certificate.
func MayBlock(req *csr.Request) bool {
	builtin, _ := csr.BuiltinSigner(req.SignerName)
	return builtin.OfKubelets || req.NodeName() != "" || strings.HasPrefix(req.Requester.Username, csr.NodeUserPrefix) ||
		len(req.Requester.Certificates()) > 0
}
