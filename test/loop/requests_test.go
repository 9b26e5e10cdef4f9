package loop

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestStoredBadInput stores objects in etcd that no API server would accept, and an RSA key of 16,384 bits, which the API server
// accepts. It expects a reason, and a loop that continues. An object that is decided or issued already stays as it is.
func TestStoredBadInput(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	huge := kit.Must(os.ReadFile("../../controllers/signer/testdata/rsa-16384.pem"))(t)
	forged, _ := pem.Decode(kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}))
	forged.Bytes[len(forged.Bytes)-1] ^= 1
	masters := kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a", Organization: []string{"x", "system:masters"}}})
	for name, test := range map[string]struct {
		payload         []byte
		mod             func(*kit.Request)
		reason, message string
	}{
		"no-pem":  {[]byte("hello"), nil, "Malformed", "not a PEM block of type CERTIFICATE REQUEST"},
		"forged":  {pem.EncodeToMemory(forged), nil, "Malformed", "signature"},
		"huge":    {huge, nil, "KeyNotPermitted", "RSA keys of 16384 bits are not permitted; use RSA of at most 8192 bits"},
		"masters": {masters, nil, "SubjectNotPermitted", "never issues O=system:*"},
		"approved-and-denied": { // v1beta1 permitted both conditions
			masters, func(obj *kit.Request) { addCondition(obj, certificatesv1.CertificateDenied) }, "", ""},
		"issued-nonsense": {masters, func(obj *kit.Request) { obj.Status.Certificate = []byte("nonsense") }, "", ""},
	} {
		obj := kit.ClientRequest(t, "")
		obj.Spec.Request = test.payload
		addCondition(obj, certificatesv1.CertificateApproved)
		if test.mod != nil {
			test.mod(obj)
		}
		stored(t, "stored-"+name, obj)
		switch test.reason {
		case "":
			before := kit.Reload(t, obj).DeepCopy()
			kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "later")), csr.Issued)
			kit.Equal(t, name, kit.Reload(t, obj), before)
		case "Malformed": // the API server refuses any change of an object that it can't validate
			kit.HasEvent(t, obj, test.reason, test.message)
			kit.IsIn(t, obj, csr.Approved)
		default:
			kit.HasEvent(t, obj, test.reason, test.message)
			failsAs(t, obj, test.reason, test.message)
		}
	}

	// A requester with a name and extra fields that no authenticator creates. The API server gets all of them in reviews.
	obj := kit.NodeRequest(t, "b")
	obj.Spec.Username, obj.Spec.Extra = strings.Repeat("Ü名", 2000), map[string]certificatesv1.ExtraValue{}
	for i := range 10_000 {
		obj.Spec.Extra[fmt.Sprintf("example.com/key-%d", i)] = certificatesv1.ExtraValue{"value"}
	}
	stored(t, "huge-requester", obj)
	kit.HasEvent(t, obj, "NotAuthorized", `\u00dc\u540d\u00dc`)
	kit.Grant(t, obj.Spec.Username, kit.MayJoin)
	kit.Reaches(t, obj, csr.Issued)
	kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "good")), csr.Issued)
}

// addCondition adds a condition as the API server stores it.
func addCondition(obj *kit.Request, kind certificatesv1.RequestConditionType) {
	csr.AddCondition(obj, kind, "ByHand", "Stored by a test.", time.Now())
	obj.Status.Conditions[len(obj.Status.Conditions)-1].LastTransitionTime = metav1.Now()
}

// stored writes obj to etcd unchanged, without the API server's validation and defaults.
func stored(t *testing.T, name string, obj *kit.Request) {
	t.Helper()
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	obj.Name, obj.GenerateName, obj.UID, obj.CreationTimestamp = name, "", types.UID(name), metav1.Now()
	kit.NoError(t, kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+name, obj))
}

