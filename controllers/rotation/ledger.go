package rotation

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// ledgerName is the name of the controller that records issued certificates.
const ledgerName = Name + "-ledger"

// recorder returns the recorder for the Secret of obj.
func (r *Reconciler) recorder(obj *v1alpha1.SigningAuthority) *ledger.Recorder {
	name := secretName(obj)
	known, _ := r.recorders.LoadOrStore(name, ledger.NewRecorder(r.Client, r.Live, name, r.Clock))
	return known.(*ledger.Recorder)
}

// readLedger reads the ledger, after it has stored what is noted. While a CA retires, all of that must be stored.
func (r *Reconciler) readLedger(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) (err error) {
	recorder := r.recorder(obj)
	if err := recorder.Flush(ctx); err != nil && obj.Status.Retiring != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	if o.Accounts, err = recorder.Read(ctx); err != nil {
		return fmt.Errorf("read ledger: %w", err)
	}
	return nil
}

// storeMoved stores until ctx ends which nodes have moved: soon, because rotation move-nodes waits for it at each node, but not in one
// write for each node. No decision depends on it.
func (r *Reconciler) storeMoved(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		authorities := &v1alpha1.SigningAuthorityList{}
		err := r.Client.List(ctx, authorities)
		for i := range authorities.Items {
			if obj := &authorities.Items[i]; r.owns(obj) && retires(obj) {
				err = errors.Join(err, r.recorder(obj).FlushMoved(ctx, obj.Status.Signing.KeyID))
			}
		}
		if err != nil {
			log.FromContext(ctx).Error(err, "Store which nodes have moved")
		}
	}, 2*time.Second)
	return nil
}

// retires reports whether a CA of obj retires, and another one signs.
func retires(obj *v1alpha1.SigningAuthority) bool {
	return obj.Status.Retiring != nil && obj.Status.Signing != nil
}

// everyRequest is the key for which recordIssued reads all requests: an authority has new CAs, or one signs or retires now.
var everyRequest = reconcile.Request{}

// issuedPage is how many requests are read at a time. Each may have 1.5 MiB, and they decide how much memory it takes.
const issuedPage = 50

// recordIssued records the certificate of a request, or of all requests for the key everyRequest.
func (r *Reconciler) recordIssued(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	authorities := &v1alpha1.SigningAuthorityList{}
	if err := r.Client.List(ctx, authorities); err != nil {
		return reconcile.Result{}, fmt.Errorf("list SigningAuthorities: %w", err) // retried by the queue
	}
	if key == everyRequest {
		return reconcile.Result{}, r.recordAll(ctx, authorities.Items) // done, or retried by the queue
	}
	request := &certificatesv1.CertificateSigningRequest{}
	if err := r.served.Client.Get(ctx, key.NamespacedName, request, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // deleted: done; otherwise retried by the queue
	}
	r.record(request, authorities.Items)
	return reconcile.Result{}, nil // done: a certificate never changes
}

// Authorities returns the CAs whose certificates are recorded, for csr.Trim.
func (r *Reconciler) Authorities() []*x509.Certificate {
	return *cmp.Or(r.authorities.Load(), new([]*x509.Certificate))
}

// learnCAs tells the cache the CAs by whose keys it recognizes certificates from now on, and asks for everyRequest: what the cache
// trimmed before has no issuer.
func (r *Reconciler) learnCAs(ctx context.Context, _ client.Object) []reconcile.Request {
	authorities := &v1alpha1.SigningAuthorityList{}
	if err := r.Client.List(ctx, authorities); err == nil { // from the cache; recordIssued retries another error
		r.know(authorities.Items)
	}
	return []reconcile.Request{everyRequest}
}

func (r *Reconciler) know(authorities []v1alpha1.SigningAuthority) {
	var all []*x509.Certificate
	for i := range authorities {
		if r.owns(&authorities[i]) {
			all = append(all, certificates(&authorities[i])...)
		}
	}
	r.authorities.Store(&all)
}

// recordAll reads all requests from the API server, and records their certificates. The cache may lack them, or may have trimmed them
// before it knew the CAs.
func (r *Reconciler) recordAll(ctx context.Context, authorities []v1alpha1.SigningAuthority) error {
	r.know(authorities)
	if len(authorities) == 0 {
		return nil
	}
	page := &certificatesv1.CertificateSigningRequestList{}
	for first := true; first || page.Continue != ""; first = false {
		if err := call.List(ctx, r.served.Live, page, client.Limit(issuedPage), client.Continue(page.Continue)); err != nil {
			return fmt.Errorf("list requests: %w", err)
		}
		for i := range page.Items {
			r.record(&page.Items[i], authorities)
		}
	}
	return nil
}

// record records the certificate of request, which may be trimmed, also if another program issued it. With a home apart, no other
// program has the key, so the ledger has every signer already: administrators of the served cluster could fill it with names. The
// node of request has moved if the CA that signs has issued it while another one retires.
func (r *Reconciler) record(request *certificatesv1.CertificateSigningRequest, authorities []v1alpha1.SigningAuthority) {
	for i := range authorities {
		obj := &authorities[i]
		if !r.owns(obj) || r.apart && !slices.Contains(obj.Spec.Signers, request.Spec.SignerName) {
			continue
		}
		if cert, ours := ledger.Recognize(request, certificates(obj)); ours {
			if !retires(obj) || cert.KeyID != obj.Status.Signing.KeyID {
				cert.Node = ""
			}
			r.recorder(obj).Note(cert)
		}
	}
}

// certificates returns the certificates of the CAs of obj.
func certificates(obj *v1alpha1.SigningAuthority) []*x509.Certificate {
	var all []*x509.Certificate
	for _, authority := range obj.Status.CAs() {
		if cert, err := certificateOf(authority); err == nil { // readFacts reports what is wrong with it
			all = append(all, cert)
		}
	}
	return all
}

// casChanged passes updates that change the CAs of an authority, or what they are for.
var casChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.SigningAuthority), e.ObjectNew.(*v1alpha1.SigningAuthority)
		return retires(before) != retires(after) || !slices.EqualFunc(before.Status.CAs(), after.Status.CAs(), v1alpha1.SameCA)
	},
}

// issuedLater passes requests that get a certificate while the controller runs. The key everyRequest stands for the
// earlier ones.
var issuedLater = predicate.And(
	predicate.ResourceVersionChangedPredicate{},
	predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	},
	predicate.NewPredicateFuncs(func(obj client.Object) bool {
		request, ok := obj.(*certificatesv1.CertificateSigningRequest)
		return ok && len(request.Status.Certificate) > 0
	}),
)
