package cluster

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Objects returns all objects of all kinds in the API server, as "RESOURCE.GROUP NAMESPACE/NAME LABEL". LABEL is
// app.kubernetes.io/name, if the object has it.
func Objects(ctx context.Context, config *rest.Config) (sets.Set[string], error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // about deprecated kinds
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discover.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("list the kinds: %w", err)
	}
	lister, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	found := sets.New[string]()
	for _, group := range kinds {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range group.APIResources {
			if !slices.Contains(kind.Verbs, "list") {
				continue
			}
			list, err := lister.Resource(version.WithResource(kind.Name)).List(ctx, metav1.ListOptions{})
			if apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", kind.Name, err)
			}
			for _, obj := range list.Items {
				found.Insert(fmt.Sprintf("%s.%s %s/%s %s", kind.Name, version.Group, obj.Namespace, obj.Name, labelOf(obj)))
			}
		}
	}
	return found, nil
}

// labelOf returns obj's label app.kubernetes.io/name.
func labelOf(obj metav1.PartialObjectMetadata) string {
	if name := obj.Labels["app.kubernetes.io/name"]; name != "" {
		return "app.kubernetes.io/name=" + name
	}
	return ""
}
