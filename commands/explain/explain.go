// Package explain says what becomes of a CertificateSigningRequest, why, and what to do about it. It asks the controllers,
// as configured, what they would do, and changes nothing.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Server is an API server. Without a Config explain cannot watch it.
type Server struct {
	client.Client
	Config *rest.Config
}

// Name writes to out what becomes of the request called name in api.
func Name(
	ctx context.Context, configuration *config.Configuration, api Server, name string, clock clock.PassiveClock, out io.Writer,
) error {
	obj := &certificatesv1.CertificateSigningRequest{}
	switch err := api.Get(ctx, client.ObjectKey{Name: name}, obj); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no CertificateSigningRequest %q: it never was, or it has been deleted; the cleaner deletes an approved one after an hour", name)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("may not get certificatesigningrequests, so nothing can be explained: %w", err)
	case err != nil:
		return fmt.Errorf("get request: %w", err)
	}
	e, err := newExplainer(ctx, configuration, api, authz.SubjectAccess{Client: api}, clock)
	if err != nil {
		return err
	}
	if e.nodes, err = newNodes(configuration, api); err != nil {
		return err
	}
	defer e.nodes.stop()
	_, err = io.WriteString(out, e.explain(ctx, obj))
	return err
}

// All explains every request in a stream, without the API server. It returns an error for each document that is not a
// request, and explains the others.
func All(
	ctx context.Context, configuration *config.Configuration, in io.Reader, clock clock.PassiveClock, out io.Writer,
) error {
	objs, problem := readRequests(in)
	if len(objs) == 0 {
		return cmp.Or(problem, errors.New("-f: no CertificateSigningRequest in it"))
	}
	e, err := newExplainer(ctx, configuration, offline{}, offline{}, clock)
	if err != nil {
		return err
	}
	for i, obj := range objs {
		if i > 0 {
			_, err = io.WriteString(out, "\n\n")
			problem = errors.Join(problem, err)
		}
		_, err = io.WriteString(out, e.explain(ctx, obj))
		problem = errors.Join(problem, err)
	}
	return problem
}

// unanswerable is why something can't be found out here, whatever the right to it.
type unanswerable string

func (u unanswerable) Error() string { return string(u) }

const (
	errOffline = unanswerable("offline")
	errNoCA    = unanswerable("no CA is configured here: give the manager's --config, or --signing-secret")
)

// offline is an API server that is not asked.
type offline struct{}

func (offline) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errOffline
}

func (offline) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errOffline
}

func (offline) Allowed(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
	return false, errOffline
}

// unknown says why something is: err, which came of asking for right.
func unknown(err error, right string) string {
	if why := unanswerable(""); errors.As(err, &why) {
		return sentence("unknown: " + string(why))
	}
	return sentence(check.ReadError(right, err))
}

// explainer asks the controllers, as configured, what they would do.
type explainer struct {
	options controllers.Options
	reader  client.Reader
	secrets client.Reader
	clock   clock.PassiveClock
	// nodes is nil without an API server.
	nodes *nodes
	// answers are those to the questions of the request that is being explained.
	answers map[authorizationv1.ResourceAttributes]answer
	advice  advice
}

type answer struct {
	allowed bool
	err     error
}

func newExplainer(ctx context.Context, configuration *config.Configuration, reader client.Reader, authorizer authz.Authorizer, clock clock.PassiveClock) (*explainer, error) {
	read := *configuration
	read.Audit = config.Audit{} // nothing is written
	// What Kubernetes' signers demand can be said without a CA: then there is one that is not read.
	noCA := read.Signing.CA == (config.CA{}) && len(read.Signing.Signers) == 0
	if noCA {
		read.Signing.Secret = "unknown/unknown"
	}
	options, err := controllers.FromConfiguration(&read)
	if err != nil {
		return nil, err
	}
	e := &explainer{options: options, reader: reader, secrets: reader, clock: clock, advice: readAdvice()}
	if options.Approver != nil {
		options.Approver.Clock = clock
		options.Approver.Authorizer = authz.Func(func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
			allowed, err := authorizer.Allowed(ctx, who, what)
			e.answers[what] = answer{allowed, err}
			return allowed, err
		})
	}
	options.ReadBlockList(ctx, reader)
	if noCA {
		e.secrets = noReader{}
	}
	if options.Signer != nil {
		options.Signer.Clock = clock
	}
	return e, nil
}

// noReader has no CA.
type noReader struct{ offline }

func (noReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errNoCA
}

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
