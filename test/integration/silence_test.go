package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/apiuse"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// TestSilentWatchHoldsServingApprovalsUp stalls the watch of Nodes, Services or EndpointSlices: the connection and
// new watches stay open, and deliver nothing. The limit is ten seconds instead of three minutes. So an object changes
// each half second, instead of a bookmark each minute. The old copy is not used until everything has been read again.
func TestSilentWatchHoldsServingApprovalsUp(t *testing.T) {
	parallel(t)
	const limit = 10 * time.Second
	touched := touchEachHalfSecond(t)
	for _, resource := range []string{"nodes", "services", "endpointslices"} {
		t.Run(resource, func(t *testing.T) {
			followed := []string{resource}
			// Lists fail later, so that nothing is read again before the test has checked.
			proxy := throughFaults(t, roleConfig(t, "approver", "kubelet-serving"),
				faults.Rule{Verbs: []string{"list"}, Resources: followed, Skip: 1, Do: faults.Answer(503)},
				faults.Rule{Verbs: faults.Watch, Resources: followed, Times: 1, Do: faults.Stall(limit)},
				faults.Rule{Verbs: faults.Watch, Resources: followed, Do: faults.Stall(0)})
			log := startApproverInProcess(t, proxy.Config, limit)
			node := "silent-" + resource
			newNode(t, node, "192.0.2.61")
			reaches(t, asksFor(t, node, "192.0.2.61"), csr.Approved)

			within(t, time.Minute, "the manager notices", func(context.Context) error {
				if !strings.Contains(log(), "watch "+resource) {
					return errors.New("it has not yet")
				}
				return nil
			})
			waiting := asksFor(t, node, "192.0.2.61")
			hasEvent(t, waiting, "InventoryUnavailable", resource)
			isPending(t, waiting)
			proxy.Use()
			reaches(t, waiting, csr.Approved)
		})
	}
	touched()
}

// startApproverInProcess runs an approver of serving certificates as the binary does, with another limit of silence.
// It returns the log about silent watches.
func startApproverInProcess(t *testing.T, cfg *rest.Config, limit time.Duration) (log func() string) {
	t.Helper()
	var mu sync.Mutex
	var silent strings.Builder
	logger := funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(line, "neither an event nor a bookmark for "+limit.String()) {
			silent.WriteString(line + "\n")
		}
	}, funcr.Options{})
	cfg = rest.CopyConfig(cfg)
	observer := apiuse.New()
	observer.Silence = limit - time.Second // a silent watch ends earlier, and the next one is silent too
	observer.Wrap(cfg)
	mgr := newManager(t, cfg, manager.Options{Logger: logger})
	serving := servingApprover()
	serving.Inventory.WatchSilence = limit
	if err := (controllers.Options{Approver: serving, Observer: observer}).SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return silent.String()
	}
}

// touchEachHalfSecond changes a Node, a Service and the EndpointSlice of the API server, until the test ends or stop
// is called. stop reports errors.
func touchEachHalfSecond(t *testing.T) (stop func()) {
	t.Helper()
	newNode(t, "silent-touched", "192.0.2.62")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "silent-touched"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
	create(t, admin(t), service)
	slices := &discoveryv1.EndpointSliceList{}
	eventually(t, "the EndpointSlice of the API server", func(ctx context.Context) error {
		err := admin(t).List(ctx, slices, client.InNamespace("default"), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
		if err == nil && len(slices.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	objects := []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent-touched"}}, service, &slices.Items[0]}
	ctx, cancel := context.WithCancel(t.Context())
	var touching sync.WaitGroup
	touching.Go(func() {
		for ctx.Err() == nil {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"`+time.Now().Format(time.RFC3339Nano)+`"}}}`))
			for _, obj := range objects {
				if err := admin(t).Patch(ctx, obj.DeepCopyObject().(client.Object), patch); err != nil && ctx.Err() == nil {
					t.Errorf("touch %s: %v", obj.GetName(), err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		touching.Wait()
	})
	t.Cleanup(stop)
	return stop
}
