package cleaner

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/informers"
)

// byAttempt is the index of the requests that can supersede each other, so that each is parsed once for it.
const byAttempt = "attempt"

func (r *Reconciler) attempts(obj client.Object) []string {
	if request, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
		if attempt, ok := r.RequestLimits.AttemptOf(request); ok {
			return []string{attemptKey(attempt)}
		}
	}
	return nil
}

// indexing makes the index byAttempt. The discovery before may fail, so it is no part of the setup. Until there is an index, what may
// be superseded is looked at again.
type indexing struct {
	reconciler *Reconciler
	indexer    client.FieldIndexer
	log        logr.Logger
}

// NeedLeaderElection returns false: a standby has the index when it takes over.
func (*indexing) NeedLeaderElection() bool { return false }

// Start makes the index, and tries again until it can or ctx ends.
func (i *indexing) Start(ctx context.Context) error {
	_ = informers.Try(ctx, i.log, func(error) {}, func() error {
		return i.indexer.IndexField(ctx, &certificatesv1.CertificateSigningRequest{}, byAttempt, i.reconciler.attempts)
	})
	return nil
}

// attemptKey has no separator that a name could hold.
func attemptKey(a csr.Attempt) string {
	return strings.Join([]string{a.Signer, a.Requester, a.Node}, "\x00")
}

// superseded returns when obj is due because a newer request stands in for it, or if none does, when to look again, which
// has not passed yet; zero is for a request that can't be superseded. A newer one that is made from now on makes nothing
// due before SupersededAfter has passed again, so nothing has to wake it.
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
	same := &certificatesv1.CertificateSigningRequestList{}
	if err := r.Attempts.List(ctx, same, client.MatchingFields{byAttempt: attemptKey(attempt)}, client.UnsafeDisableDeepCopy); err != nil {
		return time.Time{}, fmt.Errorf("list requests for the same node: %w", err)
	}
	others := make([]time.Time, len(same.Items))
	for i := range same.Items {
		others[i] = same.Items[i].CreationTimestamp.Time
	}
	if since, is := csr.Superseded(created, others); is {
		return since.Add(r.SupersededAfter), nil
	}
	return now.Add(r.SupersededAfter), nil
}
