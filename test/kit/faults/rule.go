package faults

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Verbs for Rule.Verbs, as RBAC names them.
var (
	Writes = []string{"create", "update", "patch", "delete", "deletecollection"}
	Watch  = []string{"watch"}
)

// Rule selects requests and says what happens to them. All criteria that are set must match.
type Rule struct {
	// Verbs are API verbs, and Resources are resources and subresources, as in RBAC: "certificatesigningrequests/approval".
	Verbs, Resources []string
	// Path must match somewhere in the URL path.
	Path *regexp.Regexp

	// Share is the share of the matching requests to which Do applies: 0.15 is 15 %. Zero means all. The shares of
	// rules that match the same request add up: two rules of 0.15 hit 30 % of the requests, and never the same
	// request.
	Share float64
	// Times is the number of times that Do applies. Zero means no limit.
	Times int

	Do Action
}

func (r *Rule) matches(call *Call) bool {
	return (len(r.Verbs) == 0 || slices.Contains(r.Verbs, call.Verb)) &&
		(len(r.Resources) == 0 || slices.Contains(r.Resources, call.Resource)) &&
		(r.Path == nil || r.Path.MatchString(call.Path))
}

// Action is what happens to a request. The zero value forwards it.
type Action struct {
	name   string
	landed bool
	shift  time.Duration
	// do responds to a request, with forward if it wants the response of the API server.
	do func(forward http.Handler, w http.ResponseWriter, r *http.Request)
}

// Answer responds with an HTTP status code and the Status object that an API server sends with it: 409, 429, 500,
// 503, …
func Answer(code int) Action { return AnswerRetryAfter(code, 0) }

// AnswerRetryAfter is Answer with a Retry-After header, in whole seconds, unless wait is 0.
func AnswerRetryAfter(code int, wait time.Duration) Action {
	seconds := int(wait / time.Second)
	return Action{name: fmt.Sprint("Answer ", code), do: func(_ http.Handler, w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		status := apierrors.NewGenericServerResponse(code, r.Method, schema.GroupResource{}, "", "a fault of the test", seconds, false).ErrStatus
		status.Kind, status.APIVersion = "Status", "v1"
		if seconds > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(seconds))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(status)
	}}
}

// Hang sends no response. The request ends when the client gives up or the proxy stops.
func Hang() Action {
	return Action{name: "Hang", do: func(_ http.Handler, _ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}}
}

// Reset aborts the request: an HTTP/2 stream is reset, an HTTP/1 connection is closed. Other requests continue.
func Reset() Action {
	return Action{name: "Reset", do: func(http.Handler, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// ResetConnection sends a TCP reset. It also ends every other request and watch on the same connection.
func ResetConnection() Action {
	return Action{name: "ResetConnection", do: func(_ http.Handler, _ http.ResponseWriter, r *http.Request) {
		tcp := r.Context().Value(connKey{}).(*tls.Conn).NetConn().(*net.TCPConn)
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
		panic(http.ErrAbortHandler)
	}}
}

// Cut forwards the request and aborts the response after some time. It is meant for watches.
func Cut(after time.Duration) Action {
	return Action{name: "Cut", do: func(forward http.Handler, w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), after)
		defer cancel()
		forward.ServeHTTP(w, r.WithContext(ctx))
	}}
}

// Stall forwards the request. It holds back the response, and keeps the connection open. It is meant for watches.
func Stall() Action {
	return Action{name: "Stall", do: func(forward http.Handler, w http.ResponseWriter, r *http.Request) {
		forward.ServeHTTP(&stalling{w, r.Context()}, r)
	}}
}

// stalling is a ResponseWriter that blocks until ctx ends.
type stalling struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (s *stalling) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Write blocks after the header.
func (s *stalling) Write([]byte) (int, error) {
	_ = http.NewResponseController(s.ResponseWriter).Flush() // fails if the client is gone
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// Delay forwards the request after some time.
func Delay(by time.Duration) Action {
	return Action{name: "Delay", do: func(forward http.Handler, w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(by):
		case <-r.Context().Done():
		}
		forward.ServeHTTP(w, r)
	}}
}

// ShiftDate adds offset to the Date header of the response. It applies in addition to other rules: a shifted request
// can also be answered, hung or cut.
func ShiftDate(offset time.Duration) Action { return Action{shift: offset} }

// Landed forwards the request first, waits for the API server's response, and drops that response. It works with
// Answer, Hang, Reset and ResetConnection. It has no effect on a watch, which changes nothing and does not end.
func (a Action) Landed() Action {
	a.name, a.landed = a.name+" landed", true
	return a
}

// String returns the name of the action, for Call.Fault.
func (a Action) String() string { return a.name }
