package approver

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/slow"
)

var (
	requests  = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	errDown   = errors.New("down")
	conflict  = apierrors.NewConflict(requests, "csr-1", errDown)
	forbidden = apierrors.NewForbidden(requests, "csr-1", errDown)
)

// TestLostAnswerAboutADecision checks what is recorded, reported and counted after a write that failed, and that the next
// attempt decides what is not decided.
func TestLostAnswerAboutADecision(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: requests.Group, Kind: "CertificateSigningRequest"}, "csr-1", nil)
	gone := apierrors.NewNotFound(requests, "csr-1")
	type answer = func(p *parts) (*request, error)
	stored := func(p *parts) (*request, error) { return p.written[0].DeepCopy(), nil }
	unchanged := func(p *parts) (*request, error) { return p.served, nil }
	unread := func(*parts) (*request, error) { return &request{}, errDown }
	deleted := func(*parts) (*request, error) { return &request{}, gone }
	changed := func(p *parts) (*request, error) {
		return object(with("Denied"), func(obj *request) { obj.ResourceVersion = "8" }), nil
	}
	recreated := func(p *parts) (*request, error) {
		live := p.written[0].DeepCopy()
		live.UID, live.ResourceVersion = "another", "8"
		return live, nil
	}
	const refuses = "Warning NotStored the API server refuses to store the verdict Approve about this request: "
	const correct = "; correct the role or the admission policy, and the request is checked again within five minutes"
	for name, test := range map[string]struct {
		write  error
		live   answer
		stored bool   // and counts
		holds  bool   // it may be stored, and counts
		again  string // the next attempt by the version that was judged
		fails  string // the work queue tries again
		told   string
	}{
		"a conflict with an earlier attempt of client-go": {write: conflict, live: stored, stored: true},
		"no answer, stored":                         {write: errDown, live: stored, stored: true},
		"not found, though it is stored":            {write: gone, live: stored, stored: true},
		"a conflict with another approver":          {write: conflict, live: changed},
		"no answer, and changed":                    {write: errDown, live: changed},
		"a conflict, recreated under the same name": {write: conflict, live: recreated, holds: true, again: "Waits RateLimited"},
		"deleted":                          {write: gone, live: deleted, holds: true, again: "Waits RateLimited"},
		"a conflict, and no change":        {write: conflict, live: unchanged, holds: true, fails: "update approval: " + conflict.Error()},
		"no answer, and not stored":        {write: errDown, live: unchanged, holds: true, fails: "update approval: down"},
		"no answer, reads fail":            {write: errDown, live: unread, holds: true, fails: "update approval: down"},
		"forbidden, and unchanged":         {write: forbidden, live: unchanged, told: refuses + forbidden.Error() + correct, again: "Approved"},
		"forbidden, and reads fail":        {write: forbidden, live: unread, holds: true, told: refuses + forbidden.Error() + correct},
		"forbidden, and deleted":           {write: forbidden, live: deleted, holds: true, told: refuses + forbidden.Error() + correct, again: "Waits RateLimited"},
		"forbidden":                        {write: forbidden, live: changed, told: refuses + forbidden.Error() + correct},
		"a webhook refuses without a code": {write: apierrors.NewBadRequest("no"), live: changed, told: refuses + "no" + correct},
		"invalid":                          {write: invalid, live: changed, told: refuses + invalid.Error() + correct},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParts(object())
			recorded, reads := p.audited(t), 0
			p.grants, p.writeFault = []string{"nodeclient"}, test.write
			p.reconciler.limiter = newLimiter(Limit{Burst: 1, PerHour: 1}, p.clock)
			p.reconciler.Live = live(func(obj *request) error {
				reads++
				read, err := test.live(p)
				*obj = *read
				return err
			})
			result, err := p.reconcile(t)
			told, errText := strings.Join(p.events(), "\n"), strings.TrimPrefix(fmt.Sprint(err), "<nil>")
			expect.True(t, errText == test.fails && told == test.told && (result.RequeueAfter == time.Second) == (told != "") && reads == 1,
				"error %q, told %q, again after %s, %d reads", errText, told, result.RequeueAfter, reads)
			want := "Decided Approve nodeclient"
			if !test.stored {
				want += ", NotStored Approve nodeclient"
			}
			expect.Equal(t, "records", recorded(), want)
			p.writeFault = nil
			if test.stored { // a wake before the cache shows it
				p.expect(t, "Untouched")
				expect.Equal(t, "records after another attempt", recorded(), want)
			}
			another := parse(object(func(obj *request) { obj.UID = "uid-2" }))
			if limited := p.reconciler.limiter.reserve(another); (limited.Reason != "") != (test.stored || test.holds) {
				t.Errorf("another approval: %+v", limited)
			}
			if test.holds && test.again == "" { // it has its place in the limit
				test.again = "Approved"
			}
			if test.again == "Approved" && !test.holds {
				p.reconciler.limiter = nil // another took the place that was given back
			}
			if test.again != "" {
				p.expect(t, test.again)
			}
			if _, kept := p.reconciler.attempts.Load(p.served.UID); kept != (test.stored || test.again == "Approved") {
				t.Errorf("the attempt is kept: %t", kept)
			}
		})
	}
}

