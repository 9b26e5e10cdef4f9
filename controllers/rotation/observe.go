package rotation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// observation is Facts together with what an Action needs: the Secret that they were read from, and the changes that
// Publish makes.
type observation struct {
	Facts
	secret  *caSecret
	changes []*trust.Change
}

// observe reads the state from the API server, without a cache, and probes API servers. It reads the time twice: first so
// that nothing is asked or written with a wrong clock, and last because the facts hold at a time after they were read.
func (r *Reconciler) observe(ctx context.Context, obj *v1alpha1.SigningAuthority) (*observation, error) {
	o := &observation{Facts: Facts{
		Name: obj.Name, Operation: operationOf(obj), SettleFor: r.settleFor(obj), Others: map[string]string{},
	}}
	for _, read := range []func(context.Context, *v1alpha1.SigningAuthority, *observation) error{
		r.readTime, r.readSecret, r.readLedger, r.askAPIServers, r.readPublished, r.readTime,
	} {
		if err := read(ctx, obj, o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// errClocks is wrapped by the error of readTime.
var errClocks = errors.New("no step is taken until the clocks agree")

// readTime reads the time of the API servers, by which the facts count. With a wrong clock, a step could destroy the key of a
// CA whose certificates are valid, remove a valid CA from the trust bundle, or make a CA that is not valid yet.
func (r *Reconciler) readTime(ctx context.Context, _ *v1alpha1.SigningAuthority, o *observation) (err error) {
	if o.Now, err = r.ServerTime.Agreed(ctx); err != nil {
		return fmt.Errorf("%w: %w", errClocks, err)
	}
	return nil
}

// readPublished compares what is published with the trust bundle of obj.
func (r *Reconciler) readPublished(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	if o.Published = len(Trusted(&obj.Status)) == 0; o.Published {
		return nil
	}
	wanted, err := bundleOf(obj, o.Now)
	if err != nil {
		return err
	}
	changes, problems := r.publisher.Check(ctx, wanted)
	for _, problem := range problems {
		o.Unpublished = append(o.Unpublished, problem.Error())
	}
	o.changes, o.Published = changes, len(problems) == 0
	return nil
}

// operationOf returns the requested operation. It cuts a text that is too long to be an operation. The status stores the
// text, and whoever may set the annotation must not be able to make the status too large.
func operationOf(obj *v1alpha1.SigningAuthority) v1alpha1.Operation {
	return v1alpha1.Operation(csr.ShortenTo(obj.Annotations[v1alpha1.OperationAnnotation], v1alpha1.LongestOperation))
}

// caSecret is the Secret of an authority, with its usable CAs.
type caSecret struct {
	object                       *corev1.Secret // with an empty UID if there is none yet
	ring                         keypair.Ring
	signing, candidate, retiring *ca.Authority
}

// readSecret reads the Secret of obj and the CAs in it.
func (r *Reconciler) readSecret(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	name := secretName(obj)
	object := &corev1.Secret{Type: corev1.SecretTypeTLS}
	object.Namespace, object.Name = name.Namespace, name.Name
	if err := call.Get(ctx, r.Live, name, object); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	if object.Type != corev1.SecretTypeTLS {
		return fmt.Errorf("the Secret %s has type %q, want %q: create it again with that type",
			name, object.Type, corev1.SecretTypeTLS)
	}
	ring, err := keypair.ParseRing(object.Data)
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	o.Secret.Unfit = map[string]string{}
	load := func(pair keypair.Pair) (*ca.Authority, *v1alpha1.CAStatus, error) {
		if pair.Empty() {
			return nil, nil, nil
		}
		authority, err := r.loadPair(pair)
		if err != nil {
			return nil, nil, err
		}
		if err := authority.Usable(o.Now); err != nil {
			o.Secret.Unfit[authority.KeyID()] = err.Error()
		}
		return authority, factsOf(authority), nil
	}
	var signingErr, candidateErr, retiringErr, tlsErr error
	o.secret, o.Secret.PermittedSigners = &caSecret{object: object, ring: ring}, ring.Permit.Signers
	o.secret.signing, o.Secret.Signing, signingErr = load(ring.Signing)
	o.secret.candidate, o.Secret.Candidate, candidateErr = load(ring.Candidate)
	o.secret.retiring, o.Secret.Retiring, retiringErr = load(ring.Retiring)
	if _, o.Secret.TLS, tlsErr = load(ring.TLS); tlsErr != nil { // the administrator must repair it
		o.Secret.TLSProblem = tlsErr.Error()
	}
	if err := errors.Join(signingErr, candidateErr, retiringErr); err != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	permit := editSecret(ring, Permit, keypair.Pair{}, r.permit(obj, Permit)).Permit
	o.Permitted = ring.Signing.Empty() || ring.Permit.Equal(permit)
	return nil
}

// factsOf returns the fields of authority that follow from its certificate.
func factsOf(authority *ca.Authority) *v1alpha1.CAStatus {
	fingerprint := sha256.Sum256(authority.Certificate().Raw)
	return &v1alpha1.CAStatus{
		KeyID: authority.KeyID(), Fingerprint: hex.EncodeToString(fingerprint[:]),
		Certificate: string(authority.CertificatePEM()), NotAfter: metav1.NewTime(authority.Certificate().NotAfter),
	}
}

func secretName(obj *v1alpha1.SigningAuthority) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Spec.Secret.Namespace, Name: obj.Spec.Secret.Name}
}

// observeAuthorities reads the other authorities: their CAs, and what they share with this one, which is an error.
func (r *Reconciler) observeAuthorities(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	list := &v1alpha1.SigningAuthorityList{}
	if err := call.List(ctx, r.Live, list); err != nil {
		return fmt.Errorf("list SigningAuthorities: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == obj.Name {
			continue
		}
		if err := conflictWith(obj, other); err != nil {
			return err
		}
		for _, authority := range other.Status.CAs() {
			o.Others[authority.KeyID] = other.Name
		}
		if last := other.Status.LastRetired; last != nil {
			o.Others[last.KeyID] = other.Name
		}
	}
	return nil
}

// conflictWith returns an error if other is older than obj and has a Secret of the same name, after which trust bundles are
// named, or a ConfigMap of obj.
func conflictWith(obj, other *v1alpha1.SigningAuthority) error {
	older := other.CreationTimestamp.Before(&obj.CreationTimestamp) ||
		other.CreationTimestamp.Equal(&obj.CreationTimestamp) && other.Name < obj.Name
	if !older {
		return nil
	}
	if other.Spec.Secret.Name == obj.Spec.Secret.Name {
		return fmt.Errorf("spec.secret: SigningAuthority %s already uses Secret %s: choose another name",
			other.Name, secretName(other))
	}
	theirs := configMaps(other)
	for _, ours := range configMaps(obj) {
		if slices.Contains(theirs, ours) {
			return fmt.Errorf("spec.trust: SigningAuthority %s already publishes to ConfigMap %s/%s: name another ConfigMap",
				other.Name, ours.Namespace, ours.Name)
		}
	}
	return nil
}

// configMaps returns the entries of ConfigMaps that obj publishes to.
func configMaps(obj *v1alpha1.SigningAuthority) (all []trust.ConfigMapKey) {
	for _, at := range obj.Spec.Trust.ConfigMaps {
		all = append(all, trust.ConfigMapKey{Namespace: at.Namespace, Name: at.Name, Key: cmp.Or(at.Key, "ca.crt")})
	}
	return all
}

// bundleOf returns the trust bundle of obj, according to its status, and where to publish it.
func bundleOf(obj *v1alpha1.SigningAuthority, now time.Time) (trust.Wanted, error) {
	var certs []*x509.Certificate
	for _, authority := range Trusted(&obj.Status) {
		cert, err := certificateOf(authority)
		if err != nil {
			return trust.Wanted{}, err
		}
		certs = append(certs, cert)
	}
	wanted := trust.Wanted{Bundle: trust.Bundle(now, certs...), Suffix: obj.Spec.Secret.Name, ConfigMaps: configMaps(obj)}
	if len(wanted.Bundle) == 0 {
		// Verifiers cannot be told to trust nothing. So the bundle holds only the expired CAs. That removes any other CA
		// from it, and no verifier accepts an expired one.
		wanted.Bundle = trust.Bundle(time.Time{}, certs...)
	}
	if bundles := obj.Spec.Trust.ClusterTrustBundles; bundles == nil || *bundles {
		wanted.Signers = obj.Spec.Signers
	}
	return wanted, nil
}

// certificateOf returns the certificate of a CA from a status.
func certificateOf(authority *v1alpha1.CAStatus) (*x509.Certificate, error) {
	certs, err := ca.ParseCertificates([]byte(authority.Certificate))
	if err == nil && len(certs) != 1 {
		err = fmt.Errorf("want one certificate, got %d", len(certs))
	}
	if err != nil {
		return nil, fmt.Errorf("the status has no certificate for the CA %s: %w", authority.KeyID, err)
	}
	return certs[0], nil
}
