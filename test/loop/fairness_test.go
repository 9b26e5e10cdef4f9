package loop

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// atOnce is how many Events a requester may cause at once. One a minute is added.
const atOnce = 10

// gate blocks every review until it is opened, and records the reviews in order.
type gate struct {
	authz.Authorizer
	opened chan struct{}

	mu    sync.Mutex
	asked []string // requesters
}

func (g *gate) Allowed(ctx context.Context, requester csr.Requester, permission authorizationv1.ResourceAttributes) (bool, error) {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	g.mu.Lock()
	g.asked = append(g.asked, requester.Username)
	g.mu.Unlock()
	return g.Authorizer.Allowed(ctx, requester, permission)
}

// flood has users in the group flooders store requests, each as many, with ten clients at a time. All requests have the same
// key, because keys are expensive. It calls then with each request.
func flood(t *testing.T, users, each int, then func(*kit.Request)) {
	t.Helper()
	body := kit.NodeRequest(t, "victim").Spec.Request
	request := func() *kit.Request {
		return kit.NodeRequest(t, "victim", func(obj *kit.Request) {
			obj.GenerateName, obj.Labels, obj.Spec.Request = "aaa-flood-", map[string]string{"flood": "yes"}, body
		})
	}
	kit.AtEnd(t, func() error {
		return kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, client.MatchingLabels{"flood": "yes"})
	})
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	var creators errgroup.Group
	creators.SetLimit(10)
	for user := range users {
		c := kit.Impersonate(t, fmt.Sprintf("flooder-%d", user), "flooders")
		for range each {
			creators.Go(func() error {
				obj := request()
				err := c.Create(t.Context(), obj)
				if err == nil {
					then(obj)
				}
				return err
			})
		}
	}
	kit.NoError(t, creators.Wait())
}

// TestFloodDelaysNobody has requesters without permission that keep hundreds of requests pending. All wait for reviews, one at a
// time. The last request, of another requester, is decided after at most one review of each of them. Each of them causes as many
// Events as are permitted at once.
func TestFloodDelaysNobody(t *testing.T) {
	kit.Alone(t)
	const users, each = 3, 100
	held := &gate{Authorizer: authz.SubjectAccess{Client: kit.ClientOf(t, kit.RoleConfig(t, "approver"))}, opened: make(chan struct{})}
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Authorizer, o.Approver.Workers = held, 1
	}})
	kit.GrantJoining(t, "joiner")
	ofApprover, notAuthorized := map[string]string{"controller": "csr-approver"}, map[string]string{"reason": "NotAuthorized"}
	queued, refused := kit.Counted(t, "workqueue_adds_total", ofApprover), kit.Counted(t, "csr_approver_decisions_total", notAuthorized)
	start := time.Now()
	flood(t, users, each, func(*kit.Request) {})
	good := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good"))
	counted(t, "workqueue_adds_total", ofApprover, queued+users*each+1) // the only worker waits, so nothing is queued twice
	close(held.opened)
	kit.Reaches(t, good, csr.Issued)
	counted(t, "csr_approver_decisions_total", notAuthorized, refused+users*each)
	held.mu.Lock()
	asked := slices.Clone(held.asked)
	held.mu.Unlock()
	// Each requester has one turn before the next, and one review is in progress.
	if at := slices.Index(asked, "joiner"); at < 0 || at > users+1 {
		t.Errorf("the good request's review was the %dth of %d", at+1, len(asked))
	}

	list, requesters := &certificatesv1.CertificateSigningRequestList{}, map[types.UID]string{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list, client.MatchingLabels{"flood": "yes"}))
	for _, obj := range list.Items {
		if csr.StateOf(&obj) == csr.Pending {
			requesters[obj.UID] = obj.Spec.Username
		}
	}
	kit.Require(t, len(requesters) == users*each, "%d requests are pending, want %d", len(requesters), users*each)
	// Events are written in the order of recording, apart from concurrent writes.
	marker := kit.CreateRequest(t, kit.Impersonate(t, "marker", "flooders"), kit.NodeRequest(t, "victim"))
	kit.HasEvent(t, marker, "NotAuthorized", `user "marker"`)
	most := atOnce + 1 + int(time.Since(start).Minutes())
	kit.Eventually(t, "each requester is told", func(ctx context.Context) error {
		events, told := &eventsv1.EventList{}, map[string]int{}
		if err := kit.Admin(t).List(ctx, events); err != nil {
			return err
		}
		for _, event := range events.Items {
			told[requesters[event.Regarding.UID]]++
		}
		delete(told, "") // about other objects
		for name, got := range told {
			kit.Require(t, got <= most, "%d Events about requests of %s, want at most %d", got, name, most)
		}
		all := len(told) >= users && slices.Min(slices.Collect(maps.Values(told))) >= atOnce
		return kit.OrError(all, "%v Events, want %d for each requester", told, atOnce)
	})
}

