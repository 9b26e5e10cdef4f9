package rotation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// adoptedFor is longer than the lifetime of each certificate of the model and the ledger's rounding. In a real cluster,
// the owner must choose it so.
const adoptedFor = 60 * day

// authority is a SigningAuthority with its Secret, its published bundle, its ledger, and its signers.
type authority struct {
	*cluster
	name  string
	began []string // the signers when the authority was created
	// asked counts the requested operations. heard is the value of asked when the manager last accepted or refused one.
	asked, heard int
	signers      []*signer
	issued       []certificate
	recorded     int // the number of issued certificates that the manager has seen
	backups      []keypair.Ring
	// refused holds the Events of refused operations. refusedBefore is their number before the current reconcile.
	refused       []string
	refusedBefore int
	promises
	wrong string
}

// certificate is an issued certificate. foreign means that another issuer signed it before its CA came to the
// authority.
type certificate struct {
	ca, signer   string
	at, notAfter time.Time
	foreign      bool
	request      *certificatesv1.CertificateSigningRequest // once the manager has seen it
}

func (c *cluster) authority(name string, signers ...string) *authority {
	a := &authority{cluster: c, name: name, began: signers, promises: newPromises()}
	a.signers = []*signer{newSigner(a), newSigner(a)}
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	obj.Spec.Signers = signers
	obj.Spec.Secret = v1alpha1.SecretReference{Namespace: modelNamespace, Name: name}
	obj.Spec.Verification.SettleFor = &metav1.Duration{Duration: settleFor}
	obj.Spec.Lifetimes.Adopted = &metav1.Duration{Duration: adoptedFor}
	obj.Spec.Trust.ConfigMaps = []v1alpha1.ConfigMapKey{{Namespace: trustNamespace, Name: name}}
	obj.Spec.Trust.ClusterTrustBundles = new(bool)
	c.create(obj)
	c.authorities = append(c.authorities, a)
	return a
}

// object returns the stored object. The caller must not change it.
func (a *authority) object() *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{}
	return a.api.objects[keyOf(obj, client.ObjectKey{Name: a.name})].(*v1alpha1.SigningAuthority)
}

func (a *authority) status() *v1alpha1.SigningAuthorityStatus { return &a.object().Status }

func (a *authority) spec() *v1alpha1.SigningAuthoritySpec { return &a.object().Spec }

func (a *authority) operation() v1alpha1.Operation {
	return v1alpha1.Operation(a.object().Annotations[v1alpha1.OperationAnnotation])
}

func (a *authority) change(change func(obj *v1alpha1.SigningAuthority)) {
	obj := a.object().DeepCopy()
	change(obj)
	a.update(obj)
}

// want requests an operation with the annotation, or removes the annotation.
func (a *authority) want(operation v1alpha1.Operation) {
	a.change(func(obj *v1alpha1.SigningAuthority) {
		obj.Annotations = map[string]string{v1alpha1.OperationAnnotation: string(operation)}
	})
	if operation != "" {
		a.asked++
		a.tell("%s: its owner wants %s", a.name, operation)
	}
}

func (a *authority) ring() keypair.Ring {
	return ringOf(a.api.objects[keyOf(&corev1.Secret{}, a.secret())])
}

// ringOf returns the content of a Secret, or nothing if there is none.
func ringOf(secret client.Object) keypair.Ring {
	if secret == nil {
		return keypair.Ring{}
	}
	ring, err := keypair.ParseRing(secret.(*corev1.Secret).Data)
	utilruntime.Must(err)
	return ring
}

func (a *authority) secret() client.ObjectKey {
	return client.ObjectKey{Namespace: modelNamespace, Name: a.name}
}

// edit changes the Secret as another client than the manager.
func (a *authority) edit(change func(ring *keypair.Ring)) {
	obj := &corev1.Secret{Type: corev1.SecretTypeTLS}
	creates := a.api.get(a.secret(), obj) != nil
	obj.Namespace, obj.Name = a.secret().Namespace, a.secret().Name
	if obj.Data == nil {
		obj.Data = map[string][]byte{}
	}
	ring := ringOf(obj)
	change(&ring)
	utilruntime.Must(errors.Join(ring.WriteTo(obj.Data), a.api.put(obj, creates)))
}

