package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/informertest"
)

// newSource returns a Source that has read nothing.
func newSource(t testing.TB) *Source {
	t.Helper()
	s, err := New(&rest.Config{}, nil, true, logr.Discard())
	expect.NoError(t, err)
	return s
}

// sourceOf returns a Source that has read nodes.
func sourceOf(t testing.TB, nodes ...runtime.Object) *Source {
	t.Helper()
	s := newSource(t)
	informertest.Read(t, s.nodes, nodes...)
	informertest.Read(t, s.services)
	informertest.Read(t, s.endpoints)
	return s
}

func sans(texts ...string) []san.SAN { return san.Of(texts, nil) }

func nodeWith(name string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Address: address})
	}
	return node
}

// serviceWith returns a Service with the cluster address 10.96.0.1 that publishes addresses.
func serviceWith(name string, addresses ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: addresses},
	}
}

// TestLookup checks that a Node's own report is its entry, and that there is none without a Node.
func TestLookup(t *testing.T) {
	node := nodeWith("a", "10.0.0.1", "A.example.com")
	node.CreationTimestamp = metav1.Unix(1_000_000, 0)
	s := sourceOf(t, node)
	for name, want := range map[string]*inventory.Entry{
		"a": {
			Source: "Node a", SANs: sans("10.0.0.1", "a.example.com"), SelfReported: true, Bound: "a", Created: time.Unix(1_000_000, 0),
		},
		"b": nil,
	} {
		got, err := s.Lookup(t.Context(), name, nil)
		expect.Error(t, name, err, "")
		expect.Equal(t, name, got, want, cmpopts.EquateEmpty())
	}
	if got, err := newSource(t).Lookup(t.Context(), "a", nil); got != nil || !errors.Is(err, informer.ErrNotRead) {
		t.Errorf("before all is read, %+v, error %v", got, err)
	}
}

// TestHolders checks that a Node holds what it reports, in every notation, and its own name. An address is no name.
func TestHolders(t *testing.T) {
	s := sourceOf(t, nodeWith("a", "10.0.0.1", "Shared.example.com."), nodeWith("b", "010.0.0.1", "shared.example.com", "b"), nodeWith("10.0.0.7"), nodeWith("10.0.0.8", "10.0.0.8"))
	for text, want := range map[string][]string{
		"10.0.0.1": {"a", "b"}, "::ffff:10.0.0.1": {"a", "b"}, "SHARED.example.com": {"a", "b"}, "a": {"a"}, "b": {"b"}, "10.0.0.8": {"10.0.0.8"},
		"10.0.0.7": nil, "10.0.0.2": nil, "example.com": nil,
	} {
		got, err := s.Holders(san.Parse(text))
		slices.Sort(got)
		expect.True(t, slices.Equal(got, want) && err == nil, "%s: %q, error %v, want %q", text, got, err, want)
	}
}

