// Package entries reads the content of a block list, and decides which requests it blocks. The manager and the kubectl
// plugin share it. It does no I/O.
package entries

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

// The keys in the ConfigMap. It must have NodesKey, and may have the others.
const (
	NodesKey        = "nodes"
	UsersKey        = "users"
	ForcedUsersKey  = "forcedUsers"
	CertificatesKey = "certificates"
)

// Entries are what one version of a list blocks: the names of nodes in lower case, exact user names, and the SHA-256 of
// certificates in hex.
type Entries struct{ Nodes, Users, Certificates sets.Set[string] }

// Equal reports whether e and other block the same.
func (e Entries) Equal(other Entries) bool {
	return e.Nodes.Equal(other.Nodes) && e.Users.Equal(other.Users) && e.Certificates.Equal(other.Certificates)
}

// Digest returns the SHA-256, in hex, of what e blocks. It depends neither on the order nor on comments.
func (e Entries) Digest() string {
	sum := sha256.New()
	for _, part := range []sets.Set[string]{e.Nodes, e.Users, e.Certificates} {
		_ = json.NewEncoder(sum).Encode(sets.List(part)) // neither can fail
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// String lists what is blocked, for a message.
func (e Entries) String() string {
	return fmt.Sprintf("blocked nodes: %s; blocked users: %s; blocked certificates: %s", few(e.Nodes), few(e.Users), few(e.Certificates))
}

// CanaryPrefix begins the names of users that do not exist. In a canary, the digest of what a list blocks follows.
const CanaryPrefix = "csr-controller-manager.io:block-list:"

// Canary returns the name of a user that does not exist, and that an API server refuses only if it enforces exactly e.
func (e Entries) Canary() string { return CanaryPrefix + e.Digest() }

// Essential are the users that a cluster can't live without: if one is refused, nothing is scheduled, no controller works, no
// kubelet is reached, or health checks fail, so that the API server is restarted.
func Essential() []string {
	return []string{"system:anonymous", "system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "kube-apiserver-kubelet-client"}
}

// few lists some of the entries of all.
func few(all sets.Set[string]) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(csr.ShortenAll(sets.List(all)), ", ")
}

// ParseConfigMap is Parse for the data of obj. Each key in binaryData is a problem: kubectl puts a file there that is not UTF-8.
func ParseConfigMap(obj *corev1.ConfigMap) (read Entries, problems []string, err error) {
	read, problems, err = Parse(obj.Data)
	for _, name := range slices.Sorted(maps.Keys(obj.BinaryData)) {
		problems = append(problems, fmt.Sprintf("key %q is ignored, because its file was not UTF-8", csr.Shorten(name)))
	}
	return read, problems, err
}

// Parse reads the data of a ConfigMap. It skips invalid lines and unknown keys, and returns them as problems. Without the
// key for nodes it returns an error: the ConfigMap is no block list.
func Parse(data map[string]string) (read Entries, problems []string, err error) {
	if _, found := data[NodesKey]; !found {
		return read, nil, fmt.Errorf("it has no key %s: add it, with an empty value if no node is blocked", NodesKey)
	}
	read = Entries{Nodes: sets.New[string](), Users: sets.New[string](), Certificates: sets.New[string]()}
	keys := map[string]struct {
		into  sets.Set[string]
		parse func(line string) (entry, problem string)
	}{
		NodesKey: {read.Nodes, parseNode}, CertificatesKey: {read.Certificates, parseCertificate},
		UsersKey: {read.Users, parseUser}, ForcedUsersKey: {read.Users, parseForcedUser},
	}
	for _, name := range slices.Sorted(maps.Keys(data)) {
		key, known := keys[name]
		if !known {
			problems = append(problems, fmt.Sprintf("key %q is unknown: the keys are %s, %s, %s and %s",
				csr.Shorten(name), NodesKey, UsersKey, ForcedUsersKey, CertificatesKey))
			continue
		}
		for number, line := range strings.Split(data[name], "\n") {
			line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff")) // a file may begin with that mark
			if line == "" || line[0] == '#' {
				continue
			}
			entry, problem := key.parse(line)
			if problem != "" {
				problems = append(problems, fmt.Sprintf("%s, line %d: %q %s", name, number+1, csr.Shorten(line), problem))
				continue
			}
			key.into.Insert(entry)
		}
	}
	return read, problems, nil
}

// plain returns a line of nodes or certificates in lower case, without the comment that # begins.
func plain(line string) string {
	line, _, _ = strings.Cut(line, "#")
	return strings.ToLower(strings.TrimSpace(line))
}

// parseUser reads the exact name of a user that a cluster can live without.
func parseUser(line string) (name, problem string) {
	name, problem = parseForcedUser(line)
	if problem == "" && slices.Contains(Essential(), name) {
		return "", "is needed by the cluster itself, and stays unblocked: write it under the key " + ForcedUsersKey + " if you accept the outage"
	}
	return name, problem
}

// parseForcedUser reads the exact name of a user: up to a # after a space or a tab, because names such as
// https://issuer#subject hold one; or a string of JSON, for any other name.
func parseForcedUser(line string) (name, problem string) {
	if strings.HasPrefix(line, `"`) {
		decoder := json.NewDecoder(strings.NewReader(line))
		if err := decoder.Decode(&name); err != nil {
			return "", "is not a string of JSON"
		}
		if rest := strings.TrimSpace(line[decoder.InputOffset():]); rest != "" && rest[0] != '#' {
			return "", "has more than a comment after the string of JSON: write one name in a line"
		}
	} else {
		name, _, _ = strings.Cut(line, " #")
		name, _, _ = strings.Cut(name, "\t#")
		name = strings.TrimSpace(name)
	}
	switch {
	case name == "":
		return "", "is empty"
	case len(name) > 2000: // one that fits into no condition of an API server would keep all others out of effect
		return "", "is longer than 2,000 bytes: block the certificate"
	case !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError):
		return "", "is not valid UTF-8: block the node or the certificate"
	case strings.HasPrefix(name, CanaryPrefix):
		return "", "is a name that the list itself uses"
	}
	if node, found := strings.CutPrefix(name, csr.NodeUserPrefix); found {
		return "", fmt.Sprintf("is a node: write %s under the key %s", csr.Shorten(node), NodesKey)
	}
	return name, ""
}

// parseNode reads the name of a node.
func parseNode(line string) (name, problem string) {
	line = plain(line)
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
	text := strings.TrimPrefix(plain(line), strings.ToLower(csr.CertificateIDPrefix))
	text = strings.NewReplacer(":", "", " ", "").Replace(strings.TrimPrefix(text, "sha256 fingerprint="))
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != sha256.Size {
		return "", "is not the SHA-256 of a certificate: write its 64 hex digits"
	}
	return text, ""
}

// Check decides that req waits: NodeBlocked because of the node that it is for or comes from, UserBlocked because of the user
// that made it, or CertificateBlocked because of the certificate with which it was made. Otherwise no Decision is made. list
// names the ConfigMap.
func (e Entries) Check(req *csr.Request, list string) judge.Decision {
	names := append([]string{req.NodeName()}, req.Requester.Extra[csr.NodeNameKey]...) // the first is empty if req is not for a node
	if name, found := strings.CutPrefix(req.Requester.Username, csr.NodeUserPrefix); found {
		names = append(names, name)
	}
	for _, name := range names {
		if name = strings.ToLower(name); e.Nodes.Has(name) {
			return judge.Wait.Because("NodeBlocked", "node %q is on the block list, ConfigMap %s: nothing is approved or signed "+
				"for it until its name is removed from the list", csr.Shorten(name), list)
		}
	}
	if user := req.Requester.Username; e.Users.Has(user) {
		return judge.Wait.Because("UserBlocked", "user %q is on the block list, ConfigMap %s: nothing is approved or signed "+
			"for this user until the name is removed from the list", csr.Shorten(user), list)
	}
	for _, sum := range req.Requester.Certificates() {
		if e.Certificates.Has(sum) {
			return judge.Wait.Because("CertificateBlocked", "client certificate %s is on the block list, ConfigMap %s: nothing is "+
				"approved or signed for a request that was made with it until its SHA-256 is removed from the list", sum, list)
		}
	}
	return judge.Decision{}
}
