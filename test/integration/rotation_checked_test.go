package integration

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// testChecked runs the command check for an authority that does not name a signer of the configuration. The request
// stays approved, and check names the signer. Both are well once the signer is added.
func testChecked(t *testing.T, r *rotating) {
	const name, lacking = "checked", certificatesv1.KubeAPIServerClientKubeletSignerName
	r.run(t, r.everything(t, time.Hour, map[string]string{
		certificatesv1.KubeAPIServerClientSignerName: name, lacking: name, certificatesv1.KubeletServingSignerName: name,
	}))
	r.adopted(t, name, func(spec *v1alpha1.SigningAuthoritySpec) {
		spec.Signers = []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeletServingSignerName}
	})
	waiting, _ := r.approved(t, lacking, x509.CertificateRequest{Subject: nodeSubject("checked")})

	what := regexp.QuoteMeta(lacking) + ": "
	failed := regexp.MustCompile("(?m)^authorities +failed +" + what + "SigningAuthority checked of Secret .* does not name it")
	ok := regexp.MustCompile("(?m)^authorities +ok +" + what)
	out, code := r.check(t, name)
	if !failed.MatchString(out) || code != 1 {
		t.Errorf("exit code %d, no %s in:\n%s", code, failed, out)
	}
	if got := csr.StateOf(r.reload(t, waiting)); got != csr.Approved {
		t.Errorf("the request is %s", got)
	}

	obj := r.get(t, name)
	change := client.MergeFrom(obj.DeepCopy())
	obj.Spec.Signers = append(obj.Spec.Signers, lacking)
	if err := r.admin.Patch(t.Context(), obj, change); err != nil {
		t.Fatal(err)
	}
	out, _ = r.check(t, name)
	if regexp.MustCompile(`(?m)^authorities +(failed|unknown)`).MatchString(out) || !ok.MatchString(out) {
		t.Errorf("after the signer was added:\n%s", out)
	}
	eventually(t, "the request is signed", func(context.Context) error {
		if got := csr.StateOf(r.reload(t, waiting)); got != csr.Issued {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

func (r *rotating) reload(t *testing.T, obj *request) *request {
	t.Helper()
	if err := r.admin.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// check runs the real command for a configuration whose CA is in the Secret of that name.
func (r *rotating) check(t *testing.T, secret string) (output string, exitCode int) {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := r.WriteKubeconfig("checks", r.Config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, fmt.Appendf(nil, "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+
		"signing: {secret: %s/%s}\nrotation: {enabled: true}\n", signingNamespace, secret))
	out, err := exec.CommandContext(t.Context(), path, "check", "--all", "--kubeconfig", kubeconfig, "--config", file).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		exitCode = exit.ExitCode()
	}
	return unwrapped(string(out)), exitCode
}
