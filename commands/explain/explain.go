// Package explain explains a CertificateSigningRequest: the next step for the user, the decision and its reason, and
// what has happened to the request. It asks the controllers, as configured, what they would do, and changes nothing.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Server is an API server. Without a Config an Explainer cannot watch it.
type Server struct {
	client.Client
	Config *rest.Config
	// Program is how the user calls this program, for the commands in a next step. It is csr-controller-manager when
	// empty.
	Program string
}

// Get returns the request called name in api. Its error says what to do.
func Get(ctx context.Context, api client.Reader, name string) (*certificatesv1.CertificateSigningRequest, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	switch err := api.Get(ctx, client.ObjectKey{Name: name}, obj); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no CertificateSigningRequest %q: the name is wrong, or the request was deleted; "+
			"the cleaner deletes an approved one after an hour", name)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("may not get certificatesigningrequests, so nothing can be explained: %w", err)
	case err != nil:
		return nil, fmt.Errorf("get request: %w", err)
	}
	return obj, nil
}

// Name explains the request called name in api.
func Name(
	ctx context.Context, configuration *config.Configuration, api Server, name string, clock clock.PassiveClock,
) (*Report, error) {
	obj, err := Get(ctx, api, name)
	if err != nil {
		return nil, err
	}
	e, err := New(ctx, configuration, api, clock)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Report(ctx, obj), nil
}

// All explains every request in a stream, without the API server. It returns an error for each document that is not a
// request, and explains the others.
func All(
	ctx context.Context, configuration *config.Configuration, in io.Reader, clock clock.PassiveClock,
) ([]*Report, error) {
	objs, problem := readRequests(in)
	if len(objs) == 0 {
		return nil, cmp.Or(problem, errors.New("-f: the file holds no CertificateSigningRequest"))
	}
	e, err := newExplainer(ctx, configuration, offline{errOffline}, offline{errOffline}, clock)
	if err != nil {
		return nil, err
	}
	var reports []*Report
	for _, obj := range objs {
		reports = append(reports, e.Report(ctx, obj))
	}
	return reports, problem
}

// unanswerable is the reason why explain cannot answer a question, whatever the rights of the user.
type unanswerable string

func (u unanswerable) Error() string { return string(u) }

