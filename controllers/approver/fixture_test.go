package approver

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

type (
	request   = certificatesv1.CertificateSigningRequest
	condition = certificatesv1.CertificateSigningRequestCondition
)

const servingSigner, kubeletSigner = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

var leafKey = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })

func payload(template *x509.CertificateRequest) []byte {
	der := must(x509.CreateCertificateRequest(rand.Reader, template, leafKey()))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// kubelet returns what the kubelet of node asks for. It parses names as addresses where possible.
func kubelet(node, names string) *x509.CertificateRequest {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	for _, name := range strings.Fields(names) {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return template
}

// object returns a new request of a bootstrapping kubelet of node a, changed by modify.
func object(modify ...func(*request)) *request {
	obj := &request{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    payload(kubelet("a", "")),
			SignerName: kubeletSigner,
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
			Username:   "system:bootstrap:abcdef",
			Groups:     []string{"system:bootstrappers"},
		},
	}
	for _, change := range modify {
		change(obj)
	}
	return obj
}

// asks returns a request of node's kubelet for a serving certificate with names, changed by modify.
func asks(node, names string, modify ...func(*request)) *request {
	kubelets := []func(*request){
		signer(servingSigner), usages("digital signature, server auth"), says(kubelet(node, names)),
		user("system:node:" + node), groups("system:nodes", "system:authenticated"),
	}
	return object(append(kubelets, modify...)...)
}

func user(name string) func(*request)     { return func(obj *request) { obj.Spec.Username = name } }
func groups(all ...string) func(*request) { return func(obj *request) { obj.Spec.Groups = all } }
func signer(name string) func(*request)   { return func(obj *request) { obj.Spec.SignerName = name } }
func malformed(obj *request)              { obj.Spec.Request = []byte("nonsense") }
func leaving(obj *request)                { obj.DeletionTimestamp = &metav1.Time{Time: now} }
func issued(obj *request)                 { obj.Status.Certificate = []byte("x") }
func created(at time.Time) func(*request) {
	return func(obj *request) { obj.CreationTimestamp.Time = at }
}
func parse(obj *request) *csr.Request      { return must(csr.Parse(obj)) }
func sans(texts ...string) (all []san.SAN) { return mapped(texts, san.Parse) }

func mapped[F, T any](from []F, change func(F) T) (to []T) {
	for _, each := range from {
		to = append(to, change(each))
	}
	return to
}

func usages(list string) func(*request) {
	return func(obj *request) {
		obj.Spec.Usages = nil
		if list != "" {
			obj.Spec.Usages = mapped(strings.Split(list, ", "), func(usage string) certificatesv1.KeyUsage { return certificatesv1.KeyUsage(usage) })
		}
	}
}

// with adds a condition of each kind, with the status True.
func with(kinds ...certificatesv1.RequestConditionType) func(*request) {
	return func(obj *request) {
		for _, kind := range kinds {
			obj.Status.Conditions = append(obj.Status.Conditions, condition{Type: kind, Status: "True"})
		}
	}
}

// says replaces the PKCS#10 request by template.
func says(template *x509.CertificateRequest) func(*request) {
	data := payload(template)
	return func(obj *request) { obj.Spec.Request = data }
}

// content replaces the PKCS#10 request by that of a kubelet of node a, changed by change.
func content(change func(*x509.CertificateRequest)) func(*request) {
	template := kubelet("a", "")
	change(template)
	return says(template)
}

// subject replaces the subject, with one RDN for each attribute, as in "O=system:nodes,CN=system:node:a", and the names.
func subject(attributes, names string) func(*request) {
	kinds := map[string]int{"CN": 3, "SERIALNUMBER": 5, "O": 10, "OU": 11}
	var sequence pkix.RDNSequence
	for attribute := range strings.SplitSeq(attributes, ",") {
		kind, value, _ := strings.Cut(attribute, "=")
		id := asn1.ObjectIdentifier{2, 5, 4, kinds[kind]}
		sequence = append(sequence, pkix.RelativeDistinguishedNameSET{{Type: id, Value: value}})
	}
	template := kubelet("a", names)
	template.RawSubject = must(asn1.Marshal(sequence))
	return says(template)
}

// dns replaces the names and addresses by DNS names with exactly these texts.
func dns(texts ...string) func(*request) {
	return content(func(template *x509.CertificateRequest) { template.DNSNames = texts })
}

func blocked(nodes string, certificates ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked"},
		Data:       map[string]string{"nodes": nodes, "certificates": strings.Join(certificates, "\n")},
	}
}

func blockList(objs ...*corev1.ConfigMap) *blocklist.List {
	list := blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
	for _, obj := range objs {
		list.Offer(obj)
	}
	return list
}

// known judges serving certificates by what it holds, without a manager that watches it.
type known struct {
	nodes    map[string]*inventory.Entry
	reserved san.Reserved
	names    map[string]serving.Name // about names and addresses
	asked    []string                // the nodes that were looked up
}

