package manager

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestManager runs the whole manager with the shipped manifests and roles: without a CA, with a CA, with a bad CA.
func TestManager(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.GrantJoining(t, "joiner")
	p := kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false", "-v", "10")

	// No CA yet: the manager runs, and reports that.
	p.Answers(t, p.Probes, "/healthz", http.StatusOK)
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "signing-ca")
	waiting := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "one"))
	kit.Reaches(t, waiting, csr.Approved)
	kit.HasEvent(t, waiting, "CAMissing", "Secret csr-controller-manager-system/csr-signer does not exist")

	// The CA appears: waiting requests are signed at once.
	secret := kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
	kit.Create(t, kit.Admin(t), secret)
	kit.Reaches(t, waiting, csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	if got := kit.Leaf(t, waiting).Subject.CommonName; got != "system:node:one" {
		t.Errorf("common name is %q", got)
	}

	// A bad CA leaves the last good one in use, and is reported.
	secret.Data[corev1.TLSCertKey] = []byte("garbage")
	if err := kit.Admin(t).Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	kit.HasEvent(t, secret, "CAInvalid", "no PEM block of type CERTIFICATE", "the last good CA stays in use")
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "two")), csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	refuses(t)
	counts(t, p)
	checkStop(t, p)
}

// TestManagerWithNothingToCheckIsReady runs one controller alone, as the split overlay does, without readiness
// checks.
func TestManagerWithNothingToCheckIsReady(t *testing.T) {
	kit.Parallel(t)
	p := kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", "--controllers=cleaner", "--self-check-interval=0")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
}

// refuses checks that a forbidden request is not approved, and that the reason is reported.
func refuses(t *testing.T) {
	t.Helper()
	kit.Grant(t, "stranger", kit.MayCreate)
	refused := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "three"))
	kit.HasEvent(t, refused, "NotAuthorized", `user "stranger"`, "create certificatesigningrequests/nodeclient")
	if got := csr.StateOf(kit.Reload(t, refused)); got != csr.Pending {
		t.Errorf("refused request is %s, want Pending", got)
	}
}

// counts checks that all actions of TestManager are counted.
func counts(t *testing.T, p *kit.Process) {
	t.Helper()
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_decisions_total{reason="AutoApproved",rule="nodeclient",signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Approve"} 2`,
		`csr_approver_decisions_total{reason="NotAuthorized",rule="",signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Wait"} 1`,
		`csr_signer_outcomes_total{outcome="Issued",reason="",signer="kubernetes.io/kube-apiserver-client-kubelet"} 2`,
		`csr_signer_ca_reloads_total{result="rejected"} 2`,
		`csr_signer_ca_expiration_timestamp_seconds{signer="kubernetes.io/kubelet-serving"}`,
		`csr_signer_lifetime_seconds{signer="kubernetes.io/kubelet-serving"} 3.1536e+07`,
		`csr_approver_created_to_approved_seconds_count{signer="kubernetes.io/kube-apiserver-client-kubelet"} 2`,
		`csr_signer_created_to_issued_seconds_count{signer="kubernetes.io/kube-apiserver-client-kubelet"} 2`,
		`csr_signer_approved_to_issued_seconds_count{signer="kubernetes.io/kube-apiserver-client-kubelet"} 2`,
		`csr_approver_review_seconds_count{result="allowed"} 2`,
		`csr_approver_review_seconds_count{result="refused"}`)
}

// checkStop stops the manager. It checks that there was no error, and that the log contains nothing of the key.
func checkStop(t *testing.T, p *kit.Process) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Errorf("stopped with %v, want a clean exit", err)
	}
	log := p.Output(t)
	for _, part := range secretParts(kit.ControlPlane(t).CA.KeyPEM) {
		if strings.Contains(log, part) {
			t.Error("the log holds the key")
		}
	}
	if strings.Contains(log, "forbidden") {
		t.Errorf("the shipped roles do not suffice:\n%s", log)
	}
}

// secretParts returns parts from the middle of a PKCS#8 P-256 key, in the encodings of a file and of a Secret. All
// such keys have the same beginning, and end with the public key.
func secretParts(keyPEM []byte) []string {
	line := bytes.Split(keyPEM, []byte("\n"))[2][:24]
	at := (bytes.Index(keyPEM, line) + 2) / 3 * 3
	return []string{string(line), base64.StdEncoding.EncodeToString(keyPEM[at : at+18])}
}

// TestManagerCleans deletes requests that are due when the manager starts, and requests that become due while it
// runs.
func TestManagerCleans(t *testing.T) {
	kit.Parallel(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: [cleaner]
cleaning:
  signers:
  - name: kubernetes.io/kubelet-serving
    retention: {approved: 2s}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	old := kit.NodeRequest(t, "old", func(obj *kit.Request) {
		obj.Name, obj.UID, obj.CreationTimestamp = "stored-a-day-ago", "u-1", metav1.NewTime(time.Now().Add(-25*time.Hour))
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	})
	if err := kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+old.Name, old); err != nil {
		t.Fatal(err)
	}
	fresh := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "fresh"))
	short := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "short", func(obj *kit.Request) {
		obj.Spec.SignerName = certificatesv1.KubeletServingSignerName
	}))
	kit.Approve(t, short)
	kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", "--config", file)
	for _, obj := range []*kit.Request{old, short} {
		kit.IsDeleted(t, obj)
	}
	kit.Reload(t, fresh)
}

func TestManagerRefusesBadConfiguration(t *testing.T) {
	kit.Parallel(t)
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "--cluster-signing-kubelet-client-cert-file=x", "--controllers=foo", "--bogus").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("exit is %v, want 1", err)
	}
	for _, part := range []string{"-bogus", "--controllers: ", "--cluster-signing-kubelet-client-cert-file: "} {
		if !strings.Contains(string(out), part) {
			t.Errorf("%q is not in:\n%s", part, out)
		}
	}
}
