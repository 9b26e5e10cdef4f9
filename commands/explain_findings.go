package commands

import (
	"context"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// findings are what is known of one request.
type findings struct {
	obj   *certificatesv1.CertificateSigningRequest
	now   time.Time
	state csr.State
	req   *csr.Request // nil: unreadable says why
	// unreadable is why there is no req.
	unreadable error

	rule     *approver.Rule // nil when there is none for this signer
	decision approver.Decision
	// undecidable is why there is no decision.
	undecidable error

	served bool // the signer is configured
	signer signer.Signer
	// authority is the CA of now, or nil: unavailable or unread says why.
	authority   *ca.Authority
	unavailable *signer.Unavailable
	unread      error
	// judged is what becomes of the request once it is approved.
	judged signer.Judgement
	// rehearsed is what would be issued, without a serial number that means anything; or nil, with an error or not.
	rehearsed    *ca.Issued
	rehearsalErr error
}

// explain says all that there is to say about obj.
func (e *explainer) explain(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) string {
	e.answers = map[authorizationv1.ResourceAttributes]answer{}
	f := e.find(ctx, obj)
	p := &page{}
	e.head(p, f)
	asked(p, f)
	conditions(p, f)
	certificate(p, f)
	e.approver(p, f)
	e.signer(p, f)
	e.cleaner(p, f)
	e.events(ctx, p, f)
	return string(p.text)
}

func (e *explainer) find(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *findings {
	f := &findings{obj: obj, now: e.clock.Now(), state: csr.StateOf(obj)}
	f.req, f.unreadable = e.options.RequestLimits.Parse(obj)
	if r := e.options.Approver; r != nil {
		for i := range r.Rules {
			if r.Rules[i].SignerName == obj.Spec.SignerName {
				f.rule = &r.Rules[i]
			}
		}
		e.decide(ctx, f)
		if f.state == csr.Denied {
			f.decision = e.denial(ctx, obj)
		}
	}
	if r := e.options.Signer; r != nil {
		f.signer, f.served = r.Signers[obj.Spec.SignerName]
	}
	if f.served {
		e.judge(ctx, f)
	}
	return f
}

// denial is the decision that obj was denied by, if this approver would decide so today.
func (e *explainer) denial(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) approver.Decision {
	for _, condition := range obj.Status.Conditions {
		if _, ours := e.advice[[2]string{"Approver", condition.Reason}]; !ours || condition.Type != certificatesv1.CertificateDenied {
			continue
		}
		before := obj.DeepCopy()
		before.Status = certificatesv1.CertificateSigningRequestStatus{}
		_, decision, err := e.options.Approver.Decide(ctx, before)
		if err == nil && decision.Verdict == approver.Deny && decision.Reason == condition.Reason && decision.Message == condition.Message {
			return decision
		}
	}
	return approver.Decision{}
}

// judge finds out what the signer says.
func (e *explainer) judge(ctx context.Context, f *findings) {
	var problem error
	unread, err := e.options.Signer.ReadOnce(ctx, e.secrets, f.obj.Spec.SignerName)
	if f.unread = unread[f.obj.Spec.SignerName]; err != nil {
		f.unread = err
	}
	if f.authority, problem = f.signer.KeyPair.Authority(f.now); problem != nil {
		f.unavailable, _ = problem.(*signer.Unavailable) //nolint:errorlint // that is its only type
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
		f.rehearsed, f.rehearsalErr = rehearse(f, f.now, f.judged.Authority.NotAfter())
	case f.rulesKept():
		f.rehearsed, f.rehearsalErr = rehearse(f, f.now, f.now.Add(endless))
	}
}

// rulesKept says that nothing stands against signing but that there is no CA, or none that may be read.
func (f *findings) rulesKept() bool {
	return f.judged.Outcome == signer.Wait && strings.HasPrefix(f.judged.Reason, "CA")
}

// endless is longer than any certificate should live, and short enough for arithmetic.
const endless = 250 * 365 * 24 * time.Hour

// rehearse issues what would be issued at that time by a CA that ends at end. A CA that is made for it, and gone after it,
// signs: the real one's key signs nothing that nobody asked for.
func rehearse(f *findings, at, end time.Time) (*ca.Issued, error) {
	stand, _, err := ca.New(ca.NewOptions{CommonName: "rehearsal", Lifetime: end.Sub(at)}, at)
	if err != nil {
		return nil, err
	}
	return stand.Issue(f.signer.Profile.Within(f.judged.LifetimeCap), f.req.Cert, at.Truncate(time.Second))
}
