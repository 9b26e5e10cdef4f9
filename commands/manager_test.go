package commands

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStartErrorIsInTheTerminationLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	put(t, path, []byte(strings.Repeat("old", 5000)))
	err := execute(t.Context(), []string{"--no-such-flag"}, io.Discard, path)
	if err == nil {
		t.Fatal("the manager took an unknown flag")
	}
	got, readErr := os.ReadFile(path)
	if readErr != nil || string(got) != Printable(err) || !strings.Contains(string(got), "no-such-flag") {
		t.Errorf("%q, error %v; want %q", got, readErr, Printable(err))
	}
}

// TestNoteTermination checks that a long text is shortened at its end, and that no file is made.
func TestNoteTermination(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := noteTermination(path, "text"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
	put(t, path)
	if err := noteTermination(path, "begins"+strings.Repeat("x", 10_000)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || len(got) != 4096 || !strings.HasPrefix(string(got), "begins") {
		t.Errorf("%d bytes, error %v", len(got), err)
	}
}

// Every text in the log is ASCII, even an error with a requester's text.
func TestLogIsASCII(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger := jsonLogger(0, &out)
	logger.Info("Decided", "subject", "CN=\u009b31m\u202e\u0435")
	logger.Error(errors.New("no \u202e"), "Failed")
	if at := strings.IndexFunc(out.String(), func(char rune) bool { return char != '\n' && (char < ' ' || char > '~') }); at >= 0 {
		t.Errorf("the log has a character that is not ASCII at %d: %q", at, out.String())
	}
	if !strings.Contains(out.String(), `"subject":"CN=\u009b31m\u202e\u0435"`) {
		t.Errorf("the log has lost what was written: %s", out.String())
	}
}
