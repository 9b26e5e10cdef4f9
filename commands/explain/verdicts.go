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

// switchedOff is what is said of a controller that the configuration leaves out.
const switchedOff = "none: it is switched off here (--controllers)"

// approver writes which rule the request falls under, and what comes of it.
func (e *explainer) approver(p *page, f *findings) {
	p.title("Approver")
	switch {
	case e.options.Approver == nil:
		p.row("verdict", switchedOff)
		return
	case f.rule == nil:
		p.row("rule", "none for this signer")
		if csr.Undecided(f.obj) {
			p.row("verdict", "none: somebody else must approve it, such as a person with kubectl certificate approve")
		}
		return
	}
	p.row("rule", "for signer "+f.rule.SignerName)
	if !csr.Undecided(f.obj) {
		p.row("verdict", fmt.Sprintf("none: it is %s, and nothing is decided twice", f.state))
		f.reason(p)
		return
	}
	for _, recogniser := range f.rule.Recognisers {
		p.row(recogniser.Name, fmt.Sprintf("%s: %s", recogniser.Asks(), e.asked(f, recogniser)))
	}
	if f.undecidable != nil {
		p.row("verdict", unknown(f.undecidable, "create subjectaccessreviews"))
		return
	}
	shown := f.decision.Verdict.String()
	if f.decision.Verdict == verdict.Deny && e.options.Approver.Denial != approver.DenialPermanent {
		shown = "Ignore (it can never become valid; with approval.denial Permanent it would be denied)"
	}
	p.row("verdict", shown)
	f.reason(p)
	dryRun(p, e.options.Approver.DryRun)
}

// reason writes why the approver decided so, if it has decided.
func (f *findings) reason(p *page) {
	if f.decision.Reason != "" {
		p.row("reason", f.decision.Reason)
		p.row("sentence", sentence(f.decision.Message))
		approverReasons[f.decision.Reason].write(p)
	}
}

// asked returns what came of the review for recogniser.
func (e *explainer) asked(f *findings, recogniser approver.Recogniser) string {
	answer, asked := e.answers[recogniser.Permission]
	switch {
	case !asked && f.req != nil && !recogniser.Matches(f.req):
		return "not asked, as it does not fit this requester"
	case !asked:
		return "not asked"
	case answer.err != nil:
		return unknown(answer.err, "create subjectaccessreviews")
	case answer.allowed:
		return "allowed"
	default:
		return "refused"
	}
}

