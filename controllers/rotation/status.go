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
	rotations.authorities.Store(obj.Name, obj.DeepCopy())
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
	return true, r.Client.Patch(ctx, obj, patch)
}

// decisionOf returns the part of a status that the next step depends on, without timestamps.
func decisionOf(status *v1alpha1.SigningAuthorityStatus) string {
	var b strings.Builder
	fmt.Fprint(&b, status.Phase, status.Generation, status.Intent, status.UnpublishedAt == nil)
	if status.Answered() {
		b.WriteString(string(status.LastOperation.Name))
	}
	for _, authority := range status.CAs() {
		fmt.Fprint(&b, "|", authority.Fingerprint, v1alpha1.SameCA(authority, status.Signing))
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
	set := func(kind string, state metav1.ConditionStatus, reason, format string, args ...any) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: state, Reason: reason, Message: fmt.Sprintf(format, args...),
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
		set(v1alpha1.ConditionPublished, metav1.ConditionFalse, "NotPublished", "%s",
			cmp.Or(strings.Join(f.Unpublished, "; "), "the trust bundle is being published"))
	}
	setTrusted(obj, f, set)
	setRetiring(obj, f, set)
}

// setCondition sets one condition.
type setCondition func(kind string, state metav1.ConditionStatus, reason, format string, args ...any)

// setReady sets the condition Ready, which reports whether a CA signs.
func setReady(status *v1alpha1.SigningAuthorityStatus, f Facts, set setCondition) {
	const ready = v1alpha1.ConditionReady
	switch signing := f.Secret.Signing; {
	case signing == nil:
		set(ready, metav1.ConditionFalse, "CANotProven", "no CA signs yet: %s",
			cmp.Or(strings.Join(status.WaitingFor, "; "), "a CA is being created"))
	case !v1alpha1.SameCA(signing, status.Signing):
		set(ready, metav1.ConditionFalse, "CANotProven", "signing.crt holds the CA %s, which does not sign here", signing.KeyID)
	case !signing.NotAfter.After(f.Now):
		set(ready, metav1.ConditionFalse, "CAExpired", "the CA %s has expired", signing.KeyID)
	default:
		set(ready, metav1.ConditionTrue, "Signing", "signing with %s", signing.KeyID)
	}
}

// setTrusted sets the condition Trusted, about the candidate, or about the signing CA if there is no candidate. It
// stays true when the probes end.
func setTrusted(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	const trusted = v1alpha1.ConditionTrusted
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
		set(trusted, metav1.ConditionFalse, "NotProven", "%s", firstOf(proof.missing()))
	case len(unconfirmed) > 0:
		confirm := ""
		if obj.Status.Phase == v1alpha1.Preparing {
			confirm = ", then run rotation confirm"
		}
		set(trusted, metav1.ConditionUnknown, "NotConfirmed",
			"the verifiers of %s cannot be probed: check that they trust the CA %s%s",
			strings.Join(unconfirmed, ", "), authority.KeyID, confirm)
	case !byAPIServers:
		set(trusted, metav1.ConditionTrue, "Confirmed",
			"rotation confirm was run: its verifiers, which cannot be probed, trust it")
	case probed:
		set(trusted, metav1.ConditionTrue, "Recognised", "every API server accepts certificates of the CA %s", authority.KeyID)
	default:
		set(trusted, metav1.ConditionTrue, "Recognised",
			"every API server accepted certificates of the CA %s when it began to sign", authority.KeyID)
	}
}

// firstOf joins the first texts.
func firstOf(texts []string) string { return strings.Join(texts[:min(len(texts), maxListed)], "; ") }

// setRetiring sets the conditions NothingOutstanding and Refused, about the retiring CA. Refused reports whether every
// verifier refuses the CA after it was removed.
func setRetiring(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	const outstanding, refused = v1alpha1.ConditionNothingOutstanding, v1alpha1.ConditionRefused
	status, retiring := &obj.Status, obj.Status.Retiring
	if retiring == nil {
		meta.RemoveStatusCondition(&status.Conditions, outstanding)
		if status.Phase != v1alpha1.Completed {
			meta.RemoveStatusCondition(&status.Conditions, refused)
		}
		return
	}
	switch {
	case len(status.Outstanding) == 0:
		set(outstanding, metav1.ConditionTrue, "Moved", "no certificate of the CA %s is valid any more", retiring.KeyID)
	case retiring.OutstandingAcceptedAt != nil:
		set(outstanding, metav1.ConditionFalse, "Accepted",
			"rotation accept was run: certificates of the retiring CA may stop working")
	default:
		set(outstanding, metav1.ConditionFalse, "Outstanding", "certificates of the CA %s are valid until %s",
			retiring.KeyID, status.OutstandingUntil.UTC().Format(time.RFC3339))
	}
	switch {
	case status.UnpublishedAt == nil:
	case f.RetiringRefused.Proven:
		set(refused, metav1.ConditionTrue, "Refused", "every API server refuses certificates of the CA %s", retiring.KeyID)
	case !askedToRefuse(obj.Spec.Signers, f):
		set(refused, metav1.ConditionUnknown, "NotAsked", "the verifiers of the CA %s cannot be probed", retiring.KeyID)
	default:
		set(refused, metav1.ConditionFalse, "NotProven", "%s", firstOf(f.RetiringRefused.missing()))
	}
}