// TestRefusedRequestsAreNotRecorded floods the approver with requests that it refuses. The audit log stays as it is, so the record
// of a certificate is not rotated away. Each request gets one line in the log. A denial is recorded in 2,048 bytes at most.
func TestRefusedRequestsAreNotRecorded(t *testing.T) {
	hostile := strings.Repeat("\x01", 400_000)
	many := slices.Repeat([]string{hostile[:1000]}, 1000)
	for name, test := range map[string]struct {
		edit    func(*request)
		denials int // with DenialPermanent
	}{
		"without a right":    {func(*request) {}, 0},
		"malformed":          {malformed, 50},
		"a name of 400 kB":   {func(obj *request) { obj.Name, obj.Spec.Request = hostile+obj.Name, nil }, 0}, // no write can name it
		"a thousand groups":  {func(obj *request) { obj.Spec.Groups, obj.Spec.Request = many, nil }, 50},
		"a thousand usages":  {usages(strings.Repeat("signing, ", 1000) + hostile), 50},
		"a subject of 60 kB": {says(kubelet(hostile[:60_000], "")), 0},
	} {
		for denial, want := range map[Denial]int{DenialNever: 0, DenialPermanent: test.denials} {
			p, file := newParts(object()), filepath.Join(t.TempDir(), "audit.log")
			p.reconciler.Audit, p.reconciler.Denial = must(audit.Open(audit.Options{Path: file, MaxSize: 1})), denial
			p.reconciler.Audit.Write(t.Context(), now, audit.Signed, audit.Record{Serial: "1f"})
			lines := 0
			ctx := logr.NewContext(t.Context(), funcr.New(func(_, args string) {
				lines++
				expect.True(t, len(args) <= 5000, "%s: %d bytes in the log: %.1000s", name, len(args), args)
			}, funcr.Options{}))
			for i := range 50 {
				p.served = object(test.edit, user(fmt.Sprint("user-", i)), func(obj *request) { obj.UID = types.UID(fmt.Sprint("uid-", i)) })
				for range 2 {
					_, err := p.reconciler.reconcile(ctx, fairqueue.KeyOf(p.served, ""))
					expect.NoError(t, err)
				}
				p.events()
			}
			records := bytes.SplitAfter(bytes.TrimSpace(must(os.ReadFile(file))), []byte("\n"))
			expect.Equal(t, fmt.Sprintf("%s, denial %s: records beside the certificate", name, denial), len(records)-1, want)
			expect.Equal(t, name+": lines in the log", lines, 50)
			for _, record := range records {
				expect.True(t, len(record) <= 2048, "%s: a record has %d bytes", name, len(record))
			}
			expect.True(t, bytes.Contains(records[0], []byte(`"serial":"1f"`)), "%s: the certificate is %s", name, records[0])
		}
	}
}

// TestLimit checks that only approvals that are stored count, and that they are permitted again with time.
func TestLimit(t *testing.T) {
	p := newParts(object())
	p.reconciler.limiter = newLimiter(Limit{Burst: 2, PerHour: 1}, p.clock)
	p.expect(t, "Waits NotAuthorized", "Waits", "Waits")
	p.grants = []string{"nodeclient"}
	for _, p.writeFault = range []error{errDown, conflict, errDown, conflict} {
		if _, err := p.reconcile(t); err != nil { // the request was changed meanwhile
			t.Fatal(err)
		}
	}
	p.writeFault = nil
	next := func(wants ...string) {
		t.Helper()
		for _, want := range wants {
			p.served = object(func(obj *request) { obj.UID = p.served.UID + "+" })
			p.expect(t, want)
		}
	}
	next("Approved", "Approved", "Waits RateLimited", "Waits RateLimited")
	p.clock.SetTime(now.Add(time.Hour + time.Second))
	next("Approved", "Waits")
	p.clock.SetTime(now.Add(100 * time.Hour)) // no more than the burst
	next("Approved", "Approved", "Waits")
}

