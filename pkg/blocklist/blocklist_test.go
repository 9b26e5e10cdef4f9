package blocklist

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

func TestParse(t *testing.T) {
	t.Parallel()
	sum, another := strings.Repeat("0a", 32), strings.Repeat("f9", 32)
	for name, test := range map[string]struct {
		text         string
		certificates string
		others       map[string]string // by key
		nodes        []string
		sums         []string
		problems     []string
	}{
		"nothing":                {},
		"comments and gaps":      {text: "# all\n\n  \n\t# is well\n", certificates: "# all\n\n"},
		"names":                  {text: "a\nb.example.com\n10-0-0-1\n", nodes: []string{"10-0-0-1", "a", "b.example.com"}},
		"without a last newline": {text: "a\nb", nodes: []string{"a", "b"}},
		"CRLF line ends":         {text: "a\r\nb\r\n", certificates: sum + "\r\n", nodes: []string{"a", "b"}, sums: []string{sum}},
		"space and comments":     {text: "  a # taken over on Monday\n\tb#\n", certificates: " " + sum + " # stolen\n", nodes: []string{"a", "b"}, sums: []string{sum}},
		"in capitals":            {text: "Worker-A\nWORKER-A\n", certificates: strings.ToUpper(another), nodes: []string{"worker-a"}, sums: []string{another}},
		"bad lines among good": {
			text: "a\nb c\nsystem:node:d\n- e\nf_g\n*\nh\n", nodes: []string{"a", "h"},
			problems: []string{
				`nodes, line 2: "b c" is not a node name`, `nodes, line 3: "system:node:d" is a user name: remove the prefix system:node:`,
				`nodes, line 4: "- e" is not a node name`, `nodes, line 5: "f_g" is not a node name`, `nodes, line 6: "*" is not a node name`,
			},
		},
		"certificates as in a request":   {certificates: "X509SHA256=" + sum, sums: []string{sum}},
		"certificates as openssl prints": {certificates: "sha256 Fingerprint=" + strings.TrimSuffix(strings.Repeat("F9:", 32), ":"), sums: []string{another}},
		"certificates, bad lines among good": {
			text: "a", certificates: strings.Join([]string{sum, "abc", sum + "00", sum[:62] + "0g", "JTI=" + sum, "worker-7", another}, "\n"),
			nodes: []string{"a"}, sums: []string{sum, another},
			problems: []string{
				`certificates, line 2: "abc" is not the SHA-256 of a certificate: write its 64 hex digits`,
				`certificates, line 3: "` + sum + `00" is not the SHA-256 of a certificate: write its 64 hex digits`,
				`certificates, line 4: "` + sum[:62] + `0g" is not the SHA-256 of a certificate: write its 64 hex digits`,
				`certificates, line 5: "jti=` + sum + `" is not the SHA-256 of a certificate: write its 64 hex digits`,
				`certificates, line 6: "worker-7" is not the SHA-256 of a certificate: write its 64 hex digits`,
			},
		},
		"unknown keys": {
			text: "a", others: map[string]string{"certificate": sum, "README": ""}, nodes: []string{"a"},
			problems: []string{`key "README" is unknown: the keys are nodes and certificates`, `key "certificate" is unknown: the keys are nodes and certificates`},
		},
	} {
		data := map[string]string{"nodes": test.text, "certificates": test.certificates}
		maps.Copy(data, test.others)
		read, problems := parse(data)
		for what, each := range map[string]struct {
			want []string
			got  sets.Set[string]
		}{"nodes": {test.nodes, read.nodes}, "certificates": {test.sums, read.certificates}} {
			if diff := cmp.Diff(append([]string{}, each.want...), append([]string{}, sets.List(each.got)...)); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", name, what, diff)
			}
		}
		if diff := cmp.Diff(test.problems, problems); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzParse checks that no text causes a panic, and that every entry is a name or a SHA-256.
func FuzzParse(f *testing.F) {
	f.Add("a\nWorker-B # taken over\n", "X509SHA256="+strings.Repeat("0a", 32), "more")
	f.Add("system:node:a\n\x00", "sha256 Fingerprint=AA:BB", "")
	f.Fuzz(func(t *testing.T, nodes, certificates, key string) {
		read, problems := parse(map[string]string{key: "", "nodes": nodes, "certificates": certificates})
		for name := range read.nodes {
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				t.Errorf("node %q", name)
			}
		}
		for sum := range read.certificates {
			if len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
				t.Errorf("certificate %q", sum)
			}
		}
		if unknown := key != "nodes" && key != "certificates"; unknown && len(problems) == 0 {
			t.Errorf("key %q is not reported", key)
		}
	})
}

