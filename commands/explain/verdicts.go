package explain

import (
	"fmt"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// switchedOff is what is said of a controller that the configuration leaves out.
const switchedOff = "none: it is switched off here (--controllers)"

// approver says which rule looks at the request, and what comes of it.
func (e *explainer) approver(p *page, f *findings) {
	p.title("Approver")
	if e.options.Approver == nil {
		p.row("verdict", switchedOff)
		return
	}
	if f.rule == nil {
		p.row("rule", "none for this signer")
		if csr.Undecided(f.obj) {
			p.row("verdict", "none: somebody else must approve it, such as a person with kubectl certificate approve")
		}
		return
	}
	p.row("rule", "for signer "+f.rule.SignerName)
	if !csr.Undecided(f.obj) {
		p.row("verdict", fmt.Sprintf("none: it is %s, and nothing is decided twice", f.state))
		e.decision(p, f)
		return
	}
	for _, recogniser := range f.rule.Recognisers {
		p.row(recogniser.Name, fmt.Sprintf("%s: %s", recogniser.Asks(), e.asked(f, recogniser)))
	}
	if f.undecidable != nil {
		p.row("verdict", unknown(f.undecidable, "create subjectaccessreviews"))
		return
	}
	verdict := f.decision.Verdict.String()
	if f.decision.Verdict == approver.Deny && e.options.Approver.Denial != approver.DenialPermanent {
		verdict = "Ignore (it can never become valid; with approval.denial Permanent it would be denied)"
	}
	p.row("verdict", verdict)
	e.decision(p, f)
	dryRun(p, e.options.Approver.DryRun)
}

// decision says why, if the approver has said anything.
func (e *explainer) decision(p *page, f *findings) {
	if f.decision.Reason == "" {
		return
	}
	p.row("reason", f.decision.Reason)
	p.row("sentence", sentence(f.decision.Message))
	e.advice.write(p, "Approver", f.decision.Reason)
}

// asked says what came of one recogniser.
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

// signer says what the signer does once the request is approved, or has done.
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
	p.row("CA", f.ca())
	switch f.state {
	case csr.Issued:
		p.row("verdict", "none: it is Issued")
		e.cutShort(p, f)
	case csr.Denied:
		p.row("verdict", "none: it is Denied, and that is final")
	case csr.Failed:
		e.failed(p, f)
	default:
		e.judgement(p, f)
	}
}

func (f *findings) ca() string {
	switch {
	case f.unread != nil:
		return f.unreadCA()
	case f.authority != nil:
		return "CALoaded: " + sentence(signer.InUse(f.authority))
	default:
		return f.unavailable.Reason + ": " + sentence(f.unavailable.Message)
	}
}

func (f *findings) unreadCA() string { return unknown(f.unread, f.signer.KeyPair.ReadRight()) }

// judgement says what becomes of a request that waits, for approval or for its certificate.
func (e *explainer) judgement(p *page, f *findings) {
	label := "verdict"
	if f.state == csr.Pending {
		label = "once approved"
	}
	defer dryRun(p, e.options.Signer.DryRun)
	switch {
	case f.rehearsalErr != nil:
		p.row(label, "not signed: "+sentence(f.rehearsalErr.Error()))
	case f.judged.Authority != nil:
		p.row(label, "signed")
		f.validity(p)
		if f.rehearsed.Cut > 0 {
			e.cut(p, f.rehearsed)
		}
	case f.rulesKept() && f.unread != nil:
		p.row(label, "signed if there is a CA, as the rules of this signer are kept")
		f.validity(p)
	default:
		p.row(label, f.judged.Outcome)
		e.refusal(p, f)
	}
}

func (f *findings) validity(p *page) {
	until := "until " + f.rehearsed.NotAfter.UTC().Format(time.RFC3339)
	if f.judged.Authority == nil {
		until += " unless the CA ends before"
	}
	p.row("validity", fmt.Sprintf("from %s %s, if it were signed now", f.rehearsed.NotBefore.UTC().Format(time.RFC3339), until))
}

func (e *explainer) refusal(p *page, f *findings) {
	p.row("reason", f.judged.Reason)
	p.row("sentence", sentence(f.judged.Sentence(f.obj.Spec.SignerName)))
	e.advice.write(p, "Signer", f.judged.Reason)
}

// failed explains a Failed condition, if it is one that would be given today.
func (e *explainer) failed(p *page, f *findings) {
	if f.judged.Outcome == signer.Failed && f.wasFailedAs(f.judged) {
		p.row("verdict", "Failed, and that is final")
		e.refusal(p, f)
		return
	}
	if why := f.judged.IfTrusted; why != nil {
		if asTrusted := (signer.Judgement{Outcome: signer.Failed, Reason: why.Reason, Message: why.Message}); f.wasFailedAs(asTrusted) {
			f.judged = asTrusted
			p.row("verdict", "Failed, and that is final")
			e.refusal(p, f)
			return
		}
	}
	p.row("verdict", "none: it is Failed, and that is final; this configuration would not fail it like that")
}

func (f *findings) wasFailedAs(judged signer.Judgement) bool {
	for _, condition := range f.obj.Status.Conditions {
		if condition.Reason == judged.Reason && condition.Message == judged.Message {
			return true
		}
	}
	return false
}

// cutShort says whether the certificate that was issued ends early because the CA of now does.
func (e *explainer) cutShort(p *page, f *findings) {
	cert, err := issued(f)
	if err != nil || f.authority == nil || f.req == nil || !f.authority.Signed(cert) {
		return
	}
	again, err := rehearse(f, cert.NotBefore.Add(ca.Backdate), f.authority.NotAfter())
	if err == nil && again.Cut > 0 && again.NotAfter.Equal(cert.NotAfter) {
		e.cut(p, again)
	}
}

func (e *explainer) cut(p *page, issued *ca.Issued) {
	p.row("reason", "LifetimeCut")
	p.row("sentence", sentence(signer.CutShort(issued)))
	e.advice.write(p, "Signer", "LifetimeCut")
}
