// Package trust publishes the CAs that verifiers must trust, and takes those away that they must not. It decides
// nothing about which those are, and never reads from a cache.
//
// It needs get, create and update on the ConfigMaps that it is told to write (create can't be limited to names), get
// and update on extension-apiserver-authentication, and, where the API server serves ClusterTrustBundles, all of the
// verbs below on them and attest on every signer (or on its domain, as example.com/*) that has one.
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

// Wanted is what is to be found where. It must name at least one certificate.
type Wanted struct {
	// Bundle is that of Bundle.
	Bundle []byte
	// ConfigMaps hold it. Nothing else in them is touched; one that does not exist is made.
	ConfigMaps []ConfigMapKey
	// Authority is whose bundle it is: the end of a ClusterTrustBundle's name.
	Authority string
	// Signers have a ClusterTrustBundle each, if the API server serves them. Those of Authority for others are removed.
	Signers []string
	// Current, if set, is asked by Publish between the reading and the writing of each object, whose write then fails if
	// somebody else has written since: an error says that this is not what is wanted any more.
	Current func(context.Context) error
}

// Problem is why the bundle is not where it should be.
type Problem struct {
	// Where names the object.
	Where string
	// Why is a sentence that says what is wrong, and what to do if a person must.
	Why string
	// Cause is what it comes from, if that is an error.
	Cause error
}

func (p Problem) Error() string { return p.Where + " " + p.Why }

// Unwrap returns Cause.
func (p Problem) Unwrap() error { return p.Cause }

// State is what was found.
type State struct {
	// Problems are none when everything is as wanted.
	Problems []Problem
	// Served is the version of ClusterTrustBundle that the API server serves, empty for none: then none are published,
	// which is no Problem.
	Served string
}

// Published says whether everything is as wanted.
func (s State) Published() bool { return len(s.Problems) == 0 }

// Publisher reads and writes what is published. Nothing of it is cached, not even what the API server serves.
type Publisher struct {
	objects   dynamic.Interface
	discovery discovery.ServerResourcesInterface
}

// NewPublisher returns one that acts as the user of config.
func NewPublisher(config *rest.Config) (*Publisher, error) {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // of an old version that is all there is, at each look
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

// Publish makes everything as wanted, and writes nothing that is so already. What is left is in State, to be tried
// again.
func (p *Publisher) Publish(ctx context.Context, wanted Wanted) State {
	return p.each(ctx, wanted, func(ctx context.Context, t target) error { return p.write(ctx, t, wanted.Current) })
}

// Published looks whether everything is as wanted, and changes nothing.
func (p *Publisher) Published(ctx context.Context, wanted Wanted) State {
	return p.each(ctx, wanted, p.compare)
}

// target is one object that holds, or must not exist for, the bundle.
type target struct {
	resource        schema.GroupVersionResource
	kind            string
	namespace, name string
	// set makes what is wanted of obj, and says whether that changed anything.
	set func(obj *unstructured.Unstructured) (changed bool, err error)
	// gone says that it is not to exist.
	gone bool
	// grant is what must be granted to write it.
	grant string
}

func (t target) String() string {
	if t.namespace == "" {
		return t.kind + " " + t.name
	}
	return t.kind + " " + t.namespace + "/" + t.name
}

// errDiffers is what compare returns.
var errDiffers = errors.New("is not as it should be")

func (p *Publisher) each(ctx context.Context, wanted Wanted, do func(context.Context, target) error) State {
	if len(wanted.Bundle) == 0 {
		return State{Problems: []Problem{{Where: "the bundle of " + wanted.Authority,
			Why: "has no certificate that is still valid: nobody is told to trust nothing"}}}
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

// why is the sentence about err.
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

// compare returns errDiffers, wrapped, if t is not as wanted.
func (p *Publisher) compare(ctx context.Context, t target) error {
	obj, err := p.on(t).Get(ctx, t.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && t.gone:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("does not exist: it %w", errDiffers)
	case err != nil:
		return err
	case t.gone:
		return fmt.Errorf("is for a signer that has left: it %w", errDiffers)
	}
	if changed, err := t.set(obj); err != nil || changed {
		return errors.Join(err, errDiffers)
	}
	return nil
}

// write makes t as wanted: it writes what it has read and changed, and reads it again if somebody else has been faster.
func (p *Publisher) write(ctx context.Context, t target, current func(context.Context) error) error {
	var outdated error // for which trying again is of no use
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

// store writes obj, as it was read if it exists, with what t sets.
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

// remove deletes obj, as it was read, unless it is gone.
func (p *Publisher) remove(ctx context.Context, t target, obj *unstructured.Unstructured) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	err := p.on(t).Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid,
		ResourceVersion: &version}})
	return client.IgnoreNotFound(err)
}

// raced says whether somebody else has written between a read and a write.
func raced(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

func (p *Publisher) on(t target) dynamic.ResourceInterface {
	if t.namespace == "" {
		return p.objects.Resource(t.resource)
	}
	return p.objects.Resource(t.resource).Namespace(t.namespace)
}

// configMap is the target that key names.
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

// setText makes the field at path text, and says whether it was not.
func setText(obj *unstructured.Unstructured, text string, path ...string) (changed bool, err error) {
	if found, exists, err := unstructured.NestedString(obj.Object, path...); err == nil && exists && found == text {
		return false, nil
	}
	return true, unstructured.SetNestedField(obj.Object, text, path...)
}

// Bundle is certs in PEM, in that order and without headers or text between, which is how a ClusterTrustBundle wants it
// (k8s.io/api/certificates/v1beta1). What has ended by now, and what is there already, is left out.
func Bundle(now time.Time, certs ...*x509.Certificate) []byte {
	var bundle bytes.Buffer
	for i, cert := range certs {
		if now.Before(cert.NotAfter) && !slices.ContainsFunc(certs[:i], cert.Equal) {
			_ = pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer takes everything
		}
	}
	return bundle.Bytes()
}

// SameCA says whether what one has signed the other could have signed: same name, same key.
func SameCA(one, other *x509.Certificate) bool {
	return bytes.Equal(one.RawSubject, other.RawSubject) &&
		bytes.Equal(one.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
}
