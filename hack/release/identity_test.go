package release

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const (
	tagged   = "0123456789abcdef0123456789abcdef01234567"
	registry = "ghcr.io/csr-controller-manager"
	chart    = registry + "/charts/csr-controller-manager@sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
)

// variables are those that GitHub sets for a run of the workflow.
var variables = map[string]string{
	"GITHUB_SERVER_URL": "https://github.com",
	"GITHUB_REPOSITORY": "csr-controller-manager/csr-controller-manager",
	"GITHUB_REF":        "refs/tags/v1.2.3",
	"GITHUB_SHA":        tagged,
}

// artifacts are the files of a release besides the signed lists.
var artifacts = []string{"csr-controller-manager-1.2.3.tgz", "csr-controller-manager-fips_v1.2.3.tar", "csr-controller-manager_v1.2.3.tar"}

// image and fips are the digests of the images.
var image, fips = strings.Repeat("1", 64), strings.Repeat("2", 64)

// references are those of the images and the chart.
var references = []string{registry + "/csr-controller-manager@sha256:" + image, registry + "/csr-controller-manager@sha256:" + fips, chart}

// makeRelease makes the folder "out" with the files of a release that the scripts read, and "tools" with stubs of the programs that verify it.
// cosign appends its arguments to the file CALLS, and accepts everything but call number FAIL_AT. crane prints the manifest of the chart,
// and a digest that names the platform.
const makeRelease = `set -eu
mkdir out tools
echo '#!/bin/sh
echo "$*" >>"$CALLS"
[ "$(wc -l <"$CALLS")" != "${FAIL_AT:-0}" ]' >tools/cosign
echo '#!/bin/sh
case "$1 $3" in
manifest*) cat "$MANIFEST" ;;
"digest linux/amd64") echo sha256:a64 ;;
"digest linux/arm64") echo sha256:r64 ;;
esac' >tools/crane
chmod +x tools/*
cd out
printf chart >"$1"
printf '{"layers":[{"digest":"sha256:%s"}]}' "$(sha256sum <"$1" | cut -d' ' -f1)" >../manifest
image() { printf '{"manifests":[{"digest":"sha256:%s"}]}' "$2" >index.json; tar -cf "$1" index.json; rm index.json; }
image "$2" "$4"
image "$3" "$5"
sha256sum "$1" "$2" "$3" >checksums.txt
printf '%s\n' "$6" "$7" "$8" >references.txt
`

// releaseFolder is a folder of makeRelease.
type releaseFolder struct{ out, tools, calls, manifest string }

func newReleaseFolder(t *testing.T) releaseFolder {
	t.Helper()
	dir := t.TempDir()
	names := slices.Concat(artifacts, []string{fips, image}, references)
	command := exec.CommandContext(t.Context(), "bash", append([]string{"-c", makeRelease, "bash"}, names...)...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return releaseFolder{dir + "/out", dir + "/tools", dir + "/calls", dir + "/manifest"}
}

// run runs a command in folder dir with only these variables, and returns the calls of cosign.
func (r releaseFolder) run(t *testing.T, dir string, environment map[string]string, name string, args ...string) ([]string, error) {
	t.Helper()
	write(t, r.calls, "")
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = dir
	command.Env = []string{"PATH=" + r.tools + ":" + os.Getenv("PATH"), "RELEASE_TOOLS=" + r.tools, "CALLS=" + r.calls, "MANIFEST=" + r.manifest}
	for key, value := range environment {
		command.Env = append(command.Env, key+"="+value)
	}
	output, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, output)
	}
	return strings.FieldsFunc(expect.File(t, r.calls), func(r rune) bool { return r == '\n' }), err
}

func write(t *testing.T, path, content string) {
	t.Helper()
	expect.NoError(t, os.WriteFile(path, []byte(content), 0o700))
}

// builtBy returns the commit of build.yml that release.yml calls.
func builtBy(t *testing.T) string {
	t.Helper()
	parsed, _ := load(t)
	_, commit, found := strings.Cut(parsed["release.yml"].Jobs["build"].Uses, "/build.yml@")
	if !found {
		t.Fatal("release.yml does not call build.yml by a commit")
	}
	return commit
}

const (
	signedFlags  = "--certificate-oidc-issuer https://token.actions.githubusercontent.com --certificate-github-workflow-sha " + tagged + " "
	identityFlag = "--certificate-identity https://github.com/csr-controller-manager/csr-controller-manager/.github/workflows/"
	// signerFlags require the workflow that publishes, at the tag and its commit.
	signerFlags = signedFlags + identityFlag + "release.yml@refs/tags/v1.2.3 "
	// callerFlags require that this repository called the builder, for the tag and its commit. Other repositories can call it, too.
	callerFlags = signedFlags + "--certificate-github-workflow-repository csr-controller-manager/csr-controller-manager " +
		"--certificate-github-workflow-ref refs/tags/v1.2.3 "
)

