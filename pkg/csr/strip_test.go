package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// whole returns a pending request of a kubelet with everything that an API server stores.
func whole(t *testing.T, common string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	deleted, seconds := metav1.NewTime(now.Add(time.Hour)), int32(600)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name: "csr-a", UID: "uid", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now), DeletionTimestamp: &deleted,
			Annotations: map[string]string{"a": strings.Repeat("x", 1000)}, Labels: map[string]string{"b": "c"},
			Finalizers: []string{"d"}, OwnerReferences: []metav1.OwnerReference{{Name: "e"}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "stripped", Operation: "Update"}},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "someone", UID: "u",
			Groups: []string{"g"}, Extra: map[string]certificatesv1.ExtraValue{"k": {"v"}}, ExpirationSeconds: &seconds,
			Usages:  []certificatesv1.KeyUsage{"client auth"},
			Request: block("CERTIFICATE REQUEST", der(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: common}})),
		},
	}
}

// TestStrip checks that the state, the deadline and what supersedes a request are the same after Strip.
func TestStrip(t *testing.T) {
	t.Parallel()
	add := func(kind certificatesv1.RequestConditionType) func(*certificatesv1.CertificateSigningRequest) {
		return func(obj *certificatesv1.CertificateSigningRequest) {
			csr.AddCondition(obj, "Other", "", "", now)
			csr.AddCondition(obj, kind, "Reason", strings.Repeat("y", 1000), now.Add(time.Minute))
		}
	}
	certificate := func(end time.Time) func(*certificatesv1.CertificateSigningRequest) {
		return func(obj *certificatesv1.CertificateSigningRequest) {
			add("Approved")(obj)
			obj.Status.Certificate = certificateUntil(t, end)
		}
	}
	policy := csr.RetentionPolicy{}
	for name, change := range map[string]func(*certificatesv1.CertificateSigningRequest){
		"pending":  func(*certificatesv1.CertificateSigningRequest) {},
		"approved": add("Approved"),
		"denied":   add("Denied"),
		"failed":   add("Failed"),
		"failed, but not true": func(obj *certificatesv1.CertificateSigningRequest) {
			add("Failed")(obj)
			obj.Status.Conditions[1].Status = "False"
		},
		"issued":  certificate(now.Add(time.Hour)),
		"expired": certificate(now.Add(2 * time.Minute)),
		"issued, no time of approval": func(obj *certificatesv1.CertificateSigningRequest) {
			certificate(now.Add(time.Hour))(obj)
			obj.Status.Conditions[1].LastUpdateTime = metav1.Time{}
		},
		"issued, not approved": func(obj *certificatesv1.CertificateSigningRequest) {
			certificate(now.Add(time.Hour))(obj)
			obj.Status.Conditions = nil
		},
		"issued, then failed": func(obj *certificatesv1.CertificateSigningRequest) {
			certificate(now.Add(time.Hour))(obj)
			add("Failed")(obj)
		},
		"expired in 1970": certificate(time.Unix(0, 0)),
		"not a certificate": func(obj *certificatesv1.CertificateSigningRequest) {
			add("Approved")(obj)
			obj.Status.Certificate = []byte("x")
		},
		"not a PKCS#10 request": func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Request = []byte("x") },
		"another signer":        func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.SignerName = "example.com/a" },
		"a long username":       func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Username = strings.Repeat("u", 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := whole(t, "system:node:a")
			change(obj)
			before := obj.DeepCopy()
			small := csr.Strip(obj, csr.Parse)
			if !csr.Stripped(small) || csr.Stripped(obj) || csr.Stripped(before) || csr.Strip(small, csr.Parse) != small {
				t.Fatal("not marked as stripped, or the whole request is")
			}
			if size := small.Size(); size > 700 {
				t.Errorf("%d bytes", size)
			}
			if csr.StateOf(small) != csr.StateOf(obj) || csr.Undecided(small) != csr.Undecided(obj) ||
				!csr.ApprovedAt(small).Equal(csr.ApprovedAt(obj)) || csr.CertificateDigest(small) != csr.CertificateDigest(obj) {
				t.Errorf("state %s, want %s", csr.StateOf(small), csr.StateOf(obj))
			}
			got, gotOK := policy.Deadline(small)
			want, wantOK := policy.Deadline(obj)
			if gotOK != wantOK || !got.Equal(want) {
				t.Errorf("deadline %v %t, want %v %t", got, gotOK, want, wantOK)
			}
			gotReq, gotOK := csr.Limits{}.Supersedable(small)
			wantReq, wantOK := csr.Limits{}.Supersedable(obj)
			if gotOK != wantOK || wantOK && (gotReq.NodeName() != wantReq.NodeName() || !gotReq.Created.Equal(wantReq.Created) ||
				gotReq.Requester.Username != csr.Bounded(wantReq.Requester.Username)) {
				t.Errorf("supersedable: %+v %t, want %+v %t", gotReq, gotOK, wantReq, wantOK)
			}
			if small.Name != obj.Name || small.UID != obj.UID || small.ResourceVersion != obj.ResourceVersion || small.DeletionTimestamp == nil {
				t.Errorf("%+v", small.ObjectMeta)
			}
		})
	}
}

func TestBounded(t *testing.T) {
	t.Parallel()
	a, b := csr.Bounded(strings.Repeat("ä", 500)), csr.Bounded(strings.Repeat("ä", 501))
	if a == b || len(a) > 256 || csr.Bounded(a) != a || csr.Bounded("short") != "short" {
		t.Errorf("%q, %q", a, b)
	}
}
