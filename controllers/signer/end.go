package signer

import (
	"bytes"
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// end says what became of issued, whose write into obj has failed with err. Where err does not say, the API server is
// asked once: what names a resourceVersion that has passed is not stored any more.
func (r *Reconciler) end(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, issued *ca.Issued, err error) audit.Event {
	end := audit.Discarded
	if !answered(err) {
		end = r.look(ctx, obj, issued)
	}
	if end == audit.Discarded {
		discardedTotal.WithLabelValues(obj.Spec.SignerName).Inc()
	}
	return end
}

// answered says whether err is an answer, so that nothing was stored.
func answered(err error) bool {
	return final(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err)
}

func (r *Reconciler) look(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, issued *ca.Issued) audit.Event {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	now := &certificatesv1.CertificateSigningRequest{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), now)
	switch {
	case apierrors.IsNotFound(err):
		return audit.Discarded
	case err != nil:
		return audit.Uncertain
	case now.UID == obj.UID && bytes.Equal(now.Status.Certificate, issued.PEM):
		return audit.Stored
	case now.UID != obj.UID || now.ResourceVersion != obj.ResourceVersion:
		return audit.Discarded
	default:
		return audit.Uncertain
	}
}
