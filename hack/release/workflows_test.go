// Package release tests the workflows and the scripts of a release. It contains no code of the manager.
package release

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const workflows = "../../.github/workflows"

type workflow struct {
	Permissions map[string]string
	Jobs        map[string]job
}

type job struct {
	Permissions map[string]string
	Uses        string
	Timeout     int `json:"timeout-minutes"`
	Steps       []step
}

type step struct {
	Uses, Run string
	With      map[string]any
}

// load returns each workflow by its file's name, with its text.
func load(t *testing.T) (map[string]workflow, map[string]string) {
	t.Helper()
	paths, err := filepath.Glob(workflows + "/*.y*ml")
	if err != nil || len(paths) < 3 {
		t.Fatalf("workflows %q, error %v", paths, err)
	}
	parsed, texts := map[string]workflow{}, map[string]string{}
	for _, path := range paths {
		text := expect.File(t, path)
		var one workflow
		if err := yaml.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		parsed[filepath.Base(path)], texts[filepath.Base(path)] = one, text
	}
	return parsed, texts
}

// TestActionsArePinned wants the digest of a commit for each action, and its version beside it.
func TestActionsArePinned(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`^(\./\.github/workflows/[a-z]+\.yml|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|` +
		`csr-controller-manager/csr-controller-manager/\.github/workflows/build\.yml@[0-9a-f]{40} # main)$`)
	_, texts := load(t)
	digests := map[string]string{}
	for name, text := range texts {
		for _, found := range regexp.MustCompile(`(?m)\buses:\s*(.*?)\s*$`).FindAllStringSubmatch(text, -1) {
			expect.True(t, pinned.MatchString(found[1]), "%s: %q is not pinned as OWNER/ACTION@COMMIT # vX.Y.Z", name, found[1])
			action, rest, _ := strings.Cut(found[1], "@")
			if before, ok := digests[action]; ok && before != rest {
				t.Errorf("%s: %s is %s elsewhere", name, found[1], before)
			}
			digests[action] = rest
		}
	}
}

// TestScriptsNameTheToolchain wants each script that calls go to set GOTOOLCHAIN before, and each control plane to name its own.
func TestScriptsNameTheToolchain(t *testing.T) {
	t.Parallel()
	sets := regexp.MustCompile(`(?m)^\. (hack/go\.env|"\$here/\.\./go\.env"|hack/release/lib\.sh)$`)
	calls := regexp.MustCompile(`(?m)^([^#\n]*[ (&|;])?go (build|doc|env|get|list|mod|run|test|tool|version|vet)\b`)
	expect.True(t, sets.MatchString(expect.File(t, "lib.sh")), "lib.sh does not source hack/go.env")
	found := 0
	for path, text := range files(t, "../../.ci/*", "../*.sh", "../*/*.sh") {
		if first := calls.FindStringIndex(text); first != nil {
			found++
			expect.True(t, sets.MatchString(text[:first[0]]), "%s calls go before it sources hack/go.env", path)
		}
	}
	expect.True(t, found >= 10, "only %d scripts call go: correct the search", found)
	for path, text := range files(t, "../../go.mod", "../controlplane/go*.mod") {
		expect.True(t, regexp.MustCompile(`(?m)^toolchain go1\.\d+\.\d+$`).MatchString(text), "%s names no toolchain", path)
	}
}

// files returns the text of each file that one of patterns matches.
func files(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		expect.True(t, err == nil && len(paths) > 0, "%s matches %q, error %v", pattern, paths, err)
		for _, path := range paths {
			texts[path] = expect.File(t, path)
		}
	}
	return texts
}

// TestSteps wants the toolchain of go.mod in the workflows, because another version of Go builds other bytes. It wants no token in a
// checkout, and no expression in a script: a script gets each value from the environment, where a shell does not run it. No workflow runs code of a pull request with rights. A target of make that runs as root needs
// .ci/packages before: without gcc, tests run without the race detector. .ci/run installs the packages itself.
func TestSteps(t *testing.T) {
	t.Parallel()
	parsed, texts := load(t)
	for name, text := range texts {
		for id, each := range parsed[name].Jobs {
			installed := false
			for _, one := range each.Steps {
				expect.True(t, !strings.HasPrefix(one.Uses, "actions/setup-go@") || one.With["go-version-file"] == "go.mod" && one.With["go-version"] == nil,
					"%s: job %s does not take the Go of go.mod: %v", name, id, one.With)
				expect.True(t, !strings.HasPrefix(one.Uses, "actions/checkout@") || one.With["persist-credentials"] == false,
					"%s: job %s leaves its token in the checkout: set persist-credentials: false", name, id)
				expect.True(t, !strings.Contains(one.Run, "${{"), "%s: job %s has an expression in a script: %s", name, id, one.Run)
				installed = installed || strings.HasSuffix(one.Run, " .ci/packages")
				expect.True(t, !strings.HasPrefix(one.Run, "sudo env ") || !strings.Contains(one.Run, " make ") || installed,
					"%s: job %s does not run .ci/packages before %q", name, id, one.Run)
			}
		}
		expect.True(t, !strings.Contains(text, "pull_request_target") && !strings.Contains(text, "workflow_run"),
			"%s runs code of a pull request with rights", name)
		// Git reads the name of a tag before that of a branch, and a tag origin/main could be pushed.
		expect.True(t, !strings.Contains(strings.ReplaceAll(text, "refs/remotes/origin/main", ""), "origin/main"),
			"%s has origin/main without refs/remotes/", name)
	}
}