// signer writes what the signer does with the request once it is approved, or has done.
func (e *explainer) signer(p *page, f *findings) {
	p.title("Signer")
	switch {
	case e.options.Signer == nil:
		p.row("verdict", switchedOff)
		return
	case !f.served:
		p.row("verdict", "none: this signer is not configured (signing.signers), so another program must sign for it")
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
	switch f.state {
	case csr.Issued:
		p.row("verdict", "none: it is Issued")
		f.cutShort(p)
	case csr.Denied:
		p.row("verdict", "none: it is Denied, and that is final")
	case csr.Failed:
		f.failed(p)
	default:
		f.judgement(p)
		dryRun(p, e.options.Signer.DryRun)
	}
}

func (f *findings) unreadCA() string { return unknown(f.unread, f.signer.KeyPair.ReadRight()) }

// judgement writes what the signer does with a request that waits for approval or for its certificate.
func (f *findings) judgement(p *page) {
	label := "verdict"
	if f.state == csr.Pending {
		label = "once approved"
	}
	switch {
	case f.rehearsalErr != nil:
		p.row(label, "not signed: "+sentence(f.rehearsalErr.Error()))
	case f.judged.Authority != nil:
		p.row(label, "signed")
		f.validity(p, "")
		if f.rehearsed.Cut > 0 {
			writeCut(p, f.rehearsed)
		}
	case f.lacksOnlyCA() && f.unread != nil:
		p.row(label, "signed if there is a CA, as the rules of this signer are kept")
		f.validity(p, " unless the CA ends before")
	default:
		p.row(label, f.judged.Outcome())
		f.refusal(p, f.judged)
	}
}

func (f *findings) validity(p *page, unless string) {
	from, until := f.rehearsed.NotBefore.UTC().Format(time.RFC3339), f.rehearsed.NotAfter.UTC().Format(time.RFC3339)
	p.row("validity", fmt.Sprintf("from %s until %s%s, if it were signed now", from, until, unless))
}

// refusal writes why the signer does not sign.
func (f *findings) refusal(p *page, judged signer.Judgement) {
	p.row("reason", judged.Reason)
	p.row("sentence", sentence(judged.Sentence(f.obj.Spec.SignerName)))
	signerReasons[judged.Reason].write(p)
}

// failed explains a Failed condition if this configuration would write the same one today.
func (f *findings) failed(p *page) {
	candidates := []signer.Judgement{f.judged}
	if why := f.judged.IfTrusted; why != nil {
		candidates = append(candidates, signer.Judgement{Result: verdict.Deny.Because(why.Reason, "%s", why.Message)})
	}
	for _, judged := range candidates {
		same := func(condition certificatesv1.CertificateSigningRequestCondition) bool {
			return condition.Reason == judged.Reason && condition.Message == judged.Message
		}
		if judged.Verdict == verdict.Deny && slices.ContainsFunc(f.obj.Status.Conditions, same) {
			p.row("verdict", "Failed, and that is final")
			f.refusal(p, judged)
			return
		}
	}
	p.row("verdict", "none: it is Failed, and that is final; this configuration would not fail it like that")
}

// cutShort writes that the issued certificate ends early because the present CA does.
func (f *findings) cutShort(p *page) {
	cert, err := issued(f)
	if err != nil || f.authority == nil || f.req == nil || !f.authority.Signed(cert) {
		return
	}
	again, err := f.rehearse(cert.NotBefore.Add(ca.Backdate), f.authority.NotAfter())
	if err == nil && again.Cut > 0 && again.NotAfter.Equal(cert.NotAfter) {
		writeCut(p, again)
	}
}

func writeCut(p *page, issued *ca.Issued) {
	p.row("reason", "LifetimeCut")
	p.row("sentence", sentence(signer.CutShort(issued)))
	signerReasons["LifetimeCut"].write(p)
}

// judge finds out what the signer would do with the request once it is approved.
func (e *explainer) judge(ctx context.Context, f *findings) {
	unread, err := e.options.Signer.ReadOnce(ctx, e.secrets, f.obj.Spec.SignerName)
	f.unread = cmp.Or(err, unread[f.obj.Spec.SignerName])
	var problem error
	if f.authority, problem = f.signer.KeyPair.Authority(f.now); problem != nil {
		f.unavailable, _ = problem.(*keypair.Unavailable) //nolint:errorlint // that is its only type
	}
	approved := f.obj
	if f.state != csr.Approved { // as if it were, from now on
		approved = f.obj.DeepCopy()
		approved.Status = certificatesv1.CertificateSigningRequestStatus{}
		csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", f.now)
	}
	f.judged = e.options.Signer.Judge(approved, f.now)
	switch {
	case f.judged.Authority != nil:
		f.rehearsed, f.rehearsalErr = f.rehearse(f.now, f.judged.Authority.NotAfter())
	case f.lacksOnlyCA():
		f.rehearsed, f.rehearsalErr = f.rehearse(f.now, f.now.Add(endless))
	}
}

// lacksOnlyCA reports whether the request keeps all rules, so that the signer only lacks a CA or the right to read it.
func (f *findings) lacksOnlyCA() bool {
	return f.judged.Verdict == verdict.Wait && strings.HasPrefix(f.judged.Reason, "CA")
}

// endless is longer than any certificate should live, and short enough for arithmetic.
const endless = 250 * 365 * 24 * time.Hour

// rehearse issues the certificate that a CA with the given end would issue at that time. It signs with a throwaway CA,
// so that the real key signs approved requests only.
func (f *findings) rehearse(at, end time.Time) (*ca.Issued, error) {
	throwaway, _, err := ca.New(ca.NewOptions{CommonName: "rehearsal", Lifetime: end.Sub(at)}, at)
	if err != nil {
		return nil, err
	}
	return throwaway.Issue(f.signer.Profile.Within(f.judged.LifetimeCap), f.req.Cert, at.Truncate(time.Second))
}
