package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
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