// TestLargeNodes has a Node with 25,000 addresses. Only the first ones count, as many as a request may name, and lookups
// cost no more than for another Node.
func TestLargeNodes(t *testing.T) { // not in parallel, because it counts allocations
	var addresses []string
	for i := range 25_000 {
		addresses = append(addresses, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	s := sourceOf(t, nodeWith("a", addresses...))
	for address, want := range map[string]int{addresses[0]: 1, addresses[999]: 1, addresses[1000]: 0, addresses[24_999]: 0} {
		if holders, err := s.Holders(san.Parse(address)); len(holders) != want || err != nil {
			t.Errorf("%s: %q, error %v", address, holders, err)
		}
	}
	value := san.Parse("10.0.0.9")
	lookups := func() {
		entry, err := s.Lookup(t.Context(), "a", nil)
		err = errors.Join(append(questions(s, value), err)...)
		if err != nil || len(entry.SANs) != 1000 {
			t.Fatalf("%v, %d addresses", err, len(entry.SANs))
		}
	}
	allocations := testing.AllocsPerRun(10, lookups)
	expect.True(t, allocations <= 40, "%v allocations", allocations)
	entry, _ := s.Lookup(t.Context(), "a", nil)
	if node, _, err := s.nodes.Get("", "a"); err != nil || &entry.SANs[0] != &node.sans[0] {
		t.Errorf("the addresses were copied, or error %v", err)
	}
}

// questions returns the errors of Holders, Service, Publisher and Endpoint.
func questions(s *Source, value san.SAN) []error {
	_, holders := s.Holders(value)
	_, service := s.Service(value)
	_, publisher := s.Publisher(value)
	_, endpoint := s.Endpoint(value)
	return []error{holders, service, publisher, endpoint}
}

// TestErr checks that a resource that can't be read fails the lookups that need it, and no others.
func TestErr(t *testing.T) {
	down, unread := apierrors.NewForbidden(corev1.Resource("services"), "", errors.New("no")), informer.ErrNotRead
	bare, err := New(&rest.Config{}, nil, false, logr.Discard())
	expect.NoError(t, err)
	without, noEndpoints := newSource(t), newSource(t)
	for _, s := range []*Source{bare, without, noEndpoints} {
		informertest.Read(t, s.nodes, nodeWith("a", "10.0.0.1"))
	}
	informertest.Fail(t, without.services, down)
	informertest.Read(t, without.endpoints)
	informertest.Read(t, noEndpoints.services)
	for name, test := range map[string]struct {
		source *Source
		want   []error // of questions
	}{
		"Services are down":     {without, []error{nil, down, down, nil}},
		"endpoints are unread":  {noEndpoints, []error{nil, nil, nil, unread}},
		"a Source without them": {bare, []error{nil, unread, unread, unread}},
	} {
		for _, text := range []string{"10.0.0.1", "web", "web.default"} {
			for i, got := range questions(test.source, san.Parse(text)) {
				if !errors.Is(got, test.want[i]) && (i < 3 || text == "10.0.0.1") {
					t.Errorf("%s, question %d about %s: error %v, want %v", name, i, text, got, test.want[i])
				}
			}
		}
		_, err := test.source.Lookup(t.Context(), "a", nil)
		expect.NoError(t, err)
	}
}

// kept returns the copy that is kept of a Node, or nil.
func kept(node *corev1.Node) *object {
	if node == nil {
		return nil
	}
	return nodeObject(node)
}

// TestChanged checks that Changed is called after a Node was created, deleted or changed, with what it no longer has. A
// heartbeat is no change.
func TestChanged(t *testing.T) {
	for name, test := range map[string]struct {
		before, after *corev1.Node
		want          string
	}{
		"it comes":          {nil, nodeWith("a", "10.0.0.1"), "node a []"},
		"it goes":           {nodeWith("a", "10.0.0.1", "A.example.com"), nil, "node a [10.0.0.1 a.example.com a]"},
		"an added address":  {nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1", "10.0.0.2"), "node a []"},
		"a removed address": {nodeWith("a", "10.0.0.1", "10.0.0.2"), nodeWith("a", "10.0.0.2"), "node a [10.0.0.1]"},
		"a heartbeat":       {nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1"), ""},
	} {
		told := ""
		s := newSource(t)
		s.Changed = func(node string, had ...san.SAN) { told += fmt.Sprintf("node %s %v", node, had) }
		s.nodes.OnChange(kept(test.before), kept(test.after))
		expect.Equal(t, name+": told", told, test.want)
	}
	told, s := "", newSource(t)
	s.Changed = func(node string, had ...san.SAN) { told += fmt.Sprintf("%s %v", node, had) }
	service := serviceObject(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.9"},
	})
	s.services.OnChange(nil, service)
	s.services.OnChange(service, service)
	s.services.OnChange(service, nil)
	expect.Equal(t, "a Service comes, changes and goes: told", told, "web [web.shop web 10.0.0.9]")
}

// TestEndpointsChange checks that changed endpoints request a read of their certificates, and that only a removed one is told.
func TestEndpointsChange(t *testing.T) {
	s, told := newSource(t), 0
	s.Changed = func(string, ...san.SAN) { told++ }
	a := NewAPIServers(&rest.Config{}, s, logr.Discard())
	s.endpoints.OnSync()
	<-a.wake
	s.endpoints.OnChange(sliceWith("10.0.0.1", "10.0.0.2"), sliceWith("10.0.0.2"))
	s.endpoints.OnChange(sliceWith("10.0.0.2"), nil)
	expect.Equal(t, "reads and calls after two changes", []int{len(a.wake), told}, []int{1, 1})
}

func sliceWith(addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: addresses}},
	}
}

