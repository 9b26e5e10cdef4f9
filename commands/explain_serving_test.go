package commands

import (
	"crypto/x509"
	"net"
	"net/url"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// servingScenarios are of requests for serving certificates that are refused whatever is known of the node.
func servingScenarios(t testing.TB) map[string]scenario {
	node := func(obj *request) { obj.Spec.Username, obj.Spec.Groups = "system:node:a", []string{"system:nodes"} }
	one := func(template x509.CertificateRequest, changes ...func(*request)) scenario {
		template.Subject = nodeName()
		changes = append([]func(*request){forSigner(kubeletServing, signature, serverAuth), node, asking(t, template)}, changes...)
		return scenario{obj: explainRequest(t, changes...), args: []string{"--config=testdata/serving.yaml"}}
	}
	own := x509.CertificateRequest{DNSNames: []string{"a"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}
	with := func(change func(*x509.CertificateRequest)) x509.CertificateRequest {
		template := own
		change(&template)
		return template
	}
	return map[string]scenario{
		"RequesterNotNode":   one(own, func(obj *request) { obj.Spec.Groups = []string{"system:authenticated"} }),
		"UsagesNotPermitted": one(own, forSigner(kubeletServing, signature, certificatesv1.UsageClientAuth)),
		"CommonNameMismatch": one(own, func(obj *request) { obj.Spec.Username = "system:node:b" }),
		"SANTypeNotPermitted": one(with(func(r *x509.CertificateRequest) {
			r.EmailAddresses, r.URIs = []string{"a@example.com"}, []*url.URL{{Scheme: "https", Host: "a"}}
		})),
		"UnexpectedContent": one(with(func(r *x509.CertificateRequest) { r.ExtraExtensions = servingRequest().ExtraExtensions })),
		"SANMissing":        one(x509.CertificateRequest{}),
		"SANReserved":       one(with(func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} })),
	}
}
