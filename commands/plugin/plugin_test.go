package plugin

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/fips140"
	cryptomldsa "crypto/mldsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/docs"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var fixedNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func at(after time.Duration) *metav1.Time { return new(metav1.NewTime(fixedNow.Add(after))) }

// clusterOf returns an API server with objs and these SigningAuthorities. It ignores field selectors. Nodes may renew, and the
// group system:bootstrappers:one may join nodes.
func clusterOf(t testing.TB, objs []runtime.Object, authorities ...v1alpha1.SigningAuthority) (*cluster, *fake.Clientset) {
	t.Helper()
	typed, err := certificatesclient.NewForConfig(&rest.Config{Transport: answerer(func(*http.Request) (*http.Response, error) {
		answer := httptest.NewRecorder()
		err := json.NewEncoder(answer).Encode(v1alpha1.SigningAuthorityList{Items: authorities})
		return answer.Result(), err
	})})
	kit.NoError(t, err)
	api := fake.NewClientset(objs...)
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		group := map[string]string{"nodeclient": "system:bootstrappers:one", "selfnodeclient": "system:nodes"}[review.Spec.ResourceAttributes.Subresource]
		review.Status.Allowed = slices.Contains(review.Spec.Groups, group)
		return true, review, nil
	})
	return &cluster{
		Interface: api, authorities: typed.RESTClient(), host: "https://api", clock: clocktesting.NewFakeClock(fixedNow), answers: map[string]bool{},
	}, api
}

// answerer answers in the process, so that a wait may pass in the false time of a synctest bubble.
type answerer func(*http.Request) (*http.Response, error)

func (a answerer) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// execute runs a command on c with an input, and returns what it writes.
func execute(t testing.TB, c *cluster, input string, args ...string) (out, aside string, err error) {
	t.Helper()
	root := newRoot("v1", func() (*cluster, error) { return c, nil })
	var result, rest bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(input))
	root.SetOut(&result)
	root.SetErr(&rest)
	err = root.ExecuteContext(t.Context())
	return result.String(), rest.String(), err
}

// executeJSON runs a command on c with -o json, and decodes what it writes.
func executeJSON(t testing.TB, c *cluster, into any, args ...string) error {
	t.Helper()
	out, _, err := execute(t, c, "", append(args, "-o", "json")...)
	if jsonErr := json.Unmarshal([]byte(out), into); jsonErr != nil {
		t.Errorf("%v: %v:\n%s", args, jsonErr, out)
	}
	return err
}

type request = certificatesv1.CertificateSigningRequest

// requestOf returns a sound request of a bootstrap token for the client certificate of node a. mods change it.
func requestOf(t testing.TB, name string, mods ...func(*request)) *request {
	t.Helper()
	obj := kit.NodeRequest(t, "a", func(obj *request) {
		obj.ObjectMeta = metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: *at(-5 * time.Minute)}
		obj.Spec.Username, obj.Spec.Groups = "system:bootstrap:abcdef", []string{"system:bootstrappers:one", "system:authenticated"}
	})
	for _, mod := range mods {
		mod(obj)
	}
	return obj
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

// event returns an Event about obj that was created at a time after fixedNow and says that by has written it, tomorrow.
func event(obj *request, by, reason, message string, after time.Duration) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: reason + obj.Name, CreationTimestamp: *at(after)},
		InvolvedObject: corev1.ObjectReference{Kind: "CertificateSigningRequest", Name: obj.Name, UID: obj.UID},
		Reason:         reason, Message: message, ReportingController: by, EventTime: metav1.NewMicroTime(fixedNow.Add(24 * time.Hour)),
	}
}

func lease(namespace, name string, renewed time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("pod-1"), RenewTime: &metav1.MicroTime{Time: fixedNow.Add(renewed)},
			LeaseDurationSeconds: new(int32(1 << 30)), // whoever may write the Lease chooses it
		},
	}
}

// storedApproval returns the Approved condition of the request r in api, or nil.
func storedApproval(t *testing.T, api *fake.Clientset) *certificatesv1.CertificateSigningRequestCondition {
	t.Helper()
	obj, err := api.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
	kit.NoError(t, err)
	return csr.Condition(obj, certificatesv1.CertificateApproved)
}

func forbid(api *fake.Clientset, verb, resource string) {
	api.PrependReactor(verb, resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no"))
	})
}