// asked returns a request of user for common name cn.
func asked(signer, user, cn string) *csr.Request {
	return &csr.Request{SignerName: signer, Requester: csr.Requester{Username: user}, Cert: ca.Request{Subject: pkix.Name{CommonName: cn}}}
}

// with returns req as made with the credentials called ids.
func with(req *csr.Request, ids ...string) *csr.Request {
	req.Requester.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": ids}
	return req
}

func listed(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked", UID: "1"}, Data: map[string]string{"nodes": text}}
}

func newList() (*List, *events.FakeRecorder) {
	list, recorder := New(types.NamespacedName{Namespace: "ns", Name: "blocked"}), events.NewFakeRecorder(100)
	list.reporter = report.New(recorder, clock.RealClock{})
	return list, recorder
}

// problemOf returns the present problem of list.
func problemOf(list *List) string {
	if problem := list.value.State().Problem; problem != nil {
		return problem.Error()
	}
	return ""
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const (
		kubelet, serving, client = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client"
		own                      = "example.com/own"
		bootstrap                = "system:bootstrap:abcdef"
	)
	stolen, fine := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	list, _ := newList()
	unread, _ := newList()
	both := listed("bad\nalso.bad.example.com\n")
	both.Data["certificates"] = strings.ToUpper(stolen)
	list.Offer(both)
	for name, test := range map[string]struct {
		req     *csr.Request
		blocked string // the node or the certificate
		waits   bool   // while no list was read
	}{
		"a bootstrap":                          {asked(kubelet, bootstrap, "system:node:bad"), "bad", true},
		"a renewal":                            {asked(kubelet, "system:node:bad", "system:node:bad"), "bad", true},
		"a serving certificate":                {asked(serving, "system:node:bad", "system:node:bad"), "bad", true},
		"by an administrator":                  {asked(client, "admin", "system:node:bad"), "bad", true},
		"of a custom signer":                   {asked(own, "admin", "system:node:also.bad.example.com"), "also.bad.example.com", true},
		"in capitals":                          {asked(kubelet, bootstrap, "system:node:BAD"), "bad", true},
		"the node asks for another one":        {asked(kubelet, "system:node:bad", "system:node:good"), "bad", true},
		"the node asks for something else":     {asked(own, "system:node:Bad", "anything"), "bad", true},
		"another node":                         {asked(kubelet, bootstrap, "system:node:good"), "", true},
		"a name that begins the same":          {asked(kubelet, bootstrap, "system:node:bad2"), "", true},
		"a name that ends the same":            {asked(kubelet, bootstrap, "system:node:so.bad"), "", true},
		"a kubelet's signer, no node's name":   {asked(kubelet, bootstrap, "bad"), "", true},
		"a node without a name":                {asked(client, "admin", "system:node:"), "", false},
		"a user":                               {asked(client, "admin", "bad"), "", false},
		"a user of the name, asked by itself":  {asked(own, "bad", "bad"), "", false},
		"the user with the prefix in capitals": {asked(client, "admin", "System:Node:bad"), "", false},

		"with the certificate":                      {with(asked(kubelet, "system:node:good", "system:node:good"), "X509SHA256="+stolen), stolen, true},
		"of a user, with the certificate":           {with(asked(own, "admin", "anything"), "X509SHA256="+stolen), stolen, true},
		"with it among others":                      {with(asked(client, "admin", "a"), "JTI=1", "X509SHA256="+fine, "X509SHA256="+stolen), stolen, true},
		"with the certificate, from a blocked node": {with(asked(kubelet, "system:node:bad", "system:node:bad"), "X509SHA256="+stolen), "bad", true},
		"with another certificate":                  {with(asked(client, "admin", "a"), "X509SHA256="+fine), "", true},
		"with a token":                              {with(asked(client, "admin", "a"), "JTI="+stolen), "", false},
		"with an ID in capitals":                    {with(asked(client, "admin", "a"), "X509SHA256="+strings.ToUpper(stolen)), stolen, true},
	} {
		reason, message := list.Check(test.req)
		wantReason, want := "", ""
		switch test.blocked {
		case "":
		case stolen:
			wantReason = "CertificateBlocked"
			want = "client certificate " + stolen + " is on the block list, ConfigMap ns/blocked: nothing is approved or signed for a request that was made with it until its SHA-256 is removed from the list"
		default:
			wantReason = "NodeBlocked"
			want = `node "` + test.blocked + `" is on the block list, ConfigMap ns/blocked: nothing is approved or signed for it until its name is removed from the list`
		}
		if reason != wantReason || message != want {
			t.Errorf("%s: %s %q", name, reason, message)
		}
		reason, message = unread.Check(test.req)
		if (reason == "InventoryUnavailable") != test.waits || test.waits != strings.Contains(message, "ns/blocked: not read yet") {
			t.Errorf("%s, while nothing is read: %s %q", name, reason, message)
		}
		if reason, _ := (*List)(nil).Check(test.req); reason != "" {
			t.Errorf("%s, without a list: %s", name, reason)
		}
	}
}

