package rotation

import (
	"bytes"
	"cmp"
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
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
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
	issued       []*certificate
	backups      []keypair.Ring
	// refused holds the Events of refused operations. refusedBefore is their number before the current reconcile.
	refused       []string
	stops         []string // the Events of stops after an edit of the Secret
	refusedBefore int
	promises
	wrong error // the first violation
}

// certificate is an issued certificate. recorded means that the manager has seen its request. Without a request, another
// issuer signed it before its CA came to the authority.
type certificate struct {
	ca, signer   string
	at, notAfter time.Time
	request      *certificatesv1.CertificateSigningRequest
	recorded     bool
}

func (c *cluster) authority(name string, signers ...string) *authority {
	a := &authority{cluster: c, name: name, began: signers}
	a.promises = promises{map[string][]v1alpha1.Outstanding{}, map[string]time.Time{}, map[string]bool{}, map[string]bool{}}
	a.signers = []*signer{newSigner(a), newSigner(a)}
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	obj.Spec.Signers = signers
	obj.Spec.Secret = v1alpha1.SecretReference{Namespace: modelNamespace, Name: name}
	obj.Spec.Verification.SettleFor = &metav1.Duration{Duration: settleFor}
	obj.Spec.Lifetimes.Adopted = &metav1.Duration{Duration: adoptedFor}
	obj.Spec.Trust.ConfigMaps = []v1alpha1.TrustEntry{{Namespace: trustNamespace, Name: name}}
	obj.Spec.Trust.ClusterTrustBundles = new(bool)
	c.create(obj)
	c.authorities = append(c.authorities, a)
	return a
}

func (a *authority) object() *v1alpha1.SigningAuthority {
	return storedAs[v1alpha1.SigningAuthority](a.api, "", a.name)
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
		obj.Spec.CA.KeyAlgorithm = string(a.algorithm())
	})
	if operation != "" {
		a.asked++
		a.log("%s: its owner wants %s", a.name, operation)
	}
}

func (a *authority) ring() keypair.Ring {
	return ringOf(storedAs[corev1.Secret](a.api, modelNamespace, a.name))
}

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
	obj, ring := storedAs[corev1.Secret](a.api, modelNamespace, a.name).DeepCopy(), a.ring()
	creates := obj.UID == ""
	obj.Namespace, obj.Name, obj.Type = modelNamespace, a.name, corev1.SecretTypeTLS
	if creates {
		obj.Data = map[string][]byte{}
	}
	change(&ring)
	utilruntime.Must(errors.Join(ring.WriteTo(obj.Data), a.owner.write(obj, creates)))
}

func (a *authority) published() []string {
	return certificatesIn(a.configMap(trustNamespace, a.name).Data["ca.crt"])
}

func (a *authority) accounts() (map[string]ledger.Account, error) {
	return ledger.NewBook(a.owner, a.owner, a.secret(), a.clock).Read(context.Background())
}

func (a *authority) account(cert string) (account ledger.Account, found bool) {
	accounts, err := a.accounts()
	utilruntime.Must(err)
	if known := a.cas[cert]; known != nil {
		account, found = accounts[known.authority.KeyID()]
	}
	return account, found
}

func (a *authority) sealed(cert string) bool {
	account, _ := a.account(cert)
	return account.Sealed
}

// issue records a certificate that a signer has stored.
func (a *authority) issue(cert *certificate) {
	if !cert.notAfter.After(a.now()) {
		return
	}
	a.log("%s: %s issues for %s until %s", a.name, cert.ca, cert.signer, cert.notAfter)
	if signing := a.status().Signing; signing != nil && cert.ca != signing.Certificate {
		a.saw("issued by what does not sign any more")
	}
	if published := a.published(); a.accepted(cert.ca, published) == 0 && !a.excuses(cert) {
		a.fail("a certificate is issued by %s, and %v is published", cert.ca, published)
	}
	cert.request = a.requestOf(cert)
	a.create(cert.request)
	a.issued = append(a.issued, cert)
}

// show shows the manager the request of cert, as a watch does.
func (a *authority) show(cert *certificate) {
	cert.recorded = true
	if cert.request != nil {
		key := reconcile.Request{NamespacedName: types.NamespacedName{Name: cert.request.Name}}
		_, err := a.reconciler.recordIssued(context.Background(), key)
		utilruntime.Must(err)
	}
}

