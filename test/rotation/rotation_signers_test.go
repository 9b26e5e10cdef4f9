package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// testOutstanding has a user and a kubelet with certificates of the retiring CA. Another signer issued the kubelet's.
func testOutstanding(t *testing.T, r *rotating) {
	const name = "outstanding"
	// No signer for kubelets runs here: that is kube-controller-manager, which has the CA too.
	r.run(t, r.everything(t, time.Hour, map[string]string{certificatesv1.KubeAPIServerClientSignerName: name}))
	shared := kit.Load(t, r.adopted(t, name, nil))
	old := r.get(t, name).Status.Signing
	user := r.user(t, "ursula", old)
	r.ask(t, name, v1alpha1.OperationStart)
	r.reaches(t, name, v1alpha1.Prepared, nil)

	r.does(t, name, v1alpha1.OperationComplete)
	left := r.leftOf(t, name, certificatesv1.KubeAPIServerClientSignerName, user.Leaf.NotAfter)
	r.tells(t, name, "RotationRefused", fmt.Sprintf("certificates of %s from the CA %s are valid until %s", left.Signer, old.KeyID, left.Until.UTC().Format(time.RFC3339)))
	if ahead := left.Until.Sub(user.Leaf.NotAfter); ahead > 5*time.Minute {
		t.Errorf("the ledger is %s ahead of the only certificate", ahead)
	}

	foreign := signedBy(t, shared, nodeSubject("foreign"), 3*time.Hour)
	r.storedBySomebodyElse(t, foreign)
	left = r.leftOf(t, name, certificatesv1.KubeAPIServerClientKubeletSignerName, foreign.Leaf.NotAfter)
	r.does(t, name, v1alpha1.OperationComplete)
	r.tells(t, name, "RotationRefused", fmt.Sprintf("certificates of %s from the CA %s are valid until %s", left.Signer, old.KeyID, left.Until.UTC().Format(time.RFC3339)))
	if phase := r.get(t, name).Status.Phase; phase != v1alpha1.Prepared {
		t.Errorf("it is %s", phase)
	}
	r.isTakenFor(t, user, "ursula")
	r.leaves(t, name)
	r.isTakenFor(t, user, "")
	r.isTakenFor(t, foreign, "")
}

// leftOf waits until the status says that certificates of signer by the retiring CA are valid until then.
func (r *rotating) leftOf(t *testing.T, name, signer string, until time.Time) (left v1alpha1.Outstanding) {
	t.Helper()
	kit.Eventually(t, "what is left of "+signer, func(context.Context) error {
		obj := r.get(t, name)
		for _, left = range obj.Status.Outstanding {
			if left.Signer == signer && !left.Until.Time.Before(until) {
				return nil
			}
		}
		return fmt.Errorf("%+v", obj.Status.Outstanding)
	})
	return left
}

// storedBySomebodyElse stores a kubelet's request that another signer has answered with pair.
func (r *rotating) storedBySomebodyElse(t *testing.T, pair tls.Certificate) {
	t.Helper()
	obj, _ := r.approved(t, certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: pair.Leaf.Subject})
	r.change(t, obj, "status", func() {
		obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Leaf.Raw})
	})
}

// testServing rotates a CA whose certificates API servers don't verify. Only its owner knows its verifiers.
func testServing(t *testing.T, r *rotating) {
	const name = "serving"
	r.run(t, r.everything(t, time.Hour, map[string]string{certificatesv1.KubeletServingSignerName: name}))
	r.adopted(t, name, func(spec *v1alpha1.SigningAuthoritySpec) {
		spec.Signers, spec.Verification = []string{certificatesv1.KubeletServingSignerName}, v1alpha1.Verification{APIServers: []string{"192.0.2.1:6443"}}
	})
	first := r.get(t, name).Status.Signing
	r.serves(t, "served", first)
	r.ask(t, name, v1alpha1.OperationStart)
	r.reaches(t, name, v1alpha1.Preparing, func(obj *v1alpha1.SigningAuthority) bool {
		return strings.Contains(strings.Join(obj.Status.WaitingFor, " "), "rotation confirm ")
	})
	if bundle := string(r.bundle(t, name)); !strings.HasSuffix(bundle, first.Certificate) || len(bundle) <= len(first.Certificate) {
		t.Error("what is to be trusted is not the new CA and then the old one")
	}
	r.serves(t, "served", first)
	r.does(t, name, v1alpha1.OperationConfirm)
	second := r.reaches(t, name, v1alpha1.Prepared, nil).Status.Signing
	r.serves(t, "served", second)
	r.leaves(t, name)
	if string(r.bundle(t, name)) != second.Certificate {
		t.Error("the old CA is published still")
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
