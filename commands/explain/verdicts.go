package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// switchedOff is the text about a controller that the configuration leaves out.
const switchedOff = "none: this controller is switched off here (--controllers)"

// decided returns the text about a request that needs no decision any more.
func (f *Findings) decided() string {
	switch f.State {
	case csr.Denied, csr.Failed:
		return "already " + strings.ToLower(string(f.State)) + ", which is final"
	default:
		return "already " + strings.ToLower(string(f.State))
	}
}

// approver writes which rule the request falls under, and what the rule decides.
func (e *Explainer) approver(p *page, f *Findings) {
	p.title("Approver")
	switch {
	case e.options.Approver == nil:
		p.row("decision", switchedOff)
		return
	case f.Rule == nil:
		p.row("rule", "none for this signer")
		if csr.Undecided(f.obj) {
			p.row("decision", "none: a person or another program must approve the request")
		}
		return
	}
	p.row("rule", "for signer "+f.Rule.SignerName)
	if !csr.Undecided(f.obj) {
		p.row("decision", f.decided())
		f.reason(p)
		return
	}
	for _, recogniser := range f.Rule.Recognisers {
		p.row(recogniser.Name, fmt.Sprintf("%s: %s", recogniser.Asks(), e.reviewed(f, recogniser)))
	}
	if f.Undecidable != nil {
		p.row("decision", unknown(f.Undecidable, reviewRight))
		return
	}
	p.row("decision", e.decisionText(f.Decision.Verdict))
	f.reason(p)
	dryRun(p, e.options.Approver.DryRun)
}

// decisionText returns the text for a verdict of the approver.
func (e *Explainer) decisionText(v verdict.Verdict) string {
	switch v {
	case verdict.Approve:
		return "approve"
	case verdict.Wait:
		return "wait: the manager checks the request again"
	case verdict.Deny:
		if e.options.Approver.Denial == approver.DenialPermanent {
			return "deny"
		}
		return "ignore: the request can never become valid; with approval.denial Permanent it would be denied"
	default:
		return "ignore: the manager does not check this request again"
	}
}

// reason writes the reason of the approver's decision, if there is one.
func (f *Findings) reason(p *page) {
	if f.Decision.Reason != "" {
		p.row("reason", f.Decision.Reason)
		p.row("message", sentence(f.Decision.Message))
		approverReasons[f.Decision.Reason].write(p)
	}
}

// reviewed returns the result of the review for recogniser.
func (e *Explainer) reviewed(f *Findings, recogniser approver.Recogniser) string {
	answer, asked := e.answers[recogniser.Permission]
	switch {
	case !asked && f.Request != nil && !recogniser.Matches(f.Request):
		return "not asked, because it does not apply to this requester"
	case !asked:
		return "not asked"
	case answer.err != nil:
		return unknown(answer.err, reviewRight)
	case answer.allowed:
		return "allowed"
	default:
		return "refused"
	}
}

// signer writes what the signer does with the request once it is approved, or has done.
func (e *Explainer) signer(p *page, f *Findings) {
	p.title("Signer")
	switch {
	case e.options.Signer == nil:
		p.row("decision", switchedOff)
		return
	case !f.Served:
		p.row("decision", "none: this signer is not configured (signing.signers), so another program must sign")
		return
	}
	switch {
	case f.unread != nil:
		p.row("CA", f.unreadCA())
	case f.authority != nil:
		p.row("CA", "CALoaded: "+sentence(keypair.InUse(f.authority)))
	default:
		p.row("CA", f.unavailable.Reason+": "+sentence(f.unavailable.Message))
	}
	switch f.State {
	case csr.Issued:
		p.row("decision", f.decided())
		f.cutShort(p)
	case csr.Denied:
		p.row("decision", f.decided())
	case csr.Failed:
		f.failed(p)
	default:
		f.judgement(p)
		dryRun(p, e.options.Signer.DryRun)
	}
}

func (f *Findings) unreadCA() string { return unknown(f.unread, f.signer.KeyPair.ReadRight()) }

// judgement writes what the signer does with a request that waits for approval or for its certificate.
func (f *Findings) judgement(p *page) {
	label := "decision"
	if f.State == csr.Pending {
		label = "once approved"
	}
	switch {
	case f.previewErr != nil:
		p.row(label, "cannot sign: "+sentence(f.previewErr.Error()))
	case f.Judged.Authority != nil:
		p.row(label, "sign")
		f.validity(p, "")
		if f.preview.Cut > 0 {
			writeCut(p, f.preview)
		}
	case f.lacksOnlyCA() && f.unread != nil:
		p.row(label, "sign if there is a CA: the request keeps the rules of this signer")
		f.validity(p, " unless the CA ends before")
	case f.Judged.Verdict == verdict.Deny:
		p.row(label, "fail the request")
		f.refusal(p, f.Judged)
	case f.Judged.Verdict == verdict.Wait:
		p.row(label, "wait: the manager checks the request again")
		f.refusal(p, f.Judged)
	default:
		p.row(label, "ignore: the manager does not sign this request")
		f.refusal(p, f.Judged)
	}
}

