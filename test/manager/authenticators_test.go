package manager

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestCustomSigner serves a custom signer, with its own CA and usages, beside Kubernetes' signers.
func TestCustomSigner(t *testing.T) {
	kit.Parallel(t)
	dir := t.TempDir()
	own := kit.NewCA(t)
	kit.Write(t, filepath.Join(dir, "ca.crt"), own.CertPEM)
	kit.Write(t, filepath.Join(dir, "ca.key"), own.KeyPEM)
	file := filepath.Join(dir, "config.yaml")
	kit.Write(t, file, []byte(os.Expand(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: ["*", -approver]
signing:
  secret: csr-controller-manager-system/csr-signer
  signers:
  - name: example.com/webhook
    certFile: $DIR/ca.crt
    keyFile: $DIR/ca.key
    usages: [digital signature, server auth]
    duration: 1h
    maxDuration: 2h
`, func(string) string { return dir })))
	kit.MaySign(t, kit.ManagerAccount, "example.com/webhook")
	kit.InstallRBAC(t)
	secret := kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
	kit.Create(t, kit.Admin(t), secret)
	kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", "--config", file)
	ask := func(signer string, usage certificatesv1.KeyUsage) *kit.Request {
		obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "", func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}
			obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook.default.svc"}})
		}))
		kit.Approve(t, obj)
		return obj
	}
	issued := kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	kit.IssuedBy(t, issued, own)
	if cert := kit.Leaf(t, issued); cert.NotAfter.Sub(cert.NotBefore) != time.Hour+5*time.Minute || cert.DNSNames[0] != "hook.default.svc" {
		t.Errorf("certificate lives for %s, names %q", cert.NotAfter.Sub(cert.NotBefore), cert.DNSNames)
	}
	failed := kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageClientAuth), csr.Failed).Status.Conditions[1]
	const message = `usage "client auth" is not permitted: signer example.com/webhook permits ["digital signature" "server auth"]`
	if failed.Reason != "UsagesNotPermitted" || failed.Message != message {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
	kit.IssuedBy(t, kit.Reaches(t, ask(certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth), csr.Issued), kit.ControlPlane(t).CA)
	foreign := ask("example.com/somebody-elses", certificatesv1.UsageServerAuth)
	kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	if got := csr.StateOf(kit.Reload(t, foreign)); got != csr.Approved {
		t.Errorf("another signer's request is %s, want Approved", got)
	}
}
