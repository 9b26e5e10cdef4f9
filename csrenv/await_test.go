package csrenv

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestStartReturnsWhyTheManagerEnded(t *testing.T) {
	env, broken := &Env{stopped: make(chan error, 1)}, errors.New("no such thing")
	err := env.run(t.Context(), func(context.Context) error { return broken }, func(ctx context.Context) bool { <-ctx.Done(); return false })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if err := env.Stop(); !errors.Is(err, broken) {
		t.Errorf("Stop after that: %v, want %v", err, broken)
	}
}

// TestStopWaitsForWrites checks that Stop waits for a write and the read after it, which have 45 seconds each. The field is
// controller-runtime's: no other way shows it without a server.
func TestStopWaitsForWrites(t *testing.T) {
	mgr, err := newManager(&rest.Config{Host: "127.0.0.1:1"}, Options{CA: &CA{}, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
	if mgr == nil {
		t.Fatal(err)
	}
	waits := time.Duration(reflect.ValueOf(mgr).Elem().FieldByName("gracefulShutdownTimeout").Int())
	if waits <= 90*time.Second || waits > 2*time.Minute {
		t.Errorf("Stop waits %s for calls", waits)
	}
}
