// Package check asks the API server about the ground that the manager stands on: its own rights, the kubelets' rights,
// whether the signing CA is trusted, and where the certificate of one node is stuck. It changes nothing. What could not
// be asked is Unknown, never Failed.
package check

import (
	"cmp"
	"slices"
)

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	OK      Status = "ok"
	Failed  Status = "failed"
	Unknown Status = "unknown" // it could not be asked, or the answer proves nothing
)

// Statuses are all of them, the worst last.
func Statuses() []Status { return []Status{OK, Unknown, Failed} }

// The names of the checks, also as a label of metrics.
const (
	OwnRights      = "own-rights"
	OptionalRights = "optional-rights"
	KubeletRights  = "kubelet-rights"
	CATrusted      = "ca-trusted"
	ManagerRunning = "manager-running"
	Authorities    = "authorities"
)

// Result is the answer to one question.
type Result struct {
	// Check is the kind of question and Subject what it was about.
	Check, Subject string
	Status         Status
	// Evidence is a sentence that says what was seen, and NextStep one that says what to do; it is empty for OK.
	Evidence, NextStep string
}

// Worst is the status of several results together: Failed if one is, else Unknown if one is. That of none is Unknown.
func Worst(results []Result) Status {
	if len(results) == 0 {
		return Unknown
	}
	return slices.MaxFunc(results, func(a, b Result) int {
		return cmp.Compare(slices.Index(Statuses(), a.Status), slices.Index(Statuses(), b.Status))
	}).Status
}
