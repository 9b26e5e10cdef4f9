package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
)

// ServerName is a name in every API server's serving certificate.
const ServerName = "kubernetes.default.svc"

// Target is a server to ask.
type Target struct {
	// Name is the host:port of the server, or what the caller calls it.
	Name string
	// Cluster holds the settings to reach and to verify the server. Credentials in it are not used.
	Cluster *rest.Config
}

// Direct returns the API servers at addresses, each host:port, as Endpoints returns them. They are verified by the CA of
// cluster and by serverName. An empty serverName means ServerName. Nothing else of cluster is used, so the servers
// are asked without a proxy.
func Direct(cluster *rest.Config, serverName string, addresses []string) []Target {
	targets := make([]Target, 0, len(addresses))
	for _, address := range addresses {
		targets = append(targets, Target{Name: address, Cluster: &rest.Config{
			Host: "https://" + address, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
			TLSClientConfig: rest.TLSClientConfig{
				CAData: cluster.CAData, CAFile: cluster.CAFile, Insecure: cluster.Insecure,
				ServerName: cmp.Or(serverName, ServerName),
			},
		}})
	}
	return targets
}

// ErrNoEndpoints is the error of Endpoints if the API servers publish no address, as in envtest.
var ErrNoEndpoints = errors.New("the Service default/kubernetes has no endpoints, so there is no API server to ask")

// Endpoints returns the addresses of all API servers as they publish them: host:port of every endpoint of the Service
// kubernetes, ready or not, sorted. It fails if there is no endpoint, or if a slice lacks the port, because a proof
// must not miss a server. It needs list on endpointslices.discovery.k8s.io in namespace default.
//
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list
func Endpoints(ctx context.Context, reader client.Reader) ([]string, error) {
	list := &discoveryv1.EndpointSliceList{}
	ofService := client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}
	if err := call.List(ctx, reader, list, client.InNamespace("default"), ofService); err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of Service default/kubernetes: %w", err)
	}
	return EndpointsOf(list.Items)
}

// EndpointsOf is Endpoints for the given EndpointSlices of the Service kubernetes.
func EndpointsOf(all []discoveryv1.EndpointSlice) ([]string, error) {
	const port = "https"
	var addresses []string
	for _, slice := range all {
		if len(slice.Endpoints) == 0 {
			continue
		}
		at := slices.IndexFunc(slice.Ports, func(each discoveryv1.EndpointPort) bool {
			return each.Port != nil && ptr.Deref(each.Name, "") == port
		})
		if at < 0 {
			return nil, fmt.Errorf("EndpointSlice %s/%s has no port %q", slice.Namespace, slice.Name, port)
		}
		number := strconv.Itoa(int(*slice.Ports[at].Port))
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				addresses = append(addresses, net.JoinHostPort(address, number))
			}
		}
	}
	if len(addresses) == 0 {
		return nil, ErrNoEndpoints
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), nil
}
