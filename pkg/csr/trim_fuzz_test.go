package csr_test

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// FuzzTrim checks that every reader gives the same answer about a whole and about a trimmed object, that a trimmed object
// stays as it is, and that the end of a certificate is the one that crypto/x509 reads.
func FuzzTrim(f *testing.F) {
	node := block("CERTIFICATE REQUEST", der(f, nodeRequest()))
	valid := certificateUntil(f, now.Add(time.Hour))
	f.Add(node, valid, "user", "kubernetes.io/kubelet-serving", "True", uint8(1), int64(0), int64(60))
	f.Add(node, []byte(nil), strings.Repeat("ü", 300), "kubernetes.io/kube-apiserver-client-kubelet", "", uint8(0), int64(5), int64(0))
	f.Add([]byte("x"), append(block("OTHER", []byte{1}), valid...), "", "example.com/a", "False", uint8(6), int64(-1), int64(1)<<33)
	f.Add(node, append(slices.Clone(valid), valid...), "", "", "True", uint8(9), int64(0), int64(0))
	f.Add([]byte("trimmed by csr-controller-manager"), valid, "", "", "", uint8(2), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, payload, certificate []byte, user, signer, status string, kinds uint8, created, updated int64) {
		const years = 1 << 35 // metav1.Time has no JSON form after the year 9999
		obj := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(created%years, 0)},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: payload, SignerName: signer, Username: user},
			Status:     certificatesv1.CertificateSigningRequestStatus{Certificate: certificate},
		}
		for i, kind := range []certificatesv1.RequestConditionType{"Approved", "Denied", "Failed", "Example"} {
			if kinds&(1<<i) == 0 {
				continue
			}
			obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Message: user})
			at := &obj.Status.Conditions[len(obj.Status.Conditions)-1]
			if kinds&(16<<i) == 0 {
				at.LastUpdateTime, at.Status = metav1.Unix(updated%years, 0), "True"
			}
		}
		checkTrimmed(t, obj)
		if !csr.Trimmed(obj) {
			checkEnd(t, obj)
		}
	})
}

// checkEnd compares the end of the certificate with that of crypto/x509.
func checkEnd(t *testing.T, obj *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	first, _ := pem.Decode(obj.Status.Certificate)
	if first == nil {
		return
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil || cert.NotAfter.IsZero() {
		return
	}
	approved := obj.DeepCopy()
	csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", now)
	if at, ok := onlyExpired.Deadline(approved); !ok || !at.Equal(cert.NotAfter) {
		t.Errorf("the certificate ends at %s %t, crypto/x509 reads %s", at, ok, cert.NotAfter)
	}
}