func TestApprove(t *testing.T) {
	list := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: blockListName}, Data: data}
	}
	listOf := func(nodes, certificates string) *corev1.ConfigMap {
		return list(map[string]string{"nodes": nodes, "certificates": certificates})
	}
	blockList, sum := listOf("other\nA # stolen\n", "01:ab"), strings.Repeat("0a", 32)
	withCertificate := func(obj *request) {
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + sum}}
	}
	byAlice := func(obj *request) { obj.Spec.Username, obj.Spec.Groups = "alice", nil }
	onlySigns := func(obj *request) { obj.Spec.Usages = obj.Spec.Usages[:1] }
	unknownUsage := func(obj *request) { obj.Spec.SignerName, obj.Spec.Usages[0] = "example.com/a", "x" }
	hostile := func(obj *request) { obj.Spec.Username = "x\x1b[31m\n" }
	leaving := func(obj *request) { obj.DeletionTimestamp, obj.Finalizers = at(0), []string{"a/b"} }
	for name, test := range map[string]struct {
		mod     func(*request)
		more    runtime.Object
		args    string // empty stands for r --yes
		input   string
		want    string // why it is not approved; empty if it is
		noRight bool   // to read the block list
	}{
		"no":                {args: "r", input: "n\n", want: "you did not confirm it"},
		"no answer":         {args: "r", want: "you did not confirm it"},
		"node":              {args: "--node a", input: "y\n"},
		"a hostile name":    {mod: hostile},
		"node, a stranger":  {mod: byAlice, args: "--node a", input: "y\n", want: "not offered, because the manager's rules do not let it pass (NotAuthorized): user \"alice\""},
		"blocked":           {more: blockList, want: `NodeBlocked: node "a" is on the block list`},
		"no list":           {more: blockList, args: "r --yes --block-list="},
		"a bad line":        {more: listOf("b c\x1b\na\n", ""), want: "NodeBlocked: node \"a\" is on the block list"},
		"a bad line alone":  {more: listOf("system:node:a\nb a\n", "")},
		"a certificate":     {mod: withCertificate, more: listOf("", "x\nX509SHA256="+sum), want: "CertificateBlocked: client"},
		"a longer digest":   {mod: withCertificate, more: listOf("", sum+"0a")},
		"a user of a name":  {mod: func(obj *request) { obj.Spec.Username = "other" }, more: listOf("other", "")},
		"no key":            {more: list(nil), want: "block list is not valid: ConfigMap " + defaultNamespace + "/csr-node-block-list: it has no key nodes"},
		"another key":       {more: list(map[string]string{"node": "b"}), want: "it has no key nodes"},
		"only certificates": {more: list(map[string]string{"certificates": sum}), want: "it has no key nodes"},
		"an unknown list":   {noRight: true, want: "it is unknown whether the node is blocked"},
		"wrong usages":      {mod: onlySigns, want: "the signer would refuse the request (SignerValidationFailure)"},
		"ML-DSA":            {mod: mldsa(t, certificatesv1.UsageServerAuth), want: mldsaRefusal},
		"a subject of ours": {mod: func(obj *request) { obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName }},
		"masters":           {mod: asClient("", "system:masters"), want: "(SubjectNotPermitted)"},
		"unknown usage":     {mod: unknownUsage, want: "(UsagesNotPermitted)"},
		"no payload":        {mod: func(obj *request) { obj.Spec.Request = []byte("x") }, want: "(Malformed)"},
		"being deleted":     {mod: leaving, want: "the request is being deleted"},
		"denied":            {mod: decidedAs(certificatesv1.CertificateDenied), want: "the request is already denied"},
		"approved":          {mod: decidedAs(certificatesv1.CertificateApproved), want: "the request is already approved"},
		"an Event approves": {mod: onlySigns, more: event(requestOf(t, "r"), approverName, "AutoApproved", "", 0), want: "the signer would refuse"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := requestOf(t, "r")
			if test.mod != nil {
				test.mod(obj)
			}
			objs := []runtime.Object{obj, event(obj, approverName, "NotAuthorized", "m\x1b\u202e", -time.Minute)}
			if test.more != nil {
				objs = append(objs, test.more)
			}
			c, api := clusterOf(t, objs)
			if test.noRight {
				forbid(api, "get", "configmaps")
			}
			before := storedApproval(t, api)
			out, aside, err := execute(t, c, test.input, append([]string{"approve"}, strings.Fields(cmp.Or(test.args, "r --yes"))...)...)
			stored := storedApproval(t, api)
			if strings.ContainsAny(out+aside, "\x1b\u202e") {
				t.Errorf("text of others controls the terminal: %q", out+aside)
			}
			if test.want == "" || name == "no" { // also with --yes
				contains(t, aside, `"CN=system:node:a,O=system:nodes"`, "could do      'CN=system:node:a': what this node may do", "csr-approver NotAuthorized", `m\x1b\u202e`, "5m ago")
			}
			if name == "a bad line" {
				contains(t, aside, `The block list has a mistake, which is ignored: nodes, line 1: "b c\x1b" is not a node name.`)
			}
			if name == "a hostile name" {
				contains(t, aside, `"x\x1b[31m\n"`)
			}
			if test.want == "" {
				if err != nil || stored == nil || stored.Reason != approvedByHand || out != "r  approved\n" {
					t.Errorf("error %v, stored %+v:\n%s%s", err, stored, out, aside)
				}
				return
			}
			refused := err != nil && strings.HasSuffix(err.Error(), "1 of 1 requests not approved") && strings.Contains(out, test.want)
			if !refused || before == nil && stored != nil {
				t.Errorf("error %v, stored %+v; %q is not in:\n%s%s", err, stored, test.want, out, aside)
			}
		})
	}
}

