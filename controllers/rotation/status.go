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
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

const (
	// maxListed bounds the lists in a status.
	maxListed = 20
	// stuck is the reason of the condition Ready and of an Event while no step is possible: something cannot be read, or
	// another client has edited the Secret.
	stuck = "RotationStuck"
)

// storeStatus stores the decision of step before any action, and removes the annotation of an answered operation. It
// reports whether the next step may follow at once.
func (r *Reconciler) storeStatus(
	ctx context.Context, obj *v1alpha1.SigningAuthority, step step, f facts,
) (busy bool, err error) {
	before := obj.Status.DeepCopy()
	obj.Status = step.Status
	describe(obj, step.Stopped, f)
	if !equality.Semantic.DeepEqual(*before, obj.Status) {
		if err := call.Write(ctx, r.Client.Status().Update, obj); err != nil {
			return false, err
		}
	}
	rotations.authorities.Store(obj.Name, obj.DeepCopy())
	r.reportStep(ctx, obj, before, step)
	last := obj.Status.LastOperation
	if !obj.Status.Answered() {
		return !equality.Semantic.DeepEqual(decisionOf(before), decisionOf(&obj.Status)), nil
	}
	if last.Result == v1alpha1.Accepted && !equality.Semantic.DeepEqual(last, before.LastOperation) {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, auditRecord(obj, Action(last.Name)))
	}
	// The patch fails if the annotation has changed meanwhile.
	patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
	delete(obj.Annotations, v1alpha1.OperationAnnotation)
	return true, call.Write(ctx, func(ctx context.Context, obj client.Object, _ ...client.PatchOption) error {
		return r.Client.Patch(ctx, obj, patch)
	}, obj)
}

// reportStep writes Events and logs about step, which has changed the status from before.
func (r *Reconciler) reportStep(ctx context.Context, obj *v1alpha1.SigningAuthority, before *v1alpha1.SigningAuthorityStatus, step step) {
	if step.Refused != "" {
		r.reporter.Object(obj, corev1.EventTypeWarning, "Rotate", "RotationRefused", step.Refused)
		log.FromContext(ctx).Info("Refused", "why", step.Refused)
	}
	changed := !slices.Equal(before.WaitingFor, obj.Status.WaitingFor)
	if step.Stopped != "" && changed {
		r.reporter.Object(obj, corev1.EventTypeWarning, "Rotate", stuck, step.Stopped)
	}
	if before.Phase != obj.Status.Phase {
		phase := "Rotation" + string(obj.Status.Phase)
		r.reporter.Object(obj, corev1.EventTypeNormal, "Rotate", phase, phaseText(&obj.Status))
	}
	if was, is := before.Signing, obj.Status.Signing; was != nil && is != nil && was.KeyID == is.KeyID && was.Fingerprint != is.Fingerprint {
		r.reporter.Object(obj, corev1.EventTypeNormal, "Rotate", "CertificateRenewed",
			fmt.Sprintf("the CA %s signs with a certificate that ends at %s", is.KeyID, is.NotAfter.UTC().Format(time.RFC3339)))
	}
	if changed && len(obj.Status.WaitingFor) > 0 {
		log.FromContext(ctx).Info("Waits", "for", obj.Status.WaitingFor)
	}
}

// decisionOf returns the part of a status that the next step depends on.
func decisionOf(s *v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	return v1alpha1.SigningAuthorityStatus{
		Phase: s.Phase, Generation: s.Generation, Intent: s.Intent, UnpublishedAt: s.UnpublishedAt,
		Candidate: s.Candidate, Renewed: s.Renewed, Signing: s.Signing, Retiring: s.Retiring,
	}
}

// reportFailure writes to the status and to an Event why no decision is possible. It returns err.
func (r *Reconciler) reportFailure(ctx context.Context, obj *v1alpha1.SigningAuthority, err error) error {
	reason := "ClockSkewed"
	if !errors.Is(err, errClocks) {
		reason, err = stuck, fmt.Errorf("read state of rotation: %w", err)
	}
	before := obj.Status.DeepCopy()
	obj.Status.WaitingFor = []string{err.Error()}
	one := condition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, "%v", err)
	one.ObservedGeneration, one.LastTransitionTime = obj.Generation, metav1.NewTime(r.ServerTime.Latest())
	meta.SetStatusCondition(&obj.Status.Conditions, one)
	if equality.Semantic.DeepEqual(*before, obj.Status) {
		return err
	}
	r.reporter.Object(obj, corev1.EventTypeWarning, "Rotate", reason, err.Error())
	return errors.Join(err, call.Write(ctx, r.Client.Status().Update, obj))
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
		return cmp.Or(authority, &v1alpha1.CAStatus{KeyID: "none"}).KeyID
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

// describe fills in the fields of the status that are for people. stopped is that of the step.
func describe(obj *v1alpha1.SigningAuthority, stopped string, f facts) {
	status := &obj.Status
	status.ObservedGeneration = obj.Generation
	if more := len(status.WaitingFor) - maxListed; more > 0 {
		status.WaitingFor = append(status.WaitingFor[:maxListed:maxListed], fmt.Sprintf("and %d more", more))
	}
	status.Outstanding, status.OutstandingUntil = stillValid(&obj.Spec, status.Retiring, f), nil
	for i := range status.Outstanding {
		if until := &status.Outstanding[i].Until; status.OutstandingUntil == nil || status.OutstandingUntil.Before(until) {
			status.OutstandingUntil = until.DeepCopy()
		}
	}
	for _, one := range conditions(obj, stopped, f) {
		one.ObservedGeneration, one.LastTransitionTime = obj.Generation, metav1.NewTime(f.Now)
		meta.SetStatusCondition(&status.Conditions, one)
	}
	if status.Retiring == nil && status.Phase != v1alpha1.Completed {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionRefused)
	}
}

