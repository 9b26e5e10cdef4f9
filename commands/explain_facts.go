package commands

import (
	"context"
	"errors"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

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
	readBlockList(ctx, options, reader)
	if noCA {
		e.secrets = noReader{}
	}
	if options.Signer != nil {
		options.Signer.Clock = clock
	}
	return e, nil
}

// readBlockList gives the approver and the signer the block list, as a manager does.
func readBlockList(ctx context.Context, options controllers.Options, reader client.Reader) {
	if options.BlockList == nil {
		return
	}
	_ = options.BlockList.ReadOnce(ctx, reader) // it says itself that it can't be read
	if options.Approver != nil {
		options.Approver.BlockList = options.BlockList
	}
	if options.Signer != nil {
		options.Signer.BlockList = options.BlockList
	}
}

// noReader has no CA.
type noReader struct{ offline }

func (noReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errNoCA
}
