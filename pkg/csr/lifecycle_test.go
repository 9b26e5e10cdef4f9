package csr_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestStates checks the state by conditions, as the fixture writes them, and by the certificate.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		conditions, certificate string
		want                    csr.State
		undecided               bool
	}{
		{"", "", "Pending", true},
		{"Vetted", "", "Pending", true},
		{"Approved", "", "Approved", false},

		{"Approved=False", "", "Approved", false},
		{"Denied", "", "Denied", false},

		{"Failed", "", "Failed", true},
		{"Failed=", "", "Failed", true},
		{"Failed=False", "", "Pending", true},
		{"Approved Denied", "", "Denied", false},

		{"Approved Failed", "", "Failed", false},
		{"Approved Failed=False", "", "Approved", false},
		{"Denied Failed", "", "Failed", false},

		{"", "x", "Issued", false},

		{"Approved Failed", "x", "Issued", false},
	} {
		obj := object(conditions(test.conditions), certificate([]byte(test.certificate)))
		if state, undecided := csr.StateOf(obj), csr.Undecided(obj); state != test.want || undecided != test.undecided {
			t.Errorf("%q, certificate %q: state %s, undecided: %t", test.conditions, test.certificate, state, undecided)
		}
	}
}

// TestConditions checks that a time is set only if it is given, and which condition is found: a change of each field hides it.
func TestConditions(t *testing.T) {
	t.Parallel()
	obj := &request{}
	csr.AddCondition(obj, "Approved", "AutoApproved", "text", time.Time{})
	csr.AddCondition(obj, "Failed", "KeyTooWeak", "more", now)
	want := []certificatesv1.CertificateSigningRequestCondition{
		{Type: "Approved", Status: "True", Reason: "AutoApproved", Message: "text"},
		{Type: "Failed", Status: "True", Reason: "KeyTooWeak", Message: "more", LastUpdateTime: metav1.NewTime(now)},
	}
	if diff := cmp.Diff(want, obj.Status.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if !csr.HasCondition(obj, "Failed", "KeyTooWeak", "more") || csr.HasCondition(obj, "Denied", "KeyTooWeak", "more") ||
		csr.HasCondition(obj, "Failed", "Malformed", "more") || csr.HasCondition(obj, "Failed", "KeyTooWeak", "text") {
		t.Error("another condition is found")
	}
	if obj.Status.Conditions[1].Status = "False"; csr.HasCondition(obj, "Failed", "KeyTooWeak", "more") {
		t.Error("a condition that is False is found")
	}
}

// TestDeadline checks when a request is due, from now. It was created now. Conditions are added later, too.
func TestDeadline(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	until := func(ends ...time.Duration) edit {
		return func(obj *request) {
			for _, end := range ends {
				obj.Status.Certificate = append(obj.Status.Certificate, certificateUntil(now.Add(end))...)
			}
		}
	}
	none, expired, soon := until(), until(-time.Hour), until(10*minute)
	usual := csr.Retention{} // zero is the default
	for name, test := range map[string]struct {
		conditions  string
		certificate edit
		policy      csr.Retention
		want        string // empty means never
	}{
		"pending, from creation":              {"", none, usual, "24h0m0s"},
		"issued without an approval":          {"", until(0), usual, "24h0m0s"},
		"approved, from the approval":         {"Approved", none, usual, "1h0m0s"},
		"denied":                              {"Denied@10m", none, usual, "1h10m0s"},
		"failed, never approved":              {"Failed@10m", none, usual, "1h10m0s"},
		"failed, whatever its status":         {"Failed=False@10m", none, usual, "1h10m0s"},
		"approved without a time":             {"Approved@", none, usual, ""},
		"approved, and failed later":          {"Approved Failed@10m", none, usual, "1h0m0s"},
		"approved without a time, and failed": {"Approved@ Failed@10m", none, usual, "1h10m0s"},
		"issued":                              {"Approved", until(24 * time.Hour), usual, "1h0m0s"},
		"issued, has expired":                 {"Approved", expired, usual, "-1h0m0s"},
		"issued without a time, has expired":  {"Approved@", expired, usual, "-1h0m0s"},
		"not a certificate":                   {"Approved", certificate([]byte("garbage")), usual, "1h0m0s"},
		"a chain, of which the first counts":  {"Approved", until(10*minute, 0), usual, "10m0s"},

		"own approved":         {"Approved", none, csr.Retention{Approved: minute}, "1m0s"},
		"own denied":           {"Denied", none, csr.Retention{Denied: minute}, "1m0s"},
		"own failed":           {"Failed", none, csr.Retention{Failed: minute}, "1m0s"},
		"own pending":          {"", none, csr.Retention{Pending: minute}, "1m0s"},
		"own expired":          {"Approved", soon, csr.Retention{Expired: minute}, "11m0s"},
		"negative is never":    {"", none, csr.Retention{Pending: -1}, ""},
		"negative for expired": {"Approved", expired, csr.Retention{Expired: -1}, "1h0m0s"},
	} {
		// The policy of the signer precedes the default.
		obj := object(conditions(test.conditions), test.certificate)
		signers := map[string]csr.Retention{obj.Spec.SignerName: test.policy, "example.com/other": {Pending: time.Second}}
		for _, policy := range []csr.RetentionPolicy{{Default: test.policy}, {Default: csr.Retention{Pending: time.Second}, Signers: signers}} {
			got := ""
			if at, ok := policy.Deadline(obj); ok {
				got = at.Sub(now).String()
			}
			if got != test.want {
				t.Errorf("%s: due after %s, want %s", name, got, test.want)
			}
		}
	}
	obj := object(func(obj *request) { obj.CreationTimestamp = metav1.Time{} })
	if at, ok := (csr.RetentionPolicy{}).Deadline(obj); ok || !at.IsZero() {
		t.Errorf("without a creation time: due at %s", at)
	}
}

// TestPause checks that the pause equals the age, but is at least a second and at most five minutes.
func TestPause(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, time.Second: time.Second, 90 * time.Second: 90 * time.Second,
		5 * time.Minute: 5 * time.Minute, 24 * time.Hour: 5 * time.Minute,
	} {
		if got := csr.Pause(age); got != want {
			t.Errorf("a request of %s waits %s, want %s", age, got, want)
		}
	}
}

// TestBuiltinSigners checks the names of the built-in signers, and which of them need a CA that API servers trust.
func TestBuiltinSigners(t *testing.T) {
	t.Parallel()
	want := []string{"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}
	if got := csr.BuiltinSigners(); !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	for i, name := range append(want, "example.com/custom") {
		signer, found := csr.BuiltinSigner(name)
		if found != (i < 3) || found && signer.Name != name || csr.VerifiedByAPIServers(name) != (i < 2) {
			t.Errorf("%s: %t, %+v, clients authenticate to API servers with it: %t", name, found, signer, csr.VerifiedByAPIServers(name))
		}
	}
}
