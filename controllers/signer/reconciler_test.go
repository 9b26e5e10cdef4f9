package signer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/servertimetest"
)

// TestReconcileSigns checks what is signed. Every other table checks the written object and the chain of the certificate, too.
func TestReconcileSigns(t *testing.T) {
	w := newWorld(t)
	is(t, w.reconcile(), "certificate", w.pair)
	cert := w.last()
	got := []any{cert.Subject.String(), cert.KeyUsage, cert.ExtKeyUsage, cert.NotAfter.Sub(cert.NotBefore), cert.PublicKey}
	want := []any{
		"CN=system:node:a,O=system:nodes", x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, year, leafKey().Public(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("certificate (-want +got):\n%s", diff)
	}
}

const (
	badClientUsages = "Failed SignerValidationFailure: usages did not match [client auth digital signature key encipherment]"
	neverMasters    = `Failed SubjectNotPermitted: subject "CN=system:node:a,O=system:masters" is not permitted: ` +
		"this signer never issues O=system:masters"
	tooWeak      = "Failed KeyTooWeak: RSA key of 1024 bits is too weak: at least 2048 bits are needed"
	unrecognized = `Failed UsagesNotPermitted: unrecognized usage values: ["magic"]`
	noPEM        = "Failed Malformed: spec.request is not a PEM block of type CERTIFICATE REQUEST"
	tooLarge     = "Failed RequestTooLarge: spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)"
)

// TestCheck checks the rules of each signer, and which one comes first. TestAnEndedCABlocksEveryRequest has what is permitted.
func TestCheck(t *testing.T) {
	address := with(func(r *asks) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} })
	custom := all(signerName(customSigner), usages("client auth"))
	huge := content([]byte(strings.Repeat("x", 200<<10)))
	check(t, map[string]row{
		"kubelet client with names": {change: dns("a"), want: "Failed SignerValidationFailure: DNS subjectAltNames are not allowed"},
		"kubelet serving by address": {
			change: all(serving, usages("digital signature", "key encipherment", "server auth"), address), want: "certificate"},
		"kubelet serving without names": {change: serving, want: "Failed SignerValidationFailure: DNS or IP subjectAltName is required"},
		"client with names":             {change: all(person, dns("a")), want: "certificate"},
		"client, masters": {change: all(person, orgs("team", "system:masters")),
			want: neverUser("CN=a,O=team+O=system:masters", "O=system:masters")},
		"client, component":             {change: all(person, common("system:kube-scheduler")), want: "certificate"},
		"client, agent":                 {change: all(person, common("system:ovn-node:w1"), orgs("system:ovn-nodes")), want: "certificate"},
		"client, kubeadm":               {change: all(person, orgs("team", "kubeadm:cluster-admins")), want: "certificate"},
		"client, configured, agent":     {change: all(person, common("system:a")), world: forbidComponents, want: neverUser("CN=system:a,O=team", "CN=system:*")},
		"client, forbids nothing":       {change: all(person, orgs("system:masters")), world: forbidNothing, want: "certificate"},
		"custom with names":             {change: all(custom, dns("a")), want: "certificate"},
		"custom, system:masters":        {change: all(custom, orgs("system:masters")), world: forbidMasters, want: neverMasters},
		"custom, zero profile, masters": {change: all(custom, orgs("system:masters")), world: zeroProfile, want: neverMasters},
		"custom, forbids nothing":       {change: all(custom, orgs("system:masters")), world: forbidNothing, want: "certificate"},
		"custom, another usage": {
			change: all(custom, usages("client auth", "server auth")),
			want:   `Failed UsagesNotPermitted: usage "server auth" is not permitted: signer example.com/custom permits ["client auth"]`},
		"custom, unknown usage": {change: all(custom, usages("magic")), want: unrecognized},

		"Kubernetes' rules come first":     {change: all(keyed(weakKey()), usages("server auth")), want: badClientUsages},
		"usages come before the key":       {change: all(custom, keyed(weakKey()), usages("magic")), want: unrecognized},
		"the key comes before the subject": {change: all(signerName(clientSigner), orgs("system:masters"), keyed(weakKey())), want: tooWeak},
		"all of it comes before the CA":    {change: usages("magic"), world: withoutCA, want: badClientUsages},
		"too large":                        {change: huge, world: withoutCA, want: tooLarge},
		"too large, trimmed to zeros":      {change: all(huge, trimmed(nil)), want: tooLarge},
		"a forged signature": {change: forged,
			want: "Failed Malformed: the signature in spec.request does not match its public key: x509: ECDSA verification failure"},
	})
}

var person = all(signerName(clientSigner), common("a"), orgs("team"))

// neverUser returns the outcome of a user whom that signer never makes.
func neverUser(subject, pattern string) string {
	return `Failed SubjectNotPermitted: subject "` + subject + `" is not permitted: this signer never issues ` + pattern
}

// forbidMasters completes the profiles, like SetupWithManager. The default is safe.
func forbidMasters(w *world) {
	if err := w.FillProfiles(); err != nil {
		w.t.Fatal(err)
	}
}

func forbidComponents(w *world) {
	w.signer(clientSigner, func(s *Signer) { s.Profile = profile(ca.ProfileConfig{ForbiddenSubjects: csr.ComponentSubjects()}) })
}

