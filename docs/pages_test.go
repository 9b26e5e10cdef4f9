// Package docs tests what pages say about the source. The module hack/docs checks links, anchors and diagrams.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestArchitectureNamesEveryPackage wants each folder of controllers, internal, pkg and test in the tree of architecture.md.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	_, tree, _ := strings.Cut(expect.File(t, "explanation/architecture.md"), "\n```\nmain.go ")
	tree, _, _ = strings.Cut(tree, "```\n")
	_, tests, _ := strings.Cut(tree, "\ntest/ ")
	for _, parent := range []string{"controllers", "internal", "pkg", "test"} {
		entries, err := os.ReadDir("../" + parent)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d entries in %s: %v", len(entries), parent, err)
		}
		for _, entry := range entries {
			named := strings.Contains(tree, "\n  "+entry.Name()+"/ ") || parent == "test" && strings.Contains(tests, " "+entry.Name())
			expect.True(t, !entry.IsDir() || named, "%s/%s is not in the tree", parent, entry.Name())
		}
	}
}

// TestLinterNamesFilesThatExist finds rules of .golangci.yml about files that are gone: they check nothing.
func TestLinterNamesFilesThatExist(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`"\*\*/([\w/*]+\.go)"`).FindAllStringSubmatch(expect.File(t, "../.golangci.yml"), -1)
	for _, name := range named {
		if found, err := filepath.Glob("../" + strings.ReplaceAll(name[1], "**", "*")); err != nil || len(found) == 0 {
			t.Errorf("%s: %v", name[0], err)
		}
	}
	expect.True(t, len(named) >= 20, "only %d files", len(named))
}

// TestSecurityPage wants each test that docs/explanation/security.md and reliability.md name, and a link to each of the
// runbooks about stolen credentials. A test that runs only at night, because a build tag keeps it out of "make test", must be
// marked, and each promise of reliability.md must name one that is not.
func TestSecurityPage(t *testing.T) {
	t.Parallel()
	const mark = " (nightly)"
	marks := map[string]string{} // of each test in the source
	expect.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source := expect.File(t, path)
		tagged := strings.HasPrefix(source, "//go:build ") && !strings.Contains(strings.SplitN(source, "\n", 2)[0], "race")
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(source, -1) {
			if !tagged {
				marks[found[1]] = ""
			} else if _, other := marks[found[1]]; !other {
				marks[found[1]] = mark
			}
		}
		return nil
	}))
	for _, file := range []string{"explanation/security.md", "explanation/reliability.md"} {
		page := strings.Join(strings.Fields(expect.File(t, file)), " ")
		named := regexp.MustCompile("`(Test[A-Z]\\w*)`(\\Q"+mark+"\\E)?").FindAllStringSubmatch(page, -1)
		expect.True(t, len(named) >= 30, "%s names only %d tests", file, len(named))
		for _, name := range named {
			if want, found := marks[name[1]]; !found || name[2] != want {
				t.Errorf("%s: test %s has the mark %q, want %q; it exists: %t", file, name[1], name[2], want, found)
			}
		}
	}
	_, promises, _ := strings.Cut(expect.File(t, "explanation/reliability.md"), "\n## Promises\n")
	promises, _, _ = strings.Cut(promises, "\n## ")
	for _, promise := range strings.Split(promises, "\n- ")[1:] {
		expect.True(t, strings.Count(promise, "`Test") > strings.Count(promise, mark),
			"no test of this promise runs in \"make test\": %s", promise)
	}
	events := regexp.MustCompile(` Event = "(\w+)"`).FindAllStringSubmatch(expect.File(t, "../pkg/audit/audit.go"), -1)
	expect.True(t, len(events) >= 9, "only %d events of the audit log", len(events))
	for _, event := range events {
		expect.True(t, strings.Contains(expect.File(t, "reference/metrics.md"), "\n| `"+event[1]+"` | "),
			"reference/metrics.md has no row for the record %s", event[1])
	}
	sections := regexp.MustCompile(`(?m)^- \[.*\]\((#[a-z-]+)\)`).FindAllStringSubmatch(expect.File(t, "runbooks/stolen-credentials.md"), -1)
	if len(sections) == 0 {
		t.Fatal("no runbooks")
	}
	for _, section := range sections {
		expect.True(t, strings.Contains(expect.File(t, "explanation/security.md"), "](../runbooks/stolen-credentials.md"+section[1]+")"),
			"explanation/security.md does not link to the runbook %s", section[1])
	}
}

