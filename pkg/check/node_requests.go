package check

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// page is how many objects are read at a time.
const page = 500

// requests returns those for the node's certificates, whoever made them, and those that the node itself made.
func (n Node) requests(ctx context.Context) ([]certificatesv1.CertificateSigningRequest, error) {
	user := csr.NodeUserPrefix + n.Name
	var found []certificatesv1.CertificateSigningRequest
	for next := ""; ; {
		list := &certificatesv1.CertificateSigningRequestList{}
		if err := n.Reader.List(ctx, list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, err
		}
		for _, obj := range list.Items {
			if obj.Spec.Username == user || asksFor(&obj, user) {
				found = append(found, obj)
			}
		}
		if next = list.Continue; next == "" {
			return found, nil
		}
	}
}

func asksFor(obj *certificatesv1.CertificateSigningRequest, user string) bool {
	req, err := csr.Parse(obj)
	return err == nil && req.Cert.Subject.CommonName == user
}

// newest is the youngest of all for signer, or nil.
func newest(all []certificatesv1.CertificateSigningRequest, signer string) *certificatesv1.CertificateSigningRequest {
	var found *certificatesv1.CertificateSigningRequest
	for i := range all {
		obj := &all[i]
		if obj.Spec.SignerName == signer && (found == nil || found.CreationTimestamp.Before(&obj.CreationTimestamp)) {
			found = obj
		}
	}
	return found
}

func age(obj *certificatesv1.CertificateSigningRequest, now time.Time) string {
	return duration.HumanDuration(now.Sub(obj.CreationTimestamp.Time))
}

// events says what the last Event about obj said, as a part of a sentence.
func (n Node) events(ctx context.Context, obj client.Object) string {
	list := &eventsv1.EventList{}
	err := n.Reader.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"regarding.uid": string(obj.GetUID())})
	if err != nil {
		return "; Events " + readError("list events", err)
	}
	var last *eventsv1.Event
	for i := range list.Items {
		if last == nil || last.CreationTimestamp.Before(&list.Items[i].CreationTimestamp) {
			last = &list.Items[i]
		}
	}
	if last == nil {
		return "; there is no Event about it"
	}
	return fmt.Sprintf("; Event %s: %s", last.Reason, last.Note)
}

// readError says that something is unknown because of err.
func readError(what string, err error) string {
	if apierrors.IsForbidden(err) {
		return "unknown: may not " + what
	}
	return fmt.Sprintf("unknown: could not %s: %v", what, err)
}
