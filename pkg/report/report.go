// Package report tells people about outcomes: as Events, once for each distinct outcome of a request, and fewer of them
// when one requester causes many. Notes are ASCII, whatever a requester has chosen: kubectl writes them to a terminal.
package report

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// told bounds how many requests' last outcomes are kept. They are forgotten with their request, so it bounds no
	// more than what is left behind when a request is deleted while a worker looks at it.
	told = 1 << 20
	// counted bounds of how many requesters Events are counted.
	counted = 20_000
	// burst and perSecond bound the Events that one requester causes: ten at once, then one a minute.
	burst     = 10
	perSecond = 1.0 / 60
	// successBurst and successesPerSecond bound the Events about what a dry run would have done, of all requesters
	// together.
	successBurst       = 100
	successesPerSecond = 1.0
	// maxNote is the API server's limit for an Event's note (events.k8s.io/v1, Event.note), in bytes.
	maxNote = 1024
)

// Reporter writes Events. It is safe for concurrent use; New makes one.
type Reporter struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu         sync.Mutex
	outcomes   *lru.Cache // types.UID → digest of the last outcome
	requesters *lru.Cache // digest of the user name → *allowance
	successes  flowcontrol.PassiveRateLimiter
}

// digest stands for a text that a requester may make long.
type digest [sha256.Size]byte

// allowance is how many Events one requester may still cause, and how many were left out.
type allowance struct {
	limit   flowcontrol.PassiveRateLimiter
	leftOut int
}

// New returns a Reporter that writes with recorder.
func New(recorder events.EventRecorder, clock clock.PassiveClock) *Reporter {
	return &Reporter{
		recorder:   recorder,
		clock:      clock,
		outcomes:   lru.New(told),
		requesters: lru.New(counted),
		successes:  flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(successesPerSecond, successBurst, clock),
	}
}

// Object is what an Event can be about.
type Object interface {
	runtime.Object
	GetUID() types.UID
}

// Forget drops what was told of a request that is gone. A nil Reporter has nothing to forget.
func (r *Reporter) Forget(gone interface{ GetUID() types.UID }) {
	if r != nil {
		r.outcomes.Remove(gone.GetUID())
	}
}

// Request writes a Warning Event about a request, unless its last outcome was the same or its requester has caused too
// many. action is what was tried ("Approve", "Sign"). It returns whether the outcome is a new one, so that a caller
// logs and counts once too.
func (r *Reporter) Request(obj Object, requester, action, reason, message string) bool {
	return r.once(obj, requester, corev1.EventTypeWarning, action, reason, message)
}

// Would writes a Normal Event about a success that a dry run has left undone. It is like Request, but since every
// request may be one, all of them together are bounded too.
func (r *Reporter) Would(obj Object, requester, action, reason, message string) bool {
	return r.once(obj, requester, corev1.EventTypeNormal, action, reason, message)
}

func (r *Reporter) once(obj Object, requester, eventType, action, reason, message string) bool {
	r.mu.Lock()
	now := digest(sha256.Sum256([]byte(reason + "\x00" + message)))
	last, known := r.outcomes.Get(obj.GetUID())
	if known && last == any(now) {
		r.mu.Unlock()
		return false
	}
	r.outcomes.Add(obj.GetUID(), now)
	leftOut, tell := r.allow(requester, eventType == corev1.EventTypeNormal)
	r.mu.Unlock()
	if !tell {
		return true
	}
	suffix := ""
	if leftOut > 0 {
		suffix = fmt.Sprintf(" (%d more Events about requests of this requester were left out)", leftOut)
	}
	r.recorder.Eventf(obj, nil, eventType, reason, action, "%s",
		csr.ShortenTo(ascii.Quote(message), maxNote-len(suffix))+suffix)
	return true
}

func (r *Reporter) allow(requester string, success bool) (leftOut int, ok bool) {
	key := digest(sha256.Sum256([]byte(requester)))
	entry, known := r.requesters.Get(key)
	if !known {
		entry = &allowance{limit: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, burst, r.clock)}
		r.requesters.Add(key, entry)
	}
	allowed := entry.(*allowance)
	if !allowed.limit.TryAccept() || success && !r.successes.TryAccept() {
		allowed.leftOut++
		return 0, false
	}
	leftOut, allowed.leftOut = allowed.leftOut, 0
	return leftOut, true
}

// Object writes an Event about something that is not a request, such as the signing Secret.
func (r *Reporter) Object(obj runtime.Object, eventType, action, reason, message string) {
	r.recorder.Eventf(obj, nil, eventType, reason, action, "%s", csr.ShortenTo(ascii.Quote(message), maxNote))
}

// Warn logs message at the level WARN, which logr has no method for. keysAndValues are those of logr.
func Warn(log logr.Logger, message string, keysAndValues ...any) {
	slog.New(logr.ToSlogHandler(log)).Warn(message, keysAndValues...)
}

// LatencyBuckets are the bounds, in seconds, of what a node waits for: from a busy moment to the quarter of an hour
// after which a kubelet makes another request (client-go util/certificate, certificateWaitTimeout), and beyond.
var LatencyBuckets = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}

// errorReasons are those that ErrorReason tells apart.
var errorReasons = []metav1.StatusReason{
	metav1.StatusReasonConflict, metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized,
	metav1.StatusReasonInternalError, metav1.StatusReasonServerTimeout, metav1.StatusReasonServiceUnavailable,
	metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
}

// ErrorReason is the API server's reason for err, if it is one that is worth an alert of its own, or Other: a label.
func ErrorReason(err error) string {
	if reason := apierrors.ReasonForError(err); slices.Contains(errorReasons, reason) {
		return string(reason)
	}
	return "Other"
}
