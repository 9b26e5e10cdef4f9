package informer

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Resource lists and watches one resource of an API server. Typed, Dynamic and Metadata return one.
type Resource struct {
	schema.GroupVersionResource
	object runtime.Object // of the kind of the items
	list   func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error)
	watch  func(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error)
}

// Typed returns a resource of Kubernetes' own kinds, which is read as protobuf. object and list are empty objects of
// its types. httpClient may be nil. Status 429 is an error at once, because client-go would wait without a message.
func Typed(
	config *rest.Config, httpClient *http.Client, resource schema.GroupVersionResource, object, list runtime.Object,
) (Resource, error) {
	own := rest.CopyConfig(config)
	own.ContentType = runtime.ContentTypeProtobuf
	own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	own.APIPath = "/apis"
	if resource.Group == "" {
		own.APIPath = "/api"
	}
	version := resource.GroupVersion()
	own.GroupVersion, own.NegotiatedSerializer = &version, scheme.Codecs.WithoutConversion()
	own.UserAgent = cmp.Or(own.UserAgent, rest.DefaultKubernetesUserAgent())
	var err error
	if httpClient == nil {
		httpClient, err = rest.HTTPClientFor(own)
	}
	if err != nil {
		return Resource{}, fmt.Errorf("read %s: %w", resource.Resource, err)
	}
	client, err := rest.RESTClientForConfigAndClient(own, httpClient)
	if err != nil {
		return Resource{}, fmt.Errorf("read %s: %w", resource.Resource, err)
	}
	get := func(namespace string, options metav1.ListOptions) *rest.Request {
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource.Resource).
			VersionedParams(&options, scheme.ParameterCodec).MaxRetries(0)
	}
	return Resource{
		GroupVersionResource: resource, object: object,
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error) {
			result := list.DeepCopyObject()
			err := get(namespace, options).Do(ctx).Into(result)
			return result, err
		},
		watch: func(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return get(namespace, options).Watch(ctx)
		},
	}, nil
}

// ConfigMaps returns the resource of ConfigMaps. httpClient may be nil.
func ConfigMaps(config *rest.Config, httpClient *http.Client) (Resource, error) {
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	return Typed(config, httpClient, resource, &corev1.ConfigMap{}, &corev1.ConfigMapList{})
}

// Dynamic returns a resource of any kind, whose objects are unstructured.
func Dynamic(client dynamic.Interface, resource schema.GroupVersionResource) Resource {
	return Resource{
		GroupVersionResource: resource, object: &unstructured.Unstructured{},
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(resource).Namespace(namespace).List(ctx, options)
		},
		watch: func(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(resource).Namespace(namespace).Watch(ctx, options)
		},
	}
}

// Metadata returns a resource of which only the metadata is read, as PartialObjectMetadata.
func Metadata(client metadata.Interface, resource schema.GroupVersionResource) Resource {
	return Resource{
		GroupVersionResource: resource, object: &metav1.PartialObjectMetadata{},
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(resource).Namespace(namespace).List(ctx, options)
		},
		watch: func(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(resource).Namespace(namespace).Watch(ctx, options)
		},
	}
}
