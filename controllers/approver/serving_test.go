package approver

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// given holds what is known about a request.
type given struct {
	*inventory.Entry
	address nameFacts // of 10.0.0.1
	name    nameFacts // of any other value
	err     error     // of the lookup of the node
	nameErr error     // of the lookup of a name
	asked   []string  // the names that were looked up
}

func (g *given) of(value san.SAN) (nameFacts, error) {
	g.asked = append(g.asked, value.String())
	facts := g.name
	if value == san.Parse("10.0.0.1") {
		facts = g.address
	}
	facts.claim.NotOwned = !g.Owns(value)
	return facts, g.nameErr
}

// serving returns the smallest request that the rule approves, with its facts.
func serving() (*csr.Request, *given) {
	req := &csr.Request{
		SignerName: "kubernetes.io/kubelet-serving",
		Requester:  csr.Requester{Username: "system:node:a", Groups: []string{"system:nodes", "system:authenticated"}},
		Usages:     []certificatesv1.KeyUsage{"digital signature", "server auth"},
		Cert: ca.Request{
			Subject:     pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
			IPAddresses: []net.IP{net.ParseIP("10.0.0.1")},
		},
	}
	return req, &given{Entry: &inventory.Entry{Source: "Node a", SANs: sans("10.0.0.1")}}
}

// judgeGiven judges req with facts instead of lookups.
func judgeGiven(req *csr.Request, facts *given) Decision {
	return judgeServing(req, reservedInTests, func() (servingFacts, error) {
		facts.asked = append(facts.asked, "the node")
		return servingFacts{Found: inventory.Found{Entry: facts.Entry}, of: facts.of}, facts.err
	})
}

var reservedInTests = san.Reserved{ClusterDomain: "cluster.local", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}

