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
	"errors"
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

// Problem says why the bundle is not published somewhere.
type Problem struct {
	// Where names the object.
	Where string
	// Why is a sentence that says what is wrong, and what a person must do, if anything.
	Why string
	// Cause is the underlying error, if there is one.
	Cause error
}

func (p Problem) Error() string { return p.Where + " " + p.Why }

// Unwrap returns Cause.
func (p Problem) Unwrap() error { return p.Cause }

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

// Publish publishes everything as wanted, and writes only objects that differ. It returns the remaining problems. Call
// it again to retry them.
func (p *Publisher) Publish(ctx context.Context, wanted Wanted) []Problem {
	return p.each(ctx, wanted, func(ctx context.Context, t target) error { return p.write(ctx, t, wanted.Current) })
}

// Check returns what is not published as wanted, and changes nothing.
func (p *Publisher) Check(ctx context.Context, wanted Wanted) []Problem {
	return p.each(ctx, wanted, p.compare)
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

// errDiffers is wrapped by the errors of compare.
var errDiffers = errors.New("is not up to date")

func (p *Publisher) each(
	ctx context.Context, wanted Wanted, do func(context.Context, target) error,
) (problems []Problem) {
	if len(wanted.Bundle) == 0 {
		return []Problem{{Where: "the bundle " + wanted.Suffix, Why: "has no valid certificate: an empty bundle is not published"}}
	}
	targets := configMaps(wanted)
	version, err := p.served()
	if err != nil {
		problems = append(problems, Problem{bundleKind + "s", fmt.Sprintf("can't be discovered: %v", err), err})
	}
	if version != "" {
		ours, err := p.bundles(ctx, version, wanted)
		if err != nil {
			why := "can't be found: " + withGrant(err, "list on clustertrustbundles.certificates.k8s.io")
			problems = append(problems, Problem{bundleKind + "s of removed signers", why, err})
		}
		targets = append(targets, ours...)
	}
	for _, one := range targets {
		if err := do(ctx, one); err != nil {
			problems = append(problems, Problem{one.String(), one.why(err), err})
		}
	}
	return problems
}

// why returns the sentence about err.
func (t target) why(err error) string {
	if errors.Is(err, errDiffers) {
		return err.Error()
	}
	return "can't be brought up to date: " + withGrant(err, t.grant)
}

// withGrant returns the text of err, with the right to grant if err says that a right is missing.
func withGrant(err error, grant string) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("grant the manager %s (%v)", grant, err)
	}
	return err.Error()
}

// compare returns an error that wraps errDiffers if t is not as wanted.
func (p *Publisher) compare(ctx context.Context, t target) error {
	obj, err := p.on(t).Get(ctx, t.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && t.fields == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("does not exist, so it %w", errDiffers)
	case err != nil:
		return err
	case t.fields == nil:
		return fmt.Errorf("is for a removed signer, so it %w", errDiffers)
	case !holds(obj.Object, t.fields):
		return errDiffers
	}
	return nil
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
// created may replace what another leader has created since: the next reconcile corrects that.
func (p *Publisher) write(ctx context.Context, t target, current func(context.Context) error) error {
	var outdated error // if set, a retry is useless
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := p.on(t).Get(ctx, t.name, metav1.GetOptions{})
		exists := err == nil
		switch {
		case client.IgnoreNotFound(err) != nil:
			return err
		case !exists && t.fields == nil, exists && t.fields != nil && holds(obj.Object, t.fields):
			return nil
		}
		if current != nil {
			if outdated = current(ctx); outdated != nil {
				return nil
			}
		}
		if t.fields == nil {
			return p.remove(ctx, t, obj)
		}
		version := "" // create it
		if exists {
			version = obj.GetResourceVersion()
		}
		return p.apply(ctx, t, version)
	})
	if outdated != nil {
		return outdated
	}
	return err
}

// apply writes our fields with server-side apply, and takes them over from other managers. version, if not empty, is the
// version of the object that may be changed.
func (p *Publisher) apply(ctx context.Context, t target, version string) error {
	obj := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(t.fields)}
	obj.SetAPIVersion(t.resource.GroupVersion().String())
	obj.SetKind(t.kind)
	obj.SetNamespace(t.namespace)
	obj.SetName(t.name)
	obj.SetResourceVersion(version)
	_, err := p.on(t).Apply(ctx, t.name, obj, metav1.ApplyOptions{FieldManager: t.manager, Force: true})
	return err
}

// remove deletes obj as it was read. It succeeds if obj no longer exists.
func (p *Publisher) remove(ctx context.Context, t target, obj *unstructured.Unstructured) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	err := p.on(t).Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid,
		ResourceVersion: &version}})
	return client.IgnoreNotFound(err)
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
