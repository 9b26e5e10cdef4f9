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
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
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

// accepted says whether the API server would take the certificate of obj. It can't be asked with it, since only the
// node has the key; what is asked with instead is another certificate of the same CA, if we hold that.
func (n Node) accepted(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) Result {
	result := Result{Check: StepAccepted, Subject: obj.Name, Status: Failed}
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		result.Status, result.Evidence, result.NextStep = Unknown, "there is no certificate to look at", askAgain
		return result
	}
	leaf := certs[0]
	if wrong := n.wrong(obj, leaf, now); wrong != "" {
		result.Evidence = "the API server answers Unauthorized: " + wrong
		result.NextStep = "have the kubelet make a new request: move its client certificate away and restart it; see that the clocks agree"
		return result
	}
	for _, one := range n.CAs {
		if one.Authority != nil && one.Authority.Signed(leaf) {
			if answer := n.Trust.prove(ctx, one.Authority, now); answer.Trust != probe.Unknown {
				return proven(result, one.Authority, answer)
			}
		}
	}
	return n.chained(ctx, result, leaf, certs[1:], now)
}

// wrong says what is wrong with leaf itself.
func (n Node) wrong(obj *certificatesv1.CertificateSigningRequest, leaf *x509.Certificate, now time.Time) string {
	user := csr.NodeUserPrefix + n.Name
	switch {
	case now.After(leaf.NotAfter):
		return "the certificate has run out at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the certificate is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	case leaf.Subject.CommonName != user || !slices.Contains(leaf.Subject.Organization, csr.NodeGroup):
		return fmt.Sprintf("the certificate is for %q, not for %s in %s", ca.SubjectText(leaf.Subject, 256), user, csr.NodeGroup)
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return "the certificate is not for client authentication"
	case !n.ownKey(obj, leaf):
		return "the certificate is for another key than the one that was asked for"
	}
	return ""
}

func (n Node) ownKey(obj *certificatesv1.CertificateSigningRequest, leaf *x509.Certificate) bool {
	req, err := n.RequestLimits.Parse(obj)
	return err == nil && req.KeyIn(leaf)
}

func proven(result Result, authority *ca.Authority, answer probe.Answer) Result {
	result.Evidence = answer.Evidence
	if answer.Trust == probe.Recognised {
		result.Status = OK
		return result
	}
	result.NextStep = fmt.Sprintf("append its CA (key %s) to the --client-ca-file of every API server", authority.KeyID())
	return result
}

// chained looks for the issuer of leaf among what the API servers publish as trusted.
func (n Node) chained(ctx context.Context, result Result, leaf *x509.Certificate, intermediates []*x509.Certificate, now time.Time) Result {
	where := fmt.Sprintf("%s of ConfigMap %s/%s", trust.ExtensionKey, trust.ExtensionNamespace, trust.ExtensionName)
	trusted, err := n.Trust.Published(ctx)
	if err != nil {
		result.Status, result.Evidence = Unknown, "its CA is not at hand to try, and "+where+" is "+ReadError("read it", err)
		result.NextStep = "ask as one who may read that ConfigMap or the signing Secret"
		return result
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, one := range trusted {
		roots.AddCert(one)
	}
	for _, one := range intermediates {
		between.AddCert(one)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		result.Evidence = fmt.Sprintf("the API server answers Unauthorized: issuer %q is not trusted by %s: %v", leaf.Issuer, where, err)
		result.NextStep = "append that CA to the --client-ca-file of every API server, or sign with one that is in it"
		return result
	}
	result.Status = OK
	result.Evidence = fmt.Sprintf("issuer %q is in %s; the API server was not asked, as that CA is not at hand", leaf.Issuer, where)
	return result
}