// TestChanges goes through the possible changes of the ConfigMap.
func TestChanges(t *testing.T) {
	t.Parallel()
	const gone = "it does not exist: create it with the names of the blocked nodes under the key nodes, or with an empty value"
	list, recorder := newList()
	woken := list.Subscribe()
	noKey := listed("")
	noKey.Data = map[string]string{"node": "b"}
	stolen := strings.Repeat("0a", 32)
	certificate := func(nodes, certificates string) *corev1.ConfigMap {
		obj := listed(nodes)
		obj.Data["certificates"] = certificates
		return obj
	}
	for i, step := range []struct {
		what    func()
		a, b    string // the reasons for nodes a and b
		problem string
		events  []string
		wakes   bool
	}{
		{what: func() {}, a: "InventoryUnavailable", b: "InventoryUnavailable"},
		{func() { list.Offer(nil) }, "InventoryUnavailable", "InventoryUnavailable", gone, []string{"Warning BlockListMissing " + gone + "; nothing is approved or signed for any node, or for a request that was made with a certificate"}, false},
		{what: func() { list.Offer(nil) }, a: "InventoryUnavailable", b: "InventoryUnavailable", problem: gone},
		{func() { list.Offer(noKey) }, "InventoryUnavailable", "InventoryUnavailable", "it has no key nodes: add it, with an empty value if no node is blocked", []string{"Warning BlockListInvalid it has no key nodes: add it, with an empty value if no node is blocked; nothing is approved or signed for any node, or for a request that was made with a certificate"}, false},
		{func() { list.Offer(listed("a")) }, "NodeBlocked", "", "", []string{"Normal BlockListRead blocked nodes: a; blocked certificates: none"}, true},
		{what: func() { list.Offer(listed("a # still")) }, a: "NodeBlocked"},
		{func() { list.Offer(listed("b\na")) }, "NodeBlocked", "NodeBlocked", "", []string{"Normal BlockListRead blocked nodes: a, b; blocked certificates: none"}, true},
		{func() { list.Offer(nil) }, "NodeBlocked", "NodeBlocked", gone, []string{"Warning BlockListMissing " + gone + "; the last version stays in use: blocked nodes: a, b; blocked certificates: none"}, false},
		{func() { list.unreadable(errors.New("forbidden")) }, "NodeBlocked", "NodeBlocked", "it can't be read: forbidden", []string{"Warning BlockListMissing it can't be read: forbidden; the last version stays in use: blocked nodes: a, b; blocked certificates: none"}, false},
		{func() { list.Offer(listed("a\nb")) }, "NodeBlocked", "NodeBlocked", "", []string{"Normal BlockListRead blocked nodes: a, b; blocked certificates: none"}, true},
		{func() { list.Offer(noKey) }, "NodeBlocked", "NodeBlocked", "it has no key nodes: add it, with an empty value if no node is blocked", []string{"Warning BlockListInvalid it has no key nodes: add it, with an empty value if no node is blocked; the last version stays in use: blocked nodes: a, b; blocked certificates: none"}, false},
		{func() { list.Offer(listed("b\nx y")) }, "", "NodeBlocked", `what is invalid is ignored, and the rest applies: nodes, line 2: "x y" is not a node name`, []string{
			`Warning BlockListInvalid what is invalid is ignored, and the rest applies: nodes, line 2: "x y" is not a node name`, "Normal BlockListRead blocked nodes: b; blocked certificates: none",
		}, true},
		{func() { list.Offer(listed("")) }, "", "", "", []string{"Normal BlockListRead blocked nodes: none; blocked certificates: none"}, true},
		{func() { list.Offer(certificate("", stolen)) }, "", "", "", []string{"Normal BlockListRead blocked nodes: none; blocked certificates: " + stolen}, true},
		{what: func() { list.Offer(certificate("", "X509SHA256="+stolen+" # still")) }},
		{func() { list.Offer(certificate("a", stolen+"\n"+strings.Repeat("0b", 32))) }, "NodeBlocked", "", "", []string{"Normal BlockListRead blocked nodes: a; blocked certificates: " + stolen + ", " + strings.Repeat("0b", 32)}, true},
		{func() { list.Offer(certificate("a", "x")) }, "NodeBlocked", "", `what is invalid is ignored, and the rest applies: certificates, line 1: "x" is not the SHA-256 of a certificate: write its 64 hex digits`, []string{
			`Warning BlockListInvalid what is invalid is ignored, and the rest applies: certificates, line 1: "x" is not the SHA-256 of a certificate: write its 64 hex digits`, "Normal BlockListRead blocked nodes: a; blocked certificates: none",
		}, true},
	} {
		step.what()
		a, _ := list.Check(asked("kubernetes.io/kubelet-serving", "", "system:node:a"))
		b, _ := list.Check(asked("kubernetes.io/kubelet-serving", "", "system:node:b"))
		if problem := problemOf(list); a != step.a || b != step.b || !strings.HasPrefix(problem, step.problem) || (problem == "") != (step.problem == "") {
			t.Errorf("step %d: a %q, b %q, problem %q", i, a, b, problem)
		}
		for node, reason := range map[string]string{"A": step.a, "b": step.b} {
			if blocked := list.BlocksNode(node); blocked != (reason == "NodeBlocked") {
				t.Errorf("step %d: blocks node %s: %t", i, node, blocked)
			}
		}
		if ready := list.ready(nil) == nil; ready != (step.a != "InventoryUnavailable") {
			t.Errorf("step %d: ready: %t", i, ready)
		}
		var told []string
		for len(recorder.Events) > 0 {
			told = append(told, <-recorder.Events)
		}
		if diff := cmp.Diff(step.events, told); diff != "" {
			t.Errorf("step %d: Events (-want +got):\n%s", i, diff)
		}
		if len(woken) == 1 != step.wakes {
			t.Errorf("step %d: wakes %t", i, len(woken) == 1)
		}
		for len(woken) > 0 {
			<-woken
		}
	}
}

