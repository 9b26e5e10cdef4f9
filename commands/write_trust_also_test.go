package commands

import (
	"io"
	"path/filepath"
	"slices"
	"testing"
)

// TestWriteTrustAlso: none of the files that are named beside the bundle is passed over, as an API server would then refuse
// those whom it trusts by it.
func TestWriteTrustAlso(t *testing.T) {
	t.Parallel()
	o := trustFolder(t)
	others, second := filepath.Join(filepath.Dir(o.from), "others.crt"), filepath.Join(filepath.Dir(o.from), "second.crt")
	for path, name := range map[string]string{o.from: "published", others: "others", second: "second"} {
		put(t, path, bundled(t, name, true))
	}
	args := []string{"--from=" + o.from, "--to=" + o.to, "--also=" + others, "--also=" + second, "--interval=0"}
	if err := WriteTrust(t.Context(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := trusts(t, o.to); !slices.Equal(got, []string{"published", "others", "second"}) {
		t.Errorf("trusts %v", got)
	}
}
