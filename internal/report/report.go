// Package report reports outcomes to people as Events: one for each distinct outcome of a request, and fewer if one
// requester, or strangers together, cause many. Notes are ASCII, whatever text a requester chose, because kubectl writes
// them to a terminal.
package report

import (
	"crypto/sha256"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// omittedTotal counts Events that were not written.
var omittedTotal = metric.Counter("csr_events_omitted_total",
	"Events about requests that were not written, because the requester, or all but nodes and bootstrap tokens together, caused "+
		"too many.").WithLabelValues()

// Again is the time after which the same outcome of a request is reported again, because Events live for an hour.
const Again = 50 * time.Minute

const (
	// remembered is the number of requests whose last outcome is kept. Outcomes are dropped with their request. So the
	// bound only concerns requests that are deleted while a worker handles them.
	remembered = 1 << 20
	// counted is the number of requesters whose Events are counted.
	counted = 20_000
	// burst and perSecond bound the Events that one requester causes: ten at once, then one a minute.
	burst     = 10
	perSecond = 1.0 / 60
	// togetherBurst and togetherPerSecond bound the Events that all strangers cause together, and those about successes of
	// all others in a dry run: a hundred at once, then one a second.
	togetherBurst     = 100
	togetherPerSecond = 1.0
	// maxNote is the API server's limit for an Event's note (events.k8s.io/v1, Event.note), in bytes.
	maxNote = 1024
)

// Reporter writes Events. It is safe for concurrent use. Create it with New.
type Reporter struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu         sync.Mutex
	outcomes   *lru.Cache // types.UID → outcome, the last one
	requesters *lru.Cache // digest of the user name → flowcontrol.PassiveRateLimiter
	strangers  flowcontrol.PassiveRateLimiter
	successes  flowcontrol.PassiveRateLimiter
}

// outcome is what was reported about a request, and when.
type outcome struct {
	digest
	reason string
	at     time.Time
}

// digest replaces a text that a requester may make long.
type digest [sha256.Size]byte

// New returns a Reporter that writes with recorder.
func New(recorder events.EventRecorder, clock clock.PassiveClock) *Reporter {
	together := func() flowcontrol.PassiveRateLimiter {
		return flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(togetherPerSecond, togetherBurst, clock)
	}
	return &Reporter{
		recorder:   recorder,
		clock:      clock,
		outcomes:   lru.New(remembered),
		requesters: lru.New(counted),
		strangers:  together(),
		successes:  together(),
	}
}

// Forget drops the last outcome of a deleted request. It does nothing for a nil Reporter.
func (r *Reporter) Forget(gone client.Object) {
	if r != nil {
		r.outcomes.Remove(gone.GetUID())
	}
}

// Request writes a Warning Event about a request or another object, unless its last outcome was the same less than 50
// minutes ago, or its requester or all strangers together caused too many Events. action is the attempted action
// ("Approve", "Sign"). Request reports whether the outcome is new, so that a caller also logs and counts it once.
func (r *Reporter) Request(obj client.Object, action, reason, message string) bool {
	return r.once(obj, corev1.EventTypeWarning, action, reason, message)
}

// Would writes a Normal Event about an action that succeeded in a dry run and was not performed. It works like
// Request. All requesters together have a limit, because every request may cause such an Event.
func (r *Reporter) Would(obj client.Object, action, reason, message string) bool {
	return r.once(obj, corev1.EventTypeNormal, action, reason, message)
}

func (r *Reporter) once(obj client.Object, eventType, action, reason, message string) bool {
	r.mu.Lock()
	now := digest(sha256.Sum256([]byte(reason + "\x00" + message)))
	last, known := r.outcomes.Get(obj.GetUID())
	if known && last.(outcome).digest == now && r.clock.Since(last.(outcome).at) < Again {
		r.mu.Unlock()
		return false
	}
	r.outcomes.Add(obj.GetUID(), outcome{now, reason, r.clock.Now()})
	request, is := obj.(*certificatesv1.CertificateSigningRequest)
	permitted := !is || r.permits(request, eventType)
	r.mu.Unlock()
	if !permitted {
		omittedTotal.Inc()
		// A node may change the text of its outcome as often as it likes: records of that would displace all others.
		return !known || last.(outcome).reason != reason
	}
	if is && len(request.Name) > csr.MaxName { // the API server accepts a name of any length for a request
		obj = &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
			Name: csr.ShortenTo(request.Name, csr.MaxName), UID: request.UID, ResourceVersion: request.ResourceVersion}}
	}
	r.Object(obj, eventType, action, reason, message)
	return true
}

// permits reports whether another Event about obj is within the bounds: of its requester, and of all strangers together. A
// stranger is neither a node nor a bootstrap token. The second bound keeps room for their Events. r.mu must be locked.
func (r *Reporter) permits(obj *certificatesv1.CertificateSigningRequest, eventType string) bool {
	by := digest(sha256.Sum256([]byte(obj.Spec.Username)))
	limit, met := r.requesters.Get(by)
	if !met {
		limit = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, burst, r.clock)
		r.requesters.Add(by, limit)
	}
	switch groups := obj.Spec.Groups; {
	case !limit.(flowcontrol.PassiveRateLimiter).TryAccept():
		return false
	case !slices.Contains(groups, csr.NodeGroup) && !slices.Contains(groups, csr.BootstrapGroup):
		return r.strangers.TryAccept()
	default:
		return eventType != corev1.EventTypeNormal || r.successes.TryAccept()
	}
}

// Object writes an Event about any object, each time.
func (r *Reporter) Object(obj runtime.Object, eventType, action, reason, message string) {
	Event(r.recorder, obj, eventType, action, reason, message)
}

// Event writes an Event about any object, such as the signing Secret, each time. It does nothing without a recorder.
func Event(recorder events.EventRecorder, obj runtime.Object, eventType, action, reason, message string) {
	if recorder != nil {
		// For some minutes, client-go only counts Events that differ in nothing but the note, and keeps the first note. The
		// related object, which kubectl does not show, makes each an Event of its own.
		one := &corev1.ObjectReference{FieldPath: "note{" + string(uuid.NewUUID()) + "}"}
		recorder.Eventf(obj, one, eventType, reason, action, "%s", csr.ShortenTo(ascii.Quote(message), maxNote))
	}
}

// Warn logs message at the level WARN, for which logr has no method. keysAndValues are those of logr.
func Warn(log logr.Logger, message string, keysAndValues ...any) {
	slog.New(logr.ToSlogHandler(log)).Warn(message, keysAndValues...)
}

// errorReasons are the reasons that ErrorReason distinguishes.
var errorReasons = []metav1.StatusReason{
	metav1.StatusReasonConflict, metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized,
	metav1.StatusReasonInternalError, metav1.StatusReasonServerTimeout, metav1.StatusReasonServiceUnavailable,
	metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
}

// ErrorReason returns the API server's reason for err if it deserves its own alert, or Other. The result is a label.
func ErrorReason(err error) string {
	if reason := apierrors.ReasonForError(err); slices.Contains(errorReasons, reason) {
		return string(reason)
	}
	return "Other"
}

// Refused reports whether the API server has refused a write for certain: by admission, by its rules for the object, for
// a missing right, or for the object's size. An admission webhook that names no code refuses with 400.
func Refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || TooLarge(err)
}

// TooLarge reports whether an object is too large for the API server or for etcd. The API server passes on etcd's
// error.
func TooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		strings.Contains(err.Error(), "etcdserver: request is too large") ||
		strings.Contains(err.Error(), "trying to send message larger than max")
}
