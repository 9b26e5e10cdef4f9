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

// Object is an object of the API server, without its content.
type Object struct {
	Kind schema.GroupVersionResource
	metav1.PartialObjectMetadata
}

func (o Object) String() string {
	return fmt.Sprintf("%s.%s %s/%s", o.Kind.Resource, o.Kind.Group, o.Namespace, o.Name)
}

// List returns all objects of all kinds. A kind is left out if skip, which may be nil, permits the error of its list.
func List(ctx context.Context, config *rest.Config, skip func(error) bool) (all []Object, err error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // about deprecated kinds
	skips := func(err error) bool { return apierrors.IsMethodNotSupported(err) || skip != nil && skip(err) }
	kinds, err := listable(config)
	if err != nil && !skips(err) {
		return nil, fmt.Errorf("list the kinds: %w", err)
	}
	lister, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		list, err := lister.Resource(kind).List(ctx, metav1.ListOptions{})
		switch {
		case err == nil:
			for _, obj := range list.Items {
				all = append(all, Object{kind, obj})
			}
		case !skips(err):
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
	}
	return all, nil
}

// listable returns the kinds that can be listed. With an error of a group, it returns those of the other groups.
func listable(config *rest.Config) (kinds []schema.GroupVersionResource, err error) {
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := discover.ServerPreferredResources()
	for _, group := range groups {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range group.APIResources {
			if slices.Contains(kind.Verbs, "list") {
				kinds = append(kinds, version.WithResource(kind.Name))
			}
		}
	}
	return kinds, err
}

// Objects returns all objects of all kinds in the API server, as "RESOURCE.GROUP NAMESPACE/NAME LABEL". LABEL is
// app.kubernetes.io/name, if the object has it.
func Objects(ctx context.Context, config *rest.Config) (sets.Set[string], error) {
	all, err := List(ctx, config, nil)
	if err != nil {
		return nil, err
	}
	found := sets.New[string]()
	for _, obj := range all {
		text := obj.String() + " "
		if name := obj.Labels["app.kubernetes.io/name"]; name != "" {
			text += "app.kubernetes.io/name=" + name
		}
		found.Insert(text)
	}
	return found, nil
}
