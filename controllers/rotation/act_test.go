package rotation

import (
	"testing"
	"time"
)

// TestALostAccountIsClosed only where nobody asks what was in it.
func TestALostAccountIsClosed(t *testing.T) {
	t.Parallel()
	alive, over := noted("old"), noted("old")
	over.NotAfter.Time = noon
	if sealsLost(alive, noon) || !sealsLost(over, noon) || !sealsLost(accepted(prepared()).Retiring, noon.Add(-time.Hour)) {
		t.Error("got it wrong")
	}
}
