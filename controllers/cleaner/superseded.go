package cleaner

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// superseded returns when obj is due because a newer request stands in for it. If none does, it returns an instant in the
// future at which to look again. It returns zero for a request that can't be superseded. A newer request that is made from
// now on makes nothing due before SupersededAfter has passed again, so nothing has to wake obj.
func (r *Reconciler) superseded(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) (time.Time, error) {
	if r.SupersededAfter <= 0 {
		return time.Time{}, nil
	}
	created := obj.CreationTimestamp.Time
	if first := created.Add(r.SupersededAfter); !now.After(first) && csr.StateOf(obj) == csr.Pending {
		return first, nil
	}
	attempt, ok := r.RequestLimits.AttemptOf(obj)
	if !ok {
		return time.Time{}, nil
	}
	soon := now.Add(time.Second)
	if !r.attempts.ready() {
		return soon, nil
	}
	newer, since := r.attempts.newer(attempt, created)
	if newer == "" {
		return now.Add(r.SupersededAfter), nil
	}
	due := since.Add(r.SupersededAfter)
	if !now.After(due) {
		return due, nil
	}
	// The cache may be ahead of the attempts.
	if stands, err := r.stands(ctx, newer, since, attempt); err != nil || !stands {
		return soon, err
	}
	return due, nil
}

// stands reports whether the cache has the request of that name and creation, and it is of the given attempt.
func (r *Reconciler) stands(ctx context.Context, name string, created time.Time, of csr.Attempt) (bool, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: nothing of it is changed.
	if err := r.Client.Get(ctx, types.NamespacedName{Name: name}, obj, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return false, fmt.Errorf("read the newer request %s for the same node: %w", name, err)
	}
	attempt, ok := r.RequestLimits.AttemptOf(obj)
	return ok && attempt == of && obj.CreationTimestamp.Unix() == created.Unix(), nil
}
