package rotation

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func publisher(t *testing.T, cfg *rest.Config) *publish.Publisher {
	t.Helper()
	user := kit.Must(client.New(cfg, client.Options{}))(t)
	served, err := discovery.NewDiscoveryClientForConfig(cfg)
	kit.NoError(t, err)
	return &publish.Publisher{Client: user, Live: user, Discovery: served}
}

// unpublished returns what is not published as wanted.
func unpublished(t *testing.T, p *publish.Publisher, wanted publish.Wanted) []error {
	t.Helper()
	_, problems := p.Check(t.Context(), wanted)
	return problems
}

// publishOnce publishes once, and returns what is not published as wanted then.
func publishOnce(t *testing.T, p *publish.Publisher, wanted publish.Wanted) []error {
	t.Helper()
	changes, problems := p.Check(t.Context(), wanted)
	if len(changes) == 0 {
		return problems
	}
	err := p.Publish(t.Context(), changes)
	problems = unpublished(t, p, wanted)
	kit.Check(t, err == nil || apierrors.IsConflict(err) || len(problems) > 0, "published with an error: %v", err)
	return problems
}

// wantProblems checks that there is one problem for each of parts, in that order.
func wantProblems(t *testing.T, what string, problems []error, parts ...string) {
	t.Helper()
	kit.Require(t, len(problems) == len(parts), "%s: problems are %q, want %q", what, problems, parts)
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
	bundle := trust.Bundle(time.Now(), kit.Certificate(t, kit.NewCA(t)), kit.Certificate(t, kit.NewCA(t)))
	ours := publish.Entry{Kind: publish.ConfigMap, Namespace: kit.SystemNamespace, Name: "trusted", Key: "ca.crt"}
	wanted := publish.Wanted{Bundle: bundle, Suffix: "csr-signer", Entries: []publish.Entry{ours}}
	wantProblems(t, "before", unpublished(t, p, wanted), "ConfigMap "+kit.SystemNamespace+"/trusted does not exist")
	wantProblems(t, "made", publishOnce(t, p, wanted))
	read := func() *corev1.ConfigMap { return kit.Get(t, ours.Namespace, ours.Name, &corev1.ConfigMap{}) }
	obj := read()
	kit.Check(t, maps.Equal(obj.Data, map[string]string{"ca.crt": string(bundle)}), "it holds %q", obj.Data)
	wantProblems(t, "again", publishOnce(t, p, wanted))
	if got := read().ResourceVersion; got != obj.ResourceVersion {
		t.Errorf("it was written again: %s, then %s", obj.ResourceVersion, got)
	}

	// Another client changes our key, and adds its own content.
	obj.Data["ca.crt"], obj.Data["else"], obj.Labels = "spoilt", "kept", map[string]string{"team": "a"}
	obj.BinaryData = map[string][]byte{"more": {0xff}}
	kit.Update(t, obj)
	wantProblems(t, "spoilt", unpublished(t, p, wanted), "is not up to date")
	wanted.Entries = append(wanted.Entries, publish.Entry{Kind: publish.ConfigMap, Namespace: ours.Namespace, Name: ours.Name, Key: "copy.crt"})
	wantProblems(t, "put right, and a second key", publishOnce(t, p, wanted))
	obj = read()
	if !maps.Equal(obj.Data, map[string]string{"ca.crt": string(bundle), "copy.crt": string(bundle), "else": "kept"}) ||
		obj.Labels["team"] != "a" || len(obj.BinaryData["more"]) != 1 {
		t.Errorf("it is %+v", obj)
	}
	if owner := obj.ManagedFields; !slices.ContainsFunc(owner, func(one metav1.ManagedFieldsEntry) bool {
		return one.Manager == "csr-controller-manager/csr-signer" && one.Operation == metav1.ManagedFieldsOperationApply &&
			!strings.Contains(one.FieldsV1.GetRawString(), "else")
	}) {
		t.Errorf("managed by %v", owner)
	}

	// A ConfigMap that can't be written does not affect the others.
	obj.Immutable = new(true)
	kit.Update(t, obj)
	wanted.Bundle = trust.Bundle(time.Now(), kit.Certificate(t, kit.NewCA(t)))
	second := publish.Entry{Kind: publish.ConfigMap, Namespace: ours.Namespace, Name: "second", Key: "bundle.pem"}
	wanted.Entries = []publish.Entry{ours, {Kind: publish.ConfigMap, Namespace: "no-such", Name: "trusted", Key: "ca.crt"}, second}
	wantProblems(t, "two of three", publishOnce(t, p, wanted), "immutable", `namespaces "no-such" not found`)
	wanted.Entries = []publish.Entry{second}
	wantProblems(t, "the third", unpublished(t, p, wanted))

	// A Secret of the same name and key is another object.
	wanted.Entries = []publish.Entry{second, {Kind: publish.Secret, Namespace: second.Namespace, Name: second.Name, Key: second.Key}}
	wantProblems(t, "a Secret too", unpublished(t, p, wanted), "Secret "+kit.SystemNamespace+"/second does not exist")
	wantProblems(t, "a Secret too", publishOnce(t, p, wanted))
	secret := kit.Get(t, second.Namespace, second.Name, &corev1.Secret{})
	kit.Check(t, bytes.Equal(secret.Data["bundle.pem"], wanted.Bundle) && secret.Type == corev1.SecretTypeOpaque, "it is %+v", secret)
	secret.Data["bundle.pem"] = []byte("spoilt")
	kit.Update(t, secret)
	wantProblems(t, "a spoilt Secret", unpublished(t, p, wanted), "Secret "+kit.SystemNamespace+"/second is not up to date")
	wantProblems(t, "put right", publishOnce(t, p, wanted))
	wanted.Bundle = nil
	wantProblems(t, "nothing to trust", publishOnce(t, p, wanted), "an empty bundle is not published")
}