// showAll shows the manager again every request that it has seen, as a watch does after a restart, or every other request.
func (a *authority) showAll(seen bool) {
	for _, cert := range a.issued {
		if cert.recorded == seen {
			a.show(cert)
		}
	}
}

func (a *authority) requestOf(cert *certificate) *certificatesv1.CertificateSigningRequest {
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
	a.issued = slices.DeleteFunc(a.issued, func(cert *certificate) bool {
		ended := !cert.notAfter.After(a.now())
		if ended && cert.request != nil {
			delete(a.api.objects, keyOf(cert.request, client.ObjectKeyFromObject(cert.request)))
		}
		return ended
	})
}

func (c *cluster) wrote(before, after client.Object) {
	for _, a := range c.authorities {
		authority, isStatus := after.(*v1alpha1.SigningAuthority)
		if c.paused && (!isStatus || !equality.Semantic.DeepEqual(
			decisionOf(&before.(*v1alpha1.SigningAuthority).Status), decisionOf(&authority.Status))) {
			a.fail("a step is taken without an agreed time: %T %s", after, after.GetName())
		}
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
			a.saw("an operation is dropped without an answer")
		}
		return
	}
	if is.Answered() && !was.Answered() {
		a.heard = a.asked
		a.log("%s takes %s", a.name, is.LastOperation.Name)
		if len(a.refused) > a.refusedBefore && is.LastOperation.Result != v1alpha1.Refused {
			a.fail("an Event refuses what the status accepts")
		}
	}
	if was.Intent != is.Intent && is.Intent != "" {
		a.seen[is.Intent]++
		a.log("%s: %s", a.name, is.Intent)
	}
	if was.Phase != is.Phase {
		a.log("%s is %s", a.name, is.Phase)
	}
	a.promised(was, is)
	a.checkStatus(was, is)
	if casChanged.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		for _, a := range a.authorities {
			a.showAll(true)
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
	if cert := string(after.Candidate.Cert); action == MakeCandidate && cert != "" {
		made := a.cas[cert].authority.Certificate()
		age := a.now().Truncate(time.Second).Add(ca.DefaultAuthorityLifetime).Sub(made.NotAfter) // more than zero if answers are slow
		if a.now().Before(made.NotBefore) || age < 0 || age > 0 && (!a.slow || age > 5*time.Minute) {
			a.fail("a CA is made at %s that is valid from %s until %s", a.now(), made.NotBefore, made.NotAfter)
		}
	}
	if made := string(after.TLS.Cert); action == MakeRenewed && made != string(before.TLS.Cert) && !renews(a.cas[made].authority, a.cas[string(before.Signing.Cert)].authority) {
		a.fail("%s does not renew %s", made, before.Signing.Cert)
	}
	a.checkAct(action, before)
	a.checkTurn(action, before, after)
	if len(a.backups) < 40 {
		a.backups = append(a.backups, after)
	}
}

func (a *authority) String() string {
	s, ring := *a.status(), a.ring()
	cas := func(all ...*v1alpha1.CAStatus) (certs []string) {
		for _, authority := range all {
			certs = append(certs, cmp.Or(authority, &v1alpha1.CAStatus{Certificate: "-"}).Certificate)
		}
		return certs
	}
	ledgers, err := a.accounts()
	return fmt.Sprintf("%s %q gen %d intent %q op %q noted %s; tls %s signing %s candidate %s retiring %s; published %v servers %v verifiers %v "+
		"kept %v ledger %v %v waits for %q", a.name, s.Phase, s.Generation, s.Intent, a.operation(), cas(s.Signing, s.Candidate, s.Retiring),
		ring.TLS.Cert, ring.Signing.Cert, ring.Candidate.Cert, ring.Retiring.Cert, a.published(),
		a.servers, a.verifiers, a.kept(), ledgers, err, s.WaitingFor)
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
	ring := a.ring()
	if cert := string(ring.Signing.Cert); a.alive(cert) {
		if proven := ring.Permit.KeyID; proven != "" && proven != a.cas[cert].authority.KeyID() {
			a.saw("a signer refuses a CA that is not proven")
			return
		}
		s.view = ring
	}
}

