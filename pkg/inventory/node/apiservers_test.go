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
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// fakeServers holds API servers by host:port, and by host:port#NAME if they present another certificate for a name.
type fakeServers struct {
	mu        sync.Mutex
	endpoints []string
	shown     map[string]probe.Shown
	asked     []string
}

func (f *fakeServers) read(_ context.Context, cluster *rest.Config) (probe.Shown, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := strings.TrimPrefix(cluster.Host, "https://")
	f.asked = append(f.asked, at+"#"+cluster.ServerName)
	if shown, found := f.shown[at+"#"+cluster.ServerName]; found {
		return shown, nil
	}
	shown, found := f.shown[at]
	if !found {
		return probe.Shown{}, errors.New("connection refused")
	}
	return shown, nil
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
func apiServersOf(f *fakeServers) (*APIServers, *clocktesting.FakeClock) {
	steps := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	return &APIServers{
		config:    &rest.Config{Host: "https://lb.example.com:443", TLSClientConfig: rest.TLSClientConfig{ServerName: "tls.example.com"}},
		endpoints: func() ([]string, error) { return f.endpoints, nil },
		read:      f.read, clock: steps, log: logr.Discard(), wake: make(chan struct{}, 1), servers: map[string]*apiServer{}, err: informer.ErrNotRead,
		info: infoOf(""), Changed: func() {}, Freed: func([]san.SAN) {},
	}, steps
}

// infoOf returns an informer that has read cluster-info with a kubeconfig, if there is one.
func infoOf(kubeconfig string) *informer.Informer[*serverList] {
	info := &informer.Informer[*serverList]{}
	if kubeconfig == "" {
		info.Fake(nil)
		return info
	}
	info.Fake(nil, readServers(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": kubeconfig},
	}))
	return info
}

func reservedOf(a *APIServers) string {
	return strings.Join(slices.Sorted(slices.Values(inventory.Keys(slices.Collect(maps.Keys(a.names))))), " ")
}

const info = `{clusters: [{name: "", cluster: {server: "https://info.example.com:6443", tls-server-name: sni.example.com}}]}`

// TestAPIServersReserve checks every name that clients use to reach API servers.
func TestAPIServersReserve(t *testing.T) {
	t.Parallel()
	f := &fakeServers{endpoints: []string{"10.0.0.1:6443", "[fd00::2]:6443"}, shown: map[string]probe.Shown{
		"lb.example.com:443":             shows(true, "LB.example.com", "*.example.com"),
		"10.0.0.1:6443":                  shows(true, "control-plane-1", "10.0.0.1", "api.lab.example."),
		"10.0.0.1:6443#info.example.com": shows(false, "only-by-sni.example.com"),
		"[fd00::2]:6443":                 shows(true, "control-plane-2"),
	}}
	a, _ := apiServersOf(f)
	a.info = infoOf(info)
	if got := a.round(t.Context()); got != readEvery || a.Ready() != nil {
		t.Errorf("again in %s, %v", got, a.Ready())
	}
	want := "10.0.0.1 api.lab.example control-plane-1 control-plane-2 fd00::2 info.example.com lb.example.com only-by-sni.example.com sni.example.com tls.example.com"
	if got := reservedOf(a); got != want {
		t.Errorf("reserved %s\nwant     %s", got, want)
	}
	if a.Has(san.Parse("node-1.example.com")) != "" || a.Has(san.Parse("API.LAB.EXAMPLE")) == "" {
		t.Error("a wildcard reserves the names of nodes, or a name counts by its case")
	}
}

