package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// TestInstallKeepsWhatTheManagerPublishes installs the manifests and the chart several times. No installation may remove
// what the manager has written into its ConfigMap.
func TestInstallKeepsWhatTheManagerPublishes(t *testing.T) {
	t.Parallel()
	path, err := helmPath()
	if err != nil {
		t.Fatal(err)
	}
	kubectlApply := []string{filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "apply", "-k", "config/default"}
	helmUpgrade := []string{path, "upgrade", "--install", "csr-controller-manager", chart, "--namespace", systemNamespace, "--create-namespace"}
	const clientSide, serverSide, more = "--server-side=false", "--server-side", "--set=replicas=3"
	for name, test := range map[string]struct {
		command []string
		// rounds has the flags of each installation. The first one of a round creates the ConfigMap.
		rounds [][][]string
	}{
		"kubectl": {kubectlApply, [][][]string{{{clientSide}, {clientSide}, {serverSide}, {clientSide}}, {{serverSide}, {serverSide}}}},
		"helm":    {helmUpgrade, [][][]string{{{}, {more}, {}}, {{clientSide}, {clientSide, more}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, kubeconfig := ownCluster(t)
			install := func(flags []string) {
				t.Helper()
				run(t, slices.Concat(test.command, flags, []string{"--kubeconfig", kubeconfig})...)
			}
			for _, round := range test.rounds {
				install(round[0])
				published := publish(t, c)
				for _, flags := range round[1:] {
					install(flags)
					if diff := cmp.Diff(published.Data, publishedIn(t, c).Data); diff != "" {
						t.Errorf("%v after %v (-before +after):\n%s", flags, round[0], diff)
					}
				}
				if err := c.Delete(t.Context(), published); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// ownCluster returns a client and a kubeconfig of a control plane for this test alone.
func ownCluster(t *testing.T) (c client.Client, kubeconfig string) {
	t.Helper()
	own, err := cluster.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	if kubeconfig, err = own.WriteKubeconfig("install", own.Config); err != nil {
		t.Fatal(err)
	}
	c, err = client.New(own.Config, client.Options{Scheme: clientgoscheme.Scheme, FieldOwner: "csr-controller-manager"})
	if err != nil {
		t.Fatal(err)
	}
	return c, kubeconfig
}

// publishedIn returns the ConfigMap of the manager.
func publishedIn(t *testing.T, c client.Client) *corev1.ConfigMap {
	t.Helper()
	obj := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: systemNamespace, Name: "csr-controller-manager-configuration"}
	if err := c.Get(t.Context(), key, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// publish fills the ConfigMap as the manager does, by an update.
func publish(t *testing.T, c client.Client) *corev1.ConfigMap {
	t.Helper()
	obj := publishedIn(t, c)
	if len(obj.Data) > 0 || obj.Labels["csr-controller-manager.io/publishes"] != "configuration" {
		t.Fatalf("shipped with data %v and labels %v", obj.Data, obj.Labels)
	}
	obj.Data = map[string]string{"configuration.yaml": "kind: ControllerManagerConfiguration\n"}
	if err := c.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}