// TestServingIsJudgedStepByStep checks that each step looks up only what it needs, after the steps before it found no
// violation.
func TestServingIsJudgedStepByStep(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*csr.Request, *given)
		want   string // what was looked up, and the decision
	}{
		"all steps":                {func(*csr.Request, *given) {}, "the node, 10.0.0.1, Approve AutoApproved"},
		"its content is refused":   {func(req *csr.Request, _ *given) { req.Usages = nil }, "Deny UsagesNotPermitted"},
		"its name is reserved":     {func(req *csr.Request, _ *given) { req.Cert.DNSNames = []string{"kubernetes"} }, "Deny SANReserved"},
		"no source knows the node": {func(_ *csr.Request, facts *given) { facts.Entry = nil }, "the node, Wait NodeNotFound"},
		"the lookup fails":         {func(_ *csr.Request, facts *given) { facts.err = errors.New("down") }, "the node, Wait InventoryUnavailable"},
		"a source is busy": {func(_ *csr.Request, facts *given) {
			facts.err = &inventory.Unavailable{Source: "webhook", Cause: inventory.ErrBusy}
		}, "the node, Wait InventoryPending"},
		"a source is only starting":    {func(_ *csr.Request, facts *given) { facts.err = fmt.Errorf("nodes: %w", informer.ErrNotRead) }, "the node, Wait InventoryPending"},
		"the lookup of a name fails":   {func(_ *csr.Request, facts *given) { facts.nameErr = errors.New("down") }, "the node, 10.0.0.1, Wait InventoryUnavailable"},
		"Services are only being read": {func(_ *csr.Request, facts *given) { facts.nameErr = informer.ErrNotRead }, "the node, 10.0.0.1, Wait InventoryPending"},
		"a Service has the first of two": {func(req *csr.Request, facts *given) {
			req.Cert.IPAddresses = append(req.Cert.IPAddresses, net.ParseIP("10.0.0.2"))
			facts.address.service = "Service default/x"
		}, "the node, 10.0.0.1, Wait SANReserved"},
	} {
		req, facts := serving()
		test.change(req, facts)
		decision := judgeGiven(req, facts)
		got := strings.Join(append(facts.asked, fmt.Sprintf("%s %s", decision.Verdict, decision.Reason)), ", ")
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestServingListsTheFirstForeignNames checks that a refusal lists a bounded number of names, and that the others are
// not looked up.
func TestServingListsTheFirstForeignNames(t *testing.T) {
	t.Parallel()
	for _, count := range []int{mostRefused, mostRefused + 1, 900} {
		req, facts := serving()
		for i := range count {
			req.Cert.IPAddresses = append(req.Cert.IPAddresses, net.IPv4(10, 1, byte(i>>8), byte(i)))
		}
		got := judgeGiven(req, facts)
		if got.Reason != "SANNotOwned" || strings.Count(got.Message, `"10.1.`) != mostRefused || len(facts.asked) != mostRefused+2 {
			t.Errorf("of %d foreign names, %d lookups: %+v", count, len(facts.asked), got)
		}
		req.Cert.IPAddresses = nil
		for i := range count {
			req.Cert.DNSNames = append(req.Cert.DNSNames, fmt.Sprintf("%d.cluster.local", i))
		}
		if got := judgeGiven(req, facts); got.Reason != "SANReserved" || strings.Count(got.Message, ".cluster.local is ") != mostRefused {
			t.Errorf("of %d reserved names: %+v", count, got)
		}
	}
}

func TestServingApproves(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*csr.Request, *given){
		"the smallest request":           func(*csr.Request, *given) {},
		"key encipherment, as RSA needs": func(req *csr.Request, _ *given) { req.Usages = append(req.Usages, "key encipherment") },
		"usages in another order": func(req *csr.Request, _ *given) {
			req.Usages = []certificatesv1.KeyUsage{"server auth", "digital signature"}
		},
		"a DNS name": func(req *csr.Request, facts *given) {
			req.Cert.IPAddresses, req.Cert.DNSNames, facts.SANs = nil, []string{"node-a"}, sans("node-a")
		},
		"a DNS name and an address": func(req *csr.Request, facts *given) {
			req.Cert.DNSNames, facts.SANs = []string{"node-a"}, sans("10.0.0.1", "node-a")
		},
		"fewer names than the node has": func(_ *csr.Request, facts *given) {
			facts.SANs = append(facts.SANs, san.Parse("node-a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, facts := serving()
			change(req, facts)
			if got := judgeGiven(req, facts); got.Verdict != verdict.Approve || got.Reason != "AutoApproved" || got.Rule != "kubelet-serving" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestServingRefuses has a row for each single difference from the smallest request.
func TestServingRefuses(t *testing.T) {
	t.Parallel()
	type change = func(*csr.Request, *given)
	usages := func(all ...certificatesv1.KeyUsage) change {
		return func(req *csr.Request, _ *given) { req.Usages = all }
	}
	subject := func(name pkix.Name) change {
		return func(req *csr.Request, _ *given) { req.Cert.Subject = name }
	}
	nodes := []string{"system:nodes"}
	for name, test := range map[string]struct {
		change  change
		verdict verdict.Verdict
		reason  string
		parts   []string
	}{
		"a ServiceAccount": {func(req *csr.Request, _ *given) { req.Requester.Username = "system:serviceaccount:a:b" }, verdict.Deny, "RequesterNotNode", []string{`"system:serviceaccount:a:b"`}},
		"an IAM role":      {func(req *csr.Request, _ *given) { req.Requester.Username = "arn:aws:iam::1:role/node" }, verdict.Deny, "RequesterNotNode", []string{"arn:aws"}},
		"a user called test, with the group": {func(req *csr.Request, _ *given) {
			req.Requester.Username, req.Cert.Subject.CommonName = "test", "test"
		}, verdict.Deny, "RequesterNotNode", nil},
		"without the group system:nodes": {func(req *csr.Request, _ *given) { req.Requester.Groups = []string{"system:authenticated"} }, verdict.Deny, "RequesterNotNode", nil},
		"a similar group":                {func(req *csr.Request, _ *given) { req.Requester.Groups = []string{"system:nodes "} }, verdict.Deny, "RequesterNotNode", nil},
		"another node's name":            {func(req *csr.Request, _ *given) { req.Requester.Username = "system:node:b" }, verdict.Deny, "CommonNameMismatch", []string{`"system:node:a"`, `"system:node:b"`}},
		"upper case":                     {func(req *csr.Request, _ *given) { req.Requester.Username = "system:node:A" }, verdict.Deny, "CommonNameMismatch", nil},
		"no name": {func(req *csr.Request, _ *given) {
			req.Requester.Username, req.Cert.Subject.CommonName = "system:node:", "system:node:"
		}, verdict.Deny, "RequesterNotNode", []string{"common name"}},
		"no common name":                {subject(pkix.Name{Organization: nodes}), verdict.Deny, "CommonNameMismatch", nil},
		"no organization":               {subject(pkix.Name{CommonName: "system:node:a"}), verdict.Deny, "ShapeMismatch", nil},
		"two organizations":             {subject(pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes", "system:masters"}}), verdict.Deny, "ShapeMismatch", []string{"system:masters"}},
		"another organization":          {subject(pkix.Name{CommonName: "system:node:a", Organization: []string{"system:masters"}}), verdict.Deny, "ShapeMismatch", nil},
		"an organizational unit":        {subject(pkix.Name{CommonName: "system:node:a", Organization: nodes, OrganizationalUnit: []string{"x"}}), verdict.Deny, "UnexpectedContent", []string{"OU=x"}},
		"a serial number":               {subject(pkix.Name{CommonName: "system:node:a", Organization: nodes, SerialNumber: "x"}), verdict.Deny, "UnexpectedContent", []string{"SERIALNUMBER=x"}},
		"no server auth":                {usages("digital signature", "key encipherment"), verdict.Deny, "UsagesNotPermitted", nil},
		"client auth":                   {usages("digital signature", "client auth"), verdict.Deny, "UsagesNotPermitted", nil},
		"server auth and client auth":   {usages("digital signature", "server auth", "client auth"), verdict.Deny, "UsagesNotPermitted", nil},
		"no digital signature":          {usages("server auth", "key encipherment"), verdict.Deny, "UsagesNotPermitted", nil},
		"code signing as a third usage": {usages("digital signature", "server auth", "code signing"), verdict.Deny, "UsagesNotPermitted", nil},
		"no usage":                      {usages(), verdict.Deny, "UsagesNotPermitted", nil},
		"an e-mail address":             {func(req *csr.Request, _ *given) { req.Cert.EmailAddresses = []string{"a@b"} }, verdict.Deny, "SANTypeNotPermitted", []string{"a@b"}},
		"a URI":                         {func(req *csr.Request, _ *given) { req.Cert.URIs = []*url.URL{{Scheme: "spiffe"}} }, verdict.Deny, "SANTypeNotPermitted", nil},
		"another kind of name":          {func(req *csr.Request, _ *given) { req.Dropped = []string{"subjectAltName otherName"} }, verdict.Deny, "UnexpectedContent", []string{"otherName"}},
		"CA:TRUE":                       {func(req *csr.Request, _ *given) { req.Dropped = []string{"extension 2.5.29.19"} }, verdict.Deny, "UnexpectedContent", []string{"2.5.29.19"}},
		"a name with a NUL byte": {func(req *csr.Request, _ *given) {
			req.Cert.DNSNames = []string{"victim.corp\x00.nodes.example.com"}
		}, verdict.Deny, "NameNotPermitted", []string{`["victim.corp\x00.nodes.example.com"]`}},
		"two names in one": {func(req *csr.Request, _ *given) {
			req.Cert.DNSNames = []string{"::ffff:10.0.0.1%, DNS:kubernetes.default.svc"}
		}, verdict.Deny, "NameNotPermitted", []string{`["::ffff:10.0.0.1%, DNS:kubernetes.default.svc"]`}},
		"an address in another form":                    {func(req *csr.Request, _ *given) { req.Cert.DNSNames = []string{"::ffff:10.0.0.1"} }, verdict.Deny, "NameNotPermitted", nil},
		"a name with two dots at its end":               {func(req *csr.Request, _ *given) { req.Cert.DNSNames = []string{"kubernetes.."} }, verdict.Deny, "NameNotPermitted", nil},
		"a name with an underscore":                     {func(req *csr.Request, _ *given) { req.Cert.DNSNames = []string{"a_b"} }, verdict.Deny, "UnexpectedContent", nil},
		"a name that some programs parse as an address": {func(req *csr.Request, _ *given) { req.Cert.DNSNames = []string{"127.1"} }, verdict.Deny, "UnexpectedContent", nil},
		"a name with a space":                           {func(req *csr.Request, _ *given) { req.Cert.DNSNames = []string{"a b"} }, verdict.Deny, "NameNotPermitted", nil},
		"no name at all":                                {func(req *csr.Request, _ *given) { req.Cert.IPAddresses = nil }, verdict.Deny, "SANMissing", nil},
		"a reserved address": {func(req *csr.Request, _ *given) {
			req.Cert.IPAddresses = []net.IP{net.ParseIP("127.0.0.1")}
		}, verdict.Deny, "SANReserved", []string{"127.0.0.1 is a loopback address"}},
		"a reserved name that is not owned": {func(req *csr.Request, facts *given) {
			facts.SANs, req.Cert.DNSNames = nil, []string{"*.example.com"}
		}, verdict.Deny, "SANReserved", []string{"*.example.com is a wildcard"}},
		"a Service's address": {func(_ *csr.Request, facts *given) { facts.address.service = "Service default/x" }, verdict.Wait, "SANReserved", []string{"10.0.0.1 is a name or an address of Service default/x"}},
		"a Service's address that is not owned": {func(_ *csr.Request, facts *given) {
			facts.SANs, facts.address.service = sans("10.0.0.2"), "Service default/x"
		}, verdict.Wait, "SANReserved", []string{"Service default/x"}},
		"an address of the API server": {func(_ *csr.Request, facts *given) {
			facts.address.apiServer = "in the kubeconfig"
		}, verdict.Wait, "SANReserved", []string{"10.0.0.1 is a name or an address of the API server (in the kubeconfig)", "approval.kubeletServing.apiServerNodes"}},
		"an unknown node":  {func(_ *csr.Request, facts *given) { facts.Entry = nil }, verdict.Wait, "NodeNotFound", []string{`"a"`}},
		"a source fails":   {func(_ *csr.Request, facts *given) { facts.err = errors.New("ask machine: down") }, verdict.Wait, "InventoryUnavailable", []string{"ask machine: down"}},
		"no addresses yet": {func(_ *csr.Request, facts *given) { facts.SANs = nil }, verdict.Wait, "AddressNotPublished", []string{"Node a"}},
		"another node's address": {func(_ *csr.Request, facts *given) {
			facts.SANs = sans("10.0.0.2")
		}, verdict.Wait, "SANNotOwned", []string{`["10.0.0.1"] do not belong to node "a": Node a has ["10.0.0.2"]`}},
		"a stronger entry gives it to another node": {func(_ *csr.Request, facts *given) {
			facts.address.claim.Owner = "Machine default/b"
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is claimed by node "a" and by Machine default/b, which`}},
		"another Node reports it": {func(_ *csr.Request, facts *given) {
			facts.address.claim = inventory.Claim{Other: "b", Nodes: 2}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is claimed by node "a" and by Node b, so neither gets it`, "delete the Node of a replaced machine", "block list", "a Machine, a static row or a webhook"}},
		"it is the name of another Node": {func(req *csr.Request, facts *given) {
			facts.address.claim = inventory.Claim{Other: "10.0.0.1", Named: true, Nodes: 2}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is claimed by node "a", and it is the name of another Node, which keeps it`}},
		"many Nodes report it": {func(_ *csr.Request, facts *given) {
			facts.address.claim = inventory.Claim{Other: "b", Nodes: 3}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is reported by 3 Nodes, for example "a" and b`, "none of them gets it", `{namePattern: ".*", dnsNames: ["${node}"], addresses: ["10.0.0.1", CIDR of the nodes]}`}},
		"ten Nodes report it": {func(_ *csr.Request, facts *given) {
			facts.address.claim = inventory.Claim{Other: "b", Nodes: mostCounted}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is reported by 10 Nodes`}},
		"all Nodes report it": {func(_ *csr.Request, facts *given) {
			facts.address.claim = inventory.Claim{Other: "b", Nodes: mostCounted + 1}
		}, verdict.Wait, "SANContested", []string{`10.0.0.1 is reported by more than 10 Nodes`}},
		"a name that many Nodes report": {func(req *csr.Request, facts *given) {
			req.Cert.IPAddresses, req.Cert.DNSNames, facts.SANs = nil, []string{"lb.test"}, sans("lb.test")
			facts.name.claim = inventory.Claim{Other: "b", Nodes: 3}
		}, verdict.Wait, "SANContested", []string{`{namePattern: ".*", dnsNames: ["${node}", "lb.test"], addresses: [CIDR of the nodes]}`}},
		"shared by several nodes, not reported": {func(_ *csr.Request, facts *given) {
			facts.address.claim.NotReported = true
		}, verdict.Wait, "AddressNotPublished", []string{`10.0.0.1 may belong to several nodes, according to Node a`, `Node "a" does not report it`}},
		"its machine has become another node": {func(_ *csr.Request, facts *given) {
			facts.Entry = &inventory.Entry{Source: "Machine default/m", Bound: "b"}
		}, verdict.Wait, "SANNotOwned", []string{`Machine default/m is node "b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, facts := serving()
			test.change(req, facts)
			got := judgeGiven(req, facts)
			if got.Verdict != test.verdict || got.Reason != test.reason || got.Rule != "" {
				t.Errorf("%+v, want %s %s", got, test.verdict, test.reason)
			}
			advice := "; the request is checked again when this changes, or within five minutes"
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
	if got := judgeGiven(req, facts); got.Message != want || got.Verdict != verdict.Deny || got.Reason != "UsagesNotPermitted" {
		t.Errorf("%+v", got)
	}

	// A name that another object has is told beside the names that are not owned.
	req, facts = serving()
	req.Cert.DNSNames, facts.address.service = []string{"x", "y"}, "Service a/b"
	want = `the request for signer kubernetes.io/kubelet-serving is not approved: ["x" "y"] do not belong to node "a": Node a has ["10.0.0.1"]; ` +
		`add them there if they are the node's; 10.0.0.1 is a name or an address of Service a/b, which no node can have: delete the Service if it is the node's; ` +
		`the request is checked again when this changes, or within five minutes`
	if got := judgeGiven(req, facts); got.Message != want || got.Verdict != verdict.Wait || got.Reason != "SANNotOwned" {
		t.Errorf("%+v\nwant %s", got, want)
	}
}

// TestNamesOfTheNode checks which names no Service takes from a node.
func TestNamesOfTheNode(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"ip-10-0-0-1": true, "ip-10-0-0-1.ec2.internal": true, "IP-10-0-0-1.ec2.internal.": true, "ip-10-0-0-1.ec2.internal.example.com": true,
		"ip-10-0-0-1.ec2": false, "ip-10-0-0-10.ec2.internal": false, "xip-10-0-0-1.ec2.internal": false, "ec2.internal": false, "ec2": false,
		"ip-10-0-0-1.ec2.internalx": false, "10.0.0.1": false,
	} {
		if got := ofNode("ip-10-0-0-1.ec2.internal", san.Parse(name)); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
	// A node may be named by an address, or by a text that no Node can have. It does not get the address of a Service.
	for _, node := range []string{"10.96.0.10", ".x", ""} {
		if ofNode(node, san.Parse("10.96.0.10")) {
			t.Errorf("node %q takes the address of a Service", node)
		}
	}
}
