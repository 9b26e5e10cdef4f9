package check

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// settled is the age at which a request that is still undecided, or an approved one that is still unsigned, is stuck.
const settled = 10 * time.Second

// noneAtWork is the next step if this configuration would approve or sign the request.
const noneAtWork = "check that a manager with this configuration runs and leads (kubectl get pods and leases in its " +
	"namespace), and that it has its rights (its /readyz)"

// decided returns the results of the steps from approval to certificate.
func (n Node) decided(ctx context.Context, obj *request) []Result {
	state := csr.StateOf(obj)
	if state == csr.Pending || state == csr.Denied {
		return []Result{n.notApproved(ctx, obj)}
	}
	approved := Result{
		Check: StepApproved, Subject: obj.Name, Status: OK, Evidence: conditionText(obj, certificatesv1.CertificateApproved),
	}
	if state != csr.Issued {
		return []Result{approved, n.notIssued(ctx, obj)}
	}
	issued := Result{Check: StepIssued, Subject: obj.Name, Status: OK}
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		issued.Status, issued.Evidence = Failed, fmt.Sprintf("status.certificate holds no certificate: %v", err)
		issued.NextStep = "find out which program signs for " + obj.Spec.SignerName
		return []Result{approved, issued}
	}
	issued.Evidence = fmt.Sprintf("serial %s, issued by %q, valid until %s",
		certs[0].SerialNumber.Text(16), certs[0].Issuer, certs[0].NotAfter.UTC().Format(time.RFC3339))
	return []Result{approved, issued}
}

func (n Node) notApproved(ctx context.Context, obj *request) Result {
	result := Result{Check: StepApproved, Subject: obj.Name, Status: Failed}
	if csr.StateOf(obj) == csr.Denied {
		result.Evidence = conditionText(obj, certificatesv1.CertificateDenied) + n.events(ctx, obj)
		result.NextStep = "it stays denied: find out who denied it, correct the cause, and restart the kubelet, which then " +
			"makes a new request"
		return result
	}
	opinion := n.Approve(ctx, obj)
	result.Evidence = fmt.Sprintf("undecided after %s: ", n.age(obj))
	switch {
	case opinion.Err != nil:
		result.Evidence += fmt.Sprintf("the decision of the approver is unknown: %v", opinion.Err)
		result.NextStep = cmp.Or(opinion.NextStep, "run the command as a user who has the missing right, such as create "+
			"subjectaccessreviews; the Events and the log of the approver have the reason too")
	case opinion.Does && n.now.Sub(obj.CreationTimestamp.Time) < settled:
		result.Status, result.NextStep = Unknown, "ask again in a moment"
		result.Evidence += "the approver of this configuration would approve it"
	case opinion.Does:
		result.Evidence += "the approver of this configuration would approve it, but none is at work"
		result.NextStep = noneAtWork
	case opinion.Reason == "":
		result.Evidence += "nothing in this configuration approves requests for " + obj.Spec.SignerName
		result.NextStep = "switch on what approves them, or, if you know the machine: kubectl certificate approve " +
			Argument(obj.Name)
	case opinion.Reason == "NotAuthorized": // without a next step, a role is missing
		result.Evidence += opinion.Reason + ": " + opinion.Message
		result.NextStep = cmp.Or(opinion.NextStep, n.bindRequester(obj))
	default:
		result.Evidence += opinion.Reason + ": " + opinion.Message
		result.NextStep = cmp.Or(opinion.NextStep, "docs/reference/reasons.md says what to do about "+opinion.Reason)
	}
	result.Evidence += n.compared(ctx, obj, approverName, opinion, "approve")
	return result
}