func zeroProfile(w *world) {
	w.signer(customSigner, func(s *Signer) { s.Profile = ca.Profile{} })
	forbidMasters(w)
}

func forbidNothing(w *world) {
	for name := range w.Signers {
		w.signer(name, func(s *Signer) { s.Profile = profile(ca.ProfileConfig{ForbiddenSubjects: []string{}}) })
	}
	forbidMasters(w)
}

// TestInputs signs requests with bad or surprising content from practice, and leaves those alone that are not its own. The
// numbers are those of the approver's TestInputs. Shapes, keys and lifetimes that pkg/csr and pkg/ca refuse or change are tested
// there.
func TestInputs(t *testing.T) {
	extended := with(func(r *asks) {
		r.ExtraExtensions = []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}},
			{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}},
		}
	})
	percent := with(func(r *asks) {
		r.Subject.CommonName, r.URIs = "100%", []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/%"}}
	})
	check(t, map[string]row{
		"12 CA:TRUE and an extension": {change: extended, want: "certificate"},
		"12 two names in one, for serving": {
			change: all(serving, dns("::ffff:10.9.0.1%, DNS:kubernetes.default.svc")), want: "Failed NameNotPermitted: …"},
		"12 a wildcard for a client":         {change: all(person, dns("*.a")), want: "certificate"},
		"12 percent signs elsewhere":         {change: all(person, percent), want: "certificate"},
		"13 two organizations":               {change: orgs("system:nodes", "joiners"), want: "Failed SignerValidationFailure: …"},
		"13 system:masters":                  {change: orgs("system:masters"), want: "Failed SignerValidationFailure: …"},
		"15 a signer name with one node":     {change: all(signerName("interlink.example.com/node-a"), dns("a"))},
		"15 legacy-unknown, approved":        {change: signerName("kubernetes.io/legacy-unknown")},
		"15 malformed, of another":           {change: all(signerName("example.com/foreign"), content(nil))},
		"20 pending":                         {change: unapproved},
		"20 Approved and Denied":             {change: condition("Denied", "True")},
		"20 Approved and Failed":             {change: condition("Failed", "True")},
		"20 Failed is False":                 {change: condition("Failed", "False"), want: "certificate"},
		"20 being deleted":                   {change: leaving},
		"20 being deleted, cannot be signed": {change: all(usages("magic"), leaving)},
		"20 years after creation":            {change: createdAt(now.AddDate(-2, 0, 0)), want: "certificate"},
		"20 another UID":                     {world: func(w *world) { w.key.UID = "earlier" }},
		"20 approved, but trimmed by a cache of another configuration": {change: trimmed(func(string) bool { return false })},
		"23 nothing": {change: content(nil), want: noPEM},
		"23 another block after": {
			change: func(obj *request) { obj.Spec.Request = append(obj.Spec.Request, obj.Spec.Request...) }, want: "certificate"},
		"24 a certificate that cannot be parsed": {change: certificate("nonsense")},
	})
}

// TestCheckNamesABug checks that a request that is not parsed, because of a bug and not of its content, waits. It never fails.
func TestCheckNamesABug(t *testing.T) {
	w := newWorld(t, trimmed(func(string) bool { return false })) // which reconcile passes over
	const want = "spec.request is not in the cache; this is a bug in csr-controller-manager: report it with this request. " +
		"The request is parsed again within five minutes"
	if got := w.Check(w.ctx, w.served).Decision; got != (judge.Decision{Verdict: judge.Wait, Reason: "InternalError", Message: want}) {
		t.Errorf("%+v, want that it waits: %s", got, want)
	}
}

// TestReconcileInTime checks that a request that is due for deletion is not signed, and that nothing is signed or marked as Failed
// while the clock is wrong or the time is unknown. A wrong clock does not make a fresh approval too old.
func TestReconcileInTime(t *testing.T) {
	const tooOld = "again 50m0s\nWarning RequestTooOld the request is approved, but due for deletion since 2026-03-01T13:00:00Z " +
		"and no longer signed; a new request is needed"
	const unknown = "again 1s\nWarning ClockSkewed the time of the API servers is unknown…"
	const skewed = "again 10s\nWarning ClockSkewed the manager's clock is "
	later := func(by time.Duration) func(*world) { return func(w *world) { w.clock.SetTime(now.Add(by)) } }
	ahead := func(by time.Duration) func(*world) {
		return func(w *world) {
			w.clock.SetTime(now.Add(by))
			w.ServerTime = servertime.Apart(w.clock, clocktesting.NewFakePassiveClock(now))
		}
	}
	timeless := func(w *world) { w.ServerTime = &servertime.Clock{} }
	check(t, map[string]row{
		"an hour old":                  {world: later(time.Hour), want: "certificate"},
		"older":                        {world: later(time.Hour + 1), want: tooOld},
		"kubectl is two hours behind":  {change: approvedAt(metav1.NewTime(now.Add(-2 * time.Hour))), want: "certificate"},
		"kubectl is 26 hours behind":   {change: approvedAt(metav1.NewTime(now.Add(-26 * time.Hour))), world: later(time.Hour), want: "certificate"},
		"kubectl is eight hours ahead": {change: approvedAt(metav1.NewTime(now.Add(8 * time.Hour))), world: later(time.Hour + 1), want: "certificate"},
		"older, malformed":             {change: content(nil), world: later(time.Hour + 1), want: tooOld},
		"five minutes ahead":           {world: ahead(servertime.MaxSkew), want: "certificate"},
		"five minutes behind":          {world: ahead(-servertime.MaxSkew), want: "certificate"},
		"more than five minutes ahead": {world: ahead(servertime.MaxSkew + 1), want: skewed + "5m0s ahead of…"},
		"an hour behind":               {world: ahead(-61 * time.Minute), want: skewed + "1h1m0s behind…"},
		"set forward by 25 hours":      {world: ahead(25 * time.Hour), want: skewed + "25h0m0s ahead of…"},
		"unknown time, a failure":      {change: usages("magic"), world: timeless, want: unknown},
	})
	// The API server's clock is set back by a day. A request that is approved then seems to be a day old.
	server, set := servertimetest.Measured(t, 0)
	set(-day)
	made := time.Now().Add(-day)
	w := newWorld(t, createdAt(made), approvedAt(metav1.NewTime(made)))
	later(time.Since(now))(w)
	w.ServerTime = server
	is(t, w.reconcile(), skewed+"24h0m…", w.pair)
}