func (a *authority) published() []string {
	return certificatesIn(a.configMap(trustNamespace, a.name).Data["ca.crt"])
}

func (a *authority) account(cert string) (ledger.Account, bool) {
	accounts, err := ledger.NewBook(a.owner, a.owner, a.secret(), a.clock).Read(context.Background())
	utilruntime.Must(err)
	if a.cas[cert] == nil {
		return ledger.Account{}, false
	}
	account, found := accounts[a.cas[cert].authority.KeyID()]
	return account, found
}

func (a *authority) sealed(cert string) bool {
	account, _ := a.account(cert)
	return account.Sealed
}

// issue records a certificate that a signer has stored.
func (a *authority) issue(cert certificate) {
	if !cert.notAfter.After(a.now()) {
		return
	}
	a.tell("%s: %s issues for %s until %s", a.name, cert.ca, cert.signer, cert.notAfter)
	if signing := a.status().Signing; signing != nil && cert.ca != signing.Certificate {
		a.saw("issued by what does not sign any more")
	}
	if published := a.published(); !slices.Contains(published, cert.ca) && !a.excuses(cert) {
		a.fail("a certificate is issued by %s, and %v is published", cert.ca, published)
	}
	a.issued = append(a.issued, cert)
}

func (a *authority) recordNext() {
	cert := &a.issued[a.recorded]
	a.recorded++
	if cert.foreign {
		return
	}
	if cert.request == nil {
		cert.request = a.requestOf(*cert)
		a.create(cert.request)
	}
	a.record(*cert)
}

func (a *authority) recordRest() {
	for a.recorded < len(a.issued) {
		a.recordNext()
	}
}

// recordAll shows the manager again every request that it has seen, as a watch does after a restart.
func (a *authority) recordAll() {
	for _, cert := range a.issued[:a.recorded] {
		if cert.request != nil {
			a.record(cert)
		}
	}
}

func (a *authority) record(cert certificate) {
	key := reconcile.Request{NamespacedName: types.NamespacedName{Name: cert.request.Name}}
	if _, err := a.reconciler.recordIssued(context.Background(), key); err != nil {
		panic(err)
	}
}

func (a *authority) requestOf(cert certificate) *certificatesv1.CertificateSigningRequest {
	parent, err := tls.X509KeyPair(a.cas[cert.ca].pair.Cert, a.cas[cert.ca].pair.Key)
	utilruntime.Must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: cert.at, NotAfter: cert.notAfter}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Leaf, leafKey, parent.PrivateKey)
	utilruntime.Must(err)
	obj := &certificatesv1.CertificateSigningRequest{}
	obj.Name, obj.Spec.SignerName = fmt.Sprintf("request-%d", a.api.version), cert.signer
	obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return obj
}

func (a *authority) forgetEnded() {
	ended := func(cert certificate) bool { return !cert.notAfter.After(a.now()) }
	for _, cert := range slices.Clone(a.issued[:a.recorded]) {
		if !ended(cert) {
			continue
		}
		a.recorded--
		if cert.request != nil {
			delete(a.api.objects, keyOf(cert.request, client.ObjectKeyFromObject(cert.request)))
		}
	}
	a.issued = slices.DeleteFunc(a.issued, ended)
}

func (c *cluster) wrote(before, after client.Object) {
	for _, a := range c.authorities {
		switch after := after.(type) {
		case *v1alpha1.SigningAuthority:
			if after.Name == a.name {
				a.stored(before.(*v1alpha1.SigningAuthority), after)
			}
		case *corev1.Secret:
			if after.Name == a.name {
				a.turned(ringOf(before), ringOf(after))
			}
		}
	}
}

