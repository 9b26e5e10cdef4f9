package inventory

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// protobufClient returns a client for Kubernetes' own kinds. httpClient may be nil.
func protobufClient(config *rest.Config, httpClient *http.Client) (kubernetes.Interface, error) {
	own := rest.CopyConfig(config)
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if httpClient == nil {
		return kubernetes.NewForConfig(own)
	}
	return kubernetes.NewForConfigAndClient(own, httpClient)
}

// typedUpstream reads a resource of Kubernetes' own. A refusal with status 429 is an error at once: client-go would
// wait without a word.
func typedUpstream(client rest.Interface, resource schema.GroupVersionResource, namespace string, object, list runtime.Object) *upstream {
	get := func(options metav1.ListOptions) *rest.Request {
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource.Resource).
			VersionedParams(&options, scheme.ParameterCodec).MaxRetries(0)
	}
	return &upstream{
		resource: resource, object: object,
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			result := list.DeepCopyObject()
			err := get(options).Do(ctx).Into(result)
			return result, err
		},
		watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return get(options).Watch(ctx)
		},
	}
}
