// Package trust publishes the CAs that verifiers must trust, and removes the CAs that they must not trust. It does
// not decide which CAs these are, and never reads from a cache.
//
// It needs get, create and patch on the ConfigMaps and ClusterTrustBundles that it writes, by name, delete on the latter,
// and get and update on extension-apiserver-authentication. It also needs attest on every signer that has a bundle, or
// on the signer's domain, as example.com/*.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=kube-system,resourceNames=extension-apiserver-authentication,verbs=get;update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=clustertrustbundles,resourceNames=kubernetes.io:kube-apiserver-client:csr-signer;kubernetes.io:kube-apiserver-client-kubelet:csr-signer;kubernetes.io:kubelet-serving:csr-signer,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client;kubernetes.io/kube-apiserver-client-kubelet;kubernetes.io/kubelet-serving,verbs=attest
package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ConfigMapKey is one entry of a ConfigMap.
type ConfigMapKey struct{ Namespace, Name, Key string }

// Wanted is the bundle to publish, and where. Bundle must hold at least one certificate.
type Wanted struct {
	// Bundle is the result of Bundle.
	Bundle []byte
	// ConfigMaps are the entries that hold the bundle. Other entries stay unchanged. A missing ConfigMap is created.
	ConfigMaps []ConfigMapKey
	// Suffix is the end of a ClusterTrustBundle's name, after the signer, and of the field manager's name.
	Suffix string
	// Signers have a ClusterTrustBundle each, if the API server serves them. Our bundles with this suffix for other signers
	// are removed.
	Signers []string
	// Current, if set, is called by Publish between reading and writing each object. If another client changed the
	// object since, the write fails. An error of Current means that the bundle is no longer wanted.
	Current func(context.Context) error
}

// Publisher reads and writes published bundles. It caches nothing, not even the versions that the API server serves.
type Publisher struct {
	Client client.Client
	// Live reads without a cache.
	Live      client.Reader
	Discovery discovery.ServerResourcesInterface
}

// Publish publishes everything as wanted, and writes only objects that differ. It returns an error for each object that
// is not published. Call it again to retry them.
func (p *Publisher) Publish(ctx context.Context, wanted Wanted) []error {
	return p.each(ctx, wanted, false)
}

// Check returns what is not published as wanted, and changes nothing. A dry run finds out whether it could be written.
func (p *Publisher) Check(ctx context.Context, wanted Wanted) []error {
	return p.each(ctx, wanted, true)
}

// target is one object that must have the fields of object, or must not exist.
type target struct {
	object *unstructured.Unstructured
	remove bool
	// grant is the right that is needed to write the object.
	grant string
}

func newTarget(kind schema.GroupVersionKind, namespace, name, grant string) target {
	t := target{object: &unstructured.Unstructured{}, grant: grant}
	t.object.SetGroupVersionKind(kind)
	t.object.SetNamespace(namespace)
	t.object.SetName(name)
	return t
}

func (t target) String() string {
	return t.object.GetKind() + " " + strings.TrimPrefix(t.object.GetNamespace()+"/"+t.object.GetName(), "/")
}

// each writes all objects, or checks them in a dry run.
func (p *Publisher) each(ctx context.Context, wanted Wanted, dryRun bool) (problems []error) {
	if len(wanted.Bundle) == 0 {
		return []error{fmt.Errorf("the bundle %s has no valid certificate: an empty bundle is not published", wanted.Suffix)}
	}
	targets := configMaps(wanted)
	version, err := p.served()
	if err != nil {
		problems = append(problems, fmt.Errorf("%ss can't be discovered: %w", bundleKind, err))
	}
	if version != "" {
		ours, err := p.bundles(ctx, version, wanted)
		if err != nil {
			problems = append(problems, withGrant(bundleKind+"s of removed signers can't be found", err,
				"list on clustertrustbundles.certificates.k8s.io"))
		}
		targets = append(targets, ours...)
	}
	for _, one := range targets {
		if err := p.write(ctx, one, wanted, dryRun); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// withGrant returns err after what, with the right to grant if err says that a right is missing.
func withGrant(what string, err error, grant string) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: grant the manager %s (%w)", what, grant, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// holds reports whether obj has all of fields.
func holds(obj, fields map[string]any) bool {
	for key, want := range fields {
		if nested, isMap := want.(map[string]any); isMap {
			inner, _ := obj[key].(map[string]any)
			if !holds(inner, nested) {
				return false
			}
		} else if obj[key] != want {
			return false
		}
	}
	return true
}

// write updates t if it differs. It starts again if another client changed the object after it was read. Only what is
// created may replace what another leader has created since: the next reconcile corrects that. In a dry run, it returns
// how t differs, or why it can't be written.
func (p *Publisher) write(ctx context.Context, t target, wanted Wanted, dryRun bool) error {
	differs := ""
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		stored := &unstructured.Unstructured{}
		stored.SetGroupVersionKind(t.object.GroupVersionKind())
		err := p.Live.Get(ctx, client.ObjectKeyFromObject(t.object), stored)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		if differs = t.difference(stored, err == nil); differs == "" {
			return nil
		}
		if wanted.Current != nil && !dryRun {
			if err := wanted.Current(ctx); err != nil {
				return err
			}
		}
		return p.change(ctx, t, stored, wanted.manager(), dryRun)
	})
	switch {
	case err != nil:
		return withGrant(t.String()+" can't be brought up to date", err, t.grant)
	case dryRun && differs != "":
		return fmt.Errorf("%s %s", t, differs)
	}
	return nil
}

