package approver

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// input is bad or surprising content from practice, with its outcome. The signer's TestInputs and a test in
// test/integration, with a real API server, use the same numbers.
type input struct {
	name   string
	obj    *request
	world  *known
	grants []string // of the requester
	want   string
}

func TestInputs(t *testing.T) {
	t.Parallel()
	for _, list := range [][]input{requesterInputs(t), nameInputs(t), formInputs(t), contentInputs(t), signerInputs(t), stateInputs(t), encodingInputs(t)} {
		for _, test := range list {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				if test.world == nil {
					test.world = newKnown()
				}
				for _, denial := range []Denial{DenialNever, DenialPermanent} {
					p := newParts(t, test.obj).knowing(test.world)
					p.reconciler.Denial, p.grants = denial, test.grants
					want := test.want
					if denial == DenialNever { // reported, but not denied
						want = strings.Replace(want, "Denied", "Ignored", 1)
					}
					if got := p.outcome(t); got != want {
						t.Errorf("denial %s: %s, want %s", denial, got, want)
					}
					if test.obj.Spec.SignerName == servingSigner && len(p.reviews) > 0 {
						t.Errorf("denial %s: asks who may %v", denial, p.reviews)
					}
				}
			})
		}
	}
}

func requesterInputs(t *testing.T) []input {
	own := []string{"10.0.0.1"}
	rights := []string{"selfnodeclient", "nodeclient"}
	return []input{
		{name: "01 serving for a node by another", obj: asks(t, own, user("system:node:b")), want: "Denied CommonNameMismatch"},
		{name: "02 serving by a ServiceAccount", obj: asks(t, own, user("system:serviceaccount:kube-system:x")), want: "Denied RequesterNotNode"},
		{name: "02 serving by test", obj: asks(t, own, user("test")), want: "Denied RequesterNotNode"},
		{name: "02 serving by an IAM role", obj: asks(t, own, user("arn:aws:sts::1:assumed-role/node/i-0")), want: "Denied RequesterNotNode"},
		{name: "14 a webhook with a node's common name", obj: asks(t, nil, user("system:serviceaccount:ns:svc"), says(t, nodeTemplate("svc.ns.svc", "svc.ns.svc"))), grants: rights, want: "Denied RequesterNotNode"},
		{name: "22 a node for another node", obj: object(t, user("system:node:b")), grants: []string{"selfnodeclient"}, want: "Waits NotAuthorized"},
	}
}

