package check

import (
	"context"
	"fmt"
	"slices"
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
			if obj.Spec.Username == user || n.asksFor(&obj, user) {
				found = append(found, obj)
			}
		}
		if next = list.Continue; next == "" {
			return found, nil
		}
	}
}

func (n Node) asksFor(obj *certificatesv1.CertificateSigningRequest, user string) bool {
	req, err := n.RequestLimits.Parse(obj)
	return err == nil && req.Cert.Subject.CommonName == user
}

// newest is the youngest for signer of those that can be the node's, or if there is none, of all. Somebody else's that
// is younger still is foreign.
func (n Node) newest(all []certificatesv1.CertificateSigningRequest, signer string) (found, foreign *certificatesv1.CertificateSigningRequest) {
	for i := range all {
		obj := &all[i]
		switch {
		case obj.Spec.SignerName != signer:
		case n.credible(obj):
			found = younger(found, obj)
		default:
			foreign = younger(foreign, obj)
		}
	}
	switch {
	case found == nil:
		return foreign, nil
	case foreign != nil && younger(found, foreign) == found:
		return found, nil
	}
	return found, foreign
}

// younger is the younger one, one if they are as old as each other or it is the only one.
func younger(one, other *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	if one == nil || one.CreationTimestamp.Before(&other.CreationTimestamp) {
		return other
	}
	return one
}

// credible says whether the node itself, or whoever may join nodes, has made obj: anybody else can write its name too.
func (n Node) credible(obj *certificatesv1.CertificateSigningRequest) bool {
	return obj.Spec.Username == csr.NodeUserPrefix+n.Name || slices.ContainsFunc(obj.Spec.Groups, func(group string) bool {
		return isBootstrapGroup(group) || slices.Contains(n.BootstrapGroups, group)
	})
}

// newer is the part of a sentence that mentions foreign, if there is one.
func newer(foreign *certificatesv1.CertificateSigningRequest, now time.Time) string {
	if foreign == nil {
		return ""
	}
	return fmt.Sprintf("; passed over: the newer request %s, made %s ago by %q, who is neither the node nor in a bootstrap group",
		foreign.Name, age(foreign, now), csr.Shorten(foreign.Spec.Username))
}

func age(obj *certificatesv1.CertificateSigningRequest, now time.Time) string {
	return duration.HumanDuration(now.Sub(obj.CreationTimestamp.Time))
}

// events says what the last Event about obj said, as a part of a sentence.
func (n Node) events(ctx context.Context, obj client.Object) string {
	list := &eventsv1.EventList{}
	err := n.Reader.List(ctx, list, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"regarding.uid": string(obj.GetUID())})
	if err != nil {
		return "; Events " + ReadError("list events", err)
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

// ReadError says that something is unknown because of err, which came of trying to do what.
func ReadError(what string, err error) string {
	if apierrors.IsForbidden(err) {
		return "unknown: may not " + what
	}
	return fmt.Sprintf("unknown: could not %s: %v", what, err)
}
