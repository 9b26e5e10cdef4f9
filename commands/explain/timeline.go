package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// listEvents reads the Events about the request, up to maxEventsRead.
func (e *Explainer) listEvents(ctx context.Context, f *Findings) {
	list := &corev1.EventList{}
	// The API server stores Events about objects without a namespace in this namespace.
	f.unlisted = e.reader.List(ctx, list, client.InNamespace(corev1.NamespaceDefault), client.Limit(maxEventsRead),
		client.MatchingFields{"involvedObject.uid": string(f.obj.UID)})
	f.events = list.Items
	by := approver.Name
	if !csr.Undecided(f.obj) {
		by = signer.Name
	}
	f.Said = check.LastStatement(f.events, by)
}

// maxEventsRead bounds how many Events about one request are read. Each outcome causes one.
const maxEventsRead = 500

// timeline returns what has happened to the request, in order, and its deletion.
func (e *Explainer) timeline(f *Findings) []Step {
	steps := []Step{f.created()}
	steps = append(steps, f.conditionSteps()...)
	if len(f.obj.Status.Certificate) > 0 {
		steps = append(steps, f.signed())
	}
	if f.Said != nil {
		steps = append(steps, stepAt(f.Said.At, "event", fmt.Sprintf("%s said %s", sentence(f.Said.Controller),
			sentence(f.Said.Reason))))
	}
	slices.SortStableFunc(steps, func(a, b Step) int {
		if a.Time == nil || b.Time == nil {
			return 0
		}
		return a.Time.Compare(b.Time.Time)
	})
	steps = append(steps, e.deletion(f))
	for i := 1; i < len(steps); i++ {
		if before, at := steps[i-1].Time, steps[i].Time; before != nil && at != nil && !at.Before(before) {
			steps[i].After = "+" + span(at.Sub(before.Time))
		}
	}
	return steps
}

// stepAt returns a Step. A zero time is not recorded.
func stepAt(at time.Time, what, text string) Step {
	step := Step{What: what, Text: text}
	if !at.IsZero() {
		step.Time = &metav1.Time{Time: at.UTC()}
	}
	return step
}

func (f *Findings) created() Step {
	text := "requester not recorded: the API server writes it into the request when it stores the request"
	if f.obj.Spec.Username != "" {
		text = "by " + quote(f.obj.Spec.Username)
	}
	at := f.obj.CreationTimestamp.Time
	if !at.IsZero() {
		text = distance(at, f.now) + ", " + text
	}
	return stepAt(at, "created", text)
}

// conditionSteps returns one Step for each of the conditions that decide.
func (f *Findings) conditionSteps() []Step {
	var steps []Step
	for _, kind := range []struct {
		condition certificatesv1.RequestConditionType
		what      string
	}{
		{certificatesv1.CertificateApproved, "approved"},
		{certificatesv1.CertificateDenied, "denied"},
		{certificatesv1.CertificateFailed, "failed"},
	} {
		condition := csr.Condition(f.obj, kind.condition)
		if condition == nil {
			continue
		}
		at := condition.LastUpdateTime.Time
		if at.IsZero() {
			at = condition.LastTransitionTime.Time
		}
		entry := managerOf(f.obj, func(status managedStatus) bool {
			_, owns := status.Conditions[fmt.Sprintf(`k:{"type":%q}`, kind.condition)]
			return owns
		})
		text := fmt.Sprintf("reason %s, %s", quote(condition.Reason), by(entry))
		steps = append(steps, stepAt(at, kind.what, text))
	}
	return steps
}

// signed returns the Step of the certificate. The status does not say when the certificate was stored, so the time is
// that of the field manager.
func (f *Findings) signed() Step {
	entry := managerOf(f.obj, func(status managedStatus) bool { return status.Certificate != nil })
	if entry != nil && entry.Time != nil {
		return stepAt(entry.Time.Time, "signed", by(entry))
	}
	text := by(entry)
	if cert, err := issued(f); err == nil {
		text += "; the certificate is valid from " + instant(cert.NotBefore)
	}
	return stepAt(time.Time{}, "signed", text)
}

// managedStatus is the part of a FieldsV1 that names who owns the status.
type managedStatus struct {
	Certificate *struct{}                  `json:"f:certificate"`
	Conditions  map[string]json.RawMessage `json:"f:conditions"`
}

// managerOf returns the latest managedFields entry of a field manager that owns a field of the status, or nil.
func managerOf(
	obj *certificatesv1.CertificateSigningRequest, owns func(managedStatus) bool,
) *metav1.ManagedFieldsEntry {
	var found *metav1.ManagedFieldsEntry
	for i := range obj.ManagedFields {
		entry := &obj.ManagedFields[i]
		var set struct {
			Status managedStatus `json:"f:status"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set) != nil || !owns(set.Status) {
			continue
		}
		if found == nil || entry.Time != nil && (found.Time == nil || found.Time.Before(entry.Time)) {
			found = entry
		}
	}
	return found
}

// by returns the author of a change. The API server records the field manager, which is the name of a
// program. The user is only in its audit log.
func by(entry *metav1.ManagedFieldsEntry) string {
	if entry == nil || entry.Manager == "" {
		return "program not recorded: the request has no managedFields entry for it"
	}
	text := "by field manager " + quote(entry.Manager)
	if entry.Manager != signer.FieldManager {
		text += " (the user is only in the audit log of the API server)"
	}
	return text
}

// deletion returns the Step of the deletion by the cleaner.
func (e *Explainer) deletion(f *Findings) Step {
	if e.options.Cleaner == nil {
		return Step{What: "deletion", Text: "not by this manager: its cleaner is switched off"}
	}
	at, due := e.options.Cleaner.Retention.Deadline(f.obj)
	_, otherwise := (csr.RetentionPolicy{}).Deadline(f.obj)
	switch {
	case !due && !otherwise:
		return Step{What: "deletion", Text: "unknown: the object lacks the time that its retention counts from"}
	case !due:
		return Step{What: "deletion", Text: "never: cleaning.retention keeps the request for ever"}
	case e.options.Cleaner.DryRun:
		return stepAt(at, "deletion", "due "+distance(at, f.now)+", and only reported, because cleaner is in dryRun")
	default:
		return stepAt(at, "deletion", "due "+distance(at, f.now))
	}
}
