package reliability

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

const signingSecret = "csr-signer"

// world is a control plane of its own, a program that works on its requests, and the proxy between the two.
type world struct {
	*cluster.Cluster
	t      *testing.T
	theirs bool // the program is kube-controller-manager

	admin   kubernetes.Interface // past the proxy
	proxy   *faults.Proxy
	history *history
	roots   []*csrenv.CA // the CAs that may have issued a certificate

	mu       sync.Mutex
	replicas []*replica // also those that have ended

	audit       string  // the path of the audit log of each replica, without its number, in a folder of its own
	late        []*item // made after the disk of the audit log works again
	config      string  // the configuration of ours, in YAML
	binary      string  // the program of ours, if it is another version
	args        []string
	environment []string
	shortLease  bool     // leaders change every few seconds
	restarts    bool     // replicas that end by themselves are started again
	service     *service // that the program or the API server asks, if the scenario has one
	keys        [][]byte // that the signing Secret held besides the first CA's, in PEM

	items  []*item       // the load
	oldAge time.Duration // how long ago old requests were denied
	ahead  time.Duration // how far the clocks of the API server and of the program are ahead of the test's at the start
	ends   []time.Time   // when each fault ended

	nodes int
	twins []*item // of the random requests
	seed  uint64  // of the order of the load, and of random requests and faults
}

// The users of the programs. Their tokens have no times, so they are valid whatever the API server's clock shows.
var (
	ourAccount   = accountToken(kit.SystemNamespace, kit.ManagerAccount)
	theirAccount = accountToken(metav1.NamespaceSystem, theirAccountName)
)

// accountToken returns a token of a ServiceAccount.
func accountToken(namespace, name string) cluster.Token {
	user := serviceaccount.MakeUsername(namespace, name)
	return cluster.Token{Token: user, User: user, UID: user, Groups: strings.Join(serviceaccount.MakeGroupNames(namespace), ",")}
}

// newWorld starts a control plane with the shipped roles, and the proxy. No program runs yet.
func newWorld(t *testing.T, theirs bool) *world {
	t.Helper()
	seed, err := randomSeed()
	if err != nil {
		t.Fatalf("RELIABILITY_SEED: %v", err)
	}
	t.Logf("repeat it with RELIABILITY_SEED=%d", seed)
	kit.Alone(t)
	started, err := cluster.Start(ourAccount, theirAccount)
	if err != nil {
		t.Fatal(err)
	}
	plane, err := kit.NewPlane(started)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	plane.Use(t)
	w := &world{Cluster: started, t: t, theirs: theirs, seed: seed, roots: []*csrenv.CA{started.CA}}
	w.admin = clientOf(t, started.Config, callTimeout)
	w.audit = filepath.Join(started.Dir, "audit", "log")
	if err := os.Mkdir(filepath.Dir(w.audit), 0o700); err != nil {
		t.Fatal(err)
	}
	kit.CreateMissing(t, kit.Admin(t), slices.Concat(kit.Rendered(t, "rbac"), kit.Rendered(t, "kubelet-serving")))
	for group, role := range map[string]string{"strangers": kit.MayCreate, csr.NodeGroup: kit.MayRenewOwn} {
		kit.GrantGroup(t, group, role)
	}
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayCreate)
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayJoin)
	w.putCA(started.CA.CertPEM, started.CA.KeyPEM)
	if w.proxy, err = faults.Start(w.identity(), seed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.history = w.watch()
	victim := w.newNode("victim")
	victim.Status.Addresses[0].Address = victimAddress
	if err := w.addNode(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	return w
}

// callTimeout ends a call, so that one through a stopped API server does not hang. It would also end a watch.
const callTimeout = 30 * time.Second

func clientOf(t *testing.T, cfg *rest.Config, timeout time.Duration) kubernetes.Interface {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = timeout
	made, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// as returns a client of a user, past the proxy.
func (w *world) as(user rest.ImpersonationConfig) kubernetes.Interface {
	w.t.Helper()
	cfg := rest.CopyConfig(w.Config)
	cfg.Impersonate = user
	return clientOf(w.t, cfg, callTimeout)
}

// identity returns the configuration of the program, with a token of its ServiceAccount. kube-controller-manager runs its three loops with
// that ServiceAccount if it has --use-service-account-credentials. The API server has bound its ClusterRole. Here the whole process uses
// it, so it needs the Lease, too.
func (w *world) identity() *rest.Config {
	w.t.Helper()
	if !w.theirs {
		return kit.WithToken(w.t, ourAccount.Token)
	}
	kit.Create(w.t, kit.Admin(w.t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: theirAccountName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "system::leader-locking-kube-controller-manager"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: theirAccountName}},
	})
	return kit.WithToken(w.t, theirAccount.Token)
}

