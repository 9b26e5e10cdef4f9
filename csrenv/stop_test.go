package csrenv_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// goroutines returns the stacks of the goroutines that run this module's code, without tests.
func goroutines() []string {
	buffer := make([]byte, 1<<22)
	var ours []string
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		_, created, _ := strings.Cut(stack, "created by ")
		if strings.Contains(created, "csr-controller-manager/") || strings.Contains(created, "controller-runtime/pkg/manager") ||
			strings.Contains(created, "controller-runtime/pkg/internal/controller.") || strings.Contains(created, "client-go/util/workqueue") {
			ours = append(ours, stack)
		}
	}
	return ours
}

// TestStopWaitsAndLeavesNoGoroutine stops a loop during a review.
func TestStopWaitsAndLeavesNoGoroutine(t *testing.T) {
	asked := make(chan struct{}, 100)
	blocks := authz.Func(func(ctx context.Context, who csr.Requester, _ authorizationv1.ResourceAttributes) (bool, error) {
		if who.Username != "system:bootstrap:staying" {
			return true, nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return false, context.Cause(ctx)
	})
	customize := func(o *controllers.Options) { o.Approver.Authorizer = blocks }
	env := must(csrenv.Start(t.Context(), admin, csrenv.Options{CA: trustedCA, Customize: customize}))
	_ = must(env.ConfigFor(t.Context(), "system:node:leaving", "system:nodes"))
	reviewed := create(t, addUser(t, "system:bootstrap:staying", "system:bootstrappers"), newRequest(t, "staying"))
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("nobody was asked")
	}
	if len(goroutines()) == 0 {
		t.Fatal("a running loop has no goroutine: the filter is wrong")
	}
	for range 2 { // a second call has no effect
		if err := env.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	late := create(t, newClient(t, admin), newRequest(t, "after-stop"))
	var left []string
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		left = goroutines()
		return len(left) == 0, nil
	}); err != nil {
		t.Fatalf("left behind:\n%s", strings.Join(left, "\n\n"))
	}
	if _, err := env.ConfigFor(ended(t), "erin"); err == nil {
		t.Error("a stopped loop gave a certificate")
	}
	still(t, reviewed, csr.Pending)
	still(t, late, csr.Pending)
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestTheEndOfTheContextStopsTheLoop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	env := must(csrenv.Start(ctx, admin, csrenv.Options{}))
	cancel()
	if err := env.Stop(); err != nil {
		t.Error(err)
	}
	_, err := csrenv.Start(ended(t), admin, csrenv.Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start with an ended context: %v", err)
	}
}
