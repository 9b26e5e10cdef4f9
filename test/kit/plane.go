// Package kit holds what the tests on a real control plane share: a control plane, users with given rights, kubelets,
// managers, requests and what they become, Events, records and metrics. test/README.md shows how to use it.
package kit

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// mostPlanes bounds the control planes of one test program.
const mostPlanes = 16

// SystemNamespace is the namespace of the manager. Each control plane has it.
const SystemNamespace = "csr-controller-manager-system"

// Bootstrapper is a user in the group system:bootstrappers. Its token is BootstrapperToken.
const (
	Bootstrapper      = "kubelet-bootstrap"
	BootstrapperTeam  = "system:bootstrappers"
	BootstrapperToken = "02b50b05283e98dd0fd71db496ef01e8" // the TLS bootstrapping document's
)

// Plane is a control plane that one test at a time uses alone, and its administrator.
type Plane struct {
	*cluster.Cluster
	Admin client.WithWatch
	// clean holds the objects of the control plane before its first test, and clientCAs the API server's client CA file. They
	// may not change between two tests.
	clean     map[types.UID]cluster.Object
	clientCAs []byte
	// last is the test that used it last.
	last string
}

var (
	// idle holds the started control planes that no test uses.
	idle = make(chan *Plane, mostPlanes)
	// turns maps the name of a test to its *turn.
	turns sync.Map
	// definitions are the folders of CustomResourceDefinitions that each control plane has.
	definitions []string
)

// Scheme has the kinds of Kubernetes and of this project.
var Scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(Scheme))
	utilruntime.Must(v1alpha1.AddToScheme(Scheme))
}

// Main runs the tests of a package in random order, at most parallel at a time, and ends the control planes. Call it from
// TestMain. Most tests wait most of the time, so parallel may exceed the number of processors. Each control plane has the
// CustomResourceDefinitions in the folders crds.
func Main(m *testing.M, parallel int, crds ...string) {
	definitions = crds
	code, err := run(m, min(parallel, mostPlanes))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, parallel int) (code int, err error) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // client-go's, which would hide what a failed test says
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	// -shuffle of the command line overrides the random order, whose seed a failed run prints.
	err = errors.Join(flag.Set("test.shuffle", "on"), flag.CommandLine.Parse(os.Args[1:]), flag.Set("test.parallel", strconv.Itoa(parallel)))
	if err != nil {
		return 1, err
	}
	code = m.Run()
	close(idle)
	for each := range idle {
		err = errors.Join(err, each.Stop())
	}
	return code, err
}

// turn is a test's use of a control plane.
type turn struct {
	mu  sync.Mutex
	has *Plane // nil before the first use
}

// Parallel runs the test, or the part of a test, concurrently with others, on a control plane that it uses alone.
func Parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	Alone(t)
}

// Alone is Parallel for tests that use state of the whole process, such as metrics, and for tests that measure time.
func Alone(t testing.TB) {
	t.Helper()
	mine := &turn{}
	turns.Store(t.Name(), mine)
	t.Cleanup(func() {
		turns.Delete(t.Name())
		if mine.has == nil {
			return
		}
		mine.has.last = t.Name()
		if err := mine.has.reset(context.Background()); err != nil {
			t.Errorf("the control plane cannot be used again: %v", errors.Join(err, mine.has.Stop()))
			return
		}
		idle <- mine.has
	})
}

// turnOf returns the turn of the test that t is, or is a part of.
func turnOf(t testing.TB) *turn {
	t.Helper()
	for name := t.Name(); ; {
		if mine, ok := turns.Load(name); ok {
			return mine.(*turn)
		}
		end := strings.LastIndex(name, "/")
		if end < 0 {
			t.Fatal("the test has called neither Parallel nor Alone")
		}
		name = name[:end]
	}
}

// PlaneOf returns the control plane of the test. If no idle one exists, it starts one.
func PlaneOf(t testing.TB) *Plane {
	t.Helper()
	mine := turnOf(t)
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if mine.has != nil {
		return mine.has
	}
	select {
	case mine.has = <-idle:
		if left, err := mine.has.left(t.Context()); err != nil || len(left) > 0 {
			t.Fatalf("%s left %q, error %v", mine.has.last, left, err)
		}
	default:
		mine.has = Must(start())(t)
	}
	return mine.has
}

