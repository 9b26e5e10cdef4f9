package explain

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// nodesPatience bounds the wait until the inventory has been read.
	nodesPatience = 10 * time.Second
	// stopPatience bounds the wait until it has stopped: it has nothing to finish.
	stopPatience = time.Second
)

// nodes runs the inventory, once a verdict depends on it, with the rights of whoever asks.
type nodes struct {
	api    Server
	rights []check.Right
	// tried says that every source has read, or said why it can't.
	running, tried bool
	end            context.CancelFunc
	ended          chan struct{}
	err            error // why it has ended
}

// newNodes returns nil for an API server without a config.
func newNodes(configuration *config.Configuration, api Server) (*nodes, error) {
	if api.Config == nil {
		return nil, nil
	}
	all, err := controllers.Rights(configuration, "")
	if err != nil {
		return nil, err
	}
	n := &nodes{api: api}
	for _, right := range all {
		if strings.Contains(right.Need, "inventory") {
			n.rights = append(n.rights, right)
		}
	}
	return n, nil
}

// decide finds out what the approver says, and runs the inventory if that is what it lacks.
func (e *explainer) decide(ctx context.Context, f *findings) {
	r := e.options.Approver
	_, f.decision, f.undecidable = r.Decide(ctx, f.obj)
	if !e.lacksInventory(f) {
		return
	}
	if f.undecidable = e.nodes.run(ctx, r.Inventory, e.clock); f.undecidable != nil {
		return
	}
	_, f.decision, f.undecidable = r.Decide(ctx, f.obj)
	switch {
	case e.lacksInventory(f):
		f.undecidable = e.nodes.unread(ctx, r.Inventory, f)
	case f.decision.Verdict == approver.Approve:
		// A missing optional right holds nothing up, but a manager that has the right may decide otherwise.
		f.undecidable = e.nodes.missing(ctx, func(right check.Right) bool { return right.Optional && right.Verb != "create" && right.Verb != "patch" })
	case f.decision.Reason == "NodeAlive" && r.Inventory.Unwatched(f.req.NodeName()):
		f.undecidable = unanswerable(fmt.Sprintf("whether node %q is alive is known only to a manager that has watched its lease for a minute; see the Events", csr.Shorten(f.req.NodeName())))
	}
}

// lacksInventory is not about the block list, which needs no running.
func (e *explainer) lacksInventory(f *findings) bool {
	if f.undecidable != nil || f.decision.Reason != "InventoryUnavailable" {
		return false
	}
	blocked, _ := e.options.Approver.BlockList.Check(f.req)
	return blocked == ""
}

// run starts the inventory, and returns once it can be asked.
func (n *nodes) run(ctx context.Context, inventory *approver.Inventory, clock clock.PassiveClock) error {
	if n == nil {
		return errOffline
	}
	// A ConfigMap says itself that it can't be read, or is that of the bootstrap tokens, which is not watched for answers.
	if err := n.missing(ctx, func(right check.Right) bool { return right.Verb != "get" && right.Resource != "configmaps" }); err != nil || n.running {
		return err
	}
	mgr, err := newNodesManager(n.api.Config)
	if err != nil {
		return err
	}
	if err := inventory.Setup(mgr, clock); err != nil {
		return doesNotRun(err)
	}
	n.running, n.ended = true, make(chan struct{})
	ctx, n.end = context.WithCancel(logr.NewContext(ctx, logr.Discard())) // what can't be read is said once, by who asks
	go func() {
		defer close(n.ended)
		n.err = mgr.Start(ctx)
	}()
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, nodesPatience, true, func(ctx context.Context) (bool, error) {
		return inventory.Tried(ctx), n.failed()
	})
	if n.tried = err == nil; wait.Interrupted(err) {
		return nil
	}
	return err
}

func newNodesManager(cluster *rest.Config) (manager.Manager, error) {
	stopIn := stopPatience
	mgr, err := manager.New(cluster, manager.Options{
		Scheme: clientgoscheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"}, GracefulShutdownTimeout: &stopIn,
	})
	if err != nil {
		return nil, doesNotRun(err)
	}
	return mgr, nil
}

func doesNotRun(err error) error {
	return unanswerable(fmt.Sprintf("the inventory does not run: %v", err))
}

// failed is why the inventory does not run any more.
func (n *nodes) failed() error {
	select {
	case <-n.ended:
		return doesNotRun(n.err)
	default:
		return nil
	}
}

// stop ends what run has started.
func (n *nodes) stop() {
	if n == nil || !n.running {
		return
	}
	n.end()
	<-n.ended // bounded by stopPatience
}

// unread says why the inventory can't be asked here, or is nil if that would be the same for the manager.
func (n *nodes) unread(ctx context.Context, inventory *approver.Inventory, f *findings) error {
	if err := n.missing(ctx, func(right check.Right) bool { return !right.Optional }); err != nil {
		return err
	}
	if err := inventory.Unavailable(ctx, f.req); apierrors.IsForbidden(err) {
		return unanswerable(err.Error())
	}
	if !n.tried {
		return unanswerable(fmt.Sprintf("the inventory could not be read within %s", nodesPatience))
	}
	return nil
}

// missing returns an error that names all rights that matter and that the caller lacks, or nil.
func (n *nodes) missing(ctx context.Context, matters func(check.Right) bool) error {
	var asked []check.Right
	for _, right := range n.rights {
		if matters(right) {
			asked = append(asked, right)
		}
	}
	var lacking []string
	for _, result := range check.Rights(ctx, n.api, asked) {
		if result.Status == check.Failed {
			lacking = append(lacking, result.Subject)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return unanswerable("may not " + strings.Join(lacking, ", "))
}
