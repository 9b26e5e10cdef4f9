package rotation

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
)

// recordsName is the name of the controller that notes what was issued.
const recordsName = Name + "-ledger"

// records are the ledgers, by Secret, each of which stores what is noted every few seconds.
type records struct {
	mu       sync.Mutex
	bySecret map[types.NamespacedName]*ledger.Recorder
}

// recorder is that of obj's Secret.
func (r *Reconciler) recorder(obj *v1alpha1.SigningAuthority) *ledger.Recorder {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	name := secretName(obj)
	if one := r.records.bySecret[name]; one != nil {
		return one
	}
	one := &ledger.Recorder{
		Book:  ledger.NewBook(r.Client, r.Live, name, r.Clock),
		Nodes: ledger.NewNodes(r.Client, r.Live, name, r.Clock),
	}
	if r.records.bySecret == nil {
		r.records.bySecret = map[types.NamespacedName]*ledger.Recorder{}
	}
	r.records.bySecret[name] = one
	r.group.Go(func(ctx context.Context) { // and once more when it ends
		one.Run(ctx, func(err error) { log.FromContext(ctx).Error(err, "Note what was issued", "secret", name) })
	})
	return one
}

// ledger is that of obj's Secret.
func (r *Reconciler) ledger(obj *v1alpha1.SigningAuthority) *ledger.Book { return r.recorder(obj).Book }

// record notes the certificate that a request holds, whoever has issued it. Where authorities share the CA, as spec.from has
// them do, it is of those that serve its signer; if none does, it is not known who follows which bundle, and it is of all.
func (r *Reconciler) record(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	request := &certificatesv1.CertificateSigningRequest{}
	if err := r.Client.Get(ctx, key.NamespacedName, request, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	all := &v1alpha1.SigningAuthorityList{}
	if err := r.Client.List(ctx, all); err != nil {
		return reconcile.Result{}, fmt.Errorf("list SigningAuthorities: %w", err)
	}
	for i := range all.Items {
		obj := &all.Items[i]
		cert, ours := ledger.Recognize(request, certificates(obj))
		serves := func(one v1alpha1.SigningAuthority) bool { return issues(&one, cert) }
		if ours && (serves(*obj) || !slices.ContainsFunc(all.Items, serves)) {
			r.recorder(obj).Note(cert)
		}
	}
	return reconcile.Result{}, nil
}

// issues says whether obj serves the signer of cert, and has its CA, or has just left it, when all of that is settled.
func issues(obj *v1alpha1.SigningAuthority, cert ledger.Certificate) bool {
	return slices.Contains(obj.Spec.Signers, cert.Signer) && had(obj, &v1alpha1.CAStatus{KeyID: cert.KeyID})
}

// certificateOf is that of a CA as it is noted.
func certificateOf(one *v1alpha1.CAStatus) (*x509.Certificate, error) {
	certs, err := ca.ParseCertificates([]byte(one.Certificate))
	if err == nil && len(certs) != 1 {
		err = fmt.Errorf("there are %d", len(certs))
	}
	if err != nil {
		return nil, fmt.Errorf("the status has no certificate for the CA %s: %w", one.KeyID, err)
	}
	return certs[0], nil
}

// certificates are those of the CAs that obj has now.
func certificates(obj *v1alpha1.SigningAuthority) []*x509.Certificate {
	var all []*x509.Certificate
	for _, one := range []*v1alpha1.CAStatus{obj.Status.Candidate, obj.Status.Signing, obj.Status.Retiring} {
		if one == nil {
			continue
		}
		if cert, err := certificateOf(one); err == nil { // look says what is wrong with it
			all = append(all, cert)
		}
	}
	return all
}

// holdsCertificate says whether there is something to note.
func holdsCertificate(obj client.Object) bool {
	request, ok := obj.(*certificatesv1.CertificateSigningRequest)
	return ok && len(request.Status.Certificate) > 0
}

// otherCAs is that an authority has other CAs, or serves other signers, than before: what was noted for it may now be of
// another one.
var otherCAs = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.SigningAuthority), e.ObjectNew.(*v1alpha1.SigningAuthority)
		return !slices.EqualFunc(certificates(before), certificates(after), (*x509.Certificate).Equal) ||
			!slices.Equal(before.Spec.Signers, after.Spec.Signers)
	},
}

// allIssued are the requests that hold a certificate.
func (r *Reconciler) allIssued(ctx context.Context, _ client.Object) []reconcile.Request {
	all := &certificatesv1.CertificateSigningRequestList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "List requests")
		return nil
	}
	var keys []reconcile.Request
	for i := range all.Items {
		if holdsCertificate(&all.Items[i]) {
			keys = append(keys, reconcile.Request{NamespacedName: types.NamespacedName{Name: all.Items[i].Name}})
		}
	}
	return keys
}