// TestLimitOfConcurrentRequests checks that the limit holds for requests that are judged at the same time, because they have
// no node, whatever becomes of the writes, and that a request is not approved twice.
func TestLimitOfConcurrentRequests(t *testing.T) {
	for name, test := range map[string]struct {
		limit Limit
		fault error // of the first ten writes
		want  int
	}{
		"one":                          {limit: Limit{Burst: 1}, want: 1},
		"several":                      {limit: Limit{Burst: 7, PerHour: 1}, want: 7},
		"more than there are requests": {limit: Limit{Burst: 100}, want: 60},
		"some are refused":             {limit: Limit{Burst: 20}, fault: forbidden, want: 20},
		"some may be stored":           {limit: Limit{Burst: 20}, fault: errDown, want: 20},
		"all may be stored":            {limit: Limit{Burst: 10}, fault: errDown, want: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newParts(object())
			p.reconciler.limiter = newLimiter(test.limit, p.clock)
			p.reconciler.Judges[servingSigner] = judgeFunc(func(context.Context, *csr.Request, Readers) (judge.Decision, error) {
				return judge.Decision{Verdict: judge.Approve}, nil
			})
			without := object(signer(servingSigner), content(func(r *x509.CertificateRequest) { r.Subject.CommonName = "any" }))
			get := interceptor.Funcs{Get: func(
				_ context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption,
			) error {
				*obj.(*request) = *without
				obj.SetName(key.Name)
				obj.SetUID(types.UID(key.Name))
				return nil
			}}
			var writes atomic.Int64
			var stored sync.Map
			p.reconciler.Live = slow.New(interceptor.NewClient(nil, get))
			get.SubResourceUpdate = func(_ context.Context, _ client.Client, _ string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
				fails := writes.Add(1) <= 10
				if !fails || !errors.Is(test.fault, forbidden) {
					stored.Store(obj.GetName(), nil)
				}
				if fails {
					return test.fault
				}
				return nil
			}
			p.reconciler.Client = slow.Client{Client: interceptor.NewClient(nil, get), Wait: func() { time.Sleep(slow.Answer) }, Cached: true}
			for range 3 { // another attempt, before the cache shows anything
				var all sync.WaitGroup
				for i := range 60 {
					all.Go(func() {
						obj := &request{}
						obj.Name, obj.UID = fmt.Sprint(i), types.UID(fmt.Sprint(i))
						_, _ = p.reconciler.reconcile(t.Context(), fairqueue.KeyOf(obj, ""))
					})
				}
				all.Wait()
			}
			approved := 0
			stored.Range(func(any, any) bool { approved++; return true })
			expect.Equal(t, name, approved, test.want)
		})
	}
}

// TestPauseIsTheAge checks that a waiting request is requeued after its age. It is told once, and approved when RBAC is granted late.
func TestPauseIsTheAge(t *testing.T) {
	p := newParts(object())
	for _, step := range [][2]time.Duration{{-10 * time.Minute, time.Second}, {3 * time.Second, 3 * time.Second}, {10 * time.Minute, 5 * time.Minute}} {
		age, want := step[0], step[1]
		p.clock.SetTime(now.Add(age))
		expect.Equal(t, fmt.Sprint("pause at the age of ", age), must(p.reconcile(t)).RequeueAfter, want)
	}
	expect.Equal(t, "number of Events", len(p.events()), 1)
	p.grants = []string{"nodeclient"}
	p.expect(t, bootstraps)
}

// TestAnotherUIDEndsTheAttempt checks that a key of a deleted request does not act on a new request of its name, nor on none.
func TestAnotherUIDEndsTheAttempt(t *testing.T) {
	p := newParts(object())
	key := fairqueue.KeyOf(p.served, "a")
	p.grants, p.served.UID = []string{"nodeclient"}, "another"
	for range 2 {
		if result, err := p.reconciler.reconcile(t.Context(), key); err != nil || result != (reconcile.Result{}) || len(p.reviews) > 0 {
			t.Errorf("%+v, error %v, %d reviews", result, err, len(p.reviews))
		}
		p.getFault = apierrors.NewNotFound(requests, "csr-1")
	}
}

