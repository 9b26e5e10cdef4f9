package reliability

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
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

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/clock"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// world is a control plane of its own, a program that works on its requests, and the proxy between the two.
type world struct {
	*cluster.Cluster
	scenario
	t      *testing.T
	theirs bool // the program is kube-controller-manager

	admin   kubernetes.Interface // past the proxy
	proxy   *faults.Proxy
	history *history
	roots   []*x509.Certificate // the CAs that may have issued a certificate

	mu       sync.Mutex
	replicas []*replica // also those that have ended

	audit   string   // the path of the audit log of each replica, without its number, in a folder of its own
	late    []*item  // made after the disk of the audit log works again
	binary  string   // the program of ours, if it is another version
	service *service // that the program or the API server asks, if the scenario has one
	keys    [][]byte // that the signing Secret held besides the first CA's, in PEM

	items   []*item                      // the load
	serials map[string]string            // the requests by the issuer and serial number of their certificates
	stored  map[string]*x509.Certificate // by fingerprint
	ahead   time.Duration                // how far the clocks of the API server and of the program are ahead of the test's at the start
	ends    []time.Time                  // when each fault ended

	nodes map[string]*corev1.Node
	twins []*item // of the random requests
	seed  uint64  // of the order of the load, and of random requests and faults
}

// The users of the programs. Their tokens have no times, so they are valid whatever the API server's clock shows.
var (
	ourAccount   = accountToken(kit.SystemNamespace, kit.ManagerAccount)
	theirAccount = accountToken(metav1.NamespaceSystem, theirAccountName)
)

func accountToken(namespace, name string) cluster.Token {
	user := serviceaccount.MakeUsername(namespace, name)
	return cluster.Token{Token: user, User: user, UID: user, Groups: strings.Join(serviceaccount.MakeGroupNames(namespace), ",")}
}

// callTimeout ends a call, so that one through a stopped API server does not hang. It would also end a watch.
const callTimeout = 30 * time.Second

// newWorld starts a control plane with the shipped roles, and the proxy. No program runs yet.
func newWorld(t *testing.T, s scenario, theirs bool) *world {
	seed := kit.Must(randomSeed())(t)
	t.Logf("repeat it with RELIABILITY_SEED=%d", seed)
	kit.Alone(t)
	started := kit.Must(cluster.Start(ourAccount, theirAccount))(t)
	plane := kit.Must(kit.NewPlane(started))(t)
	kit.AtEnd(t, plane.Stop)
	plane.Use(t)
	w := &world{
		Cluster: started, scenario: s, t: t, theirs: theirs, seed: seed, roots: []*x509.Certificate{kit.Certificate(t, started.CA)},
		serials: map[string]string{}, stored: map[string]*x509.Certificate{}, nodes: map[string]*corev1.Node{},
	}
	w.admin = w.as(rest.ImpersonationConfig{})
	w.audit = filepath.Join(started.Dir, "audit", "log")
	kit.NoError(t, os.Mkdir(filepath.Dir(w.audit), 0o700))
	kit.CreateMissing(t, kit.Admin(t), slices.Concat(kit.Rendered(t, "rbac"), kit.Rendered(t, "kubelet-serving")))
	kit.GrantGroup(t, "strangers", kit.MayCreate)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayCreate)
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayJoin)
	w.putCA(started.CA.CertPEM, started.CA.KeyPEM)
	w.proxy = kit.Must(faults.Start(w.identity(), seed))(t)
	kit.AtEnd(t, w.proxy.Stop)
	w.history = w.watch()
	kit.NewNode(t, "victim", victimAddress)
	return w
}

func (w *world) as(user rest.ImpersonationConfig) kubernetes.Interface {
	cfg := rest.CopyConfig(w.Config)
	cfg.Impersonate, cfg.Timeout = user, callTimeout
	return kubernetes.NewForConfigOrDie(cfg)
}

// identity returns the configuration of the program, with a token of its ServiceAccount. kube-controller-manager runs its three loops with
// that ServiceAccount if it has --use-service-account-credentials. The API server has bound its ClusterRole. Here the whole process uses
// it, so it needs the Lease, too.
func (w *world) identity() *rest.Config {
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

// node returns the Node of that name. It always reports the same address.
func (w *world) node(name string) *corev1.Node {
	if w.nodes[name] == nil {
		address := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: net.IPv4(198, 51, 100, byte(len(w.nodes)+1)).String()}
		w.nodes[name] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{address}},
		}
	}
	return w.nodes[name]
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

