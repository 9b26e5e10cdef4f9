package rotation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// longest bounds what a status lists.
const longest = 20

// describe fills in what of a status is for people.
func describe(obj *v1alpha1.SigningAuthority, f Facts) {
	status := &obj.Status
	status.ObservedGeneration = obj.Generation
	status.APIServers = f.Servers
	if more := len(status.WaitingFor) - longest; more > 0 {
		status.WaitingFor = append(status.WaitingFor[:longest:longest], fmt.Sprintf("and %d more", more))
	}
	status.Outstanding, status.OutstandingOnRetiring = Outstanding(&obj.Spec, status.Retiring, f), 0
	for _, one := range status.Outstanding {
		status.OutstandingOnRetiring += one.Count
	}
	set := func(kind string, state metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: state, Reason: reason, Message: message,
			ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(f.Now),
		})
	}
	ready(status, f, set)
	if status.Phase == v1alpha1.New {
		return
	}
	if f.Published {
		set(v1alpha1.ConditionPublished, metav1.ConditionTrue, "Published", "the bundle is where it belongs")
	} else {
		set(v1alpha1.ConditionPublished, metav1.ConditionFalse, "NotPublished", cmp.Or(strings.Join(f.Unpublished, "; "), "the bundle is being published"))
	}
	trusting(obj, f, set)
	leaving(obj, f, set)
}

type setCondition func(kind string, state metav1.ConditionStatus, reason, message string)

func ready(status *v1alpha1.SigningAuthorityStatus, f Facts, set setCondition) {
	switch signing := f.Ring.Signing; {
	case signing == nil:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "CANotProven", "no CA signs yet: "+cmp.Or(strings.Join(status.WaitingFor, "; "), "one is being made"))
	case !signing.is(status.Signing):
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "CANotProven", fmt.Sprintf("signing.crt holds the CA %s, which does not sign here", signing.KeyID))
	case !signing.NotAfter.After(f.Now):
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "CAExpired", fmt.Sprintf("the CA %s has ended", signing.KeyID))
	default:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, "Signing", fmt.Sprintf("signing with %s", signing.KeyID))
	}
}

func trusting(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	proof, who := f.Signing, obj.Status.Signing
	if obj.Status.Candidate != nil {
		proof, who = f.Candidate, obj.Status.Candidate
	}
	asked := obj.Status.Phase == v1alpha1.Preparing || obj.Status.Phase == v1alpha1.Prepared
	switch {
	case who == nil:
	case !AsksAPIServers(obj.Spec.Signers):
		confirmed, state := "its owner has not confirmed yet that those who can't be asked trust it", metav1.ConditionUnknown
		if who.TrustConfirmedAt != nil {
			confirmed, state = "its owner has confirmed that those who can't be asked trust it", metav1.ConditionTrue
		}
		set(v1alpha1.ConditionTrusted, state, "Owner", confirmed)
	case proof.Proven:
		set(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Recognised", fmt.Sprintf("every API server recognises certificates of the CA %s", who.KeyID))
	case !asked:
		set(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Recognised", fmt.Sprintf("every API server recognised certificates of the CA %s when it began to sign", who.KeyID))
	default:
		set(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "NotProven", cmp.Or(strings.Join(first(proof.Missing), "; "), "not every API server was asked yet"))
	}
}

func leaving(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	status := &obj.Status
	if status.Retiring == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionNothingOutstanding)
		if status.Phase != v1alpha1.Completed {
			meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionRefused)
		}
		return
	}
	switch {
	case len(status.Outstanding) == 0:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionTrue, "Moved", fmt.Sprintf("nothing lives on the CA %s any more", status.Retiring.KeyID))
	case status.Retiring.OutstandingAcceptedAt != nil:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionFalse, "Accepted", "its owner accepts that what lives on the retiring CA breaks")
	default:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionFalse, "Outstanding",
			fmt.Sprintf("up to %d certificates live on the CA %s", status.OutstandingOnRetiring, status.Retiring.KeyID))
	}
	if status.UnpublishedAt != nil {
		refusing(obj, f, set)
	}
}

// refusing says whether those who verify refuse what has left what is published.
func refusing(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	key := obj.Status.Retiring.KeyID
	switch {
	case f.RetiringRefused.Proven:
		set(v1alpha1.ConditionRefused, metav1.ConditionTrue, "Refused", fmt.Sprintf("every API server refuses certificates of the CA %s%s", key, unclear(f)))
	case len(f.Sharing) > 0:
		set(v1alpha1.ConditionRefused, metav1.ConditionUnknown, "Shared", fmt.Sprintf("nobody is asked to refuse the CA %s: it is also that of %s", key, strings.Join(first(f.Sharing), ", ")))
	case !askedToRefuse(obj.Spec.Signers, f):
		set(v1alpha1.ConditionRefused, metav1.ConditionUnknown, "NotAsked", fmt.Sprintf("those who verify certificates of the CA %s can't be asked whether they refuse them", key))
	default:
		set(v1alpha1.ConditionRefused, metav1.ConditionFalse, "NotProven", cmp.Or(strings.Join(first(f.RetiringRefused.Missing), "; "), "not every API server was asked yet"))
	}
}

// unclear names the aggregated API servers of which nobody knows.
func unclear(f Facts) string {
	if len(f.Unclear) == 0 {
		return ""
	}
	return "; not known of aggregated API servers: " + strings.Join(first(f.Unclear), "; ")
}

func first(all []string) []string { return slices.Clone(all[:min(len(all), longest)]) }