func nameInputs(t *testing.T) []input {
	many := []string{"10.0.0.1", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14", "2001:db8::1", "a.example.com", "ip-10-0-0-1.ec2.internal", "ec2-1.compute.amazonaws.com"}
	reported := func(name string) input {
		return input{name: "03 reserved, though reported: " + name, obj: asks(t, []string{"10.0.0.1", name}), world: newKnown(name), want: "Denied SANReserved"}
	}
	service := reported("10.97.0.1")
	service.want = "Waits SANReserved" // a Service may be deleted
	return []input{
		reported("kubernetes.default.svc"), reported("kubernetes"), reported("10.96.0.1"), reported("192.0.2.100"), reported("API.example.com."), service,
		{name: "04 another node's address", obj: asks(t, []string{"10.0.0.2"}), want: "Waits SANNotOwned"},
		{name: "04 another node's name", obj: asks(t, []string{"10.0.0.1", "b.example.com"}), want: "Waits SANNotOwned"},
		{name: "05 no such node", obj: asks(t, nil, user("system:node:gone"), says(t, nodeTemplate("gone", "10.0.0.1"))), want: "Waits NodeNotFound"},
		{name: "06 no name", obj: asks(t, nil), want: "Denied SANMissing"},
		{name: "06 DNS only", obj: asks(t, []string{"a.example.com"}), want: "Approved"},
		{name: "06 address only", obj: asks(t, []string{"10.0.0.1"}), want: "Approved"},
		{name: "06 the node's name is its address", obj: asks(t, nil, user("system:node:10.0.0.1"), says(t, nodeTemplate("10.0.0.1", "10.0.0.1"))),
			world: &known{nodes: map[string]*inventory.Entry{"10.0.0.1": {Source: "Node 10.0.0.1", SANs: sans("10.0.0.1")}}}, want: "Approved"},
		{name: "07 many names, all owned", obj: asks(t, many), world: newKnown(many...), want: "Approved"},
		{name: "07 many names, one of them not", obj: asks(t, many), world: newKnown(many[:8]...), want: "Waits SANNotOwned"},
	}
}

func formInputs(t *testing.T) []input {
	mapped := nodeTemplate("a")
	names, err := asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 7, Bytes: net.ParseIP("10.0.0.1").To16()}})
	if err != nil {
		t.Fatal(err)
	}
	mapped.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: names}}
	short := newKnown()
	short.nodes["a"].ShortNames = true
	return []input{
		{name: "09 short common name, full name", obj: asks(t, []string{"a.example.com"}), want: "Approved"},
		{name: "09 short name that the source lacks", obj: asks(t, []string{"a"}), want: "Waits SANNotOwned"},
		{name: "09 short name that the source has", obj: asks(t, []string{"a"}), world: short, want: "Approved"},
		{name: "09 upper case", obj: asks(t, []string{"A.Example.COM"}), want: "Approved"},
		{name: "09 trailing dot", obj: asks(t, []string{"a.example.com."}), want: "Approved"},
		{name: "09 IPv4-mapped address", obj: asks(t, nil, says(t, mapped)), want: "Approved"},
		{name: "09 IPv6 in full against compressed", obj: asks(t, []string{"2001:0db8:0000::0001"}), world: newKnown("2001:db8::1"), want: "Approved"},
		{name: "09 the source has an address with a zone", obj: asks(t, []string{"2001:db8::1"}), world: newKnown("2001:db8::1%eth0"), want: "Waits SANNotOwned"},
		{name: "09 an address with a zone as a name", obj: asks(t, nil, says(t, func() *x509.CertificateRequest {
			template := nodeTemplate("a")
			template.DNSNames = []string{"2001:db8::1%eth0"}
			return template
		}())), want: "Denied NameNotPermitted"},
		{name: "09 two names in one", obj: asks(t, nil, says(t, func() *x509.CertificateRequest {
			template := nodeTemplate("a")
			template.DNSNames = []string{"::ffff:10.0.0.1%, DNS:kubernetes.default.svc"}
			return template
		}())), want: "Denied NameNotPermitted"},
		{name: "09 an address as a name", obj: asks(t, nil, says(t, func() *x509.CertificateRequest {
			template := nodeTemplate("a")
			template.DNSNames = []string{"10.0.0.1", "2001:db8::1"}
			return template
		}())), world: newKnown("2001:db8::1"), want: "Approved"},
		{name: "10 with key encipherment, in another order", obj: asks(t, []string{"10.0.0.1"}, usagesAre("server auth", "key encipherment", "digital signature")), want: "Approved"},
		{name: "10 without key encipherment", obj: asks(t, []string{"10.0.0.1"}, usagesAre("server auth", "digital signature")), want: "Approved"},
		{name: "10 client, with key encipherment", obj: object(t, usagesAre("client auth", "key encipherment", "digital signature")), grants: []string{"nodeclient"}, want: "Approved"},
		{name: "11 client auth for serving", obj: asks(t, []string{"10.0.0.1"}, usagesAre("digital signature", "client auth")), want: "Denied UsagesNotPermitted"},
		{name: "11 server auth for a client", obj: object(t, usagesAre("digital signature", "server auth")), grants: []string{"nodeclient"}, want: "Denied ShapeMismatch"},
	}
}

func contentInputs(t *testing.T) []input {
	own := nodeTemplate("a", "10.0.0.1")
	with := func(change func(*x509.CertificateRequest)) func(*request) {
		changed := *own
		change(&changed)
		return says(t, &changed)
	}
	isCA := with(func(r *x509.CertificateRequest) {
		r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}
	})
	node, nodes := commonName("system:node:a"), organization("system:nodes")
	return []input{
		{name: "12 CA:TRUE", obj: asks(t, nil, isCA), want: "Denied UnexpectedContent"},
		{name: "12 an extension of its own", obj: asks(t, nil, with(func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}
		})), want: "Denied UnexpectedContent"},
		{name: "12 a URI", obj: asks(t, nil, with(func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} })), want: "Denied SANTypeNotPermitted"},
		{name: "12 an e-mail address", obj: asks(t, nil, with(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@example.com"} })), want: "Denied SANTypeNotPermitted"},
		{name: "13 system:masters", obj: asks(t, nil, subjectOf(t, organization("system:masters"), node)), want: "Denied ShapeMismatch"},
		{name: "13 system:nodes and system:masters", obj: asks(t, nil, subjectOf(t, nodes, organization("system:masters"), node)), want: "Denied ShapeMismatch"},
		{name: "13 system:nodes twice", obj: asks(t, nil, subjectOf(t, nodes, nodes, node)), want: "Denied ShapeMismatch"},
		{name: "13 empty common name", obj: asks(t, nil, subjectOf(t, nodes, commonName(""))), want: "Denied CommonNameMismatch"},
		{name: "13 no common name", obj: asks(t, nil, subjectOf(t, nodes)), want: "Denied CommonNameMismatch"},
		{name: "13 another common name before", obj: asks(t, nil, subjectOf(t, nodes, commonName("system:node:b"), node)), want: "Denied UnexpectedContent"},
		{name: "13 another common name after", obj: asks(t, nil, subjectOf(t, nodes, node, commonName("system:node:b"))), want: "Denied CommonNameMismatch"},
		{name: "13 a node without a name", obj: asks(t, nil, user("system:node:"), subjectOf(t, nodes, commonName("system:node:"))), want: "Denied RequesterNotNode"},
		{name: "13 client with system:masters", obj: object(t, says(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes", "system:masters"}}})),
			grants: []string{"nodeclient"}, want: "Denied ShapeMismatch"},
		{name: "13 client without a common name", obj: object(t, says(t, &x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}}})),
			grants: []string{"nodeclient"}, want: "Denied ShapeMismatch"},
	}
}

