package rotation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func publisher(t *testing.T, cfg *rest.Config) *trust.Publisher {
	t.Helper()
	user, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	served, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &trust.Publisher{Client: user, Live: user, Discovery: served}
}

// unpublished returns what is not published as wanted.
func unpublished(t *testing.T, p *trust.Publisher, wanted trust.Wanted) []error {
	t.Helper()
	_, problems := p.Check(t.Context(), wanted)
	return problems
}

// publish publishes once, and returns what is not published as wanted then.
func publish(t *testing.T, p *trust.Publisher, wanted trust.Wanted) []error {
	t.Helper()
	changes, problems := p.Check(t.Context(), wanted)
	if len(changes) == 0 {
		return problems
	}
	err := p.Publish(t.Context(), changes)
	problems = unpublished(t, p, wanted)
	if err != nil && !apierrors.IsConflict(err) && len(problems) == 0 {
		t.Errorf("published with an error: %v", err)
	}
	return problems
}

// wantProblems checks that there is one problem for each of parts, in that order.
func wantProblems(t *testing.T, what string, problems []error, parts ...string) {
	t.Helper()
	if len(problems) != len(parts) {
		t.Fatalf("%s: problems are %q, want %q", what, problems, parts)
	}
	for i, part := range parts {
		if got := problems[i].Error(); !strings.Contains(got, part) {
			t.Errorf("%s: problem %q, want %q", what, got, part)
		}
	}
}

// TestPublishToConfigMaps writes one key of a ConfigMap, only if it differs, and reports why it can't.
func TestPublishToConfigMaps(t *testing.T) {
	kit.Parallel(t)
	p := publisher(t, kit.ControlPlane(t).Config)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trust-"}}
	kit.Create(t, kit.Admin(t), namespace)
	bundle := trust.Bundle(time.Now(), kit.Certificate(t, kit.NewCA(t)), kit.Certificate(t, kit.NewCA(t)))
	ours := trust.ConfigMapKey{Namespace: namespace.Name, Name: "trusted", Key: "ca.crt"}
	wanted := trust.Wanted{Bundle: bundle, Suffix: "csr-signer", ConfigMaps: []trust.ConfigMapKey{ours}}
	wantProblems(t, "before", unpublished(t, p, wanted), "ConfigMap "+namespace.Name+"/trusted does not exist")
	wantProblems(t, "made", publish(t, p, wanted))
	read := func() *corev1.ConfigMap {
		obj := &corev1.ConfigMap{}
		if err := kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: ours.Namespace, Name: ours.Name}, obj); err != nil {
			t.Fatal(err)
		}
		return obj
	}
	obj := read()
	if !maps.Equal(obj.Data, map[string]string{"ca.crt": string(bundle)}) {
		t.Errorf("it holds %q", obj.Data)
	}
	wantProblems(t, "again", publish(t, p, wanted))
	wantProblems(t, "there", unpublished(t, p, wanted))
	if got := read().ResourceVersion; got != obj.ResourceVersion {
		t.Errorf("it was written again: %s, then %s", obj.ResourceVersion, got)
	}

	// Another client changes our key, and adds its own content.
	obj.Data["ca.crt"], obj.Data["else"], obj.Labels = "spoilt", "kept", map[string]string{"team": "a"}
	obj.BinaryData = map[string][]byte{"more": {0xff}}
	if err := kit.Admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, "spoilt", unpublished(t, p, wanted), "is not up to date")
	wantProblems(t, "put right", publish(t, p, wanted))
	if obj = read(); obj.Data["ca.crt"] != string(bundle) || obj.Data["else"] != "kept" || obj.Labels["team"] != "a" || len(obj.BinaryData["more"]) != 1 {
		t.Errorf("it is %+v", obj)
	}
	if owner := obj.ManagedFields; !slices.ContainsFunc(owner, func(one metav1.ManagedFieldsEntry) bool {
		return one.Manager == "csr-controller-manager/csr-signer" && one.Operation == metav1.ManagedFieldsOperationApply && !strings.Contains(one.FieldsV1.GetRawString(), "else")
	}) {
		t.Errorf("managed by %v", owner)
	}

	wanted.ConfigMaps = append(wanted.ConfigMaps, trust.ConfigMapKey{Namespace: namespace.Name, Name: "trusted", Key: "copy.crt"})
	wantProblems(t, "a second key", publish(t, p, wanted))
	wantProblems(t, "both keys", unpublished(t, p, wanted))
	if obj = read(); obj.Data["ca.crt"] != string(bundle) || obj.Data["copy.crt"] != string(bundle) {
		t.Errorf("it is %+v", obj.Data)
	}

	// A ConfigMap that can't be written does not affect the others.
	obj = read()
	obj.Immutable = ptr.To(true)
	if err := kit.Admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	wanted.Bundle = trust.Bundle(time.Now(), kit.Certificate(t, kit.NewCA(t)))
	second := trust.ConfigMapKey{Namespace: namespace.Name, Name: "second", Key: "bundle.pem"}
	wanted.ConfigMaps = []trust.ConfigMapKey{ours, {Namespace: "no-such", Name: "trusted", Key: "ca.crt"}, second}
	wantProblems(t, "two of three", publish(t, p, wanted), "immutable", `namespaces "no-such" not found`)
	wanted.ConfigMaps = []trust.ConfigMapKey{second}
	wantProblems(t, "the third", unpublished(t, p, wanted))
	wanted.Bundle = nil
	wantProblems(t, "nothing to trust", publish(t, p, wanted), "an empty bundle is not published")
}