// TestReconcileObeysTheBlockList checks that the request of a blocked node or made with a blocked certificate waits, and
// that no review is sent for it. It has a node that is put on the list while its review is under way, too.
func TestReconcileObeysTheBlockList(t *testing.T) {
	stolen := strings.Repeat("0123456789abcdef", 4)
	made := func(obj *request) {
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + stolen}}
	}
	const ofA = `Waits NodeBlocked: node "a" is on the block list, ConfigMap ns/blocked`
	for _, test := range []trial{
		{name: "a bootstrap", obj: object(), list: blockList(blocked("a")), grants: rights, want: ofA},
		{name: "a serving certificate", obj: asks("a", "10.0.0.1"), list: blockList(blocked("A")), want: ofA},
		{name: "by a blocked node", obj: object(user("system:node:b")), list: blockList(blocked("b")), want: `Waits NodeBlocked: node "b" is`},
		{name: "shape mismatch", obj: object(usages("")), list: blockList(blocked("a")), grants: rights, want: ofA},
		{name: "another node", obj: object(made), list: blockList(blocked("b", stolen[1:]+"0")), grants: rights, asked: "nodeclient", want: bootstraps},
		{name: "made with a blocked certificate", obj: object(made), list: blockList(blocked("", stolen)), grants: rights,
			want: "Waits CertificateBlocked: client certificate " + stolen + " is on the block list, ConfigMap ns/blocked"},
		{name: "not read yet", obj: object(), list: blockList(), grants: rights,
			want: "Waits InventoryUnavailable: the request waits because it is unknown whether it is blocked: block list ConfigMap ns/blocked: not read yet"},
	} {
		t.Run(test.name, test.run)
	}
	p, list := newParts(object()), blockList(blocked(""))
	p.reconciler.BlockList = list
	p.reconciler.Authorizer = authz.Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
		list.Offer(blocked("a"))
		return true, nil
	})
	p.expect(t, "Waits NodeBlocked")
}

// TestInventoryPendingIsReportedLate checks that a request that waits for a source asks again soon, and reports that when
// it is ten seconds old. The pause is random, so that requests that were refused together do not come back together.
func TestInventoryPendingIsReportedLate(t *testing.T) {
	p := newParts(object())
	p.reconciler.Judges[kubeletSigner] = judgeFunc(func(context.Context, *csr.Request, Readers) (judge.Decision, error) {
		return judge.Wait.Because("InventoryPending", "the source has no answer yet"), nil
	})
	for _, test := range []struct {
		age, most time.Duration
		events    int
	}{
		{-time.Hour, 1100 * time.Millisecond, 0}, // the clock of the API server was set back
		{8 * time.Second, 2100 * time.Millisecond, 0}, {10 * time.Second, 2350 * time.Millisecond, 1}, {30 * time.Minute, 30100 * time.Millisecond, 0},
	} {
		p.clock.SetTime(now.Add(test.age))
		shortest, longest := time.Hour, time.Duration(0)
		for range 200 {
			result := must(p.reconcile(t))
			shortest, longest = min(shortest, result.RequeueAfter), max(longest, result.RequeueAfter)
		}
		expect.True(t, shortest >= 100*time.Millisecond && longest <= test.most && shortest <= test.most/4 && longest >= test.most*3/4,
			"at %s: pauses from %s to %s, want from 100ms to %s", test.age, shortest, longest, test.most)
		expect.Equal(t, fmt.Sprintf("number of Events at %s", test.age), len(p.events()), test.events)
	}
}