func newKnown() *known {
	return &known{
		nodes: map[string]*inventory.Entry{
			"a": {Source: "Node a", SANs: sans("10.0.0.1", "a.example.com")},
			"b": {Source: "Node b", SANs: sans("10.0.0.2", "b.example.com")},
		},
		reserved: san.Reserved{
			ClusterDomain: "cluster.local", Endpoints: sans("192.0.2.100", "api.example.com"),
			Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		},
		names: map[string]serving.Name{"10.97.0.1": {Service: "Service default/x"}},
	}
}

// Judge does what KubeletServing does with an Inventory.
func (k *known) Judge(_ context.Context, req *csr.Request, _ Readers) (judge.Decision, error) {
	policy := serving.Policy{Reserved: k.reserved}
	if refused := policy.Check(req); refused.Made() {
		return refused, nil
	}
	k.asked = append(k.asked, req.NodeName())
	facts := serving.Facts{Entry: k.nodes[req.NodeName()], Names: map[san.SAN]serving.Name{}}
	for _, value := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
		facts.Names[value] = k.names[value.String()]
	}
	return policy.Judge(req, facts), nil
}

func (*known) needs() (services, leases bool) { return true, false }

// has makes the names and addresses of node a what spaces separate in texts.
func has(texts string) func(*known) {
	return func(k *known) { k.nodes["a"].SANs = sans(strings.Fields(texts)...) }
}

// parts holds a Reconciler and everything that it uses. Other calls of its client panic.
type parts struct {
	reconciler *Reconciler
	known      *known
	clock      *clocktesting.FakePassiveClock
	recorder   *events.FakeRecorder
	grants     []string                             // the subresources that a review allows
	reviews    []authorizationv1.ResourceAttributes // the permissions that were reviewed
	served     *request                             // the object in the cache
	getFault   error
	written    []*request // to /approval
	writeFault error
}

// newParts returns a Reconciler for obj with Judges for both signers of kubelets.
func newParts(obj *request) *parts {
	p := &parts{served: obj, known: newKnown(), clock: clocktesting.NewFakePassiveClock(now), recorder: events.NewFakeRecorder(100)}
	p.reconciler = &Reconciler{
		Judges: map[string]Judge{kubeletSigner: KubeletClient{}, servingSigner: p.known},
		Client: interceptor.NewClient(nil, interceptor.Funcs{Get: p.get, SubResourceUpdate: p.approve}),
		Readers: Readers{
			ServerTime: servertime.Of(p.clock), Authorizer: authz.Func(p.review),
			Live: live(func(now *request) error { // it was changed meanwhile
				*now = *p.served.DeepCopy()
				now.ResourceVersion += "1"
				return nil
			}),
		},
		reporter: report.New(p.recorder, p.clock),
		Clock:    p.clock,
	}
	return p
}

func (p *parts) get(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if p.getFault == nil {
		*obj.(*request) = *p.served // shared, like a cache read without a deep copy
	}
	return p.getFault
}

func (p *parts) approve(_ context.Context, _ client.Client, name string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	if name != "approval" {
		panic(name)
	}
	p.written = append(p.written, obj.(*request).DeepCopy())
	return p.writeFault
}

// live answers the API server's read of a request.
func live(get func(*request) error) client.Reader {
	return interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			return cmp.Or(ctx.Err(), get(obj.(*request)))
		},
	})
}

func (p *parts) review(_ context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	p.reviews = append(p.reviews, what)
	return slices.Contains(p.grants, what.Subresource) && who.Username == p.served.Spec.Username, nil
}

func (p *parts) asked(t testing.TB) string {
	t.Helper()
	want := authorizationv1.ResourceAttributes{
		Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create", Version: "*",
	}
	return strings.Join(mapped(p.reviews, func(review authorizationv1.ResourceAttributes) string {
		want.Subresource = review.Subresource
		expect.Equal(t, "review of", review, want)
		return review.Subresource
	}), " ")
}

func (p *parts) reconcile(t testing.TB) (reconcile.Result, error) {
	t.Helper()
	return p.reconciler.reconcile(t.Context(), fairqueue.KeyOf(p.served, p.reconciler.RequestLimits.NodeOf(p.served)))
}

func (p *parts) events() (taken []string) {
	for len(p.recorder.Events) > 0 {
		taken = append(taken, <-p.recorder.Events)
	}
	return taken
}

