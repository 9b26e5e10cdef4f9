package inventory

import (
	"context"
	"fmt"
	"maps"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

// Tokens watches which bootstrap tokens there are. It answers nothing: Live does.
type Tokens struct {
	// Changed is called with an empty name when there are others than before.
	Changed func(node string)

	view view
}

// tokenList is the ConfigMap cluster-info, with a mark for each token.
type tokenList struct {
	metav1.ObjectMeta
	marks map[string]string
}

// NewTokens reads from the cluster of cfg.
func NewTokens(cfg *rest.Config, log logr.Logger) (*Tokens, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", clusterInfo, err)
	}
	t := &Tokens{}
	t.view = view{
		client: client,
		find: func() (schema.GroupVersionResource, error) {
			return corev1.SchemeGroupVersion.WithResource("configmaps"), nil
		},
		namespace: clusterInfo.Namespace,
		narrow: func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, clusterInfo.Name).String()
		},
		transform: readTokens,
		indexers:  toolscache.Indexers{},
		changed:   t.changed,
		retry:     retryEvery,
		log:       log.WithValues("configMap", clusterInfo.String()),
		err:       errNotRead,
	}
	return t, nil
}

func readTokens(obj *unstructured.Unstructured) metav1.Object {
	marks, _, _ := unstructured.NestedStringMap(obj.Object, "data")
	return &tokenList{ObjectMeta: metav1.ObjectMeta{
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}, marks: marks}
}

func (t *Tokens) changed(before, after metav1.Object) {
	old, wasThere := before.(*tokenList)
	list, isThere := after.(*tokenList)
	if wasThere && isThere && maps.Equal(old.marks, list.marks) {
		return
	}
	if t.Changed != nil {
		t.Changed("")
	}
}

// NeedLeaderElection says no: it is the same for all replicas.
func (*Tokens) NeedLeaderElection() bool { return false }

// Start follows the ConfigMap until ctx ends.
func (t *Tokens) Start(ctx context.Context) error {
	t.view.run(ctx)
	return nil
}
