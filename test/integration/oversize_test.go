package integration

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// TestCostlySubjectsCostNothing has a user who may only create requests, and who requests subjects of 60,000
// attributes. They used to keep a manager busy for minutes. Another request is served meanwhile.
func TestCostlySubjectsCostNothing(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	manager := startManager(t, serviceAccountConfig(t))
	manager.answers(t, manager.probes, "/readyz", 200)
	grant(t, "stranger", mayCreate)
	costly := payload(t, x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:a", Organization: []string{csr.NodeGroup}, OrganizationalUnit: slices.Repeat([]string{"u"}, 60_000),
	}})

	before := manager.cpuSeconds(t)
	var all []*request
	for range 4 {
		all = append(all, createRequest(t, as(t, "stranger"), nodeRequest(t, "a", func(obj *request) { obj.Spec.Request = costly })))
	}
	for _, obj := range all {
		hasEvent(t, obj, "RequestTooLarge", "spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)")
	}
	reaches(t, createRequest(t, admin(t), nodeRequest(t, "good")), csr.Issued)
	time.Sleep(5 * time.Second) // time for another attempt
	if used := manager.cpuSeconds(t) - before; used > 5 {
		t.Errorf("four requests took %.1f CPU-seconds", used)
	}
	for _, obj := range all {
		if state := csr.StateOf(reload(t, obj)); state != csr.Pending {
			t.Errorf("request is %s, want Pending", state)
		}
	}
	approve(t, reload(t, all[0]))
	if failed := reaches(t, all[0], csr.Failed).Status.Conditions[1]; failed.Reason != "RequestTooLarge" {
		t.Errorf("once approved it is Failed with %s, want RequestTooLarge", failed.Reason)
	}
}

// cpuSeconds returns the CPU time that the manager has used.
func (p *process) cpuSeconds(t *testing.T) (seconds float64) {
	t.Helper()
	eventually(t, "/metrics", func(ctx context.Context) error {
		_, body := cluster.Get(ctx, p.metrics, "/metrics")
		for line := range strings.Lines(body) {
			if rest, found := strings.CutPrefix(line, "process_cpu_seconds_total "); found {
				_, err := fmt.Sscan(rest, &seconds)
				return err
			}
		}
		return fmt.Errorf("no CPU time in: %s", body)
	})
	return seconds
}

// TestOversizeKeyIsNotSigned uses an RSA key of 16,384 bits, which the API server accepts.
func TestOversizeKeyIsNotSigned(t *testing.T) {
	parallel(t)
	startLoop(t, csrenv.Options{})
	huge, err := os.ReadFile("../../controllers/signer/testdata/rsa-16384.pem")
	if err != nil {
		t.Fatal(err)
	}
	ask := func() *request {
		return createRequest(t, admin(t), nodeRequest(t, "a", func(obj *request) {
			obj.Spec.SignerName, obj.Spec.Request = certificatesv1.KubeAPIServerClientKubeletSignerName, huge
		}))
	}
	const message = "RSA keys of 16384 bits are not permitted; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
	pending := ask()
	hasEvent(t, pending, "KeyNotPermitted", message)
	approve(t, reload(t, pending))
	if failed := reaches(t, pending, csr.Failed).Status.Conditions[1]; failed.Reason != "KeyNotPermitted" || failed.Message != message {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
	reaches(t, createRequest(t, admin(t), nodeRequest(t, "good")), csr.Issued)
}

// TestWhatEtcdCannotStoreIsFailed makes a request so large, by its labels, that etcd has room for a Failed condition
// but not for a certificate. The audit log says that the certificate was discarded. A slightly smaller request gets its
// certificate.
func TestWhatEtcdCannotStoreIsFailed(t *testing.T) {
	parallel(t)
	records := filepath.Join(t.TempDir(), "audit.log")
	startLoop(t, csrenv.Options{Customize: func(o *controllers.Options) { o.Audit = openAudit(t, records) }}, "signer", "cleaner")
	const limit = 1536 << 10 // etcd's --max-request-bytes
	obj := storeLarge(t, limit-1200)
	reaches(t, obj, csr.Failed)
	last := obj.Status.Conditions[len(obj.Status.Conditions)-1]
	if last.Reason != "RequestTooLarge" || last.Status != corev1.ConditionTrue || !strings.Contains(last.Message, "does not fit into an object") {
		t.Errorf("%s: %s", last.Reason, last.Message)
	}
	eventually(t, "the records are complete", func(context.Context) error {
		var said []audit.Event
		for _, record := range readAudit(t, records) {
			if record.UID == obj.UID {
				said = append(said, record.Event)
			}
		}
		if want := []audit.Event{audit.Signed, audit.Discarded, audit.NotSigned}; !slices.Equal(said, want) {
			return fmt.Errorf("records %v, want %v", said, want)
		}
		return nil
	})
	reaches(t, storeLarge(t, limit-5<<10), csr.Issued)
}

// storeLarge stores an approved request of about size bytes, most of them labels, because annotations may not be so
// long. The API server drops its managed fields, because they do not fit.
func storeLarge(t *testing.T, size int) *request {
	t.Helper()
	obj := nodeRequest(t, "large")
	obj.Labels = map[string]string{}
	prefix := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60)
	for left := size - obj.Size(); left > 0; left = size - obj.Size() {
		for range 1 + left/300 { // a label takes less than 300 bytes
			obj.Labels[fmt.Sprintf("%s/a%05d", prefix, len(obj.Labels))] = ""
		}
	}
	create(t, admin(t), obj)
	approve(t, obj)
	return obj
}
