package inventory

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

// viewConfigMap returns a view of one ConfigMap of the cluster of cfg, by name, so that a role for that one is enough.
func viewConfigMap(cfg *rest.Config, name types.NamespacedName, transform func(*unstructured.Unstructured) metav1.Object, changed func(old, new metav1.Object), log logr.Logger) (*view, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	return &view{
		client: client,
		find: func() (schema.GroupVersionResource, error) {
			return corev1.SchemeGroupVersion.WithResource("configmaps"), nil
		},
		namespace: name.Namespace,
		narrow: func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()
		},
		transform: transform,
		indexers:  toolscache.Indexers{},
		changed:   changed,
		retry:     retryEvery,
		log:       log.WithValues("configMap", name.String()),
		err:       errNotRead,
	}, nil
}
