// Package loop tests the controllers in the process of the test, on a real control plane.
package loop

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
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
		"masters": {masters, nil, "SubjectNotPermitted", "never issues O=system:masters"},
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
		stored(t, "stored-"+name, obj, 0)
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
	for i := range 1000 {
		obj.Spec.Extra[fmt.Sprintf("example.com/key-%d", i)] = certificatesv1.ExtraValue{"value"}
	}
	stored(t, "huge-requester", obj, 0)
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

// stored writes obj to etcd unchanged, without the API server's validation and defaults, as created that long after now.
func stored(t *testing.T, name string, obj *kit.Request, after time.Duration) {
	t.Helper()
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	obj.Name, obj.GenerateName, obj.UID, obj.CreationTimestamp = name, "", types.UID(name), metav1.NewTime(time.Now().Add(after))
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
	kit.Check(t, !cert.IsCA && cert.KeyUsage == x509.KeyUsageDigitalSignature && cert.Subject.String() == "CN=a",
		"issued CA %t, key usage %d, subject %s", cert.IsCA, cert.KeyUsage, cert.Subject)
	for _, extension := range cert.Extensions {
		kit.Check(t, !extension.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}), "issued an extension that was asked for")
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
		Judges:   map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.KubeletClient{}},
		Client:   kit.Admin(t),
		Recorder: events.NewFakeRecorder(10),
		Clock:    clock,
		Readers: approver.Readers{
			Authorizer: authz.SubjectAccess{Client: kit.Admin(t)}, ServerTime: servertime.Of(clock), Live: kit.Admin(t),
		},
	}
}

// adding is a manager that starts nothing. It keeps the controller of requests that is added to it.
type adding struct {
	manager.Manager
	added controller.TypedController[fairqueue.Key]
}

func (a *adding) Add(runnable manager.Runnable) error {
	if added, ok := runnable.(controller.TypedController[fairqueue.Key]); ok {
		a.added = added
	}
	return nil
}

// reconcileOnce has the controller of r work on obj once.
func reconcileOnce(t *testing.T, r *approver.Reconciler, obj *kit.Request) {
	t.Helper()
	mgr := &adding{Manager: kit.NewManager(t, kit.ManagerConfig(t), manager.Options{})}
	kit.NoError(t, r.SetupWithManager(mgr))
	kit.Must(mgr.added.Reconcile(t.Context(), fairqueue.Key{Name: obj.Name, UID: obj.UID}))(t)
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
	judged(csr.Approved)
	kit.Remove(t, binding)
	kit.EventuallyAllowed(t, csr.Requester{Username: "stranger"}, kubeletclient.NodeClient.Attributes(), false)
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
	kit.Require(t, err == nil && result == (reconcile.Result{}), "result %+v, error %v", result, err)
	if got := kit.Reload(t, swapped); csr.StateOf(got) != csr.Pending || got.UID == stale.UID {
		t.Errorf("the stranger's request is %s, want Pending", csr.StateOf(got))
	}
}

func TestMain(m *testing.M) { kit.Main(m, 4) }

// signingFrom configures every signer to sign with the CA from source.
func signingFrom(source keypair.Source) func(*controllers.Options) {
	return func(o *controllers.Options) {
		pair := keypair.New(source)
		for name, one := range o.Signer.Signers {
			one.KeyPair = pair
			o.Signer.Signers[name] = one
		}
	}
}

func openAudit(t *testing.T, file string) *audit.Log {
	t.Helper()
	return kit.Must(audit.Open(audit.Options{Path: file, MaxSize: 100}))(t)
}

// signs checks that a new request of a node gets a certificate of a CA.
func signs(t *testing.T, by *csrenv.CA) {
	t.Helper()
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "any")), csr.Issued), by)
}

// failsAs waits until obj has failed for reason.
func failsAs(t *testing.T, obj *kit.Request, reason, part string) {
	t.Helper()
	failed := csr.Condition(kit.Reaches(t, obj, csr.Failed), certificatesv1.CertificateFailed)
	kit.Check(t, failed.Reason == reason && strings.Contains(failed.Message, part),
		"%s failed with %s: %s, want %s with %q", obj.Name, failed.Reason, failed.Message, reason, part)
}

