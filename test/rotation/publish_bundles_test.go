//go:build nightly

package rotation

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

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
	wantProblems(t, "not served", publish(t, p, wanted))

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
	kit.Eventually(t, "all is published", func(context.Context) error {
		if problems := publish(t, p, wanted); len(problems) > 0 {
			return fmt.Errorf("problems are %q", problems)
		}
		return nil
	})
	foreign := trust.Wanted{Bundle: wanted.Bundle, Suffix: "theirs", Signers: wanted.Signers[:1]}
	wantProblems(t, "a bundle that no right names", publish(t, p, foreign), `ClusterTrustBundle kubernetes.io:kube-apiserver-client:theirs can't be brought up to date: grant`)
	bundles := bundlesOf(t, c.Config, version)
	first := got(t, bundles, "kubernetes.io:kube-apiserver-client:csr-signer")
	wantBundle(t, first, "kubernetes.io/kube-apiserver-client", c.CA.CertPEM)
	wantBundle(t, got(t, bundles, "example.com:client:csr-signer"), "example.com/client", c.CA.CertPEM)
	wantProblems(t, "there", unpublished(t, p, wanted))
	wantProblems(t, "again", publish(t, p, wanted))
	if again := got(t, bundles, first.GetName()); again.GetResourceVersion() != first.GetResourceVersion() {
		t.Error("it was written again")
	}

	// Another client spoils one bundle and removes the other.
	spoil(t, bundles, first, kit.NewCA(t).CertPEM)
	if err := bundles.Delete(t.Context(), "example.com:client:csr-signer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, "spoilt", unpublished(t, p, wanted), "is not up to date", "does not exist")
	wantProblems(t, "put right", publish(t, p, wanted))
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
	wantProblems(t, "one has left", unpublished(t, p, wanted), "ClusterTrustBundle example.com:client:csr-signer is for a removed signer")
	wantProblems(t, "and is removed", publish(t, p, wanted))
	if _, err := bundles.Get(t.Context(), "example.com:client:csr-signer", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is there, or: %v", err)
	}
	got(t, bundles, others.GetName())
	got(t, bundles, byHand.GetName())

	// Only an older version is served, then none.
	last := map[string]string{"v1": "v1beta1", "v1beta1": "v1alpha1"}[version] // v1alpha1 was removed in 1.37
	restart("true", "certificates.k8s.io/v1=false,certificates.k8s.io/v1beta1=false,certificates.k8s.io/v1alpha1=false,certificates.k8s.io/"+last+"=true")
	wantProblems(t, "by an older version", unpublished(t, p, wanted))
	spoil(t, bundlesOf(t, c.Config, last), first, kit.NewCA(t).CertPEM)
	wantProblems(t, "spoilt by an older version", unpublished(t, p, wanted), "is not up to date")
	wantProblems(t, "put right by an older version", publish(t, p, wanted))
	restart("false", "certificates.k8s.io/v1=true,certificates.k8s.io/v1beta1=false,certificates.k8s.io/v1alpha1=false")
	wantProblems(t, "served no longer", unpublished(t, p, wanted))
	if err := c.Env.ControlPlane.GetAPIServer().Stop(); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, "nobody answers", unpublished(t, p, wanted), "ClusterTrustBundles can't be discovered")
}

// settled publishes until the API server's authorizer knows the last granted rights: the problems contain part.
func settled(t *testing.T, p *trust.Publisher, wanted trust.Wanted, part string) (problems []error) {
	t.Helper()
	kit.Eventually(t, "rights are known", func(context.Context) error {
		if problems = publish(t, p, wanted); !strings.Contains(fmt.Sprint(problems), part) {
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

func bundle(version, name, signer string, certs []byte, managedBy string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/" + version, "kind": "ClusterTrustBundle",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": managedBy}},
		"spec":     map[string]any{"signerName": signer, "trustBundle": string(certs)},
	}}
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
