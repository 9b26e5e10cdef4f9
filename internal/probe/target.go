package probe

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ServerName is a name in every API server's serving certificate.
const ServerName = "kubernetes.default.svc"

// Target is a server to ask.
type Target struct {
	// Name identifies the server: host:port or the URL of an API server. For an aggregated API server, its Service
	// comes first.
	Name string
	// Cluster holds the settings to reach and to verify the server. Credentials in it are not used.
	Cluster *rest.Config

	// resource, if not empty, is a path of an API that the server serves. An aggregated API server has no
	// SelfSubjectReview.
	resource string
}

// AskTarget presents c to target.
func (c *Certificate) AskTarget(ctx context.Context, target Target) Answer {
	if target.resource != "" {
		return c.askResource(ctx, target)
	}
	return c.Ask(ctx, target.Cluster)
}

// Direct returns the API servers at addresses, which Endpoints or Listed returned. They are verified by the CA of
// cluster and by serverName. An empty serverName means ServerName. Nothing else of cluster is used, so the servers
// are asked without a proxy.
func Direct(cluster *rest.Config, serverName string, addresses []string) []Target {
	if serverName == "" {
		serverName = ServerName
	}
	targets := make([]Target, 0, len(addresses))
	for _, address := range addresses {
		host := address
		if _, _, err := net.SplitHostPort(address); err == nil {
			host = "https://" + address
		}
		targets = append(targets, Target{Name: address, Cluster: direct(host, rest.TLSClientConfig{
			CAData: cluster.CAData, CAFile: cluster.CAFile, Insecure: cluster.Insecure, ServerName: serverName,
		})})
	}
	return targets
}

func direct(host string, tls rest.TLSClientConfig) *rest.Config {
	return &rest.Config{Host: host, TLSClientConfig: tls, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }}
}

// ErrNoEndpoints is the error of Endpoints if the API servers publish no address, as in envtest.
var ErrNoEndpoints = errors.New("the Service default/kubernetes has no endpoints, so there is no API server to ask")

// Endpoints returns the addresses of all API servers as they publish them: host:port of every endpoint of the Service
// kubernetes, ready or not, sorted. It fails if there is no endpoint, or if a slice lacks the port, because a proof
// must not miss a server. It needs list on endpointslices.discovery.k8s.io in namespace default.
func Endpoints(ctx context.Context, reader client.Reader) ([]string, error) {
	addresses, err := endpoints(ctx, reader, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, "https")
	return some(addresses, err)
}

// EndpointsOf is Endpoints for the given EndpointSlices of the Service kubernetes.
func EndpointsOf(all []discoveryv1.EndpointSlice) ([]string, error) {
	return some(addressesOf(all, "https"))
}

func some(addresses []string, err error) ([]string, error) {
	if err == nil && len(addresses) == 0 {
		return nil, ErrNoEndpoints
	}
	return addresses, err
}

// endpoints returns the addresses of a Service with its port of that name.
func endpoints(ctx context.Context, reader client.Reader, service client.ObjectKey, port string) ([]string, error) {
	slicesOf := &discoveryv1.EndpointSliceList{}
	ofService := client.MatchingLabels{discoveryv1.LabelServiceName: service.Name}
	if err := reader.List(ctx, slicesOf, client.InNamespace(service.Namespace), ofService); err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of Service %s: %w", service, err)
	}
	return addressesOf(slicesOf.Items, port)
}

func addressesOf(all []discoveryv1.EndpointSlice, port string) ([]string, error) {
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
	slices.Sort(addresses)
	return slices.Compact(addresses), nil
}

// Listed checks addresses that an owner has configured: each must be host:port or an https URL. An empty list is an
// error. Listed returns the addresses sorted and without repetition.
func Listed(addresses []string) ([]string, error) {
	if len(addresses) == 0 {
		return nil, fmt.Errorf("no API server is configured, so there is no API server to ask")
	}
	for _, address := range addresses {
		if host, port, err := net.SplitHostPort(address); err == nil && host != "" {
			if _, err := strconv.ParseUint(port, 10, 16); err == nil {
				continue
			}
		}
		if at, err := url.Parse(address); err == nil && at.Scheme == "https" && at.Host != "" && at.User == nil {
			continue
		}
		return nil, fmt.Errorf("%q is neither host:port nor an https URL", address)
	}
	sorted := slices.Sorted(slices.Values(addresses))
	return slices.Compact(sorted), nil
}

