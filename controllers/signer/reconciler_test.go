package signer

import (
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/servertimetest"
)

// TestReconcileSigns checks what is signed. Every other table checks the written object and the chain of the certificate, too.
func TestReconcileSigns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	is(t, w.reconcile(), "certificate", w.pair)
	cert := w.last()
	got := []any{
		cert.Subject.String(), cert.KeyUsage, cert.ExtKeyUsage, cert.NotAfter.Sub(cert.NotBefore),
		leafKey().PublicKey.Equal(cert.PublicKey.(*ecdsa.PublicKey)),
	}
	want := []any{
		"CN=system:node:a,O=system:nodes", x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, year, true,
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
	t.Parallel()
	address := with(func(r *asks) { r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} })
	custom := all(signerName(customSigner), usages("client auth"))
	huge := content([]byte(strings.Repeat("x", 200<<10)))
	check(t, map[string]row{
		"kubelet client with names": {
			change: dns("a"), want: "Failed SignerValidationFailure: DNS subjectAltNames are not allowed"},
		"kubelet serving by address": {
			change: all(serving, usages("digital signature", "key encipherment", "server auth"), address), want: "certificate"},
		"kubelet serving without names": {
			change: serving, want: "Failed SignerValidationFailure: DNS or IP subjectAltName is required"},
		"client with names": {change: all(person, dns("a")), want: "certificate"},
		"client, masters":   {change: all(person, orgs("system:masters")), want: neverUser("CN=a,O=system:masters", "O=system:*")},
		"client of Kubernetes": {
			change: all(person, common("system:kube-scheduler")), want: neverUser("CN=system:kube-scheduler,O=team", "CN=system:*")},
		"client of kubeadm": {change: all(person, orgs("team", "kubeadm:cluster-admins")),
			want: neverUser("CN=a,O=team+O=kubeadm:cluster-admins", "O=kubeadm:*")},
		"client, name of kubeadm":       {change: all(person, common("kubeadm:a")), want: neverUser("CN=kubeadm:a,O=team", "CN=kubeadm:*")},
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

// person makes a request of a user for kubernetes.io/kube-apiserver-client.
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

func zeroProfile(w *world) {
	w.signer(customSigner, func(s *Signer) { s.Profile = ca.Profile{} })
	forbidMasters(w)
}

func forbidNothing(w *world) {
	w.signer(customSigner, func(s *Signer) { s.Profile = profile(ca.ProfileConfig{ForbiddenSubjects: []string{}}) })
	forbidMasters(w)
}

// TestInputs signs requests with bad or surprising content from practice, and leaves those alone that are not its own. The
// numbers are those of the approver's TestInputs. Shapes, keys and lifetimes that pkg/csr and pkg/ca refuse or change are tested
// there.
func TestInputs(t *testing.T) {
	t.Parallel()
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
		"12 a wildcard for a client": {change: all(person, dns("*.a")), want: "certificate"},
		"12 percent signs elsewhere": {change: all(person, percent), want: "certificate"},
		"13 two organizations":       {change: orgs("system:nodes", "joiners"), want: "Failed SignerValidationFailure: …"},
		"13 system:masters":          {change: orgs("system:masters"), want: "Failed SignerValidationFailure: …"},
		"15 a signer name with one node": {
			change: all(signerName("interlink.example.com/node-a"), dns("a"))},
		"15 legacy-unknown, approved": {change: signerName("kubernetes.io/legacy-unknown")},
		"15 malformed, of another":    {change: all(signerName("example.com/foreign"), content(nil))},
		"20 pending":                  {change: unapproved},
		"20 Approved and Denied":      {change: condition("Denied", "True")},
		"20 Approved and Failed":      {change: condition("Failed", "True")},
		"20 Failed is False":          {change: condition("Failed", "False"), want: "certificate"},
		"20 years after creation":     {change: createdAt(now.AddDate(-2, 0, 0)), want: "certificate"},
		"20 another UID":              {world: func(w *world) { w.key.UID = "earlier" }},
		"20 approved, but trimmed by a cache of another configuration": {change: trimmed(func(string) bool { return false })},
		"23 nothing": {change: content(nil), want: noPEM},
		"23 another block after": {
			change: func(obj *request) { obj.Spec.Request = append(obj.Spec.Request, obj.Spec.Request...) }, want: "certificate"},
		"24 a certificate that cannot be parsed": {change: certificate("nonsense")},
	})
}

// TestJudgeNamesABug checks that a request that is not parsed, because of a bug and not of its content, waits. It never fails.
func TestJudgeNamesABug(t *testing.T) {
	t.Parallel()
	w := newWorld(t, trimmed(func(string) bool { return false })) // which Reconcile passes over
	const want = "spec.request is not in the cache; this is a bug in csr-controller-manager: report it with this request. " +
		"The request is parsed again within five minutes"
	if got := w.Judge(w.ctx, w.served).Result; got != (verdict.Result{Verdict: verdict.Wait, Reason: "InternalError", Message: want}) {
		t.Errorf("%+v, want that it waits: %s", got, want)
	}
}