// TestServices checks which names and addresses a Service or an endpoint has, and which a Service only publishes.
func TestServices(t *testing.T) {
	s := newSource(t)
	informertest.Read(t, s.services, serviceWith("zone", "10.0.0.1"), serviceWith("web", "10.0.0.1", "10.0.0.4"),
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "internal", Name: "ec2"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "ip-10-0-0-1.ec2.internal"},
		})
	informertest.Read(t, s.endpoints, sliceWith("10.0.0.2"))
	for text, want := range map[string]struct {
		service, publisher string
		endpoint           bool
	}{
		"10.0.0.1": {publisher: "Service default/web"}, "10.0.0.4": {publisher: "Service default/web"}, "10.0.0.2": {endpoint: true}, "10.0.0.3": {},
		"10.96.0.1": {service: "Service default/web"}, "::ffff:10.96.0.1": {service: "Service default/web"},
		"web": {service: "Service default/web"}, "WEB.default.": {service: "Service default/web"}, "host.web.default": {service: "Service default/web"},
		"a.host.web.default": {}, "host.web.other": {}, "other.default": {}, "host.web": {}, "xweb.default": {},
		"ip-10-0-0-1.ec2.internal": {service: "Service internal/ec2"}, "ec2.internal": {service: "Service internal/ec2"}, "ip-10-0-0-1": {},
		"ip-10-0-0-1.us-west-2.ec2.internal": {},
	} {
		value := san.Parse(text)
		service, serviceErr := s.Service(value)
		publisher, publisherErr := s.Publisher(value)
		endpoint, endpointErr := s.Endpoint(value)
		if err := errors.Join(serviceErr, publisherErr, endpointErr); err != nil || service != want.service || publisher != want.publisher || endpoint != want.endpoint {
			t.Errorf("%s: %q, %q, %t, error %v, want %+v", text, service, publisher, endpoint, err, want)
		}
	}
}

// TestWhatObjectsHave checks that addresses are parsed as the API server parses them, in every notation.
func TestWhatObjectsHave(t *testing.T) {
	service := serviceObject(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "metrics-server"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:0::1"}, ExternalIPs: []string{"010.0.0.1", "::ffff:010.0.0.2"},
			LoadBalancerIP: "192.0.2.66", ExternalName: "elsewhere.example.com",
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.000.002.007"}, {Hostname: "LB.example.com."}}}},
	})
	headless := serviceObject(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}},
	})
	for name, test := range map[string]struct{ got, want []san.SAN }{
		"a Service's own":    {service.sans, append(sans("metrics-server", "10.96.0.1"), sans("10.96.0.1", "fd00::1")...)},
		"a Service's others": {service.published, sans("10.0.0.1", "10.0.0.2", "192.0.2.7", "lb.example.com")},
		"a headless Service": {headless.sans, sans("headless")},
		"a Node":             {kept(nodeWith("a", "010.000.000.001", "Node-1", "fd00::1%eth0", "010.0.0.256", "")).sans, sans("10.0.0.1", "node-1", "fd00::1%eth0", "010.0.0.256")},
		"endpoints":          {inventory.EndpointSANs(sliceWith("10.0.0.01")), sans("10.0.0.1")},
	} {
		expect.Equal(t, name, test.got, test.want, cmpopts.EquateEmpty())
	}
}

