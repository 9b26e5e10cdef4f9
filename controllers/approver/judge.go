package approver

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Judge judges the requests for one signer: KubeletClient, KubeletServing, ApprovalRules, or a caller's own. The zero Decision
// leaves a request to others. An error means that a fact could not be read, and that the work queue tries again.
type Judge interface {
	Judge(ctx context.Context, req *csr.Request, from Readers) (judge.Decision, error)
}

// Readers reads what a Judge needs to know beside the request.
type Readers struct {
	// Authorizer reviews permissions of requesters.
	Authorizer authz.Authorizer
	// Live reads past the cache. After a failed write, it also shows whether the write was stored.
	Live client.Reader
	// ServerTime is the clock by which ages count.
	ServerTime *servertime.Clock
	// Inventory knows nodes. KubeletClient with a Bootstrap and KubeletServing need it.
	Inventory *Inventory
	// Assume takes for true what only a cluster knows about approval rules: that ServiceAccounts and Services exist, and that
	// API servers do not trust a CA of this manager.
	Assume bool
}

// needs returns what the inventory must watch for a Judge beside its sources: Services and API servers, or Leases. A change of
// the inventory wakes the requests of a Judge that needs any of them.
func needs(of Judge) (services, leases bool) {
	if reader, reads := of.(interface {
		needs() (services, leases bool)
	}); reads {
		return reader.needs()
	}
	return false, false
}

func (KubeletServing) needs() (services, leases bool)  { return true, false }
func (n KubeletClient) needs() (services, leases bool) { return false, n.Bootstrap != nil }

// Reasons of decisions that more than one file names.
const (
	reasonNotAuthorized = "NotAuthorized"
	// reasonPending is the reason of a request of which a fact is not read yet.
	reasonPending     = "InventoryPending"
	reasonUnavailable = "InventoryUnavailable"
)

// unknown returns the reason of a request whose facts are missing because of err. InventoryPending means that a source
// is only starting, or has no place for another question.
func unknown(err error) string {
	if errors.Is(err, inventory.ErrBusy) || errors.Is(err, informer.ErrNotRead) {
		return reasonPending
	}
	return reasonUnavailable
}
