package signer

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	const client, serving, custom = "kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving", "example.com/custom"
	dns := template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} })
	masters := template(t, func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} })
	weak := func(obj *request) { obj.Spec.Request = payload(t, nodeRequest(), weakKey()) }
	forged := func(obj *request) {
		block, _ := pem.Decode(obj.Spec.Request)
		block.Bytes = bytes.Replace(block.Bytes, []byte("system:node:a"), []byte("system:node:b"), 1)
		obj.Spec.Request = pem.EncodeToMemory(block)
	}
	failure := func(message string) *ca.Violation {
		return &ca.Violation{Reason: "SignerValidationFailure", Message: message}
	}
	const forbidden = `subject "CN=system:node:a,O=system:masters" is not permitted: this signer never issues O=system:masters`
	const weakText = "RSA key of 1024 bits is too weak: at least 2048 bits are needed"

	for name, test := range map[string]struct {
		change []func(*request)
		want   *ca.Violation
	}{
		"kubelet client":                {},
		"kubelet client with names":     {change: []func(*request){dns}, want: failure("DNS subjectAltNames are not allowed")},
		"kubelet client, server auth":   {change: []func(*request){usages("digital signature", "server auth")}, want: failure("usages did not match [client auth digital signature key encipherment]")},
		"kubelet client, unknown usage": {change: []func(*request){usages("digital signature", "client auth", "magic")}, want: failure("usages did not match [client auth digital signature key encipherment]")},
		"kubelet client, weak key":      {change: []func(*request){weak}, want: &ca.Violation{Reason: "KeyTooWeak", Message: weakText}},
		"kubelet client, forged":        {change: []func(*request){forged}, want: &ca.Violation{Reason: "Malformed", Message: "the signature in spec.request does not match its public key: x509: ECDSA verification failure"}},
		"kubelet serving":               {change: []func(*request){signerName(serving), dns, usages("digital signature", "server auth")}},
		"kubelet serving by address": {change: []func(*request){signerName(serving), usages("digital signature", "key encipherment", "server auth"),
			template(t, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} })}},
		"kubelet serving without names": {change: []func(*request){signerName(serving), usages("digital signature", "server auth")}, want: failure("DNS or IP subjectAltName is required")},
		"kubelet serving, client auth":  {change: []func(*request){signerName(serving), dns}, want: failure("usages did not match [digital signature key encipherment server auth]")},
		"client":                        {change: []func(*request){signerName(client), dns}},
		"client, server auth":           {change: []func(*request){signerName(client), usages("client auth", "server auth")}, want: failure("invalid usage for client certificate: server auth")},
		"client, no client auth":        {change: []func(*request){signerName(client), usages("digital signature")}, want: failure("missing required usage for client certificate: client auth")},
		"client, masters":               {change: []func(*request){signerName(client), masters}, want: &ca.Violation{Reason: "SubjectNotPermitted", Message: forbidden}},
		"custom":                        {change: []func(*request){signerName(custom), dns, usages("client auth")}},
		"custom, system:masters":        {change: []func(*request){signerName(custom), masters, usages("client auth")}, want: &ca.Violation{Reason: "SubjectNotPermitted", Message: `subject "CN=system:node:a,O=system:masters" is not permitted: this signer never issues O=system:masters`}},
		"custom, another usage":         {change: []func(*request){signerName(custom), usages("client auth", "server auth")}, want: &ca.Violation{Reason: "UsagesNotPermitted", Message: `usage "server auth" is not permitted: signer example.com/custom permits ["client auth"]`}},
		"custom, unknown usage":         {change: []func(*request){signerName(custom), usages("magic")}, want: &ca.Violation{Reason: "UsagesNotPermitted", Message: `unrecognized usage values: ["magic"]`}},

		"Kubernetes' rules come first": {change: []func(*request){weak, usages("server auth")}, want: failure("usages did not match [client auth digital signature key encipherment]")},
		"usages come before the key":   {change: []func(*request){signerName(custom), weak, usages("magic")}, want: &ca.Violation{Reason: "UsagesNotPermitted", Message: `unrecognized usage values: ["magic"]`}},
		"the key comes before the subject": {change: []func(*request){signerName(client), func(obj *request) {
			changed := nodeRequest()
			changed.Subject.Organization = []string{"system:masters"}
			obj.Spec.Request = payload(t, changed, weakKey())
		}}, want: &ca.Violation{Reason: "KeyTooWeak", Message: weakText}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := csr.Parse(object(t, test.change...))
			if err != nil {
				t.Fatal(err)
			}
			signer := Signer{Profile: profile(t, ca.ProfileConfig{ForbiddenSubjects: forbiddenByDefault})}
			if req.SignerName == custom {
				signer.Usages = []certificatesv1.KeyUsage{"client auth"}
			}
			if diff := cmp.Diff(test.want, signer.check(req)); diff != "" {
				t.Errorf("violation (-want +got):\n%s", diff)
			}
		})
	}
}
