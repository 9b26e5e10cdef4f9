// Package docs tests what pages say about the source. The module hack/docs checks links, anchors and diagrams.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func read(t *testing.T, file string) string {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestArchitectureNamesEveryPackage wants each folder of controllers, internal, pkg and test in the tree of architecture.md.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	_, tree, _ := strings.Cut(read(t, "explanation/architecture.md"), "\n```\nmain.go ")
	tree, _, _ = strings.Cut(tree, "```\n")
	_, tests, _ := strings.Cut(tree, "\ntest/ ")
	for _, parent := range []string{"controllers", "internal", "pkg", "test"} {
		entries, err := os.ReadDir("../" + parent)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d entries in %s: %v", len(entries), parent, err)
		}
		for _, entry := range entries {
			named := strings.Contains(tree, "\n  "+entry.Name()+"/ ") || parent == "test" && strings.Contains(tests, " "+entry.Name())
			if entry.IsDir() && !named {
				t.Errorf("%s/%s is not in the tree", parent, entry.Name())
			}
		}
	}
}

// TestLinterNamesFilesThatExist wants each file that a rule of .golangci.yml names: a rule about a file that is gone checks
// nothing.
func TestLinterNamesFilesThatExist(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`"\*\*/([\w/*]+\.go)"`).FindAllStringSubmatch(read(t, "../.golangci.yml"), -1)
	if len(named) < 20 {
		t.Errorf("only %d files", len(named))
	}
	for _, name := range named {
		found, err := filepath.Glob("../" + strings.ReplaceAll(name[1], "**", "*"))
		if err != nil || len(found) == 0 {
			t.Errorf("%s: %v", name[0], err)
		}
	}
}

// TestSecurityPage wants each test that docs/explanation/security.md and reliability.md name, and a link to each of the
// runbooks about stolen credentials. A test that runs only at night, because a build tag keeps it out of "make test", must be
// marked, and each promise of reliability.md must name one that is not.
func TestSecurityPage(t *testing.T) {
	t.Parallel()
	const mark = " (nightly)"
	marks := map[string]string{} // of each test in the source
	if err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source := read(t, path)
		tagged := strings.HasPrefix(source, "//go:build ") && !strings.Contains(strings.SplitN(source, "\n", 2)[0], "race")
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(source, -1) {
			if !tagged {
				marks[found[1]] = ""
			} else if _, other := marks[found[1]]; !other {
				marks[found[1]] = mark
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"explanation/security.md", "explanation/reliability.md"} {
		page := strings.Join(strings.Fields(read(t, file)), " ")
		named := regexp.MustCompile("`(Test[A-Z]\\w*)`(\\Q"+mark+"\\E)?").FindAllStringSubmatch(page, -1)
		if len(named) < 30 {
			t.Errorf("%s names only %d tests", file, len(named))
		}
		for _, name := range named {
			if want, found := marks[name[1]]; !found || name[2] != want {
				t.Errorf("%s: test %s has the mark %q, want %q; it exists: %t", file, name[1], name[2], want, found)
			}
		}
	}
	_, promises, _ := strings.Cut(read(t, "explanation/reliability.md"), "\n## Promises\n")
	promises, _, _ = strings.Cut(promises, "\n## ")
	all := strings.Split(promises, "\n- ")[1:]
	for _, promise := range all {
		tests := regexp.MustCompile("`Test\\w+`").FindAllString(promise, -1)
		if nightly := strings.Count(strings.Join(strings.Fields(promise), " "), "`"+mark); len(tests) <= nightly {
			t.Errorf("no test of this promise runs in \"make test\": %s", promise)
		}
	}
	if len(all) < 10 {
		t.Errorf("only %d promises", len(all))
	}
	events := regexp.MustCompile(` Event = "(\w+)"`).FindAllStringSubmatch(read(t, "../pkg/audit/audit.go"), -1)
	if len(events) < 9 {
		t.Errorf("only %d events of the audit log", len(events))
	}
	for _, event := range events {
		if !strings.Contains(read(t, "reference/metrics.md"), "\n| `"+event[1]+"` | ") {
			t.Errorf("reference/metrics.md has no row for the record %s", event[1])
		}
	}
	sections := regexp.MustCompile(`(?m)^- \[.*\]\((#[a-z-]+)\)`).FindAllStringSubmatch(read(t, "runbooks/stolen-credentials.md"), -1)
	if len(sections) == 0 {
		t.Fatal("no runbooks")
	}
	for _, section := range sections {
		if !strings.Contains(read(t, "explanation/security.md"), "](../runbooks/stolen-credentials.md"+section[1]+")") {
			t.Errorf("explanation/security.md does not link to the runbook %s", section[1])
		}
	}
}

// TestMemoryLimitIsAboveThePeak wants a memory limit in the manifests that is a tenth above the peak that performance.md names,
// and the GOMEMLIMIT with which that was measured.
func TestMemoryLimitIsAboveThePeak(t *testing.T) {
	t.Parallel()
	peak := regexp.MustCompile(`with .GOMEMLIMIT=(\d+MiB).: \d+ MiB, of which \d+ are live,\s+peak (\d+)\.`).
		FindStringSubmatch(read(t, "explanation/performance.md"))
	if peak == nil {
		t.Fatal("performance.md names no peak")
	}
	measured, err := strconv.Atoi(peak[2])
	for file, variable := range map[string]string{
		"../config/manager/base/deployment.yaml": "value: ", "../config/overlays/static-pod/pod/pod.yaml": "value: ",
		"../charts/csr-controller-manager/values.yaml": "goMemLimit: ", "../test/bench/subject_test.go": "GOMEMLIMIT=",
	} {
		text := read(t, file)
		if limit := "memory: 1Gi\n"; err != nil || 1024*10 < 11*measured || strings.Contains(text, "limits:") && !strings.Contains(text, limit) {
			t.Errorf("%s: no %q, which is a tenth above %d MiB (%v)", file, limit, measured, err)
		}
		if !strings.Contains(text, variable+peak[1]) {
			t.Errorf("%s: no %s%s", file, variable, peak[1])
		}
	}
}

// TestNoAdviceBindsEveryToken wants no command and no manifest that gives a role to system:bootstrappers, the group of every
// bootstrap token. Only the control plane of "make run" does, which has one token.
func TestNoAdviceBindsEveryToken(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`--group[= ]['"]?system:bootstrappers(?:[^:\w]|$)|(?m)^ *(?:- )?name: ['"]?system:bootstrappers['"]?$`)
	for _, text := range []string{"--group system:bootstrappers \\\n", "  --group=system:bootstrappers`", "kind: Group\n  name: system:bootstrappers\n"} {
		if !command.MatchString(text) {
			t.Errorf("not found: %s", text)
		}
	}
	files := 0
	for _, folder := range []string{".", "../README.md", "../config", "../charts", "../commands", "../controllers", "../pkg"} {
		if err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			for _, found := range command.FindAllString(read(t, path), -1) {
				t.Errorf("%s gives a role to every bootstrap token: %s", path, found)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if files < 200 {
		t.Errorf("only %d files", files)
	}
}