// difference returns how the stored object differs from t, or an empty text.
func (t target) difference(stored *unstructured.Unstructured, exists bool) string {
	switch {
	case !exists && t.remove, exists && !t.remove && holds(stored.Object, t.object.Object):
		return ""
	case !exists:
		return "does not exist, so it is not up to date"
	case t.remove:
		return "is for a removed signer, so it is not up to date"
	}
	return "is not up to date"
}

// change deletes the object as it was stored, or writes our fields with server-side apply, and takes them over from other
// managers. Without a stored version, the object is created.
func (p *Publisher) change(ctx context.Context, t target, stored client.Object, manager string, dryRun bool) error {
	deletes, applies := []client.DeleteOption{}, []client.ApplyOption{client.FieldOwner(manager), client.ForceOwnership}
	if dryRun {
		deletes, applies = append(deletes, client.DryRunAll), append(applies, client.DryRunAll)
	}
	uid, version := stored.GetUID(), stored.GetResourceVersion()
	if t.remove {
		as := client.Preconditions{UID: &uid, ResourceVersion: &version}
		return client.IgnoreNotFound(p.Client.Delete(ctx, stored, append(deletes, as)...))
	}
	applied := t.object.DeepCopy()
	applied.SetResourceVersion(version)
	return p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), applies...)
}

// configMaps returns a target for each ConfigMap. An apply removes our keys that it does not hold, so one target has all
// keys of a ConfigMap, and each authority is a field manager of its own.
func configMaps(wanted Wanted) (targets []target) {
	for _, key := range wanted.ConfigMaps {
		at := slices.IndexFunc(targets, func(t target) bool {
			return t.object.GetNamespace() == key.Namespace && t.object.GetName() == key.Name
		})
		if at < 0 {
			grant := fmt.Sprintf("get, create and patch on configmaps %s in namespace %s", key.Name, key.Namespace)
			one := newTarget(corev1.SchemeGroupVersion.WithKind("ConfigMap"), key.Namespace, key.Name, grant)
			one.object.Object["data"] = map[string]any{}
			targets, at = append(targets, one), len(targets)
		}
		targets[at].object.Object["data"].(map[string]any)[key.Key] = string(wanted.Bundle)
	}
	return targets
}

// manager returns the field manager of an authority's fields, in the 128 bytes that the API server permits.
func (w Wanted) manager() string {
	name := self + "/" + w.Suffix
	if len(name) > 128 {
		name = fmt.Sprintf("%s/%x", self, sha256.Sum256([]byte(w.Suffix)))
	}
	return name
}

// Bundle returns certs in PEM, in that order and without headers or text in between, as a ClusterTrustBundle requires
// (k8s.io/api/certificates/v1beta1). It skips certificates that have expired by now, and duplicates.
func Bundle(now time.Time, certs ...*x509.Certificate) []byte {
	var bundle bytes.Buffer
	for i, cert := range certs {
		if now.Before(cert.NotAfter) && !slices.ContainsFunc(certs[:i], cert.Equal) {
			_ = pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer accepts everything
		}
	}
	return bundle.Bytes()
}

// SameCA reports whether one and other belong to the same CA, by name and key: each could have signed the other's
// certificates.
func SameCA(one, other *x509.Certificate) bool {
	return bytes.Equal(one.RawSubject, other.RawSubject) &&
		bytes.Equal(one.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
}