// TestReconcileInTime checks that a request that is due for deletion is not signed, and that nothing is signed or marked as Failed
// while the clock is wrong or the time is unknown. A wrong clock does not make a fresh approval too old.
func TestReconcileInTime(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	const missing = "\nWarning CAMissing Secret ns/ca does not exist"
	w := newWorld(t)
	withoutCA(w)
	w.pair.Refuse(&keypair.Unavailable{Reason: "CAMissing", Message: "Secret ns/ca does not exist"})
	taken(w.recorder)
	is(t, w.reconcile(), "again 1s"+missing, w.pair)
	for _, age := range []time.Duration{5 * time.Second, 10 * time.Minute} {
		w.clock.SetTime(now.Add(age))
		is(t, w.reconcile(), "again "+csr.Pause(age).String(), w.pair)
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
	t.Parallel()
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
	t.Parallel()
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
		"another node": {change: node("c"), world: listed, want: "certificate"},
		"a renewal with a blocked certificate": {
			change: all(node("c"), madeWithIt), world: listed, want: "again 1s\nWarning CertificateBlocked …"},
		"not read yet": {world: unread, want: "again 1s\nWarning InventoryUnavailable …"},
	})
}

// TestDryRunSignsNothing checks each outcome. Of the requests that another signer has signed or failed, a dry run judges
// those that were approved less than a minute ago.
func TestDryRunSignsNothing(t *testing.T) {
	t.Parallel()
	const (
		wouldIssue = "again 1s\nNormal WouldIssue key KEY would sign the request"
		lateIssue  = "again 1m0s\nNormal WouldIssue key KEY would sign the request"
		wouldFail  = "again 1s\nWarning WouldFail SignerValidationFailure: signer kubernetes.io/kube-apiserver-client-kubelet refuses this " +
			"request permanently: usages did not match [client auth digital signature key encipherment]; a new request is needed"
		wouldWait   = "again 1s\nWarning WouldWait CAMissing: Secret ns/ca has not been read yet"
		wouldIgnore = "again 50m0s\nWarning WouldIgnore RequestTooOld: the request is approved, but due for deletion since " +
			"2026-03-01T13:00:00Z and no longer signed; a new request is needed"
	)
	dry := func(later time.Duration) func(*world) {
		return func(w *world) {
			w.DryRun = true
			w.clock.SetTime(now.Add(later))
		}
	}
	dryWithoutCA := func(w *world) {
		w.DryRun = true
		withoutCA(w)
	}
	noClient, issued, failed := usages("digital signature"), certificate("x"), condition("Failed", "True")
	check(t, map[string]row{
		"approved":                       {world: dry(0), want: wouldIssue},
		"approved, no CA":                {world: dryWithoutCA, want: wouldWait},
		"a request that fails":           {change: noClient, world: dry(0), want: wouldFail},
		"too old":                        {world: dry(2 * time.Hour), want: wouldIgnore},
		"signed by another a moment ago": {change: issued, world: dry(signedFor), want: lateIssue},
		"failed by another a moment ago": {change: failed, world: dry(0), want: wouldIssue},
		"signed, but it would fail":      {change: all(noClient, issued), world: dry(0), want: wouldFail},
		"signed by another long ago":     {change: issued, world: dry(signedFor + 1)},
		"failed by another long ago":     {change: failed, world: dry(signedFor + 1)},
		"signed without an approval":     {change: all(unapproved, issued), world: dry(0)},
		"another signer":                 {change: signerName("example.com/other"), world: dry(0)},
	})
}

// event passes an event about obj to w. It returns how many requests it queues.
func (w *world) event(kind string, obj *request) int {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[fairqueue.Key]())
	defer queue.ShutDown()
	switch events := fairqueue.Events(w.observe, w.forget); kind {
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
	t.Parallel()
	w := newWorld(t)
	for name, change := range map[string]edit{
		"waits":   all(),
		"foreign": signerName("example.com/foreign"),
		"pending": unapproved,
		"denied":  condition("Denied", "True"),
		"failed":  condition("Failed", "True"),
		"issued":  certificate("x"),
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
	t.Parallel()
	w := newWorld(t)
	pairs := w.keyPairs()
	if want := len(csr.BuiltinSigners()) + 1; len(pairs) != 1 || len(pairs[0].Signers) != want { // and a custom signer
		t.Errorf("%d key pairs, of signers %q, want one of %d signers", len(pairs), pairs[0].Signers, want)
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
