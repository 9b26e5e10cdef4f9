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
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
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
	objects   dynamic.Interface
	discovery discovery.ServerResourcesInterface
}

// NewPublisher returns a Publisher that acts as the user of config.
func NewPublisher(config *rest.Config) (*Publisher, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // an old version, if it is the only one, would cause a warning at each read
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make discovery client: %w", err)
	}
	return New(objects, served), nil
}

// New returns a Publisher that reads and writes with objects.
func New(objects dynamic.Interface, served discovery.ServerResourcesInterface) *Publisher {
	return &Publisher{objects: objects, discovery: served}
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

// target is one object that must hold the bundle, or must not exist.
type target struct {
	resource        schema.GroupVersionResource
	kind            string
	namespace, name string
	// fields are the fields of the object that are ours. If it is nil, the object must not exist.
	fields map[string]any
	// manager is the manager of these fields.
	manager string
	// grant is the right that is needed to write the object.
	grant string
}

func (t target) String() string {
	if t.namespace == "" {
		return t.kind + " " + t.name
	}
	return t.kind + " " + t.namespace + "/" + t.name
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
		if err := p.write(ctx, one, wanted.Current, dryRun); err != nil {
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
func (p *Publisher) write(ctx context.Context, t target, current func(context.Context) error, dryRun bool) error {
	differs := ""
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := p.on(t).Get(ctx, t.name, metav1.GetOptions{})
		switch exists := err == nil; {
		case client.IgnoreNotFound(err) != nil:
			return err
		case !exists && t.fields == nil, exists && t.fields != nil && holds(obj.Object, t.fields):
			differs = ""
			return nil
		case !exists:
			obj = &unstructured.Unstructured{} // without a version, it is created
			differs = "does not exist, so it is not up to date"
		case t.fields == nil:
			differs = "is for a removed signer, so it is not up to date"
		default:
			differs = "is not up to date"
		}
		if current != nil && !dryRun {
			if err := current(ctx); err != nil {
				return err
			}
		}
		var dryRuns []string
		if dryRun {
			dryRuns = []string{metav1.DryRunAll}
		}
		if t.fields == nil {
			return p.remove(ctx, t, obj, dryRuns)
		}
		return p.apply(ctx, t, obj.GetResourceVersion(), dryRuns)
	})
	switch {
	case err != nil:
		return withGrant(t.String()+" can't be brought up to date", err, t.grant)
	case dryRun && differs != "":
		return fmt.Errorf("%s %s", t, differs)
	}
	return nil
}

// apply writes our fields with server-side apply, and takes them over from other managers. version, if not empty, is the
// version of the object that may be changed.
func (p *Publisher) apply(ctx context.Context, t target, version string, dryRuns []string) error {
	obj := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(t.fields)}
	obj.SetAPIVersion(t.resource.GroupVersion().String())
	obj.SetKind(t.kind)
	obj.SetNamespace(t.namespace)
	obj.SetName(t.name)
	obj.SetResourceVersion(version)
	_, err := p.on(t).Apply(ctx, t.name, obj, metav1.ApplyOptions{FieldManager: t.manager, Force: true, DryRun: dryRuns})
	return err
}

// remove deletes obj as it was read. It succeeds if obj no longer exists.
func (p *Publisher) remove(ctx context.Context, t target, obj *unstructured.Unstructured, dryRuns []string) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	as := &metav1.Preconditions{UID: &uid, ResourceVersion: &version}
	return client.IgnoreNotFound(p.on(t).Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: as, DryRun: dryRuns}))
}

func (p *Publisher) on(t target) dynamic.ResourceInterface {
	if t.namespace == "" {
		return p.objects.Resource(t.resource)
	}
	return p.objects.Resource(t.resource).Namespace(t.namespace)
}

// configMaps returns a target for each ConfigMap. An apply removes our keys that it does not hold, so one target has all
// keys of a ConfigMap, and each authority is a field manager of its own.
func configMaps(wanted Wanted) (targets []target) {
	for _, key := range wanted.ConfigMaps {
		data := map[string]any{key.Key: string(wanted.Bundle)}
		at := slices.IndexFunc(targets, func(t target) bool { return t.namespace == key.Namespace && t.name == key.Name })
		if at >= 0 {
			maps.Copy(targets[at].fields["data"].(map[string]any), data)
			continue
		}
		targets = append(targets, target{
			resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, kind: "ConfigMap",
			namespace: key.Namespace, name: key.Name,
			grant:  fmt.Sprintf("get, create and patch on configmaps %s in namespace %s", key.Name, key.Namespace),
			fields: map[string]any{"data": data}, manager: wanted.manager(),
		})
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
