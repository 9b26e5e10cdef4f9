package blocklist

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
)

// The keys in the ConfigMap. It must have nodesKey, and may have certificatesKey.
const (
	nodesKey        = "nodes"
	certificatesKey = "certificates"
)

// entries are the names of the blocked nodes in lower case, and the SHA-256 of the blocked certificates in hex.
type entries struct{ nodes, certificates sets.Set[string] }

// equal reports whether e and other block the same.
func (e entries) equal(other entries) bool {
	return e.nodes.Equal(other.nodes) && e.certificates.Equal(other.certificates)
}

// describe lists what is blocked, for a message.
func (e entries) describe() string {
	return fmt.Sprintf("blocked nodes: %s; blocked certificates: %s", few(e.nodes), few(e.certificates))
}

// few lists some of the entries of all.
func few(all sets.Set[string]) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(csr.ShortenAll(sets.List(all)), ", ")
}

// parse reads the data of a ConfigMap. It skips invalid lines and unknown keys, and reports them.
func parse(data map[string]string) (read entries, problems []string) {
	read = entries{nodes: sets.New[string](), certificates: sets.New[string]()}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		into, check := read.nodes, parseNode
		switch key {
		case nodesKey:
		case certificatesKey:
			into, check = read.certificates, parseCertificate
		default:
			problems = append(problems, fmt.Sprintf("key %q is unknown: the keys are %s and %s",
				csr.Shorten(key), nodesKey, certificatesKey))
			continue
		}
		for number, line := range strings.Split(data[key], "\n") {
			line, _, _ = strings.Cut(line, "#") // # begins a comment
			line = strings.ToLower(strings.TrimSpace(line))
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
	return read, problems
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
// or with colons as openssl prints it.
func parseCertificate(line string) (sha256Hex, problem string) {
	text := strings.TrimPrefix(line, strings.ToLower(csr.CertificateIDPrefix))
	text = strings.ReplaceAll(strings.TrimPrefix(text, "sha256 fingerprint="), ":", "")
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != sha256.Size {
		return "", "is not the SHA-256 of a certificate: write its 64 hex digits"
	}
	return text, ""
}
