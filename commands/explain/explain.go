// Package explain says what becomes of a CertificateSigningRequest, why, and what to do about it. It asks the
// controllers, as configured, what they would do, and changes nothing.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Server is an API server. Without a Config explain cannot watch it.
type Server struct {
	client.Client
	Config *rest.Config
}

// Name writes to out what becomes of the request called name in api.
func Name(
	ctx context.Context, configuration *config.Configuration, api Server, name string, clock clock.PassiveClock,
	out io.Writer,
) error {
	obj := &certificatesv1.CertificateSigningRequest{}
	switch err := api.Get(ctx, client.ObjectKey{Name: name}, obj); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no CertificateSigningRequest %q: it never was, or it has been deleted; "+
			"the cleaner deletes an approved one after an hour", name)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("may not get certificatesigningrequests, so nothing can be explained: %w", err)
	case err != nil:
		return fmt.Errorf("get request: %w", err)
	}
	e, err := newExplainer(ctx, configuration, api, authz.SubjectAccess{Client: api}, clock)
	if err != nil {
		return err
	}
	if e.inventory, err = newInventory(configuration, api); err != nil {
		return err
	}
	defer e.inventory.stop()
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
	e, err := newExplainer(ctx, configuration, offline{errOffline}, offline{errOffline}, clock)
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

// unanswerable is why explain cannot answer a question, whatever the caller's rights.
type unanswerable string

func (u unanswerable) Error() string { return string(u) }

const (
	errOffline = unanswerable("offline")
	errNoCA    = unanswerable("no CA is configured here: give the manager's --config, or --signing-secret")
)

// offline stands in for an API server, and answers every question with its error.
type offline struct{ err error }

func (o offline) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return o.err
}

func (o offline) List(context.Context, client.ObjectList, ...client.ListOption) error { return o.err }

func (o offline) Allowed(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
	return false, o.err
}

// unknown returns the text for a question that err left open. right is what the caller needs to ask it.
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
	// inventory is nil without an API server.
	inventory *inventory
	// answers holds the reviews of the request that is being explained.
	answers map[authorizationv1.ResourceAttributes]answer
}

type answer struct {
	allowed bool
	err     error
}

func newExplainer(
	ctx context.Context, configuration *config.Configuration, reader client.Reader, authorizer authz.Authorizer,
	clock clock.PassiveClock,
) (*explainer, error) {
	read := *configuration
	read.Audit = config.Audit{} // explain writes nothing
	// explain can check the rules of Kubernetes' signers without a CA, so it then configures one that it does not read.
	noCA := read.Signing.CA == (config.CA{}) && len(read.Signing.Signers) == 0
	if noCA {
		read.Signing.Secret = "unknown/unknown"
	}
	options, err := controllers.FromConfiguration(&read)
	if err != nil {
		return nil, err
	}
	e := &explainer{options: options, reader: reader, secrets: reader, clock: clock}
	if noCA {
		e.secrets = offline{errNoCA}
	}
	if options.Approver != nil {
		options.Approver.Clock = clock
		review := func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
			allowed, err := authorizer.Allowed(ctx, who, what)
			e.answers[what] = answer{allowed, err}
			return allowed, err
		}
		options.Approver.Authorizer = authz.Func(review)
	}
	if options.Signer != nil {
		options.Signer.Clock = clock
	}
	options.ReadBlockList(ctx, reader)
	return e, nil
}

// findings holds what explain found out about one request.
type findings struct {
	obj   *certificatesv1.CertificateSigningRequest
	now   time.Time
	state csr.State
	req   *csr.Request // nil if it cannot be read, because of unreadable
	// unreadable is why req is nil.
	unreadable error

	rule     *approver.Rule // nil if no rule is for this signer
	decision approver.Decision
	// undecidable is why there is no decision.
	undecidable error

	served bool // the signer is configured
	signer signer.Signer
	// authority is the present CA. If it is nil, unavailable or unread says why.
	authority   *ca.Authority
	unavailable *keypair.Unavailable
	unread      error
	// judged is what the signer does once the request is approved.
	judged signer.Judgement
	// rehearsed is the certificate as the signer would issue it, with a random serial number. It may be nil.
	rehearsed    *ca.Issued
	rehearsalErr error
}

