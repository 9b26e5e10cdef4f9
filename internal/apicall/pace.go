package apicall

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// pace is the deadline of calls. It follows the API server: a fixed deadline would end every call to an API server that
// is slower than that, and nothing would ever be done.
type pace struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	deadline time.Duration
	answered time.Time // the last answer
}

func newPace(passive clock.PassiveClock) *pace { return &pace{clock: passive, deadline: shortest} }

// begin returns the deadline of a call and the instant that the call starts.
func (p *pace) begin() (deadline time.Duration, start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, p.clock.Now()
}

// answer notes that a call from start was answered. The deadline becomes shorter, but not below twice what the call
// took.
func (p *pace) answer(start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered = p.clock.Now()
	p.deadline = min(max(p.deadline/2, 2*p.answered.Sub(start), shortest), longest)
}

// timeout notes that a call from start was not answered within deadline. If no other call was answered meanwhile, the
// API server is slow, and the deadline becomes longer. If one was, this call hung.
func (p *pace) timeout(start time.Time, deadline time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answered.After(start) && deadline == p.deadline { // many calls that started together count once
		p.deadline = min(2*p.deadline, longest)
	}
}
