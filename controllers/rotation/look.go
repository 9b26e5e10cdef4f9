package rotation

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/trust"
)

// seen are Facts with what they were read from, for an Action.
type seen struct {
	Facts
	keys *keys
	from *v1alpha1.SigningAuthority
}

// look reads all that Next needs, none of it from a cache.
func (r *Reconciler) look(ctx context.Context, obj *v1alpha1.SigningAuthority) (*seen, error) {
	s := &seen{Facts: Facts{Now: r.Clock.Now(), Operation: v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation]), Published: true}}
	if err := r.others(ctx, obj, s); err != nil {
		return nil, err
	}
	var err error
	if s.keys, s.Ring, err = r.readKeys(ctx, obj); err != nil {
		return nil, err
	}
	s.Permitted = s.keys.ring.Signing.Empty() || permitted(s.keys.ring, r.permit(obj))
	if len(Trusted(&obj.Status)) > 0 {
		wanted, err := wanted(obj, s.Now)
		if err != nil {
			return nil, err
		}
		state := r.publisher.Published(ctx, wanted)
		s.Published = state.Published()
		for _, problem := range state.Problems {
			s.Unpublished = append(s.Unpublished, problem.String())
		}
	}
	if err := r.readLedger(ctx, obj, s); err != nil {
		return nil, err
	}
	r.ask(ctx, obj, s)
	return s, r.kept(ctx, obj, s)
}

// others looks at the other authorities: which this one begins from, and which signs with what retires here.
func (r *Reconciler) others(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	list := &v1alpha1.SigningAuthorityList{}
	if err := r.Live.List(ctx, list); err != nil {
		return fmt.Errorf("list SigningAuthorities: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == obj.Name {
			continue
		}
		if other.Spec.Secret == obj.Spec.Secret && older(other, obj) {
			return fmt.Errorf("its Secret %s is that of SigningAuthority %s: give this one another", secretName(obj), other.Name)
		}
		if other.Name == obj.Spec.From && other.Status.Signing != nil {
			s.From, s.from = other.Status.Signing, other
		}
		if obj.Status.Retiring != nil && other.Status.Signing != nil && other.Status.Signing.KeyID == obj.Status.Retiring.KeyID {
			s.Sharing = append(s.Sharing, other.Name)
		}
	}
	return nil
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
		parsed, err := ca.ParseCertificates([]byte(one.Certificate))
		if err != nil || len(parsed) != 1 {
			return trust.Wanted{}, fmt.Errorf("the status has no certificate for the CA %s: %w", one.KeyID, err)
		}
		certs = append(certs, parsed[0])
	}
	w := trust.Wanted{Bundle: trust.Bundle(now, certs...), Authority: obj.Name}
	for _, at := range obj.Spec.Trust.ConfigMaps {
		w.ConfigMaps = append(w.ConfigMaps, trust.ConfigMapKey{Namespace: at.Namespace, Name: at.Name, Key: cmp.Or(at.Key, "ca.crt")})
	}
	if wants := obj.Spec.Trust.ClusterTrustBundles; wants == nil || *wants {
		w.Signers = obj.Spec.Signers
	}
	return w, nil
}

// readLedger reads what lives on the retiring CA.
func (r *Reconciler) readLedger(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	retiring := obj.Status.Retiring
	if retiring == nil {
		return nil
	}
	recorder := r.recorder(obj)
	if err := recorder.Flush(ctx); err != nil {
		return fmt.Errorf("note what was issued: %w", err)
	}
	account, err := recorder.Book.Read(ctx)
	if err != nil {
		return fmt.Errorf("read what was issued: %w", err)
	}
	entry, found := account[retiring.KeyID]
	if !found { // it had one since it began to sign
		s.Outstanding = append(s.Outstanding, v1alpha1.Outstanding{Signer: "any signer, as the ledger of it is gone", Until: retiring.NotAfter})
	}
	s.Sealed = entry.Sealed
	for signer, issued := range entry.Signers {
		s.Outstanding = append(s.Outstanding, v1alpha1.Outstanding{Signer: signer, Count: int64(issued.Count), Until: metav1.NewTime(issued.NotAfter)})
	}
	slices.SortFunc(s.Outstanding, func(a, b v1alpha1.Outstanding) int { return strings.Compare(a.Signer, b.Signer) })
	return nil
}

// kept looks for those who hold what was published before.
func (r *Reconciler) kept(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	if obj.Status.UnpublishedAt == nil || s.keys.retiring == nil || len(s.Sharing) > 0 || !AsksAPIServers(obj.Spec.Signers) {
		return nil
	}
	var err error
	if s.Kept, err = r.publisher.Holds(ctx, s.keys.retiring.Certificate()); err != nil {
		return err
	}
	s.Holding, err = r.holding(ctx, s.keys)
	return err
}
