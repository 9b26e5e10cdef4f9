// Package apicall bounds the calls of a client to an API server, so that no call blocks its caller for long.
package apicall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
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
	// listDeadline is the deadline of a list. The API server itself gives up after a minute.
	listDeadline = time.Minute
	// longestWait bounds the wait that an API server can request with Retry-After.
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

// NotTried reports whether the API server refused a write before it looked at the object. An earlier attempt may have been
// stored.
func NotTried(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err)
}

// RetryAfter returns how long the API server asked to wait before a retry of the call that failed with err.
func RetryAfter(err error) (wait time.Duration, asked bool) {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		return min(time.Duration(seconds)*time.Second, longestWait), true
	}
	if apierrors.IsTooManyRequests(err) {
		return time.Second, true
	}
	return 0, false
}

// Requeue returns the results of Reconcile for result and err. If the API server asked to wait, the request is
// requeued after that time, and no worker sleeps.
func Requeue(ctx context.Context, result reconcile.Result, err error) (reconcile.Result, error) {
	wait, asked := RetryAfter(err)
	if !asked {
		return result, err
	}
	log.FromContext(ctx).V(1).Info("The API server asked to wait", "retryAfter", wait.String(), "error", err.Error())
	return reconcile.Result{RequeueAfter: wait}, nil
}

// pace is the deadline of calls. It adapts to the API server: a fixed deadline would end every call to a slower API
// server, and no call would ever succeed.
type pace struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	deadline time.Duration
	answered time.Time // time of the last answer
}

func newPace(passive clock.PassiveClock) *pace { return &pace{clock: passive, deadline: shortest} }

// begin returns the deadline of a call and the instant that the call starts.
func (p *pace) begin() (deadline time.Duration, start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, p.clock.Now()
}

// answer records that a call from start was answered. The deadline becomes shorter, but not shorter than twice the
// duration of the call.
func (p *pace) answer(start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered = p.clock.Now()
	p.deadline = min(max(p.deadline/2, 2*p.answered.Sub(start), shortest), longest)
}

// timeout records that a call from start was not answered within deadline. If no other call was answered meanwhile,
// the API server is slow, and the deadline becomes longer. Otherwise this call hung.
func (p *pace) timeout(start time.Time, deadline time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answered.After(start) && deadline == p.deadline { // concurrent calls that started together count once
		p.deadline = min(2*p.deadline, longest)
	}
}

// openTries is the number of attempts to open a watch before the reflector gets the error. The reflector's pauses
// double up to a minute.
const openTries = 4

// pauses are the pauses between these attempts.
var pauses = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 3, Jitter: 0.5, Steps: openTries}

// transport is the transport that Bound puts around that of each client.
type transport struct {
	next http.RoundTripper
	pace *pace
}

// WrappedRoundTripper returns the wrapped transport.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip makes one call.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if watches(request) {
		return t.watch(request)
	}
	response, err := t.call(request)
	if transient(response, err) && request.Context().Err() == nil {
		if again, ok := repeat(request); ok {
			discard(response)
			response, err = t.call(again)
		}
	}
	return withoutRetryAfter(request, response), err
}

// call sends request and gives up at its deadline, which counts until the body has been read.
func (t *transport) call(request *http.Request) (*http.Response, error) {
	deadline, start := t.pace.begin()
	list := lists(request)
	if list {
		deadline = listDeadline
	}
	ctx, cancel := context.WithTimeout(request.Context(), deadline)
	response, err := t.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		err = t.ended(request, err, ctx.Err() != nil, start, deadline)
		cancel()
		return nil, err
	}
	if !list {
		t.pace.answer(start)
	}
	response.Body = &body{ReadCloser: response.Body, close: cancel}
	return response, nil
}

// ended returns the error of a call that failed with err. If the call exceeded its deadline, ended records that.
func (t *transport) ended(request *http.Request, err error, late bool, start time.Time, deadline time.Duration) error {
	if !late || request.Context().Err() != nil {
		return err
	}
	t.pace.timeout(start, deadline)
	return fmt.Errorf("the API server has not answered within %s: %w", deadline, context.DeadlineExceeded)
}