// TestReconcileWaitsForACA checks the pauses of a request while its CA is missing. They count from the approval, if its
// time is known.
func TestReconcileWaitsForACA(t *testing.T) {
	const missing = "\nWarning CAMissing Secret ns/ca does not exist"
	w := newWorld(t)
	withoutCA(w)
	w.pair.Refuse(&keypair.Unavailable{Reason: "CAMissing", Message: "Secret ns/ca does not exist"})
	taken(w.recorder)
	is(t, w.reconcile(), "again 1s"+missing, w.pair)
	for _, step := range [][2]time.Duration{{5 * time.Second, 5 * time.Second}, {10 * time.Minute, 5 * time.Minute}} {
		w.clock.SetTime(now.Add(step[0]))
		is(t, w.reconcile(), "again "+step[1].String(), w.pair)
	}
	w.load(year + day)
	is(t, w.reconcile(), "certificate", w.pair)

	timeless := all(createdAt(now.Add(-2*time.Minute)), approvedAt(metav1.Time{}))
	check(t, map[string]row{
		"approved now":            {change: createdAt(now.Add(-20 * time.Hour)), world: withoutCA, want: "again 1s\nWarning CAMissing …"},
		"approved without a time": {change: timeless, world: withoutCA, want: "again 2m0s\nWarning CAMissing …"},
	})
}

// TestAnEndedCABlocksEveryRequest checks for each signer that an acceptable request is signed, and that it waits and says
// so once the CA has expired.
func TestAnEndedCABlocksEveryRequest(t *testing.T) {
	acceptable := map[string]edit{
		clientSigner: all(person, usages("client auth")), kubeletClient: usages("digital signature", "client auth"),
		kubeletServing: all(usages("digital signature", "server auth"), dns("a")), customSigner: usages("client auth"),
	}
	for _, name := range append(csr.BuiltinSigners(), customSigner) {
		if acceptable[name] == nil {
			t.Errorf("%s: add a request that the signer accepts", name)
			continue
		}
		w := newWorld(t, acceptable[name], signerName(name))
		is(t, w.reconcile(), "certificate", w.pair)
		w.load(time.Minute)
		w.clock.SetTime(now.Add(2 * time.Minute))
		is(t, w.reconcile(), "again 2m0s\nWarning CAExpired …", w.pair)
	}
}

// TestReconcileObeysTheBlockList checks that no signer signs for a blocked node or for a request that was made with a blocked
// certificate, even if the request is approved. The request waits. pkg/blocklist tests what the list blocks.
func TestReconcileObeysTheBlockList(t *testing.T) {
	stolen := strings.Repeat("0123456789abcdef", 4)
	listed := func(w *world) {
		obj := &corev1.ConfigMap{Data: map[string]string{"nodes": "a\nb", "certificates": stolen}}
		obj.Namespace, obj.Name = "ns", "blocked"
		w.BlockList = blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
		w.BlockList.Offer(obj)
	}
	unread := func(w *world) { w.BlockList = blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"}) }
	madeWithIt := func(obj *request) {
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + stolen}}
	}
	check(t, map[string]row{
		"a kubelet's client certificate": {world: listed, want: `again 1s
Warning NodeBlocked node "a" is on the block list, ConfigMap ns/blocked: ` +
			"nothing is approved or signed for it until its name is removed from the list"},
		"another node":                         {change: node("c"), world: listed, want: "certificate"},
		"a renewal with a blocked certificate": {change: all(node("c"), madeWithIt), world: listed, want: "again 1s\nWarning CertificateBlocked …"},
		"not read yet":                         {world: unread, want: "again 1s\nWarning InventoryUnavailable …"},
	})
}