func signerInputs(t *testing.T) []input {
	var all []input
	for _, name := range []string{
		"kubernetes.io/unknown", "kubernetes.io/legacy-unknown", "beta.eks.amazonaws.com/app-serving", "interlink.example.com/node-a",
		"kubernetes.io/kube-apiserver-client", "kubernetes.io/Kubelet-Serving", "example.com/kubelet-serving", "",
	} {
		change := func(obj *request) { obj.Spec.SignerName = name }
		all = append(all,
			input{name: "15 serving for signer " + name, obj: asks(t, []string{"10.0.0.1"}, change), grants: []string{"nodeclient"}, want: "Untouched"},
			input{name: "15 client for signer " + name, obj: object(t, change), grants: []string{"nodeclient"}, want: "Untouched"})
	}
	return all
}

func stateInputs(t *testing.T) []input {
	own := []string{"10.0.0.1"}
	withoutStatus := func(kind certificatesv1.RequestConditionType) func(*request) {
		return func(obj *request) {
			obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind})
		}
	}
	return []input{
		{name: "19 a matching object name, another requester", obj: object(t, func(obj *request) { obj.Name = "csr-node-a" }), want: "Waits NotAuthorized"},
		{name: "20 Approved and Denied", obj: asks(t, own, with("Approved"), with("Denied")), want: "Untouched"},
		{name: "20 Approved and Failed", obj: asks(t, own, with("Approved"), with("Failed")), want: "Untouched"},
		{name: "20 Denied without a status", obj: asks(t, own, withoutStatus("Denied")), want: "Untouched"},
		{name: "20 Approved without a status", obj: asks(t, own, withoutStatus("Approved")), want: "Untouched"},
		{name: "20 unknown conditions only", obj: asks(t, own, with("Vetted"), withoutStatus("Seen")), want: "Approved"},
		{name: "24 a certificate of another signer", obj: asks(t, own, func(obj *request) { obj.Status.Certificate = []byte("nonsense") }), want: "Untouched"},
	}
}

func encodingInputs(t *testing.T) []input {
	own := []string{"10.0.0.1"}
	good := asks(t, own).Spec.Request
	second := payload(t, nodeTemplate("b", "10.0.0.2"))
	of := func(parts ...[]byte) *request {
		return asks(t, nil, func(obj *request) { obj.Spec.Request = bytes.Join(parts, nil) })
	}
	block, _ := pem.Decode(good)
	var thousands []string
	for i := range 5000 {
		thousands = append(thousands, fmt.Sprintf("host-%d.of-somebody-else.example.com", i))
	}
	return []input{
		{name: "23 text before", obj: of([]byte("Certificate Request:\n    Data:\n"), good), want: "Approved"},
		{name: "23 two blocks, of which the first counts", obj: of(good, second), want: "Approved"},
		{name: "23 two blocks, the first another node's", obj: of(second, good), want: "Denied CommonNameMismatch"},
		{name: "23 CRLF", obj: of(bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))), want: "Approved"},
		{name: "23 garbage after", obj: of(good, []byte("\x00\xffgarbage")), want: "Approved"},
		{name: "23 garbage after the DER", obj: of(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: append(bytes.Clone(block.Bytes), 0)})), want: "Denied Malformed"},
		{name: "23 the wrong kind of block", obj: of(bytes.ReplaceAll(good, []byte("CERTIFICATE REQUEST"), []byte("NEW CERTIFICATE REQUEST"))), want: "Denied Malformed"},
		{name: "23 nothing", obj: of(), want: "Denied Malformed"},
		{name: "23 a thousand names", obj: asks(t, thousands[:1000]), want: "Waits SANNotOwned"},
		{name: "23 more than a thousand names", obj: asks(t, thousands[:1001]), want: "Denied RequestTooLarge"},
		{name: "23 thousands of names", obj: asks(t, thousands), want: "Denied RequestTooLarge"},
	}
}