// mldsaRefusal is what the plugin says of ML-DSA keys without the usage digital signature. Version v1.0.0 of the FIPS 140-3 module has
// no ML-DSA.
var mldsaRefusal = map[bool]string{
	false: "the signer would refuse the request (SignerValidationFailure): validating usages for ml-dsa key: usages must contain at least one of [",
	true:  "the signer would refuse the request (KeyNotPermitted): the public key can't be read",
}[fips140.Version() == "v1.0.0"]

// mldsa makes a request one with an ML-DSA key, for a custom signer.
func mldsa(t testing.TB, usages ...certificatesv1.KeyUsage) func(*request) {
	return func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Usages = "example.com/a", usages
		obj.Spec.Request = []byte(expect.File(t, "../../pkg/csr/testdata/ML-DSA-65.pem"))
	}
}

func decidedAs(kind certificatesv1.RequestConditionType) func(*request) {
	return func(obj *request) {
		csr.AddCondition(obj, kind, "AutoApproved", "m", fixedNow.Add(-time.Minute))
	}
}

// An error of the API server is a problem of that request, and the exit code shows it.
func TestApproveReportsErrors(t *testing.T) {
	resource := schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	for want, fault := range map[string]error{
		"the API server does not permit it":      apierrors.NewForbidden(resource, "r", errors.New("no")),
		"the request has changed or was deleted": apierrors.NewConflict(resource, "r", errors.New("no")),
		"which may be stored or not: it is off":  errors.New("it is off"),
	} {
		c, api := clusterOf(t, []runtime.Object{requestOf(t, "r")})
		api.PrependReactor("update", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, fault })
		var outcomes []struct{ Name, Node, Signer, Requester, Problem string }
		err := executeJSON(t, c, &outcomes, "approve", "r", "--yes")
		if err == nil || len(outcomes) != 1 || outcomes[0].Name != "r" || !strings.Contains(outcomes[0].Problem, want) {
			t.Errorf("%s: error %v: %+v", want, err, outcomes)
		}
	}
}

// TestApproveNodeBoundsAFlood has a stranger who made 30 requests for a node, and one for a signer that is not for kubelets.
func TestApproveNodeBoundsAFlood(t *testing.T) {
	objs := []runtime.Object{requestOf(t, "own"), requestOf(t, "other", asClient("system:node:a", "system:nodes"))}
	for i := range 30 {
		objs = append(objs, requestOf(t, fmt.Sprintf("flood-%02d", i), func(obj *request) { obj.Spec.Username, obj.Spec.Groups = "alice", nil }))
	}
	c, api := clusterOf(t, objs)
	out, aside, err := execute(t, c, "y\n", "approve", "--node", "a")
	contains(t, out, "own  approved\n", "flood-00  not approved: not offered")
	contains(t, aside, "10 more requests for this node are not offered.", "Approve 1 of 21 requests?")
	reviews := 0
	for _, action := range api.Actions() {
		if action.Matches("create", "subjectaccessreviews") {
			reviews++
		}
	}
	if err == nil || strings.Count(out, "not offered") != 20 || reviews != 3 { // the last one is made after the answer
		t.Errorf("error %v, %d reviews:\n%s", err, reviews, out)
	}
}

// asked calls do before it answers yes.
type asked struct{ do func() }

func (a asked) Read(into []byte) (int, error) {
	a.do()
	return copy(into, "y\n"), nil
}

// TestApproveJudgesAgain blocks the node while the person reads what to approve.
func TestApproveJudgesAgain(t *testing.T) {
	c, api := clusterOf(t, []runtime.Object{requestOf(t, "r")})
	a := &approval{cluster: c, node: "a", blockList: blockListName, aside: io.Discard}
	all, err := a.outcomes(t.Context(), nil)
	if err != nil || len(all) != 1 || all[0].Problem != "" {
		t.Fatalf("error %v: %+v", err, all)
	}
	block := asked{func() {
		list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: blockListName}, Data: map[string]string{"nodes": "a"}}
		if _, err := api.CoreV1().ConfigMaps(defaultNamespace).Create(t.Context(), list, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}}
	if err := a.decide(t.Context(), all, block); err != nil || all[0].Approved || !strings.Contains(all[0].Problem, "NodeBlocked") {
		t.Errorf("error %v: %+v", err, all[0])
	}
}

