package node

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

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

// TestAPIServersReserve checks every name in the certificates, and in the kubeconfig, also if it has no host.
func TestAPIServersReserve(t *testing.T) {
	t.Parallel()
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
		if reserved := reservedOf(a); got != retryOther || a.Ready() != nil || reserved != wanted {
			t.Errorf("%s: again in %s, %v, reserved %s\nwant %s", host, got, a.Ready(), reserved, wanted)
		}
		for text, want := range map[string]string{
			"API.LAB.EXAMPLE": "in the serving certificate of 10.0.0.1:6443", "tls.example.com": "in the kubeconfig", "node-1.example.com": "",
		} {
			if got := a.Has(san.Parse(text)); got != want {
				t.Errorf("%s is %q, want %q", text, got, want)
			}
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
	expect := func(when string, ready, read bool, again time.Duration) {
		t.Helper()
		got := a.round(t.Context())
		if err := a.Ready(); got != again || (err == nil) != ready || errors.Is(err, informer.ErrNotRead) == read {
			t.Errorf("%s: again in %s, %v", when, got, err)
		}
	}
	expect("the endpoints are not read", false, false, retryFirst)
	if asked := f.handshakes(); asked != "" {
		t.Errorf("asked %s", asked)
	}
	f.listFails = errors.New("forbidden")
	expect("the endpoints can't be read", false, true, retryFirst)
	if err := a.Ready(); !errors.Is(err, f.listFails) {
		t.Errorf("error %v, want %v", err, f.listFails)
	}
	f.listFails, f.endpoints = nil, []string{"10.0.0.1:6443", "10.0.0.2:6443"}
	expect("none answers", false, true, retryFirst)
	f.shown["10.0.0.1:6443"] = shows(false, "somebody.example.com")
	expect("one answers that is not verified", false, true, retryFirst)
	if a.Has(san.Parse("somebody.example.com")) == "" {
		t.Error("its name is not reserved")
	}
	f.shown["10.0.0.2:6443"] = shows(true, "control-plane-2")
	expect("one is verified, and the kubeconfig's can't be read", true, true, retryOther)
	f.shown = map[string]probe.Shown{}
	expect("none answers any more", true, true, retryOther)
	logged := lines
	expect("and still none", true, true, retryOther)
	if a.Has(san.Parse("control-plane-2")) == "" || told != 1 || logged == 0 || lines != logged {
		t.Errorf("what was read is forgotten, or told %d times, or logged %d times and then again", told, logged)
	}
	unread := &dto.Metric{}
	if err := unreadAPIServers.Write(unread); err != nil || unread.GetGauge().GetValue() != 1 { // the other two were read once
		t.Errorf("%v API servers count as unread, error %v, want 1", unread.GetGauge().GetValue(), err)
	}
	if err := (*APIServers)(nil).Ready(); err != nil {
		t.Errorf("without Services: %v", err)
	}
}

// TestAPIServersAreReadHourly runs APIServers for hours, and counts the handshakes.
func TestAPIServersAreReadHourly(t *testing.T) {
	t.Parallel()
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
			if got := f.handshakes(); got != wantAsked {
				t.Errorf("handshakes with %q, want %q", got, wantAsked)
			}
			if got := reservedOf(a); got != wantReserved+" tls.example.com" {
				t.Errorf("reserved %s, want %s", got, wantReserved)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for pause, told := range map[time.Duration]int{ownNamesWait: 0, retryFirst: 1} { // told of a verified certificate
			f := &fakeServers{endpoints: []string{"10.0.0.1:6443"}, shown: map[string]probe.Shown{}}
			a := apiServersOf(t, f)
			got := 0
			a.Changed = func() { got++ }
			if reserved := reservedOf(a); reserved != "lb.example.com tls.example.com" || a.ReadyForOwnNames() == nil {
				t.Errorf("before the start: reserved %s, own names %v", reserved, a.ReadyForOwnNames())
			}
			end := start(t, a)
			if a.Ready() == nil || a.ReadyForOwnNames() == nil {
				t.Error("ready before a certificate was read")
			}
			if told == 1 {
				f.change(func() { f.shown["10.0.0.1:6443"] = shows(true, "control-plane-1") })
			}
			time.Sleep(pause + time.Millisecond)
			synctest.Wait()
			if (a.Ready() == nil) != (told == 1) || a.ReadyForOwnNames() != nil || got != told {
				t.Errorf("after %s: %v, own names %v, told %d times", pause, a.Ready(), a.ReadyForOwnNames(), got)
			}
			end()
		}
	})
}

// TestAPIServersAreBounded checks each bound with as much as it permits, and with one more.
func TestAPIServersAreBounded(t *testing.T) {
	t.Parallel()
	for more := range 2 {
		f := &fakeServers{shown: map[string]probe.Shown{}}
		for i := range maxAPIServers + more {
			f.endpoints = append(f.endpoints, fmt.Sprintf("10.0.0.%d:6443", i))
		}
		var many []string
		for i := range maxServerNames + more {
			many = append(many, fmt.Sprintf("n-%d.example.com", i))
		}
		f.shown["10.0.0.0:6443"] = shows(true, many...)
		a := apiServersOf(t, f)
		a.round(t.Context())
		if asked := len(f.asked); asked != maxAPIServers+1 {
			t.Errorf("%d handshakes, want %d", asked, maxAPIServers+1)
		}
		if got := len(a.names); got != maxServerNames+2 { // and those in the kubeconfig
			t.Errorf("%d names are reserved", got)
		}
	}
}

// TestAPIServersReadARealCertificate makes a TLS handshake with a server on loopback.
func TestAPIServersReadARealCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, trusted := range [][]byte{caPEM, nil} {
		a := NewAPIServers(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: trusted}}, sourceOf(t), logr.Discard())
		a.round(t.Context())
		if err := a.Ready(); (err == nil) != (trusted != nil) {
			t.Errorf("trusted %q: %v", trusted, err)
		}
		if got := a.Has(san.Parse("example.com")); got != "in the serving certificate of "+kubeconfigHost { // of httptest's certificate
			t.Errorf("example.com is %q", got)
		}
	}
}
