package rotation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// observation are Facts with what they were read from, for an Action.
type observation struct {
	Facts
	keys *caSecret
	from *v1alpha1.SigningAuthority
	// coholders are other authorities that have, or had, the CA that retires here.
	coholders []*v1alpha1.SigningAuthority
}

// observeAgain reads all that Next needs, none of it from a cache. What verifiers said comes from asked.
func (r *Reconciler) observeAgain(ctx context.Context, obj *v1alpha1.SigningAuthority, asked *observation) (*observation, error) {
	s, err := r.observe(ctx, obj)
	if err != nil {
		return nil, err
	}
	if asked != nil && slices.Equal(keysOf(r.questions(obj, s)), keysOf(r.questions(obj, asked))) && slices.Equal(s.Sharing, asked.Sharing) {
		s.Candidate, s.Signing, s.RetiringTrusted, s.RetiringRefused = asked.Candidate, asked.Signing, asked.RetiringTrusted, asked.RetiringRefused
		s.APIServers, s.Above, s.Kept, s.Holding, s.Unclear = asked.APIServers, asked.Above, asked.Kept, asked.Holding, asked.Unclear
	}
	return s, nil
}

// observe reads what the API server stores.
func (r *Reconciler) observe(ctx context.Context, obj *v1alpha1.SigningAuthority) (*observation, error) {
	s := &observation{Facts: Facts{Now: r.Clock.Now(), Operation: v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation]), Published: true, SettleFor: r.settleFor(obj)}}
	if err := r.observeAuthorities(ctx, obj, s); err != nil {
		return nil, err
	}
	var err error
	if s.keys, s.Secret, err = r.readSecret(ctx, obj); err != nil {
		return nil, err
	}
	s.Permitted = s.keys.pairs.Signing.Empty() || hasPermit(s.keys.pairs, r.permit(obj, Permit))
	if err := r.readLedger(ctx, obj, s); err != nil {
		return nil, err
	}
	if len(Trusted(&obj.Status)) > 0 {
		wanted, err := bundleOf(obj, s.Now)
		if err != nil {
			return nil, err
		}
		state := r.publisher.Published(ctx, wanted)
		s.Published = state.Published()
		for _, problem := range state.Problems {
			s.Unpublished = append(s.Unpublished, problem.Error())
		}
	}
	return s, nil
}

// caSecret are the Secret of an authority, as it was read.
type caSecret struct {
	object *corev1.Secret // with an empty UID when there is none yet
	pairs  keypair.Ring
	// loaded are the CAs that can be used.
	tls, signing, candidate, retiring *ca.Authority
}

// readSecret reads the Secret of obj, and what it holds of CAs.
func (r *Reconciler) readSecret(ctx context.Context, obj *v1alpha1.SigningAuthority) (*caSecret, SecretFacts, error) {
	name := secretName(obj)
	k := &caSecret{object: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Type: corev1.SecretTypeTLS}}
	err := r.Live.Get(ctx, name, k.object)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, SecretFacts{}, fmt.Errorf("read Secret %s: %w", name, err)
	case err == nil && k.object.Type != corev1.SecretTypeTLS:
		return nil, SecretFacts{}, fmt.Errorf("its Secret %s has type %q, want %q", name, k.object.Type, corev1.SecretTypeTLS)
	}
	if k.pairs, err = keypair.ParseRing(k.object.Data); err != nil {
		return nil, SecretFacts{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	facts := SecretFacts{PermittedSigners: k.pairs.Permit.Signers}
	for _, each := range []struct {
		pair   keypair.Pair
		loaded **ca.Authority
		facts  **CAFacts
	}{
		{k.pairs.Signing, &k.signing, &facts.Signing},
		{k.pairs.Candidate, &k.candidate, &facts.Candidate},
		{k.pairs.Retiring, &k.retiring, &facts.Retiring},
		{k.pairs.TLS, &k.tls, &facts.TLS},
	} {
		if each.pair.Empty() {
			continue
		}
		*each.loaded, err = each.pair.Load()
		if err != nil && each.loaded != &k.tls {
			return nil, SecretFacts{}, fmt.Errorf("read Secret %s: %w", name, err)
		}
		if err != nil {
			facts.TLSProblem = err.Error()
			continue
		}
		*each.facts = factsOf(*each.loaded)
	}
	return k, facts, nil
}

func factsOf(authority *ca.Authority) *CAFacts {
	fingerprint := sha256.Sum256(authority.Certificate().Raw)
	return &CAFacts{
		KeyID: authority.KeyID(), Fingerprint: hex.EncodeToString(fingerprint[:]),
		Certificate: string(authority.CertificatePEM()), NotAfter: authority.Certificate().NotAfter,
	}
}

func secretName(obj *v1alpha1.SigningAuthority) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Spec.Secret.Namespace, Name: obj.Spec.Secret.Name}
}

