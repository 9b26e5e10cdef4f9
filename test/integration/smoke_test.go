package integration

import (
	"testing"
	"context"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

func TestSmoke(t *testing.T) {
	t0 := time.Now()
	c, err := cluster.Start()
	if err != nil { t.Fatal(err) }
	t.Cleanup(func() { if err := c.Stop(); err != nil { t.Error(err) } })
	t.Log("up", time.Since(t0)); t0 = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	env, err := csrenv.Start(t.Context(), c.Config, csrenv.Options{CA: c.CA})
	if err != nil { t.Fatal(err) }
	t.Log("started", time.Since(t0)); t0 = time.Now()
	if _, err := env.ConfigFor(ctx, "alice", "devs"); err != nil { t.Fatal(err) }
	t.Log("alice", time.Since(t0)); t0 = time.Now()
	if _, err := env.ConfigFor(ctx, "system:node:n1", "system:nodes"); err != nil { t.Fatal(err) }
	t.Log("node", time.Since(t0)); t0 = time.Now()
	_, err = env.ConfigFor(ctx, "eve", "system:masters")
	t.Log(err)
	if err := env.Stop(); err != nil { t.Fatal(err) }
	t.Log("stop", time.Since(t0))
}