// Use assigns p to the test, until t ends.
func (p *Plane) Use(t *testing.T) {
	t.Helper()
	mine := turnOf(t)
	mine.mu.Lock()
	defer mine.mu.Unlock()
	before := mine.has
	mine.has = p
	t.Cleanup(func() {
		mine.mu.Lock()
		defer mine.mu.Unlock()
		mine.has = before
	})
}

// start starts a control plane with the namespace of the manager. Tests install the rest.
func start() (*Plane, error) {
	started, err := cluster.Start(
		cluster.Token{Token: "joiner-token", User: "joiner", UID: "j-1", Groups: "joiners"},
		cluster.Token{Token: "stranger-token", User: "stranger", UID: "s-1", Groups: "strangers"},
		cluster.Token{Token: BootstrapperToken, User: Bootstrapper, UID: "10001", Groups: BootstrapperTeam},
	)
	if err != nil {
		return nil, err
	}
	p, err := NewPlane(started)
	if err == nil {
		err = rightVersion(started.Config)
	}
	if err == nil {
		err = p.Admin.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: SystemNamespace}})
	}
	if err == nil && len(definitions) > 0 {
		_, err = envtest.InstallCRDs(started.Config, envtest.CRDInstallOptions{Paths: definitions, ErrorIfPathMissing: true})
	}
	if err == nil {
		err = p.remember(context.Background())
	}
	if err != nil {
		return nil, errors.Join(err, started.Stop())
	}
	return p, nil
}

// NewPlane returns a Plane on c, which Use assigns to a test.
func NewPlane(c *cluster.Cluster) (*Plane, error) {
	admin, err := client.NewWithWatch(c.Config, client.Options{Scheme: Scheme})
	if err != nil {
		return nil, err
	}
	return &Plane{Cluster: c, Admin: admin}, nil
}

// WithAPIServer runs a test on a separate control plane. configure changes the flags of its API server, with files in
// a folder. caPEM, if set, is then the CA of its certificate.
func WithAPIServer(t *testing.T, caPEM []byte, configure func(dir string, args *envtest.Arguments)) {
	t.Helper()
	first := configure
	if caPEM != nil { // the start waits for a certificate of its own CA
		first = func(string, *envtest.Arguments) {}
	}
	own := Must(cluster.StartConfigured(first))(t)
	AtEnd(t, own.Stop)
	if caPEM != nil {
		NoError(t, own.RestartAPIServer(func(args *envtest.Arguments) { configure(own.Dir, args) }))
		own.Config = rest.CopyConfig(own.Config)
		own.Config.CAData = caPEM
	}
	Must(NewPlane(own))(t).Use(t)
	Eventually(t, "the API server answers", func(ctx context.Context) error {
		return Admin(t).Get(ctx, client.ObjectKey{Name: "default"}, &corev1.Namespace{})
	})
}

// ControlPlane returns the control plane of the test.
func ControlPlane(t testing.TB) *cluster.Cluster {
	t.Helper()
	return PlaneOf(t).Cluster
}

// Admin returns a client of the administrator of the test's control plane.
func Admin(t testing.TB) client.WithWatch {
	t.Helper()
	return PlaneOf(t).Admin
}

// rightVersion returns an error if K8S_VERSION is set and the control plane has another version.
func rightVersion(config *rest.Config) error {
	want := os.Getenv("K8S_VERSION")
	if want == "" {
		return nil
	}
	version, err := kubernetes.NewForConfigOrDie(config).ServerVersion()
	if err != nil {
		return err
	}
	return OrError(version.GitVersion == "v"+want, "the control plane is %s, want v%s", version.GitVersion, want)
}

// BundlesByDefault returns the version of ClusterTrustBundle that the API server serves by default: v1 since Kubernetes
// 1.37.
func BundlesByDefault(t testing.TB) string {
	t.Helper()
	server := Must(kubernetes.NewForConfigOrDie(ControlPlane(t).Config).ServerVersion())(t)
	if Must(strconv.Atoi(strings.TrimRight(server.Minor, "+")))(t) < 37 {
		return ""
	}
	return "v1"
}

// many are the kinds of which a test may leave many, and a clean control plane has none.
var many = sets.New("certificatesigningrequests", "events", "leases", "nodes")

// isCRD reports whether o defines a kind.
func isCRD(o cluster.Object) bool { return o.Kind.Resource == "customresourcedefinitions" }