// TestDryRunSignsNothing checks each outcome. Of the requests that another signer has signed or failed, a dry run judges
// those that were approved less than a minute ago.
func TestDryRunSignsNothing(t *testing.T) {
	const (
		wouldIssue = "again 1s\nNormal WouldIssue key KEY would sign the request"
		lateIssue  = "again 1m0s\nNormal WouldIssue key KEY would sign the request"
		wouldFail  = "again 1s\nWarning WouldFail SignerValidationFailure: signer kubernetes.io/kube-apiserver-client-kubelet refuses this " +
			"request permanently: usages did not match [client auth digital signature key encipherment]; a new request is needed"
		wouldWait   = "again 1s\nWarning WouldWait CAMissing: Secret ns/ca has not been read yet"
		wouldIgnore = "again 50m0s\nWarning WouldIgnore RequestTooOld: the request is approved, but due for deletion since " +
			"2026-03-01T13:00:00Z and no longer signed; a new request is needed"
	)
	dry := func(later time.Duration, more ...func(*world)) func(*world) {
		return func(w *world) {
			w.DryRun = true
			w.clock.SetTime(now.Add(later))
			for _, change := range more {
				change(w)
			}
		}
	}
	noClient, issued, failed := usages("digital signature"), certificate("x"), condition("Failed", "True")
	check(t, map[string]row{
		"approved":                       {world: dry(0), want: wouldIssue},
		"approved, no CA":                {world: dry(0, withoutCA), want: wouldWait},
		"a request that fails":           {change: noClient, world: dry(0), want: wouldFail},
		"too old":                        {world: dry(2 * time.Hour), want: wouldIgnore},
		"signed by another a moment ago": {change: issued, world: dry(time.Minute), want: lateIssue},
		"failed by another a moment ago": {change: failed, world: dry(0), want: wouldIssue},
		"signed, but it would fail":      {change: all(noClient, issued), world: dry(0), want: wouldFail},
		"signed by another long ago":     {change: issued, world: dry(time.Minute + 1)},
		"failed by another long ago":     {change: failed, world: dry(time.Minute + 1)},
		"signed without an approval":     {change: all(unapproved, issued), world: dry(0)},
		"another signer":                 {change: signerName("example.com/other"), world: dry(0)},
		"signed, being deleted":          {change: all(issued, leaving), world: dry(0)},
	})
}

// event passes an event about obj to w. It returns how many requests it queues.
func (w *world) event(kind string, obj *request) int {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[fairqueue.Key]())
	defer queue.ShutDown()
	switch events := fairqueue.Events(w.enqueue, w.forget); kind {
	case "create":
		events.Create(w.ctx, event.TypedCreateEvent[*request]{Object: obj}, queue)
	case "update":
		events.Update(w.ctx, event.TypedUpdateEvent[*request]{ObjectOld: object(), ObjectNew: obj}, queue)
	case "delete":
		events.Delete(w.ctx, event.TypedDeleteEvent[*request]{Object: obj}, queue)
	}
	return queue.Len()
}

func named(name string) edit {
	return func(obj *request) { obj.Name, obj.UID = name, types.UID("uid-of-"+name) }
}

// TestOnlyWhatWaitsIsQueued checks which requests an event queues, and that a finished or deleted one is forgotten, with what was
// reported about it.
func TestOnlyWhatWaitsIsQueued(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]edit{
		"waits":   all(),
		"foreign": signerName("example.com/foreign"),
		"pending": unapproved,
		"denied":  condition("Denied", "True"),
		"failed":  condition("Failed", "True"),
		"issued":  certificate("x"),
		"leaving": leaving,
		"trimmed": trimmed(func(string) bool { return false }),
	} {
		before, after := w.event("create", object(named(name))), w.event("update", object(named(name), change))
		if before != 1 || (after == 1) != (name == "waits") {
			t.Errorf("%s: %d queued before the change, and %d after it", name, before, after)
		}
	}
	waiting := func(want ...fairqueue.Key) {
		t.Helper()
		if all := w.waiting.All(); !slices.Equal(all, want) {
			t.Errorf("waiting are %v, want %v", all, want)
		}
	}
	waiting(keyOf(object(named("waits"))))
	again := object(named("waits"), func(obj *request) { obj.UID = "another" })
	w.event("update", again)
	waiting(keyOf(again))
	w.event("delete", again)
	waiting()

	withoutCA(w)
	for range 2 { // the outcome of a request that was made anew is reported again
		is(t, w.reconcile(), "again 1s\nWarning CAMissing …", w.pair)
		w.event("delete", w.served)
	}
}

