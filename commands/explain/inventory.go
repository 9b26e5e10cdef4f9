package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	nodes "github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

const (
	// readTimeout bounds the wait until the inventory has been read.
	readTimeout = 10 * time.Second
	// stopTimeout bounds the wait until the inventory has stopped. It has no work to finish.
	stopTimeout = time.Second
)

// inventory runs the approver's inventory with the rights of the user, once a decision depends on it.
type inventory struct {
	api    Server
	rights []check.Right // that the inventory needs

	running bool
	tried   bool // every source has been read, or has reported why it cannot be read
	end     context.CancelFunc
	ended   chan struct{}
	err     error // why the inventory has ended
}

// newInventory returns nil for an API server without a Config.
func newInventory(configuration *config.Configuration, api Server) *inventory {
	if api.Config == nil {
		return nil
	}
	i := &inventory{api: api}
	for _, right := range controllers.Rights(configuration, "") {
		if strings.Contains(right.Need, "inventory") {
			i.rights = append(i.rights, right)
		}
	}
	return i
}

// decide asks the approver about the request. It runs the inventory if the decision lacks it.
func (e *Explainer) decide(ctx context.Context, f *Findings) {
	r := e.options.Approver
	if f.State == csr.Denied {
		f.Decision = e.denial(ctx, f.obj)
		return
	}
	_, f.Decision, f.Undecidable = r.Decide(ctx, f.obj)
	if !e.lacksInventory(f) {
		return
	}
	if f.Undecidable = e.inventory.run(ctx, r, e.clock); f.Undecidable != nil {
		return
	}
	_, f.Decision, f.Undecidable = r.Decide(ctx, f.obj)
	switch {
	case e.lacksInventory(f):
		f.Undecidable = e.inventory.unread(ctx, r.Inventory, f)
	case f.Decision.Verdict == verdict.Approve:
		// The inventory works without an optional right, but a manager that has the right may decide otherwise.
		f.Undecidable = e.inventory.missing(ctx, func(right check.Right) bool {
			return right.Optional && right.Verb != "create" && right.Verb != "patch"
		})
	case f.Decision.Reason == "NodeAlive" && r.Inventory.Unwatched(f.Request.NodeName()):
		f.Unwatched = true
		f.Undecidable = unanswerable(fmt.Sprintf("whether node %q is alive is known only to a manager that has watched "+
			"its lease for a minute; see the Events", csr.Shorten(f.Request.NodeName())))
	}
}

// denial returns the decision that denied obj, if this approver would decide the same today.
func (e *Explainer) denial(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) approver.Decision {
	for _, condition := range obj.Status.Conditions {
		if _, ours := approverReasons[condition.Reason]; !ours || condition.Type != certificatesv1.CertificateDenied {
			continue
		}
		undecided := obj.DeepCopy()
		undecided.Status = certificatesv1.CertificateSigningRequestStatus{}
		_, decision, err := e.options.Approver.Decide(ctx, undecided)
		same := decision.Reason == condition.Reason && decision.Message == condition.Message
		if err == nil && decision.Verdict == verdict.Deny && same {
			return decision
		}
	}
	return approver.Decision{}
}

// lacksInventory reports whether the decision waits for the inventory. The block list gives the same reason, but is
// read without running the inventory.
func (e *Explainer) lacksInventory(f *Findings) bool {
	if f.Undecidable != nil || f.Decision.Reason != "InventoryUnavailable" && f.Decision.Reason != "InventoryPending" {
		return false
	}
	blocked, _ := e.options.Approver.BlockList.Check(f.Request)
	return blocked == ""
}

// run starts the inventory, and returns once every source has been read or has failed.
func (i *inventory) run(ctx context.Context, r *approver.Reconciler, clock clock.PassiveClock) error {
	if i == nil {
		return errOffline
	}
	// The right to read a ConfigMap does not matter here: its source reports itself that it cannot be read, or it belongs
	// to bootstrap tokens, which the decision does not need.
	err := i.missing(ctx, func(right check.Right) bool { return right.Verb != "get" && right.Resource != "configmaps" })
	if err != nil || i.running {
		return err
	}
	doesNotRun := func(err error) error {
		return unanswerable(fmt.Sprintf("the inventory does not run: %v", err))
	}
	stopIn := stopTimeout
	mgr, err := manager.New(i.api.Config, manager.Options{
		Scheme: clientgoscheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		GracefulShutdownTimeout: &stopIn,
	})
	if err != nil {
		return doesNotRun(err)
	}
	if err := r.SetupInventory(mgr, clock); err != nil {
		return doesNotRun(err)
	}
	i.running, i.ended = true, make(chan struct{})
	ctx, i.end = context.WithCancel(logr.NewContext(ctx, logr.Discard())) // unread reports what cannot be read
	go func() {
		defer close(i.ended)
		i.err = mgr.Start(ctx)
	}()
	tried := func(ctx context.Context) (bool, error) {
		select {
		case <-i.ended:
			return false, doesNotRun(i.err)
		default:
			return r.Inventory.Tried(ctx), nil
		}
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, readTimeout, true, tried)
	if i.tried = err == nil; wait.Interrupted(err) {
		return nil
	}
	return err
}

// stop stops the inventory if run has started it.
func (i *inventory) stop() {
	if i != nil && i.running {
		i.end()
		<-i.ended // bounded by stopTimeout
	}
}

// unread returns why the user cannot ask the inventory. It returns nil if the manager would get the same answer.
func (i *inventory) unread(ctx context.Context, sources *approver.Inventory, f *Findings) error {
	if err := i.missing(ctx, func(right check.Right) bool { return !right.Optional }); err != nil {
		return err
	}
	switch err := sources.Unavailable(ctx, f.Request); {
	case errors.Is(err, nodes.ErrElsewhere):
		return errElsewhere
	case apierrors.IsForbidden(err):
		return unanswerable(err.Error())
	}
	if !i.tried {
		return unanswerable(fmt.Sprintf("the inventory could not be read within %s", readTimeout))
	}
	return nil
}

// missing returns an error that names each right that matters and that the user lacks, or nil.
func (i *inventory) missing(ctx context.Context, matters func(check.Right) bool) error {
	var asked []check.Right
	for _, right := range i.rights {
		if matters(right) {
			asked = append(asked, right)
		}
	}
	var lacking []string
	for _, result := range check.Rights(ctx, i.api, asked) {
		if result.Status == check.Failed {
			lacking = append(lacking, result.Subject)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return unanswerable("may not " + strings.Join(lacking, ", "))
}