const (
	errOffline = unanswerable("offline")
	errNoCA    = unanswerable("no CA is configured here: give the manager's --config, or --signing-secret")

	errElsewhere = unanswerable("the inventory has a source that only the manager can ask, with the files and the " +
		"network of its machine")
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

// unknown returns the text for a question that err left open. right is the right that the user needs to ask it.
func unknown(err error, right string) string {
	if why := unanswerable(""); errors.As(err, &why) {
		return sentence("unknown: " + string(why))
	}
	return sentence(check.ReadError(right, err))
}

// Explainer asks the controllers, as configured, what they would do. It is not safe for concurrent use.
type Explainer struct {
	options  controllers.Options
	reader   client.Reader
	secrets  client.Reader
	clock    clock.PassiveClock
	calledAs string
	// inventory is nil without an API server.
	inventory *inventory
	// answers holds the reviews of the request that is being explained.
	answers map[authorizationv1.ResourceAttributes]answer
	// assume, if true, answers every review with yes.
	assume bool
}

type answer struct {
	allowed bool
	err     error
}

// New returns an Explainer that asks api. Close must be called when it is not used any more.
func New(
	ctx context.Context, configuration *config.Configuration, api Server, clock clock.PassiveClock,
) (*Explainer, error) {
	e, err := newExplainer(ctx, configuration, api, authz.SubjectAccess{Client: api}, clock)
	if err != nil {
		return nil, err
	}
	e.calledAs = api.Program
	e.inventory = newInventory(configuration, api)
	return e, nil
}

// program returns how the user calls this program.
func (e *Explainer) program() string { return cmp.Or(e.calledAs, "csr-controller-manager") }

// Close stops what the Explainer runs.
func (e *Explainer) Close() { e.inventory.stop() }

func newExplainer(
	ctx context.Context, configuration *config.Configuration, reader client.Reader, authorizer authz.Authorizer,
	clock clock.PassiveClock,
) (*Explainer, error) {
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
	e := &Explainer{options: options, reader: reader, secrets: reader, clock: clock}
	if noCA {
		e.secrets = offline{errNoCA}
	}
	if options.Approver != nil {
		options.Approver.Clock, options.Approver.ServerTime = clock, servertime.Of(clock)
		review := func(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
			if e.assume {
				return true, nil
			}
			allowed, err := authorizer.Allowed(ctx, who, what)
			e.answers[what] = answer{allowed, err}
			return allowed, err
		}
		options.Approver.Authorizer = authz.Func(review)
	}
	if options.Signer != nil {
		options.Signer.Clock, options.Signer.ServerTime = clock, servertime.Of(clock)
	}
	options.ReadBlockList(ctx, reader)
	return e, nil
}

// Findings holds what an Explainer found out about one request.
type Findings struct {
	State csr.State
	// Request is the parsed request. It is nil if the request cannot be parsed.
	Request *csr.Request
	// Rule is the rule of the approver for the signer of the request, or nil if there is none.
	Rule *approver.Rule
	// Decision is the decision of the approver. Undecidable says why it is unknown.
	Decision    approver.Decision
	Undecidable error
	// Unwatched reports that Undecidable depends on whether a node is alive, which only the running manager knows.
	Unwatched bool
	// Served reports that the signer of the request is configured.
	Served bool
	// Judged is the signer's decision once the request is approved. It is valid if Served is set.
	Judged signer.Judgement
	// Blocked has a reason if the block list stands against the request, or cannot be read.
	Blocked verdict.Result
	// Said is the last Event of the controller in charge about the request: the approver while the request is undecided,
	// then the signer. It is nil if there is none.
	Said *check.Statement

	lacksRole  bool // a review has refused a permission to the requester
	obj        *certificatesv1.CertificateSigningRequest
	now        time.Time
	unreadable error // why Request is nil
	events     []corev1.Event
	unlisted   error  // why events is incomplete
	renewals   *links // nil if they were not read

	signer signer.Signer
	// authority is the present CA. If it is nil, unavailable or unread says why.
	authority   *ca.Authority
	unavailable *keypair.Unavailable
	unread      error
	// preview is the certificate as the signer would issue it, with a random serial number. It may be nil.
	preview    *ca.Issued
	previewErr error
}

// Refusal returns the last Event of the manager if it refuses the request for a reason that only the running manager
// knows, or nil.
func (f *Findings) Refusal() *check.Statement {
	known := f.Said != nil && f.Said.Outcome() == "NodeAlive"
	if f.Unwatched && known {
		return f.Said
	}
	return nil
}

// Report explains obj, and reads the requests before and after it in a chain of renewals.
func (e *Explainer) Report(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *Report {
	f := e.JudgeWithEvents(ctx, obj)
	e.readRenewals(ctx, f)
	return e.reportOf(f)
}

// JudgeWithEvents is Judge, and also reads the last Event of the manager.
func (e *Explainer) JudgeWithEvents(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *Findings {
	f := e.Judge(ctx, obj)
	e.listEvents(ctx, f)
	return f
}

// JudgeAsAuthorized is Judge for a requester that has every permission. Judge stops at the first missing permission.
// JudgeAsAuthorized finds the rules after it.
func (e *Explainer) JudgeAsAuthorized(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *Findings {
	e.assume = true
	defer func() { e.assume = false }()
	return e.Judge(ctx, obj)
}

// Limits returns the limits within which the manager parses requests.
func (e *Explainer) Limits() csr.Limits { return e.options.RequestLimits }

// Approves reports whether a rule approves requests for the signer called name.
func (e *Explainer) Approves(name string) bool {
	return e.options.Approver != nil && slices.ContainsFunc(e.options.Approver.Rules, func(rule approver.Rule) bool {
		return rule.SignerName == name
	})
}

// Configured reports whether the manager approves or signs requests for the signer called name.
func (e *Explainer) Configured(name string) bool {
	if e.options.Signer != nil {
		if _, served := e.options.Signer.Signers[name]; served {
			return true
		}
	}
	return e.Approves(name)
}

// Reasons returns every reason of the approver in docs/reference/reasons.md, sorted.
func Reasons() []string { return slices.Sorted(maps.Keys(approverReasons)) }

// NextStep returns the next step of an approver's reason, or nothing.
func NextStep(reason string) string {
	if todo := approverReasons[reason].todo; todo != nothing {
		return todo
	}
	return ""
}

// Judge finds out what the approver and the signer would do with obj. It does not read Events.
func (e *Explainer) Judge(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) *Findings {
	e.answers = map[authorizationv1.ResourceAttributes]answer{}
	f := &Findings{obj: obj, now: e.clock.Now(), State: csr.StateOf(obj)}
	f.Request, f.unreadable = e.options.RequestLimits.Parse(obj)
	if f.Request != nil {
		f.Blocked.Reason, f.Blocked.Message = e.options.BlockList.Check(f.Request)
	}
	if r := e.options.Approver; r != nil {
		applies := func(rule approver.Rule) bool { return rule.SignerName == obj.Spec.SignerName }
		if i := slices.IndexFunc(r.Rules, applies); i >= 0 {
			f.Rule = &r.Rules[i]
		}
		e.decide(ctx, f)
		for _, review := range e.answers {
			f.lacksRole = f.lacksRole || review.err == nil && !review.allowed
		}
	}
	if e.options.Signer != nil {
		if f.signer, f.Served = e.options.Signer.Signers[obj.Spec.SignerName]; f.Served {
			e.judge(ctx, f)
		}
	}
	return f
}