// TestStrangersTakeNoEventFromANode has sixty requesters without permission that keep three requests each pending. They cause a
// hundred Events together, then one a second. A node that waits gets its Event nevertheless.
func TestStrangersTakeNoEventFromANode(t *testing.T) {
	kit.Alone(t)
	const users, each, together = 60, 3, 100
	kit.StartLoop(t, csrenv.Options{})
	notAuthorized := map[string]string{"reason": "NotAuthorized"}
	refused, omitted := kit.Counted(t, "csr_approver_decisions_total", notAuthorized), kit.Counted(t, "csr_events_omitted_total", nil)
	start, strangers := time.Now(), sync.Map{}
	flood(t, users, each, func(obj *kit.Request) { strangers.Store(obj.UID, true) })
	counted(t, "csr_approver_decisions_total", notAuthorized, refused+users*each)
	node := kit.CreateRequest(t, kit.KubeletOf(t, "w1"), kit.NodeRequest(t, "w1"))
	kit.HasEvent(t, node, "NotAuthorized", `user "system:node:w1"`)
	most := together + 1 + int(time.Since(start).Seconds())
	left := kit.Counted(t, "csr_events_omitted_total", nil) - omitted
	kit.Check(t, left >= users*each-most && left <= users*each-together, "%d Events were left out", left)
	kit.Eventually(t, "Events about requests of strangers", func(ctx context.Context) error {
		events, told := &eventsv1.EventList{}, 0
		if err := kit.Admin(t).List(ctx, events); err != nil {
			return err
		}
		for _, event := range events.Items {
			if _, about := strangers.Load(event.Regarding.UID); about {
				told++
			}
		}
		kit.Require(t, told <= most, "%d Events, want at most %d", told, most)
		return kit.OrError(told >= together, "%d, want %d", told, together)
	})
}

// counted waits until a counter has reached want.
func counted(t *testing.T, counter string, labels map[string]string, want int) {
	t.Helper()
	kit.Eventually(t, counter, func(context.Context) error {
		got := kit.Counted(t, counter, labels)
		return kit.OrError(got >= want, "%d, want %d", got, want)
	})
}

// TestSignerServesRequestersInTurn approves hundreds of requests of one requester while there is no CA. When the CA
// appears, a single worker signs the only request of each other requester among the first.
func TestSignerServesRequestersInTurn(t *testing.T) {
	kit.Parallel(t)
	dir := t.TempDir()
	certFile, keyFile, records := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), filepath.Join(dir, "audit.log")
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		signingFrom(keypair.Files{Cert: certFile, Key: keyFile})(o)
		o.Signer.Workers, o.Audit = 1, openAudit(t, records)
	}}, "signer", "cleaner")
	const many = 200
	flood(t, 1, many, func(obj *kit.Request) { kit.Approve(t, obj) })
	honest := map[string]bool{}
	var last *kit.Request
	for _, user := range []string{"flooder-a", "flooder-b", "flooder-c"} {
		last = kit.Approve(t, kit.CreateRequest(t, kit.Impersonate(t, user, "flooders"), kit.NodeRequest(t, "honest")))
		honest[last.Name] = true
	}
	kit.HasEvent(t, last, "CAMissing", "no such file")

	made := kit.NewCA(t)
	kit.Write(t, keyFile, made.KeyPEM)
	kit.Write(t, certFile, made.CertPEM)
	var signed []string
	kit.Eventually(t, "all are signed", func(context.Context) error {
		signed = nil
		for _, record := range kit.ReadAudit(t, records) {
			if record.Event == audit.Signed {
				signed = append(signed, record.Name)
			}
		}
		return kit.OrError(len(signed) >= many+len(honest), "%d are", len(signed))
	})
	// Requests that the worker takes out of the queue before the other requesters are in it go first. On a busy machine
	// these are some dozens. In the order of creation, the other requesters would be the last.
	for at, name := range signed {
		kit.Check(t, !honest[name] || at < many/2, "%s is the %dth that is signed", name, at+1)
	}
}

