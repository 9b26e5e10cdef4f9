// Package judge holds the decision about a request. The packages below it judge the requests of kubelets in values:
//
//   - kubeletclient: client certificates, as kube-controller-manager does;
//   - bootstrap: whether the machine behind a first client certificate may become that node;
//   - serving: serving certificates.
//
// Each takes a csr.Request and facts, and returns a Decision. None of them does I/O, so a program with a manager of its own
// calls them with facts that it has read itself.
package judge

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

// Decision is a verdict about a request, with a reason token of docs/reference/reasons.md and a message for people. The zero
// Decision is none: the request is left to others. Messages name the settings of this module's manager.
type Decision struct {
	Verdict         Verdict
	Reason, Message string
	// By names what approved the request: a permission, an approval rule, or kubelet-serving.
	By string
}

// Because returns a Decision whose Message is formatted as by fmt.Sprintf.
func (v Verdict) Because(reason, format string, args ...any) Decision {
	return Decision{Verdict: v, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Made reports whether d is a decision: it has a reason.
func (d Decision) Made() bool { return d.Reason != "" }
