package inventory

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// find looks for the machines' resource, which may not be installed yet, in the version that the API server prefers.
func (m *Machine) find() (schema.GroupVersionResource, error) {
	versions, err := m.versions()
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("discover: %w", err)
	}
	for _, version := range versions {
		gv := schema.GroupVersion{Group: m.options.Group, Version: version}
		resources, err := m.discovery.ServerResourcesForGroupVersion(gv.String())
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return schema.GroupVersionResource{}, fmt.Errorf("discover %s: %w", gv, err)
		}
		if resource := resourceOf(resources, m.options.Kind); resource != "" {
			return gv.WithResource(resource), nil
		}
	}
	return schema.GroupVersionResource{}, notInstalled(strings.TrimSpace(m.options.kind() + " " + m.options.Version))
}

// versions returns those of the group, the preferred one first.
func (m *Machine) versions() ([]string, error) {
	if m.options.Version != "" {
		return []string{m.options.Version}, nil
	}
	groups, err := m.discovery.ServerGroups()
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, group := range groups.Groups {
		if group.Name != m.options.Group {
			continue
		}
		versions = append(versions, group.PreferredVersion.Version)
		for _, other := range group.Versions {
			if other.Version != group.PreferredVersion.Version {
				versions = append(versions, other.Version)
			}
		}
	}
	return versions, nil
}

func resourceOf(resources *metav1.APIResourceList, kind string) string {
	for _, resource := range resources.APIResources {
		if resource.Kind == kind && !strings.Contains(resource.Name, "/") {
			return resource.Name
		}
	}
	return ""
}
