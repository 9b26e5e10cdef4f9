package rotation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

// storeStatus writes what was decided before anything is done, and says whether the decision goes on from here at once.
func (r *Reconciler) storeStatus(ctx context.Context, obj *v1alpha1.SigningAuthority, step Step, f Facts) (busy bool, err error) {
	before := obj.Status.DeepCopy()
	obj.Status = step.Status
	describe(obj, f)
	if !equality.Semantic.DeepEqual(*before, obj.Status) {
		if err := r.Client.Status().Update(ctx, obj); err != nil {
			return false, err
		}
	}
	r.writeEvents(ctx, obj, before, step)
	if step.RemoveOperation {
		if step.Refused == "" && before.TakenOperation == "" {
			r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, auditRecord(obj, Action(obj.Status.TakenOperation)))
		}
		return true, r.removeOperation(ctx, obj)
	}
	return decisionOf(before) != decisionOf(&obj.Status), nil
}

// decisionOf is what of a status a next step depends on, and not the time alone.
func decisionOf(status *v1alpha1.SigningAuthorityStatus) string {
	var b strings.Builder
	fmt.Fprint(&b, status.Phase, status.Generation, status.Intent, status.TakenOperation, status.UnpublishedAt == nil)
	for _, one := range []*v1alpha1.CAStatus{status.Signing, status.Candidate, status.Retiring} {
		if one != nil {
			fmt.Fprint(&b, "|", one.Fingerprint)
		}
	}
	return b.String()
}

// removeOperation removes the annotation, unless it is another one by now.
func (r *Reconciler) removeOperation(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	patch := client.MergeFromWithOptions(obj.DeepCopy(), client.MergeFromWithOptimisticLock{})
	delete(obj.Annotations, v1alpha1.OperationAnnotation)
	return r.Client.Patch(ctx, obj, patch)
}

// reportFailure says in the status why nothing can be decided, and returns err.
func (r *Reconciler) reportFailure(ctx context.Context, obj *v1alpha1.SigningAuthority, err error) error {
	before := obj.Status.DeepCopy()
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "RotationStuck", Message: err.Error(),
		ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	if equality.Semantic.DeepEqual(*before, obj.Status) {
		return err
	}
	r.event(obj, corev1.EventTypeWarning, "RotationStuck", err.Error())
	return errors.Join(err, r.Client.Status().Update(ctx, obj))
}

// writeEvents writes Events about what an owner wants to know.
func (r *Reconciler) writeEvents(ctx context.Context, obj *v1alpha1.SigningAuthority, before *v1alpha1.SigningAuthorityStatus, step Step) {
	if step.Refused != "" {
		r.event(obj, corev1.EventTypeWarning, "RotationRefused", step.Refused)
		log.FromContext(ctx).Info("Refused", "why", step.Refused)
	}
	if before.Phase != obj.Status.Phase {
		reached := "Rotation" + string(obj.Status.Phase)
		r.event(obj, corev1.EventTypeNormal, reached, phaseText(&obj.Status))
	}
	if !slices.Equal(before.WaitingFor, obj.Status.WaitingFor) && len(obj.Status.WaitingFor) > 0 {
		log.FromContext(ctx).Info("Waits", "for", obj.Status.WaitingFor)
	}
	measure(obj)
}

func (r *Reconciler) event(obj *v1alpha1.SigningAuthority, eventType, reason, message string) {
	r.Reporter.Object(obj, eventType, "Rotate", reason, message)
}

// auditRecord names the CA that action is about: the one that is to sign, or to go.
func auditRecord(obj *v1alpha1.SigningAuthority, action Action) audit.Record {
	status := &obj.Status
	one := cmp.Or(status.Candidate, status.Signing)
	switch action {
	case SwapBack, Seal, Unseal, Prune, DestroyRetiring:
		one = cmp.Or(status.Retiring, one)
	}
	record := audit.Record{Name: obj.Name, UID: obj.UID, Reason: string(action), Message: phaseText(status)}
	if one != nil {
		record.IssuerKeyID = one.KeyID
	}
	return record
}