// TestPermissions wants no permission for a whole workflow beyond reading the repository, and rights to write only in
// the release.
func TestPermissions(t *testing.T) {
	t.Parallel()
	parsed, _ := load(t)
	attests := map[string]string{"contents": "read", "id-token": "write", "attestations": "write"}
	allowed := map[string]map[string]string{
		"build.yml attest":    attests,
		"release.yml build":   attests, // what the job "attest" of build.yml can have
		"release.yml publish": {"contents": "read", "packages": "write", "id-token": "write"},
		"release.yml release": {"contents": "write"},
	}
	for name, one := range parsed {
		expect.True(t, len(one.Permissions) == 1 && one.Permissions["contents"] == "read",
			"%s: permissions %v, want contents: read", name, one.Permissions)
		for id, each := range one.Jobs {
			for scope, access := range each.Permissions {
				expect.True(t, allowed[name+" "+id][scope] == access, "%s: job %s has %s: %s", name, id, scope, access)
			}
			expect.True(t, each.Uses != "" || each.Timeout != 0, "%s: job %s has no timeout-minutes", name, id)
		}
	}
}

// TestReleaseSignsWithoutBuilding wants each identity in a job that builds no part of the release, so that no script
// of a build can sign.
func TestReleaseSignsWithoutBuilding(t *testing.T) {
	t.Parallel()
	parsed, texts := load(t)
	var builders, signers []string
	for _, name := range []string{"build.yml", "release.yml"} {
		expect.True(t, !strings.Contains(texts[name], "secrets:"), "%s passes secrets", name)
		for id, each := range parsed[name].Jobs {
			builds := runs(each, "/build.sh")
			if _, signs := each.Permissions["id-token"]; signs && each.Uses == "" || runs(each, "/sign.sh") {
				signers = append(signers, name+" "+id)
			}
			if builds {
				builders = append(builders, name+" "+id)
			}
			expect.True(t, !builds || len(each.Permissions) == 0, "job %s builds with the permissions %v", id, each.Permissions)
			for _, action := range each.Steps {
				expect.True(t, !strings.HasPrefix(action.Uses, "actions/setup-go@") || action.With["cache"] == false,
					"job %s uses a cache that other workflows write", id)
				if id == "attest" && (strings.HasPrefix(action.Uses, "actions/checkout@") || strings.Contains(action.Run, ".sh")) {
					t.Errorf("job %s has scripts of the tag", id)
				}
			}
		}
	}
	slices.Sort(signers)
	if !slices.Equal(builders, []string{"build.yml build"}) || !slices.Equal(signers, []string{"build.yml attest", "release.yml publish"}) {
		t.Errorf("jobs %v build, jobs %v sign", builders, signers)
	}
}

// TestBuilderIsACommit wants build.yml to be called as it was at an earlier commit of this branch, without a
// difference from the file in the tree.
func TestBuilderIsACommit(t *testing.T) {
	t.Parallel()
	const file = ".github/workflows/build.yml"
	_, texts := load(t)
	commit := builtBy(t)
	if err := exec.CommandContext(t.Context(), "git", "merge-base", "--is-ancestor", commit, "HEAD").Run(); err != nil {
		t.Errorf("%s is no commit of this branch: %v", commit, err)
	}
	text, err := exec.CommandContext(t.Context(), "git", "show", commit+":"+file).Output()
	if err != nil || string(text) != texts["build.yml"] {
		t.Errorf("build.yml differs from that of commit %s: commit the file, and then its digest in release.yml and SECURITY.md (error %v)",
			commit, err)
	}
}

// TestUsersGetTheBuilder wants a row in SECURITY.md for each release, with the commit of build.yml that its
// release.yml calls. The first row is for the newest or the next release, and the commands have its values.
func TestUsersGetTheBuilder(t *testing.T) {
	t.Parallel()
	security := expect.File(t, "../../SECURITY.md")
	rows := regexp.MustCompile("(?m)^\\| (v\\S+) \\| `([0-9a-f]{40})` \\|$").FindAllStringSubmatch(security, -1)
	if len(rows) == 0 {
		t.Fatal("SECURITY.md has no row")
	}
	if first := rows[0]; first[2] != builtBy(t) || !strings.Contains(security, "\nversion="+first[1]+"\ncommit=COMMIT\nbuilt_by="+first[2]+"\n") {
		t.Errorf("release.yml calls build.yml at %s: the first row of SECURITY.md is %q, and the commands must have its values", builtBy(t), first[0])
	}
	for _, released := range regexp.MustCompile(`(?m)^## (v\S+)`).FindAllStringSubmatch(expect.File(t, "../../CHANGELOG.md"), -1) {
		expect.True(t, slices.ContainsFunc(rows, func(row []string) bool { return row[1] == released[1] }),
			"SECURITY.md has no row for %s", released[1])
	}
	for _, row := range rows {
		text, err := exec.CommandContext(t.Context(), "git", "show", "refs/tags/"+row[1]+":.github/workflows/release.yml").Output()
		if err == nil && !strings.Contains(string(text), "/build.yml@"+row[2]+" ") { // without the tag, there is nothing to compare
			t.Errorf("release.yml of %s does not call build.yml at %s", row[1], row[2])
		}
	}
}

