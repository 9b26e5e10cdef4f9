package csr

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is the state of a request, as named in docs, metrics and configuration.
type State string

// The states. A request with a certificate is Issued, whatever its conditions. Otherwise Failed and Denied take
// precedence over Approved, because such a request can't be signed any more.
const (
	Pending  State = "Pending"
	Approved State = "Approved"
	Denied   State = "Denied"
	Failed   State = "Failed"
	Issued   State = "Issued"
)

// States returns all states.
func States() []State { return []State{Pending, Approved, Denied, Failed, Issued} }

// StateOf returns the state of obj, by the rules of kube-controller-manager
// (pkg/controller/certificates/certificate_controller_utils.go). It ignores the status of Approved and Denied
// conditions, which the API server forces to True. A Failed condition counts if its status is True or empty.
func StateOf(obj *certificatesv1.CertificateSigningRequest) State {
	failed := Condition(obj, certificatesv1.CertificateFailed)
	switch {
	case len(obj.Status.Certificate) > 0:
		return Issued
	case failed != nil && (failed.Status == corev1.ConditionTrue || failed.Status == ""):
		return Failed
	case Condition(obj, certificatesv1.CertificateDenied) != nil:
		return Denied
	case Condition(obj, certificatesv1.CertificateApproved) != nil:
		return Approved
	default:
		return Pending
	}
}

// Undecided reports whether obj is neither approved, denied nor issued. A Failed condition is not a decision
// (pkg/controller/certificates/approver/sarapprove.go).
func Undecided(obj *certificatesv1.CertificateSigningRequest) bool {
	return len(obj.Status.Certificate) == 0 &&
		Condition(obj, certificatesv1.CertificateApproved) == nil &&
		Condition(obj, certificatesv1.CertificateDenied) == nil
}

// ApprovedAt returns when obj was approved. It returns zero if obj is not approved or its condition has no time.
func ApprovedAt(obj *certificatesv1.CertificateSigningRequest) time.Time {
	return ConditionTime(obj, certificatesv1.CertificateApproved)
}

// ConditionTime returns when the first condition of that kind was added to obj, or zero if there is none or it has no
// time. It is not before the creation of obj. Of the times in a condition, clients write lastUpdateTime by their own
// clock. They may write lastTransitionTime too, but kubectl and kube-controller-manager leave it to the API server.
func ConditionTime(
	obj *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType,
) time.Time {
	condition := Condition(obj, kind)
	if condition == nil {
		return time.Time{}
	}
	at := cmp.Or(approvalTime(obj, kind), condition.LastTransitionTime, condition.LastUpdateTime)
	if !at.IsZero() && at.Before(&obj.CreationTimestamp) {
		at = obj.CreationTimestamp
	}
	return at.Time
}

// approvalTime returns when the API server stored the write to the subresource approval that added a condition of that
// kind, or zero if managed fields do not show it. API servers record no conditions that are written to the subresource status,
// and nothing of an object whose metadata is only a name.
func approvalTime(
	obj *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType,
) (at metav1.Time) {
	key := fmt.Sprintf(`k:{"type":%q}`, kind)
	for _, entry := range obj.ManagedFields {
		var fields struct {
			Status struct {
				Conditions map[string]map[string]any `json:"f:conditions"`
			} `json:"f:status"`
		}
		if entry.Subresource != "approval" || entry.Time == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, added := fields.Status.Conditions[key]["."]; added && at.Before(entry.Time) {
			at = *entry.Time
		}
	}
	return at
}

// Condition returns the first condition of that kind, whatever its status, or nil.
func Condition(
	obj *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType,
) *certificatesv1.CertificateSigningRequestCondition {
	for i := range obj.Status.Conditions {
		if obj.Status.Conditions[i].Type == kind {
			return &obj.Status.Conditions[i]
		}
	}
	return nil
}

// AddCondition appends a condition with status True. If now is zero, the API server sets the times.
func AddCondition(
	obj *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType,
	reason, message string, now time.Time,
) {
	obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.NewTime(now),
	})
}
