package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestSupersedable(t *testing.T) {
	t.Parallel()
	if csr.MinSupersededAfter != 15*time.Minute {
		t.Errorf("a request is superseded after %s", csr.MinSupersededAfter)
	}
	const client, serving = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"
	condition := func(kind certificatesv1.RequestConditionType) func(*certificatesv1.CertificateSigningRequest) {
		return func(obj *certificatesv1.CertificateSigningRequest) { csr.AddCondition(obj, kind, "", "", time.Time{}) }
	}
	for name, test := range map[string]struct {
		signer string
		common string
		change func(*certificatesv1.CertificateSigningRequest)
		want   bool
	}{
		"a client certificate":  {signer: client, common: "system:node:a", want: true},
		"a serving certificate": {signer: serving, common: "system:node:a", want: true},
		"a foreign condition":   {signer: client, common: "system:node:a", change: condition("Vetted"), want: true},
		"another signer":        {signer: "kubernetes.io/kube-apiserver-client", common: "system:node:a"},
		"a custom signer":       {signer: "example.com/a", common: "system:node:a"},
		"no node":               {signer: client, common: "alice"},
		"a node without a name": {signer: client, common: "system:node:"},
		"approved":              {signer: client, common: "system:node:a", change: condition("Approved")},
		"denied":                {signer: client, common: "system:node:a", change: condition("Denied")},
		"failed":                {signer: client, common: "system:node:a", change: condition("Failed")},
		"issued": {signer: client, common: "system:node:a", change: func(obj *certificatesv1.CertificateSigningRequest) {
			obj.Status.Certificate = []byte("x")
		}},
		"malformed": {signer: client, common: "system:node:a", change: func(obj *certificatesv1.CertificateSigningRequest) {
			obj.Spec.Request = []byte("x")
		}},
	} {
		obj := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: test.signer, Username: "someone",
			Request: block("CERTIFICATE REQUEST", der(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: test.common}})),
		}}
		if test.change != nil {
			test.change(obj)
		}
		req, ok := (csr.Limits{}).Supersedable(obj)
		if ok != test.want || ok && (req.SignerName != test.signer || req.Requester.Username != "someone" || req.NodeName() != "a") {
			t.Errorf("%s: %+v, %t", name, req, ok)
		}
	}
}
