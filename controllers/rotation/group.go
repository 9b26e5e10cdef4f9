package rotation

import (
	"context"
	"sync"
)

// group runs what goes on as long as the manager does.
type group struct {
	mu      sync.Mutex
	running context.Context // nil until the manager runs, and when it has ended
	waiting []func(context.Context)
	stopped sync.WaitGroup
}

// Go runs one until the manager ends. Before it runs one waits; after it has ended nobody would wait for one.
func (g *group) Go(one func(context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running == nil {
		g.waiting = append(g.waiting, one)
		return
	}
	ctx := g.running
	g.stopped.Go(func() { one(ctx) })
}

// Start runs them until ctx ends, and returns when they all have ended.
func (g *group) Start(ctx context.Context) error {
	g.mu.Lock()
	g.running = ctx
	for _, one := range g.waiting {
		g.stopped.Go(func() { one(ctx) })
	}
	g.waiting = nil
	g.mu.Unlock()
	<-ctx.Done()
	g.mu.Lock()
	g.running = nil
	g.mu.Unlock()
	g.stopped.Wait()
	return nil
}