// TestApproveNodeNeedsItsFacts takes one fact away from two requests that pass. Then neither is offered that depends on it.
func TestApproveNodeNeedsItsFacts(t *testing.T) {
	serving := kit.ServingRequest(t, "a", "a", "10.0.0.1", "10.0.0.2")
	serving.ObjectMeta = metav1.ObjectMeta{Name: "serving", UID: "serving", CreationTimestamp: *at(0)}
	serving.Spec.Username, serving.Spec.Groups = "system:node:a", []string{"system:nodes"}
	joins := requestOf(t, "joins")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.2"},
	}}}
	kubernetes := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
	endpoints := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.9"}}},
	}
	for _, test := range []struct {
		obj             *request
		resource        string // cannot be read
		host            string
		certificateless bool
		want            string // why it is not offered; empty if it is approved
	}{
		{obj: joins},
		{obj: joins, resource: "nodes", want: "(InventoryUnavailable): it is unknown"},
		{obj: joins, resource: "leases", want: "(InventoryUnavailable): it is unknown"},
		{obj: joins, resource: "subjectaccessreviews", want: "review permission nodeclient of the requester"},
		{obj: serving},
		{obj: serving, resource: "nodes", want: "(InventoryUnavailable): it is unknown"},
		{obj: serving, resource: "services", want: "(InventoryUnavailable): it is unknown"},
		{obj: serving, resource: "endpointslices", want: "(InventoryUnavailable): it is unknown"},
		{obj: serving, certificateless: true, want: "the certificates or hosts of the API servers are not known"},
		{obj: serving, host: "10.0.0.2", want: "the certificates or hosts of the API servers are not known"}, // no URL
		{obj: serving, host: "https://10.0.0.2:6443", want: "(SANReserved)"},
	} {
		objs := []runtime.Object{test.obj.DeepCopy(), kubernetes, endpoints}
		if test.obj == serving {
			objs = append(objs, node)
		}
		c, api := clusterOf(t, objs)
		c.host = cmp.Or(test.host, c.host)
		if !test.certificateless {
			c.shown.Store(&x509.Certificate{DNSNames: []string{"api"}})
		}
		if test.resource != "" {
			forbid(api, "list", test.resource)
			forbid(api, "create", test.resource)
		}
		out, aside, err := execute(t, c, "y\n", "approve", "--node", "a")
		if approved := out == test.obj.Name+"  approved\n"; approved != (test.want == "") || approved != (err == nil) || !strings.Contains(out, test.want) {
			t.Errorf("%s without %q, host %q: error %v; want %q:\n%s%s", test.obj.Name, test.resource, test.host, err, test.want, out, aside)
		}
	}
}

