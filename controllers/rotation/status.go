package rotation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

// maxListed bounds the lists in a status.
const maxListed = 20

// storeStatus stores the decision of step before any action, and removes the annotation of an answered operation. It
// reports whether the next step may follow at once.
func (r *Reconciler) storeStatus(
	ctx context.Context, obj *v1alpha1.SigningAuthority, step Step, f Facts,
) (busy bool, err error) {
	before := obj.Status.DeepCopy()
	obj.Status = step.Status
	describe(obj, f)
	if !equality.Semantic.DeepEqual(*before, obj.Status) {
		if err := r.Client.Status().Update(ctx, obj); err != nil {
			return false, err
		}
	}
	r.gauges.set(obj)
	if step.Refused != "" {
		r.Reporter.Object(obj, corev1.EventTypeWarning, "Rotate", "RotationRefused", step.Refused)
		log.FromContext(ctx).Info("Refused", "why", step.Refused)
	}
	if before.Phase != obj.Status.Phase {
		phase := "Rotation" + string(obj.Status.Phase)
		r.Reporter.Object(obj, corev1.EventTypeNormal, "Rotate", phase, phaseText(&obj.Status))
	}
	if !slices.Equal(before.WaitingFor, obj.Status.WaitingFor) && len(obj.Status.WaitingFor) > 0 {
		log.FromContext(ctx).Info("Waits", "for", obj.Status.WaitingFor)
	}
	if !step.RemoveOperation {
		return decisionOf(before) != decisionOf(&obj.Status), nil
	}
	last := obj.Status.LastOperation
	if last.Result == v1alpha1.Accepted && !equality.Semantic.DeepEqual(last, before.LastOperation) {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, auditRecord(obj, Action(last.Name)))
	}
	// The patch fails if the annotation has changed meanwhile.
	patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
	delete(obj.Annotations, v1alpha1.OperationAnnotation)
	if err := r.Client.Patch(ctx, obj, patch); err != nil {
		return true, err
	}
	obj.Status.LastOperation.Annotated = false // from now on the same operation is another request
	return true, r.Client.Status().Update(ctx, obj)
}

// decisionOf returns the part of a status that the next step depends on, without timestamps.
func decisionOf(status *v1alpha1.SigningAuthorityStatus) string {
	var b strings.Builder
	fmt.Fprint(&b, status.Phase, status.Generation, status.Intent, status.UnpublishedAt == nil)
	if status.Answered() {
		b.WriteString(string(status.LastOperation.Name))
	}
	for _, authority := range []*v1alpha1.CAStatus{status.Signing, status.Candidate, status.Retiring} {
		if authority != nil {
			fmt.Fprint(&b, "|", authority.Fingerprint)
		}
	}
	return b.String()
}

// reportFailure writes to the status and to an Event why no decision is possible. It returns err.
func (r *Reconciler) reportFailure(ctx context.Context, obj *v1alpha1.SigningAuthority, err error) error {
	err = fmt.Errorf("read state of rotation: %w", err)
	before := obj.Status.DeepCopy()
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "RotationStuck", Message: err.Error(),
		ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	if equality.Semantic.DeepEqual(*before, obj.Status) {
		return err
	}
	r.Reporter.Object(obj, corev1.EventTypeWarning, "Rotate", "RotationStuck", err.Error())
	return errors.Join(err, r.Client.Status().Update(ctx, obj))
}

// auditRecord returns the record of action, with the CA that it concerns.
func auditRecord(obj *v1alpha1.SigningAuthority, action Action) audit.Record {
	status := &obj.Status
	authority := cmp.Or(status.Candidate, status.Signing)
	switch action {
	case SwapBack, Seal, Unseal, Prune, DestroyRetiring:
		authority = cmp.Or(status.Retiring, authority)
	}
	record := audit.Record{Name: obj.Name, UID: obj.UID, Reason: string(action), Message: phaseText(status)}
	if authority != nil {
		record.IssuerKeyID = authority.KeyID
	}
	return record
}

// phaseText returns what the phase means, for an Event.
func phaseText(status *v1alpha1.SigningAuthorityStatus) string {
	key := func(authority *v1alpha1.CAStatus) string {
		if authority == nil {
			return "none"
		}
		return authority.KeyID
	}
	switch status.Phase {
	case v1alpha1.Preparing:
		return fmt.Sprintf("the CA of generation %d is not trusted everywhere yet; signing CA: %s",
			status.Generation, key(status.Signing))
	case v1alpha1.Prepared:
		return fmt.Sprintf("signing with %s; %s stays trusted until rotation complete",
			key(status.Signing), key(status.Retiring))
	case v1alpha1.Completing:
		return fmt.Sprintf("removing %s from the trust bundle", key(status.Retiring))
	default:
		return fmt.Sprintf("signing with %s, the only trusted CA", key(status.Signing))
	}
}

