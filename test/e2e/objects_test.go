//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// objects returns the names of all objects of all kinds in the API server.
func (c *cluster) objects(t *testing.T) sets.Set[string] {
	t.Helper()
	kinds, err := discovery.NewDiscoveryClientForConfigOrDie(c.config).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	lister := metadata.NewForConfigOrDie(c.config)
	found := sets.New[string]()
	for _, group := range kinds {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range group.APIResources {
			if !slices.Contains(kind.Verbs, "list") {
				continue
			}
			list, err := lister.Resource(version.WithResource(kind.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				t.Fatalf("list %s: %v", kind.Name, err)
			}
			for _, obj := range list.Items {
				found.Insert(fmt.Sprintf("%s.%s %s/%s %s", kind.Name, version.Group, obj.Namespace, obj.Name, labelsOf(obj)))
			}
		}
	}
	return found
}

// labelsOf returns our labels of obj.
func labelsOf(obj metav1.PartialObjectMetadata) string {
	if name := obj.Labels["app.kubernetes.io/name"]; name != "" {
		return "app.kubernetes.io/name=" + name
	}
	return ""
}

// others are kinds of which nodes, tests and the control plane also create objects. Names show which objects are
// ours. Events about requests last for an hour.
var others = []string{
	"certificatesigningrequests.", "events.", "nodes.", "csinodes.", "leases.", "pods.", "serviceaccounts.", "configmaps.", "clustertrustbundles.",
}

// ours are parts of the names of our objects.
var ours = []string{"csr-controller-manager", "csr-approver", "csr-signer", "csr-cleaner", "csr-metrics", "csr-leader", "csr-ca"}

// testUninstall is step 9: after kubectl delete there are only objects that existed before the install.
func (c *cluster) testUninstall(t *testing.T, overlay string, before sets.Set[string]) {
	begin := time.Now()
	c.kubectl(t, "delete", "-k", overlay, "--timeout=60s")
	t.Logf("deleted in %s", time.Since(begin).Round(time.Second))
	for one := range c.objects(t).Difference(before) {
		name := one[strings.Index(one, " "):]
		mine := slices.ContainsFunc(ours, func(part string) bool { return strings.Contains(name, part) })
		other := slices.ContainsFunc(others, func(kind string) bool { return strings.HasPrefix(one, kind) })
		if mine || !other {
			t.Errorf("left behind: %s", one)
		}
	}
}