// asClient makes a request one for kubernetes.io/kube-apiserver-client with that subject.
func asClient(user string, groups ...string) func(*request) {
	return func(obj *request) {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		subject := pkix.Name{CommonName: user, Organization: groups}
		der, _ := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
		obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
		obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
}

// TestCouldDo wants the same line about a subject of the cluster's own from each command that a person runs before an approval.
func TestCouldDo(t *testing.T) {
	const bound, serving = "what is bound to it", certificatesv1.KubeletServingSignerName
	custom := func(obj *request) { obj.Spec.SignerName = "example.com/a" }
	for name, test := range map[string]struct {
		mods []func(*request)
		want string
	}{
		"a node": {nil, "'CN=system:node:a': what this node may do, such as read the Secrets of its Pods; 'O=system:nodes': " + bound},
		"a node's server": {[]func(*request){func(obj *request) {
			obj.Spec.SignerName, obj.Spec.Usages = serving, []certificatesv1.KeyUsage{"digital signature", "server auth"}
		}}, ""},
		"a person":      {[]func(*request){asClient("alice", "System:masters", "developers")}, ""},
		"an agent":      {[]func(*request){asClient("system:ovn-node:w1")}, "'CN=system:ovn-node:w1': " + bound},
		"an account":    {[]func(*request){asClient("system:serviceaccount:a:b")}, "'CN=system:serviceaccount:a:b': what this ServiceAccount may do, even after its deletion"},
		"the scheduler": {[]func(*request){asClient("system:kube-scheduler", "x")}, "'CN=system:kube-scheduler': assign and delete every Pod"},
		"the worst first": {[]func(*request){asClient("system:kube-controller-manager", "a", "system:a", "kubeadm:cluster-admins")},
			"'O=kubeadm:cluster-admins': everything, if kubeadm made the cluster; 'CN=system:kube-controller-manager': read every Secret, " +
				"make a token of every ServiceAccount; 'O=system:a': " + bound},
		"a hostile name":  {[]func(*request){asClient("kubeadm:$(x)\u202e\nO")}, `'CN=kubeadm:$(x)\u202e O': ` + bound},
		"a custom signer": {[]func(*request){asClient("system:a"), custom}, "if API servers trust the signer's CA: 'CN=system:a': " + bound},
	} {
		c, _ := clusterOf(t, []runtime.Object{requestOf(t, "r", test.mods...)})
		for _, args := range [][]string{{"explain", "r"}, {"approve", "r"}, {"pending"}} {
			out, aside, _ := execute(t, c, "", args...)
			_, got, _ := strings.Cut(out+aside, "  could do      ")
			if args[0] == "pending" {
				_, got, _ = strings.Cut(out, " 5m     -                 ")
				got = strings.TrimPrefix(got, "-")
			}
			if got, _, _ = strings.Cut(got, "\n"); strings.TrimSpace(got) != test.want {
				t.Errorf("%s, %s: %q, want %q:\n%s", name, args[0], got, test.want, out+aside)
			}
		}
	}
}

func TestPending(t *testing.T) {
	first, second := requestOf(t, "first", func(obj *request) { obj.CreationTimestamp = *at(-time.Hour) }), requestOf(t, "x; reboot")
	leaving := requestOf(t, "leaving", func(obj *request) { obj.DeletionTimestamp, obj.Finalizers = at(0), []string{"a/b"} })
	approved, done := requestOf(t, "approved", decidedAs(certificatesv1.CertificateApproved)), requestOf(t, "done", decidedAs(certificatesv1.CertificateDenied))
	c, _ := clusterOf(t, []runtime.Object{
		first, second, approved, done, leaving, event(first, approverName, "Malformed", "m", -time.Minute), event(first, approverName, "NotAuthorized", "m", -time.Minute), event(first, approverName, "RequestTooOld", "m", -time.Hour),
		event(first, "somebody", "AutoApproved", "m", 0), event(approved, approverName, "NotAuthorized", "m", 0), event(approved, signerName, "CAMissing", "m", 0),
	})
	out, _, err := execute(t, c, "", "pending")
	const want = `NAME         NODE  SIGNER                                       REQUESTER                WAITS FOR      SINCE  SAID IN AN EVENT       COULD DO
first        a     kubernetes.io/kube-apiserver-client-kubelet  system:bootstrap:abcdef  approval       60m    NotAuthorized 60s ago  COULD
'x; reboot'  a     kubernetes.io/kube-apiserver-client-kubelet  system:bootstrap:abcdef  approval       5m     -                      COULD
approved     a     kubernetes.io/kube-apiserver-client-kubelet  system:bootstrap:abcdef  a certificate  60s    CAMissing 0s ago       COULD
`
	if err != nil || strings.ReplaceAll(out, powerOf(factsOf(first).req), "COULD") != want {
		t.Errorf("error %v:\n%s", err, out)
	}
	var rows []waiting
	if err := executeJSON(t, c, &rows, "pending"); err != nil || len(rows) != 3 || rows[0].Said.Reason != "NotAuthorized" {
		t.Errorf("error %v: %+v", err, rows)
	}
	none, _ := clusterOf(t, nil)
	if out, aside, err := execute(t, none, "", "pending"); err != nil || out != "" || aside != "No request waits.\n" {
		t.Errorf("error %v: %q, %q", err, out, aside)
	}
	if err := executeJSON(t, none, &rows, "pending"); err != nil || rows == nil || len(rows) > 0 {
		t.Errorf("error %v: %+v", err, rows)
	}
}

// The next step follows from the object, the block list and the rules. No Event changes it, and no command has a name that a
// shell or kubectl could read more in.
func TestNextStep(t *testing.T) {
	alive := lease(defaultNamespace, "csr-controller-manager", -2*time.Second)
	obj, approved := requestOf(t, "r"), requestOf(t, "r", decidedAs(certificatesv1.CertificateApproved))
	denied := requestOf(t, "r", decidedAs(certificatesv1.CertificateDenied))
	refused := requestOf(t, "r", func(obj *request) { obj.Spec.Usages = nil })
	leaving := requestOf(t, "r", decidedAs(certificatesv1.CertificateApproved), func(obj *request) {
		obj.DeletionTimestamp, obj.Finalizers = at(0), []string{"a/b"}
	})
	byAlice := requestOf(t, "r", func(obj *request) { obj.Spec.Username, obj.Spec.Groups = "alice", nil })
	blocks := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: blockListName}, Data: map[string]string{"nodes": "a"}}
	const noManager, noRule, noSigner = "No manager renews its Lease", "If the request stays pending, the log of the manager", "no manager serves this signer"
	said := func(by, reason string) runtime.Object { return event(obj, by, reason, "m", 0) }
	type objects = []runtime.Object
	for name, test := range map[string]struct {
		obj     *request
		more    objects
		want    string
		command string
	}{
		"ended manager":    {obj, objects{lease("kube-system", "csr-controller-manager", -time.Hour)}, noManager, ""},
		"no Event":         {obj, objects{alive}, noRule, "kubectl csr approve r"},
		"an Event":         {obj, objects{alive, said(approverName, "NotAuthorized")}, noRule, "kubectl csr approve r"},
		"a forged dry run": {obj, objects{alive, said(approverName, "WouldApprove")}, noRule, "kubectl csr approve r"},
		"a stranger":       {byAlice, objects{alive}, "do not let the request pass (NotAuthorized, see rules)", ""},
		"a node":           {obj, objects{alive, lease("kube-node-lease", "a", -time.Second)}, "(NodeAlive, see rules)", ""},
		"blocked":          {obj, objects{alive, blocks}, "(NodeBlocked, see rules)", ""},
		"approved":         {approved, objects{alive, said(signerName, "CAMissing")}, noSigner, ""},
		"approved, then":   {approved, objects{alive, blocks}, "(NodeBlocked, see rules)", ""},
		"denied":           {denied, nil, "Correct what the condition names", ""},
		"being deleted":    {leaving, objects{alive}, "The request is being deleted", ""},
		"refused":          {refused, objects{alive}, "The signer would refuse the request (SignerValidationFailure)", ""},
		"a flag":           {requestOf(t, "--all"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"a short flag":     {requestOf(t, "-f"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"two lines":        {requestOf(t, "a\nb"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"a quote":          {requestOf(t, "a'b"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"a command":        {requestOf(t, "$(reboot)"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"two words":        {requestOf(t, "a --server=b"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"escape sequence":  {requestOf(t, "a\x1b[2J"), objects{alive}, noRule, "kubectl csr approve NAME"},
		"a long name":      {requestOf(t, strings.Repeat("a", 254)), objects{alive}, "(RequestTooLarge): metadata.name has more than 253 bytes", ""},
	} {
		c, _ := clusterOf(t, append(test.more, test.obj.DeepCopy()))
		test.obj.UID = "1" // the API server chooses it
		if e := c.explain(t.Context(), test.obj); !strings.Contains(e.NextStep, test.want) || e.Command != test.command {
			t.Errorf("%s: %q, %q", name, e.NextStep, e.Command)
		}
	}
}

// TestExplain adds to what test/manager shows: the newest request of a node, one that does not exist, JSON, and missing rights.
func TestExplain(t *testing.T) {
	byAlice := requestOf(t, "alices", func(obj *request) { obj.Spec.Username, obj.Spec.Groups, obj.CreationTimestamp = "alice", nil, *at(0) })
	c, api := clusterOf(t, []runtime.Object{
		requestOf(t, "r"), requestOf(t, "older", func(obj *request) { obj.CreationTimestamp = *at(-time.Hour) }), byAlice,
		lease(defaultNamespace, "csr-approver", -time.Second),
	})
	type explained struct {
		Name, State, Node, NextStep string
		Leaders                     []leader
	}
	var node struct{ Requests []explained }
	if err := executeJSON(t, c, &node, "explain", "--node", "a"); err != nil || len(node.Requests) != 1 || node.Requests[0].Name != "r" {
		t.Errorf("error %v: %+v", err, node)
	}
	var e explained
	if err := executeJSON(t, c, &e, "explain", "r"); err != nil || e.State != "Pending" || e.Node != "a" || e.NextStep == "" || len(e.Leaders) != 1 {
		t.Errorf("error %v: %+v", err, e)
	}
	if out, _, err := execute(t, c, "", "explain", "--node", "b"); err != nil || !strings.Contains(out, `There is no request for node "b".`) {
		t.Errorf("error %v:\n%s", err, out)
	}
	if _, _, err := execute(t, c, "", "explain", "none"); err == nil || !strings.HasPrefix(err.Error(), `there is no CertificateSigningRequest "none": `) {
		t.Errorf("error %v", err)
	}
	forbid(api, "list", "*")
	out, _, err := execute(t, c, "", "explain", "r")
	contains(t, out, `CertificateSigningRequest "r": Pending`, "unknown       list events", "unknown       list leases")
	if err != nil {
		t.Errorf("error %v", err)
	}
}

// checkBundles checks the verdict about the ClusterTrustBundles of a signer: none, one without the CA, and one more with it.
func checkBundles(t *testing.T, c *cluster) {
	t.Helper()
	const signer = "example.com/web"
	c.clock = clocktesting.NewFakeClock(time.Now()) // the certificates are valid from now on
	made := kit.IssueCA(t, "web", kit.NewKey(t), nil, time.Hour)
	obj := requestOf(t, "web", decidedAs(certificatesv1.CertificateApproved), func(obj *request) {
		leaf := pem.Block{Type: "CERTIFICATE", Bytes: made.Leaf(t, "leaf").Certificate[0]}
		obj.Spec.SignerName, obj.Status.Certificate = signer, pem.EncodeToMemory(&leaf)
	})
	_, err := c.CertificatesV1().CertificateSigningRequests().Create(t.Context(), obj, metav1.CreateOptions{})
	kit.NoError(t, err)
	if out, _, _ := execute(t, c, "", "check", "-v"); strings.Contains(out, signer) {
		t.Errorf("without a bundle:\n%s", out)
	}
	for _, bundled := range []*kit.CA{kit.IssueCA(t, "other", kit.NewKey(t), nil, time.Hour), made} {
		want := map[bool]string{true: "ok", false: "failed"}[bundled == made]
		bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "example.com:web:" + want}}
		bundle.Spec.SignerName, bundle.Spec.TrustBundle = signer, string(bundled.PEM())
		_, err := c.CertificatesV1().ClusterTrustBundles().Create(t.Context(), bundle, metav1.CreateOptions{})
		kit.NoError(t, err)
		if out, _, _ := execute(t, c, "", "check", "-v"); !regexp.MustCompile(`(?m)^ca-trusted +` + want + ` .*` + signer).MatchString(out) {
			t.Errorf("not %s:\n%s", want, out)
		}
	}
}

// TestCheckOfMLDSA checks the verdict about a published client CA whose signatures the API server may be too old to verify.
func TestCheckOfMLDSA(t *testing.T) {
	const failed = `failed .* ML-DSA key, and the API server is built with go1\.26\.8 X:boringcrypto: `
	const passed = "ok .* trusts issuer"
	type row struct {
		root, signs *kit.CA
		goVersion   string
		want        string
	}
	const old = "go1.26.8 X:boringcrypto"
	ecdsa := kit.IssueCA(t, "root", kit.NewKey(t), nil, time.Hour)
	tests := []row{{ecdsa, ecdsa, old, passed}, {ecdsa, ecdsa, "", passed}}
	if fips140.Version() != "v1.0.0" {
		mldsa := kit.IssueCA(t, "root", kit.Must(cryptomldsa.GenerateKey(cryptomldsa.MLDSA44()))(t), nil, time.Hour)
		between := kit.IssueCA(t, "between", kit.NewKey(t), mldsa, time.Hour)
		tests = append(tests, row{mldsa, mldsa, old, failed}, row{mldsa, between, old, failed}, row{between, between, old, passed},
			row{mldsa, mldsa, "go1.27.3", passed}, row{mldsa, mldsa, "", "unknown .* needs: .* get /version"})
	}
	for i, test := range tests {
		obj := requestOf(t, "r", decidedAs(certificatesv1.CertificateApproved))
		leaf := pem.Block{Type: "CERTIFICATE", Bytes: test.signs.Leaf(t, "a").Certificate[0]}
		obj.Status.Certificate = slices.Concat(pem.EncodeToMemory(&leaf), test.signs.PEM())
		file := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}}
		file.Data = map[string]string{"client-ca-file": string(test.root.PEM())}
		c, api := clusterOf(t, []runtime.Object{obj, file})
		c.clock = clocktesting.NewFakeClock(time.Now()) // the certificates are valid from now on
		api.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GoVersion: test.goVersion}
		if test.goVersion == "" {
			forbid(api, "get", "version")
		}
		if out, _, _ := execute(t, c, "", "check", "-v"); !regexp.MustCompile(`(?m)^ca-trusted +` + test.want).MatchString(out) {
			t.Errorf("%d: not %s:\n%s", i, test.want, out)
		}
	}
}

func TestCheck(t *testing.T) {
	node := func(name string, age time.Duration) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: *at(-age)}}
	}
	serving := requestOf(t, "serving", func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Username, obj.Spec.Groups = certificatesv1.KubeletServingSignerName, "system:node:asks", []string{"system:nodes"}
	})
	c, api := clusterOf(t, []runtime.Object{
		lease(defaultNamespace, "csr-controller-manager", -time.Second), serving,
		node("asks", 30*time.Minute), node("silent", 30*time.Minute), node("new", time.Minute), node("old", 24*time.Hour),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}},
		&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", CreationTimestamp: *at(0)}, ReportingController: "csr-self-check", Reason: "RightsMissing",
			Message: "missing rights: get secrets", InvolvedObject: corev1.ObjectReference{Kind: "Namespace", Name: defaultNamespace},
		},
	})
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, action.(clienttesting.CreateAction).GetObject(), nil // denied
	})
	out, _, err := execute(t, c, "", "check", "-v")
	if err == nil || !strings.HasPrefix(err.Error(), "check: ") {
		t.Errorf("error %v", err)
	}
	contains(t, out, "kubelet-rights   failed", "--group=system:bootstrappers:kubeadm:default-node-token", "manager-running  ok",
		"serving-asked    failed", "1 nodes have never asked", ": silent",
		"Said in Events in the name of the manager", "csr-self-check RightsMissing", "missing rights: get secrets")
	if strings.Contains(out, "--group=system:bootstrappers ") {
		t.Errorf("advice names the group of all tokens:\n%s", out)
	}
	checkBundles(t, c)
	forbid(api, "*", "*")
	var report checkReport
	if err := executeJSON(t, c, &report, "check"); err == nil || report.Failed != 0 || report.Passed != 0 || report.Unknown != len(report.Results) {
		t.Errorf("error %v: %+v", err, report)
	}
}

