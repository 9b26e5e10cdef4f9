// Package integration runs the controllers on a real etcd and kube-apiserver.
package integration

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
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// parallelTests is the number of concurrent tests. Most of them wait most of the time, so it exceeds the number of
// processors.
const parallelTests = 4

// plane is a control plane that one test at a time uses alone, and its administrator.
type plane struct {
	*cluster.Cluster
	admin client.WithWatch
}

var (
	// idle holds the started control planes that no test uses.
	idle = make(chan *plane, parallelTests)
	// turns maps the name of a test to its *turn.
	turns sync.Map
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // client-go's, which would hide what a failed test says
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(parallelTests)); err != nil {
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
	has *plane // nil before the first use
}

// parallel runs the test concurrently with others, on a control plane that it uses alone.
func parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	unshared(t)
}

// unshared is parallel for tests that use state of the whole process, such as metrics, and for tests that measure
// time.
func unshared(t *testing.T) {
	t.Helper()
	mine := &turn{}
	turns.Store(t.Name(), mine)
	t.Cleanup(func() {
		turns.Delete(t.Name())
		if mine.has != nil {
			idle <- mine.has
		}
	})
}

// turnOf returns the turn of the test that t is, or is a part of.
func turnOf(t testing.TB) *turn {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	mine, ok := turns.Load(name)
	if !ok {
		t.Fatal("the test has called neither parallel nor unshared")
	}
	return mine.(*turn)
}

// planeOf returns the control plane of the test. If no idle one exists, it starts one.
func planeOf(t testing.TB) *plane {
	t.Helper()
	mine := turnOf(t)
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if mine.has != nil {
		return mine.has
	}
	select {
	case mine.has = <-idle:
	default:
		started, err := startPlane()
		if err != nil {
			t.Fatal(err)
		}
		mine.has = started
	}
	return mine.has
}

// use assigns p to the test, until t ends.
func (p *plane) use(t *testing.T) {
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

// startPlane starts a control plane with the namespace of the manager. Tests install the rest.
func startPlane() (*plane, error) {
	started, err := cluster.Start(
		cluster.Token{Token: "joiner-token", User: "joiner", UID: "j-1", Groups: "joiners"},
		cluster.Token{Token: "stranger-token", User: "stranger", UID: "s-1", Groups: "strangers"},
	)
	if err != nil {
		return nil, err
	}
	admin, err := client.NewWithWatch(started.Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err := errors.Join(err, rightVersion(started.Config)); err != nil {
		return nil, errors.Join(err, started.Stop())
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}
	if err := admin.Create(context.Background(), namespace); err != nil {
		return nil, errors.Join(err, started.Stop())
	}
	return &plane{started, admin}, nil
}

// controlPlane returns the control plane of the test.
func controlPlane(t testing.TB) *cluster.Cluster {
	t.Helper()
	return planeOf(t).Cluster
}

// admin returns a client of the administrator of the test's control plane.
func admin(t testing.TB) client.WithWatch {
	t.Helper()
	return planeOf(t).admin
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
