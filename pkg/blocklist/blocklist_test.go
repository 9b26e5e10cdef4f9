package blocklist

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// stolen and another are the SHA-256 of certificates.
var stolen, another = strings.Repeat("0a", 32), strings.Repeat("f9", 32)

// asked returns a request of user for common name cn, made with the credentials called ids.
func asked(signer, user, cn string, ids ...string) *csr.Request {
	who := csr.Requester{Username: user, Extra: map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": ids}}
	return &csr.Request{SignerName: signer, Requester: who, Cert: ca.Request{Subject: pkix.Name{CommonName: cn}}}
}

// listed returns a block list with nodes and certificates.
func listed(nodes, certificates string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked", UID: "1"},
		Data:       map[string]string{"nodes": nodes, "certificates": certificates},
	}
}

func newList() (*List, *events.FakeRecorder) {
	list, recorder := New(types.NamespacedName{Namespace: "ns", Name: "blocked"}), events.NewFakeRecorder(100)
	list.recorder = recorder
	return list, recorder
}

// shown describes a Decision, or returns an empty text if none is made.
func shown(d judge.Decision) string {
	if !d.Made() {
		return ""
	}
	return d.Verdict.String() + " " + d.Reason + " " + d.Message
}

// boundTo returns req as made with a token that is bound to node.
func boundTo(node string, req *csr.Request) *csr.Request {
	req.Requester.Extra = map[string]certificatesv1.ExtraValue{csr.NodeNameKey: {node}}
	return req
}

// TestCheck checks which requests are blocked, and which wait while no list was read.
func TestCheck(t *testing.T) {
	const (
		kubelet, serving, client = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client"
		own, token               = "example.com/own", "system:bootstrap:abcdef"
		bad, good                = "system:node:bad", "system:node:good"
		listedIn                 = " is on the block list, ConfigMap ns/blocked: nothing is approved or signed for "
	)
	list, _ := newList()
	unread, _ := newList()
	blocked := listed("bad\nalso.bad.example.com\n", strings.ToUpper(stolen))
	blocked.Data["users"] = "thief"
	list.Offer(blocked)
	with, fine := "X509SHA256="+stolen, "X509SHA256="+another
	for name, test := range map[string]struct {
		req     *csr.Request
		blocked string // the node or the certificate
	}{
		"a renewal":                            {req: asked(kubelet, bad, bad), blocked: "bad"},
		"of a custom signer":                   {req: asked(own, "admin", "system:node:also.bad.example.com"), blocked: "also.bad.example.com"},
		"in capitals":                          {req: asked(kubelet, token, "system:node:BAD"), blocked: "bad"},
		"the node asks for another one":        {req: asked(kubelet, bad, good), blocked: "bad"},
		"the node asks for something else":     {req: asked(own, "system:node:Bad", "anything"), blocked: "bad"},
		"a name that begins the same":          {req: asked(kubelet, token, "system:node:bad2")},
		"a kubelet's signer, no node's name":   {req: asked(kubelet, token, "bad")},
		"a user":                               {req: asked(client, "admin", "bad")},
		"the user with the prefix in capitals": {req: asked(client, "admin", "System:Node:bad")},

		"a blocked user":                {req: asked(client, "thief", "a"), blocked: "thief"},
		"a blocked user, for a node":    {req: asked(kubelet, "thief", good), blocked: "thief"},
		"a user with the same prefix":   {req: asked(client, "thief2", "a")},
		"the user's name in capitals":   {req: asked(client, "Thief", "a")},
		"a token bound to the node":     {req: boundTo("bad", asked(client, "admin", "a")), blocked: "bad"},
		"a token bound to another node": {req: boundTo("good", asked(client, "admin", "a"))},

		"with the certificate":                      {req: asked(kubelet, good, good, with), blocked: stolen},
		"with it among others":                      {req: asked(client, "admin", "a", "JTI=1", fine, with), blocked: stolen},
		"with the certificate, from a blocked node": {req: asked(kubelet, bad, bad, with), blocked: "bad"},
		"with a token":                              {req: asked(client, "admin", "a", "JTI="+stolen)},
		"with an ID in capitals":                    {req: asked(client, "admin", "a", "X509SHA256="+strings.ToUpper(stolen)), blocked: stolen},
	} {
		want := fmt.Sprintf("Wait NodeBlocked node %q%sit until its name is removed from the list", test.blocked, listedIn)
		switch test.blocked {
		case "":
			want = ""
		case "thief":
			want = `Wait UserBlocked user "thief"` + listedIn + "this user until the name is removed from the list"
		case stolen:
			want = "Wait CertificateBlocked client certificate " + stolen + listedIn + "a request that was made with it until its SHA-256 is removed from the list"
		}
		expect.Equal(t, name, shown(list.Check(test.req)), want)
		want = "Wait InventoryUnavailable the request waits because it is unknown whether it is blocked: block list ConfigMap ns/blocked: not read yet"
		expect.Equal(t, name+", while nothing is read", shown(unread.Check(test.req)), want)
		expect.Equal(t, name+", without a list", shown((*List)(nil).Check(test.req)), "")
	}
}