// sign acts as the signer controller for one request. It reports whether it has signed.
func (s *signer) sign(a *authority, name string, lifetime time.Duration) bool {
	if s.covered != nil && a.now().Sub(s.covered.at) < standsStill {
		a.issue(s.covered)
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
	if notAfter.After(authority.Certificate().NotAfter) {
		notAfter = authority.Certificate().NotAfter
	}
	if err := s.book.Cover(context.Background(), authority.KeyID(), name, notAfter); err != nil {
		a.seen["not covered"]++
		return false
	}
	if a.sealed(ca) {
		a.saw("covered by a reserve after the seal")
	}
	cert := &certificate{ca: ca, signer: name, at: a.now(), notAfter: notAfter}
	if !a.quiet && a.chance(4) {
		s.covered = cert
		return true
	}
	a.issue(cert)
	return true
}

// anySigner stands for the signer of outstanding certificates whose ledger is lost.
const anySigner = "any signer (the ledger of this CA is lost)"

// promises holds the owner's statements and actions that allow a certificate to break, by CA.
type promises struct {
	named      map[string][]v1alpha1.Outstanding // the outstanding certificates that the owner accepted
	acceptedAt map[string]time.Time              // when it accepted them
	excused    map[string]bool                   // the owner lied about the CA, or its key and status are lost at once
	left       map[string]bool                   // it has retired here, according to the ledger
}

func (a *authority) fail(format string, args ...any) {
	a.wrong = cmp.Or(a.wrong, fmt.Errorf(format+": %s", append(args, a)...))
}

// excuses reports whether the owner has allowed the certificate to break.
func (a *authority) excuses(cert *certificate) bool {
	if a.excused[a.key(cert.ca)] {
		return true
	}
	// A known weakness: the acceptance also covers certificates that a late signer issues after it, before the account is closed.
	if at, accepted := a.acceptedAt[a.key(cert.ca)]; accepted && !cert.at.Before(at) {
		return true
	}
	return slices.ContainsFunc(a.named[a.key(cert.ca)], func(part v1alpha1.Outstanding) bool {
		signer := part.Signer == cert.signer || part.Signer == "" || part.Signer == anySigner
		return signer && !cert.notAfter.After(part.Until.Time)
	})
}

// early reports whether the CA of the certificate does not sign here yet.
func (a *authority) early(cert *certificate) bool {
	s := a.status()
	retires := s.Retiring != nil && s.Retiring.KeyID == a.key(cert.ca)
	return s.Signing == nil || cert.request == nil && s.Signing.KeyID != a.key(cert.ca) && !retires
}

// promised records the owner's promises in the stored status.
func (a *authority) promised(was, is *v1alpha1.SigningAuthorityStatus) {
	accepted := func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Retiring != nil && s.Retiring.OutstandingAcceptedAt != nil
	}
	if accepted(is) && was.Retiring != nil && !accepted(was) {
		a.named[is.Retiring.KeyID] = is.Outstanding
		a.acceptedAt[is.Retiring.KeyID] = a.now()
		a.saw("what is outstanding is accepted")
		if len(is.Outstanding) > 0 {
			a.saw("something is outstanding that is accepted")
		}
	}
	isNew := is.Candidate != nil && !v1alpha1.SameCA(was.Candidate, is.Candidate)
	if isNew && is.Candidate.TrustConfirmedAt != nil && is.Signing == nil { // the owner supplied a trusted CA
		a.also = append(a.also, is.Candidate.Certificate)
		for i := range a.verifiers {
			a.verifiers[i] = append(a.verifiers[i], is.Candidate.Certificate)
		}
	}
	if was.Phase == v1alpha1.New && is.Phase != v1alpha1.New {
		a.excuseUnknown(is)
	}
}

// excuseUnknown excuses CAs that the manager cannot know any more, because they are neither in the Secret nor in the
// status.
func (a *authority) excuseUnknown(s *v1alpha1.SigningAuthorityStatus) {
	var lost []string
	for _, cert := range a.issued {
		if cert.request != nil {
			lost = append(lost, cert.ca)
		}
	}
	for _, signer := range a.signers { // signers keep the CA that they have loaded
		lost = append(lost, string(signer.view.Signing.Cert))
	}
	known := func(authority *v1alpha1.CAStatus, cert string) bool { // a renewed certificate stands for an earlier one
		return authority != nil && authority.KeyID == a.key(cert) && !a.cas[cert].authority.Certificate().NotAfter.After(authority.NotAfter.Time)
	}
	for _, cert := range lost {
		a.excused[a.key(cert)] = a.excused[a.key(cert)] || cert != "" && !known(s.Signing, cert) && !known(s.Retiring, cert)
	}
}

