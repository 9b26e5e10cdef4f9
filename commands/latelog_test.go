package commands

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestLateValues checks that loggers with the same parent write their own values, in order.
func TestLateValues(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	parent := jsonLogger(0, &out).WithValues("controller", "a")
	first, second := parent.WithValues("name", "1"), parent.WithValues("name", "2").WithName("part")
	first.Info("One", "x", 1)
	second.Error(errors.New("no"), "Two", "y", 2)
	parent.V(1).Info("Hidden")
	parent.Info("Three")
	for i, want := range []string{
		`"level":"INFO","msg":"One","controller":"a","name":"1","x":1}`,
		`"level":"ERROR","msg":"Two","logger":"part","err":"no","controller":"a","name":"2","y":2}`,
		`"level":"INFO","msg":"Three","controller":"a"}`,
	} {
		line := strings.Split(out.String(), "\n")[i]
		if _, rest, _ := strings.Cut(line, ","); rest != want {
			t.Errorf("%s, want %s", rest, want)
		}
	}
}
