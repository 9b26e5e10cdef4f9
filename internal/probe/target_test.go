package probe

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func slice(name, service, namespace, port string, number int32, ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("other"), Port: ptr.To(int32(1))}, {Name: &port, Port: &number}},
	}
	for _, address := range addresses {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return made
}

// ownScheme returns a scheme that a fake client may extend with unknown kinds, without affecting other tests.
func ownScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return scheme
}

func reader(objects ...client.Object) client.Reader {
	return fake.NewClientBuilder().WithScheme(ownScheme()).WithObjects(objects...).Build()
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		objects []client.Object
		want    []string
		err     string
	}{
		"none":         {err: "the Service default/kubernetes has no endpoints"},
		"an empty one": {objects: []client.Object{slice("a", "kubernetes", "default", "https", 6443, true)}, err: "has no endpoints"},
		"of others": {objects: []client.Object{
			slice("a", "other", "default", "https", 6443, true, "192.0.2.1"), slice("a", "kubernetes", "elsewhere", "https", 6443, true, "192.0.2.1"),
		}, err: "has no endpoints"},
		"ready or not, of both families, each once": {
			objects: []client.Object{
				slice("a", "kubernetes", "default", "https", 6443, true, "192.0.2.2", "192.0.2.1"),
				slice("b", "kubernetes", "default", "https", 6443, false, "192.0.2.3", "192.0.2.1"),
				slice("c", "kubernetes", "default", "https", 443, true, "2001:db8::1"),
			},
			want: []string{"192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.3:6443", "[2001:db8::1]:443"},
		},
		"a slice without the port is an error": {
			objects: []client.Object{
				slice("a", "kubernetes", "default", "https", 6443, true, "192.0.2.1"), slice("b", "kubernetes", "default", "http", 6443, true, "192.0.2.2"),
			},
			err: `EndpointSlice default/b has no port "https"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Endpoints(t.Context(), reader(test.objects...))
			if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v; want %q, %q", got, err, test.want, test.err)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	broken := failing{reader()}
	if got, err := Endpoints(ended, broken); err == nil {
		t.Errorf("got %q of an API server that does not answer", got)
	}
}

// failing is a reader of an API server that does not answer.
type failing struct{ client.Reader }

func (failing) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	return ctx.Err()
}

func TestListed(t *testing.T) {
	t.Parallel()
	got, err := Listed([]string{"b.test:6443", "https://lb.test/cluster", "[2001:db8::1]:443", "b.test:6443"})
	if want := []string{"[2001:db8::1]:443", "b.test:6443", "https://lb.test/cluster"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, bad := range [][]string{nil, {}, {""}, {"a.test"}, {":6443"}, {"a.test:https"}, {"a.test:99999"}, {"http://a.test:80"}, {"https://user:secret@a.test"}, {"https://"}, {"a.test:1", "b"}} {
		if got, err := Listed(bad); err == nil {
			t.Errorf("%q is taken as %q", bad, got)
		}
	}
}

// TestDirectTakesNothingElse checks that Direct takes no credential and no proxy from the manager's configuration.
func TestDirectTakesNothingElse(t *testing.T) {
	t.Parallel()
	probe, other := mint(t), mint(t)
	s, own := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	address := s.Listener.Addr().String()
	own.Host = "https://elsewhere.test/path"
	withCredentials(t, own, other)
	own.ServerName = "elsewhere.test"
	own.Timeout = 1
	targets := Direct(own, "example.com", []string{address, "https://" + address}) // the name is in httptest's certificate
	if len(targets) != 2 || targets[0].Name != address {
		t.Fatalf("targets are %+v", targets)
	}
	for _, target := range targets {
		if got := probe.AskTarget(t.Context(), target); got.Trust != Recognised {
			t.Fatalf("%s: %s", got.Trust, got.Evidence)
		}
		s.sawOnly(t, probe)
	}
	for name, ask := range map[string]Target{
		"by the usual name, which this one does not have": Direct(own, "", []string{address})[0],
		"unverified": Direct(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "", []string{address})[0],
	} {
		if got := probe.AskTarget(t.Context(), ask); got.Trust != Unknown {
			t.Errorf("%s: %s: %s", name, got.Trust, got.Evidence)
		}
	}
}

func TestAskFollowsNobodyElsewhere(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	there, _ := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	here, cluster := serve(t, nil)
	here.Config.Handler = http.RedirectHandler(there.URL, http.StatusTemporaryRedirect)
	cluster.CAData = append(cluster.CAData, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: there.Certificate().Raw})...)
	if got := probe.Ask(t.Context(), cluster); got.Trust != Unknown || len(there.shown) > 0 {
		t.Errorf("%s: %s; %d certificates shown elsewhere", got.Trust, got.Evidence, len(there.shown))
	}
}

func apiService(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func TestAggregated(t *testing.T) {
	t.Parallel()
	at := func(name string, port any) map[string]any {
		of := map[string]any{"namespace": "ns", "name": name}
		if port != nil {
			of["port"] = port
		}
		return of
	}
	service := func(name string, spec corev1.ServiceSpec) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec}
	}
	https := []corev1.ServicePort{{Name: "metrics", Port: 8080}, {Name: "https", Port: 443}}
	objects := []client.Object{
		apiService("v1.apps", map[string]any{"group": "apps", "version": "v1"}), // the API server's own
		apiService("v1.metrics", map[string]any{"group": "metrics", "version": "v1", "caBundle": "Y2E=", "service": at("metrics", nil)}),
		apiService("v2.metrics", map[string]any{"group": "metrics", "version": "v2", "caBundle": "Y2E=", "service": at("metrics", int64(443))}),
		apiService("v1.outside", map[string]any{"group": "outside", "version": "v1", "insecureSkipTLSVerify": true, "service": at("outside", int64(8443))}),
		apiService("v1.gone", map[string]any{"group": "gone", "version": "v1", "service": at("gone", nil)}),
		apiService("v1.down", map[string]any{"group": "down", "version": "v1", "service": at("down", nil)}),
		apiService("v1.port", map[string]any{"group": "port", "version": "v1", "service": at("metrics", int64(1234))}),
		service("metrics", corev1.ServiceSpec{Ports: https}),
		slice("metrics-1", "metrics", "ns", "https", 10250, true, "192.0.2.1", "192.0.2.2"),
		service("outside", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "outside.test"}),
		service("down", corev1.ServiceSpec{Ports: https}),
	}
	targets, unknown, err := Aggregated(t.Context(), reader(objects...))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, target := range targets {
		got = append(got, strings.Join([]string{target.Name, target.Cluster.Host, target.Cluster.ServerName, string(target.Cluster.CAData), target.resource}, " | "))
	}
	want := []string{
		"ns/metrics at 192.0.2.1:10250 | https://192.0.2.1:10250 | metrics.ns.svc | ca | /apis/metrics/v1/csr-controller-manager-trust-probes",
		"ns/metrics at 192.0.2.2:10250 | https://192.0.2.2:10250 | metrics.ns.svc | ca | /apis/metrics/v1/csr-controller-manager-trust-probes",
		"ns/outside at outside.test:8443 | https://outside.test:8443 | outside.ns.svc |  | /apis/outside/v1/csr-controller-manager-trust-probes",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("targets are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, part := range map[string]string{"v1.gone": "not found", "v1.down": "the Service ns/down has no endpoints", "v1.port": "the Service ns/metrics has no port 1234"} {
		if answer := unknown[name]; answer.Trust != Unknown || !strings.Contains(answer.Evidence, part) {
			t.Errorf("%s is %s: %s", name, answer.Trust, answer.Evidence)
		}
	}
	if len(unknown) != 3 {
		t.Errorf("unknown are %v", unknown)
	}
	if _, _, err := Aggregated(t.Context(), fake.NewClientBuilder().WithScheme(ownScheme()).WithInterceptorFuncs(unreadable).Build()); err == nil {
		t.Error("no error when they can't be listed")
	}
}