func (a *authority) checkStatus(was, is *v1alpha1.SigningAuthorityStatus) {
	for _, authority := range publishedCAs(is) {
		cert := authority.Certificate
		before := slices.ContainsFunc(publishedCAs(was), func(other *v1alpha1.CAStatus) bool { return other.Certificate == cert })
		if a.left[a.key(cert)] && was.Phase != v1alpha1.New && !before {
			a.fail("%s, which has retired here, is to be trusted again", cert)
		}
	}
	if was.UnpublishedAt != nil || is.UnpublishedAt == nil {
		return
	}
	a.saw("a CA is unpublished")
	for _, cert := range a.issued {
		if a.key(cert.ca) == is.Retiring.KeyID && cert.notAfter.After(a.now()) && !a.excuses(cert) {
			a.fail("completed with a certificate of %s that lives until %s", cert.ca, cert.notAfter)
		}
	}
	for _, signer := range a.signers {
		a.checkReserve(signer, is.Retiring)
	}
}

// checkReserve checks that no late signer can still issue with an unpublished CA.
func (a *authority) checkReserve(s *signer, retiring *v1alpha1.CAStatus) {
	if a.key(string(s.view.Signing.Cert)) != retiring.KeyID {
		return
	}
	account, _ := a.account(retiring.Certificate)
	for _, name := range s.view.Permit.Signers {
		mark := account.Signers[name]
		cert := &certificate{ca: retiring.Certificate, signer: name, at: a.now(), notAfter: mark}
		if !mark.After(a.now()) || a.excuses(cert) {
			continue
		}
		if err := s.book.Cover(context.Background(), retiring.KeyID, name, mark); err == nil {
			a.fail("a signer may issue by %s until %s", retiring.Certificate, mark)
		}
	}
}

// checkAct checks action, which has just changed the Secret. before is the content of the Secret before that.
func (a *authority) checkAct(action Action, before keypair.Ring) {
	switch action {
	case Switch:
		cert := string(before.Candidate.Cert)
		a.checkTrusted(cert, action)
		a.proven[a.key(cert)] = append(a.proven[a.key(cert)], a.spec().Signers...)
	case SwapBack:
		cert := string(before.Retiring.Cert)
		a.checkTrusted(cert, action)
		a.proven[a.key(cert)] = append(a.proven[a.key(cert)], slices.DeleteFunc(slices.Clone(a.spec().Signers), forServers)...)
	case TakeRenewed:
		cert := string(before.TLS.Cert)
		renewed, old := a.cas[cert].authority, a.cas[string(before.Signing.Cert)].authority
		seen := !slices.ContainsFunc(a.spec().Signers, forClients) || slices.Contains(a.kept(), cert)
		if !renews(renewed, old) || renewed.Usable(a.now()) != nil || !slices.Contains(a.published(), cert) || !seen {
			a.fail("%s of %s by %s", action, before.Signing.Cert, cert)
		}
	case DestroyRetiring:
		a.checkRefused(string(before.Retiring.Cert))
	}
}

func (a *authority) checkTrusted(cert string, action Action) {
	// A statement of the owner about the CA in another authority counts here too.
	excused := slices.ContainsFunc(a.authorities, func(other *authority) bool { return other.excused[a.key(cert)] })
	switch err := a.cas[cert].authority.Usable(a.now()); {
	case err != nil:
		a.fail("%s to %s, which signs nothing: %v", action, cert, err)
	case slices.ContainsFunc(a.spec().Signers, forClients) && a.accepted(cert, a.servers...) != len(a.servers):
		a.fail("%s to %s, which not every API server trusts", action, cert)
	case a.sealed(cert):
		a.fail("%s to %s, for which the ledger is closed", action, cert)
	case a.left[a.key(cert)]:
		a.fail("%s to %s, which has retired here", action, cert)
	case !slices.ContainsFunc(a.spec().Signers, forServers) || excused:
	case a.accepted(cert, a.verifiers...) != len(a.verifiers):
		a.fail("%s to %s, which not every verifier of serving certificates trusts", action, cert)
	}
}

// checkRefused checks the destruction of the last key of a CA: no API server may accept the CA.
func (a *authority) checkRefused(cert string) {
	if cert == "" {
		return
	}
	account, _ := a.account(cert)
	if account.Sealed { // otherwise the account was lost after it was closed
		a.left[a.key(cert)] = true
	}
	for _, other := range a.authorities {
		if other != a && slices.Contains(other.published(), cert) {
			a.fail("%s goes, which %s publishes", cert, other.name)
		}
	}
	if slices.ContainsFunc(a.spec().Signers, forClients) || slices.ContainsFunc(account.SignerNames(), forClients) {
		a.destroyed[cert] = true
	}
}

