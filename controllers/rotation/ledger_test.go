package rotation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"path"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestWhoseLedger has two authorities with one CA, as spec.from creates them. A certificate counts for the authority
// that serves its signer, even if that authority no longer has the CA. Otherwise it would keep the other authority from
// removing the CA. If no authority serves the signer, the certificate counts for both.
func TestWhoseLedger(t *testing.T) {
	t.Parallel()
	made, cert := issued(t)
	objects := []client.Object{
		sharing("users", made, certificatesv1.KubeAPIServerClientSignerName),
		sharing("kubelets", made, certificatesv1.KubeletServingSignerName),
	}
	left := sharing("nodes", made, certificatesv1.KubeAPIServerClientKubeletSignerName)
	left.Status.Signing, left.Status.LastRetired = nil, left.Status.Signing
	signers := []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeletServingSignerName, "example.com/others"}
	for _, signer := range append(signers, certificatesv1.KubeAPIServerClientKubeletSignerName) {
		obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: path.Base(signer)}}
		obj.Spec.SignerName, obj.Status.Certificate = signer, cert
		objects = append(objects, trimmed(t, obj))
	}
	r := reconciler(t, append(objects, left)...)
	for _, obj := range objects[:2] {
		if err := r.recorder(obj.(*v1alpha1.SigningAuthority)).Book.Open(t.Context(), made.KeyID()); err != nil {
			t.Fatal(err)
		}
	}
	for _, obj := range objects[2:] {
		if _, err := r.recordIssued(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][]string{{signers[2], signers[0]}, {signers[2], signers[1]}} {
		recorder := r.recorder(objects[i].(*v1alpha1.SigningAuthority))
		flushed := recorder.Flush(t.Context())
		accounts, err := recorder.Book.Read(t.Context())
		if err := errors.Join(flushed, err); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, accounts[made.KeyID()].SignerNames()); diff != "" {
			t.Errorf("noted for %s (-want +got):\n%s", objects[i].GetName(), diff)
		}
	}
}

// TestIssuedLater checks which requests with a certificate the ledger controller handles.
func TestIssuedLater(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		event func(obj client.Object) bool
		want  bool
	}{
		"in the first list": {event: func(obj client.Object) bool {
			return issuedLater.Create(event.CreateEvent{Object: obj, IsInInitialList: true})
		}},
		"listed again": {event: func(obj client.Object) bool {
			return issuedLater.Update(event.UpdateEvent{ObjectOld: obj, ObjectNew: obj})
		}},
		"created with a certificate": {want: true, event: func(obj client.Object) bool {
			return issuedLater.Create(event.CreateEvent{Object: obj})
		}},
		"issued": {want: true, event: func(obj client.Object) bool {
			before := obj.DeepCopyObject().(*certificatesv1.CertificateSigningRequest)
			before.ResourceVersion, before.Status.Certificate = "1", nil
			return issuedLater.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: obj})
		}},
		"created without a certificate": {event: func(obj client.Object) bool {
			obj.(*certificatesv1.CertificateSigningRequest).Status.Certificate = nil
			return issuedLater.Create(event.CreateEvent{Object: obj})
		}},
		"deleted": {event: func(obj client.Object) bool { return issuedLater.Delete(event.DeleteEvent{Object: obj}) }},
	} {
		obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "2"}}
		obj.Status.Certificate = []byte("a certificate")
		if got := test.event(trimmed(t, obj)); got != test.want {
			t.Errorf("%s: handled: %t, want %t", name, got, test.want)
		}
	}
}

// trimmed returns obj as the manager's cache holds it.
func trimmed(t *testing.T, obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	got, err := csr.Trim{}.Transform(obj)
	if err != nil || !csr.Trimmed(obj) {
		t.Fatalf("not trimmed: %v", err)
	}
	return got.(*certificatesv1.CertificateSigningRequest)
}

// sharing returns an authority that signs with made, or without a CA if made is nil.
func sharing(name string, made *ca.Authority, signers ...string) *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	obj.Spec.Secret, obj.Spec.Signers = v1alpha1.SecretReference{Namespace: "ns", Name: name}, signers
	obj.Status.Phase = v1alpha1.Completed
	if made != nil {
		obj.Status.Signing = factsOf(made)
	}
	return obj
}

// reconciler returns a Reconciler whose API server has only objects.
func reconciler(t *testing.T, objects ...client.Object) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return &Reconciler{
		Clock: clock.RealClock{}, Client: server, Live: server, runUntilStopped: func(func(context.Context)) {},
	}
}

// issued returns a CA and one of its certificates.
func issued(t *testing.T) (*ca.Authority, []byte) {
	t.Helper()
	made, keyPEM, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	parent, err := tls.X509KeyPair(made.CertificatePEM(), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Leaf, key.Public(), parent.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return made, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