// Inputs 05 and 20: the cleaner deletes requests that are never decided.
func TestInputsThatAreCleaned(t *testing.T) {
	t.Parallel()
	for _, test := range append(nameInputs(t), stateInputs(t)...) {
		if !strings.HasPrefix(test.name, "05") && test.name != "20 unknown conditions only" {
			continue
		}
		at, ok := csr.RetentionPolicy{Default: csr.DefaultRetention}.Deadline(test.obj)
		if !ok || !at.Equal(now.Add(24*time.Hour)) {
			t.Errorf("%s: due at %s, %t", test.name, at, ok)
		}
	}
}

// Input 08: a source's answer counts only at the moment of the decision.
func TestInput08AnEgressAddressThatGoes(t *testing.T) {
	t.Parallel()
	world := newKnown()
	p := newParts(t, asks(t, []string{"10.0.0.1", "198.51.100.7"})).knowing(world)
	for step, test := range []struct {
		has  []string
		want string
	}{
		{[]string{"10.0.0.1"}, "Waits SANNotOwned"},
		{[]string{"10.0.0.1", "198.51.100.7"}, "Approved"}, // the write does not reach the test's cache
		{[]string{"10.0.0.1"}, "Waits"},
		{[]string{"198.51.100.7", "10.0.0.1"}, "Approved"},
	} {
		world.nodes["a"].SANs = sans(test.has...)
		if got := strings.TrimSpace(p.outcome(t)); got != test.want {
			t.Errorf("step %d: %s, want %s", step, got, test.want)
		}
	}
}

// Input 18: the same request under another name every quarter of an hour. The newest goes first.
func TestInput18TheSameRequestAgain(t *testing.T) {
	t.Parallel()
	first := asks(t, []string{"10.0.0.1"})
	again := first.DeepCopy()
	again.Name, again.UID = "csr-2", "uid-2"
	again.CreationTimestamp.Time = now.Add(15 * time.Minute)
	queue := fairqueue.New(Name, 2)
	queue.Add(fairqueue.KeyOf(again, "a"))
	queue.Add(fairqueue.KeyOf(first, "a"))
	for _, want := range []string{"csr-2", "csr-1"} {
		key, _ := queue.Get()
		if key.Name != want {
			t.Errorf("got %s, want %s", key.Name, want)
		}
		queue.Done(key)
	}
}

// Inputs 13 and 21: with an inventory, a token gets neither a node without a name nor an existing node.
func TestInputsOfBootstrappers(t *testing.T) {
	t.Parallel()
	policy, req, facts := joining()
	for state, want := range map[nodeState]string{nodeAlive: "NodeAlive", nodeUnknown: "NodeAlive", nodeDead: "MachineBound", nodeNone: ""} {
		facts.node = state
		if got := policy.judge(req, facts); got.Reason != want {
			t.Errorf("21 a Node in state %d: %+v, want %q", state, got, want)
		}
	}
	req.Cert.Subject.CommonName = "system:node:"
	if got := policy.judge(req, facts); got.Verdict != verdict.Deny || got.Reason != "ShapeMismatch" {
		t.Errorf("13 no name: %+v", got)
	}
}

// Input 25: a review contains everything about the requester, and the Event is short and readable.
func TestInput25ARequesterThatIsHuge(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("Ü\u202e名", 20_000)
	extra := map[string]certificatesv1.ExtraValue{}
	for i := range 10_000 {
		extra[fmt.Sprintf("example.com/key-%d", i)] = certificatesv1.ExtraValue{strings.Repeat("v", 10)}
	}
	for granted, want := range map[bool]string{true: "Approved", false: "Waits NotAuthorized"} {
		p := newParts(t, object(t, user(name), func(obj *request) { obj.Spec.Extra = extra }))
		var asked []csr.Requester
		p.reconciler.Authorizer = authz.Func(func(_ context.Context, who csr.Requester, _ authorizationv1.ResourceAttributes) (bool, error) {
			asked = append(asked, who)
			return granted, nil
		})
		if got := p.outcome(t); got != want { // the reporter bounds the Event
			t.Errorf("%s, want %s", got, want)
		}
		if len(asked) != 1 || asked[0].Username != name || len(asked[0].Extra) != len(extra) {
			t.Errorf("asked about %d requesters, the first with %d keys", len(asked), len(asked[0].Extra))
		}
	}
}