// TestWaitingForAKeyPair checks that signers share a pair, which wakes the requests of its own signers, and no others.
func TestWaitingForAKeyPair(t *testing.T) {
	w := newWorld(t)
	pairs := w.keyPairs()
	if want := append([]string{customSigner}, csr.BuiltinSigners()...); len(pairs) != 1 || !slices.Equal(w.keyPairs()[0].Signers, want) {
		t.Errorf("%d key pairs, of signers %q, want one of %q", len(pairs), pairs[0].Signers, want)
	}
	other, _, _ := newPair()
	w.signer(kubeletServing, func(s *Signer) { s.KeyPair = other })
	for _, name := range []string{kubeletClient, customSigner, kubeletServing} {
		w.event("create", object(named(name), signerName(name)))
	}
	for pair, want := range map[*keypair.KeyPair]string{w.pair: customSigner + " " + kubeletClient, other: kubeletServing} {
		var names []string
		for _, key := range w.waitingFor(pair) {
			names = append(names, key.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q wait, want %q", got, want)
		}
	}
}

// Answers of an API server to a write.
var (
	errDown      = errors.New("down")
	errConflict  = apierrors.NewConflict(requests, "csr-1", errDown)
	errGone      = apierrors.NewNotFound(requests, "csr-1")
	errForbidden = apierrors.NewForbidden(requests, "csr-1", errDown)
	errInvalid   = apierrors.NewInvalid(schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "csr-1", nil)
	errTooLarge  = apierrors.NewRequestEntityTooLargeError("limit is 3145728")
)

// shows sets what the API server shows after a failed write.
func (w *world) shows(what string) {
	w.read = func(obj *request) error {
		switch what {
		case "unchanged":
		case "changed", "remade":
			obj.ResourceVersion = "8"
		case "stored":
			obj.Status, obj.ResourceVersion = w.written[0].DeepCopy().Status, "8"
		case "stored, remade":
			obj.Status = w.written[0].DeepCopy().Status
		case "another's certificate":
			all(version("8"), certificate("another"))(obj)
		case "another CA's certificate":
			made := newRoot(day)
			other := must(ca.Load(made.cert, made.key, nil))
			issued := must(other.Issue(w.Signers[obj.Spec.SignerName].Profile, must(csr.Parse(w.served)).Cert, now))
			all(version("8"), certificate(string(issued.PEM)))(obj)
		case "a former leader's certificate":
			issued := must(w.authority().Issue(w.Signers[obj.Spec.SignerName].Profile, must(csr.Parse(w.served)).Cert, now))
			all(version("8"), certificate(string(issued.PEM)))(obj)
		case "another's failure":
			condition("Failed", "True")(obj)
		case "gone":
			return errGone
		case "no answer":
			return errDown
		default:
			w.t.Errorf("read, though nothing is known of it: %q", what)
		}
		if strings.HasSuffix(what, "remade") {
			obj.UID = "another"
		}
		return nil
	}
}

const doesNotFit = "RequestTooLarge: the request does not fit into an object with its certificate: the API server refused it as too large; " +
	"make a request with fewer names, labels or annotations"

// TestEndOfACertificate checks that the audit log has the outcome of every certificate, whatever the write and the read
// after it answered. Only an outcome that cannot be known is recorded as uncertain.
func TestEndOfACertificate(t *testing.T) {
	const (
		isConflict = "error: update status: Operation cannot be fulfilled on …"
		isGone     = "error: update status: certificatesigningrequests.certificates.k8s.io \"csr-1\" not found"
		isDown     = "error: update status: down"
		isRefused  = "again 1s\nWarning NotStored the API server refuses to store the certificate of this request: …"
		isTooLarge = "Failed " + doesNotFit
		second     = "Warning SecondSigner another program has stored the certificate of this request, issued by "
		disable    = ", but this manager signs for SIGNER too: disable that signer in one of the two, and check the issuer of this certificate"
	)
	etcd := apierrors.NewInternalError(errors.New("etcdserver: request is too large"))
	client := apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = " +
		"trying to send message larger than max (2099474 vs. 2097152)"))
	unauthorized := apierrors.NewUnauthorized("no")
	for name, test := range map[string]struct {
		write error
		shows string // empty means that no read is expected
		end   string // what is recorded after Signed
		want  string // after the certificate
	}{
		"stored":                                  {nil, "", "", ""},
		"conflict, changed":                       {errConflict, "changed", "Discarded", ""},
		"conflict, stored by an earlier attempt":  {errConflict, "stored", "Stored", ""},
		"conflict with another signer":            {errConflict, "another's certificate", "Discarded", second + "an unknown CA" + disable},
		"conflict with another CA":                {errConflict, "another CA's certificate", "Discarded", second + `the CA "CN=CA"` + disable},
		"conflict with a former leader":           {errConflict, "a former leader's certificate", "Discarded", ""},
		"conflict, no change":                     {errConflict, "unchanged", "Uncertain", isConflict},
		"not found":                               {errGone, "gone", "Uncertain", ""},
		"not found, though it is stored":          {errGone, "stored", "Stored", ""},
		"unauthorized":                            {unauthorized, "unchanged", "Uncertain", "error: update status: no"},
		"forbidden":                               {errForbidden, "unchanged", "Discarded", isRefused},
		"forbidden, stored by an earlier attempt": {errForbidden, "stored", "Stored", ""},
		"forbidden, no answer":                    {errForbidden, "no answer", "Uncertain", isRefused},
		"invalid":                                 {errInvalid, "unchanged", "Discarded", isRefused},
		"no answer, stored":                       {errDown, "stored", "Stored", ""},
		"no answer, stored by another signer":     {errDown, "another's certificate", "Discarded", second + "…"},
		"no answer, changed":                      {errDown, "changed", "Discarded", ""},
		"no answer, deleted":                      {errDown, "gone", "Uncertain", ""},

		// The Failed condition is small enough for an object.
		"the API server refuses the size": {errTooLarge, "unchanged", "Discarded, NotSigned RequestTooLarge", isTooLarge},
		"etcd refuses the size":           {etcd, "unchanged", "Discarded, NotSigned RequestTooLarge", isTooLarge},
		"etcd's client refuses the size":  {client, "unchanged", "Discarded, NotSigned RequestTooLarge", isTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			w, signer := newCounted(t)
			w.shows(test.shows)
			w.update = func(sent *request) error {
				if len(sent.Status.Certificate) == 0 {
					return nil
				}
				return test.write
			}
			is(t, w.reconcile(), strings.TrimSuffix("certificate\n"+strings.ReplaceAll(test.want, "SIGNER", signer), "\n"), w.pair)
			is(t, w.recorded(), strings.TrimSuffix("Signed, "+test.end, ", "), w.pair)
			sum := sha256.Sum256(w.leaf(w.written[0]).Raw)
			for i, record := range slices.DeleteFunc(w.records(), func(record audit.Record) bool { return record.Event == audit.NotSigned }) {
				if record.CertificateSHA256 != hex.EncodeToString(sum[:]) || i > 0 && record.Message != test.write.Error() {
					t.Errorf("record %+v", record)
				}
			}
			one := map[bool]float64{true: 1}
			for counter, want := range map[*prometheus.CounterVec]float64{
				discardedTotal: one[strings.HasPrefix(test.end, "Discarded")], foreignTotal: one[strings.Contains(test.want, second)],
				outcomesTotal.MustCurryWith(prometheus.Labels{"outcome": "Issued", "reason": ""}): one[test.end == "" || test.end == "Stored"],
			} {
				if got := valueOf(counter.WithLabelValues(signer)); got != want {
					t.Errorf("%v certificates are counted by %v, want %v", got, counter.WithLabelValues(signer).Desc(), want)
				}
			}
		})
	}
}

