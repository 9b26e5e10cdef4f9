package probe

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func idOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func forbiddenTo(user string) any {
	status := statusOf(403, metav1.StatusReasonForbidden).(metav1.Status)
	status.Message = `csr-controller-manager-trust-probes.metrics.k8s.io is forbidden: User "` + user + `" cannot list resource "csr-controller-manager-trust-probes" in API group "metrics.k8s.io" at the cluster scope`
	return status
}

// TestAskResource checks what the responses of an aggregated API server prove.
func TestAskResource(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	for name, test := range map[string]struct {
		status, bare int // for a client with the probe certificate, and for a client without one
		body         any
		want         Trust
		evidence     string
	}{
		"knows the subject":       {403, 401, forbiddenTo(probe.Subject), Recognised, "knows the subject"},
		"refuses the certificate": {401, 403, statusOf(401, metav1.StatusReasonUnauthorized), Refused, "answers 401"},
		"401 of another program":  {401, 401, "log in first", Unknown, "no conclusive answer"},
		"sees no client":          {403, 403, forbiddenTo("system:anonymous"), Unknown, "as anonymous"},
		"another user":            {403, 403, forbiddenTo("admin"), Unknown, "no conclusive answer"},
		"forbids without a name":  {403, 403, statusOf(403, metav1.StatusReasonForbidden), Unknown, "no conclusive answer"},
		"404 for the probe only":  {404, 403, statusOf(404, metav1.StatusReasonNotFound), Recognised, "and refuses a client without one"},
		"200 for the probe only":  {200, 401, metav1.Status{}, Recognised, "and refuses a client without one"},
		"404 for every client":    {404, 404, statusOf(404, metav1.StatusReasonNotFound), Unknown, "admits every client"},
		"200 for every client":    {200, 200, metav1.Status{}, Unknown, "admits every client"},
		"200, then no answer":     {200, 503, metav1.Status{}, Unknown, "admits every client"},
		"503":                     {503, 503, "no backend", Unknown, "no conclusive answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, cluster := serve(t, func(shown *x509.Certificate) (int, any) {
				if shown == nil {
					return test.bare, statusOf(int32(test.bare), map[int]metav1.StatusReason{401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden}[test.bare])
				}
				return test.status, test.body
			})
			cluster.BearerToken = "secret"
			got := probe.AskTarget(t.Context(), Target{Name: "ns/metrics", Cluster: cluster, resource: "/apis/metrics.k8s.io/v1/csr-controller-manager-trust-probes"})
			if got.Trust != test.want || !strings.Contains(got.Evidence, test.evidence) {
				t.Errorf("%s: %s, want %s with %q", got.Trust, got.Evidence, test.want, test.evidence)
			}
		})
	}
	s, cluster := serve(t, func(*x509.Certificate) (int, any) { return 401, statusOf(401, metav1.StatusReasonUnauthorized) })
	cluster.Insecure, cluster.CAData = true, nil
	got := probe.AskTarget(t.Context(), Target{Name: "ns/metrics", Cluster: cluster, resource: "/apis/a/b/c"})
	if got.Trust != Unknown || !strings.Contains(got.Evidence, "is not verified") || len(s.shown) > 0 {
		t.Errorf("%s: %s; %d certificates shown", got.Trust, got.Evidence, len(s.shown))
	}
}
