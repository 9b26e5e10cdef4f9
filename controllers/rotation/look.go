package rotation

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/trust"
)

// seen are Facts with what they were read from, for an Action.
type seen struct {
	Facts
	keys *keys
	from *v1alpha1.SigningAuthority
	// cosigners are other authorities that have, or had, the CA that retires here.
	cosigners []*v1alpha1.SigningAuthority
}

// look reads all that Next needs, none of it from a cache. What verifiers said comes from asked.
func (r *Reconciler) look(ctx context.Context, obj *v1alpha1.SigningAuthority, asked *seen) (*seen, error) {
	s, err := r.observe(ctx, obj)
	if err != nil {
		return nil, err
	}
	if asked != nil && slices.Equal(questions(r.askings(obj, s)), questions(r.askings(obj, asked))) && slices.Equal(s.Sharing, asked.Sharing) {
		s.Candidate, s.Signing, s.RetiringTrusted, s.RetiringRefused = asked.Candidate, asked.Signing, asked.RetiringTrusted, asked.RetiringRefused
		s.Servers, s.Above, s.Kept, s.Holding, s.Unclear = asked.Servers, asked.Above, asked.Kept, asked.Holding, asked.Unclear
	}
	return s, nil
}

// verify asks those who verify certificates what the phase needs to know. It waits for API servers that do not answer, so
// it changes nothing, and does not keep other authorities waiting.
func (r *Reconciler) verify(ctx context.Context, obj *v1alpha1.SigningAuthority) (*seen, error) {
	if phase := obj.Status.Phase; phase == v1alpha1.New || phase == v1alpha1.Completed { // which ask nobody
		r.watches.forget(obj.Name)
		return nil, nil
	}
	s, err := r.observe(ctx, obj)
	if err != nil {
		return nil, err
	}
	r.ask(ctx, obj, s)
	if err := r.above(ctx, obj, s); err != nil {
		return nil, err
	}
	return s, r.kept(ctx, obj, s)
}

// observe reads what the API server stores.
func (r *Reconciler) observe(ctx context.Context, obj *v1alpha1.SigningAuthority) (*seen, error) {
	s := &seen{Facts: Facts{Now: r.Clock.Now(), Operation: v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation]), Published: true, SettleFor: r.settleFor(obj)}}
	if err := r.others(ctx, obj, s); err != nil {
		return nil, err
	}
	var err error
	if s.keys, s.Ring, err = r.readKeys(ctx, obj); err != nil {
		return nil, err
	}
	s.Permitted = s.keys.ring.Signing.Empty() || permitted(s.keys.ring, r.permit(obj, Permit))
	if err := r.readLedger(ctx, obj, s); err != nil {
		return nil, err
	}
	if len(Trusted(&obj.Status)) > 0 {
		wanted, err := wanted(obj, s.Now)
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

// others looks at the other authorities: which this one begins from, and which keeps what retires here.
func (r *Reconciler) others(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	list := &v1alpha1.SigningAuthorityList{}
	if err := r.Live.List(ctx, list); err != nil {
		return fmt.Errorf("list SigningAuthorities: %w", err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.Name != obj.Name {
			if err := conflicts(obj, other); err != nil {
				return err
			}
			s.relate(obj, other)
		}
	}
	return reserved(append(list.Items, *obj), obj)
}

// conflicts says what obj can't have, as other has it.
func conflicts(obj, other *v1alpha1.SigningAuthority) error {
	if other.Spec.Secret == obj.Spec.Secret && older(other, obj) {
		return fmt.Errorf("its Secret %s is that of SigningAuthority %s: give this one another", secretName(obj), other.Name)
	}
	if taken := sharedKey(other, obj); taken != "" && older(other, obj) {
		return fmt.Errorf("spec.trust: ConfigMap %s is where SigningAuthority %s publishes: give this one another", taken, other.Name)
	}
	return nil
}

// relate notes what other has to do with obj.
func (s *seen) relate(obj, other *v1alpha1.SigningAuthority) {
	if other.Name == obj.Spec.From && other.Status.Signing != nil {
		s.From, s.from = other.Status.Signing, other
	}
	if had(other, obj.Status.Retiring) {
		s.cosigners = append(s.cosigners, other)
	}
	if keeps(other, obj.Status.Retiring) {
		s.Sharing = append(s.Sharing, other.Name)
	}
}

// keeps says whether API servers have to accept certificates of one further on, for other: what it publishes they may trust
// for clients, unless it is for kubelets' serving certificates alone, with which nobody is to be a client.
func keeps(other *v1alpha1.SigningAuthority, one *v1alpha1.CAStatus) bool {
	forClients := func(name string) bool { return name != certificatesv1.KubeletServingSignerName }
	return one != nil && slices.ContainsFunc(other.Spec.Signers, forClients) &&
		slices.ContainsFunc(Trusted(&other.Status), func(theirs *v1alpha1.CAStatus) bool { return theirs.KeyID == one.KeyID })
}

// had says whether one signs for other, or is to, or has.
func had(other *v1alpha1.SigningAuthority, one *v1alpha1.CAStatus) bool {
	status := &other.Status
	return one != nil && slices.ContainsFunc([]*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring, status.LastRetired}, func(theirs *v1alpha1.CAStatus) bool {
		return theirs != nil && theirs.KeyID == one.KeyID
	})
}

// sharedKey names a ConfigMap of which both want the same entry.
func sharedKey(a, b *v1alpha1.SigningAuthority) string {
	for _, one := range a.Spec.Trust.ConfigMaps {
		for _, other := range b.Spec.Trust.ConfigMaps {
			if configMapKey(one) == configMapKey(other) {
				return one.Namespace + "/" + one.Name
			}
		}
	}
	return ""
}

// reserved refuses to publish to where something else belongs: the manager may write there, and whoever may edit the
// authority must not, through it.
func reserved(all []v1alpha1.SigningAuthority, obj *v1alpha1.SigningAuthority) error {
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

func older(a, b *v1alpha1.SigningAuthority) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// wanted is what is to be published, by what is noted.
func wanted(obj *v1alpha1.SigningAuthority, now time.Time) (trust.Wanted, error) {
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

// above looks for CAs by which API servers would go on to accept the retiring one. One that is self-signed has none above it.
func (r *Reconciler) above(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	if obj.Status.Phase != v1alpha1.Prepared || s.keys.retiring == nil || !askedToRefuse(obj.Spec.Signers, s.Facts) {
		return nil
	}
	chain, err := ca.ParseCertificates(s.keys.retiring.AppendedPEM())
	if err != nil || len(chain) == 0 {
		return err
	}
	certs, err := r.publisher.Above(ctx, chain, s.Now)
	for _, one := range certs {
		s.Above = append(s.Above, fmt.Sprintf("%q", one.Subject.String()))
	}
	return err
}

// kept looks for those who hold what was published before.
func (r *Reconciler) kept(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	retiring := obj.Status.Retiring
	if obj.Status.UnpublishedAt == nil || retiring == nil || len(s.Sharing) > 0 || !askedToRefuse(obj.Spec.Signers, s.Facts) {
		return nil
	}
	cert, err := certificateOf(retiring)
	if err != nil {
		return err
	}
	if s.Kept, err = r.publisher.Holds(ctx, cert); err != nil || s.keys.retiring == nil {
		return err
	}
	return r.aggregated(ctx, s)
}