// TestNothingBeyondTheRequestIsIssued requests more than a certificate may hold. Approval and certificate erase nothing of a request,
// although the cache trims it.
func TestNothingBeyondTheRequestIsIssued(t *testing.T) {
	kit.Parallel(t)
	isCA := kit.Must(asn1.Marshal(struct{ IsCA bool }{true}))(t)
	obj := kit.ClientRequest(t, "")
	obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "a", ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}, Value: "root"},
		}},
		ExtraExtensions: []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: isCA}, {Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}},
		},
	})
	kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), obj))
	marked := []*kit.Request{kit.CreateMarked(t, "kept", 10), kit.CreateMarked(t, "kept-large", 20<<10)}
	kit.StartLoopAs(t, kit.ManagerConfig(t), csrenv.Options{})
	cert := kit.Leaf(t, kit.Reaches(t, obj, csr.Issued))
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || cert.Subject.String() != "CN=a" {
		t.Errorf("issued CA %t, key usage %d, subject %s", cert.IsCA, cert.KeyUsage, cert.Subject)
	}
	for _, extension := range cert.Extensions {
		if extension.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}) {
			t.Error("issued an extension that was asked for")
		}
	}
	for _, obj := range marked {
		before := obj.DeepCopy()
		kit.Reaches(t, obj, csr.Issued)
		obj.ManagedFields, obj.ResourceVersion = before.ManagedFields, before.ResourceVersion
		kit.Equal(t, "metadata", obj.ObjectMeta, before.ObjectMeta)
		kit.Equal(t, "spec", obj.Spec, before.Spec)
	}
}

func newApprover(t *testing.T) *approver.Reconciler {
	clock := clocktesting.NewFakeClock(time.Now())
	return &approver.Reconciler{
		Rules:      []approver.Rule{approver.NodeClient()},
		Client:     kit.Admin(t),
		Authorizer: authz.SubjectAccess{Client: kit.Admin(t)},
		Reporter:   report.New(events.NewFakeRecorder(10), clock),
		Clock:      clock,
		ServerTime: servertime.Of(clock),
		Live:       kit.Admin(t),
	}
}

func reconcileOnce(t *testing.T, r *approver.Reconciler, obj *kit.Request) {
	t.Helper()
	_, err := r.Reconcile(t.Context(), fairqueue.Key{Name: obj.Name, UID: obj.UID})
	kit.NoError(t, err)
}

// TestApproverForgetsRightsThatGo approves once a requester has the right, and no more when the right is taken back.
func TestApproverForgetsRightsThatGo(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	r := newApprover(t)
	judged := func(want csr.State) {
		t.Helper()
		obj := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "late"))
		reconcileOnce(t, r, obj)
		kit.IsIn(t, obj, want)
	}
	judged(csr.Pending)
	binding := kit.Grant(t, "stranger", kit.MayJoin)
	kit.EventuallyAllowed(t, "stranger", true)
	judged(csr.Approved)
	kit.Remove(t, binding)
	kit.EventuallyAllowed(t, "stranger", false)
	judged(csr.Pending)
}

func TestApproverWritesOnlyWhatItJudged(t *testing.T) {
	kit.Parallel(t)
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "stale"))
	r := newApprover(t)
	r.Client = interceptor.NewClient(kit.Admin(t), interceptor.Funcs{ // changes the object between the read and the write
		SubResource: func(c client.WithWatch, name string) client.SubResourceClient {
			kit.Decide(t, kit.Reload(t, obj.DeepCopy()), certificatesv1.CertificateDenied)
			return c.SubResource(name)
		},
	})
	reconcileOnce(t, r, obj)
	kit.IsIn(t, obj, csr.Denied)
}

// TestApprovalDoesNotPassToARequestOfTheSameName replaces a request that may be approved, or is due for deletion, by a stranger's
// request of the same name, between the read and the write of the approver and of the cleaner. Neither may reach a request that
// was not judged.
func TestApprovalDoesNotPassToARequestOfTheSameName(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	named := func(obj *kit.Request) { obj.Name, obj.GenerateName = "swapped", "" }
	judged := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "mine", named))
	stale := judged.DeepCopy()
	kit.Remove(t, judged)
	swapped := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "not-mine", named))
	r := newApprover(t)
	r.Client = interceptor.NewClient(kit.Admin(t), interceptor.Funcs{ // reads it as a cache that lags behind
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			stale.DeepCopyInto(obj.(*kit.Request))
			return nil
		},
	})
	reconcileOnce(t, r, stale)
	later := clocktesting.NewFakeClock(stale.CreationTimestamp.Add(25 * time.Hour))
	cleans := &cleaner.Reconciler{
		Client: r.Client, Clock: later, ServerTime: servertime.Of(later), Limiter: flowcontrol.NewFakeAlwaysRateLimiter(),
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention},
	}
	result, err := cleans.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(stale)})
	if err != nil || result != (reconcile.Result{}) {
		t.Fatalf("result %+v, error %v", result, err)
	}
	if got := kit.Reload(t, swapped); csr.StateOf(got) != csr.Pending || got.UID == stale.UID {
		t.Errorf("the stranger's request is %s, want Pending", csr.StateOf(got))
	}
}
