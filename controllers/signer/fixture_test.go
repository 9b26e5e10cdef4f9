package signer

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

const (
	clientSigner   = certificatesv1.KubeAPIServerClientSignerName
	kubeletClient  = certificatesv1.KubeAPIServerClientKubeletSignerName
	kubeletServing = certificatesv1.KubeletServingSignerName
	customSigner   = "example.com/custom"

	day  = 24 * time.Hour
	year = 365 * day
)

var (
	now      = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	requests = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	leafKey  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	weakKey  = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 1024)) })
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

type (
	request = certificatesv1.CertificateSigningRequest
	// edit is a change of a request.
	edit  = func(*request)
	asks  = x509.CertificateRequest
	usage = certificatesv1.KeyUsage
)

// object returns an approved request of a kubelet for a client certificate, with edits.
func object(edits ...edit) *request {
	obj := &request{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: kubeletClient,
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
			Username:   "system:bootstrap:abcdef",
		},
	}
	payload(&asks{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}}, leafKey())(obj)
	condition("Approved", "True")(obj)
	all(edits...)(obj)
	return obj
}

func all(edits ...edit) edit {
	return func(obj *request) {
		for _, change := range edits {
			if change != nil {
				change(obj)
			}
		}
	}
}

func payload(template *asks, key crypto.Signer) edit {
	der := must(x509.CreateCertificateRequest(rand.Reader, template, key))
	return content(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func content(data []byte) edit { return func(obj *request) { obj.Spec.Request = data } }

// asking changes what the payload asks for, and signs it again with key.
func asking(key crypto.Signer, change func(*asks)) edit {
	return func(obj *request) {
		block, _ := pem.Decode(obj.Spec.Request)
		asked := must(x509.ParseCertificateRequest(block.Bytes))
		asked.RawSubject, asked.SignatureAlgorithm = nil, 0 // they would prevail over the rest
		asked.Attributes = nil                              //nolint:staticcheck // it is deprecated, and would prevail, too
		change(asked)
		payload(asked, key)(obj)
	}
}

func with(change func(*asks)) edit { return asking(leafKey(), change) }
func keyed(key crypto.Signer) edit { return asking(key, func(*asks) {}) }
func dns(names ...string) edit     { return with(func(r *asks) { r.DNSNames = names }) }
func orgs(names ...string) edit    { return with(func(r *asks) { r.Subject.Organization = names }) }
func common(name string) edit      { return with(func(r *asks) { r.Subject.CommonName = name }) }
func node(name string) edit        { return common("system:node:" + name) }
func signerName(name string) edit  { return func(obj *request) { obj.Spec.SignerName = name } }
func usages(all ...usage) edit     { return func(obj *request) { obj.Spec.Usages = all } }
func certificate(pem string) edit  { return func(obj *request) { obj.Status.Certificate = []byte(pem) } }
func version(name string) edit     { return func(obj *request) { obj.ResourceVersion = name } }
func leaving(obj *request)         { obj.DeletionTimestamp = &metav1.Time{Time: now} }
func unapproved(obj *request)      { obj.Status.Conditions = nil }
func approvedAt(at metav1.Time) edit {
	return func(obj *request) { obj.Status.Conditions[0].LastUpdateTime = at }
}
func createdAt(at time.Time) edit {
	return func(obj *request) { obj.CreationTimestamp = metav1.NewTime(at) }
}
func keyOf(obj *request) fairqueue.Key { return fairqueue.KeyOf(obj, csr.Limits{}.NodeOf(obj)) }

var serving = all(signerName(kubeletServing), usages("digital signature", "server auth"))

func condition(kind certificatesv1.RequestConditionType, status corev1.ConditionStatus) edit {
	return func(obj *request) {
		obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: kind, Status: status, LastUpdateTime: metav1.NewTime(now),
		})
	}
}

// forged changes the name in a payload that is signed already.
func forged(obj *request) {
	block, _ := pem.Decode(obj.Spec.Request)
	block.Bytes = bytes.Replace(block.Bytes, []byte("system:node:a"), []byte("system:node:b"), 1)
	obj.Spec.Request = pem.EncodeToMemory(block)
}

// trimmed makes obj what a cache keeps of it. The cache keeps the requests for our signers whole.
func trimmed(ours func(signerName string) bool) edit {
	return func(obj *request) {
		trimmed, err := csr.Trim{Ours: ours}.Transform(obj.DeepCopy())
		*obj = *must(trimmed.(*request), err)
	}
}

type root struct{ cert, key []byte }

// newRoot returns a CA that is valid from an hour before now to lifetime after now.
func newRoot(lifetime time.Duration) root {
	authority, key, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: lifetime}, now)
	return root{must(authority, err).CertificatePEM(), key}
}

// newPair returns a KeyPair that is named after a Secret, like a pair after SetupWithManager.
func newPair() (*keypair.KeyPair, *clocktesting.FakePassiveClock, *events.FakeRecorder) {
	pair := keypair.New(keypair.Secret{Namespace: "ns", Name: "ca"})
	clock, recorder := clocktesting.NewFakePassiveClock(now), events.NewFakeRecorder(100)
	pair.Clock, pair.Recorder = clock, recorder
	return pair, clock, recorder
}