func (f *Findings) validity(p *page, unless string) {
	p.row("validity", fmt.Sprintf("from %s until %s%s, if signed now",
		instant(f.preview.NotBefore), instant(f.preview.NotAfter), unless))
}

// refusal writes why the signer does not sign.
func (f *Findings) refusal(p *page, judged signer.Judgement) {
	p.row("reason", judged.Reason)
	p.row("message", sentence(judged.Sentence(f.obj.Spec.SignerName)))
	signerReasons[judged.Reason].write(p)
}

// failed explains a Failed condition if this configuration would write the same one today.
func (f *Findings) failed(p *page) {
	candidates := []signer.Judgement{f.Judged}
	if why := f.Judged.IfTrusted; why != nil {
		candidates = append(candidates, signer.Judgement{Result: verdict.Deny.Because(why.Reason, "%s", why.Message)})
	}
	for _, judged := range candidates {
		same := func(condition certificatesv1.CertificateSigningRequestCondition) bool {
			return condition.Reason == judged.Reason && condition.Message == judged.Message
		}
		if judged.Verdict == verdict.Deny && slices.ContainsFunc(f.obj.Status.Conditions, same) {
			p.row("decision", f.decided())
			f.refusal(p, judged)
			return
		}
	}
	p.row("decision", f.decided()+"; this configuration would not fail it for that reason")
}

// cutShort writes that the issued certificate ends early because the present CA does.
func (f *Findings) cutShort(p *page) {
	if cut := f.cut(); cut != nil {
		writeCut(p, cut)
	}
}

// cut returns the issued certificate as the present CA would issue it again, if it ends early because that CA does.
// Else it returns nil.
func (f *Findings) cut() *ca.Issued {
	cert, err := issued(f)
	if err != nil || f.authority == nil || f.Request == nil || !f.authority.Signed(cert) {
		return nil
	}
	again, err := f.previewAt(cert.NotBefore.Add(ca.Backdate), f.authority.NotAfter())
	if err != nil || again.Cut == 0 || !again.NotAfter.Equal(cert.NotAfter) {
		return nil
	}
	return again
}

func writeCut(p *page, issued *ca.Issued) {
	p.row("reason", "LifetimeCut")
	p.row("message", sentence(signer.CutShort(issued)))
	signerReasons["LifetimeCut"].write(p)
}

// judge finds out what the signer would do with the request once it is approved.
func (e *Explainer) judge(ctx context.Context, f *Findings) {
	unread, err := e.options.Signer.ReadOnce(ctx, e.secrets, f.obj.Spec.SignerName)
	f.unread = cmp.Or(err, unread[f.obj.Spec.SignerName])
	var problem error
	if f.authority, problem = f.signer.KeyPair.Authority(f.now); problem != nil {
		f.unavailable, _ = problem.(*keypair.Unavailable) //nolint:errorlint // that is its only type
	}
	approved := f.obj
	if f.State != csr.Approved { // judge the request as if it were approved now
		approved = f.obj.DeepCopy()
		approved.Status = certificatesv1.CertificateSigningRequestStatus{}
		csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", f.now)
	}
	f.Judged = e.options.Signer.Judge(ctx, approved)
	switch {
	case f.Judged.Authority != nil:
		f.preview, f.previewErr = f.previewAt(f.now, f.Judged.Authority.NotAfter())
	case f.lacksOnlyCA():
		f.preview, f.previewErr = f.previewAt(f.now, f.now.Add(endless))
	}
}

// lacksOnlyCA reports whether the request keeps all rules, so that the signer only lacks a CA or the right to read it.
func (f *Findings) lacksOnlyCA() bool {
	return f.Judged.Verdict == verdict.Wait && strings.HasPrefix(f.Judged.Reason, "CA")
}

// endless is longer than any lifetime of a certificate, and short enough for arithmetic.
const endless = 250 * 365 * 24 * time.Hour

// previewAt issues the certificate that a CA with the given end would issue at that time. It signs with a temporary CA,
// so that the real key signs approved requests only.
func (f *Findings) previewAt(at, end time.Time) (*ca.Issued, error) {
	temporary, _, err := ca.New(ca.NewOptions{CommonName: "preview", Lifetime: end.Sub(at)}, at)
	if err != nil {
		return nil, err
	}
	return temporary.Issue(f.signer.Profile.Within(f.Judged.LifetimeCap), f.Request.Cert, at.Truncate(time.Second))
}
