package csrenv

import (
	"context"
	"errors"
	"testing"
)

func TestStartReturnsWhyTheManagerEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	env := &Env{stop: cancel, stopped: make(chan error, 1)}
	broken := errors.New("no such thing")
	env.stopped <- broken
	err := env.await(ctx, func(ctx context.Context) bool { <-ctx.Done(); return false })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if err := env.Stop(); !errors.Is(err, broken) {
		t.Errorf("Stop after that: %v, want %v", err, broken)
	}
}