// putSecret stores the Secret of the signing CA, whatever it held before.
func (w *world) putSecret(cert, key []byte) {
	w.t.Helper()
	secrets := w.admin.CoreV1().Secrets(kit.SystemNamespace)
	err := retry(w.t.Context(), func() error {
		obj := kit.SigningSecret(cert, key)
		if _, err := secrets.Update(w.t.Context(), obj, metav1.UpdateOptions{}); err == nil {
			return nil
		}
		_, err := secrets.Create(w.t.Context(), obj, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// newNode returns a Node that reports an address of its own.
func (w *world) newNode(name string) *corev1.Node {
	w.nodes++
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{
			Type: corev1.NodeInternalIP, Address: net.IPv4(198, 51, 100, byte(w.nodes)).String(),
		}}},
	}
}

// addNode creates a Node with its status, unless it exists.
func (w *world) addNode(ctx context.Context, node *corev1.Node) error {
	nodes := w.admin.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	stored, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	stored.Status.Addresses = node.Status.Addresses
	_, err = nodes.UpdateStatus(ctx, stored, metav1.UpdateOptions{})
	return err
}

// history holds each request by name, as a watch past the proxy has shown it.
type history struct {
	mu       sync.Mutex
	requests map[string]*past
	changed  time.Time // when the last event came
}

// quietFor returns how long nothing has changed.
func (h *history) quietFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.changed)
}

// past is the history of one request.
type past struct {
	last    *request // nil after its deletion
	seen    *request // as it was before its deletion
	created time.Time
	// settled is when it reached the state that it has now.
	settled time.Time
	state   string
	deleted bool
	before  string // the state before the deletion
	// wrong are states in which it must never have been.
	wrong []string
}

func (w *world) watch() *history {
	w.t.Helper()
	h := &history{requests: map[string]*past{}}
	factory := informers.NewSharedInformerFactory(clientOf(w.t, w.Config, 0), 0)
	informer := factory.Certificates().V1().CertificateSigningRequests().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { h.saw(obj.(*request)) },
		UpdateFunc: func(_, obj any) { h.saw(obj.(*request)) },
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				h.gone(name)
			}
		},
	}); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		w.t.Fatal("the requests can't be watched")
	}
	return h
}

func (h *history) saw(obj *request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = time.Now()
	known := h.requests[obj.Name]
	if known == nil {
		known = &past{created: time.Now()}
		h.requests[obj.Name] = known
	}
	if known.last != nil && known.last.UID == obj.UID {
		if before := known.last.Status.Certificate; len(before) > 0 && !bytes.Equal(before, obj.Status.Certificate) {
			known.wrong = append(known.wrong, "its certificate was replaced")
		}
	}
	approved, refused := false, false
	for _, condition := range obj.Status.Conditions {
		approved = approved || condition.Type == certificatesv1.CertificateApproved
		refused = refused || condition.Type != certificatesv1.CertificateApproved
	}
	if len(obj.Status.Certificate) > 0 && (!approved || refused || obj.Spec.SignerName == foreignSigner) {
		known.wrong = append(known.wrong, fmt.Sprintf("it has a certificate, the signer %s and the conditions %v",
			obj.Spec.SignerName, obj.Status.Conditions))
	}
	known.last = obj
	if now := stateOf(obj); now != known.state {
		known.state, known.settled = now, time.Now()
	}
}

func (h *history) gone(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.requests[name]; known != nil {
		known.last, known.seen = nil, known.last
		known.deleted, known.before, known.state, known.settled = true, known.state, "gone", time.Now()
	}
}

// of returns a copy of the history of a request.
func (h *history) of(name string) past {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.requests[name]; known != nil {
		return *known
	}
	return past{}
}

// wrong fails the test of ours. For kube-controller-manager the scenarios are a comparison, so it only logs.
func (w *world) wrong(format string, values ...any) {
	w.t.Helper()
	if w.theirs {
		w.t.Logf(format, values...)
	} else {
		w.t.Errorf(format, values...)
	}
}

// over records that a fault has ended.
func (w *world) over() { w.ends = append(w.ends, time.Now()) }

// overWhenAnswered calls over when the API server answers again, and closes the channel.
func (w *world) overWhenAnswered() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			return w.admin.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error() == nil, nil
		})
		if err != nil {
			w.t.Errorf("the API server does not answer again: %v", err)
			return
		}
		w.over()
	}()
	return done
}

// pause waits, or fails the test when it ends.
func (w *world) pause(d time.Duration) {
	w.t.Helper()
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
		w.t.Fatal(errors.New("the test has ended"))
	}
}
