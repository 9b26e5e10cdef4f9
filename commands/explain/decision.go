package explain

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// verdict returns what has been decided about the request or would be decided, in one sentence, and the reason alone.
func (e *Explainer) verdict(f *Findings) (text, reason string) {
	if f.foreign() {
		return fmt.Sprintf("This manager neither approves nor signs the request: signer %s is not configured.",
			quote(f.obj.Spec.SignerName)), ""
	}
	switch f.State {
	case csr.Issued:
		return "The request has its certificate.", ""
	case csr.Denied:
		return conditionSentence(f, certificatesv1.CertificateDenied, "The request was denied, which is final")
	case csr.Failed:
		return conditionSentence(f, certificatesv1.CertificateFailed, "The signer failed the request, which is final")
	case csr.Approved:
		text, reason = e.signing(f)
		return "The request is approved" + text, reason
	default:
		return e.approval(f)
	}
}

// foreign reports whether no controller but the cleaner is configured for the request.
func (f *Findings) foreign() bool { return f.Rule == nil && !f.Served }

// conditionSentence returns begin, followed by the reason and the message of a condition. It also returns the reason
// alone.
func conditionSentence(f *Findings, kind certificatesv1.RequestConditionType, begin string) (text, reason string) {
	condition := csr.Condition(f.obj, kind)
	if condition == nil || condition.Reason == "" && condition.Message == "" {
		return begin + ". The condition has no reason.", ""
	}
	return fmt.Sprintf("%s (%s): %s", begin, sentence(condition.Reason), ended(sentence(condition.Message))),
		sentence(condition.Reason)
}

// approval returns what the approver would decide about an undecided request.
func (e *Explainer) approval(f *Findings) (text, reason string) {
	switch {
	case e.options.Approver == nil:
		return "The request waits for approval. The approver of this configuration is switched off.", ""
	case f.Rule == nil:
		text = fmt.Sprintf("The request waits for approval. No rule of this manager approves requests for signer %s",
			quote(f.obj.Spec.SignerName))
		if f.Judged.Verdict != verdict.Deny {
			return text + ".", ""
		}
		signs, reason := e.signing(f)
		return text + signs, reason
	case f.Refusal() != nil:
		return fmt.Sprintf("The request is not approved (%s), as the manager said %s: %s",
			f.Said.Outcome(), distance(f.Said.At, f.now), ended(sentence(f.Said.Message))), f.Said.Outcome()
	case f.Undecidable != nil:
		return "The request is not approved. What the rules say is " +
			ended(unknown(f.Undecidable, reviewRight)), ""
	case f.Decision.Verdict == verdict.Approve:
		text, reason = e.signing(f)
		return "The request is not approved yet. The rules approve it" + text, reason
	}
	begin := "The request will never be approved"
	switch {
	case f.Decision.Verdict == verdict.Wait:
		begin = "The request is not approved"
	case f.Decision.Verdict == verdict.Deny && e.options.Approver.Denial == approver.DenialPermanent:
		begin = "The request will be denied"
	case approver.ByConfiguration(f.Decision.Reason):
		begin = "The request is not approved with this configuration"
	}
	return fmt.Sprintf("%s (%s): %s", begin, f.Decision.Reason, ended(sentence(f.Decision.Message))), f.Decision.Reason
}

// reviewRight is the right that a user needs to ask what a requester may do.
const reviewRight = "create subjectaccessreviews"

// signing returns the end of the sentence about a request that is approved or would be, and the reason if the signer
// does not sign it.
func (e *Explainer) signing(f *Findings) (text, reason string) {
	because := func(begin string) (string, string) {
		return fmt.Sprintf("%s (%s): %s", begin, f.Judged.Reason,
			ended(sentence(f.Judged.Sentence(f.obj.Spec.SignerName)))), f.Judged.Reason
	}
	switch {
	case e.options.Signer == nil || !f.Served:
		return ", and another program must sign it: this manager does not sign for this signer.", ""
	case f.previewErr != nil:
		return ", and the signer cannot sign it: " + ended(sentence(f.previewErr.Error())), ""
	case f.lacksOnlyCA() && f.unread != nil:
		return ", and it keeps the rules of the signer. Whether the signer has a CA is " + ended(f.unreadCA()), ""
	case f.Judged.Verdict == verdict.Deny:
		return because(", and the signer will fail it")
	case f.Judged.Authority == nil:
		return because(", and the signer does not sign it now")
	default:
		return ", and the signer can sign it.", ""
	}
}

