package verdict_test

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

func TestVerdictStrings(t *testing.T) {
	t.Parallel()
	for v, want := range map[verdict.Verdict]string{0: "Ignore", verdict.Approve: "Approve", verdict.Wait: "Wait", verdict.Deny: "Deny"} {
		if v.String() != want {
			t.Errorf("%d is %s, want %s", v, v, want)
		}
	}
}

func TestBecause(t *testing.T) {
	t.Parallel()
	want := verdict.Result{Verdict: verdict.Deny, Reason: "ShapeMismatch", Message: `no usage "a"`}
	if got := verdict.Deny.Because("ShapeMismatch", "no usage %q", "a"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
