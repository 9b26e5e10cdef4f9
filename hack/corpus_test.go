// Package hack tests rules of the whole tree. It contains no code of the manager.
package hack

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEveryFuzzTargetHasACorpus wants committed inputs for each fuzz target, which plain tests run, and no inputs without a target.
func TestEveryFuzzTargetHasACorpus(t *testing.T) {
	t.Parallel()
	git := func(args ...string) []string {
		command := exec.CommandContext(t.Context(), "git", args...)
		command.Dir = ".."
		output, err := command.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(output)), "\n")
	}
	var targets, corpora []string
	target := regexp.MustCompile(`^(.+)/[^/]+_test\.go:func (Fuzz\w*)\(`)
	for _, line := range git("grep", "--untracked", "-E", `^func Fuzz\w*\(`, "--", "*_test.go") {
		found := target.FindStringSubmatch(line)
		if found == nil {
			t.Fatalf("not a target: %q", line)
		}
		targets = append(targets, found[1]+"/testdata/fuzz/"+found[2])
	}
	for _, file := range git("ls-files", "--cached", "--others", "--exclude-standard", "--", "*/testdata/fuzz/*") {
		corpora = append(corpora, path.Dir(file))
	}
	slices.Sort(targets)
	slices.Sort(corpora)
	if diff := cmp.Diff(targets, slices.Compact(corpora)); diff != "" {
		t.Errorf("fuzz targets, and folders with inputs (-want +got); hack/fuzz.sh 1m TARGET and hack/fuzz-corpus.sh TARGET add inputs:\n%s", diff)
	}
}
