// Package verdict holds a controller's decision about a request. It decides nothing itself.
package verdict

import "fmt"

// Verdict is one of the four decisions about a request. The zero value is Ignore. A fault never becomes Approve or
// Deny.
type Verdict int

const (
	// Ignore means that another controller owns the request, or that no rule applies to it.
	Ignore Verdict = iota
	// Approve means that no rule objects to the request.
	Approve
	// Wait means that the request cannot be decided yet. It is judged again later.
	Wait
	// Deny means that the request can never become valid.
	Deny
)

// String returns the name of v, as used in metrics, logs and Events.
func (v Verdict) String() string {
	return [...]string{"Ignore", "Approve", "Wait", "Deny"}[v]
}

// Result is a Verdict with a reason token of docs/reference/reasons.md and a message for people.
type Result struct {
	Verdict Verdict
	Reason  string
	Message string
}

// Because returns a Result whose Message is formatted as by fmt.Sprintf.
func (v Verdict) Because(reason, format string, args ...any) Result {
	return Result{Verdict: v, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
