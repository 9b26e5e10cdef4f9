//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// until calls done until it reports success or timeout has passed. After an error it retries. It returns the last
// error.
func until(ctx context.Context, timeout time.Duration, what string, done wait.ConditionWithContextFunc) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		ok, err := done(ctx)
		if ctx.Err() == nil { // otherwise it only says that the time is over
			last = err
		}
		return ok && err == nil, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%s: not within %s: %w", what, timeout, err), last)
	}
	return nil
}