// TestPublishConcurrently checks that authorities with different keys of one ConfigMap overwrite nothing of each other, and
// that a writer with an outdated bundle overwrites no newer content, except what was created since, which the next
// publication corrects.
func TestPublishConcurrently(t *testing.T) {
	kit.Parallel(t)
	at := func(name, key string) []publish.Entry {
		return []publish.Entry{{Kind: publish.ConfigMap, Namespace: kit.SystemNamespace, Name: name, Key: key}}
	}
	const writers = 3
	var writing sync.WaitGroup
	for i := range writers {
		p, key := publisher(t, kit.ControlPlane(t).Config), fmt.Sprint("ca-", i)
		wanted := publish.Wanted{Bundle: kit.ControlPlane(t).CA.CertPEM, Suffix: key, Entries: at("trusted", key)}
		writing.Go(func() {
			for len(publishOnce(t, p, wanted)) > 0 && t.Context().Err() == nil { // as the next reconcile does
			}
		})
	}
	writing.Wait()
	obj := kit.Get(t, kit.SystemNamespace, "trusted", &corev1.ConfigMap{})
	kit.Check(t, len(obj.Data) == writers, "it holds %d keys", len(obj.Data))
	p := publisher(t, kit.ControlPlane(t).Config)
	for name, exists := range map[string]bool{"made": false, "changed": true} {
		wanted := func() publish.Wanted {
			return publish.Wanted{Bundle: kit.NewCA(t).CertPEM, Entries: at(name, "ca.crt")}
		}
		if exists {
			wantProblems(t, "before", publishOnce(t, p, wanted()))
		}
		late, _ := p.Check(t.Context(), wanted())
		latest := wanted()
		wantProblems(t, "meanwhile", publishOnce(t, p, latest))
		if err := p.Publish(t.Context(), late); apierrors.IsConflict(err) != exists || (err != nil) != exists {
			t.Errorf("%s: published late: %v", name, err)
		}
		if !exists {
			wantProblems(t, "after", unpublished(t, p, latest), "is not up to date")
			wantProblems(t, "next", publishOnce(t, p, latest))
		}
		wantProblems(t, name, unpublished(t, p, latest))
	}
}