// builtCalls returns the calls of cosign that verify the provenance of the files and of the two images.
func builtCalls(t *testing.T, bundle string, files ...string) []string {
	t.Helper()
	provenance := "verify-blob-attestation " + callerFlags + identityFlag + "build.yml@" + builtBy(t) + " " +
		"--type slsaprovenance1 --bundle " + bundle + " "
	var calls []string
	for _, file := range files {
		calls = append(calls, provenance+file)
	}
	for _, digest := range []string{image, fips} {
		calls = append(calls, provenance+"--digestAlg sha256 --digest "+digest)
	}
	return calls
}

// TestScriptsVerifyIdentities checks every argument with which the scripts call cosign without keys: the workflow, its
// commit, and the repository, tag and commit that called it.
func TestScriptsVerifyIdentities(t *testing.T) {
	t.Parallel()
	r := newReleaseFolder(t)
	calls, err := r.run(t, ".", variables, "./verify.sh", "v1.2.3", registry, r.out)
	expect.NoError(t, err)
	var want []string
	for _, file := range []string{"checksums.txt", "references.txt"} {
		want = append(want, "verify-blob "+signerFlags+"--bundle "+r.out+"/"+file+".sigstore.json "+r.out+"/"+file)
	}
	files := []string{r.out + "/checksums.txt"}
	for _, name := range artifacts {
		files = append(files, r.out+"/"+name)
	}
	want = append(want, builtCalls(t, r.out+"/provenance.sigstore.json", files...)...)
	for _, reference := range references {
		want = append(want, "verify "+signerFlags+reference)
	}
	for range 2 {
		for _, digest := range []string{"sha256:a64", "sha256:r64"} {
			want = append(want, "verify "+signerFlags+registry+"/csr-controller-manager@"+digest,
				"verify-attestation "+signerFlags+"--type cyclonedx "+registry+"/csr-controller-manager@"+digest)
		}
	}
	expect.Equal(t, "verify.sh", calls, want)

	calls, err = r.run(t, ".", variables, "./verify-build.sh", "v1.2.3", r.out)
	expect.NoError(t, err)
	expect.Equal(t, "verify-build.sh", calls, builtCalls(t, r.out+"/provenance.sigstore.json", files...))
}

// TestScriptsNeedAnIdentity checks that nothing is verified if a variable of GitHub is missing: a missing flag would
// accept other signers.
func TestScriptsNeedAnIdentity(t *testing.T) {
	t.Parallel()
	for name := range variables {
		github := maps.Clone(variables)
		delete(github, name)
		r := newReleaseFolder(t)
		for _, script := range [][]string{{"./verify-build.sh", "v1.2.3", r.out}, {"./verify.sh", "v1.2.3", registry, r.out}} {
			calls, err := r.run(t, ".", github, script[0], script[1:]...)
			expect.True(t, err != nil && len(calls) == 0 && strings.Contains(err.Error(), name),
				"%s without %s: calls %q, error %v", script[0], name, calls, err)
		}
	}
}

// pasted returns the commands in SECURITY.md, for this version and its commit.
func pasted(t *testing.T) string {
	t.Helper()
	_, section, _ := strings.Cut(expect.File(t, "../../SECURITY.md"), "\n## Verify a release\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		commands.WriteString(block[1])
	}
	set := regexp.MustCompile(`(?m)^version=.*$`).ReplaceAllString(commands.String(), "version=v1.2.3")
	return regexp.MustCompile(`(?m)^commit=.*$`).ReplaceAllString(set, "commit="+tagged)
}

// TestUsersVerifyIdentities checks every argument with which the commands in SECURITY.md call cosign, and that they stop at the first failure,
// without options of the shell.
func TestUsersVerifyIdentities(t *testing.T) {
	t.Parallel()
	r := newReleaseFolder(t)
	calls, err := r.run(t, r.out, nil, "bash", "-c", pasted(t))
	expect.NoError(t, err)
	built := builtCalls(t, "provenance.sigstore.json", "checksums.txt")
	want := []string{
		built[0],
		"verify-blob " + signerFlags + "--bundle references.txt.sigstore.json references.txt",
		built[1], "verify " + signerFlags + references[0],
		built[2], "verify " + signerFlags + references[1],
	}
	expect.Equal(t, "SECURITY.md", calls, want)
	for at := 1; at <= len(want); at++ {
		calls, err := r.run(t, r.out, map[string]string{"FAIL_AT": strconv.Itoa(at)}, "bash", "-c", pasted(t))
		expect.True(t, err != nil && len(calls) == at && !strings.Contains(err.Error(), "verified"),
			"call %d fails: error %v, calls %q", at, err, calls)
	}
	write(t, filepath.Join(r.out, artifacts[0]), "another chart")
	if calls, err := r.run(t, r.out, nil, "bash", "-c", pasted(t)); err == nil || len(calls) != 1 {
		t.Errorf("a changed file: error %v, calls %q", err, calls)
	}
}
