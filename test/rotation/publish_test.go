package rotation

import (
	"cmp"
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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
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

// ownCluster starts a control plane for this test alone, and returns a client of its administrator.
func ownCluster(t *testing.T, tokens ...cluster.Token) (*cluster.Cluster, client.Client) {
	t.Helper()
	c, err := cluster.Start(tokens...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	own, err := client.New(c.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c, own
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

// TestPublishToClusterTrustBundles uses an API server that first serves none, then all versions, then only an older
// version, and then none again.
func TestPublishToClusterTrustBundles(t *testing.T) {
	kit.Parallel(t)
	c, own := ownCluster(t, cluster.Token{Token: "publisher-token", User: "publisher", UID: "p-1"})
	restart := func(gate, versions string) {
		t.Helper()
		if err := c.RestartAPIServer(func(args *envtest.Arguments) {
			args.Set("feature-gates", "ClusterTrustBundle="+gate+",ClusterTrustBundleProjection="+gate).Set("runtime-config", versions)
		}); err != nil {
			t.Fatal(err)
		}
	}
	anyone := rest.AnonymousClientConfig(c.Config)
	anyone.BearerToken = "publisher-token"
	p := publisher(t, anyone)
	mayRead(t, own)
	version := cmp.Or(bundlesByDefault(t, c.Config), "v1beta1")
	wanted := trust.Wanted{Bundle: c.CA.CertPEM, Suffix: "csr-signer", Signers: []string{"kubernetes.io/kube-apiserver-client", "example.com/client"}}

	restart("false", "certificates.k8s.io/v1beta1=false,certificates.k8s.io/v1alpha1=false")
	wantProblems(t, "not served", p.Publish(t.Context(), wanted))

	restart("true", "certificates.k8s.io/v1beta1=true,certificates.k8s.io/v1alpha1=true")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "publisher"}}
	mayPublish(t, own, role)
	all := rbacv1.PolicyRule{
		APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, Verbs: []string{"get", "patch", "delete"},
		ResourceNames: []string{"kubernetes.io:kube-apiserver-client:csr-signer", "example.com:client:csr-signer"},
	}
	list := rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, Verbs: []string{"list"}}
	grants(t, own, role, all)
	wantProblems(t, "without list and create", settled(t, p, wanted, "create"),
		"ClusterTrustBundles of removed signers can't be found: grant the manager list",
		"ClusterTrustBundle kubernetes.io:kube-apiserver-client:csr-signer can't be brought up to date: grant the manager get, create and patch on clustertrustbundles.certificates.k8s.io kubernetes.io:kube-apiserver-client:csr-signer, and attest on signers.certificates.k8s.io kubernetes.io/kube-apiserver-client",
		"ClusterTrustBundle example.com:client:csr-signer")
	all.Verbs = append(all.Verbs, "create") // by name, as all of them
	attest := rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, Verbs: []string{"attest"}, ResourceNames: []string{"kubernetes.io/kube-apiserver-client"}}
	grants(t, own, role, all, list, attest)
	wantProblems(t, "without one attest", settled(t, p, wanted, "not permitted to attest"),
		"ClusterTrustBundle example.com:client:csr-signer can't be brought up to date: grant the manager get, create and patch on clustertrustbundles.certificates.k8s.io example.com:client:csr-signer, and attest on signers.certificates.k8s.io example.com/client")
	attest.ResourceNames = append(attest.ResourceNames, "example.com/client")
	grants(t, own, role, all, list, attest)
	kit.Eventually(t, "all is published", func(ctx context.Context) error {
		if problems := p.Publish(ctx, wanted); len(problems) > 0 {
			return fmt.Errorf("problems are %q", problems)
		}
		return nil
	})
	foreign := trust.Wanted{Bundle: wanted.Bundle, Suffix: "theirs", Signers: wanted.Signers[:1]}
	wantProblems(t, "a bundle that no right names", p.Publish(t.Context(), foreign), `ClusterTrustBundle kubernetes.io:kube-apiserver-client:theirs can't be brought up to date: grant`)
	bundles := bundlesOf(t, c.Config, version)
	first := got(t, bundles, "kubernetes.io:kube-apiserver-client:csr-signer")
	wantBundle(t, first, "kubernetes.io/kube-apiserver-client", c.CA.CertPEM)
	wantBundle(t, got(t, bundles, "example.com:client:csr-signer"), "example.com/client", c.CA.CertPEM)
	wantProblems(t, "there", p.Check(t.Context(), wanted))
	wantProblems(t, "again", p.Publish(t.Context(), wanted))
	if again := got(t, bundles, first.GetName()); again.GetResourceVersion() != first.GetResourceVersion() {
		t.Error("it was written again")
	}

	// Another client spoils one bundle and removes the other.
	spoil(t, bundles, first, kit.NewCA(t).CertPEM)
	if err := bundles.Delete(t.Context(), "example.com:client:csr-signer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, "spoilt", p.Check(t.Context(), wanted), "is not up to date", "does not exist")
	wantProblems(t, "put right", p.Publish(t.Context(), wanted))
	wantBundle(t, got(t, bundles, first.GetName()), "kubernetes.io/kube-apiserver-client", c.CA.CertPEM)

	// A signer is removed. Bundles of others stay.
	others := bundle(version, "example.com:client:theirs", "example.com/client", c.CA.CertPEM, "csr-controller-manager")
	byHand := bundle(version, "example.com:other:csr-signer", "example.com/other", c.CA.CertPEM, "somebody")
	for _, obj := range []*unstructured.Unstructured{others, byHand} {
		if _, err := bundles.Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wanted.Signers = wanted.Signers[:1]
	wantProblems(t, "one has left", p.Check(t.Context(), wanted), "ClusterTrustBundle example.com:client:csr-signer is for a removed signer")
	wantProblems(t, "and is removed", p.Publish(t.Context(), wanted))
	if _, err := bundles.Get(t.Context(), "example.com:client:csr-signer", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is there, or: %v", err)
	}
	got(t, bundles, others.GetName())
	got(t, bundles, byHand.GetName())

	// Only an older version is served, then none.
	last := map[string]string{"v1": "v1beta1", "v1beta1": "v1alpha1"}[version] // v1alpha1 was removed in 1.37
	restart("true", "certificates.k8s.io/v1=false,certificates.k8s.io/v1beta1=false,certificates.k8s.io/v1alpha1=false,certificates.k8s.io/"+last+"=true")
	wantProblems(t, "by an older version", p.Check(t.Context(), wanted))
	spoil(t, bundlesOf(t, c.Config, last), first, kit.NewCA(t).CertPEM)
	wantProblems(t, "spoilt by an older version", p.Check(t.Context(), wanted), "is not up to date")
	wantProblems(t, "put right by an older version", p.Publish(t.Context(), wanted))
	restart("false", "certificates.k8s.io/v1=true,certificates.k8s.io/v1beta1=false,certificates.k8s.io/v1alpha1=false")
	wantProblems(t, "served no longer", p.Check(t.Context(), wanted))
	if err := c.Env.ControlPlane.GetAPIServer().Stop(); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, "nobody answers", p.Check(t.Context(), wanted), "ClusterTrustBundles can't be discovered")
}

// settled publishes until the API server's authorizer knows the last granted rights: the problems contain part.
func settled(t *testing.T, p *trust.Publisher, wanted trust.Wanted, part string) (problems []error) {
	t.Helper()
	kit.Eventually(t, "rights are known", func(ctx context.Context) error {
		if problems = p.Publish(ctx, wanted); !strings.Contains(fmt.Sprint(problems), part) {
			return fmt.Errorf("problems are %q", problems)
		}
		return nil
	})
	return problems
}

// mayRead permits every authenticated user to use discovery, as every cluster does.
func mayRead(t *testing.T, own client.Client) {
	t.Helper()
	kit.Eventually(t, "system:discovery is bound", func(ctx context.Context) error {
		return own.Get(ctx, client.ObjectKey{Name: "system:discovery"}, &rbacv1.ClusterRoleBinding{})
	})
}

func mayPublish(t *testing.T, own client.Client, role *rbacv1.ClusterRole) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "publisher"}},
	}
	for _, obj := range []client.Object{role, binding} {
		if err := own.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
}

func grants(t *testing.T, own client.Client, role *rbacv1.ClusterRole, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role.Rules = rules
	if err := own.Update(t.Context(), role); err != nil {
		t.Fatal(err)
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

func bundle(version, name, signer string, certs []byte, managedBy string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/" + version, "kind": "ClusterTrustBundle",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": managedBy}},
		"spec":     map[string]any{"signerName": signer, "trustBundle": string(certs)},
	}}
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

func spoil(t *testing.T, bundles dynamic.ResourceInterface, obj *unstructured.Unstructured, certs []byte) {
	t.Helper()
	now := got(t, bundles, obj.GetName())
	if err := unstructured.SetNestedField(now.Object, string(certs), "spec", "trustBundle"); err != nil {
		t.Fatal(err)
	}
	if _, err := bundles.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
