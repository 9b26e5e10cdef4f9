// Package lab runs controllers on a fresh control plane and measures them. It knows no scenario.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// joiners is the identity of a bootstrap token.
var joiners = cluster.Token{
	Token: "bench-token", User: "system:bootstrap:bench0", UID: "bench", Groups: "system:bootstrappers",
}

const (
	certificatePolicy = "system:certificates.k8s.io:certificatesigningrequests:"
	othersGroup       = "bench:others" // may do anything, but the API server limits its requests
	hostileGroup      = "bench:hostile"
)

// groupRoles are the ClusterRoles that the cluster grants to a group.
var groupRoles = []struct{ group, role string }{
	{joiners.Groups, "system:node-bootstrapper"},
	{joiners.Groups, certificatePolicy + "nodeclient"},
	{"system:nodes", certificatePolicy + "selfnodeclient"},
	{othersGroup, "cluster-admin"},
	{hostileGroup, "system:node-bootstrapper"},
}

// Options configure a Lab.
type Options struct {
	// Binary is the manager under test, and Base that of another revision, if there is one.
	Binary, Base string
	// Settle is the pause before the settled memory is measured.
	Settle time.Duration
}

// Lab is a fresh control plane and a watch on its requests.
type Lab struct {
	Options
	// Cluster is the control plane.
	Cluster *cluster.Cluster
	// Admin is a client without a limit.
	Admin kubernetes.Interface

	joiner, users kubernetes.Interface
	account       kubernetes.Interface // of the ServiceAccount of SeedRule
	kubeconfig    string
	tracker       *tracker
	names         int
	failed        context.Context // done when a subject has ended by itself
	fail          context.CancelCauseFunc
}

// Start starts a control plane. Call Stop at the end.
func Start(ctx context.Context, options Options) (*Lab, error) {
	started, err := cluster.Start(joiners)
	if err != nil {
		return nil, err
	}
	l := &Lab{Options: options, Cluster: started}
	l.failed, l.fail = context.WithCancelCause(ctx)
	if err := l.prepare(ctx); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

func (l *Lab) prepare(ctx context.Context) (err error) {
	if l.Admin, err = newClient(l.Cluster.Config); err != nil {
		return err
	}
	joiner := rest.AnonymousClientConfig(l.Cluster.Config)
	joiner.BearerToken = joiners.Token
	if l.joiner, err = newClient(joiner); err != nil {
		return err
	}
	users := rest.CopyConfig(l.Cluster.Config)
	users.Wrap(func(next http.RoundTripper) http.RoundTripper { return impersonator{next} })
	if l.users, err = newClient(users); err != nil {
		return err
	}
	for i, grant := range groupRoles {
		_, err := l.Admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: grant.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: grant.group}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("bind %s: %w", grant.role, err)
		}
	}
	if l.kubeconfig, err = l.Cluster.WriteKubeconfig("controller", l.Cluster.Config); err != nil {
		return err
	}
	if err := l.writeCA(DefaultCA, l.Cluster.CA); err != nil {
		return err
	}
	l.tracker, err = startTracker(ctx, l.Admin)
	return err
}

// Stop ends the watch first, because the API server waits for its watchers.
func (l *Lab) Stop() error {
	if l.tracker != nil {
		l.tracker.stop()
	}
	l.fail(nil)
	return l.Cluster.Stop()
}

// newClient returns a client that uses protobuf and has no rate limit, so that the API server's CPU is left for the
// subject.
func newClient(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfig(cfg)
}

// user is an identity that the administrator impersonates.
type user struct {
	name   string
	groups []string
}

type userKey struct{}

// as returns a context in which calls of l.users have the identity u.
func as(ctx context.Context, u user) context.Context { return context.WithValue(ctx, userKey{}, u) }

// impersonator adds the identity in the context of a call. One client with one connection serves thousands of users.
type impersonator struct{ next http.RoundTripper }

func (i impersonator) RoundTrip(request *http.Request) (*http.Response, error) {
	u, given := request.Context().Value(userKey{}).(user)
	if !given {
		return nil, errors.New("a call without a user")
	}
	request = request.Clone(request.Context())
	request.Header.Set(transport.ImpersonateUserHeader, u.name)
	for _, group := range append([]string{"system:authenticated"}, u.groups...) {
		request.Header.Add(transport.ImpersonateGroupHeader, group)
	}
	return i.next.RoundTrip(request)
}

// caFiles returns the paths of the certificate and the key of a CA.
func (l *Lab) caFiles(name string) (cert, key string) {
	path := filepath.Join(l.Cluster.Dir, strings.ToLower(name)+"-ca")
	return path + ".crt", path + ".key"
}

func (l *Lab) writeCA(name string, ca *csrenv.CA) error {
	cert, key := l.caFiles(name)
	return errors.Join(os.WriteFile(cert, ca.CertPEM, 0o600), os.WriteFile(key, ca.KeyPEM, 0o600))
}

// Clear deletes all requests, and returns once the API server's watchers have seen that, so that rounds do not mix.
func (l *Lab) Clear(ctx context.Context) error {
	if err := l.Cluster.Erase(ctx, requestsKey); err != nil {
		return fmt.Errorf("delete requests: %w", err)
	}
	marker := l.request(user{}, "example.com/marker", nil)
	marker.obj.Spec.Request = foreignPayload()
	requests := l.Admin.CertificatesV1().CertificateSigningRequests()
	if _, err := requests.Create(ctx, marker.obj, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the marker: %w", err)
	}
	if err := requests.Delete(ctx, marker.obj.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete the marker: %w", err)
	}
	if _, err := l.wait(ctx, deleted, []string{marker.obj.Name}); err != nil {
		return err
	}
	l.tracker.forget()
	return nil
}

// wait waits until all named requests have reached what, or until a subject ends by itself.
func (l *Lab) wait(ctx context.Context, what milestone, names []string) (map[string]time.Time, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.failed, func() { cancel(context.Cause(l.failed)) })()
	return l.tracker.wait(ctx, what, names)
}

// prefix returns a prefix of names that no earlier request has.
func (l *Lab) prefix() string {
	l.names++
	return fmt.Sprintf("bench%d", l.names)
}

// request returns a request of u with a unique name, and without a payload if there is none.
func (l *Lab) request(u user, signer string, payload []byte) Request {
	return newRequest(l.prefix(), u, signer, payload, certificatesv1.UsageClientAuth)
}
