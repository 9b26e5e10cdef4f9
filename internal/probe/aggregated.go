package probe

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// resourceNobodyHas is asked for, so that a server that knows who asks says so when it forbids it.
const resourceNobodyHas = "csr-controller-manager-trust-probes"

var apiServices = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIServiceList"}

// aggregated is the part of an APIService that says where its API server is
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

// Aggregated are the aggregated API servers, which accept client certificates too: every endpoint of every Service that an
// APIService names, each once. One that can't be found is in unknown, with the reason, by the name of the APIService.
//
// These rights are what Endpoints needs, too.
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

// aggregatedTargets are those of one APIService; none if the API server serves it itself.
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
				CAData: bundle, Insecure: at.InsecureSkipTLSVerify, ServerName: service.Name + "." + service.Namespace + ".svc",
			}),
			resource: fmt.Sprintf("/apis/%s/%s/%s", at.Group, at.Version, resourceNobodyHas),
		})
	}
	return targets, nil
}

// behind are the addresses behind a port of a Service: its endpoints, each of which trusts for itself.
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
