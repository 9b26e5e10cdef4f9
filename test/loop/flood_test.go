package loop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// flood is many pending requests of requesters who may not join.
type flood struct {
	users, each int

	body    []byte
	refused int // the count before
}

// atOnce is how many Events a requester may cause at once. One a minute is added.
const atOnce = 10

// gate blocks every review until it is opened, and records the reviews in order.
type gate struct {
	authz.Authorizer
	opened chan struct{}

	mu    sync.Mutex
	asked []string // requesters
}

func (g *gate) Allowed(ctx context.Context, requester csr.Requester, permission authorizationv1.ResourceAttributes) (bool, error) {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	g.mu.Lock()
	g.asked = append(g.asked, requester.Username)
	g.mu.Unlock()
	return g.Authorizer.Allowed(ctx, requester, permission)
}

// TestFloodDelaysNobody has requesters without permission that keep hundreds of requests pending. All wait for
// reviews, one at a time. The last request, of another requester, is decided after at most one review of each of
// them. Each of them causes as many Events as are permitted at once.
func TestFloodDelaysNobody(t *testing.T) {
	kit.Alone(t)
	for name, f := range map[string]flood{
		"one requester":   {users: 1, each: 400},
		"many requesters": {users: 20, each: 20},
	} {
		t.Run(name, func(t *testing.T) {
			held := &gate{Authorizer: authz.SubjectAccess{Client: kit.ClientOf(t, kit.RoleConfig(t, "approver"))}, opened: make(chan struct{})}
			kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
				o.Approver.Authorizer, o.Concurrency.Approver = held, 1
			}})
			kit.GrantJoining(t, "joiner")
			start := time.Now()
			f.run(t)
			good := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good"))
			time.Sleep(time.Second) // for its event: the queue can't be inspected
			close(held.opened)
			kit.Reaches(t, good, csr.Issued)
			f.check(t, start)
			held.mu.Lock()
			defer held.mu.Unlock()
			// Each requester has one turn before the next, and one review is in progress.
			if at := slices.Index(held.asked, "joiner"); at < 0 || at > f.users+1 {
				t.Errorf("the good request's review was the %dth of %d", at+1, len(held.asked))
			}
		})
	}
}

// request returns a request of the flood. All have the same key, because keys are expensive.
func (f *flood) request(t *testing.T) *kit.Request {
	return kit.NodeRequest(t, "victim", func(obj *kit.Request) {
		obj.GenerateName, obj.Labels, obj.Spec.Request = "aaa-flood-", map[string]string{"flood": "yes"}, f.body
	})
}

// run creates the flood, as all users concurrently, with at least ten clients.
func (f *flood) run(t *testing.T) {
	t.Helper()
	f.body, f.refused = kit.NodeRequest(t, "victim").Spec.Request, refusals(t)
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: kit.MayCreate},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "flooders"}},
	})
	t.Cleanup(func() {
		if err := kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, client.MatchingLabels{"flood": "yes"}); err != nil {
			t.Error(err)
		}
	})
	kit.Eventually(t, "flooders may create requests", func(ctx context.Context) error {
		return kit.Impersonate(t, "flooder-0").Create(ctx, f.request(t), client.DryRunAll)
	})
	const creators = 10
	left := make(chan client.Client, f.users*f.each)
	for user := range f.users {
		c := kit.Impersonate(t, fmt.Sprintf("flooder-%d", user))
		for range f.each {
			left <- c
		}
	}
	close(left)
	var workers sync.WaitGroup
	for range creators {
		workers.Go(func() {
			for c := range left {
				if err := c.Create(t.Context(), f.request(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

// check waits until the loop has handled all of the flood and written its Events. It counts Events by requester.
func (f *flood) check(t *testing.T, start time.Time) {
	t.Helper()
	requesters := pending(t)
	if len(requesters) != f.users*f.each {
		t.Fatalf("%d requests are pending, want %d", len(requesters), f.users*f.each)
	}
	kit.Eventually(t, "all are looked at", func(context.Context) error {
		if got := refusals(t) - f.refused; got < len(requesters) {
			return fmt.Errorf("%d of %d are", got, len(requesters))
		}
		return nil
	})
	// Events are written in the order of recording, apart from concurrent writes.
	marker := kit.CreateRequest(t, kit.Impersonate(t, "marker"), kit.NodeRequest(t, "victim"))
	kit.HasEvent(t, marker, "NotAuthorized", `user "marker"`)
	most := atOnce + 1 + int(time.Since(start).Minutes())
	kit.Eventually(t, "each requester is told", func(ctx context.Context) error {
		told, err := eventsByRequester(ctx, t, requesters)
		if err != nil {
			return err
		}
		for user := range f.users {
			name := fmt.Sprintf("flooder-%d", user)
			if got := told[name]; got > most {
				t.Fatalf("%d Events about %d requests of %s, want at most %d", got, f.each, name, most)
			} else if got < atOnce {
				return fmt.Errorf("%d Events about requests of %s, want %d", got, name, atOnce)
			}
		}
		return nil
	})
}

// pending returns the requesters of the flood's pending requests.
func pending(t *testing.T) map[types.UID]string {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := kit.Admin(t).List(t.Context(), list, client.MatchingLabels{"flood": "yes"}); err != nil {
		t.Fatal(err)
	}
	requesters := map[types.UID]string{}
	for _, obj := range list.Items {
		if csr.StateOf(&obj) == csr.Pending {
			requesters[obj.UID] = obj.Spec.Username
		}
	}
	return requesters
}

// refusals returns how often a loop found a requester not authorized, once for each request.
func refusals(t *testing.T) int {
	t.Helper()
	return kit.Counted(t, "csr_approver_decisions_total", map[string]string{"reason": "NotAuthorized"})
}

// eventsByRequester counts the Events about the known requests.
func eventsByRequester(ctx context.Context, t *testing.T, requesters map[types.UID]string) (map[string]int, error) {
	events := &eventsv1.EventList{}
	if err := kit.Admin(t).List(ctx, events); err != nil {
		return nil, err
	}
	told := map[string]int{}
	for _, event := range events.Items {
		if user, known := requesters[event.Regarding.UID]; known {
			told[user]++
		}
	}
	return told, nil
}