// fakeServers holds API servers by host:port.
type fakeServers struct {
	mu        sync.Mutex
	endpoints []string
	listFails error
	shown     map[string]probe.Shown
	asked     []string
}

func (f *fakeServers) read(_ context.Context, cluster *rest.Config) (probe.Shown, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := strings.TrimPrefix(cluster.Host, "https://")
	f.asked = append(f.asked, at)
	shown, found := f.shown[at]
	if !found {
		return probe.Shown{}, errors.New("connection refused")
	}
	return shown, nil
}

// change changes f while it is in use.
func (f *fakeServers) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// wakes has a read the endpoints again after a change.
func (f *fakeServers) wakes(a *APIServers, do func()) {
	f.change(do)
	a.wake <- struct{}{}
}

// handshakes returns the servers that were asked since the last call.
func (f *fakeServers) handshakes() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := slices.Sorted(slices.Values(f.asked))
	f.asked = nil
	return strings.Join(asked, " ")
}

func shows(verified bool, names ...string) probe.Shown {
	certificate := &x509.Certificate{}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			certificate.IPAddresses = append(certificate.IPAddresses, ip)
		} else {
			certificate.DNSNames = append(certificate.DNSNames, name)
		}
	}
	return probe.Shown{Certificate: certificate, Verified: verified}
}

// apiServersOf returns APIServers that read from f, with a kubeconfig for the server lb.example.com.
func apiServersOf(t *testing.T, f *fakeServers) *APIServers {
	t.Helper()
	config := &rest.Config{Host: "https://lb.example.com:443", TLSClientConfig: rest.TLSClientConfig{ServerName: "tls.example.com"}}
	a := NewAPIServers(config, newSource(t), logr.Discard())
	a.read = f.read
	a.endpoints = func() ([]string, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.listFails == nil && len(f.endpoints) == 0 {
			return nil, probe.ErrNoEndpoints
		}
		return f.endpoints, f.listFails
	}
	return a
}

// start starts a, and returns a function that ends it. It must be called in a synctest bubble.
func start(t *testing.T, a *APIServers) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = a.Start(ctx) })
	synctest.Wait()
	return func() {
		cancel()
		running.Wait()
	}
}

func reservedOf(a *APIServers) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return strings.Join(slices.Sorted(slices.Values(ca.Texts(slices.Collect(maps.Keys(a.names))))), " ")
}

// unread returns why a must still be read before a name, or a node's own name, is approved.
func unread(a *APIServers, own bool) error {
	_, err := a.Use(san.SAN{}, own)
	return err
}

// TestAPIServersReserve checks every name in the certificates, and in the kubeconfig, also if it has no host.
func TestAPIServersReserve(t *testing.T) {
	f := &fakeServers{endpoints: []string{"10.0.0.1:6443", "[fd00::2]:6443"}, shown: map[string]probe.Shown{
		"lb.example.com:443": shows(true, "LB.example.com", "*.example.com"),
		"10.0.0.1:6443":      shows(true, "control-plane-1", "10.0.0.1", "api.lab.example."),
		"[fd00::2]:6443":     shows(false, "control-plane-2"),
	}}
	const all = "10.0.0.1 api.lab.example control-plane-1 control-plane-2 "
	for host, want := range map[string]string{
		"https://lb.example.com:443": all + "lb.example.com ", "https://:443": all, "https://%": all, "https://192.000.2.1": all + "192.0.2.1 ",
	} {
		a := apiServersOf(t, f)
		a.config.Host = host
		got := a.round(t.Context())
		wanted := strings.Join(slices.Sorted(strings.FieldsSeq(want+"tls.example.com")), " ")
		if reserved := reservedOf(a); got != time.Minute || unread(a, false) != nil || reserved != wanted {
			t.Errorf("%s: again in %s, %v, reserved %s\nwant %s", host, got, unread(a, false), reserved, wanted)
		}
		for text, want := range map[string]string{
			"API.LAB.EXAMPLE": "in the serving certificate of 10.0.0.1:6443", "tls.example.com": "in the kubeconfig", "node-1.example.com": "",
		} {
			used, err := a.Use(san.Parse(text), false)
			expect.True(t, err == nil && used == want, "%s is %q, error %v, want %q", text, used, err, want)
		}
	}
}

