package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// settled is the age at which a request that is still undecided, or an approved one that is still unsigned, is stuck.
const settled = 10 * time.Second

// noneAtWork is what to do when the configuration at hand would act.
const noneAtWork = "see that a manager with this configuration runs and leads (kubectl get pods and leases in its namespace), and that it has its rights (its /readyz)"

// decided goes through the steps from approval to certificate.
func (n Node) decided(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) []Result {
	state := csr.StateOf(obj)
	if state == csr.Pending || state == csr.Denied {
		return []Result{n.notApproved(ctx, obj, now)}
	}
	results := []Result{{Check: StepApproved, Subject: obj.Name, Status: OK, Evidence: conditionText(obj, certificatesv1.CertificateApproved)}}
	if state != csr.Issued {
		return append(results, n.notIssued(ctx, obj, now))
	}
	return append(results, issued(obj))
}

func issued(obj *certificatesv1.CertificateSigningRequest) Result {
	result := Result{Check: StepIssued, Subject: obj.Name, Status: OK}
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		result.Status, result.Evidence = Failed, fmt.Sprintf("what was issued is no certificate: %v", err)
		result.NextStep = "find out who signs for " + obj.Spec.SignerName
		return result
	}
	result.Evidence = fmt.Sprintf("serial %s, issued by %q, valid until %s", certs[0].SerialNumber.Text(16), certs[0].Issuer, certs[0].NotAfter.UTC().Format(time.RFC3339))
	return result
}

func (n Node) notApproved(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) Result {
	result := Result{Check: StepApproved, Subject: obj.Name, Status: Failed}
	if csr.StateOf(obj) == csr.Denied {
		result.Evidence = conditionText(obj, certificatesv1.CertificateDenied) + n.events(ctx, obj)
		result.NextStep = "it stays denied: find out who denied it, mend that, and have the kubelet make a new one by restarting it"
		return result
	}
	opinion := n.Approve(ctx, obj)
	result.Evidence = fmt.Sprintf("undecided after %s: ", age(obj, now))
	switch {
	case opinion.Err != nil:
		result.Evidence += fmt.Sprintf("what the approver would say could not be asked: %v", opinion.Err)
		result.NextStep = "ask as one who may create subjectaccessreviews; the Events and log of the approver have the reason too"
	case opinion.Does && now.Sub(obj.CreationTimestamp.Time) < settled:
		result.Status, result.NextStep = Unknown, "ask again in a moment"
		result.Evidence += "the approver of this configuration would approve it"
	case opinion.Does:
		result.Evidence += "the approver of this configuration would approve it, but none is at work"
		result.NextStep = noneAtWork
	case opinion.Reason == "":
		result.Evidence += "nothing in this configuration approves requests for " + obj.Spec.SignerName
		result.NextStep = "switch on what approves them, or, if you know the machine: kubectl certificate approve " + obj.Name
	case opinion.Reason == "NotAuthorized":
		result.Evidence += opinion.Reason + ": " + opinion.Message
		result.NextStep = n.bindRequester(obj)
	default:
		result.Evidence += opinion.Reason + ": " + opinion.Message
		result.NextStep = "docs/reasons.md says what to do about " + opinion.Reason
	}
	result.Evidence += n.events(ctx, obj)
	return result
}

// bindRequester is what lets whoever made obj have it approved, as far as that is to be.
func (n Node) bindRequester(obj *certificatesv1.CertificateSigningRequest) string {
	user := obj.Spec.Username
	switch {
	case strings.HasPrefix(user, csr.NodeUserPrefix) && !n.asksFor(obj, user):
		return fmt.Sprintf("%s asks for the identity of another node, which no kubelet does: find out who holds its credential, which may be stolen; "+
			"kubectl certificate deny %s", word(csr.Shorten(user)), word(obj.Name))
	case strings.HasPrefix(user, csr.NodeUserPrefix) && slices.Contains(obj.Spec.Groups, csr.NodeGroup):
		return "if nodes are to renew their certificates: " + bind(roleRenew, "group", csr.NodeGroup)
	case strings.HasPrefix(user, csr.NodeUserPrefix):
		return "if this user is to renew its certificate: " + bind(roleRenew, "user", csr.Shorten(user))
	}
	if i := slices.IndexFunc(obj.Spec.Groups, isBootstrapGroup); i >= 0 {
		return "if this group is to join nodes: " + bind(roleJoin, "group", csr.Shorten(obj.Spec.Groups[i]))
	}
	return "if this user is to join nodes: " + bind(roleJoin, "user", csr.Shorten(user))
}

func (n Node) notIssued(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) Result {
	result := Result{Check: StepIssued, Subject: obj.Name, Status: Failed}
	if csr.StateOf(obj) == csr.Failed {
		result.Evidence = conditionText(obj, certificatesv1.CertificateFailed) + n.events(ctx, obj)
		result.NextStep = "it stays failed: mend what the message names, and have the kubelet make a new one by restarting it"
		return result
	}
	since := cmp.Or(csr.ApprovedAt(obj), obj.CreationTimestamp.Time)
	opinion := n.Issue(obj)
	result.Evidence = fmt.Sprintf("approved, and not signed after %s: ", age(obj, now))
	switch {
	case opinion.Err != nil:
		result.Evidence += fmt.Sprintf("what the signer would say could not be found out: %v", opinion.Err)
		result.NextStep = "ask as one who may read what signs; the Events and log of the signer have the reason too"
	case opinion.Does && now.Sub(since) < settled:
		result.Status, result.NextStep = Unknown, "ask again in a moment"
		result.Evidence += "the signer of this configuration would sign it"
	case opinion.Does:
		result.Evidence += "the signer of this configuration would sign it, but none is at work"
		result.NextStep = noneAtWork
	case opinion.Reason == "":
		result.Evidence += "nothing in this configuration signs for " + obj.Spec.SignerName
		result.NextStep = "give it a CA and leave the signer on (--controllers), or find out who else is to sign; pass the manager's own --config if this was not it"
	default:
		result.Evidence += opinion.Reason + ": " + opinion.Message
		result.NextStep = "docs/reasons.md says what to do about " + opinion.Reason
	}
	result.Evidence += n.events(ctx, obj)
	return result
}

// conditionText is what the condition of that kind says.
func conditionText(obj *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) string {
	for _, condition := range obj.Status.Conditions {
		if condition.Type == kind {
			return fmt.Sprintf("%s at %s: %s: %s", kind, condition.LastUpdateTime.UTC().Format(time.RFC3339), condition.Reason, condition.Message)
		}
	}
	return fmt.Sprintf("has no condition %s", kind)
}