// Approvals wait until a certificate of the cluster's CA has been read. Later failures stop no approvals.
func TestAPIServersAreReadBeforeApprovals(t *testing.T) {
	t.Parallel()
	f := &fakeServers{endpoints: []string{"10.0.0.1:6443", "10.0.0.2:6443"}, shown: map[string]probe.Shown{}}
	a, _ := apiServersOf(f)
	a.config = &rest.Config{Host: "https://10.96.0.1:443"}
	told := 0
	a.Changed = func() { told++ }
	if err := a.Ready(); !errors.Is(err, informer.ErrNotRead) {
		t.Errorf("at the start: %v", err)
	}
	expect := func(when string, ready bool, again time.Duration) {
		t.Helper()
		if got := a.round(t.Context()); got != again || (a.Ready() == nil) != ready || errors.Is(a.Ready(), informer.ErrNotRead) {
			t.Errorf("%s: again in %s, %v", when, got, a.Ready())
		}
	}
	expect("none answers", false, readFirst)
	f.shown["10.0.0.1:6443"] = shows(false, "somebody.example.com")
	expect("one answers that is not verified", false, readFirst)
	if a.Has(san.Parse("somebody.example.com")) == "" {
		t.Error("its name is not reserved")
	}
	f.shown["10.0.0.2:6443"] = shows(true, "control-plane-2")
	expect("one is verified, and the kubeconfig's can't be read", true, readUnread)
	f.shown = map[string]probe.Shown{}
	expect("none answers any more", true, readUnread)
	if a.Has(san.Parse("control-plane-2")) == "" || told != 1 {
		t.Errorf("what was read is forgotten, or told %d times", told)
	}
}

// cluster-info is also read before approvals, unless that is forbidden.
func TestClusterInfoIsRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		ready bool
	}{
		"not read yet":  {informer.ErrNotRead, false},
		"not permitted": {fmt.Errorf("grant it: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", nil)), true},
		"none":          {nil, true},
	} {
		a, _ := apiServersOf(&fakeServers{shown: map[string]probe.Shown{"lb.example.com:443": shows(true, "lb.example.com")}})
		a.info.Fake(test.err)
		a.round(t.Context())
		if (a.Ready() == nil) != test.ready {
			t.Errorf("%s: %v", name, a.Ready())
		}
	}
}

// A new certificate replaces the old one at once. An API server that is gone is dropped after an hour, because it may
// restart.
func TestAPIServersAreKeptCurrent(t *testing.T) {
	t.Parallel()
	f := &fakeServers{endpoints: []string{"10.0.0.1:6443", "10.0.0.2:6443"}, shown: map[string]probe.Shown{
		"lb.example.com:443": shows(true, "lb.example.com"), "10.0.0.1:6443": shows(true, "old.example.com"), "10.0.0.2:6443": shows(true, "second.example.com"),
	}}
	a, steps := apiServersOf(f)
	var freed []san.SAN
	a.Freed = func(sans []san.SAN) { freed = append(freed, sans...) }
	a.round(t.Context())
	f.shown["10.0.0.1:6443"] = shows(true, "new.example.com")
	f.endpoints = f.endpoints[:1]
	a.round(t.Context())
	if a.Has(san.Parse("new.example.com")) == "" || a.Has(san.Parse("old.example.com")) != "" || a.Has(san.Parse("second.example.com")) == "" {
		t.Error(reservedOf(a))
	}
	steps.Step(forgetAfter + time.Second)
	a.round(t.Context())
	if a.Has(san.Parse("second.example.com")) != "" || !slices.Contains(freed, san.Parse("second.example.com")) || !slices.Contains(freed, san.Parse("old.example.com")) {
		t.Errorf("%s, freed %s", reservedOf(a), freed)
	}
}

// Behind a load balancer each read may return another certificate. A value that was not read for an hour is dropped.
func TestAPIServersBehindALoadBalancer(t *testing.T) {
	t.Parallel()
	f := &fakeServers{shown: map[string]probe.Shown{}}
	a, steps := apiServersOf(f)
	for _, name := range []string{"first.example.com", "second.example.com", "first.example.com"} {
		f.shown["lb.example.com:443"] = shows(true, name)
		a.round(t.Context())
		steps.Step(forgetAfter * 2 / 3)
	}
	if a.Has(san.Parse("first.example.com")) == "" || a.Has(san.Parse("second.example.com")) == "" {
		t.Errorf("reserved %s", reservedOf(a))
	}
	a.round(t.Context())
	if a.Has(san.Parse("first.example.com")) == "" || a.Has(san.Parse("second.example.com")) != "" {
		t.Errorf("an hour later, reserved %s", reservedOf(a))
	}
}

