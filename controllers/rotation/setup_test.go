package rotation

import (
	"context"
	"testing"
)

// TestGroup: what comes before the manager runs waits for it, what comes after it has ended is not run, and Start waits for
// all that ran.
func TestGroup(t *testing.T) {
	t.Parallel()
	g := &group{}
	ended := 0
	early := make(chan struct{})
	g.Go(func(ctx context.Context) {
		close(early)
		<-ctx.Done()
		ended++
	})
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error)
	go func() { returned <- g.Start(ctx) }()
	<-early
	g.Go(func(context.Context) { cancel() })
	if err := <-returned; err != nil || ended != 1 {
		t.Errorf("returned %v when %d had ended", err, ended)
	}
	g.Go(func(context.Context) { t.Error("it runs") })
}