// TestAPIServersAreReadBeforeApprovals checks that approvals wait until a certificate of the cluster's CA was read, and
// that later failures stop no approvals. It reads a metric of the whole process, so it does not run in parallel.
func TestAPIServersAreReadBeforeApprovals(t *testing.T) {
	f := &fakeServers{listFails: informer.ErrNotRead, shown: map[string]probe.Shown{}}
	a := apiServersOf(t, f)
	told, lines := 0, 0
	a.Changed = func() { told++ }
	a.log = funcr.New(func(string, string) { lines++ }, funcr.Options{})
	round := func(when string, ready, read bool, again time.Duration) {
		t.Helper()
		got := a.round(t.Context())
		if err := unread(a, false); got != again || (err == nil) != ready || errors.Is(err, informer.ErrNotRead) == read {
			t.Errorf("%s: again in %s, %v", when, got, err)
		}
	}
	round("the endpoints are not read", false, false, 2*time.Second)
	expect.Equal(t, "asked", f.handshakes(), "")
	f.listFails = errors.New("forbidden")
	round("the endpoints can't be read", false, true, 2*time.Second)
	err := unread(a, false)
	expect.True(t, errors.Is(err, f.listFails), "error %v, want %v", err, f.listFails)
	f.listFails, f.endpoints = nil, []string{"10.0.0.1:6443", "10.0.0.2:6443"}
	round("none answers", false, true, 2*time.Second)
	f.shown["10.0.0.1:6443"] = shows(false, "somebody.example.com")
	round("one answers that is not verified", false, true, 2*time.Second)
	expect.True(t, strings.Contains(reservedOf(a), "somebody.example.com"), "its name is not reserved")
	f.shown["10.0.0.2:6443"] = shows(true, "control-plane-2")
	round("one is verified, and the kubeconfig's can't be read", true, true, time.Minute)
	f.shown = map[string]probe.Shown{}
	round("none answers any more", true, true, time.Minute)
	logged := lines
	round("and still none", true, true, time.Minute)
	expect.True(t, strings.Contains(reservedOf(a), "control-plane-2") && told == 1 && logged != 0 && lines == logged,
		"what was read is forgotten, or told %d times, or logged %d times and then again", told, logged)
	unread := &dto.Metric{}
	if err := unreadAPIServers.Write(unread); err != nil || unread.GetGauge().GetValue() != 1 { // the other two were read once
		t.Errorf("%v API servers count as unread, error %v, want 1", unread.GetGauge().GetValue(), err)
	}
}