// TestRecordsAreRightWhenAnswersAreLost fails the write of the approver or the signer in each way, before and after it
// has landed. Each stored decision has a record, and each other one is recorded as not stored. The stored certificate is recorded as
// signed, and never as discarded. No second certificate is issued for a request that has one.
func TestRecordsAreRightWhenAnswersAreLost(t *testing.T) {
	kit.Parallel(t)
	cases := map[string]faults.Action{
		"no-fault":                     {},
		"500":                          faults.Answer(500),
		"500-landed":                   faults.Answer(500).Landed(),
		"503-landed-client-go-repeats": faults.AnswerRetryAfter(503, time.Second).Landed(),
		"429-client-go-repeats":        faults.AnswerRetryAfter(429, time.Second),
		"429":                          faults.Answer(429),
		"409":                          faults.Answer(409),
		"reset":                        faults.Reset(),
		"reset-landed":                 faults.Reset().Landed(),
		"connection-reset-landed":      faults.ResetConnection().Landed(),
	}
	// A request of its own for each write: the connection that is reset under an approval may carry the signer's write too.
	writes := []string{"approval", "status"}
	var rules []faults.Rule // set once: new rules would end the watches, which come back later each time
	for name, do := range cases {
		for _, write := range writes {
			rules = append(rules, faults.Rule{
				Verbs: []string{"update"}, Path: regexp.MustCompile("/lost-" + name + "-" + write + "/" + write + "$"), Times: 1, Do: do,
			})
		}
	}
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t), rules...)
	records := filepath.Join(t.TempDir(), "audit.log")
	kit.StartLoopAs(t, proxy.Config, csrenv.Options{Customize: func(o *controllers.Options) { o.Audit = openAudit(t, records) }})
	kit.GrantJoining(t, "joiner")
	for name, do := range cases {
		for _, write := range writes {
			t.Run(name+"/"+write, func(t *testing.T) {
				obj := kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "lost", func(obj *kit.Request) {
					obj.GenerateName, obj.Name = "", "lost-"+name+"-"+write
				})), csr.Issued)
				landed := do.String() == "" || strings.HasSuffix(do.String(), "landed")
				certificates := 1
				if write == "status" && !landed || write == "approval" && name == "connection-reset-landed" {
					certificates = 2
				}
				kit.Eventually(t, "the records are complete", func(context.Context) error {
					return rightRecords(t, kit.ReadAudit(t, records), obj, certificates)
				})
			})
		}
	}
	for i, applied := range proxy.Applied() {
		kit.Check(t, applied == 1, "the rule for %s was applied %d times", rules[i].Path, applied)
	}
}

// rightRecords returns an error if the records do not tell one decision about obj and its certificate, or if they tell
// more certificates than most. Each certificate that obj does not have is uncertain or discarded.
func rightRecords(t *testing.T, records []audit.Record, obj *kit.Request, most int) error {
	t.Helper()
	decided, stored, last := 0, fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, obj).Raw)), map[string]audit.Event{} // by certificate
	for _, record := range records {
		switch {
		case record.UID != obj.UID:
		case record.Event == audit.Decided:
			decided++
		case record.Event == audit.NotStored:
			decided--
		default:
			last[record.CertificateSHA256] = record.Event
		}
	}
	if of := last[stored]; decided != 1 || of != audit.Signed && of != audit.Stored || len(last) > most {
		return fmt.Errorf("%d decisions, the certificate %s, of the certificates %v", decided, stored, last)
	}
	for certificate, event := range last {
		if certificate != stored && event != audit.Uncertain && event != audit.Discarded {
			return fmt.Errorf("the last record of certificate %s, which is not stored, is %s", certificate, event)
		}
	}
	return nil
}

// TestWhatEtcdCannotStoreIsFailed makes a request so large, by its labels, that etcd has room for a Failed condition
// but not for a certificate. The audit log says that the certificate was discarded. A slightly smaller request gets its
// certificate.
func TestWhatEtcdCannotStoreIsFailed(t *testing.T) {
	kit.Parallel(t)
	records := filepath.Join(t.TempDir(), "audit.log")
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Audit, o.Signer.RequestLimits = openAudit(t, records), csr.Limits{Entries: 1 << 20, ObjectBytes: 2 << 20}
	}}, "signer", "cleaner")
	const limit = 1536 << 10 // etcd's --max-request-bytes
	obj := storeLarge(t, limit-1200)
	failsAs(t, obj, "RequestTooLarge", "does not fit into an object")
	kit.Eventually(t, "the records are complete", func(context.Context) error {
		var said []audit.Event
		for _, record := range kit.ReadAudit(t, records) {
			if record.UID == obj.UID {
				said = append(said, record.Event)
			}
		}
		want := []audit.Event{audit.Signed, audit.Discarded, audit.NotSigned}
		return kit.OrError(slices.Equal(said, want), "records %v, want %v", said, want)
	})
	kit.Reaches(t, storeLarge(t, limit-5<<10), csr.Issued)
}