// TestEndOfAFailure checks each fault of the write of a Failed condition, and of the cache. The outcome is recorded before the
// write, as the world checks. It is reported once it is stored, and never before. What was not stored is written again.
func TestEndOfAFailure(t *testing.T) {
	const (
		stored     = badClientUsages
		tried      = "tried " + badClientUsages
		isConflict = "\nerror: update status: Operation cannot be fulfilled on …"
		isGone     = "\nerror: update status: certificatesigningrequests.certificates.k8s.io \"csr-1\" not found"
		isDown     = "\nerror: update status: down"
		isRefused  = "\nagain 1s\nWarning NotStored the API server refuses to store the Failed condition (SignerValidationFailure: usages did not…"
	)
	for name, test := range map[string]struct {
		write error
		shows string
		want  string
	}{
		"stored":                               {nil, "", stored},
		"conflict, no change":                  {errConflict, "unchanged", tried + isConflict},
		"changed meanwhile":                    {errConflict, "changed", tried},
		"deleted meanwhile":                    {errGone, "gone", tried},
		"forbidden":                            {errForbidden, "unchanged", tried + isRefused},
		"invalid":                              {errInvalid, "unchanged", tried + isRefused},
		"too large, too":                       {errTooLarge, "unchanged", tried + isRefused},
		"no answer, not stored":                {errDown, "unchanged", tried + isDown},
		"no answer, stored":                    {errDown, "stored", stored},
		"another Failed condition of a person": {errDown, "another's failure", tried + isDown},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, usages("magic"))
			w.shows(test.shows)
			w.writeFault = test.write
			is(t, w.reconcile(), test.want, w.pair)
			if records := w.recorded(); strings.Contains(records, "NotStored SignerValidationFailure") != (test.want != stored) {
				t.Errorf("records %s", records)
			}
			if test.want != stored {
				w.writeFault = nil
				is(t, w.reconcile(), stored, w.pair)
			}
		})
	}
	check(t, map[string]row{
		"gone from the cache": {world: func(w *world) { w.getFault = errGone }},
		"cannot be read":      {world: func(w *world) { w.getFault = errDown }, want: "error: down"},
		"a certificate and a failure that are too large": {
			world: func(w *world) { w.writeFault = errTooLarge },
			want: "certificate\ntried Failed " + doesNotFit +
				"\nagain 1s\nWarning NotStored the API server refuses to store the Failed condition (RequestTooLarge: …"},
		// The API server validates the payload at every update. So it never stores the condition of a malformed request.
		"malformed, invalid": {change: content(nil), world: func(w *world) { w.writeFault = errInvalid }, want: noPEM + "\nagain 1s"},
		"malformed, forbidden": {
			change: content(nil), world: func(w *world) { w.writeFault = errForbidden },
			want: "tried " + noPEM + "\nagain 1s\nWarning NotStored the API server refuses to store the Failed condition (Malformed: …"},
	})
}

// TestARefusedWriteIsTriedForEver checks the pauses while an admission policy refuses the write, and that the certificate or the
// Failed condition is stored once it permits it.
func TestARefusedWriteIsTriedForEver(t *testing.T) {
	for want, change := range map[string]edit{"certificate": all(), badClientUsages: usages("magic")} {
		w := newWorld(t, change)
		for _, w.writeFault = range []error{errForbidden, errInvalid} {
			for _, step := range [][2]time.Duration{{0, time.Second}, {2 * time.Minute, 2 * time.Minute}, {time.Hour, 5 * time.Minute}} {
				age, pause := step[0], step[1]
				w.clock.SetTime(now.Add(age))
				if result, err := w.Reconciler.reconcile(w.ctx, w.key); err != nil || result.RequeueAfter != pause {
					t.Errorf("%s, %v, at the age of %s: %+v, error %v", want, w.writeFault, age, result, err)
				}
			}
		}
		taken(w.recorder)
		w.writeFault = nil
		is(t, w.reconcile(), want, w.pair)
	}
}