// TestChanges goes through the possible changes of the ConfigMap.
func TestChanges(t *testing.T) {
	const (
		waits, blocks = "InventoryUnavailable", "NodeBlocked"
		gone          = "Missing it does not exist: create it with the names of the blocked nodes under the key nodes, or with an empty value"
		noKey         = "Invalid it has no key nodes: add it, with an empty value if no node is blocked"
		denied        = "Missing it can't be read: forbidden"
		ignored       = "Invalid what is invalid is ignored, and the rest applies: "
		badName       = ignored + `nodes, line 2: "x y" is not a node name`
		badSum        = ignored + `certificates, line 1: "x" is not the SHA-256 of a certificate: write its 64 hex digits`
		never         = "; nothing is approved or signed, and API servers refuse what they refused before"
		stays         = "; the last version stays in use: blocked nodes: a, b; blocked users: none; blocked certificates: none"
	)
	list, recorder := newList()
	woken := list.Subscribe()
	offer := func(nodes, certificates string) func() { return func() { list.Offer(listed(nodes, certificates)) } }
	missing := func() { list.Offer(nil) }
	keyless := func() { list.Offer(&corev1.ConfigMap{Data: map[string]string{"node": "b"}}) }
	fails := func() { list.unreadable(errors.New("forbidden")) }
	for i, step := range []struct {
		what    func()
		a, b    string // the reasons for nodes a and b
		problem string // with the reason of its Event
		told    bool   // the problem is new
		read    string // the nodes and the certificates that are read, which wakes
	}{
		{what: func() {}, a: waits, b: waits},
		{what: missing, a: waits, b: waits, problem: gone + never, told: true},
		{what: keyless, a: waits, b: waits, problem: noKey + never, told: true},
		{what: offer("a", ""), a: blocks, read: "a; none"},
		{what: offer("b\na", ""), a: blocks, b: blocks, read: "a, b; none"},
		{what: missing, a: blocks, b: blocks, problem: gone + stays, told: true},
		{what: fails, a: blocks, b: blocks, problem: denied + stays, told: true},
		{what: offer("b\na", ""), a: blocks, b: blocks, read: "a, b; none"}, // the ConfigMap has not changed
		{what: fails, a: blocks, b: blocks, problem: denied + stays, told: true},
		{what: missing, a: blocks, b: blocks, problem: gone + stays, told: true},
		{what: offer("a\nb", ""), a: blocks, b: blocks, read: "a, b; none"},
		{what: keyless, a: blocks, b: blocks, problem: noKey + stays, told: true},
		{what: offer("b\nx y", ""), b: blocks, problem: badName, told: true, read: "b; none"},
		{what: offer("", ""), read: "none; none"},
		{what: offer("", stolen), read: "none; " + stolen},
		{what: offer("", "X509SHA256="+stolen+" # still")},
		{what: offer("a", stolen+"\n"+another), a: blocks, read: "a; " + stolen + ", " + another},
		{what: offer("a", "x"), a: blocks, problem: badSum, told: true, read: "a; none"},
	} {
		step.what()
		for node, want := range map[string]string{"a": step.a, "b": step.b} {
			decision := list.Check(asked("kubernetes.io/kubelet-serving", "", "system:node:"+node))
			expect.Equal(t, fmt.Sprintf("step %d: %s waits because of", i, node), decision.Reason, want)
			expect.Equal(t, fmt.Sprintf("step %d: blocks %s", i, node), list.BlocksNode(strings.ToUpper(node)), want == "NodeBlocked")
		}
		reason, problem, _ := strings.Cut(step.problem, " ")
		if got := list.value.State().Problem; (got != nil) != (problem != "") || got != nil && got.Error() != problem {
			t.Errorf("step %d: problem %v, want %q", i, got, problem)
		}
		expect.Equal(t, fmt.Sprintf("step %d: ready", i), list.ready(nil) == nil, step.a != waits)
		var want, told []string
		if step.told {
			want = append(want, "Warning BlockList"+reason+" "+problem)
		}
		if nodes, certificates, reads := strings.Cut(step.read, "; "); reads {
			want = append(want, "Normal BlockListRead blocked nodes: "+nodes+"; blocked users: none; blocked certificates: "+certificates)
		}
		for len(recorder.Events) > 0 {
			told = append(told, <-recorder.Events)
		}
		expect.Equal(t, fmt.Sprintf("step %d: Events", i), told, want)
		expect.Equal(t, fmt.Sprintf("step %d: wakes", i), len(woken) == 1, step.read != "")
		for len(woken) > 0 {
			<-woken
		}
	}
}

// TestWaitForFirst checks that controllers start once the list was read or can't be read, and after a while anyway.
func TestWaitForFirst(t *testing.T) {
	for want, first := range map[time.Duration]func(*List){
		1 * time.Second:  func(l *List) { l.Offer(listed("a", "")) },
		2 * time.Second:  func(l *List) { l.Offer(nil) },
		3 * time.Second:  func(l *List) { l.unreadable(errors.New("forbidden")) },
		10 * time.Second: func(*List) {}, // no answer
	} {
		synctest.Test(t, func(t *testing.T) {
			list, _ := newList()
			time.AfterFunc(want, func() { first(list) })
			began := time.Now()
			if err := list.WaitForFirst(t.Context()); err != nil || time.Since(began).Truncate(100*time.Millisecond) != want {
				t.Errorf("after %s: error %v, want it after %s", time.Since(began), err, want)
			}
		})
	}
}
