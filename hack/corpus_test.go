// Package hack tests rules of the whole tree. It contains no code of the manager.
package hack

import (
	"os/exec"
	"testing"
)

// TestEveryFuzzTargetHasACorpus wants committed inputs for each fuzz target, which plain tests run, and no inputs without a target.
func TestEveryFuzzTargetHasACorpus(t *testing.T) {
	t.Parallel()
	const compare = `set -eo pipefail; export LC_ALL=C; cd ..
targets=$(git grep --untracked -E '^func Fuzz\w*\(' -- '*_test.go' | sed -E 's|/[^/]+_test\.go:func (Fuzz\w*)\(.*|/testdata/fuzz/\1|' | sort)
[ -n "$targets" ]
diff -U0 <(echo "$targets") <(git ls-files --cached --others --exclude-standard -- '*/testdata/fuzz/*' | sed 's|/[^/]*$||' | sort -u)`
	if output, err := exec.CommandContext(t.Context(), "bash", "-c", compare).CombinedOutput(); err != nil {
		t.Errorf("fuzz targets, and folders with inputs (-want +got): %v\n%s\nhack/fuzz.sh and hack/fuzz-corpus.sh add inputs", err, output)
	}
}