// TestWritesOutliveTheManager checks that a recorded certificate is stored even if the manager stops meanwhile. The
// world checks that the write and the read after it have enough time.
func TestWritesOutliveTheManager(t *testing.T) {
	for _, change := range []edit{all(), usages("magic")} {
		w := newWorld(t, change)
		reads := 0
		w.writeFault = errDown
		w.read = func(*request) error {
			reads++
			return errDown
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.Reconciler.reconcile(ctx, w.key); err == nil || len(w.written) != 1 || reads != 1 {
			t.Errorf("%d writes, %d reads, error %v", len(w.written), reads, err)
		}
	}
}

// TestEachAttemptIssuesACertificate checks that nothing of a failed attempt is kept.
func TestEachAttemptIssuesACertificate(t *testing.T) {
	w := newWorld(t)
	different := map[string]bool{}
	for _, fault := range []error{apierrors.NewInternalError(errDown), errDown, errForbidden, nil} {
		w.writeFault = fault
		is(t, w.reconcile(), "certificate…", w.pair)
		different[w.last().SerialNumber.String()] = true
	}
	const want = "Signed, Uncertain, Signed, Uncertain, Signed, Discarded, Signed"
	if got := w.recorded(); len(different) != 4 || got != want {
		t.Errorf("%d certificates: %s", len(different), got)
	}
}

// TestAMismatchIsNeverStored removes a signer's rules for requests, like a defect in them. The finished certificate
// must be discarded, counted, recorded and reported at each attempt, and nothing may be written.
func TestAMismatchIsNeverStored(t *testing.T) {
	w, name := newCounted(t, usages("client auth"))
	req := w.Check(w.ctx, w.served).Request
	req.Cert.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 10}, Value: "system:masters"}}
	for range 2 {
		if result, err := w.act(w.ctx, w.served, w.sign(req, w.Signers[name])); err != nil || result.RequeueAfter != time.Second || len(w.written) > 0 {
			t.Errorf("%+v, error %v, wrote %d", result, err, len(w.written))
		}
	}
	told := strings.Join(taken(w.recorder), "\n")
	if !strings.HasPrefix(told, "Warning CertificateMismatch the issued certificate differs from the judged request: subject is") {
		t.Errorf("told %s", told)
	}
	mismatches, discarded := valueOf(mismatchesTotal.WithLabelValues(name)), valueOf(discardedTotal.WithLabelValues(name))
	if mismatches != 2 || discarded != 2 {
		t.Errorf("counted as a mismatch %v times, as discarded %v times", mismatches, discarded)
	}
	is(t, w.recorded(), "Discarded CertificateMismatch, Discarded CertificateMismatch", w.pair)
	if first := w.records()[0]; first.Serial == "" || first.IssuerKeyID != w.authority().KeyID() {
		t.Errorf("%+v", first)
	}
}

// TestVerifiersOfTheChainDecide gives the signer CAs whose name constraints or usages exclude requests. What names exclude
// fails for good. What the usages of the CA exclude waits until the operator has replaced the CA. A dry run says so too.
func TestVerifiersOfTheChainDecide(t *testing.T) {
	limited := func(change func(*x509.Certificate)) func(*world) {
		return func(w *world) {
			made := newLink("limited")
			template, key := made.cert, made.key
			template.NotBefore, template.NotAfter = now.Add(-day), now.Add(1000*day)
			change(template)
			der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
			w.pair.Load(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
				pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}), nil)
			taken(w.recorder)
			w.trust(caTrust{})
		}
	}
	byName := limited(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"corp.example"} })
	byUsage := limited(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	serving := all(signerName(certificatesv1.KubeletServingSignerName), usages("digital signature", "server auth"))
	const excluded = `the name constraints of the CA exclude the request: DNS name "a" is not permitted by any constraint; ` +
		`"CN=limited" permits ["corp.example"]`
	const unfit = "Secret ns/ca cannot sign this request: verifiers would refuse the certificate with the chain of " +
		`"CN=limited": x509: certificate specifies an incompatible key usage`
	check(t, map[string]row{
		"a name that is permitted":         {all(serving, dns("a.corp.example")), byName, "certificate…"},
		"a name that is not":               {all(serving, dns("a")), byName, "Failed NameNotPermitted: " + excluded + "…"},
		"no name":                          {nil, byName, "certificate…"},
		"a usage that is permitted":        {all(serving, dns("a")), byUsage, "certificate…"},
		"a usage that is not":              {nil, byUsage, "again 1s\nWarning CAInvalid " + unfit},
		"a dry run of a name that is not":  {all(serving, dns("a")), func(w *world) { byName(w); w.DryRun = true }, "again 1s\nWarning WouldFail NameNotPermitted: …"},
		"a dry run of a usage that is not": {nil, func(w *world) { byUsage(w); w.DryRun = true }, "again 1s\nWarning WouldWait CAInvalid: …"},
		"a usage that another CA permits":  {nil, func(w *world) { byUsage(w); w.reconcile(); w.load(day) }, "certificate…"},
	})
}

