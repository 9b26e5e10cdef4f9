package manager

import (
	"context"
	"crypto/fips140"
	"debug/buildinfo"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestManager runs the whole manager with the shipped manifests and roles: without a CA, with a CA, with a bad CA.
func TestManager(t *testing.T) {
	kit.Parallel(t)
	kit.GrantJoining(t, "joiner")
	p := kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", "-v", "10")

	// No CA yet: the manager runs, and reports that.
	p.Answers(t, p.Probes, "/healthz", http.StatusOK)
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "signing-ca")
	waiting := joins(t, "one")
	kit.Reaches(t, waiting, csr.Approved)
	kit.HasEvent(t, waiting, "CAMissing", "Secret csr-controller-manager-system/csr-signer does not exist")

	// The CA appears: waiting requests are signed at once.
	secret := signingSecret(t)
	kit.Reaches(t, waiting, csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	if got := kit.Leaf(t, waiting).Subject.CommonName; got != "system:node:one" {
		t.Errorf("common name is %q", got)
	}

	// A bad CA leaves the last good one in use, and is reported.
	secret.Data[corev1.TLSCertKey] = []byte("garbage")
	kit.Update(t, secret)
	kit.HasEvent(t, secret, "CAInvalid", "no PEM block of type CERTIFICATE", "the last good CA stays in use")
	kit.Reaches(t, joins(t, "two"), csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	// A forbidden request waits.
	kit.Grant(t, "stranger", kit.MayCreate)
	refused := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "three"))
	kit.HasEvent(t, refused, "NotAuthorized", `user "stranger"`, "create certificatesigningrequests/nodeclient")
	isPending(t, refused)
	const kubelet = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_decisions_total{reason="AutoApproved",rule="nodeclient",`+kubelet+`,verdict="Approve"} 2`,
		`csr_approver_decisions_total{reason="NotAuthorized",rule="",`+kubelet+`,verdict="Wait"} 1`,
		`csr_signer_outcomes_total{outcome="Issued",reason="",`+kubelet+`} 2`,
		`csr_signer_ca_reloads_total{result="rejected"} 2`,
		`csr_signer_ca_expiration_timestamp_seconds{signer="kubernetes.io/kubelet-serving"}`,
		`csr_signer_lifetime_seconds{signer="kubernetes.io/kubelet-serving"} 3.1536e+07`,
		`csr_approver_created_to_approved_seconds_count{`+kubelet+`} 2`,
		`csr_signer_created_to_issued_seconds_count{`+kubelet+`} 2`,
		`csr_signer_approved_to_issued_seconds_count{`+kubelet+`} 2`,
		`csr_approver_review_seconds_count{result="allowed"} 2`,
		`csr_approver_review_seconds_count{result="refused"}`)
	checkStop(t, p)
}

// TestManagerCleans deletes requests that are due when the manager starts, and requests that become due while it
// runs.
func TestManagerCleans(t *testing.T) {
	kit.Parallel(t)
	old, fresh := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "old")), kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "fresh"))
	age(t, old, 25*time.Hour)
	short := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeletServingSignerName))
	kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", kit.Configure(t, `controllers: [cleaner]
cleaning: {signers: [{name: kubernetes.io/kubelet-serving, retention: {approved: 2s}}]}
`))
	kit.IsDeleted(t, old)
	kit.IsDeleted(t, short)
	kit.Reload(t, fresh)
}

func TestManagerRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	path, err := cluster.Manager()
	kit.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), path, "--controllers=foo").CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "--controllers: ") {
		t.Errorf("error %v, want exit code 1:\n%s", err, out)
	}
}

// TestFIPS checks that these tests and the manager that they start use the FIPS 140-3 module that GOFIPS140 selects, as
// the part test-fips of `make nightly` does, and else none.
func TestFIPS(t *testing.T) {
	t.Parallel()
	module := os.Getenv("GOFIPS140")
	want := module != "" && module != "off"
	if fips140.Enabled() != want {
		t.Errorf("GOFIPS140 is %q, FIPS mode is %t", module, fips140.Enabled())
	}
	path, err := cluster.Manager()
	kit.NoError(t, err)
	info, err := buildinfo.ReadFile(path)
	kit.NoError(t, err)
	var got string
	for _, setting := range info.Settings {
		if setting.Key == "GOFIPS140" {
			got = setting.Value
		}
	}
	// The go command records the version with the hash of the module, such as v1.0.0-c2097c7c.
	if has := got != "" && got != "off"; has != want || want && !strings.HasPrefix(got, module) {
		t.Errorf("the manager has the module %q, want %q", got, module)
	}
}

// TestRotationWithoutItsCRDHoldsUpNothingElse enables rotation without its CRD. Until the CRD is installed, the
// approver works, and the replica reports what it waits for.
func TestRotationWithoutItsCRDHoldsUpNothingElse(t *testing.T) {
	kit.Parallel(t)
	kit.ApplyAll(t, slices.DeleteFunc(kit.Rendered(t, "rotation"), func(obj *unstructured.Unstructured) bool {
		return !strings.Contains(obj.GetKind(), "Role") // above all not the CRD
	}))
	p := start(t, kit.Configure(t, "rotation: {enabled: true}\n"))
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusInternalServerError)
	kit.Reaches(t, joins(t, "joins"), csr.Approved)
	kit.Eventually(t, "the log says what is missing", func(context.Context) error {
		log := p.Output(t)
		if !strings.Contains(log, "Waiting for a resource that can't be watched yet") || !strings.Contains(log, "SigningAuthority") {
			return errors.New("it does not yet")
		}
		return nil
	})
	options := envtest.CRDInstallOptions{Paths: []string{"../../config/crd"}, ErrorIfPathMissing: true}
	_, err := envtest.InstallCRDs(kit.ControlPlane(t).Config, options)
	kit.NoError(t, err)
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusOK)
}