// API servers are not dropped while the endpoints are unknown.
func TestAPIServersStayWhileEndpointsAreUnknown(t *testing.T) {
	t.Parallel()
	f := &fakeServers{endpoints: []string{"10.0.0.1:6443"}, shown: map[string]probe.Shown{
		"lb.example.com:443": shows(true, "lb.example.com"), "10.0.0.1:6443": shows(true, "first.example.com"),
	}}
	a, steps := apiServersOf(f)
	var failed error
	a.endpoints = func() ([]string, error) {
		if failed != nil {
			return nil, failed
		}
		return f.endpoints, nil
	}
	for _, failed = range []error{nil, errors.New("forbidden"), errors.New("forbidden")} {
		a.round(t.Context())
		steps.Step(forgetAfter)
	}
	if a.Has(san.Parse("first.example.com")) == "" {
		t.Errorf("reserved %s", reservedOf(a))
	}
	failed = probe.ErrNoEndpoints
	a.round(t.Context())
	steps.Step(forgetAfter)
	a.round(t.Context())
	if a.Has(san.Parse("first.example.com")) != "" {
		t.Errorf("reserved %s", reservedOf(a))
	}
}

// Reads are bounded, whatever endpoints and certificates hold.
func TestAPIServersAreBounded(t *testing.T) {
	t.Parallel()
	f := &fakeServers{shown: map[string]probe.Shown{"lb.example.com:443": shows(true, "lb.example.com")}}
	for i := range 100 {
		f.endpoints = append(f.endpoints, fmt.Sprintf("10.0.0.%d:6443", i))
	}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("n-%d.example.com", i))
	}
	f.shown["10.0.0.0:6443"] = shows(true, many...)
	a, _ := apiServersOf(f)
	a.info = infoOf("{clusters: [" + strings.Repeat(`{name: a, cluster: {server: "https://a.example.com"}},`, 3000) + "]}")
	a.round(t.Context())
	if servers := len(a.servers); servers != maxAPIServers+1 || len(f.asked) > servers*(maxHosts+1) {
		t.Errorf("%d API servers, asked %d times", servers, len(f.asked))
	}
	if got := len(a.names); got > maxServerNames+maxAPIServers+10 {
		t.Errorf("%d names are reserved", got)
	}
}

// TestAPIServersBoundsAreExact checks each bound with as much as it permits, and with one more.
func TestAPIServersBoundsAreExact(t *testing.T) {
	t.Parallel()
	names := func(count int) (all []string) {
		for i := range count {
			all = append(all, fmt.Sprintf("n-%04d.example.com", i))
		}
		return all
	}
	for more := range 2 {
		f := &fakeServers{shown: map[string]probe.Shown{"a:1": shows(true, names(maxServerNames+more)...)}}
		a, _ := apiServersOf(f)
		server, _ := a.readOne(t.Context(), []*rest.Config{{Host: "https://a:1"}})
		if len(server.shown) != maxServerNames || (server.err != nil) != (more > 0) {
			t.Errorf("of %d names %d are reserved, error %v", maxServerNames+more, len(server.shown), server.err)
		}
		text := info + strings.Repeat(" ", maxInfo-len(info)+more)
		list := readServers(&corev1.ConfigMap{Data: map[string]string{"kubeconfig": text}})
		if got := len(list.servers); got != 2*(1-more) {
			t.Errorf("%d servers of a cluster-info of %d bytes", got, len(text))
		}
	}
	clusters := `{name: none, cluster: {}},`
	hosts := map[san.SAN]string{san.Parse("10.0.0.9"): "an endpoint"}
	for _, name := range names(maxHosts + 5) {
		clusters += fmt.Sprintf(`{name: %[1]s, cluster: {server: "https://%[1]s"}},`, name)
		hosts[san.Parse(name)] = "somewhere"
	}
	list := readServers(&corev1.ConfigMap{Data: map[string]string{"kubeconfig": "{clusters: [" + clusters + "]}"}})
	if len(list.servers) != maxHosts || slices.Contains(list.servers, san.SAN{}) {
		t.Errorf("cluster-info has %d servers, want %d: %v", len(list.servers), maxHosts, list.servers)
	}
	a, steps := apiServersOf(&fakeServers{})
	for at, ways := range a.targets([]string{"10.0.0.1:6443"}, hosts) {
		if at != kubeconfigHost && len(ways) != maxHosts+1 {
			t.Errorf("%s is asked in %d ways, want %d", at, len(ways), maxHosts+1)
		}
	}

	now := steps.Now()
	last := &apiServer{shown: map[san.SAN]time.Time{
		san.Parse("an-hour-ago"): now.Add(-forgetAfter), san.Parse("earlier"): now.Add(-forgetAfter - 1),
	}}
	remembers := &apiServer{shown: map[san.SAN]time.Time{}}
	remembers.remember(last, true, now)
	a.servers = map[string]*apiServer{"an-hour-ago": {listed: now.Add(-forgetAfter)}, "earlier": {listed: now.Add(-forgetAfter - 1)}}
	a.forget(nil, true)
	if _, kept := remembers.shown[san.Parse("an-hour-ago")]; !kept || len(remembers.shown) != 1 || a.servers["an-hour-ago"] == nil || len(a.servers) != 1 {
		t.Errorf("names %v and API servers %v are kept", remembers.shown, a.servers)
	}
}

