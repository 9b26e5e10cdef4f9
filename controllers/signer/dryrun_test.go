package signer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDryRunSignsNothing has a row for each outcome. Of the requests that another signer has signed or failed, it judges those
// that were approved less than a minute ago.
func TestDryRunSignsNothing(t *testing.T) {
	t.Parallel()
	unapproved := func(obj *request) { obj.Status.Conditions = nil }
	issued := func(obj *request) { obj.Status.Certificate = []byte("x") }
	const refusal = "Warning WouldFail SignerValidationFailure: signer kubernetes.io/kube-apiserver-client-kubelet refuses this request permanently: " +
		"usages did not match [client auth digital signature key encipherment]; a new request is needed"
	const missing = "Warning WouldWait CAMissing: Secret ns/ca has not been read yet"
	noClient := usages("digital signature")
	for name, test := range map[string]struct {
		change []func(*request)
		later  time.Duration
		noCA   bool
		told   string // KEY stands for the CA's key
	}{
		"approved":                       {told: "Normal WouldIssue key KEY would sign the request"},
		"approved, no CA":                {noCA: true, told: missing},
		"a request that fails":           {change: []func(*request){noClient}, told: refusal},
		"too old":                        {later: 2 * time.Hour, told: "Warning WouldIgnore RequestTooOld: the request is approved, but due for deletion since 2026-03-01T13:00:00Z and no longer signed; a new request is needed"},
		"signed by another a moment ago": {change: []func(*request){issued}, later: signedFor, told: "Normal WouldIssue key KEY would sign the request"},
		"failed by another a moment ago": {change: []func(*request){with("Failed", "True")}, told: "Normal WouldIssue key KEY would sign the request"},
		"signed, but it would fail":      {change: []func(*request){noClient, issued}, told: refusal},
		"signed by another long ago":     {change: []func(*request){issued}, later: signedFor + 1},
		"failed by another long ago":     {change: []func(*request){with("Failed", "True")}, later: signedFor + 1},
		"signed without an approval":     {change: []func(*request){unapproved, issued}},
		"denied":                         {change: []func(*request){with("Denied", "True")}},
		"pending":                        {change: []func(*request){unapproved}},
		"another signer":                 {change: []func(*request){signerName("example.com/other")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := object(t, test.change...)
			before := obj.DeepCopy()
			p := newParts(t, obj)
			if !test.noCA {
				p.load(t, 1000*day)
				authority, err := p.pair.Authority(now)
				if err != nil {
					t.Fatal(err)
				}
				test.told = strings.ReplaceAll(test.told, "KEY", authority.KeyID())
			}
			taken(p.recorder)
			p.reconciler.DryRun = true
			p.clock.SetTime(now.Add(test.later))
			var want []string
			if test.told != "" {
				want = []string{test.told}
			}
			for range 3 {
				result, err := p.reconcile(t)
				if err != nil || (result.RequeueAfter > 0) != (test.told != "") {
					t.Errorf("again after %s, error %v", result.RequeueAfter, err)
				}
			}
			if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(taken(p.recorder))); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, obj); diff != "" {
				t.Errorf("the cache's object (-before +after):\n%s", diff)
			}
			if len(p.written) > 0 {
				t.Errorf("%d writes", len(p.written))
			}
		})
	}
}