// runs reports whether a step of each runs script.
func runs(each job, script string) bool {
	return slices.ContainsFunc(each.Steps, func(one step) bool { return strings.Contains(one.Run, script) })
}

// TestNotes checks that a release has a semantic version, which is not the tag of an image with the FIPS 140-3 module, and gets its section of
// the changelog, which it must have. A pre-release needs none.
func TestNotes(t *testing.T) {
	t.Parallel()
	const changelog = "# Changelog\n\n## v1.10.0 (2026-11-23)\n\n- ten\n\n## v1.2.0-rc.1\n\n- candidate\n\n## v1.1.0\n\n- one\n\n## v1.0.0\n"
	path := filepath.Join(t.TempDir(), "CHANGELOG.md")
	write(t, path, changelog)
	notes := func(args ...string) (string, error) {
		command := exec.CommandContext(t.Context(), "./notes.sh", args...)
		command.Env = append(os.Environ(), "CHANGELOG="+path)
		output, err := command.CombinedOutput()
		return string(output), err
	}
	for _, version := range []string{
		"", "1.2.3", "v1.2", "v01.2.3", "v1.2.3+build", "v1.2.3-", "v1.2.3-a..b", "v1.2.3 ", "v1.2.3\n", "v1.2.3;id", "v1.2.3-fips", "v1.2.3-rc.1-fips",
	} {
		if output, err := notes(version); err == nil || !strings.Contains(output, "is not a semantic version") {
			t.Errorf("%q: %s, error %v", version, output, err)
		}
	}
	for version, want := range map[string]string{
		"v1.10.0": "\n- ten\n", // with a date
		"v1.1.0":  "\n- one\n", // a newer name begins like this one
		"v99.0.0": `no section "## v99.0.0"`, "v1.0.0": `no section "## v1.0.0"`,
		"v1.2.0-rc.1": "\n- candidate\n", "v0.0.0-dry.run": "\n",
	} {
		output, err := notes(version)
		if withCommit, _ := notes(version, tagged); err == nil && withCommit != output+"\nCommit: `"+tagged+"`\n" {
			t.Errorf("%s: with a commit, %q", version, withCommit)
		}
		if refused := strings.HasPrefix(want, "no section"); refused != (err != nil) || refused && !strings.Contains(output, want) || !refused && output != want {
			t.Errorf("%s: %q, error %v", version, output, err)
		}
	}
}

// TestChartHasTheVersionOfTheChangelog wants the newest release in Chart.yaml, or the first one if there is none yet.
func TestChartHasTheVersionOfTheChangelog(t *testing.T) {
	t.Parallel()
	want := "0.1.0"
	if newest := regexp.MustCompile(`(?m)^## v(\S+)`).FindStringSubmatch(expect.File(t, "../../CHANGELOG.md")); newest != nil {
		want = newest[1]
	}
	expect.True(t, strings.Contains(expect.File(t, "../../charts/csr-controller-manager/Chart.yaml"), "\nversion: "+want+"\n"),
		"Chart.yaml has another version than the newest release in CHANGELOG.md, %s", want)
}

// TestOnlyAMissingTagIsFree checks crane's errors: only the registry's word that it has no such tag lets a release
// take the tag.
func TestOnlyAMissingTagIsFree(t *testing.T) {
	t.Parallel()
	const get = "Error: fetching manifest ghcr.io/o/i:v1: GET https://ghcr.io/v2/o/i/manifests/v1: "
	free := []string{get + "MANIFEST_UNKNOWN: manifest unknown", get + "NAME_UNKNOWN: Unknown name", get + "unexpected status code 404 Not Found"}
	for _, text := range append(free,
		get+"UNAUTHORIZED: authentication required", get+"DENIED: requested access to the resource is denied",
		get+"unexpected status code 401 Unauthorized", get+"unexpected status code 503 Service Unavailable", get+"TOOMANYREQUESTS: retry later",
		`Error: fetching manifest x: Get "https://ghcr.io/v2/": dial tcp: lookup ghcr.io: no such host`, "",
	) {
		command := exec.CommandContext(t.Context(), "bash", "-c", `. ./lib.sh; isMissing "$1"`, "bash", text)
		if err := command.Run(); (err == nil) != slices.Contains(free, text) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

// TestFIPS checks that a test runs in FIPS mode if GOFIPS140 selects a module, as the part test-fips of `make nightly` does, and else not.
func TestFIPS(t *testing.T) {
	t.Parallel()
	module := os.Getenv("GOFIPS140")
	if want := module != "" && module != "off"; fips140.Enabled() != want {
		t.Errorf("GOFIPS140 is %q, FIPS mode is %t", module, fips140.Enabled())
	}
}
