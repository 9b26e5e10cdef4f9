package manifests

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestRequestLimitsFile compares the chart's copy of the policy with its source. TestSame compares what it renders.
func TestRequestLimitsFile(t *testing.T) {
	t.Parallel()
	if !bytes.Equal(read(t, filepath.Join(root, chart, "files/admission/request_limits.yaml")), read(t, filepath.Join(root, "config/request-limits/policy.yaml"))) {
		t.Error("make generate copies the policy into the chart")
	}
}

// TestRequestLimitsFollowTheConfiguration checks that the policy refuses exactly what the manager's own limit
// refuses, to the byte.
func TestRequestLimitsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{65_535, 65_536, 65_537} {
		all := helm(t, fmt.Sprintf("--set=requestLimitsPolicy.enabled=true,config.requestLimits.maxRequestBytes=%d", limit))
		policy := typed[admissionregistrationv1.ValidatingAdmissionPolicy](t, all, "ValidatingAdmissionPolicy")["csr-request-limits"].Spec
		fits := len(strings.TrimRight(base64.StdEncoding.EncodeToString(make([]byte, limit)), "="))
		if rule := policy.Validations[0]; !strings.HasSuffix(rule.Expression, fmt.Sprintf(" <= %d", fits)) || !strings.HasSuffix(rule.Message, fmt.Sprintf(" %d bytes", limit)) {
			t.Errorf("a limit of %d bytes: %s, %q; want %d characters", limit, rule.Expression, rule.Message, fits)
		}
	}
}
