package signer

import (
	"bytes"
	"context"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

// end returns what became of a certificate whose write into obj failed with err. A conflict does not mean that nothing was
// stored: the client repeats a write after a 5xx, and the first one may have been stored. So the API server is asked for
// what it holds. counts reports that the API server can read the request, but does not store the certificate.
func (r *Reconciler) end(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, certificate []byte, err error) (end audit.Event, counts bool) {
	switch {
	case final(err) || apierrors.IsNotFound(err):
		return audit.Discarded, false
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err):
		return audit.Uncertain, false // the next try shows whether an earlier one was stored
	}
	stored, readErr := r.read(ctx, obj)
	switch {
	case readErr != nil || stored.UID != obj.UID: // it may have been stored before it was deleted
		return audit.Uncertain, false
	case bytes.Equal(stored.Status.Certificate, certificate):
		return audit.Stored, false
	case stored.ResourceVersion != obj.ResourceVersion:
		return audit.Discarded, false
	default:
		return audit.Uncertain, apierrors.ReasonForError(err) != "" && !apierrors.IsConflict(err)
	}
}

// read returns what the API server holds of obj.
func (r *Reconciler) read(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	stored := &certificatesv1.CertificateSigningRequest{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), stored)
	return stored, err
}

// final reports whether trying again is no use as long as the object stays as it is.
func final(err error) bool { return apierrors.IsInvalid(err) || tooLarge(err) }

// tooLarge reports whether an object is too large for the API server or for etcd, whose answers it passes on.
func tooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		err != nil && (strings.Contains(err.Error(), "etcdserver: request is too large") || strings.Contains(err.Error(), "trying to send message larger than max"))
}
