package check

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestStuckStepSaysWhatToDo checks that a step has the next step of its reason, and does not repeat the message of an
// Event.
func TestStuckStepSaysWhatToDo(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	pending := &request{ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "u-1", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	approved := pending.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	event := func(message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "csr-1.1"},
			InvolvedObject: corev1.ObjectReference{UID: "u-1"}, Reason: "Because", Message: message,
			LastTimestamp: metav1.NewTime(now.Add(-time.Second)),
		}
	}
	refused := Opinion{Reason: "Because", Message: "of this", NextStep: "Do that."}
	for name, test := range map[string]struct {
		obj                *request
		event              *corev1.Event
		opinion            Opinion
		evidence, nextStep string
	}{
		"not approved":             {pending, event("of this"), refused, "Because: of this; Event Because says the same", "Do that."},
		"not signed":               {approved, event("of this"), refused, "Because: of this; Event Because says the same", "Do that."},
		"the Event says otherwise": {pending, event("of that"), refused, "Because: of this; Event Because: of that", "Do that."},
		"unknown to the caller":    {pending, event("of this"), Opinion{Err: errors.New("no right")}, "Event Because: of this", "run the command as a user who"},
		"reason without advice":    {pending, event("of this"), Opinion{Reason: "Because", Message: "of this"}, "says the same", "docs/reference/reasons.md"},
	} {
		api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(test.event).
			WithIndex(&corev1.Event{}, "involvedObject.uid", func(obj client.Object) []string {
				return []string{string(obj.(*corev1.Event).InvolvedObject.UID)}
			}).Build()
		opinion := func(context.Context, *request) Opinion { return test.opinion }
		steps := Node{Name: "a", Reader: api, Approve: opinion, Issue: opinion, now: now}.decided(t.Context(), test.obj)
		stuck := Stuck(steps)
		if stuck == nil || !strings.HasSuffix(stuck.Evidence, test.evidence) || !strings.HasPrefix(stuck.NextStep, test.nextStep) {
			t.Errorf("%s: %+v", name, stuck)
		}
	}
}

// TestMissingNodeIsNotDescribed checks that no step asks to describe a Node that does not exist.
func TestMissingNodeIsNotDescribed(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(node).Build()
	for name, described := range map[string]bool{"there": true, "missing": false} {
		n := Node{Name: name, Reader: api}
		alive, sentence := n.alive(t.Context())
		if got := n.lookAt(n.state(t.Context(), alive, sentence)); strings.Contains(got, "kubectl describe node") != described || !strings.Contains(got, "journalctl") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