func taken(recorder *events.FakeRecorder) (taken []string) {
	for len(recorder.Events) > 0 {
		taken = append(taken, <-recorder.Events)
	}
	return taken
}

// world holds a Reconciler and everything that it uses.
type world struct {
	*Reconciler
	t        testing.TB
	ctx      context.Context
	pair     *keypair.KeyPair
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	key      fairqueue.Key
	served   *request   // by the cache
	written  []*request // also in vain
	log      string     // the file of the audit log

	getFault, writeFault error
	update               func(sent *request) error // instead of writeFault
	read                 func(obj *request) error  // changes what the API server shows after a failed write: served
}

// newWorld returns a manager with a CA for 1000 days that the cluster does not trust. Its cache holds an object with edits.
func newWorld(t testing.TB, edits ...edit) *world {
	pair, clock, recorder := newPair()
	w := &world{
		t: t, ctx: t.Context(), clock: clock, recorder: recorder,
		served: object(edits...), log: filepath.Join(t.TempDir(), "audit.log"),
	}
	w.key = keyOf(w.served)
	w.Reconciler = &Reconciler{
		Signers:  map[string]Signer{customSigner: {Profile: profile(ca.ProfileConfig{}), Usages: []usage{"client auth"}}},
		Client:   interceptor.NewClient(nil, interceptor.Funcs{Get: w.cached, SubResourceUpdate: w.store}),
		Live:     interceptor.NewClient(nil, interceptor.Funcs{Get: w.live}),
		reporter: report.New(recorder, clock), Clock: clock, ServerTime: servertime.Of(clock),
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Audit: must(audit.Open(audit.Options{Path: w.log, MaxSize: 100})),
	}
	for _, name := range csr.BuiltinSigners() {
		w.Signers[name] = Signer{Profile: profile(ca.ProfileConfig{})}
	}
	w.use(pair)
	w.load(1000 * day)
	return w
}

func profile(config ca.ProfileConfig) ca.Profile { return must(ca.NewProfile(config)) }

func (w *world) signer(name string, change func(*Signer)) {
	signer := w.Signers[name]
	change(&signer)
	w.Signers[name] = signer
}

func (w *world) use(pair *keypair.KeyPair) {
	w.pair, pair.Clock, pair.Recorder = pair, w.clock, w.recorder
	for name := range w.Signers {
		w.signer(name, func(s *Signer) { s.KeyPair = pair })
	}
}

func withoutCA(w *world) {
	pair, _, _ := newPair()
	w.use(pair)
}

// load gives the pair a CA with that lifetime that the cluster does not trust.
func (w *world) load(lifetime time.Duration) {
	w.untold(lifetime)
	w.trust(caTrust{})
}

// untold gives the pair a CA of which the trust is not known.
func (w *world) untold(lifetime time.Duration) {
	made := newRoot(lifetime)
	w.pair.Load(made.cert, made.key, nil)
	taken(w.recorder)
}

// trust makes it known what the cluster does with the CA.
func (w *world) trust(found caTrust) {
	found.authority = w.authority()
	w.trusts.Store(w.pair, found)
}

func (w *world) authority() *ca.Authority { return must(w.pair.Authority(now)) }

// cached is a read of the manager's client, and live a read past its cache. Calls that the signer may not make panic.
func (w *world) cached(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if w.getFault == nil {
		*obj.(*request) = *w.served // shared, like a cache read without a deep copy
	}
	return w.getFault
}

func (w *world) live(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	w.patient(ctx)
	*obj.(*request) = *w.served.DeepCopy()
	if w.read == nil {
		return nil
	}
	return w.read(obj.(*request))
}

func (w *world) store(ctx context.Context, _ client.Client, name string, obj client.Object, options ...client.SubResourceUpdateOption) error {
	w.patient(ctx)
	if by := (&client.SubResourceUpdateOptions{}).ApplyOptions(options).FieldManager; by != "csr-controller-manager" || name != "status" {
		w.t.Errorf("field manager %q of %s", by, name) // the client's user agent could be anything
	}
	w.written = append(w.written, obj.(*request).DeepCopy())
	if before, last := w.records(), obj.(*request).Status; len(before) < len(w.written) ||
		len(last.Certificate) == 0 && before[len(before)-1].Reason != last.Conditions[len(last.Conditions)-1].Reason {
		w.t.Errorf("written before it was recorded: %+v", before)
	}
	if w.update == nil {
		return w.writeFault
	}
	return w.update(obj.(*request))
}

// patient checks that a call may take longer than an admission webhook, which has 30 seconds, and outlives the manager.
func (w *world) patient(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || !ok || time.Until(deadline) < 30*time.Second {
		w.t.Errorf("the call ends at %s, %v", deadline, ctx.Err())
	}
}