// TestEndOfAttemptIsNoDecision checks that a Judge whose lookups end with their context decides nothing.
func TestEndOfAttemptIsNoDecision(t *testing.T) {
	ended := errors.New("the manager stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := newParts(object())
	p.reconciler.Judges[kubeletSigner] = judgeFunc(func(context.Context, *csr.Request, Readers) (judge.Decision, error) {
		cancel(ended)
		return judge.Wait.Because("InventoryUnavailable", "canceled"), nil
	})
	_, decision, err := p.reconciler.Decide(ctx, p.served)
	expect.True(t, errors.Is(err, ended) && decision == (judge.Decision{}), "%+v, %v", decision, err)
}

// Defect 19: a failed review approves nothing, even if another review would be allowed.
func TestDefect19AFaultApproves(t *testing.T) {
	for failing, asked := range map[string]int{"selfnodeclient": 1, "nodeclient": 2} {
		p := newParts(object(user("system:node:a")))
		reviews := 0
		p.reconciler.Authorizer = authz.Func(func(_ context.Context, _ csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
			reviews++
			if what.Subresource == failing {
				return true, errDown // the answer beside an error must not count
			}
			return failing == "selfnodeclient", nil
		})
		_, err := p.reconcile(t)
		expect.Error(t, failing+" fails", err, "review permission "+failing+" of the requester: down")
		expect.Equal(t, failing+" fails: writes and reviews", []int{len(p.written), reviews}, []int{0, asked})
	}
}

// TestDryRunReports checks the Event, the record and the next attempt of each verdict, that it is reported once, and that
// nothing is written.
func TestDryRunReports(t *testing.T) {
	wrong := usages("server auth")
	for name, test := range map[string]struct {
		obj    *request
		denial Denial
		grants string
		age    time.Duration
		want   string // type and reason
		again  time.Duration
	}{
		"would approve":         {obj: object(), grants: rights, want: "Normal WouldApprove", again: 50 * time.Minute},
		"would approve serving": {obj: asks("a", "10.0.0.1"), want: "Normal WouldApprove", again: 50 * time.Minute},
		"would wait":            {obj: object(), want: "Warning WouldWait", again: time.Second},
		"would ignore":          {obj: object(wrong), want: "Warning WouldIgnore", again: 50 * time.Minute},
		"would deny":            {obj: object(wrong), denial: DenialPermanent, want: "Warning WouldDeny", again: 50 * time.Minute},
		"cannot be read":        {obj: object(malformed), want: "Warning WouldIgnore", again: 50 * time.Minute},
		"approved by another a moment ago": {
			obj: object(with("Approved")), grants: rights, age: time.Minute, want: "Normal WouldApprove", again: 50 * time.Minute},
		"signed by another a moment ago": {obj: object(issued), grants: rights, want: "Normal WouldApprove", again: 50 * time.Minute},
		"signed by another, and trimmed": {obj: must(csr.Trim{}.Transform(object(issued))).(*request), grants: rights},
		"approved by another long ago":   {obj: object(with("Approved")), grants: rights, age: time.Minute + 1},
		"another signer":                 {obj: object(signer("example.com/other")), grants: rights},
		"being deleted":                  {obj: object(leaving), grants: rights},
		"approved, being deleted":        {obj: object(with("Approved"), leaving), grants: rights},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParts(test.obj)
			recorded := p.audited(t)
			p.reconciler.DryRun, p.reconciler.Denial, p.grants = true, test.denial, strings.Fields(test.grants)
			p.clock.SetTime(now.Add(test.age))
			for range 2 {
				result, err := p.reconcile(t)
				expect.True(t, err == nil && result == (reconcile.Result{RequeueAfter: test.again}), "%+v, error %v", result, err)
			}
			told, records := p.events(), recorded()
			got := strings.Join(strings.Fields(strings.Join(told, " "))[:2*len(told)], " ") // type and reason, if it is told once
			expect.True(t, got == test.want && len(told) <= 1 && len(p.written) == 0,
				"Events %q, want %q; %d writes", told, test.want, len(p.written))
			_, would, _ := strings.Cut(test.want, " ")
			decided, _, _ := strings.Cut(records, " "+would)
			expect.True(t, (would != "") == (decided == "Decided") && !strings.Contains(records, ","), "records %q, want %s", records, would)
		})
	}
}

// TestConditionsAreASCII checks that text that a requester chose is ASCII in the condition and in the Event. kubectl
// prints both.
func TestConditionsAreASCII(t *testing.T) {
	const chosen = "a\u009b31m\u202e\u0435\u3164\U0001f511"
	p := newParts(asks("a", "", user(chosen), groups(chosen), content(func(r *x509.CertificateRequest) {
		r.Subject = pkix.Name{CommonName: chosen, Organization: []string{chosen}, OrganizationalUnit: []string{chosen}}
		r.EmailAddresses = []string{"b@c.d"}
	})))
	p.reconciler.Denial = DenialPermanent
	_ = must(p.reconcile(t))
	told := p.events()
	if len(p.written) != 1 || len(told) != 1 {
		t.Fatalf("%d writes, Events %q", len(p.written), told)
	}
	for place, text := range map[string]string{"condition": p.written[0].Status.Conditions[0].Message, "Event": told[0]} {
		if at := strings.IndexFunc(text, func(char rune) bool { return char < ' ' || char > '~' }); at >= 0 {
			t.Errorf("the %s has %q", place, text[at:min(len(text), at+10)])
		}
		expect.True(t, strings.Contains(text, `a\u009b31m\u202e\u0435\u3164\U0001f511`), "the %s does not name what was chosen: %s", place, text)
	}
}