// outcome reconciles the request, and returns "Approved: MESSAGE", "Denied REASON: MESSAGE", "Waits REASON: MESSAGE",
// "Ignored REASON: MESSAGE" or "Untouched". At most one condition is written, to the version that was judged.
func (p *parts) outcome(t testing.TB) string {
	t.Helper()
	p.written = nil
	before := p.served.DeepCopy()
	result, err := p.reconcile(t)
	expect.NoError(t, err)
	expect.True(t, reflect.DeepEqual(before, p.served), "the cache's object was changed to %+v, from %+v", p.served, before)
	reported := p.events()
	_, event, _ := strings.Cut(strings.Join(reported, " and "), " ") // without the type
	reason, message, _ := strings.Cut(event, " ")
	switch {
	case len(p.written) > 0:
		last := p.written[0].Status.Conditions[len(p.written[0].Status.Conditions)-1]
		want := condition{Type: "Approved", Status: "True", Reason: cmp.Or(reason, "AutoApproved"), Message: last.Message}
		text := "Approved: " + last.Message
		if len(reported) > 0 {
			want.Type, text = "Denied", "Denied "+reason+": "+last.Message
		}
		before.Status.Conditions = append(before.Status.Conditions, want)
		expect.True(t, reflect.DeepEqual(p.written, []*request{before}) && result == (reconcile.Result{}),
			"%+v, then %+v, want one write of %+v", p.written, result, before)
		return text
	case result.RequeueAfter == 50*time.Minute:
		return fmt.Sprintf("Ignored %s: %s", reason, message)
	case result.RequeueAfter > 0:
		return fmt.Sprintf("Waits %s: %s", reason, message)
	}
	return "Untouched" + event
}

func (p *parts) expect(t testing.TB, outcomes ...string) {
	t.Helper()
	for step, want := range outcomes {
		got := p.outcome(t)
		expect.True(t, strings.HasPrefix(got, want), "step %d: %s, want %s", step, got, want)
	}
}

// audited makes p write an audit log. The result returns its records as "EVENT VERDICT RULE".
func (p *parts) audited(t *testing.T) func() string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	p.reconciler.Audit = must(audit.Open(audit.Options{Path: file, MaxSize: 1}))
	return func() string {
		var all []string
		for line := range strings.Lines(string(must(os.ReadFile(file)))) {
			var record audit.Record
			expect.NoError(t, json.Unmarshal([]byte(line), &record))
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", record.Event, record.Verdict, record.Rule)))
		}
		return strings.Join(all, ", ")
	}
}

// trial is a request, what is known about it, and its outcome.
type trial struct {
	name  string
	obj   *request     // nil: the kubelet of node a asks for 10.0.0.1
	known func(*known) // changes what is known
	list  *blocklist.List
	// The permissions of the requester, those that were reviewed, and the node that was looked up for a serving certificate, if it matters.
	grants, asked, looked string
	want                  string // the outcome and a part of its message, for an approver that may deny
}

func (test trial) run(t *testing.T) {
	want, part, _ := strings.Cut(test.want, ": ")
	verb, reason, _ := strings.Cut(want, " ")
	for _, denial := range []Denial{DenialNever, DenialPermanent} {
		p := newParts(test.obj)
		if test.obj == nil {
			p.served = asks("a", "10.0.0.1")
		}
		if test.known != nil {
			test.known(p.known)
		}
		p.reconciler.Denial, p.reconciler.BlockList, p.grants = denial, test.list, strings.Fields(test.grants)
		p.clock.SetTime(now.Add(10 * time.Second)) // from then on InventoryPending is reported
		expected := want
		if denial == DenialNever { // reported, but not denied
			expected = strings.Replace(want, "Denied", "Ignored", 1)
		}
		outcome, message, _ := strings.Cut(p.outcome(t), ": ")
		expect.True(t, outcome == expected && strings.Contains(message, part),
			"denial %s: %s: %s, want %s: %s", denial, outcome, message, expected, part)
		advice := ""
		switch {
		case verb == "Denied" && reason == "RequestTooLarge":
			advice = "; a new request is needed, or a higher limit"
		case verb == "Denied":
			advice = "; a new request is needed"
		case verb == "Waits" && test.list == nil:
			advice = " the request is checked again when this changes, or within five minutes"
			if reason == reasonNotAuthorized {
				advice = "; the request is checked again within five minutes"
			}
		}
		expect.True(t, strings.HasSuffix(message, advice), "%q, want the advice %q at the end", message, advice)
		expect.Equal(t, "asked for", p.asked(t), test.asked)
		looked := strings.Join(p.known.asked, " ")
		expect.True(t, verb != "Denied" && verb != "Untouched" && test.list == nil && test.looked == "" || looked == test.looked,
			"looked up %q, want %q", looked, test.looked)
		if _, decision, _ := p.reconciler.Decide(t.Context(), p.served); verb == "Approved" {
			expect.Equal(t, "rule", decision.By, cmp.Or(test.asked[strings.LastIndex(test.asked, " ")+1:], "kubelet-serving"))
		} else {
			expect.Equal(t, "rule", decision.By, "")
		}
		if test.obj == nil && verb == "Waits" { // not yet is not never
			*p.known = *newKnown()
			p.expect(t, "Approved")
		}
	}
}

// judgeFunc is a Judge of a caller.
type judgeFunc func(ctx context.Context, req *csr.Request, from Readers) (judge.Decision, error)

func (f judgeFunc) Judge(ctx context.Context, req *csr.Request, from Readers) (judge.Decision, error) {
	return f(ctx, req, from)
}