// describe fills in the fields of the status that are for people.
func describe(obj *v1alpha1.SigningAuthority, f Facts) {
	status := &obj.Status
	status.ObservedGeneration = obj.Generation
	status.APIServers = f.APIServers
	if more := len(status.WaitingFor) - maxListed; more > 0 {
		status.WaitingFor = append(status.WaitingFor[:maxListed:maxListed], fmt.Sprintf("and %d more", more))
	}
	status.Outstanding, status.OutstandingUntil = Outstanding(&obj.Spec, status.Retiring, f), nil
	for i := range status.Outstanding {
		if until := &status.Outstanding[i].Until; status.OutstandingUntil == nil || status.OutstandingUntil.Before(until) {
			status.OutstandingUntil = until.DeepCopy()
		}
	}
	set := func(kind string, state metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: state, Reason: reason, Message: message,
			ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(f.Now),
		})
	}
	setReady(status, f, set)
	if status.Phase == v1alpha1.New {
		return
	}
	if f.Published {
		set(v1alpha1.ConditionPublished, metav1.ConditionTrue, "Published", "the trust bundle is published")
	} else {
		set(v1alpha1.ConditionPublished, metav1.ConditionFalse, "NotPublished",
			cmp.Or(strings.Join(f.Unpublished, "; "), "the trust bundle is being published"))
	}
	setTrusted(obj, f, set)
	setRetiring(obj, f, set)
}

// joined joins the first texts, or returns otherwise if there are none.
func joined(texts []string, otherwise string) string {
	return cmp.Or(strings.Join(texts[:min(len(texts), maxListed)], "; "), otherwise)
}

// setCondition sets one condition.
type setCondition func(kind string, state metav1.ConditionStatus, reason, message string)

// setReady sets the condition Ready, which reports whether a CA signs.
func setReady(status *v1alpha1.SigningAuthorityStatus, f Facts, set setCondition) {
	switch signing := f.Secret.Signing; {
	case signing == nil:
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "CANotProven",
			"no CA signs yet: "+cmp.Or(strings.Join(status.WaitingFor, "; "), "a CA is being created"))
	case !v1alpha1.SameCA(signing, status.Signing):
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "CANotProven",
			fmt.Sprintf("signing.crt holds the CA %s, which does not sign here", signing.KeyID))
	case !signing.NotAfter.After(f.Now):
		set(v1alpha1.ConditionReady, metav1.ConditionFalse, "CAExpired", fmt.Sprintf("the CA %s has expired", signing.KeyID))
	default:
		set(v1alpha1.ConditionReady, metav1.ConditionTrue, "Signing", fmt.Sprintf("signing with %s", signing.KeyID))
	}
}

// setTrusted sets the condition Trusted, about the candidate, or about the signing CA if there is no candidate. It
// stays true when the probes end.
func setTrusted(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	proof, authority := f.Signing, obj.Status.Signing
	if obj.Status.Candidate != nil {
		proof, authority = f.Candidate, obj.Status.Candidate
	}
	probed := obj.Status.Phase == v1alpha1.Preparing || obj.Status.Phase == v1alpha1.Prepared
	byAPIServers := AsksAPIServers(obj.Spec.Signers)
	unconfirmed := withoutTrust(signersToConfirm(obj.Spec.Signers), authority)
	switch {
	case authority == nil:
	case byAPIServers && probed && !proof.Proven:
		set(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "NotProven",
			joined(proof.Missing, "not every API server was probed yet"))
	case len(unconfirmed) > 0:
		confirm := ""
		if obj.Status.Phase == v1alpha1.Preparing {
			confirm = ", then run rotation confirm"
		}
		set(v1alpha1.ConditionTrusted, metav1.ConditionUnknown, "NotConfirmed",
			fmt.Sprintf("the verifiers of %s cannot be probed: check that they trust the CA %s%s",
				strings.Join(unconfirmed, ", "), authority.KeyID, confirm))
	case !byAPIServers:
		set(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Confirmed",
			"rotation confirm was run: its verifiers, which cannot be probed, trust it")
	case probed:
		set(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Recognised",
			fmt.Sprintf("every API server accepts certificates of the CA %s", authority.KeyID))
	default:
		set(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Recognised",
			fmt.Sprintf("every API server accepted certificates of the CA %s when it began to sign", authority.KeyID))
	}
}

// setRetiring sets the conditions NothingOutstanding and Refused, about the retiring CA.
func setRetiring(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
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
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionTrue, "Moved",
			fmt.Sprintf("no certificate of the CA %s is valid any more", status.Retiring.KeyID))
	case status.Retiring.OutstandingAcceptedAt != nil:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionFalse, "Accepted",
			"rotation accept was run: certificates of the retiring CA may stop working")
	default:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionFalse, "Outstanding",
			fmt.Sprintf("certificates of the CA %s are valid until %s",
				status.Retiring.KeyID, status.OutstandingUntil.UTC().Format(time.RFC3339)))
	}
	if status.UnpublishedAt != nil {
		setRefused(obj, f, set)
	}
}

// setRefused sets the condition Refused, which reports whether every verifier refuses the removed CA.
func setRefused(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	key := obj.Status.Retiring.KeyID
	switch {
	case f.RetiringRefused.Proven:
		set(v1alpha1.ConditionRefused, metav1.ConditionTrue, "Refused",
			fmt.Sprintf("every API server refuses certificates of the CA %s", key))
	case !askedToRefuse(obj.Spec.Signers, f):
		set(v1alpha1.ConditionRefused, metav1.ConditionUnknown, "NotAsked",
			fmt.Sprintf("the verifiers of the CA %s cannot be probed", key))
	default:
		set(v1alpha1.ConditionRefused, metav1.ConditionFalse, "NotProven",
			joined(f.RetiringRefused.Missing, "not every API server was probed yet"))
	}
}
