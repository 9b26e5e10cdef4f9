package commands

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// outcome says of operation, which was asked for at before, whether it is followed, and whether what it is for is reached.
func outcome(operation v1alpha1.Operation, before, now *v1alpha1.SigningAuthorityStatus) (followed, done bool) {
	switch operation {
	case v1alpha1.RotateStart:
		followed = now.Generation > before.Generation
		return followed, followed && now.Phase != v1alpha1.Preparing
	case v1alpha1.RotateComplete:
		done = now.Phase == v1alpha1.Completed
		return done || now.Phase == v1alpha1.Completing, done
	case v1alpha1.RotateRollback:
		done = back(before, now)
		return done || now.Intent == "SwapBack", done
	default:
		done = noted(operation, before, now)
		return done, done
	}
}

// noted says whether the owner's word is.
func noted(operation v1alpha1.Operation, before, now *v1alpha1.SigningAuthorityStatus) bool {
	switch operation {
	case v1alpha1.TrustConfirmed:
		return confirmed(now.Candidate) || confirmed(now.Signing)
	case v1alpha1.OutstandingAccepted:
		return now.Retiring == nil || now.Retiring.OutstandingAcceptedAt != nil
	default:
		return attested(now) > attested(before)
	}
}

// back says whether the CA signs that is to be gone back to.
func back(before, now *v1alpha1.SigningAuthorityStatus) bool {
	goal := before.Signing
	if before.Phase == v1alpha1.Prepared {
		goal = before.Retiring
	}
	return now.Phase != v1alpha1.Preparing && goal != nil && now.Signing != nil && now.Signing.Fingerprint == goal.Fingerprint
}

func confirmed(one *v1alpha1.CAStatus) bool { return one != nil && one.TrustConfirmedAt != nil }

func attested(status *v1alpha1.SigningAuthorityStatus) int {
	count := 0
	for _, one := range known(status) {
		if one.AttestedAt != nil {
			count++
		}
	}
	return count
}

// known are the CAs of a status, the new one first.
func known(status *v1alpha1.SigningAuthorityStatus) []*v1alpha1.CAStatus {
	all := []*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring}
	return slices.DeleteFunc(all, func(one *v1alpha1.CAStatus) bool { return one == nil })
}

func phase(status *v1alpha1.SigningAuthorityStatus) string {
	return cmp.Or(string(status.Phase), "not begun")
}

// summary is a status in a line.
func summary(status *v1alpha1.SigningAuthorityStatus) string {
	text := fmt.Sprintf("%s, generation %d", phase(status), status.Generation)
	switch {
	case len(status.WaitingFor) > 0:
		text += ", waits for " + strings.Join(status.WaitingFor, "; ")
	case status.Intent != "":
		text += ", at " + status.Intent
	}
	return text
}

// meaning is what an operation does that can't be undone, or empty.
func meaning(operation v1alpha1.Operation, obj *v1alpha1.SigningAuthority) string {
	retiring := "the CA that retires"
	if obj.Status.Retiring != nil {
		retiring = "the CA " + obj.Status.Retiring.KeyID + ", which retires,"
	}
	switch operation {
	case v1alpha1.RotateComplete:
		return fmt.Sprintf("complete has %s trusted by nobody any more, and destroys its key. There is no way back. It is refused while a certificate of it is known to be valid, unless its owner has accepted that.", retiring)
	case v1alpha1.OutstandingAccepted:
		return fmt.Sprintf("accept says that up to %d certificates of %s may break, whoever holds them: rotation status lists them. They are refused from rotation complete on.", obj.Status.OutstandingOnRetiring, retiring)
	case v1alpha1.AdoptionAttested:
		return fmt.Sprintf("attest says that nobody uses anything any more that others than this manager have issued from %s: admin.conf, kube-controller-manager's and the scheduler's kubeconfig, the API server's client certificate for kubelets, what kubectl and scripts hold. It is not looked at again, and breaks at rotation complete.", adopted(obj))
	default:
		return ""
	}
}

// adopted names the CAs that were not made here.
func adopted(obj *v1alpha1.SigningAuthority) string {
	var keyIDs []string
	for _, one := range known(&obj.Status) {
		if one.AdoptedAt != nil {
			keyIDs = append(keyIDs, one.KeyID)
		}
	}
	if len(keyIDs) == 0 {
		return "an adopted CA"
	}
	return "the CA " + strings.Join(keyIDs, " and ")
}
