// Package publish publishes the CAs that verifiers must trust, and removes the CAs that they must not trust. It does
// not decide which CAs these are, and never reads from a cache.
//
// It needs get, create and patch on the ConfigMaps, Secrets and ClusterTrustBundles that it writes, by name, delete on the latter,
// and get and update on extension-apiserver-authentication. It also needs attest on every signer that has a bundle, or
// on the signer's domain, as example.com/*.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=kube-system,resourceNames=extension-apiserver-authentication,verbs=get;update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=clustertrustbundles,resourceNames=kubernetes.io:kube-apiserver-client:csr-signer;kubernetes.io:kube-apiserver-client-kubelet:csr-signer;kubernetes.io:kubelet-serving:csr-signer,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client;kubernetes.io/kube-apiserver-client-kubelet;kubernetes.io/kubelet-serving,verbs=attest
package publish

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
)

// The values of Entry.Kind.
const (
	ConfigMap = "ConfigMap"
	Secret    = "Secret"
)

// Entry is one entry of the data of an object.
type Entry struct{ Kind, Namespace, Name, Key string }

// Wanted is the bundle to publish, and where. Bundle must hold at least one certificate.
type Wanted struct {
	// Bundle is the result of trust.Bundle.
	Bundle []byte
	// Entries hold the bundle. Other entries of the same objects stay unchanged. A missing object is created.
	Entries []Entry
	// Suffix is the end of a ClusterTrustBundle's name, after the signer, and of the field manager's name.
	Suffix string
	// Signers have a ClusterTrustBundle each, if the API server serves them. Our bundles with this suffix for other signers
	// are removed.
	Signers []string
}

// Publisher reads and writes published bundles. It caches nothing, not even the versions that the API server serves.
type Publisher struct {
	Client client.Client
	// Live reads without a cache.
	Live client.Reader
	// Discovery finds the version of ClusterTrustBundles. Nil means that there are none.
	Discovery discovery.ServerResourcesInterface
}

// Change is one object to write with its fields, or to delete.
type Change struct {
	object *unstructured.Unstructured
	remove bool
	// grant is the right that is needed to write the object.
	grant   string
	manager string
	// version and uid are those of the object that Check has read, empty if there was none.
	version string
	uid     types.UID
}

func newChange(kind schema.GroupVersionKind, namespace, name, grant string) *Change {
	c := &Change{object: &unstructured.Unstructured{}, grant: grant}
	c.object.SetGroupVersionKind(kind)
	c.object.SetNamespace(namespace)
	c.object.SetName(name)
	return c
}

func (c *Change) String() string {
	return c.object.GetKind() + " " + strings.TrimPrefix(c.object.GetNamespace()+"/"+c.object.GetName(), "/")
}

// Check returns what is not published as wanted, and the changes that publish it. It changes nothing: a dry run finds out
// whether it could be written.
func (p *Publisher) Check(ctx context.Context, wanted Wanted) (changes []*Change, problems []error) {
	if len(wanted.Bundle) == 0 {
		return nil, []error{fmt.Errorf("the bundle %s has no valid certificate: an empty bundle is not published", wanted.Suffix)}
	}
	all := entries(wanted)
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
		all = append(all, ours...)
	}
	for _, one := range all {
		one.manager = wanted.manager()
		difference, err := p.compare(ctx, one)
		if difference != "" {
			changes = append(changes, one)
			err = p.apply(ctx, one, []string{metav1.DryRunAll})
		}
		if err != nil {
			problems = append(problems, one.failed(err))
		} else if difference != "" {
			problems = append(problems, fmt.Errorf("%s %s", one, difference))
		}
	}
	return changes, problems
}

// Publish makes the changes, each of which fails if another client has changed the object since Check read it. Only what
// Check did not find may replace what another leader has created since: the next Check corrects that.
func (p *Publisher) Publish(ctx context.Context, changes []*Change) error {
	if len(changes) == 0 {
		return errors.New("no write can publish what is missing")
	}
	var problems []error
	for _, one := range changes {
		if err := p.apply(ctx, one, nil); err != nil {
			problems = append(problems, one.failed(err))
		}
	}
	return errors.Join(problems...)
}

