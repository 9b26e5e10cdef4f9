package report

import (
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
