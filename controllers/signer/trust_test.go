package signer

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func allowedNames(t *testing.T, entries ...string) ca.AllowedNames {
	t.Helper()
	return must(ca.NewAllowedNames(entries))
}

// TestCheckTrust is the whole table of what a custom signer does by trust: s is signed, w waits, and a letter for the reason
// of a failure.
func TestCheckTrust(t *testing.T) {
	t.Parallel()
	const custom = "example.com/custom"
	about := func(subject pkix.Name, dnsName string, wanted ...certificatesv1.KeyUsage) []func(*request) {
		return []func(*request){usages(wanted...), func(obj *request) {
			template := &x509.CertificateRequest{Subject: subject}
			if dnsName != "" {
				template.DNSNames = []string{dnsName}
			}
			obj.Spec.Request = payload(t, template, leafKey())
		}}
	}
	plain := pkix.Name{CommonName: "hook"}
	of := func(group string) pkix.Name { return pkix.Name{CommonName: "a", Organization: []string{group}} }
	letters := map[string]string{"U": "UsagesNotPermitted", "S": "SubjectNotPermitted", "N": "NameNotPermitted"}
	for name, test := range map[string]struct {
		signer Signer
		name   string
		change []func(*request)
		want   string // while trust is unknown, where it is trusted, and where it is not
	}{
		"no extended usage":                       {change: about(plain, "", "digital signature"), want: "wUU"},
		"no extended usage, configured":           {signer: Signer{AllowNoExtKeyUsage: true}, change: about(plain, "", "digital signature"), want: "wUs"},
		"a client":                                {change: about(plain, "", "client auth"), want: "sss"},
		"a client in a group of Kubernetes":       {change: about(of("system:masters"), "", "client auth"), want: "wSs"},
		"a client in a group of kubeadm":          {change: about(of("kubeadm:cluster-admins"), "", "client auth"), want: "wSs"},
		"a client by a name of Kubernetes":        {change: about(pkix.Name{CommonName: "system:admin"}, "", "client auth"), want: "wSs"},
		"a code signer in a group of Kubernetes":  {change: about(of("system:nodes"), "", "code signing"), want: "wSs"},
		"a group that its owner does not list":    {signer: Signer{ForbiddenOnClientCA: []string{"O=other"}}, change: about(of("system:nodes"), "", "client auth"), want: "sss"},
		"a group that its owner lists":            {signer: Signer{ForbiddenOnClientCA: []string{"O=system:*"}}, change: about(of("system:nodes"), "", "client auth"), want: "wSs"},
		"nothing forbidden by its owner":          {signer: Signer{ForbiddenOnClientCA: []string{}}, change: about(of("system:masters"), "", "client auth"), want: "sss"},
		"a server without a list":                 {change: about(plain, "a.svc", "server auth"), want: "wNs"},
		"a server beside a client without a list": {change: about(plain, "a.svc", "client auth", "server auth"), want: "wNs"},
		"any usage without a list":                {change: about(plain, "a.svc", "any"), want: "wNs"},
		"server gated crypto without a list":      {change: about(plain, "a.svc", "netscape sgc"), want: "wNs"},
		"a server of a listed name":               {signer: Signer{AllowedNames: allowedNames(t, "a.svc")}, change: about(plain, "a.svc", "server auth"), want: "sss"},
		"a server of another name":                {signer: Signer{AllowedNames: allowedNames(t, "b.svc")}, change: about(plain, "a.svc", "server auth"), want: "wNs"},
		"a server of no name":                     {signer: Signer{AllowedNames: allowedNames(t, "b.svc")}, change: about(pkix.Name{CommonName: "a.svc"}, "", "server auth"), want: "wNs"},
		"Kubernetes' own signer":                  {name: certificatesv1.KubeAPIServerClientSignerName, change: about(of("system:nodes"), "", "client auth"), want: "sss"},
		"Kubernetes' own serving signer":          {name: certificatesv1.KubeletServingSignerName, change: about(of("system:nodes"), "a", "server auth"), want: "sss"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.name == "" {
				test.name = custom
			}
			req, err := csr.Parse(object(t, append(test.change, signerName(test.name))...))
			if err != nil {
				t.Fatal(err)
			}
			for i, trust := range []probe.Trust{probe.Unknown, probe.Recognised, probe.Refused} {
				violation, wait := test.signer.checkTrust(req, trust, frontProxy{})
				want := test.want[i : i+1]
				if wait != (want == "w") || (violation != nil) != (want != "s") || violation != nil && !wait && violation.Reason != letters[want] {
					t.Errorf("%s: wait %t, %+v, want %s", trust, wait, violation, want)
				}
			}
		})
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	yes, no, silent := probe.Answer{Trust: probe.Recognised, Evidence: "yes"}, probe.Answer{Trust: probe.Refused, Evidence: "401"}, probe.Answer{Evidence: "silent"}
	for name, test := range map[string]struct {
		answers map[string]probe.Answer
		missing error
		want    probe.Trust
	}{
		"nobody":                   {},
		"one that trusts":          {answers: map[string]probe.Answer{"a": yes}, want: probe.Recognised},
		"one of several":           {answers: map[string]probe.Answer{"a": no, "b": silent, "c": yes}, missing: errors.New("forbidden"), want: probe.Recognised},
		"all refuse":               {answers: map[string]probe.Answer{"a": no, "b": no}, want: probe.Refused},
		"one is silent":            {answers: map[string]probe.Answer{"a": no, "b": silent}},
		"others can't be listed":   {answers: map[string]probe.Answer{"a": no}, missing: errors.New("forbidden")},
		"there is nobody but this": {answers: map[string]probe.Answer{"a": silent}},
	} {
		if got := together(probe.Round{Answers: test.answers}, test.missing); got.Trust != test.want {
			t.Errorf("%s: %s (%s), want %s", name, got.Trust, got.Evidence, test.want)
		}
	}
}