// TestMemoryLimitIsAboveThePeak wants manifests with a limit a fifth above the peak of 840 MiB that performance.md names, and with the
// GOMEMLIMIT of that measurement.
func TestMemoryLimitIsAboveThePeak(t *testing.T) {
	t.Parallel()
	for file, texts := range map[string][]string{
		"explanation/performance.md":                   {"with `GOMEMLIMIT=800MiB`: 795 MiB, of which 457 are live, peak 821."},
		"../test/bench/subject_test.go":                {`"GOMEMLIMIT=800MiB"`},
		"../config/manager/base/deployment.yaml":       {"GOMEMLIMIT\n          value: 800MiB\n", "            memory: 1Gi\n"},
		"../config/overlays/static-pod/pod/pod.yaml":   {"GOMEMLIMIT\n      value: 800MiB\n", "        memory: 1Gi\n"},
		"../charts/csr-controller-manager/values.yaml": {"goMemLimit: 800MiB\n", "    memory: 1Gi\n"},
	} {
		for _, text := range texts {
			expect.True(t, strings.Contains(expect.File(t, file), text), "%s: no %q", file, text)
		}
	}
}

// TestNoAdviceBindsEveryToken wants no command and no manifest that gives a role to system:bootstrappers, the group of every
// bootstrap token. Only the control plane of "make run" does, which has one token.
func TestNoAdviceBindsEveryToken(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`--group[= ]['"]?system:bootstrappers(?:[^:\w]|$)|(?m)^ *(?:- )?name: ['"]?system:bootstrappers['"]?$`)
	for _, text := range []string{"--group system:bootstrappers \\\n", "  --group=system:bootstrappers`", "kind: Group\n  name: system:bootstrappers\n"} {
		expect.True(t, command.MatchString(text), "not found: %s", text)
	}
	for _, folder := range []string{".", "../README.md", "../config", "../charts", "../commands", "../controllers", "../pkg"} {
		expect.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && !strings.HasSuffix(path, "_test.go") && command.MatchString(expect.File(t, path)) {
				t.Errorf("%s gives a role to every bootstrap token: %q", path, command.FindString(expect.File(t, path)))
			}
			return err
		}))
	}
}

// exportsKey matches a command that prints a Secret with its values, or that issues a certificate by hand. onlyCertificate matches
// the output of a certificate alone.
var (
	exportsKey      = regexp.MustCompile(`\bget (?:-\S+ \S+ )*secrets?\b.* (?:-o|--output|--template)|\bget (?:-\S+ \S+ )*(?:-o|--output)\S* \S+ secrets?\b|--raw \S*/secrets/|\bextract secret|view-secret|-CAkey\b`)
	onlyCertificate = regexp.MustCompile(`-o (?:name|wide|go-template='\{\{index \.data "(?:tls|ca|signing|candidate|retiring)\.crt" \| base64decode\}\}')`)
)

// exporting returns the commands of text that read a key of a CA, each on one line.
func exporting(text string) (found []string) {
	for line := range strings.Lines(regexp.MustCompile(`(?:\\|(\||&&))\n\s*`).ReplaceAllString(text, "$1 ")) {
		if exportsKey.MatchString(onlyCertificate.ReplaceAllString(line, "")) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// TestNoPageExportsACAKey wants no command that brings the key of a CA from its Secret into a shell or a file, and none that issues from
// it by hand. Only the signer and the rotation read a key.
func TestNoPageExportsACAKey(t *testing.T) {
	t.Parallel()
	allowed := map[string]int{
		"how-to/back-up-the-ca.md":                             1, // a CA that the manager made exists nowhere else
		"how-to/migrate-from-kcm.md":                           1, // kube-controller-manager reads its CA from files
		"how-to/replace-a-leaked-ca.md":                        1, // issues from a new CA that the reader has just made, without the rotation
		"how-to/cluster-api.md":                                1, // the token of a ServiceAccount, and no CA
		"how-to/host-a-control-plane-elsewhere.md":             1, // the token of a ServiceAccount, and no CA
		"../charts/csr-controller-manager/templates/NOTES.txt": 1, // as in back-up-the-ca.md
	}
	for text, want := range map[string]int{
		"kubectl -n a get secret csr-signer -o go-template=\"{{index .data \\\"tls.$end\\\" | base64decode}}\" >new-ca/ca.$end": 1,
		"kubectl get secrets/csr-signer \\\n  -o jsonpath='{.data.signing\\.key}' |\n  base64 -d":                               1,
		"kubectl get -o yaml secret csr-signer":                                                                             1,
		"kubectl get --raw /api/v1/namespaces/a/secrets/csr-signer":                                                         1,
		"openssl x509 -req -in client.csr -CA ca.crt \\\n -CAkey ca.key":                                                    1,
		"kubectl get secret csr-signer -o go-template='{{index .data \"tls.crt\" | base64decode}}' |\n openssl x509 -noout": 0,
		"kubectl -n a get secret csr-signer   # of type kubernetes.io/tls?\nkubectl get nodes -o name":                      0,
	} {
		expect.Equal(t, text, len(exporting(text)), want)
	}
	for _, folder := range []string{".", "../README.md", "../SECURITY.md", "../config", "../charts", "../commands", "../controllers"} {
		expect.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			found := exporting(expect.File(t, path))
			expect.True(t, len(found) == allowed[path], "%s has %d commands, want %d: %q", path, len(found), allowed[path], found)
			delete(allowed, path)
			return nil
		}))
	}
	expect.True(t, len(allowed) == 0, "pages that do not exist: %v", allowed)
}