// bindRequester returns the command that gives the requester the right to have obj approved. It says when that would be
// wrong.
func (n Node) bindRequester(obj *request) string {
	user := obj.Spec.Username
	switch {
	case strings.HasPrefix(user, csr.NodeUserPrefix) && !n.asksFor(obj, user):
		return fmt.Sprintf("%s asks for the identity of another node, which no kubelet does: find out who holds its "+
			"credential, which may be stolen; kubectl certificate deny %s", Word(csr.Shorten(user)), Argument(obj.Name))
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

func (n Node) notIssued(ctx context.Context, obj *request) Result {
	result := Result{Check: StepIssued, Subject: obj.Name, Status: Failed}
	if csr.StateOf(obj) == csr.Failed {
		result.Evidence = conditionText(obj, certificatesv1.CertificateFailed) + n.events(ctx, obj)
		result.NextStep = "it stays failed: correct what the message names, and restart the kubelet, which then makes a " +
			"new request"
		return result
	}
	since := cmp.Or(csr.ApprovedAt(obj), obj.CreationTimestamp.Time)
	opinion := n.Issue(ctx, obj)
	result.Evidence = fmt.Sprintf("approved, and not signed after %s: ", n.age(obj))
	switch {
	case opinion.Err != nil:
		result.Evidence += fmt.Sprintf("the decision of the signer is unknown: %v", opinion.Err)
		result.NextStep = "run the command as a user who may read the CA; the Events and the log of the signer have the " +
			"reason too"
	case opinion.Does && n.now.Sub(since) < settled:
		result.Status, result.NextStep = Unknown, "ask again in a moment"
		result.Evidence += "the signer of this configuration would sign it"
	case opinion.Does:
		result.Evidence += "the signer of this configuration would sign it, but none is at work"
		result.NextStep = noneAtWork
	case opinion.Reason == "":
		result.Evidence += "nothing in this configuration signs for " + obj.Spec.SignerName
		result.NextStep = "configure a CA for it and run the signer (--controllers), or find out which other program " +
			"signs; if this is not the manager's configuration, pass that with --config"
	default:
		result.Evidence += opinion.Reason + ": " + opinion.Message
		result.NextStep = cmp.Or(opinion.NextStep, "docs/reference/reasons.md says what to do about "+opinion.Reason)
	}
	result.Evidence += n.compared(ctx, obj, signerName, opinion, "sign")
	return result
}

// conditionText returns what the condition of that kind says.
func conditionText(obj *request, kind certificatesv1.RequestConditionType) string {
	for _, condition := range obj.Status.Conditions {
		if condition.Type == kind {
			at := condition.LastUpdateTime.UTC().Format(time.RFC3339)
			return fmt.Sprintf("%s at %s: %s: %s", kind, at, condition.Reason, condition.Message)
		}
	}
	return fmt.Sprintf("has no condition %s", kind)
}

// accepted reports whether the API server would accept the certificate of obj. Only the node has its key. If the key of
// the CA is available, accepted issues another certificate and shows that instead.
func (n Node) accepted(ctx context.Context, obj *request) Result {
	result := Result{Check: StepAccepted, Subject: obj.Name, Status: Failed}
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		result.Status, result.Evidence, result.NextStep = Unknown, "there is no certificate to look at", askAgain
		return result
	}
	leaf := certs[0]
	if wrong := n.wrong(obj, leaf); wrong != "" {
		result.Evidence = "the API server answers Unauthorized: " + wrong
		result.NextStep = "move the kubelet's client certificate away and restart the kubelet, which then makes a new " +
			"request; check that the clocks agree"
		return result
	}
	for _, one := range n.CAs {
		if one.Authority == nil || !one.Authority.Signed(leaf) {
			continue
		}
		answer := n.Trust.prove(ctx, one.Authority, n.now)
		result.Evidence = answer.Evidence
		switch answer.Trust {
		case probe.Recognised:
			result.Status = OK
			return result
		case probe.Refused:
			result.NextStep = fmt.Sprintf("append its CA (key %s) to the --client-ca-file of every API server, or sign with "+
				"one that is in it", one.Authority.KeyID())
			return result
		}
	}
	return n.chained(ctx, result, leaf, certs[1:])
}

// wrong returns what makes leaf unusable, or nothing.
func (n Node) wrong(obj *request, leaf *x509.Certificate) string {
	user := csr.NodeUserPrefix + n.Name
	req, err := n.RequestLimits.Parse(obj)
	switch {
	case n.now.After(leaf.NotAfter):
		return "the certificate expired at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case n.now.Before(leaf.NotBefore):
		return "the certificate is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	case leaf.Subject.CommonName != user || !slices.Contains(leaf.Subject.Organization, csr.NodeGroup):
		return fmt.Sprintf("the certificate is for %q, not for %s in %s",
			ca.SubjectText(leaf.Subject, 256), user, csr.NodeGroup)
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return "the certificate is not for client authentication"
	case err != nil || !req.KeyIn(leaf):
		return "the certificate is for another key than the one that was asked for"
	}
	return ""
}

// chained looks for the issuer of leaf among the CAs that the API servers publish as trusted.
func (n Node) chained(ctx context.Context, result Result, leaf *x509.Certificate, below []*x509.Certificate) Result {
	trusted, err := n.Trust.Published(ctx)
	if err != nil {
		result.Status = Unknown
		result.Evidence = "its CA is not available for a proof, and " + published + " is " + ReadError("read it", err)
		result.NextStep = "run the command as a user who may read that ConfigMap or the signing Secret"
		return result
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: n.now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, root := range trusted {
		options.Roots.AddCert(root)
	}
	for _, intermediate := range below {
		options.Intermediates.AddCert(intermediate)
	}
	if _, err := leaf.Verify(options); err != nil {
		result.Evidence = fmt.Sprintf("the API server answers Unauthorized: issuer %q is not trusted by %s: %v",
			leaf.Issuer, published, err)
		result.NextStep = "append that CA to the --client-ca-file of every API server, or sign with one that is in it"
		return result
	}
	result.Status = OK
	result.Evidence = fmt.Sprintf("issuer %q is in %s; the API server was not asked, because the key of that CA is not "+
		"available", leaf.Issuer, published)
	return result
}
