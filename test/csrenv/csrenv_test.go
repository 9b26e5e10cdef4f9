package csrenv_test

import (
	"context"
	"crypto/x509"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// All tests but the example use the control planes of the kit, whose CA comes from Prepare.
func TestMain(m *testing.M) { kit.Main(m, 1) }

func admin(t *testing.T) *rest.Config { return kit.ControlPlane(t).Config }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// start runs a loop, with the CA that the API server trusts, until the test ends.
func start(t *testing.T, opts csrenv.Options) *csrenv.Env {
	t.Helper()
	if opts.CA == nil {
		opts.CA = kit.ControlPlane(t).CA
	}
	env := must(csrenv.Start(t.Context(), admin(t), opts))
	t.Cleanup(func() { kit.NoError(t, env.Stop()) })
	return env
}

// create creates a request of an administrator for a kubelet's client certificate.
func create(t *testing.T, node string, mods ...func(*kit.Request)) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, node, mods...))
}

// unowned changes obj to a signer that is not configured.
func unowned(obj *kit.Request) { obj.Spec.SignerName = "example.com/foreign" }

func verifies(t *testing.T, cert *x509.Certificate, authority *csrenv.CA) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.CertPEM)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Error(err)
	}
}

// addUser returns a client that authenticates as a user of envtest.
func addUser(t *testing.T, name string, groups ...string) client.Client {
	t.Helper()
	return kit.ClientOf(t, must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: name, Groups: groups}, nil)).Config())
}

func TestZeroOptionsApproveAndSignForEverySigner(t *testing.T) {
	kit.Alone(t)
	env := must(csrenv.Start(t.Context(), admin(t), csrenv.Options{}))
	t.Cleanup(func() { _ = env.Stop() })
	serving, alice := kit.ServingRequest(t, "serving", "node", "10.0.0.1"), kit.ClientRequest(t, "alice")
	for obj, as := range map[*kit.Request]client.Client{
		kit.NodeRequest(t, "joins"):  addUser(t, "system:bootstrap:abcdef", "system:bootstrappers"),
		kit.NodeRequest(t, "renews"): addUser(t, "system:node:renews", "system:nodes"),
		serving:                      addUser(t, "system:node:serving", "system:nodes"), alice: kit.Admin(t),
	} {
		kit.Create(t, as, obj)
		if obj == serving || obj == alice {
			kit.Approve(t, obj)
		}
		verifies(t, kit.Leaf(t, kit.Reaches(t, obj, csr.Issued)), env.CA)
	}
}

func TestConfigForAuthenticates(t *testing.T) {
	kit.Alone(t)
	env := start(t, csrenv.Options{})
	for user, test := range map[string]struct {
		groups []string
		signer string
	}{
		"alice":                 {[]string{"auditors", "developers"}, "kubernetes.io/kube-apiserver-client"},
		"bob":                   {nil, "kubernetes.io/kube-apiserver-client"},
		"system:kube-scheduler": {nil, "kubernetes.io/kube-apiserver-client"},
		"admin":                 {[]string{"kubeadm:cluster-admins"}, "kubernetes.io/kube-apiserver-client"},
		"system:node:one":       {[]string{"system:nodes"}, "kubernetes.io/kube-apiserver-client-kubelet"},
	} {
		cfg := must(env.ConfigFor(t.Context(), user, test.groups...))
		who := whoIs(t, cfg)
		if want := append(test.groups, "system:authenticated"); who.Username != user || !slices.Equal(who.Groups, want) {
			t.Errorf("the API server takes it for %s %q, want %s %q", who.Username, who.Groups, user, want)
		}
		requests := &certificatesv1.CertificateSigningRequestList{}
		kit.NoError(t, kit.Admin(t).List(t.Context(), requests))
		at := slices.IndexFunc(requests.Items, func(obj kit.Request) bool { return slices.Equal(obj.Status.Certificate, cfg.CertData) })
		if at < 0 || requests.Items[at].Spec.SignerName != test.signer {
			t.Fatalf("no request of signer %s has the certificate of %s", test.signer, user)
		}
		verifies(t, kit.Leaf(t, &requests.Items[at]), env.CA)
	}
	carol := must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: "carol", Groups: []string{"team"}}, nil)) // Prepare leaves envtest's users alone
	if who := whoIs(t, carol.Config()); who.Username != "carol" {
		t.Errorf("the API server takes carol for %q", who.Username)
	}
	_, err := csrenv.Prepare(kit.ControlPlane(t).Env)
	contains(t, err, "call Prepare first")
	_, err = csrenv.Prepare(&envtest.Environment{UseExistingCluster: new(true)})
	contains(t, err, "let envtest start the API server")
}