// TestClusterTrustBundles publishes on an API server with its default configuration, for one of Kubernetes' signers and for
// a custom signer. The problems name the rights that are missing.
func TestClusterTrustBundles(t *testing.T) {
	kit.Parallel(t)
	p, version := publisher(t, kit.TokenConfig(t, "stranger")), kit.BundlesByDefault(t)
	const first, second = "kubernetes.io:kube-apiserver-client:csr-signer", "example.com:client:csr-signer"
	wanted := publish.Wanted{Bundle: kit.NewCA(t).CertPEM, Suffix: "csr-signer", Signers: []string{userSigner, "example.com/client"}}
	if version == "" {
		wantProblems(t, "not served", publishOnce(t, p, wanted))
		return
	}
	grant := func(resource, verb string, names ...string) {
		kit.GrantRule(t, "stranger", "certificates.k8s.io", resource, verb, names...)
	}
	// settled publishes until the API server's authorizer knows the last granted rights: the problems contain part.
	settled := func(part string) (problems []error) {
		t.Helper()
		kit.Eventually(t, "rights are known", func(context.Context) error {
			if problems = publishOnce(t, p, wanted); !strings.Contains(fmt.Sprint(problems), part) {
				return fmt.Errorf("problems are %q", problems)
			}
			return nil
		})
		return problems
	}
	for _, verb := range []string{"get", "patch", "delete"} {
		grant("clustertrustbundles", verb, first, second)
	}
	wantProblems(t, "without list and create", settled("create"),
		"ClusterTrustBundles of removed signers can't be found: grant the manager list",
		"ClusterTrustBundle "+first+" can't be brought up to date: grant the manager get, create and patch on clustertrustbundles.certificates.k8s.io "+
			first+", and attest on signers.certificates.k8s.io "+userSigner,
		"ClusterTrustBundle "+second)
	grant("signers", "attest", userSigner)
	grant("clustertrustbundles", "list")
	grant("clustertrustbundles", "create", first, second) // by name, as all of them
	wantProblems(t, "without one attest", settled("not permitted to attest"), "ClusterTrustBundle "+second+" can't be brought up to date: grant")
	grant("signers", "attest", "example.com/client")
	settled("[]")
	foreign := publish.Wanted{Bundle: wanted.Bundle, Suffix: "theirs", Signers: wanted.Signers[:1]}
	wantProblems(t, "a bundle that no right names", publishOnce(t, p, foreign),
		"ClusterTrustBundle kubernetes.io:kube-apiserver-client:theirs can't be brought up to date: grant")
	wantBundle(t, version, second, "example.com/client", wanted.Bundle)
	before := wantBundle(t, version, first, userSigner, wanted.Bundle)
	wantProblems(t, "again", publishOnce(t, p, wanted))
	kit.Check(t, wantBundle(t, version, first, userSigner, wanted.Bundle).GetResourceVersion() == before.GetResourceVersion(),
		"it was written again")

	// Another client spoils one bundle and removes the other.
	spoil(t, before)
	kit.Remove(t, newBundle(version, second, "", nil, ""))
	wantProblems(t, "spoilt", unpublished(t, p, wanted), "is not up to date", "does not exist")
	wantProblems(t, "put right", publishOnce(t, p, wanted))
	wantBundle(t, version, first, userSigner, wanted.Bundle)

	// A signer is removed. Bundles of others stay.
	others := newBundle(version, "example.com:client:theirs", "example.com/client", wanted.Bundle, "csr-controller-manager")
	byHand := newBundle(version, "example.com:other:csr-signer", "example.com/other", wanted.Bundle, "somebody")
	kit.Create(t, kit.Admin(t), others)
	kit.Create(t, kit.Admin(t), byHand)
	wanted.Signers = wanted.Signers[:1]
	wantProblems(t, "one has left", unpublished(t, p, wanted), "ClusterTrustBundle "+second+" is for a removed signer")
	wantProblems(t, "and is removed", publishOnce(t, p, wanted))
	left := newBundle(version, second, "", nil, "")
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(left), left); !apierrors.IsNotFound(err) {
		t.Errorf("it is there, or: %v", err)
	}
	wantBundle(t, version, others.GetName(), "example.com/client", wanted.Bundle)
	wantBundle(t, version, byHand.GetName(), "example.com/other", wanted.Bundle)
}

func newBundle(version, name, signer string, certs []byte, managedBy string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/" + version, "kind": "ClusterTrustBundle",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": managedBy}},
		"spec":     map[string]any{"signerName": signer, "trustBundle": string(certs)},
	}}
}

func spoil(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	kit.NoError(t, unstructured.SetNestedField(obj.Object, string(kit.NewCA(t).CertPEM), "spec", "trustBundle"))
	kit.Update(t, obj)
}

func wantBundle(t *testing.T, version, name, signer string, certs []byte) *unstructured.Unstructured {
	t.Helper()
	obj := newBundle(version, name, "", nil, "")
	kit.NoError(t, kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
	spec, _, err := unstructured.NestedStringMap(obj.Object, "spec")
	kit.Check(t, err == nil && spec["signerName"] == signer && spec["trustBundle"] == string(certs), "%s is %v, error %v", name, spec, err)
	return obj
}