type past struct {
	last    *request // also after its deletion
	deleted bool
	created time.Time
	settled time.Time // when it reached the state that it has now
	wrong   []error   // states in which it must never have been
}

// state returns its state, or the last one before its deletion.
func (p past) state() csr.State {
	if p.last == nil {
		return ""
	}
	return csr.StateOf(p.last)
}

func (w *world) watch() *history {
	h := &history{requests: map[string]*past{}}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(w.Config), 0)
	informer := factory.Certificates().V1().CertificateSigningRequests().Informer()
	kit.Must(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { h.saw(obj.(*request)) },
		UpdateFunc: func(_, obj any) { h.saw(obj.(*request)) },
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				h.gone(name)
			}
		},
	}))(w.t)
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.StartWithContext(ctx)
	kit.Require(w.t, cache.WaitForCacheSync(ctx.Done(), informer.HasSynced), "the requests can't be watched")
	return h
}

func (h *history) saw(obj *request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = time.Now()
	known := h.requests[obj.Name]
	if known == nil {
		known = &past{created: h.changed}
		h.requests[obj.Name] = known
	}
	if before := known.last; before != nil && before.UID == obj.UID && len(before.Status.Certificate) > 0 &&
		!bytes.Equal(before.Status.Certificate, obj.Status.Certificate) {
		known.wrong = append(known.wrong, errors.New("its certificate was replaced"))
	}
	approved := csr.Condition(obj, certificatesv1.CertificateApproved) != nil
	if len(obj.Status.Certificate) > 0 && (!approved || len(obj.Status.Conditions) > 1 || obj.Spec.SignerName == foreignSigner) {
		known.wrong = append(known.wrong, fmt.Errorf("it has a certificate, the signer %s and the conditions %v",
			obj.Spec.SignerName, obj.Status.Conditions))
	}
	if now := csr.StateOf(obj); now != known.state() {
		known.settled = h.changed
	}
	known.last = obj
}

func (h *history) gone(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.requests[name]; known != nil {
		known.deleted, known.settled = true, time.Now()
	}
}

func (h *history) quietFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.changed)
}

// of returns a copy of the history of a request.
func (h *history) of(name string) past {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *cmp.Or(h.requests[name], &past{})
}

func (h *history) present() (found []*request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, past := range h.requests {
		if !past.deleted {
			found = append(found, past.last)
		}
	}
	return found
}

// check fails the test of ours unless ok. For kube-controller-manager the scenarios are a comparison, so it only logs.
func (w *world) check(ok bool, format string, values ...any) {
	w.t.Helper()
	switch {
	case ok:
	case w.theirs:
		w.t.Logf(format, values...)
	default:
		w.t.Errorf(format, values...)
	}
}

// poll calls done until it returns true, and reports whether it did so in time.
func (w *world) poll(most time.Duration, done func(context.Context) bool) bool {
	return wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, most, true, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	}) == nil
}

// until is poll, and fails the test of ours if done does not return true.
func (w *world) until(most time.Duration, what string, done func(context.Context) bool) {
	w.t.Helper()
	w.check(w.poll(most, done), "not within %s: %s", most, what)
}

// pause waits, or fails the test when it ends.
func (w *world) pause(d time.Duration) {
	w.t.Helper()
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
		w.t.Fatal("the test has ended")
	}
}

func (w *world) over() { w.ends = append(w.ends, time.Now()) }

// replica is a running process of the program. When it is killed, a successor takes its place in the world.
type replica struct {
	*cluster.Process
	program string // its path
	number  int
	// The addresses and the audit log are those of ours only.
	probes, metrics, audit string
	idle                   float64 // its goroutines before the fault
	killed                 bool    // its end is no fault
}

func (w *world) startReplica(elect bool) *replica {
	if w.theirs {
		return w.startTheirs(elect, w.proxy.Config)
	}
	r := &replica{probes: kit.FreeAddress(w.t), metrics: kit.FreeAddress(w.t), audit: fmt.Sprint(w.audit, len(w.replicas))}
	r.program = cmp.Or(w.binary, kit.Must(cluster.Manager())(w.t))
	cfg := rest.CopyConfig(w.proxy.Config)
	cfg.CAData = slices.Concat(cfg.CAData, w.Config.CAData) // a rotation also asks the API server itself
	return w.start(r, "ours", cfg, elect, slices.Concat(kit.StandardArgs, []string{
		kit.Configure(w.t, cmp.Or(w.config, "approval: {kubeletServing: {enabled: true}}\n")),
		"--audit-log-path", r.audit, "--health-probe-bind-address", r.probes, "--metrics-bind-address", r.metrics,
	}, w.args)...)
}