// TestConfigForServiceAccount has the token of a ServiceAccount. Only with a token the API server adds its UID.
func TestConfigForServiceAccount(t *testing.T) {
	kit.Alone(t)
	env := start(t, csrenv.Options{})
	kit.NewNamespace(t, "accounts")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "accounts", Name: "web"}}
	kit.Create(t, kit.Admin(t), account)
	const user = "system:serviceaccount:accounts:web"
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:accounts"}
	for _, given := range [][]string{nil, groups} {
		who := whoIs(t, must(env.ConfigFor(t.Context(), user, given...)))
		if want := append(groups, "system:authenticated"); who.Username != user || who.UID != string(account.UID) || !slices.Equal(who.Groups, want) {
			t.Errorf("the API server takes it for %+v, want %s with UID %s and groups %q", who, user, account.UID, want)
		}
	}
	_, err := env.ConfigFor(t.Context(), user, "developers")
	contains(t, err, `want ["developers"]`)
	_, err = env.ConfigFor(t.Context(), "system:serviceaccount:default:absent")
	contains(t, err, "request a token of ServiceAccount default/absent, which must exist: ")
}

func whoIs(t *testing.T, cfg *rest.Config) authenticationv1.UserInfo {
	t.Helper()
	review := &authenticationv1.SelfSubjectReview{}
	return must(review, kit.ClientOf(t, cfg).Create(t.Context(), review)).Status.UserInfo
}