func managerOf(t testing.TB, api *rest.Config) manager.Manager {
	t.Helper()
	unnamed := true
	return must(manager.New(api, manager.Options{
		Scheme: scheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &unnamed},
	}))
}

// recorded is a manager of an API server that does not answer. It records the types of what it runs, and what it logs.
type recorded struct {
	manager.Manager
	runs, logs []string
}

func (r *recorded) Add(runnable manager.Runnable) error {
	r.runs = append(r.runs, fmt.Sprintf("%T", runnable))
	return r.Manager.Add(runnable)
}

func (r *recorded) GetLogger() logr.Logger {
	return funcr.New(func(_, args string) { r.logs = append(r.logs, args) }, funcr.Options{})
}

func builds(source inventory.Source, err error) SourceBuilder {
	return func(manager.Manager, *node.Source, inventory.Changed) (inventory.Source, error) { return source, err }
}

// TestSetupFollowsFromTheJudges checks which watches are added to the manager, which mistakes are reported, and that the
// approver warns if serving certificates depend only on what nodes report about themselves.
func TestSetupFollowsFromTheJudges(t *testing.T) {
	serving, client := KubeletServing{}, KubeletClient{}
	first := KubeletClient{Bootstrap: &bootstrap.Policy{Expected: true}}
	all := func(sources ...SourceBuilder) []SourceBuilder { return sources }
	other := builds(&askedOf{}, nil)
	const watched = "*node.APIServers *node.Source"
	for name, test := range map[string]struct {
		judge   Judge
		sources []SourceBuilder
		denial  Denial
		want    string // what the manager runs beside the controller itself, with "warns" before; or a part of the error
	}{
		"client certificates":                   {client, nil, DenialPermanent, "*node.Source"},
		"first certificates by the inventory":   {first, all(other), "", "*node.Source *nodeidentity.Leases"},
		"serving, by what nodes report":         {serving, all(NodeSource), "", "warns " + watched},
		"serving, by another source before":     {serving, all(other, NodeSource), "", watched},
		"serving, by another source after":      {serving, all(NodeSource, other), "", watched},
		"a source that can't be built":          {serving, all(builds(nil, errors.New("no such kind"))), "", "no such kind"},
		"no Judge":                              {nil, nil, "", "signer \"x\" has no Judge: set it"},
		"a value of denial that does not exist": {client, nil, "Sometimes", `denial "Sometimes" is invalid: set it to Never or Permanent`},
	} {
		t.Run(name, func(t *testing.T) {
			i := &Inventory{Sources: test.sources}
			r := &Reconciler{Readers: Readers{Inventory: i}, Judges: map[string]Judge{"x": test.judge}, Denial: test.denial}
			mgr := &recorded{Manager: managerOf(t, &rest.Config{Host: "https://127.0.0.1:1"})}
			if err := r.SetupWithManager(mgr); err != nil {
				expect.True(t, strings.Contains(err.Error(), test.want), "error %v, want %q", err, test.want)
				return
			}
			slices.Sort(mgr.runs)
			got := strings.Join(slices.DeleteFunc(mgr.runs, func(name string) bool { return strings.HasPrefix(name, "*controller.") }), " ")
			if strings.Contains(strings.Join(mgr.logs, ""), "depend only on what nodes report about themselves") {
				got = "warns " + got
			}
			expect.True(t, got == test.want, "%s, want %s", got, test.want)
		})
	}
}

func queueOf(t *testing.T) workQueue {
	t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[fairqueue.Key]())
	t.Cleanup(queue.ShutDown)
	return queue
}

