package cleaner

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/informers"
)

// attempts holds the pending requests that can supersede each other, in the order of their creation. Finding the next newer
// request costs a binary search, however many requests a requester makes. It holds digests of what requesters choose. The
// zero value is empty. It is safe for concurrent use.
type attempts struct {
	mu       sync.Mutex
	complete bool
	requests map[string]attempt // by name
	lines    map[fairqueue.Digest]*line
}

// attempt says where a request is in the lines.
type attempt struct {
	uid     types.UID
	line    fairqueue.Digest
	created int64
}

// line holds the requests of one csr.Attempt by the second of their creation. The API server stores no fractions.
type line struct {
	seconds []int64 // sorted, each once
	names   map[int64]map[string]struct{}
}

// digestOf returns the digest of a. The separator is no part of a name.
func digestOf(a csr.Attempt) fairqueue.Digest {
	return fairqueue.DigestOf(strings.Join([]string{a.Signer, a.Requester, a.Node}, "\x00"))
}

// note adds, keeps or removes obj, as its state says. It parses each request once.
func (a *attempts) note(obj *certificatesv1.CertificateSigningRequest, limits csr.Limits) {
	a.mu.Lock()
	known, found := a.requests[obj.Name]
	a.mu.Unlock()
	if found && known.uid == obj.UID && csr.StateOf(obj) == csr.Pending {
		return
	}
	read, ok := limits.AttemptOf(obj)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(obj.Name)
	if ok {
		a.add(obj.Name, attempt{obj.UID, digestOf(read), obj.CreationTimestamp.Unix()})
	}
}

// drop removes the request of that name, if it is there.
func (a *attempts) drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(name)
}

// add adds a request that is not there. The caller holds mu.
func (a *attempts) add(name string, at attempt) {
	if a.requests == nil {
		a.requests, a.lines = map[string]attempt{}, map[fairqueue.Digest]*line{}
	}
	a.requests[name] = at
	all := a.lines[at.line]
	if all == nil {
		all = &line{names: map[int64]map[string]struct{}{}}
		a.lines[at.line] = all
	}
	if all.names[at.created] == nil {
		all.names[at.created] = map[string]struct{}{}
		i, _ := slices.BinarySearch(all.seconds, at.created)
		all.seconds = slices.Insert(all.seconds, i, at.created)
	}
	all.names[at.created][name] = struct{}{}
}

// remove removes the request of that name, if it is there. The caller holds mu.
func (a *attempts) remove(name string) {
	at, found := a.requests[name]
	if !found {
		return
	}
	delete(a.requests, name)
	all := a.lines[at.line]
	delete(all.names[at.created], name)
	if len(all.names[at.created]) > 0 {
		return
	}
	delete(all.names, at.created)
	i, _ := slices.BinarySearch(all.seconds, at.created)
	all.seconds = slices.Delete(all.seconds, i, i+1)
	if len(all.seconds) == 0 {
		delete(a.lines, at.line)
	}
}

// newer returns the request that was made first after created, of the same attempt, and its creation. Of two requests of
// one second neither is newer. The name is empty if there is none.
func (a *attempts) newer(of csr.Attempt, created time.Time) (name string, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.lines[digestOf(of)]
	if all == nil {
		return "", time.Time{}
	}
	i, _ := slices.BinarySearch(all.seconds, created.Unix()+1)
	if i == len(all.seconds) {
		return "", time.Time{}
	}
	for name = range all.names[all.seconds[i]] {
		break
	}
	return name, time.Unix(all.seconds[i], 0)
}

// ready reports whether all requests of the cache have been noted.
func (a *attempts) ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.complete
}

func (a *attempts) markReady() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.complete = true
}

// follower keeps the attempts of a Reconciler as the cache has them. It runs on a standby too, so that a new leader knows them.
type follower struct {
	reconciler *Reconciler
	cache      cache.Informers
	log        logr.Logger
}

// NeedLeaderElection returns false.
func (*follower) NeedLeaderElection() bool { return false }

// Start follows the cache until ctx ends.
func (f *follower) Start(ctx context.Context) error {
	informer, err := informers.Get(ctx, f.cache, &certificatesv1.CertificateSigningRequest{}, f.log, func(error) {})
	if err != nil {
		return nil // ctx has ended
	}
	note := func(obj any) {
		if request, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
			f.reconciler.attempts.note(request, f.reconciler.RequestLimits)
		}
	}
	events, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    note,
		UpdateFunc: func(_, obj any) { note(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				f.reconciler.attempts.drop(name)
			}
		},
	})
	if err != nil {
		return nil // the informer has stopped, as ctx has ended
	}
	if toolscache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
		f.reconciler.attempts.markReady()
	}
	<-ctx.Done()
	return nil
}
