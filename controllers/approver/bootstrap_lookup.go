package approver

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// Gate decides before or after the permission of a recogniser is reviewed. A Decision without a reason lets the
// request pass. An error means that Gate could not decide.
type Gate func(context.Context, *csr.Request) (Decision, error)

// Bootstrap configures BoundNodeClient.
type Bootstrap struct {
	// Inventory knows which nodes are expected, and which nodes are alive.
	Inventory *Inventory
	Policy    BootstrapPolicy
}

// confirmTimeout bounds the API calls before an approval.
const confirmTimeout = 10 * time.Second

// BoundNodeClient is NodeClient with an identity check for each first certificate. A bootstrapper may only request a
// node that is expected and does not exist yet. Renewals need only their own permission and wait for nothing. A node
// that may not renew is not treated as a new node. The permission is reviewed last.
func BoundNodeClient(b Bootstrap) Rule {
	rule := NodeClient()
	rule.needsLeases = true
	for i := range rule.Recognisers {
		if recogniser := &rule.Recognisers[i]; recogniser.Name == "nodeclient" {
			bootstraps := recogniser.Matches
			recogniser.Matches = func(req *csr.Request) bool {
				return bootstraps(req) && req.Requester.Username != req.Cert.Subject.CommonName
			}
			recogniser.Gate, recogniser.Confirm = b.gate, b.confirm
		}
	}
	return rule
}

// gate judges req by the caches.
func (b Bootstrap) gate(ctx context.Context, req *csr.Request) (Decision, error) {
	facts, err := b.lookUp(ctx, req)
	if err != nil {
		return Decision{}, err
	}
	return b.Policy.judge(req, facts), nil
}

// confirm judges req by what the API server returns now.
func (b Bootstrap) confirm(ctx context.Context, req *csr.Request) (Decision, error) {
	facts, err := b.lookUp(ctx, req)
	if err != nil {
		return Decision{}, err
	}
	b.readLive(ctx, req, facts)
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	return b.Policy.judge(req, facts), nil
}

// lookUp returns what the caches hold. A failed lookup becomes a fact. If the content of the request is refused,
// lookUp looks nothing up. It returns an error if a source has not answered yet, or if ctx has ended.
func (b Bootstrap) lookUp(ctx context.Context, req *csr.Request) (*bootstrapFacts, error) {
	i, node := b.Inventory, req.NodeName()
	if i.cluster == nil {
		return &bootstrapFacts{unavailable: errNotRunning.Error()}, nil
	}
	if _, err := i.serverTime.Skew(); err != nil { // the age is unknown
		return &bootstrapFacts{unavailable: err.Error()}, nil
	}
	facts := &bootstrapFacts{age: i.serverTime.Since(req.Created)}
	if b.Policy.checkRequest(req, facts.age).Reason != "" {
		return facts, nil
	}
	if i.reading.Load() {
		return nil, &pending.Waiting{}
	}
	obj, nodeErr := i.cluster.Node(node)
	life, renewed, leaseErr := i.leases.Of(node)
	facts.node, facts.renewed = b.Policy.stateOf(obj != nil, life, renewed, req), renewed
	var entryErr error
	if b.Policy.Expected {
		var found inventory.Found
		found, entryErr = i.expecting.Lookup(ctx, node, req)
		facts.entry = found.Entry
	}
	switch err := errors.Join(nodeErr, leaseErr, entryErr); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case isWaiting(err):
		return nil, err
	case err != nil:
		facts.unavailable = err.Error()
	}
	return facts, nil
}

// readLive reads from the API server the facts that a lagging cache could have wrong. It also checks whether the
// requester still exists.
func (b Bootstrap) readLive(ctx context.Context, req *csr.Request, facts *bootstrapFacts) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	live, name := b.Inventory.live, req.NodeName()
	var err, goneErr error
	switch facts.node {
	case nodeNone:
		var exists bool
		if exists, err = live.HasNode(ctx, name); exists {
			facts.node = nodeUnknown
		}
		// The Lease may be left from a dead node, or belong to a kubelet that still runs without a Node.
		renewed, leaseErr := live.Renewed(ctx, name)
		if leaseErr == nil && !renewed.Equal(facts.renewed) {
			facts.node = nodeUnknown
		}
		if !apierrors.IsNotFound(leaseErr) {
			err = errors.Join(err, leaseErr)
		}
	case nodeDead:
		var renewed time.Time
		if renewed, err = live.Renewed(ctx, name); !renewed.Equal(facts.renewed) {
			facts.node = nodeUnknown
		}
	}
	facts.gone, goneErr = live.Gone(ctx, req.Requester)
	if err := errors.Join(err, goneErr); err != nil {
		facts.unavailable = err.Error()
	}
	facts.age = b.Inventory.serverTime.Since(req.Created)
}