// reconcile judges the request once. It returns what was written ("certificate", "Failed REASON: MESSAGE"), "again PAUSE",
// "error: TEXT" and the Events, one a line. A Failed condition is reported once it is stored; without its Event it is "tried Failed".
func (w *world) reconcile() string {
	w.t.Helper()
	before, count := w.served.DeepCopy(), len(w.written)
	result, err := w.Reconciler.reconcile(w.ctx, w.key)
	var lines []string
	told := taken(w.recorder)
	for _, sent := range w.written[count:] {
		want, line := before.DeepCopy(), "certificate"
		want.Status.Certificate = sent.Status.Certificate
		if len(sent.Status.Certificate) > 0 {
			w.leaf(sent)
		} else {
			last := sent.Status.Conditions[len(sent.Status.Conditions)-1]
			want.Status.Conditions = append(want.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: "Failed", Status: "True", Reason: last.Reason, Message: last.Message, // the API server adds the times
			})
			line = fmt.Sprintf("tried Failed %s: %s", last.Reason, last.Message)
			event := fmt.Sprintf("Warning %s signer %s refuses this request permanently: %s; a new request is needed",
				last.Reason, sent.Spec.SignerName, last.Message)
			if at := slices.Index(told, event); at >= 0 {
				told, line = slices.Delete(told, at, at+1), strings.TrimPrefix(line, "tried ")
			}
		}
		if diff := cmp.Diff(want, sent); diff != "" {
			w.t.Errorf("written (-want +got):\n%s", diff)
		}
		lines = append(lines, line)
	}
	if result.RequeueAfter > 0 {
		lines = append(lines, "again "+result.RequeueAfter.String())
	}
	if err != nil {
		lines = append(lines, "error: "+err.Error())
	}
	if diff := cmp.Diff(before, w.served); diff != "" {
		w.t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
	}
	return strings.Join(append(lines, told...), "\n")
}

// leaf returns the only certificate in sent. It must be for no CA, and verify until its end.
func (w *world) leaf(sent *request) *x509.Certificate {
	w.t.Helper()
	certs := must(ca.ParseCertificates(sent.Status.Certificate))
	if len(certs) != 1 || certs[0].IsCA || !certs[0].BasicConstraintsValid {
		w.t.Fatalf("%d certificates, the first for a CA: %t", len(certs), certs[0].IsCA)
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	options.Roots.AddCert(w.authority().Certificate())
	for _, options.CurrentTime = range []time.Time{w.clock.Now(), certs[0].NotAfter} {
		if _, err := certs[0].Verify(options); err != nil {
			w.t.Errorf("at %s: %v", options.CurrentTime, err)
		}
	}
	return certs[0]
}

func (w *world) last() *x509.Certificate { return w.leaf(w.written[len(w.written)-1]) }

func (w *world) records() (all []audit.Record) {
	data, _ := os.ReadFile(w.log) // without a record there is no file
	for line := range bytes.Lines(data) {
		var record audit.Record
		if err := json.Unmarshal(line, &record); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, record)
	}
	return all
}

// recorded returns the kinds of all records, with the reasons of those that have one.
func (w *world) recorded() string {
	var all []string
	for _, record := range w.records() {
		all = append(all, strings.TrimSpace(string(record.Event)+" "+record.Reason))
	}
	return strings.Join(all, ", ")
}

type row struct {
	change edit         // of the request
	world  func(*world) // what is different from newWorld
	want   string       // what reconcile returns, or its beginning if it ends with "…". KEY is the key ID of the CA.
}

// check runs a table. What waits must say so once, and nothing else may happen at the second attempt.
func check(t *testing.T, rows map[string]row) {
	t.Helper()
	for name, test := range rows {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, all(test.change))
			if test.world != nil {
				test.world(w)
			}
			got := w.reconcile()
			is(t, got, test.want, w.pair)
			if !strings.HasPrefix(got, "again") {
				return
			}
			again, _, _ := strings.Cut(got, "\n")
			is(t, w.reconcile(), again, w.pair)
		})
	}
}

// is checks what reconcile returned against the want of a row.
func is(t testing.TB, got, want string, pair *keypair.KeyPair) {
	t.Helper()
	if authority, err := pair.Authority(now); err == nil {
		want = strings.ReplaceAll(want, "KEY", authority.KeyID())
	}
	if prefix, open := strings.CutSuffix(want, "…"); got != want && (!open || !strings.HasPrefix(got, prefix)) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// names numbers the signers of newCounted.
var names atomic.Int64

// newCounted returns a world with a request for a signer of its own. So no other test, and no earlier run of the same test, has changed
// the signer's metrics.
func newCounted(t testing.TB, edits ...edit) (*world, string) {
	t.Helper()
	name := fmt.Sprintf("example.com/counted-%d", names.Add(1))
	w := newWorld(t, signerName(name), all(edits...))
	w.Signers[name] = Signer{Profile: profile(ca.ProfileConfig{}), Usages: w.served.Spec.Usages, KeyPair: w.pair}
	return w, name
}

func valueOf(metric prometheus.Metric) float64 {
	value := &dto.Metric{}
	_ = must(value, metric.Write(value))
	return value.GetCounter().GetValue() + value.GetGauge().GetValue()
}