// TestTrustIsOfOneCA keeps an answer for the CA that was asked about, while API servers are silent for a while, and wakes what
// waits when the answer changes.
func TestTrustIsOfOneCA(t *testing.T) {
	t.Parallel()
	pair, _, _ := newPair()
	first, second := newRoot(t, time.Hour), newRoot(t, time.Hour)
	pair.Load(first.cert, first.key)
	authority := must(pair.Authority(now))
	woken := pair.Subscribe()
	var cache trustCache
	wakes := func() bool {
		select {
		case <-woken:
			return true
		default:
			return false
		}
	}
	yes, no, silent := probe.Answer{Trust: probe.Recognised}, probe.Answer{Trust: probe.Refused}, probe.Answer{Evidence: "silent"}
	for i, step := range []struct {
		answer probe.Answer
		after  time.Duration
		want   probe.Trust
		wakes  bool
	}{
		{silent, 0, probe.Unknown, false},
		{no, time.Second, probe.Refused, true},
		{no, time.Minute, probe.Refused, false},
		{silent, 2 * time.Minute, probe.Unknown, true},
		{yes, 3 * time.Minute, probe.Recognised, true},
		{silent, trustKept, probe.Recognised, false},
		{silent, 3*time.Minute + trustKept, probe.Unknown, true},
	} {
		cache.note(pair, authority, step.answer, frontProxy{}, nil, now.Add(step.after))
		if got := cache.of(pair, authority).Trust; got != step.want || wakes() != step.wakes {
			t.Errorf("step %d: %s, want %s, and waking %t", i, got, step.want, step.wakes)
		}
	}
	cache.note(pair, authority, no, frontProxy{}, nil, now)
	pair.Load(second.cert, second.key)
	if got := cache.of(pair, must(pair.Authority(now))); got.Trust != probe.Unknown {
		t.Errorf("a CA that nobody was asked about is %s", got.Trust)
	}
	cache.note(pair, authority, yes, frontProxy{}, nil, now) // an answer that comes late
	if got := cache.of(pair, must(pair.Authority(now))); got.Trust != probe.Unknown {
		t.Errorf("a CA that nobody was asked about is %s by the answer about another one", got.Trust)
	}
}

// TestWhatHasNoAnswerWaits judges as a manager does before API servers have answered, and after.
func TestWhatHasNoAnswerWaits(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t, signerName("example.com/custom"), usages("client auth"), template(t, func(r *x509.CertificateRequest) {
		r.Subject = pkix.Name{CommonName: "a", Organization: []string{"system:masters-of-ours"}}
	})))
	made := newRoot(t, time.Hour)
	p.pair.Load(made.cert, made.key)
	if result, err := p.reconcile(t); err != nil || result.RequeueAfter == 0 || len(p.written) > 0 {
		t.Errorf("%+v, %v, %d writes, want it to wait", result, err, len(p.written))
	}
	if told := strings.Join(taken(p.recorder), "\n"); !strings.Contains(told, "CATrustUnknown") || !strings.Contains(told, "not been asked yet") {
		t.Errorf("Events are %q", told)
	}
	p.note(probe.Recognised)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || csr.StateOf(p.written[0]) != csr.Failed {
		t.Errorf("%v, %d writes, want it to fail", err, len(p.written))
	}
	p.note(probe.Refused)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 2 || csr.StateOf(p.written[1]) != csr.Issued {
		t.Errorf("%v, %d writes, want a certificate", err, len(p.written))
	}
}

// TestTargets asks the API server that the manager talks to, and those that are named; without endpoints nobody else.
func TestTargets(t *testing.T) {
	t.Parallel()
	asker := &trustAsker{cluster: &rest.Config{Host: "https://lb.test"}, live: fake.NewClientBuilder().Build()}
	if got, err := asker.targets(t.Context()); err != nil || len(got) != 1 || got[0].Name != "https://lb.test" {
		t.Errorf("%+v, %v", got, err)
	}
	asker.listed = []string{"b.test:6443", "a.test:6443"}
	if got, err := asker.targets(t.Context()); err != nil || len(got) != 3 || got[1].Name != "a.test:6443" || got[2].Cluster.ServerName != probe.ServerName {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTargetsThatRestart asks an API server that refuses connections beside others, as its silence is no answer. If all that
// are published refuse them, they are no ways to API servers.
func TestTargetsThatRestart(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	published := func(addresses ...string) *discoveryv1.EndpointSlice {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port}},
		}
		for _, address := range addresses {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
		}
		return slice
	}
	for name, test := range map[string]struct {
		published *discoveryv1.EndpointSlice
		want      int
	}{
		"one of two refuses": {published("127.0.0.1", "127.0.0.2"), 3},
		"all refuse":         {published("127.0.0.2", "127.0.0.3"), 1},
	} {
		asker := &trustAsker{cluster: &rest.Config{Host: "https://lb.test"}, live: fake.NewClientBuilder().WithObjects(test.published).Build()}
		if got, err := asker.targets(t.Context()); err != nil || len(got) != test.want {
			t.Errorf("%s: %d targets, want %d: %+v, %v", name, len(got), test.want, got, err)
		}
	}
}
