package approver

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"net"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// asked is the content of a fuzzed request, as strings.
type asked struct {
	commonName, unit, email, user string
	organizations, dns, groups    []string
	addresses                     []net.IP
	usages                        []certificatesv1.KeyUsage
}

// FuzzRules compares the rules with their statement in the TLS bootstrapping document, which strictServing and
// strictClient repeat in other words. A rule approves nothing that they refuse, and they refuse nothing that a rule
// approves.
func FuzzRules(f *testing.F) {
	const client, serving = uint8(5), uint8(3)
	f.Add("system:node:a", "system:nodes", "", "", []byte{}, "", "system:bootstrap:abcdef", "system:bootstrappers", client)
	f.Add("system:node:a", "system:nodes", "", "", []byte{}, "", "system:node:a", "system:nodes", client)
	f.Add("system:node:a", "system:nodes", "", "", []byte{}, "", "bound", "system:bootstrappers:node:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", client)
	f.Add("system:node:a", "system:nodes", "", "", []byte{}, "", "bound", "system:bootstrappers:node:ca978112ca1bbdca", client)
	f.Add("system:node:a", "system:nodes", "", "a.example.com", []byte{10, 0, 0, 1}, "", "system:node:a", "system:nodes", serving)
	f.Add("system:node:a", "system:nodes", "", "a.example.com", []byte{10, 0, 0, 1}, "", "system:node:a", "system:node", serving)
	f.Add("system:node:a", "system:nodes", "", "A.example.com.,10.0.0.1", []byte{}, "", "system:node:a", "x,system:nodes", serving|4)
	f.Add("system:node:a", "system:nodes", "ou", "b.example.com", []byte{10, 0, 0, 2}, "a@b", "system:node:b", "", serving)
	f.Add("system:node:", "system:nodes,system:masters", "", "kubernetes.default.svc", []byte{10, 96, 0, 1}, "", "system:node:", "system:nodes", serving)
	f.Add("system:node:a", "system:nodes", "", "::ffff:10.0.0.1,*.example.com,a\u3002b", []byte{127, 0, 0, 1}, "", "system:node:a", "system:nodes", uint8(15))
	approver := newKnown()
	f.Fuzz(func(t *testing.T, commonName, organizations, unit, dns string, ips []byte, email, user, groups string, usages uint8) {
		content := asked{
			commonName: commonName, unit: unit, email: email, user: user,
			organizations: fields(organizations), dns: fields(dns), groups: fields(groups),
		}
		for len(ips) >= 4 {
			content.addresses, ips = append(content.addresses, net.IP(ips[:4])), ips[4:]
		}
		for i, usage := range []certificatesv1.KeyUsage{"digital signature", "server auth", "client auth", "key encipherment"} {
			if usages&(1<<i) != 0 {
				content.usages = append(content.usages, usage)
			}
		}
		req := content.request()
		if req == nil {
			return
		}
		decision, err := approver.judge(t.Context(), req)
		again, againErr := approver.judge(t.Context(), req)
		if err != nil || againErr != nil || again != decision {
			t.Fatalf("%+v, error %v; again %+v, error %v", decision, err, again, againErr)
		}
		checkDecision(t, decision)
		if got, want := decision.Verdict == verdict.Approve, content.strictServing(); got != want {
			t.Errorf("serving: approved %t, want %t: %+v: %s", got, want, content, decision.Message)
		}
		names, refused := reviewed(t, NodeClient(), req)
		if want := content.strictClient(); !slices.Equal(names, want) {
			t.Errorf("client: recognised as %q, want %q: %+v: %s", names, want, content, refused.Message)
		}
		checkDecision(t, refused)
	})
}

// checkDecision checks that a decision explains itself, within bounds.
func checkDecision(t *testing.T, decision Decision) {
	t.Helper()
	if decision.Reason == "" || decision.Message == "" || len(decision.Message) > 32<<10 {
		t.Errorf("reason %q, message of %d bytes", decision.Reason, len(decision.Message))
	}
}

func fields(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// request returns the request as the approver gets it, or nil if PKCS#10 has no form for its content.
func (a asked) request() *csr.Request {
	template := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: a.commonName, Organization: a.organizations, OrganizationalUnit: fields(a.unit)},
		DNSNames: a.dns, IPAddresses: a.addresses, EmailAddresses: fields(a.email),
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, leafKey())
	if err != nil {
		return nil
	}
	obj := &request{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		Username: a.user, Groups: a.groups, Usages: a.usages,
	}}
	req, err := csr.Parse(obj)
	if err != nil {
		return nil
	}
	return req
}

// strictServing reports whether node a or b asks for names that newKnown says are its own, and for nothing else.
func (a asked) strictServing() bool {
	own := map[string][2]string{"system:node:a": {"a.example.com", "10.0.0.1"}, "system:node:b": {"b.example.com", "10.0.0.2"}}
	names, known := own[a.user]
	if !known || a.commonName != a.user || !slices.Contains(a.groups, "system:nodes") || len(a.organizations) != 1 || a.organizations[0] != "system:nodes" {
		return false
	}
	if a.unit != "" || a.email != "" || len(a.dns)+len(a.addresses) == 0 || !a.onlyUsages("server auth") {
		return false
	}
	for _, name := range a.dns {
		name = strings.TrimSuffix(name, ".")
		if name != names[1] && asciiLower(name) != names[0] {
			return false
		}
	}
	for _, ip := range a.addresses {
		if ip.String() != names[1] {
			return false
		}
	}
	return true
}

// strictClient returns the recognisers for the request.
func (a asked) strictClient() []string {
	node, isNode := strings.CutPrefix(a.commonName, "system:node:")
	if !isNode || len(a.organizations) != 1 || a.organizations[0] != "system:nodes" || len(a.dns)+len(a.addresses)+len(fields(a.email)) > 0 ||
		!a.onlyUsages("client auth") {
		return nil
	}
	var names []string
	if a.user == a.commonName {
		names = append(names, "selfnodeclient")
	}
	sum := sha256.Sum256([]byte(node))
	bound := slices.DeleteFunc(slices.Clone(a.groups), func(group string) bool { return !strings.HasPrefix(group, "system:bootstrappers:node:") })
	if len(bound) == 0 || slices.Contains(bound, "system:bootstrappers:node:"+hex.EncodeToString(sum[:])) {
		names = append(names, "nodeclient")
	}
	return names
}

// onlyUsages reports whether the usages are those of the TLS bootstrapping document for purpose.
func (a asked) onlyUsages(purpose certificatesv1.KeyUsage) bool {
	return slices.Contains(a.usages, "digital signature") && slices.Contains(a.usages, purpose) &&
		!slices.ContainsFunc(a.usages, func(usage certificatesv1.KeyUsage) bool {
			return usage != "digital signature" && usage != "key encipherment" && usage != purpose
		})
}

func asciiLower(name string) string {
	return strings.Map(func(char rune) rune {
		if char < 0x80 {
			return []rune(strings.ToLower(string(char)))[0]
		}
		return char
	}, name)
}