// TestPublishAtTheSameTime checks that authorities with different keys of one ConfigMap overwrite nothing of each other.
func TestPublishAtTheSameTime(t *testing.T) {
	kit.Parallel(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trust-"}}
	kit.Create(t, kit.Admin(t), namespace)
	const writers = 3
	var writing sync.WaitGroup
	for i := range writers {
		p, key := publisher(t, kit.ControlPlane(t).Config), fmt.Sprint("ca-", i)
		wanted := trust.Wanted{Bundle: kit.ControlPlane(t).CA.CertPEM, Suffix: key, ConfigMaps: []trust.ConfigMapKey{{Namespace: namespace.Name, Name: "trusted", Key: key}}}
		writing.Go(func() {
			for len(publish(t, p, wanted)) > 0 && t.Context().Err() == nil { // as the next reconcile does
			}
		})
	}
	writing.Wait()
	obj := &corev1.ConfigMap{}
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace.Name, Name: "trusted"}, obj); err != nil || len(obj.Data) != writers {
		t.Errorf("it holds %d keys, error %v", len(obj.Data), err)
	}
}

// TestPublishIsNotLate checks that a writer with an outdated bundle overwrites no newer content, except what was created
// since, which the next publication corrects.
func TestPublishIsNotLate(t *testing.T) {
	kit.Parallel(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trust-"}}
	kit.Create(t, kit.Admin(t), namespace)
	p := publisher(t, kit.ControlPlane(t).Config)
	for name, exists := range map[string]bool{"made": false, "changed": true} {
		wanted := func() trust.Wanted {
			return trust.Wanted{Bundle: kit.NewCA(t).CertPEM, ConfigMaps: []trust.ConfigMapKey{{Namespace: namespace.Name, Name: name, Key: "ca.crt"}}}
		}
		if exists {
			wantProblems(t, "before", publish(t, p, wanted()))
		}
		late, _ := p.Check(t.Context(), wanted())
		latest := wanted()
		wantProblems(t, "meanwhile", publish(t, p, latest))
		if err := p.Publish(t.Context(), late); apierrors.IsConflict(err) != exists || (err != nil) != exists {
			t.Errorf("%s: published late: %v", name, err)
		}
		if !exists {
			wantProblems(t, "after", unpublished(t, p, latest), "is not up to date")
			wantProblems(t, "next", publish(t, p, latest))
		}
		wantProblems(t, name, unpublished(t, p, latest))
	}
}

// bundlesByDefault returns the version of ClusterTrustBundle that the API server serves by default: v1 since
// Kubernetes 1.37.
func bundlesByDefault(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if minor, err := strconv.Atoi(strings.TrimRight(server.Minor, "+")); err != nil || minor < 37 {
		return ""
	}
	return "v1"
}

// TestClusterTrustBundlesByDefault publishes on an API server with its default configuration, for Kubernetes' signers
// and for a custom signer.
func TestClusterTrustBundlesByDefault(t *testing.T) {
	kit.Parallel(t)
	want, p := bundlesByDefault(t, kit.ControlPlane(t).Config), publisher(t, kit.ControlPlane(t).Config)
	wanted := trust.Wanted{Bundle: kit.NewCA(t).CertPEM, Suffix: "by-default", Signers: []string{"kubernetes.io/kubelet-serving", "example.com/client"}}
	wantProblems(t, "published", publish(t, p, wanted))
	if want == "" {
		return
	}
	bundles := bundlesOf(t, kit.ControlPlane(t).Config, want)
	for _, signer := range wanted.Signers {
		wantBundle(t, got(t, bundles, trust.BundleName(signer, "by-default")), signer, wanted.Bundle)
	}
	wanted.Signers = nil // all were removed
	wantProblems(t, "removed", publish(t, p, wanted))
	if _, err := bundles.Get(t.Context(), "example.com:client:by-default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is there, or: %v", err)
	}
}

func bundlesOf(t *testing.T, cfg *rest.Config, version string) dynamic.ResourceInterface {
	t.Helper()
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return objects.Resource(schema.GroupVersionResource{Group: "certificates.k8s.io", Version: version, Resource: "clustertrustbundles"})
}

func got(t *testing.T, bundles dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := bundles.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func wantBundle(t *testing.T, obj *unstructured.Unstructured, signer string, certs []byte) {
	t.Helper()
	spec, _, err := unstructured.NestedStringMap(obj.Object, "spec")
	if err != nil || spec["signerName"] != signer || spec["trustBundle"] != string(certs) {
		t.Errorf("%s is %v, error %v", obj.GetName(), spec, err)
	}
}