func (a *authority) stored(before, after *v1alpha1.SigningAuthority) {
	was, is := &before.Status, &after.Status
	if before.Annotations[v1alpha1.OperationAnnotation] != "" && after.Annotations[v1alpha1.OperationAnnotation] == "" {
		if a.heard != a.asked {
			// A known weakness: if the owner requests an operation again before the manager has recorded that the last annotation
			// is removed, the second request is lost.
			a.saw("an operation is dropped without a word")
		}
		return
	}
	if is.Answered() && !was.Answered() {
		a.heard = a.asked
		a.tell("%s takes %s", a.name, is.LastOperation.Name)
		if len(a.refused) > a.refusedBefore && is.LastOperation.Result != v1alpha1.Refused {
			a.fail("an Event refuses what the status accepts")
		}
	}
	if was.Intent != is.Intent && is.Intent != "" {
		a.seen[is.Intent]++
		a.tell("%s: %s", a.name, is.Intent)
	}
	if was.Phase != is.Phase {
		a.tell("%s is %s", a.name, is.Phase)
	}
	a.promised(was, is)
	a.checkStatus(was, is)
	if casChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		for _, a := range a.authorities {
			a.recordAll()
		}
	}
}

func (a *authority) turned(before, after keypair.Ring) {
	action := Action(a.status().Intent)
	for _, pair := range []keypair.Pair{after.TLS, after.Candidate} {
		if !pair.Empty() && !pair.Equal(garbage) {
			a.know(pair)
		}
	}
	a.checkAct(action, before)
	a.checkTurn(action, before, after)
	if len(a.backups) < 40 {
		a.backups = append(a.backups, after)
	}
}

func (a *authority) String() string {
	show := func(authority *v1alpha1.CAStatus) string {
		if authority == nil {
			return "-"
		}
		return authority.Certificate
	}
	s, ring := a.status(), a.ring()
	var accounts strings.Builder
	for _, cert := range a.names {
		account, found := a.account(cert)
		fmt.Fprintf(&accounts, "%s %v %t;", cert, account, found)
	}
	return fmt.Sprintf("%s %q gen %d intent %q op %q noted %s %s %s; tls %s signing %s candidate %s retiring %s; "+
		"published %v servers %v verifiers %v kept %v ledger %s waits for %q",
		a.name, s.Phase, s.Generation, s.Intent, a.operation(), show(s.Signing), show(s.Candidate), show(s.Retiring),
		ring.TLS.Cert, ring.Signing.Cert, ring.Candidate.Cert, ring.Retiring.Cert,
		a.published(), a.servers, a.verifiers, a.kept(), accounts.String(), s.WaitingFor)
}

var leafKey = func() *ecdsa.PublicKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	utilruntime.Must(err)
	return &key.PublicKey
}()

// standsStill is the longest time between the reservation of a certificate in the ledger and its issuance.
// ledger.QuietAfter also includes a reserve of five seconds.
const standsStill = ledger.QuietAfter - 5*time.Second

// signer is a signing process with its last view of the Secret. It may have reserved one certificate in the ledger that
// it has not signed yet.
type signer struct {
	view    keypair.Ring
	book    *ledger.Book
	covered *certificate
}

func newSigner(a *authority) *signer {
	return &signer{book: ledger.NewBook(a.owner, a.owner, a.secret(), a.clock)}
}

// read reads the Secret as the signer's source does: if the new content is invalid, the last one stays in use.
func (s *signer) read(a *authority) {
	if ring := a.ring(); a.alive(string(ring.Signing.Cert)) {
		s.view = ring
	}
}

// sign acts as the signer controller for one request. It reports whether it has signed.
func (s *signer) sign(a *authority, name string, lifetime time.Duration) bool {
	if s.covered != nil && a.now().Sub(s.covered.at) < standsStill {
		a.issue(*s.covered)
	}
	s.covered = nil
	ca := string(s.view.Signing.Cert)
	if !a.alive(ca) || !slices.Contains(s.view.Permit.Signers, name) {
		return false
	}
	if longest := s.view.Permit.LifetimeCap; longest > 0 {
		lifetime = min(lifetime, longest)
	}
	authority := a.cas[ca].authority
	notAfter := a.now().Add(lifetime).Truncate(time.Second)
	if notAfter.After(authority.NotAfter()) {
		notAfter = authority.NotAfter()
	}
	if err := s.book.Cover(context.Background(), authority.KeyID(), name, notAfter); err != nil {
		a.seen["not covered"]++
		return false
	}
	if a.sealed(ca) {
		a.saw("covered by a reserve after the seal")
	}
	cert := certificate{ca: ca, signer: name, at: a.now(), notAfter: notAfter}
	if !a.quiet && a.chance(4) {
		s.covered = &cert
		return true
	}
	a.issue(cert)
	return true
}