func TestConfigForSaysWhatIsWrong(t *testing.T) {
	kit.Alone(t)
	fails := func(options csrenv.Options, want string, groups ...string) {
		t.Run(want, func(t *testing.T) {
			cfg, err := start(t, options).ConfigFor(t.Context(), "alice", groups...)
			if contains(t, err, want); cfg != nil {
				t.Error("it returns a configuration")
			}
		})
	}
	fails(csrenv.Options{}, "system:masters", "system:masters") // the API server forbids it
	fails(csrenv.Options{Profile: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=al*"}}}, "Failed: SubjectNotPermitted: ")
	fails(csrenv.Options{CA: must(csrenv.NewCA())}, `the API server does not accept the certificate for "alice": call csrenv.Prepare before the `+
		"environment starts, and pass its CA to Start")
	unsigned := start(t, csrenv.Options{Customize: func(o *controllers.Options) { o.Signer = nil }})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := unsigned.ConfigFor(ctx, "alice")
	if contains(t, err, "is Approved: context deadline exceeded"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not the context's error", err)
	}
}

func contains(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

// still fails the test if obj was deleted or replaced, or is in another state.
func still(t *testing.T, obj *kit.Request, state csr.State) {
	t.Helper()
	now := kit.Reload(t, obj.DeepCopy())
	if got := csr.StateOf(now); now.UID != obj.UID || got != state {
		t.Errorf("request %s is %s, want %s", obj.Name, got, state)
	}
}

// TestAFakeClockDrivesCertificatesAndRetention steps the clock to just before and just after requests are due.
func TestAFakeClockDrivesCertificatesAndRetention(t *testing.T) {
	kit.Alone(t)
	now := time.Now().Truncate(time.Second)
	steps := testingclock.NewFakeClock(now)
	start(t, csrenv.Options{Clock: steps, Retention: csr.Retention{
		Approved: time.Hour, Denied: time.Minute, Failed: time.Hour, Pending: 24 * time.Hour,
	}})
	issued := create(t, "validity", func(obj *kit.Request) { obj.Spec.ExpirationSeconds = new(int32(30 * 3600)) })
	kit.Reaches(t, issued, csr.Issued)
	if got, want := kit.Leaf(t, issued).NotAfter, now.Add(30*time.Hour-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid until %s, want %s", got, want)
	}
	pending := create(t, "pending", unowned)
	steps.Step(58 * time.Minute)
	markerIsCleaned(t)
	still(t, issued, csr.Issued)
	next := kit.Reaches(t, create(t, "validity"), csr.Issued)
	if got, want := kit.Leaf(t, next).NotBefore, steps.Now().Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid from %s, want %s", got, want)
	}
	steps.Step(3 * time.Minute)
	kit.IsDeleted(t, issued)
	steps.Step(23*time.Hour - 3*time.Minute)
	markerIsCleaned(t)
	still(t, pending, csr.Pending)
	steps.Step(3 * time.Minute)
	kit.IsDeleted(t, pending)
}

// markerIsCleaned waits until the cleaner has deleted two denied requests, one after the other, which are due by the
// stepped clock. By then the cleaner has judged all earlier requests, because the second one was found by a later pass.
func markerIsCleaned(t *testing.T) {
	t.Helper()
	for range 2 {
		marker := create(t, "marker", unowned)
		kit.Decide(t, marker, certificatesv1.CertificateDenied)
		kit.IsDeleted(t, marker)
	}
}

func TestStartSaysAllThatIsWrong(t *testing.T) {
	kit.Alone(t)
	_, err := csrenv.Start(t.Context(), admin(t), csrenv.Options{
		CA:      &csrenv.CA{CertPEM: []byte("no"), KeyPEM: []byte("no")},
		Profile: ca.ProfileConfig{Lifetime: time.Second},
		Customize: func(o *controllers.Options) {
			o.Approver.Denial = "Often"
			o.Approver.Judges["example.com/none"] = nil
			for name, one := range o.Signer.Signers {
				one.KeyPair = nil
				o.Signer.Signers[name] = one
			}
		},
	})
	for _, want := range []string{"CA of signer kubernetes.io/kube-apiserver-client: ", "signer kubernetes.io/kubelet-serving: 1s is too short", `denial "Often"`, "has no Judge", "has no KeyPair"} {
		contains(t, err, want)
	}
	_, err = csrenv.Start(t.Context(), admin(t), csrenv.Options{Customize: func(o *controllers.Options) { *o = controllers.Options{} }})
	contains(t, err, "no controller is set")
	_, err = csrenv.Start(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, csrenv.Options{})
	contains(t, err, "connection refused")
	user := must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: "frank"}, nil))
	_, err = csrenv.Start(t.Context(), user.Config(), csrenv.Options{})
	contains(t, err, "list requests: ")
}

func TestAFaultIsNeverAnAnswer(t *testing.T) {
	kit.Alone(t)
	var asked atomic.Int32
	var broken atomic.Bool
	broken.Store(true)
	start(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Denial = "Permanent"
		o.Approver.Authorizer = authz.Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
			if !broken.Load() {
				return true, nil
			}
			asked.Add(1)
			return true, errors.New("the authorizer is broken") // true must not count beside an error
		})
	}})
	obj := create(t, "faulty")
	kit.Eventually(t, "it is reviewed again", func(context.Context) error {
		if asked.Load() < 2 {
			return errors.New("it was not")
		}
		return nil
	})
	still(t, obj, csr.Pending)
	broken.Store(false)
	kit.Reaches(t, obj, csr.Issued)
}

type counting struct {
	client.Client
	writes *atomic.Int32
}

func (c counting) SubResource(name string) client.SubResourceClient {
	c.writes.Add(1)
	return c.Client.SubResource(name)
}

