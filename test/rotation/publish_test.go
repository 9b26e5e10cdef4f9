package rotation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	wantProblems(t, "before", p.Check(t.Context(), wanted), "ConfigMap "+namespace.Name+"/trusted does not exist")
	wantProblems(t, "made", p.Publish(t.Context(), wanted))
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
	wantProblems(t, "again", p.Publish(t.Context(), wanted))
	wantProblems(t, "there", p.Check(t.Context(), wanted))
	if got := read().ResourceVersion; got != obj.ResourceVersion {
		t.Errorf("it was written again: %s, then %s", obj.ResourceVersion, got)
	}

	// Another client changes our key, and adds its own content.
	obj.Data["ca.crt"], obj.Data["else"], obj.Labels = "spoilt", "kept", map[string]string{"team": "a"}
	obj.BinaryData = map[string][]byte{"more": {0xff}}
	if err := kit.Admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, "spoilt", p.Check(t.Context(), wanted), "is not up to date")
	wantProblems(t, "put right", p.Publish(t.Context(), wanted))
	if obj = read(); obj.Data["ca.crt"] != string(bundle) || obj.Data["else"] != "kept" || obj.Labels["team"] != "a" || len(obj.BinaryData["more"]) != 1 {
		t.Errorf("it is %+v", obj)
	}
	if owner := obj.ManagedFields; !slices.ContainsFunc(owner, func(one metav1.ManagedFieldsEntry) bool {
		return one.Manager == "csr-controller-manager/csr-signer" && one.Operation == metav1.ManagedFieldsOperationApply && !strings.Contains(one.FieldsV1.GetRawString(), "else")
	}) {
		t.Errorf("managed by %v", owner)
	}

	wanted.ConfigMaps = append(wanted.ConfigMaps, trust.ConfigMapKey{Namespace: namespace.Name, Name: "trusted", Key: "copy.crt"})
	wantProblems(t, "a second key", p.Publish(t.Context(), wanted))
	wantProblems(t, "both keys", p.Check(t.Context(), wanted))
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
	wantProblems(t, "two of three", p.Publish(t.Context(), wanted), "immutable", `namespaces "no-such" not found`)
	wanted.ConfigMaps = []trust.ConfigMapKey{second}
	wantProblems(t, "the third", p.Check(t.Context(), wanted))
	wanted.Bundle = nil
	wantProblems(t, "nothing to trust", p.Publish(t.Context(), wanted), "an empty bundle is not published")
}

// TestPublishNeedsRights checks that each missing right is named.
func TestPublishNeedsRights(t *testing.T) {
	kit.Parallel(t)
	p := publisher(t, kit.WithToken(t, "stranger-token"))
	wanted := trust.Wanted{Bundle: kit.ControlPlane(t).CA.CertPEM, Suffix: "csr-signer", ConfigMaps: []trust.ConfigMapKey{{Namespace: "default", Name: "trusted", Key: "ca.crt"}}}
	wantProblems(t, "without", p.Publish(t.Context(), wanted), "grant the manager get, create and patch on configmaps trusted in namespace default")
}

// TestPublishAtTheSameTime checks that authorities with different keys of one ConfigMap overwrite nothing of each other.
func TestPublishAtTheSameTime(t *testing.T) {
	kit.Parallel(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trust-"}}
	kit.Create(t, kit.Admin(t), namespace)
	const writers = 3
	ended := make(chan []error)
	for i := range writers {
		p := publisher(t, kit.ControlPlane(t).Config)
		go func() {
			ended <- p.Publish(t.Context(), trust.Wanted{Bundle: kit.ControlPlane(t).CA.CertPEM, Suffix: fmt.Sprint("ca-", i), ConfigMaps: []trust.ConfigMapKey{{Namespace: namespace.Name, Name: "trusted", Key: fmt.Sprint("ca-", i)}}})
		}()
	}
	for range writers {
		wantProblems(t, "one of several", <-ended)
	}
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
	at := []trust.ConfigMapKey{{Namespace: namespace.Name, Name: "trusted", Key: "ca.crt"}, {Namespace: namespace.Name, Name: "second", Key: "ca.crt"}}
	outdated := errors.New("somebody has gone on")
	for name, there := range map[string]string{"made": "", "changed": string(kit.NewCA(t).CertPEM)} {
		t.Run(name, func(t *testing.T) {
			p, latest := publisher(t, kit.ControlPlane(t).Config), trust.Wanted{Bundle: kit.NewCA(t).CertPEM, ConfigMaps: at}
			if there != "" {
				wantProblems(t, "before", p.Publish(t.Context(), trust.Wanted{Bundle: []byte(there), ConfigMaps: at}))
			}
			asked := 0
			late := trust.Wanted{Bundle: kit.NewCA(t).CertPEM, ConfigMaps: at[:1], Current: func(context.Context) error {
				if asked++; asked > 1 {
					return outdated
				}
				wantProblems(t, "meanwhile", p.Publish(t.Context(), latest))
				return nil
			}}
			problems := p.Publish(t.Context(), late)
			if there == "" {
				wantProblems(t, "late", problems)
				wantProblems(t, "after", p.Check(t.Context(), latest), "trusted is not up to date")
				wantProblems(t, "next", p.Publish(t.Context(), latest))
				return
			}
			wantProblems(t, "late", problems, "somebody has gone on")
			if !errors.Is(problems[0], outdated) {
				t.Errorf("it comes from %v", problems[0])
			}
			wantProblems(t, "after", p.Check(t.Context(), latest))
		})
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
	wantProblems(t, "published", p.Publish(t.Context(), wanted))
	if want == "" {
		return
	}
	bundles := bundlesOf(t, kit.ControlPlane(t).Config, want)
	for _, signer := range wanted.Signers {
		wantBundle(t, got(t, bundles, trust.BundleName(signer, "by-default")), signer, wanted.Bundle)
	}
	wanted.Signers = nil // all were removed
	wantProblems(t, "removed", p.Publish(t.Context(), wanted))
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