// TestOneThatFailsHoldsUpNoOther checks with one worker that requests whose every write is answered 500 are retried, and that
// others are served between the retries.
func TestOneThatFailsHoldsUpNoOther(t *testing.T) {
	kit.Parallel(t)
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t), faults.Rule{Path: regexp.MustCompile(`/fails-[^/]+/approval$`), Do: faults.Answer(500)},
		faults.Rule{Path: regexp.MustCompile(`/fails-[^/]+/status$`), Do: faults.Answer(500)})
	kit.StartLoopAs(t, proxy.Config, csrenv.Options{Customize: func(o *controllers.Options) { o.Approver.Workers, o.Signer.Workers = 1, 1 }})
	kit.GrantJoining(t, "joiner")
	fails := func(obj *kit.Request) { obj.GenerateName = "fails-" }
	unapproved := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "bad", fails))
	unsigned := kit.Approve(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "bad", kit.WrongUsage, fails)))
	kit.Eventually(t, "both are tried twice", func(context.Context) error {
		applied := proxy.Applied()
		return kit.OrError(slices.Min(applied) >= 2, "%d attempts", applied)
	})
	for range 3 {
		kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good")), csr.Issued)
	}
	kit.IsIn(t, unapproved, csr.Pending)
	kit.IsIn(t, unsigned, csr.Approved)
}

// parsePKCS10 is the parser of package csr. No request is known that makes it panic, so a test must replace it.
//
//go:linkname parsePKCS10 github.com/csr-controller-manager/csr-controller-manager/pkg/csr.parsePKCS10
var parsePKCS10 func([]byte) (*x509.CertificateRequest, error)

// TestPanicOfTheParserEndsNothing has a parser that panics for the requests of one node. Informers, queues and
// workers call it when such a request exists at the start, is created, changed, approved and deleted. Others are
// served.
func TestPanicOfTheParserEndsNothing(t *testing.T) {
	kit.Alone(t)
	original, panics := parsePKCS10, atomic.Int64{}
	parsePKCS10 = func(der []byte) (*x509.CertificateRequest, error) {
		parsed, err := original(der)
		if err == nil && parsed.Subject.CommonName == "system:node:panics" {
			panics.Add(1)
			panic("index out of range")
		}
		return parsed, err
	}
	t.Cleanup(func() { parsePKCS10 = original }) // after the loop has stopped
	bad := func() *kit.Request { return kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "panics")) }
	first, approved := bad(), kit.Approve(t, bad())
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Inventory = &approver.Inventory{Sources: []approver.SourceBuilder{approver.NodeSource}}
		o.Approver.Judges[certificatesv1.KubeletServingSignerName] = approver.KubeletServing{}
	}})
	kit.GrantJoining(t, "joiner")
	serves := func() {
		t.Helper()
		kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "good")), csr.Issued)
	}
	serves()
	kit.HasEvent(t, first, "InternalError", "panic: index out of range; this is a bug in csr-controller-manager")
	kit.HasEvent(t, approved, "InternalError", "panic: index out of range; this is a bug in csr-controller-manager")
	serving := kit.CreateRequest(t, kit.KubeletOf(t, "panics"), kit.ServingRequest(t, "panics", "192.0.2.1"))
	kit.HasEvent(t, serving, "InternalError")

	first.Labels = map[string]string{"a": "b"}
	kit.Update(t, first)
	kit.NewNode(t, "panics", "192.0.2.1") // wakes the requests that wait for it
	serves()
	kit.Approve(t, kit.Reload(t, first))
	kit.HasEventBy(t, first, "csr-signer", "InternalError")
	serves()
	for _, obj := range []*kit.Request{first, approved, serving} {
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && state != csr.Approved {
			t.Errorf("%s is %s", obj.Name, state)
		}
		kit.Remove(t, obj)
	}
	serves()
	kit.Check(t, panics.Load() >= 5, "the parser panicked %d times only", panics.Load())
}
