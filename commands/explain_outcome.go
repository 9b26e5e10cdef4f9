package commands

import (
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// head says in short how it stands.
func (e *explainer) head(p *page, f *findings) {
	p.title(requestKind + " " + quote(f.obj.Name))
	p.row("state", string(f.state))
	if f.obj.CreationTimestamp.IsZero() {
		p.row("created", "unknown: the object does not say")
	} else {
		p.row("created", moment(f.obj.CreationTimestamp.Time, f.now))
	}
	p.row("in short", e.outcome(f))
}

// outcome is the answer in one line.
func (e *explainer) outcome(f *findings) string {
	if f.rule == nil && !f.served {
		return fmt.Sprintf("not ours: nothing is configured for signer %s, so it is neither approved nor signed by this manager, at most deleted when due; ask whoever runs that signer",
			quote(f.obj.Spec.SignerName))
	}
	switch f.state {
	case csr.Issued:
		return "it has its certificate"
	case csr.Denied:
		return "it was denied, which is final: what is asked must be asked in a new request"
	case csr.Failed:
		return "its signer has failed it, which is final: what is asked must be asked in a new request"
	case csr.Approved:
		return "it is approved" + e.afterApproval(f)
	default:
		return e.beforeApproval(f)
	}
}

func (e *explainer) beforeApproval(f *findings) string {
	switch {
	case e.options.Approver == nil || f.rule == nil:
		return "it waits for somebody to approve it" + e.afterApproval(f)
	case f.undecidable != nil:
		return "it is not approved yet, and whether it will be is unknown"
	case f.decision.Verdict == approver.Approve:
		return "it can be approved" + e.afterApproval(f) + "; if it stays like this, see whether the manager runs (csr-controller-manager check)"
	case f.decision.Verdict == approver.Wait:
		return "it is not approved: " + f.decision.Reason
	case e.options.Approver.Denial == approver.DenialPermanent:
		return "it will be denied: " + f.decision.Reason
	case approver.ByConfiguration(f.decision.Reason):
		return "it is not approved with this configuration: " + f.decision.Reason
	default:
		return "it will never be approved: " + f.decision.Reason
	}
}

func (e *explainer) afterApproval(f *findings) string {
	switch {
	case e.options.Signer == nil || !f.served:
		return ", and another program must sign it"
	case f.rehearsalErr != nil:
		return ", and can't be signed"
	case f.rulesKept() && f.unread != nil:
		return ", and whether there is a CA to sign it is unknown"
	case f.rulesKept():
		return ", and waits for a CA to sign it: " + f.judged.Reason
	case f.judged.Outcome == signer.Failed:
		return ", and will be failed: " + f.judged.Reason
	case f.judged.Authority == nil:
		return ", and is not signed: " + f.judged.Reason
	case f.state == csr.Approved:
		return ", and can be signed; if it stays like this, see whether the manager runs (csr-controller-manager check)"
	default:
		return ", and can be signed then"
	}
}