// TestLifetimesAreReported checks the gauge that alerts use. A CA that ends soon shortens it; a requester's own lifetime does
// not. A lifetime that is cut is reported and counted once the certificate is stored.
func TestLifetimesAreReported(t *testing.T) {
	w, signer := newCounted(t)
	const cut = "\nWarning LifetimeCut the certificate expires 8735h55m0s early, at 2026-03-02T12:00:00Z, because its CA expires then: replace the CA"
	for _, test := range []struct {
		ca     time.Duration
		wish   *int32
		fault  error
		want   string
		gauge  time.Duration
		counts string // issued and cut
	}{
		{10 * year, nil, nil, "certificate", year, "1 0"},
		{10 * year, new(int32(600)), nil, "certificate", year, "2 0"},
		{day, nil, errDown, "certificate\nerror: update status: down", year, "2 0"},
		{day, nil, nil, "certificate" + cut, day + 5*time.Minute, "3 1"},
	} {
		w.load(test.ca)
		w.writeFault = test.fault
		w.served = object(signerName(signer), func(obj *request) { obj.Spec.ExpirationSeconds = test.wish })
		is(t, w.reconcile(), test.want, w.pair)
		if got := valueOf(issuedLifetimeSeconds.WithLabelValues(signer)); got != test.gauge.Seconds() {
			t.Errorf("%v seconds, want %s", got, test.gauge)
		}
		issued, cut := valueOf(outcomesTotal.WithLabelValues(signer, "Issued", "")), valueOf(lifetimeCutTotal.WithLabelValues(signer))
		is(t, fmt.Sprint(issued, cut), test.counts, w.pair)
	}
}

type ledgerFunc func(keyID, signerName string, notAfter time.Time) error

func (f ledgerFunc) Cover(_ context.Context, keyID, signerName string, notAfter time.Time) error {
	return f(keyID, signerName, notAfter)
}

// guarded returns a world with a CA that ends after lifetime and may sign for one signer. cover is the ledger.
func guarded(t *testing.T, lifetime time.Duration, permit keypair.Permit, cover ledgerFunc) *world {
	t.Helper()
	w := newWorld(t)
	w.use(keypair.New(keypair.Guarded{Secret: keypair.Secret{Namespace: "ns", Name: "ca"}, Ledger: cover}))
	signing := newRoot(lifetime)
	permit.Authority = "cluster"
	ring := keypair.Ring{Signing: keypair.Pair{Cert: signing.cert, Key: signing.key}, Permit: permit}
	stored := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	stored.Namespace, stored.Name = "ns", "ca"
	if err := ring.WriteTo(stored.Data); err != nil {
		t.Fatal(err)
	}
	w.pair.Offer(stored)
	taken(w.recorder)
	return w
}

// TestCoveredBeforeItIsSigned checks that the ledger records the same end as the certificate, and records it first.
func TestCoveredBeforeItIsSigned(t *testing.T) {
	for name, test := range map[string]struct {
		lifetime, longest time.Duration // of the CA, and by the permit
		want              time.Duration // of the certificate
		told              string
	}{
		"the profile's lifetime":   {10 * year, 0, year - 5*time.Minute, "certificate"},
		"the permit's cap":         {10 * year, day, day - 5*time.Minute, "certificate"},
		"a cap above the profile":  {10 * year, 9999 * time.Hour, year - 5*time.Minute, "certificate"},
		"cut by the end of the CA": {time.Hour, day, time.Hour, "certificate\nWarning LifetimeCut …"},
	} {
		t.Run(name, func(t *testing.T) {
			var covered []string
			permit := keypair.Permit{Signers: []string{kubeletClient}, LifetimeCap: test.longest}
			w := guarded(t, test.lifetime, permit, func(keyID, signerName string, notAfter time.Time) error {
				covered = append(covered, keyID, signerName, notAfter.Sub(now).String())
				return nil
			})
			w.clock.SetTime(now.Add(servertime.MaxSkew)) // certificates have the API servers' time
			w.ServerTime = servertime.Apart(w.clock, clocktesting.NewFakePassiveClock(now))
			w.update = func(*request) error {
				if diff := cmp.Diff([]string{w.authority().KeyID(), kubeletClient, test.want.String()}, covered); diff != "" {
					t.Errorf("covered before the write (-want +got):\n%s", diff)
				}
				return nil
			}
			is(t, w.reconcile(), test.told, w.pair)
			if cert := w.last(); !cert.NotAfter.Equal(now.Add(test.want)) {
				t.Errorf("issued until %s", cert.NotAfter)
			}
		})
	}
}

// TestNothingIsSignedThatIsNotCovered checks that a failed ledger write is retried and reported once. If the permit does not name
// its signer, a request waits, and the ledger is not asked.
func TestNothingIsSignedThatIsNotCovered(t *testing.T) {
	const lost = "; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
		"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"
	for fault, todo := range map[error]string{
		errors.New("no route"):                                       "",
		fmt.Errorf("issue by key a: %w", ledger.ErrSealed):           "",
		fmt.Errorf("read the account of a: %w", ledger.ErrNoAccount): lost,
	} {
		w := guarded(t, day, keypair.Permit{Signers: []string{kubeletClient}}, func(string, string, time.Time) error { return fault })
		again := "error: " + fault.Error()
		is(t, w.reconcile(), again+"\nWarning LedgerUnavailable the certificate is not signed, because the CA's ledger cannot record it: "+
			fault.Error()+todo, w.pair)
		is(t, w.reconcile(), again, w.pair)
	}
	w := guarded(t, day, keypair.Permit{Signers: []string{kubeletServing}}, nil)
	is(t, w.reconcile(), "again 1s\nWarning CANotProven the CA in Secret ns/ca is not proven…", w.pair)
}
