package rotation

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// ledgerName is the name of the controller that notes what was issued.
const ledgerName = Name + "-ledger"

// recorders are the ledgers, by Secret, each of which stores what is noted every few seconds.
type recorders struct {
	mu       sync.Mutex
	bySecret map[types.NamespacedName]*ledger.Recorder
}

// recorder is that of obj's Secret.
func (r *Reconciler) recorder(obj *v1alpha1.SigningAuthority) *ledger.Recorder {
	r.recorders.mu.Lock()
	defer r.recorders.mu.Unlock()
	name := secretName(obj)
	if one := r.recorders.bySecret[name]; one != nil {
		return one
	}
	one := &ledger.Recorder{
		Book:  ledger.NewBook(r.Client, r.Live, name, r.Clock),
		Nodes: ledger.NewNodes(r.Client, r.Live, name, r.Clock),
	}
	if r.recorders.bySecret == nil {
		r.recorders.bySecret = map[types.NamespacedName]*ledger.Recorder{}
	}
	r.recorders.bySecret[name] = one
	r.group.Go(func(ctx context.Context) { // and once more when it ends
		one.Run(ctx, func(err error) { log.FromContext(ctx).Error(err, "Note what was issued", "secret", name) })
	})
	return one
}

// ledger is that of obj's Secret.
func (r *Reconciler) ledger(obj *v1alpha1.SigningAuthority) *ledger.Book { return r.recorder(obj).Book }

// readLedger reads what was issued, and what of it lives on the retiring CA.
func (r *Reconciler) readLedger(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	recorder := r.recorder(obj)
	flushed := recorder.Flush(ctx)
	accounts, err := recorder.Book.Read(ctx)
	if err != nil {
		return fmt.Errorf("read what was issued: %w", err)
	}
	s.noteAccounts(accounts, &obj.Status)
	retiring := obj.Status.Retiring
	if retiring == nil {
		s.Sealed = s.Secret.Retiring != nil && accounts[s.Secret.Retiring.KeyID].Sealed
		return nil
	}
	if flushed != nil && !s.SigningUnaccounted { // which is why
		return fmt.Errorf("note what was issued: %w", flushed)
	}
	account, found := accounts[retiring.KeyID]
	if !found { // it had one since it began to sign
		s.Outstanding = append(s.Outstanding, v1alpha1.Outstanding{Signer: "any signer, as the ledger of it is gone", Until: retiring.NotAfter})
	}
	if found {
		if err := r.addFromCoholders(ctx, obj, s, account); err != nil {
			return err
		}
	}
	s.Sealed, s.RetiringOpen, s.RetiringSigners = account.Sealed, found && !account.Sealed, account.SignerNames()
	for _, signer := range s.RetiringSigners {
		issued := account.Signers[signer]
		s.Outstanding = append(s.Outstanding, v1alpha1.Outstanding{Signer: signer, Count: int64(issued.Count), Until: metav1.NewTime(issued.NotAfter)})
	}
	return nil
}

// noteAccounts is what the ledger knows of the CAs in the Secret.
func (s *observation) noteAccounts(accounts map[string]ledger.Account, noted *v1alpha1.SigningAuthorityStatus) {
	if s.Secret.TLS != nil {
		s.TLSRetired = accounts[s.Secret.TLS.KeyID].Sealed && !s.Secret.TLS.same(s.Secret.Signing) && !s.Secret.TLS.same(s.Secret.Retiring)
	}
	if s.Secret.Candidate != nil {
		account, found := accounts[s.Secret.Candidate.KeyID]
		s.CandidateUnaccounted, s.CandidateRetired = !found && s.Secret.Candidate.is(noted.Candidate), account.Sealed
	}
	if s.Secret.Signing != nil {
		account, found := accounts[s.Secret.Signing.KeyID]
		s.SigningUnaccounted, s.SigningSealed = !found && s.Secret.Signing.is(noted.Signing), account.Sealed
	}
}

// addFromCoholders adds to account what was issued elsewhere for signers that are served here by now: who verifies that goes by the
// bundle of this authority.
func (r *Reconciler) addFromCoholders(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation, account ledger.Account) error {
	for _, other := range s.coholders {
		accounts, err := r.ledger(other).Read(ctx)
		if err != nil {
			return fmt.Errorf("read what SigningAuthority %s has issued: %w", other.Name, err)
		}
		theirs := accounts[obj.Status.Retiring.KeyID]
		for _, signer := range obj.Spec.Signers {
			if issued, found := theirs.Signers[signer]; found && issued.NotAfter.After(account.Signers[signer].NotAfter) {
				account.Signers[signer] = issued
			}
		}
	}
	return nil
}

// recordIssued notes the certificate that a request holds, whoever has issued it. Where authorities share the CA, as spec.from has
// them do, it is of those that serve its signer; if none does, it is not known who follows which bundle, and it is of all.
func (r *Reconciler) recordIssued(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
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
		serves := func(one v1alpha1.SigningAuthority) bool { return servesSigner(&one, cert) }
		if ours && (serves(*obj) || !slices.ContainsFunc(all.Items, serves)) {
			r.recorder(obj).Note(cert)
		}
	}
	return reconcile.Result{}, nil
}

// servesSigner says whether obj serves the signer of cert, and has its CA, or has just left it, when all of that is settled.
func servesSigner(obj *v1alpha1.SigningAuthority, cert ledger.Certificate) bool {
	return slices.Contains(obj.Spec.Signers, cert.Signer) && holdsCA(obj, &v1alpha1.CAStatus{KeyID: cert.KeyID})
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

// casChanged is that an authority has other CAs, or serves other signers, than before: what was noted for it may now be of
// another one.
var casChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.SigningAuthority), e.ObjectNew.(*v1alpha1.SigningAuthority)
		return !slices.EqualFunc(certificates(before), certificates(after), (*x509.Certificate).Equal) ||
			!slices.Equal(before.Spec.Signers, after.Spec.Signers)
	},
}

// issuedRequests are the requests that hold a certificate.
func (r *Reconciler) issuedRequests(ctx context.Context, _ client.Object) []reconcile.Request {
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
