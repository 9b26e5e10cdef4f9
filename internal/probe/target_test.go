package probe

import (
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// slice returns an EndpointSlice with two ports: other, and the given one.
func slice(namespace, name, service, port string, number int32, ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("other"), Port: ptr.To(int32(1))}, {Name: &port, Port: &number}},
	}
	for _, address := range addresses {
		conditions := discoveryv1.EndpointConditions{Ready: &ready}
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: conditions})
	}
	return made
}

// TestEndpoints checks that the API servers are all endpoints of the Service default/kubernetes, and that it is an
// error if one may be missing.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	one := slice("default", "a", "kubernetes", "https", 6443, true, "192.0.2.2", "192.0.2.1")
	for name, test := range map[string]struct {
		objects []client.Object
		want    []string
		err     string
	}{
		"an empty one": {
			objects: []client.Object{slice("default", "a", "kubernetes", "https", 6443, true)}, err: "the Service default/kubernetes has no endpoints",
		},
		"of others": {objects: []client.Object{
			slice("default", "a", "other", "https", 6443, true, "192.0.2.1"), slice("elsewhere", "a", "kubernetes", "https", 6443, true, "192.0.2.1"),
		}, err: "has no endpoints"},
		"ready or not, of both families, each once": {objects: []client.Object{
			one, slice("default", "b", "kubernetes", "https", 6443, false, "192.0.2.3", "192.0.2.1"),
			slice("default", "c", "kubernetes", "https", 443, true, "2001:db8::1"),
		}, want: []string{"192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.3:6443", "[2001:db8::1]:443"}},
		"a slice without the port is an error": {
			objects: []client.Object{one, slice("default", "b", "kubernetes", "http", 6443, true, "192.0.2.2")},
			err:     `EndpointSlice default/b has no port "https"`,
		},
	} {
		got, err := Endpoints(t.Context(), fake.NewClientBuilder().WithObjects(test.objects...).Build())
		if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, %v; want %q, %q", name, got, err, test.want, test.err)
		}
	}
}

// TestDirectTakesNothingElse checks that Direct takes no credential and no proxy from the manager's configuration.
func TestDirectTakesNothingElse(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	s, own := serve(t, knows(probe))
	address := s.Listener.Addr().String()
	withCredentials(t, own)
	own.Host, own.ServerName, own.Timeout = "https://elsewhere.test/path", "elsewhere.test", 1
	target := Direct(own, "example.com", []string{address})[0] // the name is in httptest's certificate
	wants(t, target.Name, probe.Ask(t.Context(), target.Cluster), Recognised, "")
	s.sawOnly(t, probe)
	insecure := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	for name, target := range map[string]Target{
		"by the usual name, which this one does not have": Direct(own, "", []string{address})[0],
		"unverified":    Direct(insecure, "", []string{address})[0],
		"not host:port": Direct(own, "", []string{"https://user:secret@" + address})[0],
	} {
		wants(t, name, probe.Ask(t.Context(), target.Cluster), Unknown, "")
	}
}