// storeLarge stores an approved request of about size bytes, most of them labels, because annotations may not be so
// long. The API server drops its managed fields, because they do not fit.
func storeLarge(t *testing.T, size int) *kit.Request {
	t.Helper()
	obj := kit.NodeRequest(t, "large")
	obj.Labels = map[string]string{}
	prefix := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60)
	for left := size - obj.Size(); left > 0; left = size - obj.Size() {
		for range 1 + left/300 { // a label takes less than 300 bytes
			obj.Labels[fmt.Sprintf("%s/a%05d", prefix, len(obj.Labels))] = ""
		}
	}
	return kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), obj))
}

// TestClocksOfApprovers approves requests as clients with wrong clocks do. It expects certificates, and that the cleaner counts an hour
// from the API server's time of the approval, or a day from the creation if the time is to come. A requester who records a time for an approval in advance changes nothing.
func TestClocksOfApprovers(t *testing.T) {
	kit.Parallel(t)
	steps := clocktesting.NewFakeClock(time.Now())
	kit.StartLoop(t, csrenv.Options{Clock: steps})
	aDayAgo := kit.ClientRequest(t, "waits")
	aDayAgo.Spec.Username = "waits"
	aDayAgo.ManagedFields = []metav1.ManagedFieldsEntry{{ // an API server records writes only if it recorded the creation
		Manager: "requester", Operation: "Update", APIVersion: "certificates.k8s.io/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:generateName":{}}}`),
	}}
	stored(t, "waits", aDayAgo, -22*time.Hour)
	recorded := kit.ClientRequest(t, "")
	recorded.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "requester", Operation: "Update", APIVersion: "certificates.k8s.io/v1", Subresource: "approval", FieldsType: "FieldsV1",
		Time:     &metav1.Time{Time: time.Now().Add(8 * time.Hour)},
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Approved\"}":{".":{},"f:lastUpdateTime":{}}}}}`),
	}}
	all := []*kit.Request{aDayAgo, kit.CreateRequest(t, kit.Admin(t), recorded)}
	for i := range 4 { // the API server records nothing of a request whose metadata is only a name
		named := kit.ClientRequest(t, "")
		named.Name, named.GenerateName = fmt.Sprint("named-", i), ""
		all = append(all, kit.CreateRequest(t, kit.Admin(t), named))
	}
	for i, off := range []time.Duration{-2 * time.Hour, 0, -2 * time.Hour, -26 * time.Hour, 8 * time.Hour, 30 * time.Hour} {
		obj := kit.Reload(t, all[i])
		csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Approved by a test.", time.Now().Add(off))
		if added := &obj.Status.Conditions[0]; i%2 == 0 {
			added.LastTransitionTime = added.LastUpdateTime
		}
		kit.NoError(t, kit.Admin(t).SubResource("approval").Update(t.Context(), obj))
		kit.Reaches(t, obj, csr.Issued)
	}
	steps.Step(58 * time.Minute)
	kit.Reaches(t, kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, ""))), csr.Issued)
	for _, obj := range all {
		kit.IsIn(t, obj, csr.Issued)
	}
	steps.Step(3 * time.Minute)
	const ahead = 4 // both times of this one are to come, and no API server has recorded it
	for _, obj := range slices.Delete(slices.Clone(all), ahead, ahead+1) {
		kit.IsDeleted(t, obj)
	}
	kit.IsIn(t, all[ahead], csr.Issued)
	steps.Step(23 * time.Hour) // a day after its creation
	kit.IsDeleted(t, all[ahead])
}

// TestRequestsThatAreBeingDeleted checks that a request that a finalizer holds is neither approved nor signed.
func TestRequestsThatAreBeingDeleted(t *testing.T) {
	kit.Parallel(t)
	kit.GrantJoining(t, "joiner")
	held := func(obj *kit.Request) { obj.Finalizers = []string{"example.com/held"} }
	pending := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "pending", held))
	approved := kit.Approve(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "approved", held)))
	for _, obj := range []*kit.Request{pending, approved} {
		kit.Remove(t, obj)
		kit.AtEnd(t, func() error { return kit.Admin(t).Patch(context.Background(), obj, kit.NoFinalizers) })
	}
	kit.StartLoop(t, csrenv.Options{})
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "any")), csr.Issued)
	kit.IsIn(t, pending, csr.Pending)
	kit.IsIn(t, approved, csr.Approved)
}
