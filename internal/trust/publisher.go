// Package trust publishes the CAs that verifiers must trust, and removes the CAs that they must not trust. It does
// not decide which CAs these are, and never reads from a cache.
//
// It needs get, create and update on the ConfigMaps that it writes (create can't be limited to names), and get and
// update on extension-apiserver-authentication. If the API server serves ClusterTrustBundles, it needs all of the
// verbs below on them. It also needs attest on every signer that has a bundle, or on the signer's domain, as
// example.com/*.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=kube-system,resourceNames=extension-apiserver-authentication,verbs=get;update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=clustertrustbundles,verbs=get;list;create;update;delete
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client;kubernetes.io/kube-apiserver-client-kubelet;kubernetes.io/kubelet-serving,verbs=attest
package trust

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	// Authority owns the bundle. It is the end of a ClusterTrustBundle's name.
	Authority string
	// Signers have a ClusterTrustBundle each, if the API server serves them. Bundles of Authority for other signers
	// are removed.
	Signers []string
	// Current, if set, is called by Publish between reading and writing each object. If another client wrote the
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

// State is the published state.
type State struct {
	// Problems is empty if everything is published as wanted.
	Problems []Problem
	// Served is the version of ClusterTrustBundle that the API server serves. It is empty if none is served. Then no
	// ClusterTrustBundles are published, which is no Problem.
	Served string
}

// Published reports whether everything is published as wanted.
func (s State) Published() bool { return len(s.Problems) == 0 }

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

// Publish publishes everything as wanted, and writes only objects that differ. State holds the remaining problems.
// Call Publish again to retry them.
func (p *Publisher) Publish(ctx context.Context, wanted Wanted) State {
	return p.each(ctx, wanted, func(ctx context.Context, t target) error { return p.write(ctx, t, wanted.Current) })
}

// Published reports whether everything is published as wanted, and changes nothing.
func (p *Publisher) Published(ctx context.Context, wanted Wanted) State {
	return p.each(ctx, wanted, p.compare)
}

// target is one object that must hold the bundle, or must not exist.
type target struct {
	resource        schema.GroupVersionResource
	kind            string
	namespace, name string
	// set sets the wanted content of obj, and reports whether that changed obj.
	set func(obj *unstructured.Unstructured) (changed bool, err error)
	// gone reports that the object must not exist.
	gone bool
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

func (p *Publisher) each(ctx context.Context, wanted Wanted, do func(context.Context, target) error) State {
	if len(wanted.Bundle) == 0 {
		return State{Problems: []Problem{{Where: "the bundle of " + wanted.Authority,
			Why: "has no valid certificate: an empty bundle is not published"}}}
	}
	var targets []target
	for _, key := range wanted.ConfigMaps {
		targets = append(targets, configMap(key, wanted.Bundle))
	}
	bundles, state := p.clusterTrustBundles(ctx, wanted)
	for _, one := range append(targets, bundles...) {
		if err := do(ctx, one); err != nil {
			state.Problems = append(state.Problems, Problem{one.String(), one.why(err), err})
		}
	}
	return state
}

// why returns the sentence about err.
func (t target) why(err error) string {
	switch {
	case errors.Is(err, errDiffers):
		return err.Error()
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("can't be brought up to date: grant the manager %s (%v)", t.grant, err)
	default:
		return fmt.Sprintf("can't be brought up to date: %v", err)
	}
}

// compare returns an error that wraps errDiffers if t is not as wanted.
func (p *Publisher) compare(ctx context.Context, t target) error {
	obj, err := p.on(t).Get(ctx, t.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && t.gone:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("does not exist, so it %w", errDiffers)
	case err != nil:
		return err
	case t.gone:
		return fmt.Errorf("is for a removed signer, so it %w", errDiffers)
	}
	if changed, err := t.set(obj); err != nil || changed {
		return errors.Join(err, errDiffers)
	}
	return nil
}

// write updates t. It writes the object that it has read, and starts again if another client wrote the object
// meanwhile.
func (p *Publisher) write(ctx context.Context, t target, current func(context.Context) error) error {
	var outdated error // if set, a retry is useless
	err := retry.OnError(retry.DefaultRetry, raced, func() error {
		obj, err := p.on(t).Get(ctx, t.name, metav1.GetOptions{})
		exists := err == nil
		if client.IgnoreNotFound(err) != nil || t.gone && !exists {
			return client.IgnoreNotFound(err)
		}
		if current != nil {
			if outdated = current(ctx); outdated != nil {
				return nil
			}
		}
		if t.gone {
			return p.remove(ctx, t, obj)
		}
		return p.store(ctx, t, obj, exists)
	})
	if outdated != nil {
		return outdated
	}
	return err
}

// store writes obj with the content that t sets. If exists is true, obj is as it was read.
func (p *Publisher) store(ctx context.Context, t target, obj *unstructured.Unstructured, exists bool) error {
	if !exists {
		obj = &unstructured.Unstructured{}
		obj.SetAPIVersion(t.resource.GroupVersion().String())
		obj.SetKind(t.kind)
		obj.SetName(t.name)
	}
	changed, err := t.set(obj)
	switch {
	case err != nil || !changed:
		return err
	case exists:
		_, err = p.on(t).Update(ctx, obj, metav1.UpdateOptions{})
	default:
		_, err = p.on(t).Create(ctx, obj, metav1.CreateOptions{})
	}
	return err
}

// remove deletes obj as it was read. It succeeds if obj no longer exists.
func (p *Publisher) remove(ctx context.Context, t target, obj *unstructured.Unstructured) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	err := p.on(t).Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid,
		ResourceVersion: &version}})
	return client.IgnoreNotFound(err)
}

// raced reports whether another client wrote between a read and a write.
func raced(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

func (p *Publisher) on(t target) dynamic.ResourceInterface {
	if t.namespace == "" {
		return p.objects.Resource(t.resource)
	}
	return p.objects.Resource(t.resource).Namespace(t.namespace)
}

// configMap returns the target for key.
func configMap(key ConfigMapKey, bundle []byte) target {
	return target{
		resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, kind: "ConfigMap",
		namespace: key.Namespace, name: key.Name,
		grant: fmt.Sprintf("get and update on configmaps %s in namespace %s, and create on configmaps there", key.Name,
			key.Namespace),
		set: func(obj *unstructured.Unstructured) (bool, error) {
			// A key can't be in both.
			_, binary, err := unstructured.NestedFieldNoCopy(obj.Object, "binaryData", key.Key)
			unstructured.RemoveNestedField(obj.Object, "binaryData", key.Key)
			changed, setErr := setText(obj, string(bundle), "data", key.Key)
			return binary || changed, errors.Join(err, setErr)
		},
	}
}

// setText sets the field at path to text, and reports whether that changed it.
func setText(obj *unstructured.Unstructured, text string, path ...string) (changed bool, err error) {
	if found, exists, err := unstructured.NestedString(obj.Object, path...); err == nil && exists && found == text {
		return false, nil
	}
	return true, unstructured.SetNestedField(obj.Object, text, path...)
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