// conditions returns the conditions that the facts change. The others stay as they are.
func conditions(obj *v1alpha1.SigningAuthority, stopped string, f facts) []metav1.Condition {
	all := []metav1.Condition{ready(&obj.Status, stopped, f)}
	if obj.Status.Phase == v1alpha1.New {
		return all
	}
	if obj.Status.Candidate != nil || obj.Status.Signing != nil {
		all = append(all, trusted(obj, f))
	}
	if obj.Status.Retiring != nil && obj.Status.UnpublishedAt != nil {
		all = append(all, refused(obj, f))
	}
	if f.Published {
		return append(all, condition(v1alpha1.ConditionPublished, metav1.ConditionTrue, "Published", "the trust bundle is published"))
	}
	return append(all, condition(v1alpha1.ConditionPublished, metav1.ConditionFalse, "NotPublished", "%s",
		cmp.Or(strings.Join(f.Unpublished, "; "), "the trust bundle is being published")))
}

// condition returns one condition.
func condition(kind string, state metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Type: kind, Status: state, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ready returns the condition Ready, which reports whether a CA signs and the rotation is not stopped.
func ready(status *v1alpha1.SigningAuthorityStatus, stopped string, f facts) metav1.Condition {
	const kind = v1alpha1.ConditionReady
	switch signing := f.Secret.Signing; {
	case stopped != "" && v1alpha1.SameCA(signing, status.Signing):
		return condition(kind, metav1.ConditionFalse, stuck, "%s; the CA %s still signs", stopped, signing.KeyID)
	case stopped != "":
		return condition(kind, metav1.ConditionFalse, stuck, "%s", stopped)
	case signing == nil:
		return condition(kind, metav1.ConditionFalse, "CANotProven", "no CA signs yet: %s",
			cmp.Or(strings.Join(status.WaitingFor, "; "), "a CA is being created"))
	case !v1alpha1.SameCA(signing, status.Signing):
		return condition(kind, metav1.ConditionFalse, "CANotProven", "signing.crt holds the CA %s, which does not sign here", signing.KeyID)
	case !signing.NotAfter.After(f.Now):
		return condition(kind, metav1.ConditionFalse, "CAExpired", "the CA %s has expired", signing.KeyID)
	default:
		return condition(kind, metav1.ConditionTrue, "Signing", "signing with %s", signing.KeyID)
	}
}

// trusted returns the condition Trusted, about the candidate, or about the signing CA if there is no candidate. It stays
// true when the probes end.
func trusted(obj *v1alpha1.SigningAuthority, f facts) metav1.Condition {
	const kind = v1alpha1.ConditionTrusted
	proof, authority := f.Signing, obj.Status.Signing
	if obj.Status.Phase == v1alpha1.Preparing && obj.Status.Candidate != nil {
		proof, authority = f.Candidate, obj.Status.Candidate
	}
	probed := obj.Status.Phase == v1alpha1.Preparing || obj.Status.Phase == v1alpha1.Prepared
	byAPIServers := asksAPIServers(obj.Spec.Signers)
	unconfirmed := withoutTrust(signersToConfirm(obj.Spec.Signers), authority)
	switch {
	case byAPIServers && probed && !proof.Proven:
		return condition(kind, metav1.ConditionFalse, "NotProven", "%s", firstOf(proof.Lacks()))
	case len(unconfirmed) > 0:
		confirm := ""
		if obj.Status.Phase == v1alpha1.Preparing {
			confirm = ", then run rotation confirm"
		}
		return condition(kind, metav1.ConditionUnknown, "NotConfirmed",
			"the verifiers of %s cannot be probed: check that they trust the CA %s%s",
			strings.Join(unconfirmed, ", "), authority.KeyID, confirm)
	case !byAPIServers:
		return condition(kind, metav1.ConditionTrue, "Confirmed",
			"rotation confirm was run: its verifiers, which cannot be probed, trust it")
	case probed:
		return condition(kind, metav1.ConditionTrue, "Recognised", "every API server accepts certificates of the CA %s", authority.KeyID)
	default:
		return condition(kind, metav1.ConditionTrue, "Recognised",
			"every API server accepted certificates of the CA %s when it began to sign", authority.KeyID)
	}
}

// refused returns the condition Refused, which reports whether every verifier refuses the retiring CA after it was
// removed.
func refused(obj *v1alpha1.SigningAuthority, f facts) metav1.Condition {
	const kind = v1alpha1.ConditionRefused
	switch keyID := obj.Status.Retiring.KeyID; {
	case f.RetiringRefused.Proven:
		return condition(kind, metav1.ConditionTrue, "Refused", "every API server refuses certificates of the CA %s", keyID)
	case !askedToRefuse(obj.Spec.Signers, obj.Status.Retiring, f):
		return condition(kind, metav1.ConditionUnknown, "NotAsked", "the verifiers of the CA %s cannot be probed", keyID)
	default:
		return condition(kind, metav1.ConditionFalse, "NotProven", "%s", firstOf(f.RetiringRefused.Lacks()))
	}
}

// firstOf joins the first texts.
func firstOf(texts []string) string { return strings.Join(texts[:min(len(texts), maxListed)], "; ") }