// phaseText says what a phase means.
func phaseText(status *v1alpha1.SigningAuthorityStatus) string {
	key := func(one *v1alpha1.CAStatus) string {
		if one == nil {
			return "none yet"
		}
		return one.KeyID
	}
	switch status.Phase {
	case v1alpha1.Preparing:
		return fmt.Sprintf("CA generation %d waits to be trusted; what signs is %s", status.Generation, key(status.Signing))
	case v1alpha1.Prepared:
		return fmt.Sprintf("signing with %s; %s is trusted until rotate-complete", key(status.Signing), key(status.Retiring))
	case v1alpha1.Completing:
		return fmt.Sprintf("%s is leaving what is published", key(status.Retiring))
	default:
		return fmt.Sprintf("signing with %s, and nothing else is trusted", key(status.Signing))
	}
}

// maxListed bounds what a status lists.
const maxListed = 20

// describe fills in what of a status is for people.
func describe(obj *v1alpha1.SigningAuthority, f Facts) {
	status := &obj.Status
	status.ObservedGeneration = obj.Generation
	status.APIServers = f.APIServers
	if more := len(status.WaitingFor) - maxListed; more > 0 {
		status.WaitingFor = append(status.WaitingFor[:maxListed:maxListed], fmt.Sprintf("and %d more", more))
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
	setReady(status, f, set)
	if status.Phase == v1alpha1.New {
		return
	}
	if f.Published {
		set(v1alpha1.ConditionPublished, metav1.ConditionTrue, "Published", "the bundle is where it belongs")
	} else {
		set(v1alpha1.ConditionPublished, metav1.ConditionFalse, "NotPublished", cmp.Or(strings.Join(f.Unpublished, "; "), "the bundle is being published"))
	}
	setTrusted(obj, f, set)
	setRetiring(obj, f, set)
}

type setCondition func(kind string, state metav1.ConditionStatus, reason, message string)

func setReady(status *v1alpha1.SigningAuthorityStatus, f Facts, set setCondition) {
	switch signing := f.Secret.Signing; {
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

func setTrusted(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
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
		set(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "NotProven", cmp.Or(strings.Join(firstOf(proof.Missing), "; "), "not every API server was asked yet"))
	}
}

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
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionTrue, "Moved", fmt.Sprintf("nothing lives on the CA %s any more", status.Retiring.KeyID))
	case status.Retiring.OutstandingAcceptedAt != nil:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionFalse, "Accepted", "its owner accepts that what lives on the retiring CA breaks")
	default:
		set(v1alpha1.ConditionNothingOutstanding, metav1.ConditionFalse, "Outstanding",
			fmt.Sprintf("up to %d certificates live on the CA %s", status.OutstandingOnRetiring, status.Retiring.KeyID))
	}
	if status.UnpublishedAt != nil {
		setRefused(obj, f, set)
	}
}

// setRefused says whether those who verify refuse what has left what is published.
func setRefused(obj *v1alpha1.SigningAuthority, f Facts, set setCondition) {
	key := obj.Status.Retiring.KeyID
	switch {
	case f.RetiringRefused.Proven:
		set(v1alpha1.ConditionRefused, metav1.ConditionTrue, "Refused", fmt.Sprintf("every API server refuses certificates of the CA %s%s", key, unclearText(f)))
	case len(f.Sharing) > 0:
		set(v1alpha1.ConditionRefused, metav1.ConditionUnknown, "Shared", fmt.Sprintf("nobody is asked to refuse the CA %s: it is also that of %s", key, strings.Join(firstOf(f.Sharing), ", ")))
	case !askedToRefuse(obj.Spec.Signers, f):
		set(v1alpha1.ConditionRefused, metav1.ConditionUnknown, "NotAsked", fmt.Sprintf("those who verify certificates of the CA %s can't be asked whether they refuse them", key))
	default:
		set(v1alpha1.ConditionRefused, metav1.ConditionFalse, "NotProven", cmp.Or(strings.Join(firstOf(f.RetiringRefused.Missing), "; "), "not every API server was asked yet"))
	}
}

// unclearText names the aggregated API servers of which nobody knows.
func unclearText(f Facts) string {
	if len(f.Unclear) == 0 {
		return ""
	}
	return "; not known of aggregated API servers: " + strings.Join(firstOf(f.Unclear), "; ")
}

func firstOf(all []string) []string { return slices.Clone(all[:min(len(all), maxListed)]) }
