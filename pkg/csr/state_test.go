package csr_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func condition(kind string, status corev1.ConditionStatus, updated time.Time) certificatesv1.CertificateSigningRequestCondition {
	added := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.RequestConditionType(kind), Status: status}
	if !updated.IsZero() {
		added.LastUpdateTime = metav1.NewTime(updated)
	}
	return added
}

func TestStates(t *testing.T) {
	t.Parallel()
	type conditions = []certificatesv1.CertificateSigningRequestCondition
	yes := func(kind string) certificatesv1.CertificateSigningRequestCondition {
		return condition(kind, "True", now)
	}
	with := func(kind string, status corev1.ConditionStatus) conditions {
		return conditions{condition(kind, status, now)}
	}
	for name, test := range map[string]struct {
		conditions  conditions
		certificate string
		want        csr.State
		undecided   bool
	}{
		"new":                             {want: "Pending", undecided: true},
		"a foreign condition":             {conditions: with("Vetted", "True"), want: "Pending", undecided: true},
		"lower case":                      {conditions: with("approved", "True"), want: "Pending", undecided: true},
		"approved":                        {conditions: with("Approved", "True"), want: "Approved"},
		"approved without status":         {conditions: with("Approved", ""), want: "Approved"},
		"approved with status False":      {conditions: with("Approved", "False"), want: "Approved"},
		"denied":                          {conditions: with("Denied", "True"), want: "Denied"},
		"denied without status":           {conditions: with("Denied", ""), want: "Denied"},
		"failed only":                     {conditions: with("Failed", "True"), want: "Failed", undecided: true},
		"failed without status":           {conditions: with("Failed", ""), want: "Failed", undecided: true},
		"failed with status False":        {conditions: with("Failed", "False"), want: "Pending", undecided: true},
		"failed with status Unknown":      {conditions: with("Failed", "Unknown"), want: "Pending", undecided: true},
		"approved and denied":             {conditions: conditions{yes("Approved"), yes("Denied")}, want: "Denied"},
		"denied and approved":             {conditions: conditions{yes("Denied"), yes("Approved")}, want: "Denied"},
		"approved and failed":             {conditions: conditions{yes("Approved"), yes("Failed")}, want: "Failed"},
		"approved, failed is False":       {conditions: conditions{yes("Approved"), condition("Failed", "False", now)}, want: "Approved"},
		"denied and failed":               {conditions: conditions{yes("Denied"), yes("Failed")}, want: "Failed"},
		"approved after a foreign one":    {conditions: conditions{yes("Vetted"), yes("Approved")}, want: "Approved"},
		"issued":                          {conditions: with("Approved", "True"), certificate: "x", want: "Issued"},
		"issued, not approved":            {certificate: "x", want: "Issued"},
		"issued, then failed":             {conditions: conditions{yes("Approved"), yes("Failed")}, certificate: "x", want: "Issued"},
		"issued whatever the bytes hold":  {conditions: with("Denied", "True"), certificate: "\x00", want: "Issued"},
		"approved twice, the API forbids": {conditions: conditions{yes("Approved"), yes("Approved")}, want: "Approved"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := &certificatesv1.CertificateSigningRequest{}
			obj.Status.Conditions, obj.Status.Certificate = test.conditions, []byte(test.certificate)
			if got := csr.StateOf(obj); got != test.want {
				t.Errorf("state %s, want %s", got, test.want)
			}
			if got := csr.Undecided(obj); got != test.undecided {
				t.Errorf("undecided: %t", got)
			}
		})
	}
}

func TestAddCondition(t *testing.T) {
	t.Parallel()
	obj := &certificatesv1.CertificateSigningRequest{}
	csr.AddCondition(obj, "Approved", "AutoApproved", "text", time.Time{})
	csr.AddCondition(obj, "Failed", "KeyTooWeak", "more", now)
	want := []certificatesv1.CertificateSigningRequestCondition{
		{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: "text"},
		{Type: "Failed", Status: "True", Reason: "KeyTooWeak", Message: "more", LastUpdateTime: metav1.NewTime(now)},
	}
	if diff := cmp.Diff(want, obj.Status.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

// TestHasCondition changes one field after another of the only condition that is found.
func TestHasCondition(t *testing.T) {
	t.Parallel()
	const kind, reason, message = certificatesv1.CertificateFailed, "KeyTooWeak", "text"
	type condition = certificatesv1.CertificateSigningRequestCondition
	for name, test := range map[string]struct {
		has  condition
		want bool
	}{
		"the same":       {condition{Type: kind, Status: "True", Reason: reason, Message: message}, true},
		"another kind":   {condition{Type: "Denied", Status: "True", Reason: reason, Message: message}, false},
		"another status": {condition{Type: kind, Status: "False", Reason: reason, Message: message}, false},
		"another reason": {condition{Type: kind, Status: "True", Reason: "Malformed", Message: message}, false},
		"another text":   {condition{Type: kind, Status: "True", Reason: reason, Message: "texts"}, false},
	} {
		obj := &certificatesv1.CertificateSigningRequest{}
		if csr.HasCondition(obj, kind, reason, message) {
			t.Error("found in a new request")
		}
		obj.Status.Conditions = []condition{test.has}
		if got := csr.HasCondition(obj, kind, reason, message); got != test.want {
			t.Errorf("%s: found %t", name, got)
		}
	}
}
