package csr_test

import (
	"crypto/x509/pkix"
	"net"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// shapeRow changes the smallest accepted request. An empty error means that it is accepted.
type shapeRow struct {
	change func(*csr.Request)
	want   string
}

func checkShape(t *testing.T, shape func(*csr.Request) error, smallest func() *csr.Request, rows map[string]shapeRow) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := smallest()
			row.change(req)
			if diff := cmp.Diff(row.want, errorText(shape(req))); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func commonName(name string) func(*csr.Request) {
	return func(req *csr.Request) { req.Cert.Subject.CommonName = name }
}

func organizations(names ...string) func(*csr.Request) {
	return func(req *csr.Request) { req.Cert.Subject.Organization = names }
}

func usages(usages ...certificatesv1.KeyUsage) func(*csr.Request) {
	return func(req *csr.Request) { req.Usages = usages }
}

func dnsNames(names ...string) func(*csr.Request) {
	return func(req *csr.Request) { req.Cert.DNSNames = names }
}

func emails(req *csr.Request)    { req.Cert.EmailAddresses = []string{"a@example.com"} }
func addresses(req *csr.Request) { req.Cert.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
func uris(req *csr.Request)      { req.Cert.URIs = []*url.URL{{Scheme: "urn", Opaque: "a"}} }

func all(changes ...func(*csr.Request)) func(*csr.Request) {
	return func(req *csr.Request) {
		for _, change := range changes {
			change(req)
		}
	}
}

func nodeShape(usages ...certificatesv1.KeyUsage) *csr.Request {
	return &csr.Request{
		Cert:   ca.Request{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}},
		Usages: usages,
	}
}

func TestKubeletClientShape(t *testing.T) {
	t.Parallel()
	const organization = "subject organization is not system:nodes"
	const usage = "usages did not match [client auth digital signature key encipherment]"
	const name = "subject common name does not begin with system:node:"
	smallest := func() *csr.Request { return nodeShape("digital signature", "client auth") }
	checkShape(t, csr.KubeletClientShape, smallest, map[string]shapeRow{
		"smallest":                  {all(), ""},
		"key encipherment":          {usages("digital signature", "key encipherment", "client auth"), ""},
		"usages in another order":   {usages("client auth", "key encipherment", "digital signature"), ""},
		"usages twice":              {usages("client auth", "client auth", "digital signature"), ""},
		"a node without a name":     {commonName("system:node:"), ""},
		"an organizational unit":    {func(req *csr.Request) { req.Cert.Subject.OrganizationalUnit = []string{"x"} }, ""},
		"any lifetime":              {func(req *csr.Request) { req.Cert.Lifetime = 1 }, ""},
		"no organization":           {organizations(), organization},
		"another organization":      {organizations("system:masters"), organization},
		"one organization too many": {organizations("system:masters", "system:nodes"), organization},
		"an organization twice":     {organizations("system:nodes", "system:nodes"), organization},
		"a DNS name":                {dnsNames("a"), "DNS subjectAltNames are not allowed"},
		"an e-mail address":         {emails, "Email subjectAltNames are not allowed"},
		"an IP address":             {addresses, "IP subjectAltNames are not allowed"},
		"a URI":                     {uris, "URI subjectAltNames are not allowed"},
		"no common name":            {commonName(""), name},
		"another common name":       {commonName("system:nodes:a"), name},
		"upper case":                {commonName("System:node:a"), name},
		"no usages":                 {usages(), usage},
		"no client auth":            {usages("digital signature", "key encipherment"), usage},
		"no digital signature":      {usages("key encipherment", "client auth"), usage},
		"server auth too":           {usages("digital signature", "client auth", "server auth"), usage},
		"server auth instead":       {usages("digital signature", "server auth"), usage},
		"signing, the other name":   {usages("signing", "client auth"), usage},
		"unknown usage too":         {usages("digital signature", "client auth", "x"), usage},

		"organization goes before DNS":  {all(organizations(), dnsNames("a")), organization},
		"DNS goes before e-mail":        {all(dnsNames("a"), emails), "DNS subjectAltNames are not allowed"},
		"e-mail goes before IP":         {all(emails, addresses), "Email subjectAltNames are not allowed"},
		"IP goes before URI":            {all(addresses, uris), "IP subjectAltNames are not allowed"},
		"URI goes before common name":   {all(uris, commonName("")), "URI subjectAltNames are not allowed"},
		"common name goes before usage": {all(commonName(""), usages()), name},
	})
}

func TestKubeletServingShape(t *testing.T) {
	t.Parallel()
	const organization = "subject organization is not system:nodes"
	const usage = "usages did not match [digital signature key encipherment server auth]"
	const name = "subject common name does not begin with system:node:"
	smallest := func() *csr.Request {
		req := nodeShape("digital signature", "server auth")
		req.Cert.DNSNames = []string{"a"}
		return req
	}
	checkShape(t, csr.KubeletServingShape, smallest, map[string]shapeRow{
		"smallest":                  {all(), ""},
		"an IP address instead":     {all(dnsNames(), addresses), ""},
		"both":                      {addresses, ""},
		"several names":             {dnsNames("a", "b", "c.example.com"), ""},
		"key encipherment":          {usages("server auth", "digital signature", "key encipherment"), ""},
		"a node without a name":     {commonName("system:node:"), ""},
		"another organization":      {organizations("system:masters"), organization},
		"one organization too many": {organizations("system:nodes", "x"), organization},
		"neither name nor address":  {dnsNames(), "DNS or IP subjectAltName is required"},
		"an e-mail address":         {emails, "Email subjectAltNames are not allowed"},
		"a URI":                     {uris, "URI subjectAltNames are not allowed"},
		"no server auth":            {usages("digital signature", "key encipherment"), usage},
		"no digital signature":      {usages("key encipherment", "server auth"), usage},
		"client auth too":           {usages("digital signature", "server auth", "client auth"), usage},
		"client auth instead":       {usages("digital signature", "client auth"), usage},
		"another common name":       {commonName("a"), name},

		"organization goes before names": {all(organizations(), dnsNames()), organization},
		"missing names go before e-mail": {all(dnsNames(), emails), "DNS or IP subjectAltName is required"},
		"e-mail goes before URI":         {all(emails, uris), "Email subjectAltNames are not allowed"},
		"URI goes before usages":         {all(uris, usages()), "URI subjectAltNames are not allowed"},
		"usages go before common name":   {all(usages(), commonName("")), usage},
	})
}

func TestAPIServerClientShape(t *testing.T) {
	t.Parallel()
	smallest := func() *csr.Request { return &csr.Request{Usages: []certificatesv1.KeyUsage{"client auth"}} }
	const missing = "missing required usage for client certificate: client auth"
	checkShape(t, csr.APIServerClientShape, smallest, map[string]shapeRow{
		"smallest":                 {all(), ""},
		"all that is permitted":    {usages("digital signature", "key encipherment", "client auth"), ""},
		"any subject and names":    {all(organizations("system:masters"), dnsNames("a"), emails, addresses, uris), ""},
		"no usages":                {usages(), missing},
		"no client auth":           {usages("digital signature", "key encipherment"), missing},
		"server auth":              {usages("client auth", "server auth"), "invalid usage for client certificate: server auth"},
		"the first one is named":   {usages("code signing", "any", "client auth"), "invalid usage for client certificate: code signing"},
		"invalid goes before none": {usages("any"), "invalid usage for client certificate: any"},
		"signing, the other name":  {usages("signing", "client auth"), "invalid usage for client certificate: signing"},
		"an unknown one":           {usages("client auth", "x"), "invalid usage for client certificate: x"},
	})
}