// TestAPIServersAreReadHourly runs APIServers for hours, and counts the handshakes.
func TestAPIServersAreReadHourly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeServers{endpoints: []string{"10.0.0.1:6443", "10.0.0.2:6443"}, shown: map[string]probe.Shown{
			"lb.example.com:443": shows(true, "lb.example.com"), "10.0.0.1:6443": shows(true, "old.example.com"), "10.0.0.2:6443": shows(true, "second.example.com"),
		}}
		a := apiServersOf(t, f)
		defer start(t, a)()
		after := func(pause time.Duration, wantAsked, wantReserved string) {
			t.Helper()
			time.Sleep(pause)
			synctest.Wait()
			expect.Equal(t, "handshakes", f.handshakes(), wantAsked)
			expect.Equal(t, "reserved", reservedOf(a), wantReserved+" tls.example.com")
		}
		const all = "10.0.0.1:6443 10.0.0.2:6443 lb.example.com:443"
		after(0, all, "lb.example.com old.example.com second.example.com")
		f.change(func() { f.shown["10.0.0.1:6443"] = shows(true, "new.example.com") })
		after(59*time.Minute, "", "lb.example.com old.example.com second.example.com")
		after(2*time.Minute, all, "lb.example.com new.example.com second.example.com")

		// It restarts with another certificate. Its names stay until it is back.
		f.wakes(a, func() { f.endpoints = f.endpoints[:1] })
		after(30*time.Minute, "", "lb.example.com new.example.com second.example.com")
		f.wakes(a, func() { f.endpoints, f.shown["10.0.0.2:6443"] = f.endpoints[:2], shows(true, "renewed.example.com") })
		after(0, "10.0.0.2:6443", "lb.example.com new.example.com renewed.example.com")

		// It is gone for good.
		f.wakes(a, func() { f.endpoints = f.endpoints[:1] })
		after(59*time.Minute, "10.0.0.1:6443 lb.example.com:443", "lb.example.com new.example.com renewed.example.com")
		after(3*time.Minute, "", "lb.example.com new.example.com")

		// It can't be reached: its names stay, and it is asked each minute.
		f.change(func() { delete(f.shown, "10.0.0.1:6443") })
		time.Sleep(time.Hour + 30*time.Second) // between two rounds
		f.handshakes()
		after(2*time.Minute, "10.0.0.1:6443 10.0.0.1:6443", "lb.example.com new.example.com")

		// The endpoints can't be listed, and then there are none, as in envtest.
		f.change(func() { f.listFails = errors.New("forbidden") })
		time.Sleep(3 * time.Hour)
		f.handshakes()
		after(0, "", "lb.example.com new.example.com")
		f.wakes(a, func() { f.endpoints, f.listFails = nil, nil })
		after(0, "lb.example.com:443", "lb.example.com")
	})
}

// TestOwnNamesWaitTenSeconds checks that the kubeconfig's names are reserved before the first handshake, and that the own
// names of nodes wait for a verified certificate, but not for longer than ten seconds.
func TestOwnNamesWaitTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for pause, told := range map[time.Duration]int{10 * time.Second: 0, 2 * time.Second: 1} { // told of a verified certificate
			f := &fakeServers{endpoints: []string{"10.0.0.1:6443"}, shown: map[string]probe.Shown{}}
			a := apiServersOf(t, f)
			got := 0
			a.Changed = func() { got++ }
			if reserved := reservedOf(a); reserved != "lb.example.com tls.example.com" || unread(a, true) == nil {
				t.Errorf("before the start: reserved %s, own names %v", reserved, unread(a, true))
			}
			end := start(t, a)
			expect.True(t, unread(a, false) != nil && unread(a, true) != nil, "ready before a certificate was read")
			if told == 1 {
				f.change(func() { f.shown["10.0.0.1:6443"] = shows(true, "control-plane-1") })
			}
			time.Sleep(pause + time.Millisecond)
			synctest.Wait()
			if (unread(a, false) == nil) != (told == 1) || unread(a, true) != nil || got != told {
				t.Errorf("after %s: %v, own names %v, told %d times", pause, unread(a, false), unread(a, true), got)
			}
			end()
		}
	})
}

// TestAPIServersAreBounded checks each bound with as much as it permits, and with one more.
func TestAPIServersAreBounded(t *testing.T) {
	for more := range 2 {
		f := &fakeServers{shown: map[string]probe.Shown{}}
		for i := range 32 + more {
			f.endpoints = append(f.endpoints, fmt.Sprintf("10.0.0.%d:6443", i))
		}
		var many []string
		for i := range 1000 + more {
			many = append(many, fmt.Sprintf("n-%d.example.com", i))
		}
		f.shown["10.0.0.0:6443"] = shows(true, many...)
		a := apiServersOf(t, f)
		a.round(t.Context())
		expect.Equal(t, "handshakes", len(f.asked), 33)
		expect.Equal(t, "reserved names, with those in the kubeconfig", len(a.names), 1002)
	}
}