// explain returns the page about obj.
func (e *explainer) explain(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) string {
	e.answers = map[authorizationv1.ResourceAttributes]answer{}
	f := &findings{obj: obj, now: e.clock.Now(), state: csr.StateOf(obj)}
	f.req, f.unreadable = e.options.RequestLimits.Parse(obj)
	if r := e.options.Approver; r != nil {
		applies := func(rule approver.Rule) bool { return rule.SignerName == obj.Spec.SignerName }
		if i := slices.IndexFunc(r.Rules, applies); i >= 0 {
			f.rule = &r.Rules[i]
		}
		e.decide(ctx, f)
	}
	if e.options.Signer != nil {
		if f.signer, f.served = e.options.Signer.Signers[obj.Spec.SignerName]; f.served {
			e.judge(ctx, f)
		}
	}
	p := &page{}
	p.title(requestKind + " " + quote(obj.Name))
	p.row("state", string(f.state))
	created := "unknown: the object does not say"
	if !obj.CreationTimestamp.IsZero() {
		created = moment(obj.CreationTimestamp.Time, f.now)
	}
	p.row("created", created)
	p.row("in short", e.outcome(f))
	asked(p, f)
	conditions(p, f)
	certificate(p, f)
	e.approver(p, f)
	e.signer(p, f)
	e.cleaner(p, f)
	e.events(ctx, p, f)
	return string(p.text)
}

// outcome returns the answer in one line.
func (e *explainer) outcome(f *findings) string {
	if f.rule == nil && !f.served {
		return fmt.Sprintf("not ours: nothing is configured for signer %s, so it is neither approved nor signed by this "+
			"manager, at most deleted when due; ask whoever runs that signer", quote(f.obj.Spec.SignerName))
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

// beforeApproval returns the answer about a request that is still undecided.
func (e *explainer) beforeApproval(f *findings) string {
	switch {
	case e.options.Approver == nil || f.rule == nil:
		return "it waits for somebody to approve it" + e.afterApproval(f)
	case f.undecidable != nil:
		return "it is not approved yet, and whether it will be is unknown"
	case f.decision.Verdict == verdict.Approve:
		return "it can be approved" + e.afterApproval(f) + idleManager
	case f.decision.Verdict == verdict.Wait:
		return "it is not approved: " + f.decision.Reason
	case e.options.Approver.Denial == approver.DenialPermanent:
		return "it will be denied: " + f.decision.Reason
	case approver.ByConfiguration(f.decision.Reason):
		return "it is not approved with this configuration: " + f.decision.Reason
	default:
		return "it will never be approved: " + f.decision.Reason
	}
}

const idleManager = "; if it stays like this, see whether the manager runs (csr-controller-manager check)"

// afterApproval returns the end of the sentence about a request that is or will be approved.
func (e *explainer) afterApproval(f *findings) string {
	switch {
	case e.options.Signer == nil || !f.served:
		return ", and another program must sign it"
	case f.rehearsalErr != nil:
		return ", and can't be signed"
	case f.lacksOnlyCA() && f.unread != nil:
		return ", and whether there is a CA to sign it is unknown"
	case f.lacksOnlyCA():
		return ", and waits for a CA to sign it: " + f.judged.Reason
	case f.judged.Verdict == verdict.Deny:
		return ", and will be failed: " + f.judged.Reason
	case f.judged.Authority == nil:
		return ", and is not signed: " + f.judged.Reason
	case f.state == csr.Approved:
		return ", and can be signed" + idleManager
	default:
		return ", and can be signed then"
	}
}
