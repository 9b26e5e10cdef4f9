//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// objects returns all objects of all kinds in the API server.
func (c *cluster) objects(t *testing.T) sets.Set[string] {
	t.Helper()
	found, err := testcluster.Objects(t.Context(), c.config)
	if err != nil {
		t.Fatal(err)
	}
	return found
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
