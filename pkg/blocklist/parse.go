package blocklist

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The keys in the ConfigMap. It must have nodesKey, and may have certificatesKey.
const (
	nodesKey        = "nodes"
	certificatesKey = "certificates"
)

// entries are the names of the blocked nodes in lower case, and the SHA-256 of the blocked certificates in hex.
type entries struct{ nodes, certificates map[string]bool }

// equal reports whether e and other block the same.
func (e entries) equal(other entries) bool {
	return maps.Equal(e.nodes, other.nodes) && maps.Equal(e.certificates, other.certificates)
}

// parse reads the data of a ConfigMap. It skips invalid lines and unknown keys, and reports them.
func parse(data map[string]string) (entries, mistakes) {
	nodes, problems := parseLines(data[nodesKey], "line", parseNode)
	certificates, more := parseLines(data[certificatesKey], certificatesKey+", line", parseCertificate)
	problems = append(problems, more...)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if key != nodesKey && key != certificatesKey {
			problems = append(problems, fmt.Sprintf("key %q is unknown: the keys are %s and %s",
				csr.Shorten(key), nodesKey, certificatesKey))
		}
	}
	return entries{nodes, certificates}, problems
}

// parseLines reads one entry per line; # begins a comment. It reports the number of an invalid line after label.
func parseLines(
	text, label string, parse func(line string) (entry, problem string),
) (read map[string]bool, problems []string) {
	read = map[string]bool{}
	for number, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.ToLower(strings.TrimSpace(line))
		if line == "" {
			continue
		}
		entry, problem := parse(line)
		if problem != "" {
			problems = append(problems, fmt.Sprintf("%s %d: %s", label, number+1, problem))
			continue
		}
		read[entry] = true
	}
	return read, problems
}

// parseNode reads the name of a node.
func parseNode(line string) (name, problem string) {
	switch {
	case strings.HasPrefix(line, csr.NodeUserPrefix):
		return "", fmt.Sprintf("%q is a user name: remove the prefix %s", csr.Shorten(line), csr.NodeUserPrefix)
	case len(validation.IsDNS1123Subdomain(line)) > 0:
		return "", fmt.Sprintf("%q is not a node name", csr.Shorten(line))
	}
	return line, ""
}

// parseCertificate reads the SHA-256 of a certificate: hex digits as in the audit log, with the prefix as in a request,
// or with colons as openssl prints it.
func parseCertificate(line string) (sha256Hex, problem string) {
	text := strings.TrimPrefix(line, strings.ToLower(csr.CertificateIDPrefix))
	text = strings.ReplaceAll(strings.TrimPrefix(text, "sha256 fingerprint="), ":", "")
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != sha256.Size {
		return "", fmt.Sprintf("%q is not the SHA-256 of a certificate: write its 64 hex digits", csr.Shorten(line))
	}
	return text, ""
}

// describe lists what is blocked, for a message. It shortens the SHA-256 of certificates to 16 digits.
func (e entries) describe() string {
	var parts []string
	if len(e.nodes) > 0 {
		parts = append(parts, few(slices.Sorted(maps.Keys(e.nodes))))
	}
	if len(e.certificates) > 0 {
		var sums []string
		for sum := range e.certificates {
			sums = append(sums, sum[:16])
		}
		slices.Sort(sums)
		parts = append(parts, "certificates "+few(sums))
	}
	if len(parts) == 0 {
		return "no node and no certificate is blocked"
	}
	return "blocked: " + strings.Join(parts, "; ")
}

// few shortens a list for a message.
func few(all []string) string { return strings.Join(csr.ShortenAll(all), ", ") }
