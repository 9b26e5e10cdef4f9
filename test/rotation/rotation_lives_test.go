//go:build nightly

package rotation

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestMoreAuthorities goes through the lives that TestAuthorities leaves out.
func TestMoreAuthorities(t *testing.T) {
	t.Parallel()
	liveThrough(t, map[string]func(*testing.T, *rotating){
		"serving": testServing, "moved-out": testMovedOut,
	})
}

// testServing rotates a CA whose certificates API servers don't verify. Only its owner knows its verifiers. kubectl prints
// the authority while it waits for a person, and while it does not.
func testServing(t *testing.T, r *rotating) {
	const name = "serving"
	r.run(t, r.everything(t, time.Hour, map[string]string{certificatesv1.KubeletServingSignerName: name}))
	r.adopted(t, name, func(spec *v1alpha1.SigningAuthoritySpec) {
		spec.Signers, spec.Verification = []string{certificatesv1.KubeletServingSignerName}, v1alpha1.Verification{APIServers: []string{"192.0.2.1:6443"}}
	})
	first := r.get(t, name).Status.Signing
	r.serves(t, "served", first)
	r.prints(t, name)
	r.ask(t, name, v1alpha1.OperationStart)
	r.reaches(t, name, v1alpha1.Preparing, func(obj *v1alpha1.SigningAuthority) bool {
		return strings.Contains(strings.Join(obj.Status.WaitingFor, " "), "rotation confirm ")
	})
	if bundle := string(r.bundle(t, name)); !strings.HasSuffix(bundle, first.Certificate) || len(bundle) <= len(first.Certificate) {
		t.Error("what is to be trusted is not the new CA and then the old one")
	}
	r.serves(t, "served", first)
	r.prints(t, name)
	r.does(t, name, v1alpha1.OperationConfirm)
	second := r.reaches(t, name, v1alpha1.Prepared, nil).Status.Signing
	r.serves(t, "served", second)
	r.leaves(t, name)
	if string(r.bundle(t, name)) != second.Certificate {
		t.Error("the old CA is published still")
	}
}

// prints checks the row of the authority in kubectl's output. Only the wide output has what it waits for.
func (r *rotating) prints(t *testing.T, name string) {
	t.Helper()
	kubeconfig, err := r.WriteKubeconfig("printed", r.Config)
	if err != nil {
		t.Fatal(err)
	}
	status := r.get(t, name).Status
	want := []string{name, string(status.Phase), "True", status.Signing.KeyID, status.Signing.NotAfter.UTC().Format(time.RFC3339)}
	for _, wide := range []bool{false, true} {
		args := []string{"get", "signingauthorities", name}
		if wide {
			args = append(args, "-o", "wide")
		}
		out := kit.Kubectl(t, kubeconfig, args...)
		header, row, _ := strings.Cut(strings.TrimSpace(out), "\n")
		if got := strings.Fields(row); len(got) < len(want) || !slices.Equal(got[:len(want)], want) || strings.Contains(out, "<invalid>") {
			t.Errorf("want %q in:\n%s", want, out)
		}
		waits := len(status.WaitingFor) > 0 && strings.HasSuffix(row, "   "+status.WaitingFor[0])
		if strings.Contains(header, "WAITING FOR") != wide || waits != (wide && len(status.WaitingFor) > 0) {
			t.Errorf("it waits for %q:\n%s", status.WaitingFor, out)
		}
	}
}

// serves checks that a kubelet's serving certificate is issued by one.
func (r *rotating) serves(t *testing.T, node string, one *v1alpha1.CAStatus) {
	t.Helper()
	r.issuedBy(t, one, certificatesv1.KubeletServingSignerName, x509.CertificateRequest{Subject: nodeSubject(node), DNSNames: []string{node}})
}

// testMovedOut gives kubelets a CA of their own, which they have shared with users so far. Nothing stops meanwhile: the
// signer changes to the new authority's Secret when the new CA is trusted.
func testMovedOut(t *testing.T, r *rotating) {
	const users, kubelets = "users", "kubelets"
	const kubeletSigner = certificatesv1.KubeAPIServerClientKubeletSignerName
	stop := r.run(t, r.everything(t, time.Hour, map[string]string{certificatesv1.KubeAPIServerClientSignerName: users, kubeletSigner: users}))
	r.adopted(t, users, nil)
	shared := r.get(t, users).Status.Signing
	before := r.kubelet(t, "moves", shared)
	r.authority(t, kubelets, kubelets, func(spec *v1alpha1.SigningAuthoritySpec) { spec.Signers = []string{kubeletSigner} })
	own := r.reaches(t, kubelets, v1alpha1.Completed, nil).Status.Signing
	if own.KeyID == shared.KeyID {
		t.Error("it begins with the shared CA")
	}
	r.kubelet(t, "moves", shared) // as configured
	stop()
	r.run(t, r.everything(t, time.Hour, map[string]string{certificatesv1.KubeAPIServerClientSignerName: users, kubeletSigner: kubelets}))
	after := r.kubelet(t, "moves", own)
	r.isTakenFor(t, r.user(t, "ulla", shared), "ulla")
	for _, one := range []tls.Certificate{before, after} {
		r.isTakenFor(t, one, csr.NodeUserPrefix+"moves")
	}
}