// step is a next step. command may be empty.
type step struct{ text, command string }

// nextStep returns what the user should do now.
func (e *Explainer) nextStep(f *Findings) step {
	if f.Said.ManagerOnly() {
		reasons := map[csr.State]map[string]advice{csr.Pending: approverReasons, csr.Approved: signerReasons}
		if known, ok := reasons[f.State][f.Said.Outcome()]; ok {
			return step{text: known.todo}
		}
	}
	if f.foreign() {
		return step{text: fmt.Sprintf("Ask the administrator of signer %s about this request.",
			quote(f.obj.Spec.SignerName))}
	}
	switch f.State {
	case csr.Issued:
		return step{text: e.afterIssue(f)}
	case csr.Denied:
		return step{text: afterEnd(f, approverReasons)}
	case csr.Failed:
		return step{text: afterEnd(f, signerReasons)}
	case csr.Approved:
		if text := e.untilSigned(f); text != "" {
			return step{text: text}
		}
		return step{text: e.onItsWay(f, "signs")}
	default:
		return e.untilApproved(f)
	}
}

// afterIssue returns the next step for a request that has its certificate.
func (e *Explainer) afterIssue(f *Findings) string {
	if cert, err := issued(f); err == nil && f.Request != nil && !f.Request.KeyIn(cert) {
		return "Find out which program signed this request, because the certificate is for another key. " +
			"Then make a new request."
	}
	if f.cut() != nil {
		return signerReasons["LifetimeCut"].todo
	}
	text := "Nothing to do."
	if e.options.Cleaner != nil {
		if at, due := e.options.Cleaner.Retention.Deadline(f.obj); due && at.After(f.now) {
			text += fmt.Sprintf(" The cleaner deletes the request %s, which does not affect the certificate.",
				distance(at, f.now))
		}
	}
	return text
}

// afterEnd returns the next step for a request that is denied or failed, by the reason of its condition.
func afterEnd(f *Findings, reasons map[string]advice) string {
	kind := certificatesv1.CertificateDenied
	if f.State == csr.Failed {
		kind = certificatesv1.CertificateFailed
	}
	if condition := csr.Condition(f.obj, kind); condition != nil {
		if known, ok := reasons[condition.Reason]; ok && known.todo != nothing {
			return known.todo
		}
	}
	return "Correct what the decision names, then make a new request. A kubelet makes one when it restarts."
}

// onItsWay returns the next step for a request that the manager is about to handle. does is what the manager does.
func (e *Explainer) onItsWay(f *Findings, does string) string {
	if e.difference(f) != "" {
		return fmt.Sprintf("Wait five minutes, because the manager checks the request again. If nothing changes, the manager "+
			"does not run, or it runs with another configuration: run \"%s check\".", e.program())
	}
	return fmt.Sprintf("Nothing to do: the manager %s the request within seconds. "+
		"If the request stays like this, run \"%s check\" to find out whether the manager runs.", does, e.program())
}

// untilSigned returns the next step for a request that is approved or would be, or nothing if the signer can sign it.
func (e *Explainer) untilSigned(f *Findings) string {
	switch {
	case e.options.Signer == nil || !f.Served:
		return fmt.Sprintf("Find out which program signs for signer %s, and why it does not sign.",
			quote(f.obj.Spec.SignerName))
	case e.options.Signer.DryRun:
		return "Remove signer from dryRun in the configuration: in a dry run the signer only reports what it would do."
	case f.previewErr != nil:
		return "Make a new request that the signer can sign."
	case f.lacksOnlyCA() && errors.Is(f.unread, errNoCA):
		return "Run explain with the configuration of the manager, to find out whether it has a CA."
	case f.lacksOnlyCA() && f.unread != nil:
		return fmt.Sprintf("Run explain as a user who may %s, to find out whether the signer has a CA.",
			f.signer.KeyPair.ReadRight())
	case f.Judged.Authority != nil:
		return ""
	default:
		return cmp.Or(signerReasons[f.Judged.Reason].todo, "Do what the decision says.")
	}
}

