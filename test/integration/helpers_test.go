package integration

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// patience bounds every wait. Only a failing test needs all of it.
const patience = 45 * time.Second

type request = certificatesv1.CertificateSigningRequest

// as returns a client with a token of the shared cluster.
func as(t *testing.T, user string) client.Client {
	t.Helper()
	cfg := rest.AnonymousClientConfig(controlPlane(t).Config)
	cfg.BearerToken, cfg.QPS = user+"-token", -1
	return clientOf(t, cfg)
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func payload(t testing.TB, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// nodeRequest returns a kubelet's request for a client certificate, named after the test.
func nodeRequest(t testing.TB, node string, mods ...func(*request)) *request {
	t.Helper()
	obj := &request{
		ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ToLower(strings.NewReplacer("/", "-", "_", "-", "'", "").Replace(t.Name())) + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Request: payload(t, x509.CertificateRequest{
				Subject: pkix.Name{CommonName: csr.NodeUserPrefix + node, Organization: []string{csr.NodeGroup}},
			}),
		},
	}
	for _, mod := range mods {
		mod(obj)
	}
	return obj
}

// create creates obj with a client of t's control plane, and deletes it at the end.
func create(t testing.TB, c client.Client, obj client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin(t).Delete(context.Background(), obj)); err != nil {
			t.Error(err)
		}
	})
}

func createRequest(t testing.TB, c client.Client, obj *request) *request {
	t.Helper()
	create(t, c, obj)
	return obj
}

// approve approves obj as kubectl certificate approve does.
func approve(t testing.TB, obj *request) {
	t.Helper()
	decide(t, obj, certificatesv1.CertificateApproved)
}

func decide(t testing.TB, obj *request, kind certificatesv1.RequestConditionType) {
	t.Helper()
	csr.AddCondition(obj, kind, "ByHand", "Decided by a test.", time.Time{})
	if err := admin(t).SubResource("approval").Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// grant binds one of Kubernetes' roles, or verbs on a resource, to a user for the duration of the test.
func grant(t testing.TB, user, clusterRole string) *rbacv1.ClusterRoleBinding {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	create(t, admin(t), binding)
	return binding
}

const (
	mayCreate   = "system:node-bootstrapper"
	mayJoin     = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	mayRenewOwn = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// eventually waits until check returns nil, and fails with its last error.
func eventually(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	within(t, patience, what, check)
}

// within is eventually with another time limit.
func within(t testing.TB, bound time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, bound, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v (%v)", what, last, err)
	}
}

func reload(t testing.TB, obj *request) *request {
	t.Helper()
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// reaches waits until obj is in state.
func reaches(t testing.TB, obj *request, state csr.State) *request {
	t.Helper()
	eventually(t, fmt.Sprintf("request %s becomes %s", obj.Name, state), func(ctx context.Context) error {
		if err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if got := csr.StateOf(obj); got != state {
			return fmt.Errorf("it is %s: %+v", got, obj.Status.Conditions)
		}
		return nil
	})
	return obj
}

// isDeleted waits until obj is deleted.
func isDeleted(t *testing.T, obj *request) {
	t.Helper()
	eventually(t, obj.Name+" is deleted", func(ctx context.Context) error {
		if err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), &request{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it exists, or %w", err)
		}
		return nil
	})
}

// hasEvent waits for a Warning Event about obj with reason, whose note contains every part.
func hasEvent(t testing.TB, obj client.Object, reason string, parts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("Event %s about %s", reason, obj.GetName()), func(ctx context.Context) error {
		for _, event := range eventsOf(ctx, t, obj) {
			missing := ""
			for _, part := range parts {
				if !strings.Contains(event.Note, part) {
					missing = part
				}
			}
			if event.Reason == reason && missing == "" && event.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("not among %+v", eventsOf(ctx, t, obj))
	})
}

func eventsOf(ctx context.Context, t testing.TB, obj client.Object) []eventsv1.Event {
	t.Helper()
	events := &eventsv1.EventList{}
	if err := admin(t).List(ctx, events); err != nil {
		t.Fatal(err)
	}
	var found []eventsv1.Event
	for _, event := range events.Items {
		if event.Regarding.Name == obj.GetName() && (obj.GetUID() == "" || event.Regarding.UID == obj.GetUID()) {
			found = append(found, event)
		}
	}
	return found
}

// leaf parses the certificate of obj.
func leaf(t testing.TB, obj *request) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(obj.Status.Certificate)
	if block == nil || len(rest) > 0 {
		t.Fatalf("status.certificate of %s is not one PEM block: %q", obj.Name, obj.Status.Certificate)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// staleClient returns an older version of an object, like a cache that lags behind.
type staleClient struct {
	client.Client
	obj *request
}

func (c staleClient) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	c.obj.DeepCopyInto(obj.(*request))
	return nil
}

// eventuallyAllowed waits until the API server's authorizer knows a binding, or no longer does.
func eventuallyAllowed(t testing.TB, user string, want bool) {
	t.Helper()
	eventually(t, "RBAC of "+user, func(ctx context.Context) error {
		got, err := authz.SubjectAccess{Client: admin(t)}.Allowed(ctx, csr.Requester{Username: user},
			approver.NodeClient().Recognisers[1].Permission)
		if err == nil && got != want {
			err = fmt.Errorf("allowed is %t", got)
		}
		return err
	})
}