// ofTheAPIServer reports whether the API server may write o at any time, on its own, or shows it only. Events are those of
// events.k8s.io.
func ofTheAPIServer(o cluster.Object) bool {
	switch o.Kind.Resource {
	case "namespaces":
		return strings.HasPrefix(o.Name, "kube-")
	case "leases":
		return o.Namespace == metav1.NamespaceSystem
	case "services", "endpoints", "endpointslices":
		return o.Name == "kubernetes"
	case "configmaps":
		return o.Name == "kube-root-ca.crt" || o.Name == "extension-apiserver-authentication"
	case "apiservices":
		return o.Labels["kube-aggregator.kubernetes.io/automanaged"] != ""
	case "events":
		return o.Kind.Group == ""
	case "servicecidrs", "ipaddresses", "flowschemas", "prioritylevelconfigurations", "componentstatuses":
		return true
	}
	return false
}

// objects returns all objects, except those of the API server.
func (p *Plane) objects(ctx context.Context) (map[types.UID]cluster.Object, error) {
	all, err := cluster.List(ctx, p.Config, func(err error) bool { // what serves the kind has ended, or is being deleted
		return discovery.IsGroupDiscoveryFailedError(err) || apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err)
	})
	found := map[types.UID]cluster.Object{}
	for _, obj := range all {
		if !ofTheAPIServer(obj) {
			found[obj.UID] = obj
		}
	}
	return found, err
}

// remember makes what the control plane holds now its clean state.
func (p *Plane) remember(ctx context.Context) (err error) {
	if p.clean, err = p.objects(ctx); err != nil {
		return err
	}
	p.clientCAs, err = os.ReadFile(p.ClientCAFile())
	return err
}

// left returns what the control plane holds and does not hold when it is clean. It returns an error if something is missing.
func (p *Plane) left(ctx context.Context) (left []cluster.Object, err error) {
	now, err := p.objects(ctx)
	if err != nil {
		return nil, err
	}
	for uid, obj := range p.clean {
		if _, there := now[uid]; !there && obj.Kind.Resource != "events" { // a slow API server writes some at its start
			return nil, fmt.Errorf("%s is missing", obj)
		}
	}
	for uid, obj := range now {
		if _, stays := p.clean[uid]; !stays {
			left = append(left, obj)
		}
	}
	return left, nil
}

// reset deletes what a test has left, and takes back what it has changed in the API server's client CA file.
func (p *Plane) reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	deleter, err := metadata.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(p.ClientCAFile())
	if err != nil {
		return err
	}
	if !bytes.Equal(now, p.clientCAs) {
		if err := p.TrustClients(p.clientCAs); err != nil {
			return err
		}
	}
	var left []cluster.Object
	err = wait.PollUntilContextCancel(ctx, 300*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		left, err = p.left(ctx)
		return len(left) == 0, errors.Join(err, p.remove(ctx, deleter, left))
	})
	if err != nil {
		return fmt.Errorf("%w; left: %v", err, left)
	}
	return nil
}

// remove deletes objects, and takes away their finalizers, which no controller here serves. It deletes a
// CustomResourceDefinition only if nothing else is left: the API server may keep an object of a kind that goes, and show
// it when the kind comes back.
func (p *Plane) remove(ctx context.Context, deleter metadata.Interface, left []cluster.Object) error {
	if others := slices.DeleteFunc(slices.Clone(left), isCRD); len(others) > 0 {
		left = others
	}
	emptied := sets.New[string]()
	for _, obj := range left {
		objects, at := deleter.Resource(obj.Kind).Namespace(obj.Namespace), obj.Kind.String()+" "+obj.Namespace
		var err error
		switch {
		case obj.Kind.Resource == "namespaces":
			err = p.removeNamespace(ctx, obj.Name)
		case len(obj.Finalizers) > 0 && !isCRD(obj): // the finalizer of a CustomResourceDefinition is the API server's
			_, err = objects.Patch(ctx, obj.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		case !many.Has(obj.Kind.Resource):
			err = objects.Delete(ctx, obj.Name, metav1.DeleteOptions{})
		case !emptied.Has(at):
			emptied.Insert(at)
			err = objects.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", obj, err)
		}
	}
	return nil
}

// removeNamespace does what the namespace controller does once a namespace is empty.
func (p *Plane) removeNamespace(ctx context.Context, name string) error {
	namespaces := kubernetes.NewForConfigOrDie(p.Config).CoreV1().Namespaces()
	err := namespaces.Delete(ctx, name, metav1.DeleteOptions{})
	if err == nil {
		_, err = namespaces.Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // on a conflict the next round tries again
		return nil
	}
	return err
}