// untilApproved returns the next step for an undecided request.
func (e *Explainer) untilApproved(f *Findings) step {
	byHand := step{
		text: "If you know who made this request and why, approve it by hand. " +
			"Nothing in this configuration approves requests for this signer.",
		command: "kubectl certificate approve " + check.Argument(sentence(f.obj.Name)),
	}
	switch {
	case e.options.Approver == nil || f.Rule == nil:
		if text := e.untilSigned(f); f.Served && f.Judged.Verdict == verdict.Deny {
			return step{text: text} // approving it is no use
		}
		return byHand
	case f.Undecidable != nil:
		return e.untilDecidable(f)
	case f.Decision.Verdict != verdict.Approve:
		return e.afterRefusal(f)
	case e.options.Approver.DryRun:
		return step{text: "Remove approver from dryRun in the configuration: in a dry run the approver only reports " +
			"what it would do."}
	}
	if text := e.untilSigned(f); text != "" {
		return step{text: text}
	}
	return step{text: e.onItsWay(f, "approves and signs")}
}

// untilDecidable returns the next step for a request about which the rules say nothing to this user.
func (e *Explainer) untilDecidable(f *Findings) step {
	switch {
	case errors.Is(f.Undecidable, errOffline):
		return step{text: "Run explain without -f, so that it can ask the API server what the requester may do."}
	case errors.Is(f.Undecidable, errElsewhere):
		return step{text: "Read in the Events below what the running manager decided. To ask that source from here, run " +
			"explain with --config and the files that the configuration names."}
	case f.Refusal() != nil:
		return step{text: approverReasons[f.Said.Outcome()].todo}
	case f.Unwatched:
		return step{text: fmt.Sprintf("Wait one minute, and run explain again: the running manager writes an Event. If "+
			"there is none, run \"%s check\" to find out whether the manager runs.", e.program())}
	default:
		return step{text: "Run explain as a user who has the missing right. " +
			"Until then, the Events below say what the running manager decided."}
	}
}

// otherCredential is the next step for a requester that has the roles, and is bound to another node, is not bound to a
// node, is not in approval.nodeClient.bootstrapUsers, or no longer exists.
const otherCredential = "If the machine should join as this node, give it a credential that may: a new bootstrap " +
	"token for this node, or a user of `bootstrapUsers`. Otherwise find out who holds this credential."

// afterRefusal returns the next step for a request that a rule of the approver refuses.
func (e *Explainer) afterRefusal(f *Findings) step {
	if f.Decision.Reason == "NotAuthorized" && !f.lacksRole {
		return step{text: otherCredential}
	}
	if f.Decision.Reason != "NotAuthorized" || f.Request == nil {
		return step{text: cmp.Or(approverReasons[f.Decision.Reason].todo, "Do what the decision says.")}
	}
	advised := sentence(check.BindRequester(f.obj, e.options.RequestLimits))
	text, command, found := strings.Cut(advised, ": ")
	if !found || !strings.HasPrefix(command, "kubectl create ") {
		return step{text: ended(capitalized(advised))}
	}
	return step{text: capitalized(text) + ", bind the missing role. The manager checks the request again within five minutes.",
		command: command}
}

func capitalized(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// difference returns how the decision of f differs from what the running manager said last, or nothing.
func (e *Explainer) difference(f *Findings) string {
	if f.State == csr.Pending {
		return f.Said.Difference(f.ApprovalOpinion(), "approve", f.now)
	}
	if f.State == csr.Approved && f.Served {
		return f.Said.Difference(f.SigningOpinion(), "sign", f.now)
	}
	return ""
}

// ApprovalOpinion returns what the approver says of an undecided request.
func (f *Findings) ApprovalOpinion() check.Opinion {
	if said := f.Refusal(); said != nil {
		return check.Opinion{Reason: said.Outcome(), Message: said.Message, NextStep: NextStep(said.Outcome())}
	}
	opinion := check.Opinion{
		Does: f.Decision.Verdict == verdict.Approve, Reason: f.Decision.Reason,
		Message: f.Decision.Message, Err: f.Undecidable, NextStep: NextStep(f.Decision.Reason),
	}
	switch {
	case opinion.Reason == "NotAuthorized" && f.lacksRole:
		opinion.NextStep = "" // the check has the command
	case opinion.Reason == "NotAuthorized":
		opinion.NextStep = otherCredential
	case opinion.Err != nil:
		opinion.NextStep = ""
	}
	return opinion
}

// SigningOpinion returns what the signer says of an approved request.
func (f *Findings) SigningOpinion() check.Opinion {
	opinion := check.Opinion{
		Does: f.Judged.Authority != nil, Reason: f.Judged.Reason,
		Message: f.Judged.Sentence(f.obj.Spec.SignerName), Err: f.previewErr, NextStep: signerReasons[f.Judged.Reason].todo,
	}
	if f.unread != nil && f.lacksOnlyCA() {
		opinion.Err = f.unread
	}
	return opinion
}
