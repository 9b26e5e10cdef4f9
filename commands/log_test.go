package commands

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

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