// failed returns the error of a change.
func (c *Change) failed(err error) error {
	return withGrant(c.String()+" can't be brought up to date", err, c.grant)
}

// withGrant returns err after what, with the right to grant if err says that a right is missing.
func withGrant(what string, err error, grant string) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: grant the manager %s (%w)", what, grant, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// compare reads the object of c, and returns how it differs from what is wanted, or "".
func (p *Publisher) compare(ctx context.Context, c *Change) (difference string, err error) {
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(c.object.GroupVersionKind())
	err = call.Get(ctx, p.Live, client.ObjectKeyFromObject(c.object), stored)
	c.version, c.uid = stored.GetResourceVersion(), stored.GetUID()
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", err
	case err != nil && c.remove, err == nil && !c.remove && equality.Semantic.DeepDerivative(c.object.Object, stored.Object):
		return "", nil
	case err != nil:
		return "does not exist, so it is not up to date", nil
	case c.remove:
		return "is for a removed signer, so it is not up to date", nil
	}
	return "is not up to date", nil
}

// apply deletes the object as it was read, or writes our fields with server-side apply, and takes them over from other
// managers. Without a version, the object is created.
func (p *Publisher) apply(ctx context.Context, c *Change, dryRun []string) error {
	if c.remove {
		return client.IgnoreNotFound(call.Write[client.DeleteOption](ctx, p.Client.Delete, c.object, &client.DeleteOptions{
			DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &c.uid, ResourceVersion: &c.version},
		}))
	}
	applied := c.object.DeepCopy()
	applied.SetResourceVersion(c.version)
	return call.Write(ctx, func(ctx context.Context, _ client.Object, options ...client.ApplyOption) error {
		return p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), options...)
	}, applied, client.ApplyOption(&client.ApplyOptions{DryRun: dryRun, Force: new(true), FieldManager: c.manager}))
}

// entries returns a change for each ConfigMap and Secret. An apply removes our keys that it does not hold, so one change has all
// keys of an object, and each authority is a field manager of its own.
func entries(wanted Wanted) (all []*Change) {
	for _, entry := range wanted.Entries {
		at := slices.IndexFunc(all, func(c *Change) bool {
			return c.object.GetKind() == entry.Kind && c.object.GetNamespace() == entry.Namespace && c.object.GetName() == entry.Name
		})
		if at < 0 {
			grant := fmt.Sprintf("get, create and patch on %ss %s in namespace %s", strings.ToLower(entry.Kind), entry.Name, entry.Namespace)
			one := newChange(corev1.SchemeGroupVersion.WithKind(entry.Kind), entry.Namespace, entry.Name, grant)
			one.object.Object["data"] = map[string]any{}
			all, at = append(all, one), len(all)
		}
		value := string(wanted.Bundle)
		if entry.Kind == Secret {
			value = base64.StdEncoding.EncodeToString(wanted.Bundle)
		}
		all[at].object.Object["data"].(map[string]any)[entry.Key] = value
	}
	return all
}

// manager returns the field manager of an authority's fields, in the 128 bytes that the API server permits.
func (w Wanted) manager() string {
	name := self + "/" + w.Suffix
	if len(name) > 128 {
		name = fmt.Sprintf("%s/%x", self, sha256.Sum256([]byte(w.Suffix)))
	}
	return name
}

// versions are the versions of ClusterTrustBundle (KEP-3257), the best first. Their fields are the same.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

const (
	bundleResource = "clustertrustbundles"
	bundleKind     = "ClusterTrustBundle"
	// managedBy is the label by which our bundles are found again after their signer was removed. self is our name there,
	// and as the field manager.
	managedBy, self = "app.kubernetes.io/managed-by", "csr-controller-manager"
)

