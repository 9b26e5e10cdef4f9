package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// Key algorithms of CAs that a subject signs with. The API server trusts the default CA.
const (
	DefaultCA = "ECDSA"
	RSACA     = "RSA"
	Ed25519CA = "Ed25519"
)

// Subject is a program that approves and signs.
type Subject struct {
	Name string
	// Ceiling is the largest number of requests in a burst, for a subject that would take minutes. 0 is no limit.
	Ceiling int

	command func(*Lab) ([]string, error)
	metrics bool // serves its metrics on --metrics-bind-address
	more    []string
	config  string // the text of its configuration file, if it has one
	ca      string
}

// The subjects of a comparison.
var (
	Ours = Subject{Name: "ours", metrics: true, command: func(l *Lab) ([]string, error) { return alone(l.Binary), nil }}
	// Base is another revision of ours.
	Base = Subject{Name: "base", metrics: true, command: func(l *Lab) ([]string, error) { return alone(l.Base), nil }}
	// Shipped is kube-controller-manager with its default client limits.
	Shipped = Subject{Name: "KCM as shipped", Ceiling: 100, command: kcm}
	// Unlimited is kube-controller-manager without client limits.
	Unlimited = Subject{Name: "KCM unlimited", command: kcm, more: []string{
		"--kube-api-qps=10000", "--kube-api-burst=10000",
	}}
	// Floor makes the three calls that each certificate needs and judges nothing.
	Floor = Subject{Name: "floor", command: floor}
)

// alone returns the command of ours without leader election, which kube-controller-manager does without here too. The
// memory limit is that of the manifests.
func alone(binary string) []string {
	return []string{"env", "GOMEMLIMIT=800MiB", binary, "--leader-elect=false"}
}

func kcm(*Lab) ([]string, error) {
	path := os.Getenv("KUBE_CONTROLLER_MANAGER")
	if path == "" {
		return nil, errors.New("KUBE_CONTROLLER_MANAGER is not set: run `make bench`, or eval hack/controlplane/get.sh")
	}
	const controllers = "--controllers=csrapproving,csrsigning,csrcleaner"
	return []string{path, controllers, "--leader-elect=false", "--secure-port=0"}, nil
}

func floor(*Lab) ([]string, error) {
	self, err := os.Executable()
	return []string{self, FloorCommand}, err
}

// With returns s with more arguments.
func (s Subject) With(name string, args ...string) Subject {
	s.Name, s.more = name, append(slices.Clone(s.more), args...)
	return s
}

// Configured returns s with a configuration file.
func (s Subject) Configured(config string) Subject {
	s.config = config
	return s
}

// SigningWith returns s with another CA.
func (s Subject) SigningWith(ca string) Subject {
	s.ca = ca
	return s
}

// AtMost returns count, or the ceiling of s if that is less.
func (s Subject) AtMost(count int) int {
	if s.Ceiling > 0 {
		return min(count, s.Ceiling)
	}
	return count
}

// Running is a running subject.
type Running struct {
	// Process is its process.
	Process *cluster.Process

	subject Subject
	lab     *Lab
	metrics string // its address
	probes  string // likewise, of /readyz
	ending  atomic.Bool
}

// Launch starts s and does not wait. The output of s goes to a file, as that of a service does, so that each subject
// pays for its log.
func (l *Lab) Launch(s Subject) (*Running, error) {
	command, err := s.command(l)
	if err != nil {
		return nil, err
	}
	if s.ca == "" {
		s.ca = DefaultCA
	}
	cert, key := l.caFiles(s.ca)
	args := append(command[1:], "--kubeconfig="+l.kubeconfig,
		"--cluster-signing-cert-file="+cert, "--cluster-signing-key-file="+key)
	r := &Running{subject: s, lab: l}
	if s.metrics {
		if r.metrics, err = cluster.FreeAddress(); err != nil {
			return nil, err
		}
		if r.probes, err = cluster.FreeAddress(); err != nil {
			return nil, err
		}
		args = append(args, "--metrics-bind-address="+r.metrics, "--health-probe-bind-address="+r.probes)
	}
	if s.config != "" {
		file := filepath.Join(l.Cluster.Dir, "config.yaml")
		if err := os.WriteFile(file, []byte(s.config), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--config="+file)
	}
	if r.Process, err = l.Cluster.StartProcess("subject", command[0], append(args, s.more...)...); err != nil {
		return nil, err
	}
	go func() {
		<-r.Process.Done
		if !r.ending.Load() {
			l.fail(fmt.Errorf("%s ended by itself: %s\n%s", s.Name, r.Process.Ended(), r.Process.Tail(15)))
		}
	}()
	return r, nil
}

// Start starts s and waits for its first certificate.
func (l *Lab) Start(ctx context.Context, s Subject) (*Running, error) {
	r, err := l.Launch(s)
	if err != nil {
		return nil, err
	}
	if _, err := l.First(ctx); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// First creates a request and returns how long its certificate takes.
func (l *Lab) First(ctx context.Context) (time.Duration, error) {
	join, err := l.Joins(1, 1)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := l.Create(ctx, join); err != nil {
		return 0, err
	}
	_, err = l.Issued(ctx, join)
	return time.Since(start), err
}

// Ready waits until the subject says that it is ready. Only ours says so.
func (r *Running) Ready(ctx context.Context) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.probes+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.Process.Done:
			return fmt.Errorf("%s ended before it was ready: %s", r.subject.Name, r.Process.Tail(15))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", r.subject.Name, context.Cause(ctx))
		}
	}
}

// ReleaseLease deletes the Lease of the replicas, so that the next leader need not wait for its end.
func (l *Lab) ReleaseLease(ctx context.Context) error {
	leases := l.Admin.CoordinationV1().Leases(metav1.NamespaceSystem)
	err := leases.Delete(ctx, "csr-controller-manager", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Stop ends the subject and waits. It returns an error if the subject ended by itself before.
func (r *Running) Stop() error {
	r.ending.Store(true)
	_ = r.Process.Stop() // the exit status after a signal does not matter
	return context.Cause(r.lab.failed)
}

// Kill ends the subject without warning.
func (r *Running) Kill() {
	r.ending.Store(true)
	r.Process.Kill()
}

// During runs s during work, and deletes all requests afterwards. work starts once s has issued a first certificate.
// During adds the costs of s during work to the values of work.
func (l *Lab) During(ctx context.Context, s Subject, work func(*Running) (report.Values, error)) (report.Round, error) {
	r, err := l.Start(ctx, s)
	if err != nil {
		return report.Round{}, err
	}
	round, err := r.measure(ctx, work)
	return round, errors.Join(err, r.Stop(), l.Clear(ctx))
}
