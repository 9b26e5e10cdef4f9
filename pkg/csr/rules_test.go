package csr_test

import (
	"crypto/mldsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// ask is a change of a parsed request.
type ask = func(*csr.Request)

func common(name string) ask { return func(req *csr.Request) { req.Cert.Subject.CommonName = name } }
func orgs(names ...string) ask {
	return func(req *csr.Request) { req.Cert.Subject.Organization = names }
}
func usages(usages ...usage) ask   { return func(req *csr.Request) { req.Usages = usages } }
func postQuantum(req *csr.Request) { req.Cert.PublicKey = new(mldsa.PublicKey) }
func dns(names ...string) ask      { return func(req *csr.Request) { req.Cert.DNSNames = names } }
func emails(req *csr.Request)      { req.Cert.EmailAddresses = []string{"a@example.com"} }
func addresses(req *csr.Request)   { req.Cert.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
func uris(req *csr.Request)        { req.Cert.URIs = []*url.URL{{Scheme: "urn", Opaque: "a"}} }

// broken is a rule of a shape: its error, and changes that break it.
type broken struct {
	want    string
	changes []ask
}

var (
	organization = broken{
		"subject organization is not system:nodes", []ask{orgs("system:masters"), orgs(), orgs("x", "system:nodes"), orgs("system:nodes", "x")},
	}
	nodeName = broken{"subject common name does not begin with system:node:", []ask{common("system:nodes:a"), common(""), common("System:node:a")}}
	noDNS    = broken{"DNS subjectAltNames are not allowed", []ask{dns("a")}}
	noEmail  = broken{"Email subjectAltNames are not allowed", []ask{emails}}
	noIP     = broken{"IP subjectAltNames are not allowed", []ask{addresses}}
	noURI    = broken{"URI subjectAltNames are not allowed", []ask{uris}}
)

// TestShapes changes the smallest request that each shape accepts. Of two rules that are broken, the first one is named: the rules
// are in kube-controller-manager's order.
func TestShapes(t *testing.T) {
	const signing, encipherment, client, server = "digital signature", "key encipherment", "client auth", "server auth"
	const invalid = "invalid usage for client certificate: "
	const mldsaUsages = "validating usages for ml-dsa key: "
	const enciphers, signs = "usage key encipherment cannot be used with an ML-DSA signed certificate request",
		"usages must contain at least one of [cert sign content commitment crl sign digital signature]"
	enciphering := func(req *csr.Request) { postQuantum(req); req.Usages = append(slices.Clone(req.Usages), encipherment) }
	pqc := func(all ...usage) ask { return func(req *csr.Request) { postQuantum(req); usages(all...)(req) } }
	for name, test := range map[string]struct {
		shape    func(*csr.Request) error
		smallest []ask
		accepted []ask
		rules    []broken
	}{
		"kubelet client": {
			csr.KubeletClientShape, []ask{orgs("system:nodes"), common("system:node:a"), usages(signing, client)},
			[]ask{usages(client, encipherment, signing), common("system:node:"), postQuantum},
			[]broken{organization, noDNS, noEmail, noIP, noURI, nodeName, {
				"usages did not match [client auth digital signature key encipherment]",
				[]ask{usages(), usages(signing, encipherment), usages(encipherment, client), usages(signing, client, server), usages("signing", client)},
			}, {mldsaUsages + enciphers, []ask{enciphering}}},
		},
		"kubelet serving": {
			csr.KubeletServingShape, []ask{orgs("system:nodes"), common("system:node:a"), usages(signing, server), dns("a")},
			[]ask{usages(server, signing, encipherment), common("system:node:"), postQuantum, addresses, func(req *csr.Request) { dns()(req); addresses(req) }},
			[]broken{organization, {"DNS or IP subjectAltName is required", []ask{dns()}}, noEmail, noURI, {
				"usages did not match [digital signature key encipherment server auth]",
				[]ask{usages(encipherment, server), usages(signing, encipherment), usages(signing, server, client)},
			}, {mldsaUsages + enciphers, []ask{enciphering}}, nodeName},
		},
		"client": {
			csr.APIServerClientShape, []ask{usages(client)},
			[]ask{usages(signing, encipherment, client), orgs("system:masters"), dns("a"), emails, addresses, uris, pqc(client, signing)},
			[]broken{
				{"missing required usage for client certificate: client auth", []ask{usages(), usages(signing, encipherment)}},
				{invalid + "server auth", []ask{usages(client, server), usages(server, "any")}},
				{invalid + "signing", []ask{usages("signing", client), pqc("signing", client)}},
				{mldsaUsages + signs, []ask{pqc(client)}},
				{mldsaUsages + enciphers, []ask{pqc(signing, client, encipherment)}},
				{mldsaUsages + enciphers + "\n" + signs, []ask{pqc(client, encipherment)}},
			},
		},
		"custom": {
			(*csr.Request).CheckMLDSAUsages, []ask{usages(encipherment, "key agreement", "magic")},
			[]ask{pqc(signing, server), pqc("content commitment"), pqc("cert sign", "code signing"), pqc("crl sign", "magic"), usages()},
			[]broken{{mldsaUsages + strings.Join([]string{
				strings.Replace(enciphers, "key encipherment", "data encipherment", 1), strings.Replace(enciphers, "key encipherment", "decipher only", 1),
				strings.Replace(enciphers, "key encipherment", "encipher only", 1), strings.Replace(enciphers, "key encipherment", "key agreement", 1),
				enciphers, signs,
			}, "\n"), []ask{pqc(encipherment, "encipher only", "key agreement", "decipher only", "data encipherment", encipherment, server)}},
				{mldsaUsages + signs, []ask{pqc(), pqc("signing"), pqc("Digital Signature")}}},
		},
	} {
		check := func(want string, changes ...ask) {
			t.Helper()
			req := &csr.Request{}
			for _, change := range slices.Concat(test.smallest, changes) {
				change(req)
			}
			expect.Error(t, name, test.shape(req), want)
		}
		check("")
		for _, change := range test.accepted {
			check("", change)
		}
		for i, rule := range test.rules {
			for _, change := range rule.changes {
				check(rule.want, change)
			}
			for _, later := range test.rules[i+1:] {
				if name != "client" && name != "custom" { // its rules are all about usages
					check(rule.want, rule.changes[0], later.changes[0])
				}
			}
		}
	}
}

// TestUsages checks the X.509 form of each usage. The usages are in the order of crypto/x509, and of the bits of RFC 5280
// section 4.2.1.3.
func TestUsages(t *testing.T) {
	check := func(key x509.KeyUsage, ext []x509.ExtKeyUsage, unknown []usage, usages ...usage) {
		t.Helper()
		gotKey, gotExt, gotUnknown := csr.X509Usages(usages)
		expect.Equal(t, fmt.Sprint(usages), []any{gotKey, gotExt, gotUnknown}, []any{key, ext, unknown}, cmpopts.EquateEmpty())
	}
	for bit, usage := range []usage{
		"digital signature", "content commitment", "key encipherment", "data encipherment", "key agreement",
		"cert sign", "crl sign", "encipher only", "decipher only",
	} {
		check(1<<bit, nil, nil, usage)
	}
	for value, usage := range []usage{
		"any", "server auth", "client auth", "code signing", "email protection", "ipsec end system", "ipsec tunnel", "ipsec user",
		"timestamping", "ocsp signing", "microsoft sgc", "netscape sgc",
	} {
		check(0, []x509.ExtKeyUsage{x509.ExtKeyUsage(value)}, nil, usage)
	}
	check(x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature, nil, nil, "cert sign", "signing", "signing")
	sorted := []x509.ExtKeyUsage{x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageEmailProtection}
	check(0, sorted, []usage{"Client Auth", ""}, "s/mime", "client auth", "Client Auth", "server auth", "s/mime", "", "any")
}

// TestIsNode checks the rule of the node authorizer: a user name with a node's name, and the group of nodes.
func TestIsNode(t *testing.T) {
	for user, want := range map[string]bool{"system:node:a": true, "system:node:": false, "system:nodea": false} {
		expect.Equal(t, user, (csr.Requester{Username: user, Groups: []string{"b", "system:nodes"}}).IsNode(), want)
	}
	if (csr.Requester{Username: "system:node:a", Groups: []string{"system:node"}}).IsNode() {
		t.Error("a node that is not in the group")
	}
}

// TestOtherSubject checks that each attribute is listed but common name and organization.
func TestOtherSubject(t *testing.T) {
	value := []string{"x"}
	for want, subject := range map[string]pkix.Name{
		"": {CommonName: "a", Organization: value}, "C=x": {Country: value}, "OU=x": {OrganizationalUnit: value},
		"L=x": {Locality: value}, "ST=x": {Province: value}, "STREET=x": {StreetAddress: value}, "POSTALCODE=x": {PostalCode: value},
		"SERIALNUMBER=x": {SerialNumber: "x"}, "C=x SERIALNUMBER=x": {SerialNumber: "x", Country: value},
	} {
		expect.Equal(t, "other subject", strings.Join((&csr.Request{Cert: ca.Request{Subject: subject}}).OtherSubject(), " "), want)
	}
}

// TestShortenAll checks that a message holds at most eight texts of at most 256 bytes, and the number of the others.
func TestShortenAll(t *testing.T) {
	all := slices.Repeat([]string{"text"}, 11)
	for count, more := range map[int][]string{0: nil, 8: nil, 9: {"and 1 more"}, 11: {"and 3 more"}} {
		expect.Equal(t, fmt.Sprint(count, " texts"), csr.ShortenAll(all[:count]), slices.Concat(all[:min(count, 8)], more), cmpopts.EquateEmpty())
	}
	if got := csr.ShortenAll([]string{strings.Repeat("a", 257)}); len(got) != 1 || len(got[0]) > 256 || !strings.HasSuffix(got[0], "...") {
		t.Errorf("a text of 257 bytes is shortened to %q", got)
	}
}

// TestCertificates checks which credential IDs stand for a certificate.
func TestCertificates(t *testing.T) {
	a, b := strings.Repeat("0a", 32), strings.Repeat("f9", 32)
	const prefix, key = "X509SHA256=", "authentication.kubernetes.io/credential-id"
	for id, want := range map[string][]string{
		prefix + a: {a}, prefix + strings.ToUpper(a): {a}, a: nil, "x509sha256=" + a: nil, "JTI=" + a: nil, prefix: nil, prefix + a + " ": nil,
		prefix + a[2:]: nil, prefix + a + "00": nil, prefix + strings.Repeat("0g", 32): nil, prefix + a + "," + b: nil,
	} {
		expect.Equal(t, id, (csr.Requester{Extra: map[string]certificatesv1.ExtraValue{key: {id}}}).Certificates(), want, cmpopts.EquateEmpty())
	}
	several := csr.Requester{Extra: map[string]certificatesv1.ExtraValue{key: {prefix + a, "JTI=1", prefix + b}, strings.ToUpper(key): {prefix + a}}}
	expect.Equal(t, "several", several.Certificates(), []string{a, b})
}

// TestStates checks the state by conditions, as the fixture writes them, and by the certificate.
func TestStates(t *testing.T) {
	for _, test := range []struct {
		conditions, certificate string
		want                    csr.State
		undecided               bool
	}{
		{"", "", "Pending", true},
		{"Vetted", "", "Pending", true},
		{"Approved", "", "Approved", false},
		{"Approved=False", "", "Approved", false},
		{"Denied", "", "Denied", false},
		{"Failed", "", "Failed", true},
		{"Failed=", "", "Failed", true},
		{"Failed=False", "", "Pending", true},
		{"Approved Denied", "", "Denied", false},
		{"Approved Failed", "", "Failed", false},
		{"Approved Failed=False", "", "Approved", false},
		{"Denied Failed", "", "Failed", false},
		{"", "x", "Issued", false},
		{"Approved Failed", "x", "Issued", false},
	} {
		obj := object(conditions(test.conditions), certificate([]byte(test.certificate)))
		what := fmt.Sprintf("%q, certificate %q", test.conditions, test.certificate)
		expect.Equal(t, what, []any{csr.StateOf(obj), csr.Undecided(obj)}, []any{test.want, test.undecided})
	}
}

// TestDeadlineOfATimeToCome checks decisions with a time after that of the API servers, which no API server has recorded: they count
// from now, and for at most a day after the creation.
func TestDeadlineOfATimeToCome(t *testing.T) {
	for _, test := range []struct{ age, ahead, want time.Duration }{ // want is from now
		{0, 8 * time.Hour, time.Hour},
		{2 * time.Hour, 6 * time.Minute, time.Hour},
		{2 * time.Hour, 0, time.Hour},
		{23*time.Hour + 30*time.Minute, 8 * time.Hour, 30 * time.Minute},
		{25 * time.Hour, 8 * time.Hour, -time.Hour},
		{25 * time.Hour, 0, time.Hour},
	} {
		for _, kind := range []string{"Approved", "Denied", "Failed"} {
			obj := object(conditions(kind))
			obj.CreationTimestamp = metav1.NewTime(now.Add(-test.age))
			obj.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(test.ahead))
			obj.Status.Conditions[0].LastUpdateTime = metav1.NewTime(now.Add(test.ahead))
			at, found := csr.RetentionPolicy{}.Deadline(obj, now)
			expect.Equal(t, fmt.Sprintf("%s, %+v", kind, test), []any{at.Sub(now), found}, []any{test.want, true})
		}
	}
}

// TestDeadline checks when a request is due, from now. It was created now. Conditions are added later, too.
func TestDeadline(t *testing.T) {
	const minute = time.Minute
	until := func(ends ...time.Duration) edit {
		return func(obj *request) {
			for _, end := range ends {
				obj.Status.Certificate = append(obj.Status.Certificate, certificateUntil(now.Add(end))...)
			}
		}
	}
	none, expired, soon := until(), until(-time.Hour), until(10*minute)
	usual := csr.Retention{} // zero is the default
	for name, test := range map[string]struct {
		conditions  string
		certificate edit
		policy      csr.Retention
		want        string // empty means never
	}{
		"pending, from creation":              {"", none, usual, "24h0m0s"},
		"issued without an approval":          {"", until(0), usual, "24h0m0s"},
		"approved, from the approval":         {"Approved", none, usual, "1h0m0s"},
		"denied":                              {"Denied@10m", none, usual, "1h10m0s"},
		"failed, never approved":              {"Failed@10m", none, usual, "1h10m0s"},
		"failed, whatever its status":         {"Failed=False@10m", none, usual, "1h10m0s"},
		"approved without a time":             {"Approved@", none, usual, ""},
		"approved without a time, and failed": {"Approved@ Failed@10m", none, usual, "1h10m0s"},
		"approved, and failed much later":     {"Approved Failed@70m", none, usual, "2h10m0s"},
		"approved, and failed without a time": {"Approved Failed@", none, usual, "1h0m0s"},
		"approved, a false failure":           {"Approved Failed=False@10m", none, usual, "1h0m0s"},
		"issued, and failed":                  {"Approved Failed@10m", until(24 * time.Hour), usual, "1h0m0s"},
		"denied, and failed later":            {"Denied Failed@10m", none, usual, "1h0m0s"},
		"issued":                              {"Approved", until(24 * time.Hour), usual, "1h0m0s"},
		"issued, has expired":                 {"Approved", expired, usual, "-1h0m0s"},
		"issued without a time, has expired":  {"Approved@", expired, usual, "-1h0m0s"},
		"not a certificate":                   {"Approved", certificate([]byte("garbage")), usual, "1h0m0s"},
		"a chain, of which the first counts":  {"Approved", until(10*minute, 0), usual, "10m0s"},

		"own approved":         {"Approved", none, csr.Retention{Approved: minute}, "1m0s"},
		"own denied":           {"Denied", none, csr.Retention{Denied: minute}, "1m0s"},
		"own failed":           {"Failed", none, csr.Retention{Failed: minute}, "1m0s"},
		"own failed, kept":     {"Approved Failed@10s", none, csr.Retention{Failed: 24 * time.Hour, Approved: 20 * time.Second}, "24h0m10s"},
		"own failed, short":    {"Approved Failed@10m", none, csr.Retention{Failed: minute}, "11m0s"},
		"own failed, for ever": {"Approved Failed@10s", none, csr.Retention{Failed: -1, Approved: minute}, ""},
		"own pending":          {"", none, csr.Retention{Pending: minute}, "1m0s"},
		"own expired":          {"Approved", soon, csr.Retention{Expired: minute}, "11m0s"},
		"negative is never":    {"", none, csr.Retention{Pending: -1}, ""},
		"negative for expired": {"Approved", expired, csr.Retention{Expired: -1}, "1h0m0s"},
	} {
		// The policy of the signer precedes the default.
		obj := object(conditions(test.conditions), test.certificate)
		signers := map[string]csr.Retention{obj.Spec.SignerName: test.policy, "example.com/other": {Pending: time.Second}}
		for _, policy := range []csr.RetentionPolicy{{Default: test.policy}, {Default: csr.Retention{Pending: time.Second}, Signers: signers}} {
			got := ""
			if at, ok := policy.Deadline(obj, now.Add(2*time.Hour)); ok {
				got = at.Sub(now).String()
			}
			expect.Equal(t, name+": due after", got, test.want)
		}
	}
	obj := object(func(obj *request) { obj.CreationTimestamp = metav1.Time{} })
	if at, ok := (csr.RetentionPolicy{}).Deadline(obj, now); ok || !at.IsZero() {
		t.Errorf("without a creation time: due at %s", at)
	}
}

// TestConditionTime checks when a condition was added, from the creation of its request at now. The client writes both times
// of a condition, and the API server sets those that it leaves out. It also records each write of a decision.
func TestConditionTime(t *testing.T) {
	const hour, unset = time.Hour, time.Duration(-1 << 62)
	timeAt := func(after time.Duration) (at metav1.Time) {
		if after != unset {
			at.Time = now.Add(after)
		}
		return at
	}
	for name, test := range map[string]struct{ update, transition, recorded, want time.Duration }{
		"kubectl is two hours behind":                       {-2 * hour, 0, 0, 0},
		"kubectl is 26 hours behind":                        {-26 * hour, 0, 0, 0},
		"kubectl is eight hours ahead":                      {8 * hour, 0, 0, 0},
		"waits ten hours, kubectl is two hours behind":      {8 * hour, 10 * hour, 10 * hour, 10 * hour},
		"waits ten hours, a client is two hours behind":     {8 * hour, 8 * hour, 10 * hour, 10 * hour},
		"waits ten hours, a client is eight hours ahead":    {18 * hour, 18 * hour, 10 * hour, 10 * hour},
		"no record, kubectl is two hours behind":            {8 * hour, 10 * hour, unset, 10 * hour},
		"no record, kubectl is eight hours ahead":           {18 * hour, 10 * hour, unset, 10 * hour},
		"no record, a client is eight hours ahead":          {18 * hour, 18 * hour, unset, 18 * hour},
		"no record, a client is behind the creation":        {-2 * hour, -26 * hour, unset, 0},
		"an API server before lastTransitionTime":           {hour, unset, unset, hour},
		"an API server before lastTransitionTime, is early": {-hour, unset, unset, 0},
		"a record that somebody dates before the creation":  {0, 0, -5 * hour, 0},
		"no time":                   {unset, unset, unset, unset},
		"a time in the record only": {unset, unset, hour, hour},
	} {
		for _, kind := range []certificatesv1.RequestConditionType{"Approved", "Denied", "Failed"} {
			obj := object(conditions(string(kind)))
			obj.Status.Conditions[0].LastUpdateTime, obj.Status.Conditions[0].LastTransitionTime = timeAt(test.update), timeAt(test.transition)
			early, late, recorded := timeAt(-9*hour), timeAt(30*hour), timeAt(test.recorded)
			const added = `{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"%s\"}":{".":{},"f:lastTransitionTime":{},"f:lastUpdateTime":{}}}}}`
			for _, entry := range []metav1.ManagedFieldsEntry{ // only the third one tells
				{Time: &early, FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(added, kind))},
				{Time: &late, Subresource: "approval", FieldsV1: metav1.NewFieldsV1(strings.Replace(fmt.Sprintf(added, kind), `{".":{},"f:last`, `{"f:last`, 1))},
				{Time: &recorded, Subresource: "approval", FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(added, kind))},
				{Time: &late, Subresource: "approval", FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(added, "Other"))},
				{Time: &late, Subresource: "approval", FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"k:{\"type\":\"%s\"}":{".":{}}}}`, kind))},
				{Subresource: "approval"}, {Time: &late, Subresource: "approval"},
			} {
				if test.recorded != unset || entry.Time != &recorded {
					obj.ManagedFields = append(obj.ManagedFields, entry)
				}
			}
			if kind == "Failed" && test.recorded != unset { // API servers record no times of a failure
				continue
			}
			for form, obj := range map[string]*request{"whole": obj, "in the cache": transformed(csr.Trim{}, obj)} {
				what := fmt.Sprintf("%s, %s, %s", name, kind, form)
				expect.Equal(t, what, csr.ConditionTime(obj, kind), timeAt(test.want).Time)
				if kind == "Approved" {
					expect.Equal(t, what+": approved", csr.ApprovedAt(obj), timeAt(test.want).Time)
				}
				for _, age := range []time.Duration{0, test.want} { // a time after that of the API servers is nobody's
					want := time.Hour
					if test.want <= age+5*time.Minute {
						want += test.want
					}
					if at, ok := (csr.RetentionPolicy{}).Deadline(obj, now.Add(age)); ok != (test.want != unset) || ok && at.Sub(now) != want {
						t.Errorf("%s: at the age of %s, it is due after %s, %t; want %s", what, age, at.Sub(now), ok, want)
					}
				}
			}
		}
	}
}

// TestPause checks that the pause equals the age, but is at least a second and at most five minutes.
func TestPause(t *testing.T) {
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, time.Second: time.Second, 90 * time.Second: 90 * time.Second,
		5 * time.Minute: 5 * time.Minute, 24 * time.Hour: 5 * time.Minute,
	} {
		expect.Equal(t, "the pause of a request of "+age.String(), csr.Pause(age), want)
	}
}

// TestBuiltinSigners checks the names of the built-in signers, and which of them need a CA that API servers trust.
func TestBuiltinSigners(t *testing.T) {
	want := []string{"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}
	expect.Equal(t, "names", csr.BuiltinSigners(), want)
	for i, name := range append(want, "example.com/custom") {
		signer, found := csr.BuiltinSigner(name)
		if found != (i < 3) || found && signer.Name != name || csr.VerifiedByAPIServers(name) != (i < 2) {
			t.Errorf("%s: %t, %+v, clients authenticate to API servers with it: %t", name, found, signer, csr.VerifiedByAPIServers(name))
		}
	}
}