func (a *authority) checkTurn(action Action, before, after keypair.Ring) {
	has := func(ring keypair.Ring, pair keypair.Pair) bool {
		return slices.ContainsFunc([]keypair.Pair{ring.TLS, ring.Signing, ring.Candidate, ring.Retiring}, pair.Equal)
	}
	s := a.status()
	onlyTLS := a.stopped("copy signing.crt and signing.key to tls.crt") || a.stopped("correct tls.crt")
	if needsTLS := action == Switch || action == TakeCandidate; a.stopped("") && (needsTLS || !onlyTLS) {
		a.fail("%s is taken while the rotation is stopped", action)
	}
	rolledBack := action == DropCandidate && before.TLS.Equal(before.Candidate)
	if action == DropCandidate && string(before.Candidate.Cert) != s.Candidate.Certificate {
		a.fail("a rollback destroys %s", before.Candidate.Cert)
	}
	if lost := before.TLS; !lost.Empty() && !has(after, lost) && !rolledBack {
		a.fail("%s drops what its owner has brought, %s", action, lost.Cert)
	}
	hasKey := func(ring keypair.Ring, pair keypair.Pair) bool {
		return slices.ContainsFunc([]keypair.Pair{ring.TLS, ring.Signing, ring.Candidate, ring.Retiring}, func(one keypair.Pair) bool {
			return bytes.Equal(one.Key, pair.Key)
		})
	}
	for _, pair := range []keypair.Pair{before.Signing, before.Candidate, before.Retiring} {
		if pair.Empty() || hasKey(after, pair) {
			continue
		}
		signing := s.Signing != nil && string(pair.Cert) == s.Signing.Certificate
		if signing || s.Retiring != nil && string(pair.Cert) == s.Retiring.Certificate && s.UnpublishedAt == nil {
			a.fail("%s loses the key of %s", action, pair.Cert)
		}
	}
	switch permit := after.Permit; {
	case after.Signing.Empty():
	case len(after.Signing.Cert) == 0 || len(after.Signing.Key) == 0:
		a.fail("%s leaves half a pair", action)
	case s.Signing != nil && permit.KeyID != a.cas[string(after.Signing.Cert)].authority.KeyID():
		a.fail("%s permits %q", action, permit.KeyID)
	case permit.Authority != a.name || !a.mayPermit(string(after.Signing.Cert), permit.Signers):
		a.fail("%s leaves the permit %v", action, permit)
	case !after.Candidate.Empty() && permit.LifetimeCap != oldCap:
		a.fail("%s leaves no cap while a candidate waits", action)
	case after.Candidate.Empty() && permit.LifetimeCap != 0:
		a.fail("%s leaves a cap", action)
	}
}

// stopped reports whether the rotation waits until its owner restores the Secret, with an instruction that begins with part.
func (a *authority) stopped(part string) bool {
	return strings.HasPrefix(meta.FindStatusCondition(a.status().Conditions, v1alpha1.ConditionReady).Message, notAsLeft+part)
}

// mayPermit reports whether the CA may sign for signers: the proven ones, and those with the same verifiers.
func (a *authority) mayPermit(cert string, signers []string) bool {
	proven := a.proven[a.key(cert)]
	if len(signers) < len(a.spec().Signers) {
		a.saw("what signs is not for all")
	}
	return !slices.ContainsFunc(signers, func(name string) bool {
		verifiedAlike := name != servingSigner && slices.ContainsFunc(proven, forClients)
		return !slices.Contains(a.spec().Signers, name) || !slices.Contains(proven, name) && !verifiedAlike
	})
}

// broken returns a violation of an invariant.
func (c *cluster) broken() error {
	for _, a := range c.authorities {
		if a.wrong != nil {
			return a.wrong
		}
		published := a.published()
		for _, cert := range a.issued {
			lives := cert.notAfter.After(c.now()) && c.alive(cert.ca)
			if lives && c.accepted(cert.ca, published) == 0 && !a.excuses(cert) && !a.early(cert) {
				return fmt.Errorf("a certificate of %s for %q lives until %s, and is not published: %s",
					cert.ca, cert.signer, cert.notAfter.Format(time.RFC3339), a)
			}
		}
	}
	for cert := range c.destroyed {
		if n := c.accepted(cert, c.servers...); n > 0 {
			return fmt.Errorf("the key of %s is destroyed, and %d accept it: %v", cert, n, c.authorities)
		}
	}
	return nil
}