// queued returns the names of the queued requests, in order of their names.
func queued(queue workQueue) string {
	var names []string
	for queue.Len() > 0 {
		key, _ := queue.Get()
		queue.Done(key)
		names = append(names, key.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestEventsQueueWhatIsUndecided checks which events of requests queue them, and that decided requests leave the index.
func TestEventsQueueWhatIsUndecided(t *testing.T) {
	r := newParts(nil).reconciler
	events, queue, obj := fairqueue.Events(r.enqueue, r.forget), queueOf(t), object()
	expect := func(what, want string) {
		t.Helper()
		waiting := strings.Join(mapped(r.waiting.All(), func(key fairqueue.Key) string { return key.Name }), " ")
		got := queued(queue)
		expect.True(t, got == want && waiting == want, "%s: %q is queued, and %q waits", what, got, waiting)
	}
	for name, changed := range map[string]*request{
		"approved": object(with("Approved")), "issued": object(issued), "another signer": object(signer("example.com/other")), "deleted": nil,
		"being deleted": object(leaving),
	} {
		events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
		expect("before it is "+name, "csr-1")
		if changed == nil {
			events.Delete(t.Context(), event.TypedDeleteEvent[*request]{Object: obj}, queue)
		} else {
			events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectOld: obj, ObjectNew: changed}, queue)
		}
		expect(name, "")
	}
}

// TestChangesWakeThoseThatWait checks which requests a change of the inventory wakes, that changes are gathered, and that
// of one lane only the newest requests are woken. The request of node d is too large for the cache to hold its content.
func TestChangesWakeThoseThatWait(t *testing.T) {
	named := func(name, addresses string) *request { // the digit counts the seconds
		age := created(now.Add(time.Duration(name[1]-'0') * time.Second))
		return asks(name[:1], addresses, age, func(obj *request) { obj.Name, obj.UID = name, types.UID(name) })
	}
	large := named("d1", "10.0.0.4")
	large.Annotations = map[string]string{"a": strings.Repeat("a", 13<<10)}
	large = must(csr.Trim{}.Transform(large)).(*request)
	expect.True(t, csr.Large(large), "the cache holds the whole request")
	synctest.Test(t, func(t *testing.T) {
		r := newParts(nil).reconciler
		queue, wake := queueOf(t), newWakeUps()
		events := fairqueue.Events(r.enqueue, r.forget)
		for _, obj := range []*request{
			named("a1", "10.0.0.1"), named("a2", "10.0.0.1"), named("a3", ""), named("a4", ""),
			named("b1", "10.0.0.1 10.0.0.2"), named("c1", "10.0.0.3"), large, object(),
		} {
			events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
		}
		queued(queue)
		ctx, cancel := context.WithCancel(t.Context())
		woken := func() []fairqueue.Key { return r.waiting.Marked(3, wake.take()) }
		expect.NoError(t, fairqueue.Wake(wake.changed, nil, woken).Start(ctx, queue))
		for name, test := range map[string]struct {
			change func()
			want   string
		}{
			"a node":                    {func() { wake.inventory("b") }, "b1"},
			"that of the large request": {func() { wake.inventory("d") }, "d1"},
			"two nodes":                 {func() { wake.inventory("b"); wake.inventory("c"); wake.inventory("b") }, "b1 c1"},
			"a node with many requests": {func() { wake.inventory("a") }, "a2 a3 a4"},
			"all nodes":                 {func() { wake.inventory("") }, "a2 a3 a4 b1 c1 d1"},
			"an address":                {func() { wake.inventory("z", sans("10.0.0.1")...) }, "a1 a2 b1"},
			"an address that none asks": {func() { wake.inventory("z", sans("10.9.9.9")...) }, ""},
			"more than can be gathered": {func() { wake.inventory("z", append(many(9_999), sans("10.0.0.1")...)...) }, ""},
			"all nodes beside too many": {func() { wake.inventory("z", many(10_001)...); wake.inventory("") }, "a2 a3 a4 b1 c1 d1"},
		} {
			test.change()
			synctest.Wait()
			expect.True(t, queue.Len() == 0, "%s: woken before changes were gathered", name)
			time.Sleep(1500 * time.Millisecond) // three times as long as changes are gathered
			expect.Equal(t, name+": woken", queued(queue), test.want)
		}
		cancel()
		synctest.Wait()
	})
}

func many(n int) []san.SAN {
	all := make([]san.SAN, n)
	for i := range all {
		all[i] = san.FromIP(net.IPv4(11, byte(i>>16), byte(i>>8), byte(i)))
	}
	return all
}
