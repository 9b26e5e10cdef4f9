// Package kit holds what the tests on a real control plane share: a control plane, users with given rights, kubelets,
// managers, requests and what they become, Events, records and metrics. test/README.md shows how to use it.
package kit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
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
	// clean says what the control plane held before its first test.
	clean *state
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

// Main runs the tests of a package, at most parallel at a time, and ends the control planes. Call it from TestMain. Most
// tests wait most of the time, so parallel may exceed the number of processors. Each control plane has the
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
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
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
func Alone(t *testing.T) {
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
		started, err := start()
		NoError(t, err)
		mine.has = started
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
	own, err := cluster.StartConfigured(first)
	NoError(t, err)
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	if caPEM != nil {
		NoError(t, own.RestartAPIServer(func(args *envtest.Arguments) { configure(own.Dir, args) }))
		own.Config = rest.CopyConfig(own.Config)
		own.Config.CAData = caPEM
	}
	p, err := NewPlane(own)
	NoError(t, err)
	p.Use(t)
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
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	version, err := server.ServerVersion()
	if err != nil {
		return err
	}
	if version.GitVersion != "v"+want {
		return fmt.Errorf("the control plane is %s, want v%s", version.GitVersion, want)
	}
	return nil
}
