package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// following is a running source, and the nodes that it has reported as changed.
type following struct {
	inventory.Source
	mu   sync.Mutex
	told map[string]int
}

func (f *following) changed(node string, _ ...san.SAN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told[node]++
}

func (f *following) toldOf(node string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told[node]
}

// follow runs start until the test ends.
func follow(t *testing.T, start func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- start(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the source stopped with %v", err)
			}
		case <-time.After(kit.Patience):
			t.Error("the source does not stop")
		}
	})
}

// finds waits until the source's answer about node matches want: a part of the error or, after =, of the entry. An
// empty want means that the node is not known.
func (f *following) finds(t *testing.T, node, want string) *inventory.Entry {
	t.Helper()
	var found *inventory.Entry
	kit.Eventually(t, fmt.Sprintf("lookup of %q", node), func(ctx context.Context) error {
		entry, err := f.Lookup(ctx, node, nil)
		found = entry
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case entry != nil:
			got = fmt.Sprintf("=%s bound %q leaving %t %v", entry.Source, entry.Bound, entry.Leaving, entry.SANs)
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			return fmt.Errorf("is %q, want %q", got, want)
		}
		return nil
	})
	return found
}

const (
	// wokenWithin is less than the ten seconds after which failed sources retry.
	wokenWithin = 8 * time.Second
	// retriedWithin is little more than that.
	retriedWithin = 12 * time.Second
)

// wakes checks that change makes the source report node, because of an event.
func (f *following) wakes(t *testing.T, node string, change func()) {
	t.Helper()
	f.tells(t, wokenWithin, node, change)
}

// recovers checks that a source that has failed reports all nodes after repair.
func (f *following) recovers(t *testing.T, repair func()) {
	t.Helper()
	f.tells(t, retriedWithin, "", repair)
}

func (f *following) tells(t *testing.T, most time.Duration, node string, change func()) {
	t.Helper()
	before := f.toldOf(node)
	change()
	kit.Within(t, most, fmt.Sprintf("told of %q", node), func(context.Context) error {
		if f.toldOf(node) == before {
			return errors.New("not")
		}
		return nil
	})
}

// link is a connection that may be down for long.
type link struct {
	kit.Wire
	down atomic.Bool
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l.down.Load() {
		return nil, errors.New("the network is down")
	}
	return l.Dial(ctx, network, address)
}

// over returns cfg's user on a separate connection.
func (l *link) over(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = l.dial
	return cfg
}

func (l *link) fail() { l.down.Store(true); l.Cut() }

// stranger is a user of the shared cluster without rights.
func stranger(t *testing.T) *rest.Config {
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.BearerToken, cfg.QPS = "stranger-token", -1
	return cfg
}

// allowStranger grants rules to stranger in namespace.
func allowStranger(t *testing.T, namespace string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "inventory-test"}, Rules: rules}
	kit.Create(t, kit.Admin(t), role)
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "inventory-test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
	})
	return role
}
