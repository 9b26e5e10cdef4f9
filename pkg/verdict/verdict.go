// Package verdict holds what a controller says of a request. It judges nothing itself.
package verdict

import "fmt"

// Verdict is one of the four answers about a request. The zero value is Ignore. No fault ever becomes Approve or Deny.
type Verdict int

const (
	// Ignore means that the request is not ours, or that there is no opinion about it.
	Ignore Verdict = iota
	// Approve means that nothing stands against the request.
	Approve
	// Wait means that the request cannot be decided yet. It is judged again.
	Wait
	// Deny means that the request can never become valid.
	Deny
)

// String returns the name of v, as it stands in metrics, logs and Events.
func (v Verdict) String() string {
	return [...]string{"Ignore", "Approve", "Wait", "Deny"}[v]
}

// Result is a Verdict with the reason token of docs/reference/reasons.md and a sentence for people.
type Result struct {
	Verdict Verdict
	Reason  string
	Message string
}

// Because returns a Result whose Message is formatted as by fmt.Sprintf.
func (v Verdict) Because(reason, format string, args ...any) Result {
	return Result{Verdict: v, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
