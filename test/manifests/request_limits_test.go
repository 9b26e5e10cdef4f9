package manifests

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// requestLimits returns the policy and its binding of the chart. The option must add nothing else.
func requestLimits(t *testing.T, args ...string) (admissionregistrationv1.ValidatingAdmissionPolicySpec, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
	t.Helper()
	without, got := helm(t, args...), helm(t, append(args, "--set=requestLimitsPolicy.enabled=true")...)
	maps.DeleteFunc(got, func(name string, _ *unstructured.Unstructured) bool { return without[name] != nil })
	if len(got) != 2 {
		t.Fatalf("the option adds %d objects", len(got))
	}
	return limitsIn(t, got)
}

func limitsIn(t *testing.T, all objects) (admissionregistrationv1.ValidatingAdmissionPolicySpec, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
	t.Helper()
	const name = "csr-request-limits"
	return typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy")[name].Spec,
		typed[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, all, "ValidatingAdmissionPolicyBinding")[name].Spec
}

// TestRequestLimitsInChart compares the chart's policy with that of config/request-limits.
func TestRequestLimitsInChart(t *testing.T) {
	t.Parallel()
	policy, binding := requestLimits(t)
	wantPolicy, wantBinding := limitsIn(t, kustomize(t, "request-limits"))
	if diff := cmp.Diff(wantPolicy, policy); diff != "" {
		t.Errorf("policy (-kustomize +helm):\n%s", diff)
	}
	if diff := cmp.Diff(wantBinding, binding); diff != "" {
		t.Errorf("binding (-kustomize +helm):\n%s", diff)
	}
	copied, err := os.ReadFile("../../" + chart + "/files/admission/request_limits.yaml")
	source, sourceErr := os.ReadFile("../../config/request-limits/policy.yaml")
	if err != nil || sourceErr != nil || string(copied) != string(source) {
		t.Errorf("make generate copies the policy into the chart: errors %v, %v", err, sourceErr)
	}
}

// TestRequestLimitsFollowTheConfiguration checks that the policy refuses exactly what the manager's own limit
// refuses, to the byte.
func TestRequestLimitsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{65_535, 65_536, 65_537} {
		policy, _ := requestLimits(t, fmt.Sprintf("--set=config.requestLimits.maxRequestBytes=%d", limit))
		fits := len(strings.TrimRight(base64.StdEncoding.EncodeToString(make([]byte, limit)), "="))
		if rule := policy.Validations[0]; !strings.HasSuffix(rule.Expression, fmt.Sprintf(" <= %d", fits)) || !strings.HasSuffix(rule.Message, fmt.Sprintf(" %d bytes", limit)) {
			t.Errorf("a limit of %d bytes: %s, %q; want %d characters", limit, rule.Expression, rule.Message, fits)
		}
	}
}
