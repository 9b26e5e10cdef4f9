package inventory

import (
	"context"
	"maps"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// Tokens watches which bootstrap tokens there are. It answers nothing: Live does.
type Tokens struct {
	// Changed is called with an empty name when there are others than before.
	Changed func(node string)

	view *view
}

// tokenList is the ConfigMap cluster-info, with a mark for each token.
type tokenList struct {
	metav1.ObjectMeta
	marks map[string]string
}

// NewTokens reads from the cluster of cfg.
func NewTokens(cfg *rest.Config, log logr.Logger) (*Tokens, error) {
	t := &Tokens{}
	var err error
	if t.view, err = viewConfigMap(cfg, clusterInfo, readTokens, t.changed, log); err != nil {
		return nil, err
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