// TestAgesDuringAList reads the time of the API server while client-go's pager lists the next page and notes its time. Only
// the race detector sees the fault. The clock of the API server is an hour behind, so an age without that time is wrong.
func TestAgesDuringAList(t *testing.T) {
	now := time.Now().Add(-time.Hour).UTC()
	said := event(requestOf(t, "r"), "csr-self-check", "RightsMissing", "m", now.Sub(fixedNow))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		meta := metav1.ListMeta{Continue: map[string]string{"": "a", "a": "b", "b": "c"}[r.URL.Query().Get("continue")]}
		w.Header().Set("Date", now.Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"certificatesigningrequests": certificatesv1.CertificateSigningRequestList{ListMeta: meta, Items: []request{*requestOf(t, "r")}},
			"events":                     corev1.EventList{ListMeta: meta, Items: []corev1.Event{*said}},
			"leases":                     coordinationv1.LeaseList{ListMeta: meta, Items: []coordinationv1.Lease{*lease("ns", "csr-l", now.Sub(fixedNow))}},
		}[path.Base(r.URL.Path)])
	}))
	t.Cleanup(server.Close)
	c, err := connectTo("v1", &clientcmd.ClientConfigLoadingRules{}, &clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: server.URL}})
	kit.NoError(t, err)
	current := 0
	kit.NoError(t, c.requests(t.Context(), metav1.ListOptions{}, func(*request) {
		if c.now().Sub(now).Abs() < 10*time.Second {
			current++
		}
	}))
	warnings, err := c.warnings(t.Context())
	kit.NoError(t, err)
	held, err := c.leaders(t.Context())
	kit.NoError(t, err)
	if current != 4 || len(warnings) != 20 || len(held) != 8 || !held[0].Alive {
		t.Errorf("%d requests, %d warnings, leaders %+v", current, len(warnings), held)
	}
}

