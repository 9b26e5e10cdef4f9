package approver

import (
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// serving returns the smallest request that the rule approves, with its facts.
func serving() (*csr.Request, *servingFacts) {
	req := &csr.Request{
		SignerName: "kubernetes.io/kubelet-serving",
		Requester:  csr.Requester{Username: "system:node:a", Groups: []string{"system:nodes", "system:authenticated"}},
		Usages:     []certificatesv1.KeyUsage{"digital signature", "server auth"},
		Cert: ca.Request{
			Subject:     pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
			IPAddresses: []net.IP{net.ParseIP("10.0.0.1")},
		},
	}
	address := san.Parse("10.0.0.1")
	return req, &servingFacts{
		Found: inventory.Found{Entry: &inventory.Entry{Source: "Node a", SANs: []san.SAN{address}}}, names: []nameFacts{{san: address}},
	}
}

// judgeGiven judges req with given facts instead of lookups.
func judgeGiven(t testing.TB, req *csr.Request, facts servingFacts) Decision {
	t.Helper()
	decision, err := judgeServing(req, func(known *servingFacts) error { *known = facts; return nil }, func(*servingFacts) error { return nil })
	if err != nil {
		t.Error(err)
	}
	return decision
}

// TestServingIsJudgedStepByStep checks that each step runs only if the steps before it found no violation. An error is
// no decision.
func TestServingIsJudgedStepByStep(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		change          func(*csr.Request, *servingFacts)
		lookUp, compare error
		want            string // the steps that ran
	}{
		"all steps":                {change: func(*csr.Request, *servingFacts) {}, want: "look up, compare, Approve"},
		"its content is refused":   {change: func(req *csr.Request, _ *servingFacts) { req.Usages = nil }, want: "Deny"},
		"no source knows the node": {change: func(_ *csr.Request, facts *servingFacts) { facts.Entry = nil }, want: "look up, Wait"},
		"the lookup fails":         {change: func(*csr.Request, *servingFacts) {}, lookUp: down, want: "look up, down"},
		"the comparison fails":     {change: func(*csr.Request, *servingFacts) {}, compare: down, want: "look up, compare, down"},
	} {
		req, facts := serving()
		test.change(req, facts)
		var steps []string
		decision, err := judgeServing(req,
			func(known *servingFacts) error { steps, *known = append(steps, "look up"), *facts; return test.lookUp },
			func(*servingFacts) error { steps = append(steps, "compare"); return test.compare })
		if err != nil {
			steps = append(steps, err.Error())
		} else {
			steps = append(steps, decision.Verdict.String())
		}
		if got := strings.Join(steps, ", "); got != test.want || err != nil && decision != (Decision{}) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestServingApproves(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*csr.Request, *servingFacts){
		"the smallest request":           func(*csr.Request, *servingFacts) {},
		"key encipherment, as RSA needs": func(req *csr.Request, _ *servingFacts) { req.Usages = append(req.Usages, "key encipherment") },
		"usages in another order": func(req *csr.Request, _ *servingFacts) {
			req.Usages = []certificatesv1.KeyUsage{"server auth", "digital signature"}
		},
		"a DNS name": func(req *csr.Request, facts *servingFacts) {
			name := san.Parse("node-a")
			req.Cert.IPAddresses, req.Cert.DNSNames = nil, []string{"node-a"}
			facts.SANs, facts.names = []san.SAN{name}, []nameFacts{{san: name}}
		},
		"a DNS name and an address": func(req *csr.Request, facts *servingFacts) {
			name := san.Parse("node-a")
			req.Cert.DNSNames, facts.SANs, facts.names = []string{"node-a"}, append(facts.SANs, name), append(facts.names, nameFacts{san: name})
		},
		"fewer names than the node has": func(_ *csr.Request, facts *servingFacts) {
			facts.SANs = append(facts.SANs, san.Parse("node-a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, facts := serving()
			change(req, facts)
			if got := judgeGiven(t, req, *facts); got.Verdict != verdict.Approve || got.Reason != "AutoApproved" || got.Rule != "kubelet-serving" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestServingRefuses has a row for each single difference from the smallest request.
func TestServingRefuses(t *testing.T) {
	t.Parallel()
	type change = func(*csr.Request, *servingFacts)
	usages := func(all ...certificatesv1.KeyUsage) change {
		return func(req *csr.Request, _ *servingFacts) { req.Usages = all }
	}
	subject := func(name pkix.Name) change {
		return func(req *csr.Request, _ *servingFacts) { req.Cert.Subject = name }
	}
	nodes := []string{"system:nodes"}
	for name, test := range map[string]struct {
		change  change
		verdict verdict.Verdict
		reason  string
		parts   []string
	}{
		"a ServiceAccount": {func(req *csr.Request, _ *servingFacts) { req.Requester.Username = "system:serviceaccount:a:b" }, verdict.Deny, "RequesterNotNode", []string{`"system:serviceaccount:a:b"`}},
		"an IAM role":      {func(req *csr.Request, _ *servingFacts) { req.Requester.Username = "arn:aws:iam::1:role/node" }, verdict.Deny, "RequesterNotNode", []string{"arn:aws"}},
		"a user called test, with the group": {func(req *csr.Request, _ *servingFacts) {
			req.Requester.Username, req.Cert.Subject.CommonName = "test", "test"
		}, verdict.Deny, "RequesterNotNode", nil},
		"without the group system:nodes": {func(req *csr.Request, _ *servingFacts) { req.Requester.Groups = []string{"system:authenticated"} }, verdict.Deny, "RequesterNotNode", nil},
		"a similar group":                {func(req *csr.Request, _ *servingFacts) { req.Requester.Groups = []string{"system:nodes "} }, verdict.Deny, "RequesterNotNode", nil},
		"another node's name":            {func(req *csr.Request, _ *servingFacts) { req.Requester.Username = "system:node:b" }, verdict.Deny, "CommonNameMismatch", []string{`"system:node:a"`, `"system:node:b"`}},
		"upper case":                     {func(req *csr.Request, _ *servingFacts) { req.Requester.Username = "system:node:A" }, verdict.Deny, "CommonNameMismatch", nil},
		"no name": {func(req *csr.Request, _ *servingFacts) {
			req.Requester.Username, req.Cert.Subject.CommonName = "system:node:", "system:node:"
		}, verdict.Deny, "RequesterNotNode", []string{"common name"}},
		"no common name":                {subject(pkix.Name{Organization: nodes}), verdict.Deny, "CommonNameMismatch", nil},
		"no organization":               {subject(pkix.Name{CommonName: "system:node:a"}), verdict.Deny, "ShapeMismatch", nil},
		"two organizations":             {subject(pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes", "system:masters"}}), verdict.Deny, "ShapeMismatch", []string{"system:masters"}},
		"another organization":          {subject(pkix.Name{CommonName: "system:node:a", Organization: []string{"system:masters"}}), verdict.Deny, "ShapeMismatch", nil},
		"an organizational unit":        {subject(pkix.Name{CommonName: "system:node:a", Organization: nodes, OrganizationalUnit: []string{"x"}}), verdict.Deny, "UnexpectedContent", []string{"organizational unit"}},
		"a serial number":               {subject(pkix.Name{CommonName: "system:node:a", Organization: nodes, SerialNumber: "x"}), verdict.Deny, "UnexpectedContent", []string{"serial number"}},
		"no server auth":                {usages("digital signature", "key encipherment"), verdict.Deny, "UsagesNotPermitted", nil},
		"client auth":                   {usages("digital signature", "client auth"), verdict.Deny, "UsagesNotPermitted", nil},
		"server auth and client auth":   {usages("digital signature", "server auth", "client auth"), verdict.Deny, "UsagesNotPermitted", nil},
		"no digital signature":          {usages("server auth", "key encipherment"), verdict.Deny, "UsagesNotPermitted", nil},
		"code signing as a third usage": {usages("digital signature", "server auth", "code signing"), verdict.Deny, "UsagesNotPermitted", nil},
		"no usage":                      {usages(), verdict.Deny, "UsagesNotPermitted", nil},
		"an e-mail address":             {func(req *csr.Request, _ *servingFacts) { req.Cert.EmailAddresses = []string{"a@b"} }, verdict.Deny, "SANTypeNotPermitted", []string{"a@b"}},
		"a URI":                         {func(req *csr.Request, _ *servingFacts) { req.Cert.URIs = []*url.URL{{Scheme: "spiffe"}} }, verdict.Deny, "SANTypeNotPermitted", nil},
		"another kind of name":          {func(req *csr.Request, _ *servingFacts) { req.Dropped = []string{"subjectAltName otherName"} }, verdict.Deny, "UnexpectedContent", []string{"otherName"}},
		"CA:TRUE":                       {func(req *csr.Request, _ *servingFacts) { req.Dropped = []string{"extension 2.5.29.19"} }, verdict.Deny, "UnexpectedContent", []string{"2.5.29.19"}},
		"a name with a NUL byte": {func(req *csr.Request, _ *servingFacts) {
			req.Cert.DNSNames = []string{"victim.corp\x00.nodes.example.com"}
		}, verdict.Deny, "NameNotPermitted", []string{`["victim.corp\x00.nodes.example.com"]`}},
		"two names in one": {func(req *csr.Request, _ *servingFacts) {
			req.Cert.DNSNames = []string{"::ffff:10.0.0.1%, DNS:kubernetes.default.svc"}
		}, verdict.Deny, "NameNotPermitted", []string{`["::ffff:10.0.0.1%, DNS:kubernetes.default.svc"]`}},
		"an address in another form":                    {func(req *csr.Request, _ *servingFacts) { req.Cert.DNSNames = []string{"::ffff:10.0.0.1"} }, verdict.Deny, "NameNotPermitted", nil},
		"a name with two dots at its end":               {func(req *csr.Request, _ *servingFacts) { req.Cert.DNSNames = []string{"kubernetes.."} }, verdict.Deny, "NameNotPermitted", nil},
		"a name with an underscore":                     {func(req *csr.Request, _ *servingFacts) { req.Cert.DNSNames = []string{"a_b"} }, verdict.Deny, "UnexpectedContent", nil},
		"a name that some programs parse as an address": {func(req *csr.Request, _ *servingFacts) { req.Cert.DNSNames = []string{"127.1"} }, verdict.Deny, "UnexpectedContent", nil},
		"a name with a space":                           {func(req *csr.Request, _ *servingFacts) { req.Cert.DNSNames = []string{"a b"} }, verdict.Deny, "NameNotPermitted", nil},
		"no name at all":                                {func(req *csr.Request, _ *servingFacts) { req.Cert.IPAddresses = nil }, verdict.Deny, "SANMissing", nil},
		"a reserved address":                            {func(_ *csr.Request, facts *servingFacts) { facts.names[0].reserved = "a loopback address" }, verdict.Deny, "SANReserved", []string{"10.0.0.1 is a loopback address"}},
		"a Service's address":                           {func(_ *csr.Request, facts *servingFacts) { facts.names[0].taken = "Service default/x" }, verdict.Wait, "SANReserved", []string{"Service default/x"}},
		"an unknown node":                               {func(_ *csr.Request, facts *servingFacts) { facts.Entry = nil }, verdict.Wait, "NodeNotFound", []string{`"a"`}},
		"a source fails":                                {func(_ *csr.Request, facts *servingFacts) { facts.unavailable = "ask machine: down" }, verdict.Wait, "InventoryUnavailable", []string{"ask machine: down"}},
		"a source fails, unknown node":                  {func(_ *csr.Request, facts *servingFacts) { facts.Entry, facts.unavailable = nil, "down" }, verdict.Wait, "InventoryUnavailable", nil},
		"no addresses yet":                              {func(_ *csr.Request, facts *servingFacts) { facts.SANs = nil }, verdict.Wait, "AddressNotPublished", []string{"Node a"}},
		"another node's address": {func(_ *csr.Request, facts *servingFacts) {
			facts.SANs = []san.SAN{san.Parse("10.0.0.2")}
		}, verdict.Wait, "SANNotOwned", []string{`["10.0.0.1"]`, `["10.0.0.2"]`}},
		"contested": {func(_ *csr.Request, facts *servingFacts) { facts.names[0].contested = "Node b" }, verdict.Wait, "SANContested", []string{`10.0.0.1 is claimed by node "a" and by Node b`}},
		"another Node has the better claim": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].contest.Better = "b"
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is claimed by node "a" and by Node b, which has the better claim`}},
		"another Node reports it": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].contest = inventory.Contest{Equal: []string{"b"}, Reporters: 2}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is claimed by node "a" and by Node b with equal claims`, "delete the Node of a replaced machine", "a Machine, a static row or a webhook", `{namePattern: ".*", dnsNames: ["${node}"], addresses: ["10.0.0.1", CIDR of the nodes]}`}},
		"many Nodes report it": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].contest = inventory.Contest{Equal: []string{"b", "c"}, Reporters: 3}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is reported by 3 Nodes, for example "a" and b`, "none of them gets it", `{namePattern: ".*", dnsNames: ["${node}"], addresses: ["10.0.0.1", CIDR of the nodes]}`}},
		"the source gives it to two nodes": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].contest.Twice = "b"
		}, verdict.Wait, "SANContested", []string{`belongs to node "a" alone and to Node b alone, according to the same source`}},
		"left out": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].contest.LeftOut = &inventory.LeftOut{Nodes: [2]string{"b", "c"}, SANs: [2]san.SAN{san.Parse("10.0.0.2"), san.Parse("10.0.0.3")}}
		}, verdict.Wait, "SANContested", []string{`Node "a" is left out of the comparison`, "10.0.0.2, as Node b does, and 10.0.0.3, as Node c does"}},
		"an address of the API server": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].apiServer = "in the kubeconfig"
		}, verdict.Wait, "SANReserved", []string{"10.0.0.1 is a name or an address of the API server (in the kubeconfig)", "approval.kubeletServing.apiServerNodes"}},
		"shared by several nodes, not reported": {func(_ *csr.Request, facts *servingFacts) { facts.names[0].unpublished = true }, verdict.Wait, "AddressNotPublished", []string{`10.0.0.1 may belong to several nodes, according to`, `Node "a" does not report it`}},
		"shared by several nodes, and another owner": {func(_ *csr.Request, facts *servingFacts) {
			facts.names[0].unpublished, facts.names[0].contested = true, "Machine default/b"
		}, verdict.Wait, "SANContested", []string{"Machine default/b"}},
		"its machine has become another node": {func(_ *csr.Request, facts *servingFacts) {
			facts.Entry = &inventory.Entry{Source: "Machine default/m", Bound: "b"}
		}, verdict.Wait, "SANNotOwned", []string{`Machine default/m is node "b"`}},
		"reserved comes before not owned": {func(_ *csr.Request, facts *servingFacts) {
			facts.SANs, facts.names[0].reserved = nil, "a wildcard"
		}, verdict.Deny, "SANReserved", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, facts := serving()
			test.change(req, facts)
			got := judgeGiven(t, req, *facts)
			if got.Verdict != test.verdict || got.Reason != test.reason || got.Rule != "" {
				t.Errorf("%+v, want %s %s", got, test.verdict, test.reason)
			}
			advice := "; the request is checked again when this changes"
			switch {
			case test.verdict == verdict.Deny && test.reason == "SANReserved": // which names are reserved is configured
				advice = "; a new request is needed, or a configuration that permits this one"
			case test.verdict == verdict.Deny:
				advice = "; a new request is needed"
			}
			if !strings.HasSuffix(got.Message, advice) {
				t.Errorf("%q, want the advice %q at the end", got.Message, advice)
			}
			for _, part := range test.parts {
				if !strings.Contains(got.Message, part) {
					t.Errorf("%q is not in: %s", part, got.Message)
				}
			}
		})
	}
}

// TestServingTellsAllViolations checks that all violations are reported, and that a final violation decides.
func TestServingTellsAllViolations(t *testing.T) {
	t.Parallel()
	req, facts := serving()
	req.Usages, req.Cert.EmailAddresses, req.Dropped = nil, []string{"a@b"}, []string{"extension 1.2.3"}
	want := `the request for signer kubernetes.io/kubelet-serving is not approved: usages are [], but must be digital signature and server auth, with or without key encipherment; ` +
		`e-mail addresses ["a@b"] are not permitted; the request has content that no kubelet requests: ["extension 1.2.3"]; a new request is needed`
	if got := judgeGiven(t, req, *facts); got.Message != want || got.Verdict != verdict.Deny || got.Reason != "UsagesNotPermitted" {
		t.Errorf("%+v", got)
	}

	req, facts = serving()
	facts.names = append(facts.names, nameFacts{san: san.Parse("*"), reserved: "a wildcard"}, nameFacts{san: san.Parse("10.96.0.1"), taken: "Service default/kubernetes"})
	facts.names[0].taken = "Service a/b"
	if got := judgeGiven(t, req, *facts); got.Verdict != verdict.Deny || got.Reason != "SANReserved" || strings.Count(got.Message, ";") != 3 {
		t.Errorf("%+v", got)
	}
}