// theirAccountName is the ServiceAccount of kube-controller-manager's three loops, and theirRole has its rights. theirCert and theirKey are the
// files of the CA.
const (
	theirAccountName    = "certificate-controller"
	theirRole           = "system:controller:certificate-controller"
	theirCert, theirKey = "theirs.crt", "theirs.key"
)

func (w *world) writeTheirCA(cert, key []byte) error {
	return errors.Join(os.WriteFile(filepath.Join(w.Dir, theirCert), cert, 0o600), os.WriteFile(filepath.Join(w.Dir, theirKey), key, 0o600))
}

func (w *world) startTheirs(elect bool, cfg *rest.Config) *replica {
	return w.start(&replica{program: os.Getenv("KUBE_CONTROLLER_MANAGER")}, "theirs", cfg, elect,
		"--controllers=csrapproving,csrsigning,csrcleaner", "--secure-port=0", "--kube-api-qps=10000", "--kube-api-burst=10000",
		"--cluster-signing-cert-file="+filepath.Join(w.Dir, theirCert), "--cluster-signing-key-file="+filepath.Join(w.Dir, theirKey))
}

// start starts r, adds it to w, and ends it with the test. In scenarios with several replicas a leader is killed or paused every few
// seconds, and must have a successor, so its Lease ends within four seconds. Both programs have these flags.
func (w *world) start(r *replica, name string, cfg *rest.Config, elect bool, args ...string) *replica {
	kubeconfig := kit.Must(w.WriteKubeconfig(name, cfg))(w.t)
	line := slices.Concat(w.environment, []string{r.program, "--kubeconfig", kubeconfig, fmt.Sprint("--leader-elect=", elect)}, args)
	if w.scenario.replicas > 1 {
		line = append(line, "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms")
	}
	r.Process = kit.Must(w.StartProcess(name, "env", line...))(w.t)
	w.t.Cleanup(func() {
		r.Kill()
		if w.t.Failed() {
			w.t.Logf("the end of the log of replica %d:\n%s", r.number, r.Tail(100))
		}
	})
	w.mu.Lock()
	r.number, w.replicas = len(w.replicas), append(w.replicas, r)
	w.mu.Unlock()
	if w.ahead != 0 {
		w.shiftClock(r, w.ahead)
	}
	return r
}

// shiftClock shifts the clock of r. The kernel gives a process a new clock when it executes another program, so shiftClock waits until
// env has executed the program.
func (w *world) shiftClock(r *replica, by time.Duration) {
	w.t.Helper()
	if !w.poll(5*time.Second, func(context.Context) bool {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.Pid()))
		return err == nil && filepath.Base(name) == filepath.Base(r.program)
	}) {
		w.t.Fatalf("%s does not start", r.program)
	}
	kit.NoError(w.t, clock.Shift(r.Pid(), by))
}

func (w *world) running() (all []*replica) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.replicas {
		if r.Ended() == nil && r.probes != "" {
			all = append(all, r)
		}
	}
	return all
}

// oldest returns the replica that has run longest. It leads, unless it is paused.
func (w *world) oldest() *replica {
	for _, r := range w.replicas {
		if r.Ended() == nil {
			return r
		}
	}
	w.t.Fatal("no replica runs")
	return nil
}

func (r *replica) kill() {
	r.killed = true
	r.Kill()
}

// page returns the status and the text of a page of r, or 0 if it does not answer.
func (r *replica) page(ctx context.Context, address, path string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return cluster.Get(ctx, address, path)
}

func (r *replica) ready(ctx context.Context) bool {
	status, _ := r.page(ctx, r.probes, "/readyz")
	return status == 200
}

// metric returns the sum of all series of a metric whose text begins with name, or -1 if it can't be read.
func (r *replica) metric(ctx context.Context, name string) float64 {
	status, page := r.page(ctx, r.metrics, "/metrics")
	if value, found := sum(page, name); found && status == 200 {
		return value
	}
	return -1
}