// TestKnownWithoutAnAnswer checks the names of the kubeconfig, also of one without a host.
func TestKnownWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"https://lb.example.com:443": "lb.example.com tls.example.com", "https://:443": "tls.example.com", "https://%": "tls.example.com",
	} {
		a, _ := apiServersOf(&fakeServers{})
		a.config.Host = host
		a.names = a.known(nil)
		if got := reservedOf(a); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}

// TestClusterInfoIsKept checks that the last servers stay while cluster-info can't be read.
func TestClusterInfoIsKept(t *testing.T) {
	t.Parallel()
	a, _ := apiServersOf(&fakeServers{})
	a.info = infoOf(info)
	before := a.readInfo()
	a.info.Fake(errors.New("down"))
	if after := a.readInfo(); before != nil || after != nil || len(a.hosts) != 2 {
		t.Errorf("errors %v, %v, hosts %v", before, after, a.hosts)
	}
}

// TestAPIServersAreReportedOnce checks that a lasting problem is logged once, and that nobody is woken for nothing. It
// reads a metric of the whole process, so it does not run in parallel.
func TestAPIServersAreReportedOnce(t *testing.T) {
	f := &fakeServers{endpoints: []string{"10.0.0.1:6443"}, shown: map[string]probe.Shown{"lb.example.com:443": shows(true, "lb.example.com")}}
	a, _ := apiServersOf(f)
	lines, freed := 0, 0
	a.log = funcr.New(func(string, string) { lines++ }, funcr.Options{})
	a.Freed = func([]san.SAN) { freed++ }
	for range 2 {
		a.round(t.Context())
	}
	unread := &dto.Metric{}
	if err := unreadAPIServers.Write(unread); err != nil || unread.GetGauge().GetValue() != 1 {
		t.Errorf("%v API servers count as unread, error %v, want 1", unread.GetGauge().GetValue(), err)
	}
	if lines != 1 || freed != 0 {
		t.Errorf("logged %d times that an API server can't be read, freed names %d times", lines, freed)
	}

	lines = 0
	all := make([]string, maxAPIServers+1)
	for i, step := range []struct {
		endpoints []string
		err       error
		want      int
	}{
		{endpoints: all[1:]},
		{endpoints: all, want: 1}, {endpoints: all, want: 1},
		{endpoints: all[1:], err: errors.New("down"), want: 2},
		{endpoints: all[1:], want: 2},
	} {
		if got := a.bounded(step.endpoints, step.err); len(got) != maxAPIServers || lines != step.want {
			t.Errorf("step %d: %d endpoints, %d lines, want %d", i, len(got), lines, step.want)
		}
	}
}
