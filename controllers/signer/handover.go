package signer

import (
	"context"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// mostAhead bounds the requests in ahead, and largestAhead the size of each, in bytes. Any other approved request waits
// for the watch.
const mostAhead, largestAhead = 1000, 16 << 10

// ahead holds versions of requests that are newer than the cache, because this process has written them. The approver
// hands a request over as the API server returned it, and the signer adds its own write. The signer works with such a
// version until the watch brings it, so it neither waits for the watch nor signs an older version again. The zero
// value holds nothing. It is safe for concurrent use.
type ahead struct {
	mu       sync.Mutex
	versions map[string]version // by name
	queue    requestQueue       // nil until the controller runs
}

// version is a version of a request. past holds the resourceVersions that obj directly follows: each write was
// conditional on the one before, so no other version is between them.
type version struct {
	obj  *certificatesv1.CertificateSigningRequest
	past []string
}

// source returns a source that enables the handover. The controller starts its sources once it may work.
func (a *ahead) source() source.Source {
	return source.Func(func(_ context.Context, queue requestQueue) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.queue = queue
		return nil
	})
}

// put adds obj, which the approver stored in place of the resourceVersion before. It returns the queue for obj, or nil
// if obj has to wait for the watch or was handled already.
func (a *ahead) put(before string, obj *certificatesv1.CertificateSigningRequest) requestQueue {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queue == nil || len(a.versions) >= mostAhead || a.versions[obj.Name].isAheadOf(obj) {
		return nil
	}
	a.set(version{obj, []string{before}})
	return a.queue
}

// follow adds obj, which the signer stored in place of the resourceVersion before.
func (a *ahead) follow(before string, obj *certificatesv1.CertificateSigningRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, found := a.versions[obj.Name]
	switch {
	case found && last.obj.UID == obj.UID && last.obj.ResourceVersion == before:
		a.set(version{obj, append(last.past, before)})
	case found || len(a.versions) < mostAhead:
		a.set(version{obj, []string{before}})
	}
}

// set replaces the version of a request. The caller holds mu.
func (a *ahead) set(v version) {
	if a.versions == nil {
		a.versions = map[string]version{}
	}
	a.versions[v.obj.Name] = v
}

// of returns the newest version of cached. Any other version of the cache ends the handover.
func (a *ahead) of(cached *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, found := a.versions[cached.Name]
	switch {
	case !found:
		return cached
	case last.isAheadOf(cached):
		return last.obj
	default:
		delete(a.versions, cached.Name)
		return cached
	}
}

// observe returns the newest version of obj, which the watch has brought. Events are handled late, so only the version
// itself, a finished request, or another request of the same name ends the handover.
func (a *ahead) observe(obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, found := a.versions[obj.Name]
	if !found {
		return obj
	}
	if last.isAheadOf(obj) {
		return last.obj
	}
	state := csr.StateOf(obj)
	if last.obj.UID != obj.UID || last.obj.ResourceVersion == obj.ResourceVersion ||
		state != csr.Pending && state != csr.Approved {
		delete(a.versions, obj.Name)
	}
	return obj
}

// drop ends the handover of the named request.
func (a *ahead) drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.versions, name)
}

func (v version) isAheadOf(obj *certificatesv1.CertificateSigningRequest) bool {
	return v.obj != nil && v.obj.UID == obj.UID && slices.Contains(v.past, obj.ResourceVersion)
}

// wrote records that the API server has stored obj, which is finished, in place of the resourceVersion before.
func (r *Reconciler) wrote(ctx context.Context, before string, obj *certificatesv1.CertificateSigningRequest) {
	small := &certificatesv1.CertificateSigningRequest{Status: obj.Status}
	small.Name, small.UID, small.ResourceVersion = obj.Name, obj.UID, obj.ResourceVersion
	small.Spec.SignerName = obj.Spec.SignerName
	r.ahead.follow(before, small)
	cached := &certificatesv1.CertificateSigningRequest{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(obj), cached, client.UnsafeDisableDeepCopy)
	switch {
	case err == nil:
		r.ahead.of(cached) // the watch may have been faster than the answer, and brings nothing else
	case apierrors.IsNotFound(err):
		r.ahead.drop(obj.Name)
	}
}

// Handover signs a request without waiting for the watch. approved is the request exactly as the API server returned
// it when it stored the approval in place of judged. If anything is unclear, Handover does nothing, and the watch
// brings the request. Handover and the caller only read approved.
func (r *Reconciler) Handover(judged, approved *certificatesv1.CertificateSigningRequest) {
	if r.DryRun || approved.Name != judged.Name || approved.UID != judged.UID || approved.ResourceVersion == "" ||
		approved.ResourceVersion == judged.ResourceVersion || !r.signable(approved) ||
		approved.Size() > largestAhead {
		return
	}
	if queue := r.ahead.put(judged.ResourceVersion, approved); queue != nil {
		r.index(approved)
		queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: approved.Name}})
	}
}