// resourceNobodyHas is a resource that no user may read. A server that identifies the user names it when it forbids
// the request.
const resourceNobodyHas = "csr-controller-manager-trust-probes"

var apiServices = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIServiceList"}

// aggregated is the part of an APIService that locates its API server
// (k8s.io/kube-aggregator/pkg/apis/apiregistration/v1).
type aggregated struct {
	Group                 string `json:"group"`
	Version               string `json:"version"`
	CABundle              string `json:"caBundle"`
	InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
	Service               *struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Port      *int32 `json:"port"`
	} `json:"service"`
}

// Aggregated returns the aggregated API servers, which accept client certificates too: every endpoint of every
// Service that an APIService names, without repetition. If the servers of an APIService can't be found, unknown holds
// the reason under its name.
//
// Endpoints needs these rights too.
//
// +kubebuilder:rbac:groups=apiregistration.k8s.io,resources=apiservices,verbs=list
// +kubebuilder:rbac:groups="",resources=services,verbs=get
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list
func Aggregated(ctx context.Context, reader client.Reader) (targets []Target, unknown map[string]Answer, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(apiServices)
	if err := reader.List(ctx, list); err != nil {
		return nil, nil, fmt.Errorf("list APIServices: %w", err)
	}
	unknown = map[string]Answer{}
	for _, obj := range list.Items {
		found, err := aggregatedTargets(ctx, reader, obj)
		if err != nil {
			unknown[obj.GetName()] = Answer{Evidence: err.Error()}
		}
		for _, target := range found {
			if !slices.ContainsFunc(targets, func(known Target) bool { return known.Name == target.Name }) {
				targets = append(targets, target)
			}
		}
	}
	return targets, unknown, nil
}

// aggregatedTargets returns the targets of an APIService. There are none if the API server serves it itself.
func aggregatedTargets(ctx context.Context, reader client.Reader, obj unstructured.Unstructured) ([]Target, error) {
	spec, _, err := unstructured.NestedMap(obj.Object, "spec")
	if err != nil {
		return nil, err
	}
	var at aggregated
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &at); err != nil {
		return nil, fmt.Errorf("read APIService: %w", err)
	}
	if at.Service == nil {
		return nil, nil
	}
	bundle, err := base64.StdEncoding.DecodeString(at.CABundle)
	if err != nil {
		return nil, fmt.Errorf("read its caBundle: %w", err)
	}
	port := int32(443)
	if at.Service.Port != nil {
		port = *at.Service.Port
	}
	service := client.ObjectKey{Namespace: at.Service.Namespace, Name: at.Service.Name}
	addresses, err := behind(ctx, reader, service, port)
	if err != nil {
		return nil, err
	}
	var targets []Target
	for _, address := range addresses {
		targets = append(targets, Target{
			Name: fmt.Sprintf("%s at %s", service, address),
			Cluster: direct("https://"+address, rest.TLSClientConfig{
				CAData: bundle, Insecure: at.InsecureSkipTLSVerify,
				ServerName: service.Name + "." + service.Namespace + ".svc",
			}),
			resource: fmt.Sprintf("/apis/%s/%s/%s", at.Group, at.Version, resourceNobodyHas),
		})
	}
	return targets, nil
}

// behind returns the addresses behind a port of a Service. It returns all endpoints, because each has its own trust.
func behind(ctx context.Context, reader client.Reader, key client.ObjectKey, port int32) ([]string, error) {
	service := &corev1.Service{}
	if err := reader.Get(ctx, key, service); err != nil {
		return nil, fmt.Errorf("get Service %s: %w", key, err)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return []string{net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(port)))}, nil
	}
	at := slices.IndexFunc(service.Spec.Ports, func(one corev1.ServicePort) bool { return one.Port == port })
	if at < 0 {
		return nil, fmt.Errorf("the Service %s has no port %d", key, port)
	}
	addresses, err := endpoints(ctx, reader, key, service.Spec.Ports[at].Name)
	if err != nil {
		return nil, err
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("the Service %s has no endpoints", key)
	}
	return addresses, nil
}