func TestACallerMayBringItsOwnParts(t *testing.T) {
	kit.Alone(t)
	var writes atomic.Int32
	recorder := events.NewFakeRecorder(10)
	steps := testingclock.NewFakePassiveClock(time.Now().Add(10 * time.Minute).Truncate(time.Second))
	start(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Client = counting{Client: kit.Admin(t), writes: &writes}
		o.Approver.Recorder = recorder
		o.Signer.Clock = steps
	}})
	obj := kit.Reaches(t, create(t, "parts"), csr.Issued)
	if writes.Load() != 1 {
		t.Errorf("%d writes through the given client, want 1", writes.Load())
	}
	if got, want := kit.Leaf(t, obj).NotBefore, steps.Now().Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid from %s, want %s by the given clock", got, want)
	}
	kit.Create(t, addUser(t, "system:bootstrap:mallory", "system:bootstrappers"), kit.NodeRequest(t, "odd", kit.WrongUsage))
	select {
	case event := <-recorder.Events:
		if !strings.Contains(event, "ShapeMismatch") {
			t.Errorf("Event %q, want ShapeMismatch", event)
		}
	case <-time.After(kit.Patience):
		t.Error("no Event through the given recorder")
	}
}

// goroutines returns the stacks of the goroutines that run this module's code, without tests.
func goroutines() []string {
	buffer := make([]byte, 1<<22)
	var ours []string
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		_, created, _ := strings.Cut(stack, "created by ")
		if strings.Contains(created, "csr-controller-manager/") || strings.Contains(created, "controller-runtime/pkg/manager") ||
			strings.Contains(created, "controller-runtime/pkg/internal/controller.") || strings.Contains(created, "client-go/util/workqueue") {
			ours = append(ours, stack)
		}
	}
	return ours
}

// TestStopWaitsAndLeavesNoGoroutine stops a loop during a review.
func TestStopWaitsAndLeavesNoGoroutine(t *testing.T) {
	kit.Alone(t)
	asked := make(chan struct{}, 100)
	blocks := authz.Func(func(ctx context.Context, who csr.Requester, _ authorizationv1.ResourceAttributes) (bool, error) {
		if who.Username != "system:bootstrap:staying" {
			return true, nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return false, context.Cause(ctx)
	})
	customize := func(o *controllers.Options) { o.Approver.Authorizer = blocks }
	env := must(csrenv.Start(t.Context(), admin(t), csrenv.Options{CA: kit.ControlPlane(t).CA, Customize: customize}))
	_ = must(env.ConfigFor(t.Context(), "system:node:leaving", "system:nodes"))
	reviewed := kit.CreateRequest(t, addUser(t, "system:bootstrap:staying", "system:bootstrappers"), kit.NodeRequest(t, "staying"))
	select {
	case <-asked:
	case <-time.After(kit.Patience):
		t.Fatal("nobody was asked")
	}
	if len(goroutines()) == 0 {
		t.Fatal("a running loop has no goroutine: the filter is wrong")
	}
	for range 2 { // a second call has no effect
		kit.NoError(t, env.Stop())
	}
	late := create(t, "after-stop")
	kit.Eventually(t, "no goroutine is left", func(context.Context) error {
		if left := goroutines(); len(left) > 0 {
			return errors.New(strings.Join(left, "\n\n"))
		}
		return nil
	})
	if _, err := env.ConfigFor(ended(t), "erin"); err == nil {
		t.Error("a stopped loop gave a certificate")
	}
	still(t, reviewed, csr.Pending)
	still(t, late, csr.Pending)
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestTheEndOfTheContextStopsTheLoop(t *testing.T) {
	kit.Alone(t)
	ctx, cancel := context.WithCancel(t.Context())
	env := must(csrenv.Start(ctx, admin(t), csrenv.Options{}))
	cancel()
	kit.NoError(t, env.Stop())
	_, err := csrenv.Start(ended(t), admin(t), csrenv.Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start with an ended context: %v", err)
	}
}
