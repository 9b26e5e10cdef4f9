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
	kubectl := []string{filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "apply", "-k", "config/default"}
	upgrade := []string{path, "upgrade", "--install", "csr-controller-manager", chart, "--namespace", systemNamespace, "--create-namespace"}
	for name, test := range map[string]struct{ install, again [][]string }{
		"kubectl apply":               {install: [][]string{kubectl}, again: [][]string{kubectl}},
		"kubectl apply --server-side": {install: [][]string{append(kubectl, "--server-side")}, again: [][]string{append(kubectl, "--server-side")}},
		"kubectl apply, mixed":        {install: [][]string{kubectl}, again: [][]string{append(kubectl, "--server-side"), kubectl}},
		"helm upgrade":                {install: [][]string{upgrade}, again: [][]string{append(upgrade, "--set=replicas=3"), upgrade}},
		"helm upgrade, client-side": {
			install: [][]string{append(upgrade, "--server-side=false")}, again: [][]string{append(upgrade, "--server-side=false", "--set=replicas=3")},
		},
	} {
		t.Run(name, func(t *testing.T) {
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
			for _, args := range test.install {
				run(t, append(args[:len(args):len(args)], "--kubeconfig", kubeconfig)...)
			}
			published := publishBy(t, own)
			for _, args := range test.again {
				run(t, append(args[:len(args):len(args)], "--kubeconfig", kubeconfig)...)
				if diff := cmp.Diff(published.Data, publishedIn(t, own).Data); diff != "" {
					t.Errorf("%v (-before +after):\n%s", args[1:], diff)
				}
			}
		})
	}
}

// publishedIn returns the ConfigMap of the manager.
func publishedIn(t *testing.T, in *cluster.Cluster) *corev1.ConfigMap {
	t.Helper()
	c, err := client.New(in.Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	obj := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: systemNamespace, Name: "csr-controller-manager-configuration"}
	if err := c.Get(t.Context(), key, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// publishBy fills the ConfigMap as the manager does, by an update.
func publishBy(t *testing.T, in *cluster.Cluster) *corev1.ConfigMap {
	t.Helper()
	obj := publishedIn(t, in)
	if len(obj.Data) > 0 || obj.Labels["csr-controller-manager.io/publishes"] != "configuration" {
		t.Fatalf("shipped with data %v and labels %v", obj.Data, obj.Labels)
	}
	c, err := client.New(in.Config, client.Options{Scheme: clientgoscheme.Scheme, FieldOwner: "csr-controller-manager"})
	if err != nil {
		t.Fatal(err)
	}
	obj.Data = map[string]string{"configuration.yaml": "kind: ControllerManagerConfiguration\n"}
	if err := c.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}
