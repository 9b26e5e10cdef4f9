package faults

import (
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Verbs for Rule.Verbs, as RBAC names them.
var (
	Writes = []string{"create", "update", "patch", "delete", "deletecollection"}
	Watch  = []string{"watch"}
)

// Rule selects requests and says what happens to them. All criteria that are set must match.
type Rule struct {
	// Verbs are the API verbs, as in RBAC: get, list, watch, create, update, patch, delete, deletecollection. None
	// means all.
	Verbs []string
	// Resources are resources and subresources, as in RBAC: "leases", "certificatesigningrequests/approval". None
	// means all.
	Resources []string
	// Path is a regular expression that must match somewhere in the URL path. Nil means all.
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
	kind       kind
	code       int
	retryAfter time.Duration
	landed     bool
	after      time.Duration
}

type kind string

const (
	forwarded       kind = ""
	answered        kind = "Answer"
	hung            kind = "Hang"
	reset           kind = "Reset"
	connectionReset kind = "ResetConnection"
	cut             kind = "Cut"
	stalled         kind = "Stall"
	delayed         kind = "Delay"
	dated           kind = "ShiftDate"
)

// Answer responds with an HTTP status code and the Status object that an API server sends with it: 409, 429, 500,
// 503, …
func Answer(code int) Action { return Action{kind: answered, code: code} }

// Hang sends no response. The request ends when the client gives up or the proxy stops.
func Hang() Action { return Action{kind: hung} }

// Reset aborts the request: an HTTP/2 stream is reset, an HTTP/1 connection is closed. Other requests continue.
func Reset() Action { return Action{kind: reset} }

// ResetConnection sends a TCP reset. It also ends every other request and watch on the same connection.
func ResetConnection() Action { return Action{kind: connectionReset} }

// Cut forwards the request and aborts the response after some time. It is meant for watches.
func Cut(after time.Duration) Action { return Action{kind: cut, after: after} }

// Stall forwards the request. It holds back the response, and keeps the connection open. It is meant for watches.
func Stall() Action { return Action{kind: stalled} }

// Delay forwards the request after some time.
func Delay(by time.Duration) Action { return Action{kind: delayed, after: by} }

// ShiftDate adds offset to the Date header of the response. It applies in addition to other rules: a shifted request
// can also be answered, hung or cut.
func ShiftDate(offset time.Duration) Action { return Action{kind: dated, after: offset} }

// RetryAfter adds a Retry-After header, in whole seconds, to an Answer.
func (a Action) RetryAfter(wait time.Duration) Action {
	a.retryAfter = wait
	return a
}

// Landed forwards the request first, waits for the API server's response, and drops that response. It works with
// Answer, Hang, Reset and ResetConnection. It has no effect on a watch.
func (a Action) Landed() Action {
	a.landed = true
	return a
}

// String returns the name of the action, for Call.Fault.
func (a Action) String() string {
	name := string(a.kind)
	if a.kind == answered {
		name = fmt.Sprintf("%s %d", a.kind, a.code)
	}
	if a.landed {
		name += " landed"
	}
	return name
}