// TestWaitForFirst checks that controllers start once the list was read or can't be read, and after a while anyway.
func TestWaitForFirst(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first func(*List)
		want  time.Duration
	}{
		"a list":            {func(l *List) { l.Offer(listed("a")) }, time.Second},
		"it does not exist": {func(l *List) { l.Offer(nil) }, time.Second},
		"it can't be read":  {func(l *List) { l.unreadable(errors.New("forbidden")) }, time.Second},
		"no answer":         {func(*List) {}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				list, _ := newList()
				go func() {
					time.Sleep(time.Second)
					test.first(list)
				}()
				began := time.Now()
				if err := list.WaitForFirst(t.Context()); err != nil || time.Since(began).Truncate(100*time.Millisecond) != test.want {
					t.Errorf("after %s: error %v, want it after %s", time.Since(began), err, test.want)
				}
			})
		})
	}
}

// TestListMayBeReadAgain withdraws the right to the ConfigMap and grants it again. The problem ends although the
// ConfigMap has not changed, and also if it was deleted.
func TestListMayBeReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, listMayBeReadAgain) // the pauses between attempts to read take no time
}

func listMayBeReadAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := dynamicfake.NewSimpleDynamicClient(scheme, listed("a"))
	var denied atomic.Bool
	var broken atomic.Pointer[watch.RaceFreeFakeWatcher]
	may := func() error {
		if denied.Load() {
			return apierrors.NewForbidden(corev1.Resource("configmaps"), "blocked", nil)
		}
		return nil
	}
	api.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { err := may(); return err != nil, nil, err })
	api.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
		watcher := watch.NewRaceFreeFake()
		broken.Store(watcher)
		return true, watcher, may()
	})
	list, _ := newList()
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	list.watch(informer.Of(resource, api.Resource(resource).Namespace(list.name.Namespace)))
	list.configMap.Convert = func(raw runtime.Object) *corev1.ConfigMap {
		obj := &corev1.ConfigMap{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.(*unstructured.Unstructured).Object, obj); err != nil {
			t.Error(err)
		}
		return obj
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = list.configMap.Start(ctx) })
	defer running.Wait()
	defer cancel()
	becomes := func(want string) {
		t.Helper()
		problem := ""
		err := wait.PollUntilContextTimeout(ctx, time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
			problem = problemOf(list)
			return strings.Contains(problem, want) && (want == "") == (problem == "") && list.BlocksNode("a") && broken.Load() != nil, nil
		})
		if err != nil {
			t.Fatalf("problem %q, want %q", problem, want)
		}
	}
	deny := func(yes bool) {
		denied.Store(yes)
		broken.Load().Stop()
	}
	becomes("")
	deny(true)
	becomes("grant list and watch on configmaps")
	deny(false)
	becomes("")
	deny(true)
	becomes("grant list and watch on configmaps")
	if err := api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), "ns", "blocked"); err != nil {
		t.Fatal(err)
	}
	deny(false)
	becomes("it does not exist")
}
