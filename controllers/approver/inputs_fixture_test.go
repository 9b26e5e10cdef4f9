package approver

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
)

// known holds the facts of a rule for serving certificates, without a manager that watches them.
type known struct {
	nodes     map[string]*inventory.Entry
	reserved  san.Reserved
	services  map[san.SAN]string
	contested map[san.SAN]string
	fault     string
}

// newKnown returns facts with node a, whose Node reports ofA, and node b.
func newKnown(ofA ...string) *known {
	world := &known{
		nodes: map[string]*inventory.Entry{
			"a": {Source: "Node a", SANs: sans(append([]string{"10.0.0.1", "a.example.com"}, ofA...)...)},
			"b": {Source: "Node b", SANs: sans("10.0.0.2", "b.example.com")},
		},
		reserved: san.Reserved{
			ClusterDomain: "cluster.local", Endpoints: sans("192.0.2.100", "api.example.com"),
			Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		},
		services: map[san.SAN]string{san.Parse("10.97.0.1"): "Service default/x"},
	}
	return world
}

func sans(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		all = append(all, san.Parse(text))
	}
	return all
}

// judge is Serving.judge with facts from k.
func (k *known) judge(_ context.Context, req *csr.Request) (Decision, error) {
	return judgeServing(req, k.reserved, func() (servingFacts, error) {
		found := inventory.Found{Entry: k.nodes[req.NodeName()]}
		if k.fault != "" {
			return servingFacts{}, errors.New(k.fault)
		}
		return servingFacts{Found: found, of: func(value san.SAN) (nameFacts, error) {
			return nameFacts{
				service: k.services[value], claim: inventory.Claim{NotOwned: !found.Owns(value), Owner: k.contested[value]},
			}, nil
		}}, nil
	}), nil
}

// knowing adds the rule for serving certificates, with facts from world, to p's approver.
func (p *parts) knowing(world *known) *parts {
	p.reconciler.Rules = append(p.reconciler.Rules, Rule{SignerName: servingSigner, Judge: world.judge})
	return p
}

// asks returns a request of node a's kubelet for a serving certificate with names.
func asks(t testing.TB, names []string, modify ...func(*request)) *request {
	t.Helper()
	return object(t, append([]func(*request){func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Usages = servingSigner, []certificatesv1.KeyUsage{"digital signature", "server auth"}
		obj.Spec.Username, obj.Spec.Groups = "system:node:a", []string{"system:nodes", "system:authenticated"}
		obj.Spec.Request = payload(t, nodeTemplate("a", names...))
	}}, modify...)...)
}

// nodeTemplate returns a kubelet's PKCS#10 content. It parses names as addresses where possible.
func nodeTemplate(node string, names ...string) *x509.CertificateRequest {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return template
}

// says returns a change that replaces the PKCS#10 request by template.
func says(t testing.TB, template *x509.CertificateRequest) func(*request) {
	t.Helper()
	data := payload(t, template)
	return func(obj *request) { obj.Spec.Request = data }
}

// subjectOf returns a change that replaces the subject, with one RDN for each attribute.
func subjectOf(t testing.TB, attributes ...pkix.AttributeTypeAndValue) func(*request) {
	t.Helper()
	var sequence pkix.RDNSequence
	for _, attribute := range attributes {
		sequence = append(sequence, pkix.RelativeDistinguishedNameSET{attribute})
	}
	raw, err := asn1.Marshal(sequence)
	if err != nil {
		t.Fatal(err)
	}
	return says(t, &x509.CertificateRequest{RawSubject: raw, IPAddresses: []net.IP{net.ParseIP("10.0.0.1")}})
}

func commonName(text string) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: text}
}

func organization(text string) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: text}
}

func usagesAre(usages ...certificatesv1.KeyUsage) func(*request) {
	return func(obj *request) { obj.Spec.Usages = usages }
}

// outcome reconciles the request, and returns "Approved", "Denied REASON", "Waits REASON", "Ignored REASON" or
// "Untouched".
func (p *parts) outcome(t testing.TB) string {
	t.Helper()
	p.written = nil
	result, err := p.reconcile(t)
	if err != nil {
		t.Fatal(err)
	}
	told := p.events()
	reason := ""
	for _, event := range told {
		if len(event) > 1100 {
			t.Errorf("an Event of %d bytes", len(event))
		}
		reason = strings.Fields(event)[1]
	}
	switch {
	case len(p.written) > 1:
		t.Fatalf("%d writes", len(p.written))
	case len(p.written) == 1:
		last := p.written[0].Status.Conditions[len(p.written[0].Status.Conditions)-1]
		if last.Status != "True" {
			t.Errorf("condition %s has status %q", last.Type, last.Status)
		}
		return strings.TrimSpace(string(last.Type) + " " + reason)
	case result.RequeueAfter > 0 && result.RequeueAfter != report.Again:
		return "Waits " + reason
	case len(told) > 0:
		return "Ignored " + reason
	}
	return "Untouched"
}