// observeAuthorities looks at the other authorities: which this one begins from, and which keeps what retires here.
func (r *Reconciler) observeAuthorities(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	list := &v1alpha1.SigningAuthorityList{}
	if err := r.Live.List(ctx, list); err != nil {
		return fmt.Errorf("list SigningAuthorities: %w", err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.Name != obj.Name {
			if err := conflictWith(obj, other); err != nil {
				return err
			}
			s.noteRelation(obj, other)
		}
	}
	return checkReserved(append(list.Items, *obj), obj)
}

// conflictWith says what obj can't have, as other has it.
func conflictWith(obj, other *v1alpha1.SigningAuthority) error {
	if other.Spec.Secret == obj.Spec.Secret && olderThan(other, obj) {
		return fmt.Errorf("its Secret %s is that of SigningAuthority %s: give this one another", secretName(obj), other.Name)
	}
	if taken := sharedConfigMap(other, obj); taken != "" && olderThan(other, obj) {
		return fmt.Errorf("spec.trust: ConfigMap %s is where SigningAuthority %s publishes: give this one another", taken, other.Name)
	}
	return nil
}

// noteRelation notes what other has to do with obj.
func (s *observation) noteRelation(obj, other *v1alpha1.SigningAuthority) {
	if other.Name == obj.Spec.From && other.Status.Signing != nil {
		s.From, s.from = other.Status.Signing, other
	}
	if holdsCA(other, obj.Status.Retiring) {
		s.coholders = append(s.coholders, other)
	}
	if requiresTrust(other, obj.Status.Retiring) {
		s.Sharing = append(s.Sharing, other.Name)
	}
}

// requiresTrust says whether API servers have to accept certificates of one further on, for other: what it publishes they may trust
// for clients, unless it is for kubelets' serving certificates alone, with which nobody is to be a client.
func requiresTrust(other *v1alpha1.SigningAuthority, one *v1alpha1.CAStatus) bool {
	forClients := func(name string) bool { return name != certificatesv1.KubeletServingSignerName }
	return one != nil && slices.ContainsFunc(other.Spec.Signers, forClients) &&
		slices.ContainsFunc(Trusted(&other.Status), func(theirs *v1alpha1.CAStatus) bool { return theirs.KeyID == one.KeyID })
}

// holdsCA says whether one signs for other, or is to, or has.
func holdsCA(other *v1alpha1.SigningAuthority, one *v1alpha1.CAStatus) bool {
	status := &other.Status
	return one != nil && slices.ContainsFunc([]*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring, status.LastRetired}, func(theirs *v1alpha1.CAStatus) bool {
		return theirs != nil && theirs.KeyID == one.KeyID
	})
}

// sharedConfigMap names a ConfigMap of which both want the same entry.
func sharedConfigMap(a, b *v1alpha1.SigningAuthority) string {
	for _, one := range a.Spec.Trust.ConfigMaps {
		for _, other := range b.Spec.Trust.ConfigMaps {
			if configMapKey(one) == configMapKey(other) {
				return one.Namespace + "/" + one.Name
			}
		}
	}
	return ""
}

// checkReserved refuses to publish to where something else belongs: the manager may write there, and whoever may edit the
// authority must not, through it.
func checkReserved(all []v1alpha1.SigningAuthority, obj *v1alpha1.SigningAuthority) error {
	for _, at := range obj.Spec.Trust.ConfigMaps {
		taken := at.Namespace == trust.ExtensionNamespace && at.Name == trust.ExtensionName
		for i := range all {
			secret := all[i].Spec.Secret
			names := append(ledger.NodesNames(secret.Name), ledger.BookName(secret.Name))
			taken = taken || at.Namespace == secret.Namespace && slices.Contains(names, at.Name)
		}
		if taken {
			return fmt.Errorf("spec.trust: ConfigMap %s/%s is for something else: publish to another", at.Namespace, at.Name)
		}
	}
	return nil
}

func configMapKey(at v1alpha1.ConfigMapKey) trust.ConfigMapKey {
	return trust.ConfigMapKey{Namespace: at.Namespace, Name: at.Name, Key: cmp.Or(at.Key, "ca.crt")}
}

func olderThan(a, b *v1alpha1.SigningAuthority) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// bundleOf is what is to be published, by what is noted.
func bundleOf(obj *v1alpha1.SigningAuthority, now time.Time) (trust.Wanted, error) {
	var certs []*x509.Certificate
	for _, one := range Trusted(&obj.Status) {
		cert, err := certificateOf(one)
		if err != nil {
			return trust.Wanted{}, err
		}
		certs = append(certs, cert)
	}
	w := trust.Wanted{Bundle: trust.Bundle(now, certs...), Authority: obj.Name}
	if len(w.Bundle) == 0 { // so that what has left is not trusted: nobody can be told to trust nothing, and one that has ended is nothing
		w.Bundle = trust.Bundle(time.Time{}, certs...)
	}
	for _, at := range obj.Spec.Trust.ConfigMaps {
		w.ConfigMaps = append(w.ConfigMaps, configMapKey(at))
	}
	if wants := obj.Spec.Trust.ClusterTrustBundles; wants == nil || *wants {
		w.Signers = obj.Spec.Signers
	}
	return w, nil
}

// certificateOf is that of a CA as it is noted.
func certificateOf(one *v1alpha1.CAStatus) (*x509.Certificate, error) {
	certs, err := ca.ParseCertificates([]byte(one.Certificate))
	if err == nil && len(certs) != 1 {
		err = fmt.Errorf("there are %d", len(certs))
	}
	if err != nil {
		return nil, fmt.Errorf("the status has no certificate for the CA %s: %w", one.KeyID, err)
	}
	return certs[0], nil
}