// bundles returns a change for each bundle: the bundles of all signers, and our bundles of signers that were removed. The error is
// about the latter. If no bundles are wanted, none are looked for without the right to list them.
func (p *Publisher) bundles(ctx context.Context, version string, wanted Wanted) (all []*Change, err error) {
	kind := schema.GroupVersionKind{Group: certificatesv1.GroupName, Version: version, Kind: bundleKind}
	for _, signer := range wanted.Signers {
		name := trust.BundleName(signer, wanted.Suffix)
		one := newChange(kind, "", name, fmt.Sprintf("get, create and patch on clustertrustbundles.certificates.k8s.io %s, "+
			"and attest on signers.certificates.k8s.io %s", name, signer))
		one.object.SetLabels(map[string]string{managedBy: self})
		one.object.Object["spec"] = map[string]any{"signerName": signer, "trustBundle": string(wanted.Bundle)}
		all = append(all, one)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := call.List(ctx, p.Live, list, client.MatchingLabels{managedBy: self}); err != nil {
		if apierrors.IsForbidden(err) && len(wanted.Signers) == 0 {
			err = nil
		}
		return all, err
	}
	for _, obj := range list.Items {
		signer, _, _ := unstructured.NestedString(obj.Object, "spec", "signerName") // a bundle without a signer is not ours
		if name := obj.GetName(); name == trust.BundleName(signer, wanted.Suffix) && !slices.Contains(wanted.Signers, signer) {
			one := newChange(kind, "", name, "get and delete on clustertrustbundles.certificates.k8s.io "+name)
			one.remove = true
			all = append(all, one)
		}
	}
	return all, nil
}

// served returns the best version that the API server serves now, or "".
func (p *Publisher) served() (string, error) {
	if p.Discovery == nil {
		return "", nil
	}
	for _, version := range versions {
		group := schema.GroupVersion{Group: certificatesv1.GroupName, Version: version}
		list, err := p.Discovery.ServerResourcesForGroupVersion(group.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("discover %s: %w", group, err)
		}
		if slices.ContainsFunc(list.APIResources, func(one metav1.APIResource) bool { return one.Name == bundleResource }) {
			return version, nil
		}
	}
	return "", nil
}

// ClientCAs returns the ConfigMap in which API servers publish the CAs that they trust for clients, and these CAs.
func (p *Publisher) ClientCAs(ctx context.Context) (*corev1.ConfigMap, []*x509.Certificate, error) {
	obj := &corev1.ConfigMap{}
	if err := call.Get(ctx, p.Live, client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}, obj); err != nil {
		return nil, nil, fmt.Errorf("read ConfigMap %s/%s: %w", trust.ExtensionNamespace, trust.ExtensionName, err)
	}
	certs, err := trust.Certificates(obj, trust.ExtensionKey)
	return obj, certs, err
}

// Prune removes every certificate of the CA of old from that ConfigMap, and keeps the others. An API server whose own
// client CA file still has the CA adds it again within a minute. So prune only a CA that all API servers refuse.
func (p *Publisher) Prune(ctx context.Context, old *x509.Certificate) error {
	obj, certs, err := p.ClientCAs(ctx)
	if err != nil {
		return err
	}
	left, err := without(certs, old)
	if err == nil && len(left) < len(certs) {
		obj.Data[trust.ExtensionKey] = string(trust.Bundle(time.Time{}, left...))
		err = call.Write(ctx, p.Client.Update, obj)
	}
	if err != nil {
		return fmt.Errorf("prune ConfigMap %s/%s: %w", trust.ExtensionNamespace, trust.ExtensionName, err)
	}
	return nil
}

// without returns certs without those of the CA of old. It fails if none would be left, because API servers would then
// refuse every client certificate.
func without(certs []*x509.Certificate, old *x509.Certificate) ([]*x509.Certificate, error) {
	left := slices.DeleteFunc(slices.Clone(certs), func(one *x509.Certificate) bool { return trust.SameCA(one, old) })
	if len(left) == 0 && len(certs) > 0 {
		return nil, errors.New("it trusts no CA other than the retired CA")
	}
	return left, nil
}
