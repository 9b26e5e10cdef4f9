package commands

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStartErrorIsInTheTerminationLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, []byte(strings.Repeat("old", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	err := execute(t.Context(), []string{"--no-such-flag"}, io.Discard, path)
	if err == nil {
		t.Fatal("the manager took an unknown flag")
	}
	got, readErr := os.ReadFile(path)
	if readErr != nil || string(got) != Printable(err) || !strings.Contains(string(got), "no-such-flag") {
		t.Errorf("%q, error %v; want %q", got, readErr, Printable(err))
	}
}

func TestTerminationLogHoldsTheBeginningOfALongError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := noteTermination(path, "begins"+strings.Repeat("x", 10_000)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || len(got) != 4096 || !strings.HasPrefix(string(got), "begins") {
		t.Errorf("%d bytes, error %v", len(got), err)
	}
}

func TestWithoutATerminationLogNoneIsMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := noteTermination(path, "text"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}