// A wrong command line is an error before anything is asked, and so is --yes for requests that nobody has named, and a missing
// --yes where nothing is asked.
func TestCommandLines(t *testing.T) {
	c, api := clusterOf(t, []runtime.Object{requestOf(t, "r")})
	for args, want := range map[string]string{
		"check -o xml":           "unknown output format; use json",
		"explain":                "give the NAME of a request, or --node NODE",
		"approve a --node b":     "give the NAME of a request, or --node NODE",
		"approve r -o json":      "-o json asks nothing: add --yes",
		"approve --node a --yes": "--yes needs the names of the requests",
	} {
		out, aside, err := execute(t, c, "y\n", strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || out+aside != "" || len(api.Actions()) > 0 {
			t.Errorf("%s: error %v, want %q; printed %q, asked %v", args, err, want, out+aside, api.Actions())
		}
	}
}

// TestReasonStep wants the next step of each row of the page, and none after a success.
func TestReasonStep(t *testing.T) {
	for _, test := range []struct {
		state        csr.State
		reason, want string
	}{
		{csr.Pending, "ShapeMismatch", "Correct the client."},
		{csr.Approved, "UsagesNotPermitted", "Request other usages, or extend `signing.signers[].usages`."},
		{csr.Failed, "KeyTooWeak", "Make a new request with an ECDSA P-256 key, or a longer RSA key."},
		{csr.Approved, "Malformed", "Delete the request."},
		{csr.Pending, "KeyTooWeak", ""},
		{csr.Approved, "ShapeMismatch", ""},
		{csr.Approved, "CALoaded", ""},
		{csr.Pending, "WouldDeny", ""},
		{csr.Pending, "RightsMissing", "Grant the manager `approve`"},
		{csr.Pending, "", ""},
	} {
		if got := reasonStep(test.state, test.reason); !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s, %q: %q, want %q", test.state, test.reason, got, test.want)
		}
	}
	section, rows := "", 0
	for line := range strings.Lines(docs.Reasons) {
		if title, found := strings.CutPrefix(line, "## "); found {
			section = strings.TrimSpace(title)
		}
		if !strings.HasPrefix(line, "| `") || !slices.Contains([]string{"Approver", "Approver and signer", "Signer"}, section) {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 || nextSteps()[section+"/"+strings.Trim(cells[0], "`")] != cells[2] {
			t.Errorf("this row of section %s has not three cells, or is not found: %s", section, line)
			continue
		}
		for _, text := range cells[1:] {
			if strings.Count(text, ". ") > 1 || !strings.HasSuffix(text, ".") {
				t.Errorf("want one or two sentences: %q", text)
			}
		}
	}
	if rows < 40 {
		t.Errorf("only %d rows", rows)
	}
}

// camelCase matches a string literal that looks like a reason of two or more words.
var camelCase = regexp.MustCompile(`"((?:[A-Z]+[a-z]+){2,}|[A-Z]{2,}[a-z]+\w*)"`)

// noReasons lists literals in the code that look like a reason and are not one.
var noReasons = []string{
	"ControllerManagerConfiguration", "ServiceAccount", "ConfigMap", "NodeLookup", "WithRoot", "CheckRights",
	"NotSigned", "TrustProbe", // records of the audit log
	"DestroyRetiring", "DropCandidate", "MakeCandidate", "MakeRenewed", "RestoreSigning", "SwapBack", "TakeCandidate", "TakeRenewed", // steps of a rotation
	"NotAsked", "NotConfirmed", "NotProven", "NotPublished", // conditions of a SigningAuthority
}

// TestEveryReasonInTheCodeHasARow finds a reason in the controllers and public packages that docs/reference/reasons.md
// does not explain.
func TestEveryReasonInTheCodeHasARow(t *testing.T) {
	found := 0
	for _, folder := range []string{"controllers", "pkg"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for line := range strings.Lines(string(source)) {
				if strings.HasPrefix(strings.TrimSpace(line), "//") {
					continue
				}
				for _, match := range camelCase.FindAllStringSubmatch(line, -1) {
					if slices.Contains(noReasons, match[1]) {
						continue
					}
					if found++; !strings.Contains(docs.Reasons, "| `"+match[1]+"` |") {
						t.Errorf("%s: docs/reference/reasons.md has no row for %q; add one, or add it to noReasons if it is no reason", path, match[1])
					}
				}
			}
			return err
		})
		kit.NoError(t, err)
	}
	if found < 40 {
		t.Errorf("only %d reasons found in the code", found)
	}
}
