package manifests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// TestInstallKeepsWhatTheManagerPublishes installs the manifests and the chart again and again: none of that may remove
// what the manager has written into its ConfigMap.
func TestInstallKeepsWhatTheManagerPublishes(t *testing.T) {
	t.Parallel()
	path, err := helmPath()
	if err != nil {
		t.Fatal(err)
	}
	kubectl := []string{filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "apply", "-k", "config/default", "--server-side=false"}
	serverSide := append(kubectl[:4:4], "--server-side")
	helm := []string{path, "upgrade", "--install", "csr-controller-manager", chart, "--namespace", systemNamespace, "--create-namespace"}
	clientSide := append(helm[:len(helm):len(helm)], "--server-side=false")
	for name, rounds := range map[string][][][]string{ // the first command of a round creates the ConfigMap
		"kubectl": {{kubectl, kubectl, serverSide, kubectl}, {serverSide, serverSide}},
		"helm":    {{helm, append(helm[:len(helm):len(helm)], "--set=replicas=3"), helm}, {clientSide, append(clientSide, "--set=replicas=3")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, err := cluster.Start()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := own.Stop(); err != nil {
					t.Error(err)
				}
			})
			kubeconfig, err := own.WriteKubeconfig("install", own.Config)
			if err != nil {
				t.Fatal(err)
			}
			c, err := client.New(own.Config, client.Options{Scheme: clientgoscheme.Scheme, FieldOwner: "csr-controller-manager"})
			if err != nil {
				t.Fatal(err)
			}
			for _, round := range rounds {
				run(t, append(round[0][:len(round[0]):len(round[0])], "--kubeconfig", kubeconfig)...)
				published := publishBy(t, c)
				for _, args := range round[1:] {
					run(t, append(args[:len(args):len(args)], "--kubeconfig", kubeconfig)...)
					if diff := cmp.Diff(published.Data, publishedIn(t, c).Data); diff != "" {
						t.Errorf("%v after %v (-before +after):\n%s", args[1:], round[0][1:], diff)
					}
				}
				if err := c.Delete(t.Context(), published); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
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

// publishBy fills the ConfigMap as the manager does, by an update.
func publishBy(t *testing.T, c client.Client) *corev1.ConfigMap {
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
