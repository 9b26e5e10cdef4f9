package csrenv_test

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

func TestStartSaysAllThatIsWrong(t *testing.T) {
	_, err := csrenv.Start(t.Context(), admin, csrenv.Options{
		CA:      &csrenv.CA{CertPEM: []byte("no"), KeyPEM: []byte("no")},
		Profile: ca.ProfileConfig{Lifetime: time.Second},
		Customize: func(o *controllers.Options) {
			o.Approver.Denial = "Often"
			o.Approver.Rules[0].Shape = nil
			for name, one := range o.Signer.Signers {
				one.KeyPair = nil
				o.Signer.Signers[name] = one
			}
		},
	})
	for _, want := range []string{"CA: ", "profile: ", `denial "Often"`, "has no Shape", "has no KeyPair"} {
		contains(t, err, want)
	}
	_, err = csrenv.Start(t.Context(), admin, csrenv.Options{Customize: func(o *controllers.Options) { *o = controllers.Options{} }})
	contains(t, err, "no controller is set")
	_, err = csrenv.Start(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, csrenv.Options{})
	contains(t, err, "connection refused")
	user := must(testEnv.AddUser(envtest.User{Name: "frank"}, nil))
	_, err = csrenv.Start(t.Context(), user.Config(), csrenv.Options{})
	contains(t, err, "list requests: ")
}

func TestAFaultIsNeverAnAnswer(t *testing.T) {
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
	obj := create(t, newClient(t, admin), newRequest(t, "faulty"))
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return asked.Load() >= 2, nil
	}); err != nil {
		t.Fatalf("%d reviews: %v", asked.Load(), err)
	}
	still(t, obj, csr.Pending)
	broken.Store(false)
	eventually(t, obj, csr.Issued)
}

// counting is a client that counts writes to subresources.
type counting struct {
	client.Client
	writes *atomic.Int32
}

func (c counting) SubResource(name string) client.SubResourceClient {
	c.writes.Add(1)
	return c.Client.SubResource(name)
}

func TestACallerMayBringItsOwnParts(t *testing.T) {
	var writes atomic.Int32
	recorder := events.NewFakeRecorder(10)
	steps := testingclock.NewFakePassiveClock(time.Now().Add(10 * time.Minute).Truncate(time.Second))
	start(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Client = counting{Client: newClient(t, admin), writes: &writes}
		o.Approver.Reporter = report.New(recorder, clock.RealClock{})
		o.Signer.Clock = steps
	}})
	obj := create(t, newClient(t, admin), newRequest(t, "parts"))
	eventually(t, obj, csr.Issued)
	if writes.Load() != 1 {
		t.Errorf("%d writes through the given client, want 1", writes.Load())
	}
	if got, want := parse(t, obj.Status.Certificate).NotBefore, steps.Now().Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid from %s, want %s by the given clock", got, want)
	}
	create(t, addUser(t, "system:bootstrap:mallory", "system:bootstrappers"), newRequest(t, "odd",
		func(obj *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			obj.Spec.Usages = []certificatesv1.KeyUsage{"client auth", "server auth"}
		}))
	select {
	case event := <-recorder.Events:
		if !strings.Contains(event, "ShapeMismatch") {
			t.Errorf("Event %q, want ShapeMismatch", event)
		}
	case <-time.After(patience):
		t.Error("no Event through the given reporter")
	}
}
