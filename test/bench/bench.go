package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// joiners is the identity of a bootstrap token.
var joiners = cluster.Token{Token: "bench-token", User: "system:bootstrap:bench0", UID: "bench", Groups: "system:bootstrappers"}

// joinerRoles are the ClusterRoles that a cluster grants to joiners.
var joinerRoles = []string{
	"system:node-bootstrapper",
	"system:certificates.k8s.io:certificatesigningrequests:nodeclient",
}

// bench is one control plane and the two controllers to compare. At most one of them runs at a time.
type bench struct {
	settings
	cluster     *cluster.Cluster
	admin, node kubernetes.Interface
	tracker     *tracker
	untrack     context.CancelFunc
	ours, kcm   *subject
	names       int
}

func newBench(ctx context.Context, s settings) (*bench, error) {
	started, err := cluster.Start(joiners)
	if err != nil {
		return nil, err
	}
	b := &bench{settings: s, cluster: started}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

func (b *bench) prepare(ctx context.Context) (err error) {
	if b.admin, err = newClient(b.cluster.Config); err != nil {
		return err
	}
	joiner := rest.AnonymousClientConfig(b.cluster.Config)
	joiner.BearerToken = joiners.Token
	if b.node, err = newClient(joiner); err != nil {
		return err
	}
	for i, role := range joinerRoles {
		_, err := b.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: joiners.Groups}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("bind %s: %w", role, err)
		}
	}
	kubeconfig, err := b.cluster.WriteKubeconfig("controller", b.cluster.Config)
	if err != nil {
		return err
	}
	certFile, keyFile := filepath.Join(b.cluster.Dir, "ca.crt"), filepath.Join(b.cluster.Dir, "ca.key")
	if err := errors.Join(os.WriteFile(certFile, b.cluster.CA.CertPEM, 0o600), os.WriteFile(keyFile, b.cluster.CA.KeyPEM, 0o600)); err != nil {
		return err
	}
	if err := b.subjects(kubeconfig, certFile, keyFile); err != nil {
		return err
	}
	ctx, b.untrack = context.WithCancel(ctx)
	b.tracker, err = newTracker(ctx, b.admin)
	return err
}

// stop ends the watch first, because the API server waits for its watchers.
func (b *bench) stop() error {
	if b.untrack != nil {
		b.untrack()
	}
	return b.cluster.Stop()
}

// newClient returns a client that uses protobuf and has no rate limit, so that the API server's CPU is left for the
// subject.
func newClient(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfig(cfg)
}

// compare runs both in turn, in an order that does not favour either if the machine drifts: ours, theirs, theirs,
// ours, …
func (b *bench) compare(ctx context.Context, title string, round func(context.Context, *subject) (float64, error)) (*result, error) {
	fmt.Println(title)
	r := &result{title: title}
	for i := range b.rounds {
		order := []*subject{b.ours, b.kcm}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, s := range order {
			rate, err := round(ctx, s)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", s.name, i+1, err)
			}
			fmt.Printf("  round %d  %-24s %6.0f/s, its own CPU %s\n", i+1, s.name, rate, s.cpu.Round(10*time.Millisecond))
			if s == b.ours {
				r.ours = append(r.ours, rate)
			} else {
				r.kcm = append(r.kcm, rate)
			}
		}
	}
	return r, nil
}

// join runs one round of requests that are created while a controller runs.
func (b *bench) join(ctx context.Context, s *subject) (rate float64, err error) {
	err = b.with(ctx, s, func(ctx context.Context) error {
		prefix := b.prefix()
		requests, err := newRequests(prefix, b.requests)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := createAll(ctx, b.node, requests, b.creators); err != nil {
			return err
		}
		times, err := b.tracker.wait(ctx, prefix, b.requests)
		if err != nil {
			return err
		}
		_, last := span(times)
		rate = float64(b.requests) / last.Sub(start).Seconds()
		return nil
	})
	return rate, err
}

// backlog runs one round of requests that exist before the controller starts.
func (b *bench) backlog(ctx context.Context, s *subject) (rate float64, err error) {
	prefix := b.prefix()
	requests, err := newRequests(prefix, b.requests)
	if err != nil {
		return 0, err
	}
	if err := createAll(ctx, b.node, requests, b.creators); err != nil {
		return 0, err
	}
	stop, err := s.start(b.cluster)
	if err != nil {
		return 0, err
	}
	times, err := b.tracker.wait(ctx, prefix, b.requests)
	if err := errors.Join(err, stop(), b.tracker.clear(ctx, b.admin)); err != nil {
		return 0, err
	}
	first, last := span(times)
	return float64(b.requests-1) / last.Sub(first).Seconds(), nil
}

// with runs s during work. work starts once s has issued a first certificate.
func (b *bench) with(ctx context.Context, s *subject, work func(context.Context) error) error {
	stop, err := s.start(b.cluster)
	if err != nil {
		return err
	}
	prefix := b.prefix()
	first, err := newRequests(prefix, 1)
	if err == nil {
		err = createAll(ctx, b.node, first, 1)
	}
	if err == nil {
		_, err = b.tracker.wait(ctx, prefix, 1)
	}
	if err == nil {
		err = work(ctx)
	}
	return errors.Join(err, stop(), b.tracker.clear(ctx, b.admin))
}

// prefix returns a prefix that no earlier request has.
func (b *bench) prefix() string {
	b.names++
	return fmt.Sprintf("bench%d", b.names)
}

func span(times map[string]time.Time) (first, last time.Time) {
	all := slices.SortedFunc(maps.Values(times), time.Time.Compare)
	return all[0], all[len(all)-1]
}
