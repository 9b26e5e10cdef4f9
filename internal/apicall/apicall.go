// Package apicall bounds the calls of a client to an API server, so that no call holds up its caller for long.
package apicall

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// shortest and longest bound the deadline of a call that reads or writes one object. The API server answers such a
	// call within a second, or is overloaded (SLO of Kubernetes' sig-scalability).
	shortest = 3 * time.Second
	longest  = 30 * time.Second
	// listDeadline is the deadline of a list, which the API server itself gives up after a minute.
	listDeadline = time.Minute
	// longestWait bounds what an API server can ask for with Retry-After.
	longestWait = time.Minute
)

// Bound changes cfg, so that its clients make calls as follows:
//
//   - Each call but a watch has a deadline. It is three seconds, and grows up to 30 seconds while no call is answered
//     in time.
//   - A call that can be repeated is repeated once, at once, after a 5xx without Retry-After or a broken connection.
//   - client-go does not sleep because of a Retry-After header. The error carries it: see RetryAfter.
//   - A watch that breaks off ends like a watch that timed out: the reflector opens it again at once, where it broke
//     off. Opening a watch is tried four times.
func Bound(cfg *rest.Config) {
	pace := newPace(clock.RealClock{})
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{next: next, pace: pace} })
}

// RetryAfter returns how long the API server asked to wait before the call that failed with err is made again.
func RetryAfter(err error) (wait time.Duration, asked bool) {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		return min(time.Duration(seconds)*time.Second, longestWait), true
	}
	if apierrors.IsTooManyRequests(err) {
		return time.Second, true
	}
	return 0, false
}

// Requeue returns what Reconcile returns after result and err: where the API server asked to wait, the request comes
// back after that, and no worker sleeps.
func Requeue(ctx context.Context, result reconcile.Result, err error) (reconcile.Result, error) {
	wait, asked := RetryAfter(err)
	if !asked {
		return result, err
	}
	log.FromContext(ctx).V(1).Info("The API server asked to wait", "retryAfter", wait.String(), "error", err.Error())
	return reconcile.Result{RequeueAfter: wait}, nil
}