// watch opens a watch.
func (t *transport) watch(request *http.Request) (*http.Response, error) {
	ctx, pause := request.Context(), pauses
	for try := 1; ; try++ {
		response, err := t.open(request)
		if err == nil && response.StatusCode == http.StatusOK {
			return response, nil
		}
		asked := retryAfter(response)
		hung := errors.Is(err, context.DeadlineExceeded)
		if try == openTries || ctx.Err() != nil || !hung && !transient(response, err) && asked == 0 {
			return withoutRetryAfter(request, response), err
		}
		discard(response)
		timer := time.NewTimer(max(pause.Step(), min(asked, shortest)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// open opens a watch once. The deadline applies only until the response begins.
func (t *transport) open(request *http.Request) (*http.Response, error) {
	deadline, start := t.pace.begin()
	ctx, cancel := context.WithCancel(request.Context())
	timer := time.AfterFunc(deadline, cancel)
	response, err := t.next.RoundTrip(request.WithContext(ctx))
	late := !timer.Stop()
	if err != nil {
		cancel()
		return nil, t.ended(request, err, late, start, deadline)
	}
	t.pace.answer(start)
	response.Body = &body{ReadCloser: response.Body, close: cancel, ended: func(err error) error {
		if err != nil && request.Context().Err() == nil {
			return io.EOF
		}
		return err
	}}
	return response, nil
}

// body is the body of a response.
type body struct {
	io.ReadCloser
	close func()
	ended func(error) error // converts an error
}

func (b *body) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.ended != nil {
		err = b.ended(err)
	}
	return n, err
}

func (b *body) Close() error {
	defer b.close()
	return b.ReadCloser.Close()
}

func watches(request *http.Request) bool {
	value := request.URL.Query().Get("watch")
	return request.Method == http.MethodGet && (value == "true" || value == "1")
}

// lists reports whether request reads or deletes a whole collection.
func lists(request *http.Request) bool {
	if request.Method != http.MethodGet && request.Method != http.MethodDelete {
		return false
	}
	path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	switch {
	case len(path) >= 3 && path[0] == "api":
		path = path[2:] // after the version
	case len(path) >= 4 && path[0] == "apis":
		path = path[3:] // after the group and the version
	default:
		return false
	}
	if len(path) > 2 && path[0] == "namespaces" {
		path = path[2:]
	}
	return len(path) == 1
}

// transient reports whether the same call may succeed at once: a connection was lost, or the API server had an
// internal error.
func transient(response *http.Response, err error) bool {
	if err == nil {
		return response.StatusCode >= http.StatusInternalServerError && retryAfter(response) == 0
	}
	var stream streamError
	return utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		errors.As(err, &stream)
}

// streamError has the fields of golang.org/x/net/http2.StreamError. net/http's copy of that type converts itself to
// any type of this form.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("stream error %d", e.Code) }

// repeat returns a copy of request to send again. ok is false for requests that may have another effect the second
// time. A repeated update or delete with preconditions fails with Conflict or NotFound, and the caller compares the
// stored object.
func repeat(request *http.Request) (again *http.Request, ok bool) {
	switch request.Method {
	case http.MethodGet, http.MethodPut, http.MethodDelete:
	case http.MethodPost:
		if !strings.HasSuffix(request.URL.Path, "accessreviews") { // these store nothing
			return nil, false
		}
	default:
		return nil, false
	}
	again = request.Clone(request.Context())
	if request.Body == nil || request.Body == http.NoBody {
		return again, true
	}
	if request.GetBody == nil {
		return nil, false
	}
	content, err := request.GetBody()
	again.Body = content
	return again, err == nil
}

// discard reads and closes the body of an unused response, so that its connection can be used again.
func discard(response *http.Response) {
	if response != nil {
		_, _ = io.CopyN(io.Discard, response.Body, 4096)
		_ = response.Body.Close()
	}
}

// retryAfter returns the wait of a Retry-After header in a response that client-go would retry because of it.
func retryAfter(response *http.Response) time.Duration {
	if response == nil ||
		response.StatusCode != http.StatusTooManyRequests && response.StatusCode < http.StatusInternalServerError {
		return 0
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(min(seconds, 3600))*time.Second, longestWait)
}

// withoutRetryAfter removes the Retry-After header, because client-go would sleep and repeat the call up to ten
// times. It ensures that the response holds a Status object with the same wait.
func withoutRetryAfter(request *http.Request, response *http.Response) *http.Response {
	wait := retryAfter(response)
	if wait == 0 {
		return response
	}
	response.Header.Del("Retry-After")
	kind := response.Header.Get("Content-Type")
	if strings.HasPrefix(kind, "application/json") || strings.HasPrefix(kind, "application/vnd.kubernetes") {
		return response // the API server took the header from the Status object
	}
	discard(response)
	status := apierrors.NewGenericServerResponse(response.StatusCode, request.Method, schema.GroupResource{}, "", "",
		int(wait/time.Second), false).ErrStatus
	status.Kind, status.APIVersion = "Status", "v1"
	content, err := json.Marshal(status)
	if err != nil {
		content = nil
	}
	response.Header.Set("Content-Type", "application/json")
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	return response
}
