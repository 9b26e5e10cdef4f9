package rotation

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// observation is facts together with what an Action needs.
type observation struct {
	facts
	object                       *corev1.Secret // with an empty UID if there is none yet
	ring                         keypair.Ring   // the content of object
	signing, candidate, retiring *ca.Authority  // in ring; nil if missing
	renewed                      *ca.Authority  // signing with a renewed certificate; nil unless NotRenewable is nil
	changes                      []*publish.Change
}

// readFacts reads the state from the API server, without a cache, and probes API servers:
//  1. It reads the time: nothing is asked or written with a wrong clock.
//  2. It reads the Secret.
//  3. It stores the recorded certificates in the ledger, and reads the ledger.
//  4. It probes API servers.
//  5. It reads which client CAs API servers publish.
//  6. It compares what is published with the trust bundle.
//  7. It reads the manager's own client certificate.
//  8. It reads the time again: the facts hold at a time after they were read.
func (r *Reconciler) readFacts(ctx context.Context, obj *v1alpha1.SigningAuthority) (*observation, error) {
	o := &observation{facts: facts{
		Name: obj.Name, Operation: operationOf(obj), SettleFor: r.settleFor(obj), Others: map[string]string{},
		NotMade: ca.Algorithm(obj.Spec.CA.KeyAlgorithm).Check(),
	}}
	for _, read := range []func(context.Context, *v1alpha1.SigningAuthority, *observation) error{
		r.readTime, r.readSecret, r.readLedger, r.askAPIServers, r.readClientCAs, r.readPublished, r.readOwnCertificate, r.readTime,
	} {
		if err := read(ctx, obj, o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// errClocks is wrapped by the error of readTime.
var errClocks = errors.New("no step is taken until the clocks agree")

// readTime reads the time of the API servers, by which the facts count. With a wrong clock, a step could destroy the key of a
// CA whose certificates are valid, remove a valid CA from the trust bundle, or make a CA that is not valid yet.
func (r *Reconciler) readTime(ctx context.Context, _ *v1alpha1.SigningAuthority, o *observation) (err error) {
	if o.Now, err = r.ServerTime.Agreed(ctx); err != nil {
		return fmt.Errorf("%w: %w", errClocks, err)
	}
	return nil
}

// readPublished compares what is published with the trust bundle of obj.
func (r *Reconciler) readPublished(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	if o.Published = len(publishedCAs(&obj.Status)) == 0; o.Published {
		return nil
	}
	wanted, err := bundleOf(obj, o.Now)
	if err != nil {
		return err
	}
	changes, problems := r.publisher.Check(ctx, wanted)
	for _, problem := range problems {
		o.Unpublished = append(o.Unpublished, problem.Error())
	}
	o.changes, o.Published = changes, len(problems) == 0
	return nil
}

// operationOf returns the requested operation. It cuts a text that is too long to be an operation. The status stores the
// text, and whoever may set the annotation must not be able to make the status too large.
func operationOf(obj *v1alpha1.SigningAuthority) v1alpha1.Operation {
	return v1alpha1.Operation(csr.ShortenTo(obj.Annotations[v1alpha1.OperationAnnotation], v1alpha1.LongestOperation))
}

// readSecret reads the Secret of obj and the CAs in it.
func (r *Reconciler) readSecret(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	name := secretName(obj)
	object := &corev1.Secret{Type: corev1.SecretTypeTLS}
	object.Namespace, object.Name = name.Namespace, name.Name
	if err := call.Get(ctx, r.Live, name, object); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	if object.Type != corev1.SecretTypeTLS {
		return fmt.Errorf("the Secret %s has type %q, want %q: create it again with that type",
			name, object.Type, corev1.SecretTypeTLS)
	}
	ring, err := keypair.ParseRing(object.Data)
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	o.Secret.Unusable, o.Secret.Unfit = map[pairName]error{}, map[string]error{}
	load := func(name pairName, pair keypair.Pair) (*ca.Authority, *v1alpha1.CAStatus) {
		if pair.Empty() {
			return nil, nil
		}
		authority, err := r.loadPair(pair)
		if err != nil {
			o.Secret.Unusable[name] = err
			return nil, nil
		}
		status := factsOf(authority)
		if err := authority.Usable(o.Now); err != nil {
			o.Secret.Unfit[status.Fingerprint] = err
		}
		return authority, status
	}
	o.object, o.ring = object, ring
	tls, status := load(tlsPair, ring.TLS)
	o.Secret.TLS = status
	o.signing, o.Secret.Signing = load(signingPair, ring.Signing)
	o.candidate, o.Secret.Candidate = load(candidatePair, ring.Candidate)
	o.retiring, o.Secret.Retiring = load(retiringPair, ring.Retiring)
	o.Secret.Renews = obj.Status.Phase == v1alpha1.Completed && renews(tls, o.signing)
	o.NotRenewable = errors.New("the key of the signing CA is missing from the Secret")
	if asked := o.Operation == v1alpha1.OperationRenewCertificate || obj.Status.Intent == string(MakeRenewed); asked && o.signing != nil {
		o.renewed, o.NotRenewable = o.signing.Renew(lifetimeOf(obj), o.Now)
	}
	if proven := ring.Permit.KeyID; proven == "" || o.signing != nil && o.signing.KeyID() == proven {
		o.Secret.PermittedSigners = ring.Permit.Signers
	}
	permit := editSecret(o, Permit, keypair.Pair{}, r.permit(obj, Permit)).Permit
	o.Permitted = ring.Signing.Empty() || ring.Permit.Equal(permit)
	return nil
}

// renews reports whether authority is old with a certificate that ends later. A verifier with one of the two accepts what was
// signed with the other one (crypto/x509 ignores the subject key identifier, and OpenSSL does not).
func renews(authority, old *ca.Authority) bool {
	if authority == nil || old == nil {
		return false
	}
	cert, before := authority.Certificate(), old.Certificate()
	return trust.SameCA(cert, before) && bytes.Equal(cert.SubjectKeyId, before.SubjectKeyId) && cert.NotAfter.After(before.NotAfter)
}

// factsOf returns the fields of authority that follow from its certificate.
func factsOf(authority *ca.Authority) *v1alpha1.CAStatus {
	fingerprint := sha256.Sum256(authority.Certificate().Raw)
	return &v1alpha1.CAStatus{
		KeyID: authority.KeyID(), Fingerprint: hex.EncodeToString(fingerprint[:]),
		Certificate: string(authority.CertificatePEM()), NotAfter: metav1.NewTime(authority.Certificate().NotAfter),
	}
}

func secretName(obj *v1alpha1.SigningAuthority) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Spec.Secret.Namespace, Name: obj.Spec.Secret.Name}
}

// readOthers reads the CAs of the other authorities. It returns an error if one of them claims what obj uses.
func (r *Reconciler) readOthers(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	list := &v1alpha1.SigningAuthorityList{}
	if err := call.List(ctx, r.Live, list); err != nil {
		return fmt.Errorf("list SigningAuthorities: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.Name == obj.Name {
			continue
		}
		if err := conflictWith(obj, other, r.owns(other)); err != nil {
			return err
		}
		for _, authority := range other.Status.CAs() {
			o.Others[authority.KeyID] = other.Name
		}
		if last := other.Status.LastRetired; last != nil {
			o.Others[last.KeyID] = other.Name
		}
	}
	return nil
}

// conflictWith returns an error if obj publishes to the signing Secret of other. It also returns one if other is older than obj
// and publishes to what obj publishes to, or has the same Secret. If both are of one served cluster, the same name is enough: trust
// bundles are named after it.
func conflictWith(obj, other *v1alpha1.SigningAuthority, sameCluster bool) error {
	for _, at := range obj.Spec.Trust.Secrets {
		if at.Namespace == other.Spec.Secret.Namespace && at.Name == other.Spec.Secret.Name {
			return fmt.Errorf("spec.trust.secrets: Secret %s has the keys of SigningAuthority %s: name another Secret",
				secretName(other), other.Name)
		}
	}
	older := other.CreationTimestamp.Before(&obj.CreationTimestamp) ||
		other.CreationTimestamp.Equal(&obj.CreationTimestamp) && other.Name < obj.Name
	if !older {
		return nil
	}
	if other.Spec.Secret == obj.Spec.Secret || sameCluster && other.Spec.Secret.Name == obj.Spec.Secret.Name {
		return fmt.Errorf("spec.secret: SigningAuthority %s already uses Secret %s: choose another name",
			other.Name, secretName(other))
	}
	sameManager := other.Spec.Secret.Name == obj.Spec.Secret.Name // the field manager, whose apply removes its other keys of an object
	for _, ours := range publishedTo(obj) {
		if slices.ContainsFunc(publishedTo(other), func(theirs publish.Entry) bool {
			if sameManager {
				theirs.Key = ours.Key
			}
			return theirs == ours
		}) {
			return fmt.Errorf("spec.trust: SigningAuthority %s already publishes to %[2]s %s/%s: name another %[2]s",
				other.Name, ours.Kind, ours.Namespace, ours.Name)
		}
	}
	return nil
}

// publishedTo returns the entries of ConfigMaps and Secrets that obj publishes to.
func publishedTo(obj *v1alpha1.SigningAuthority) (all []publish.Entry) {
	add := func(kind string, entries []v1alpha1.TrustEntry) {
		for _, at := range entries {
			all = append(all, publish.Entry{Kind: kind, Namespace: at.Namespace, Name: at.Name, Key: cmp.Or(at.Key, "ca.crt")})
		}
	}
	add(publish.ConfigMap, obj.Spec.Trust.ConfigMaps)
	add(publish.Secret, obj.Spec.Trust.Secrets)
	return all
}

// bundleOf returns the trust bundle of obj, according to its status, and where to publish it.
func bundleOf(obj *v1alpha1.SigningAuthority, now time.Time) (publish.Wanted, error) {
	var certs []*x509.Certificate
	for _, authority := range publishedCAs(&obj.Status) {
		cert, err := certificateOf(authority)
		if err != nil {
			return publish.Wanted{}, err
		}
		certs = append(certs, cert)
	}
	wanted := publish.Wanted{Bundle: trust.Bundle(now, certs...), Suffix: obj.Spec.Secret.Name, Entries: publishedTo(obj)}
	if len(wanted.Bundle) == 0 {
		// A bundle cannot be empty. So the bundle holds only the expired CAs. That removes any other CA
		// from it, and no verifier accepts an expired one.
		wanted.Bundle = trust.Bundle(time.Time{}, certs...)
	}
	if bundles := obj.Spec.Trust.ClusterTrustBundles; bundles == nil || *bundles {
		wanted.Signers = obj.Spec.Signers
	}
	return wanted, nil
}

// certificateOf returns the certificate of a CA from a status.
func certificateOf(authority *v1alpha1.CAStatus) (*x509.Certificate, error) {
	certs, err := ca.ParseCertificates([]byte(authority.Certificate))
	if err == nil && len(certs) != 1 {
		err = fmt.Errorf("want one certificate, got %d", len(certs))
	}
	if err != nil {
		return nil, fmt.Errorf("the status has no certificate for the CA %s: %w", authority.KeyID, err)
	}
	return certs[0], nil
}

// questionKey identifies a question about one CA.
type questionKey struct {
	want  probe.Trust
	cert  string // of the CA
	every time.Duration
}

// askAPIServers probes every API server for the answers that the phase needs. It drops the answers to all other questions,
// so that an old answer never counts as a new one.
func (r *Reconciler) askAPIServers(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	known, _ := r.trackers.Load(obj.Name)
	before, _ := known.(map[questionKey]*probe.Tracker)
	kept := map[questionKey]*probe.Tracker{}
	defer r.trackers.Store(obj.Name, kept)
	targets := sync.OnceValues(func() ([]probe.Target, error) {
		addresses := obj.Spec.Verification.APIServers
		if len(addresses) == 0 && r.apart {
			return nil, errors.New("list every API server of the served cluster in spec.verification.apiServers, as host:port: " +
				"with a home of its own, the manager does not believe EndpointSlices, which the served cluster's administrators write")
		}
		if len(addresses) == 0 {
			var err error
			if addresses, err = probe.Endpoints(ctx, r.served.Live); err != nil {
				return nil, fmt.Errorf("no API server to probe: %w", err)
			}
		}
		return probe.Direct(r.config, obj.Spec.Verification.ServerName, addresses), nil
	})
	ask := func(want probe.Trust, authority, control *ca.Authority) probe.Proof {
		if authority == nil {
			return probe.Proof{}
		}
		key := questionKey{want, string(authority.Certificate().Raw), r.interval(obj)}
		if kept[key] = before[key]; kept[key] == nil {
			kept[key] = probe.NewTracker(want, key.every)
		}
		all, err := targets()
		if err != nil {
			return probe.Proof{Missing: []string{err.Error()}}
		}
		answers := r.prober.Ask(ctx, authority, control, all)
		kept[key].Add(r.Clock.Now(), answers) // a monotonic clock: the API servers' time may jump between two of them
		return kept[key].Proof(r.settleFor(obj))
	}
	phase, asked := obj.Status.Phase, asksAPIServers(obj.Spec.Signers)
	switch {
	case phase == v1alpha1.Preparing && asked:
		o.Candidate = ask(probe.Recognised, o.candidate, nil)
		o.Signing = ask(probe.Recognised, o.signing, nil) // for a rollback
	case phase == v1alpha1.Prepared && asked:
		o.Signing = ask(probe.Recognised, o.signing, nil)
		o.RetiringTrusted = ask(probe.Recognised, o.retiring, nil)
	case obj.Status.UnpublishedAt != nil && o.signing != nil && askedToRefuse(obj.Spec.Signers, obj.Status.Retiring, o.facts):
		o.RetiringRefused = ask(probe.Refused, o.retiring, o.signing)
	}
	return nil
}

// readClientCAs reads whether extension-apiserver-authentication, which aggregated API servers read, holds the renewed
// certificate, the retiring CA after it has left the trust bundle, and CAs above it. A self-signed CA has no CA above it. With a
// home apart, it reads nothing: administrators of the served cluster write that ConfigMap too. A CA above the retiring one then
// shows in Completing: no API server refuses.
func (r *Reconciler) readClientCAs(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	authority := cmp.Or(obj.Status.Renewed, obj.Status.Retiring) // never both
	o.RenewedSeen = r.apart
	if r.apart || authority == nil || !askedToRefuse(obj.Spec.Signers, authority, o.facts) {
		return nil
	}
	var chain []*x509.Certificate
	cert, err := certificateOf(authority)
	if err == nil && o.retiring != nil {
		chain, err = ca.ParseCertificates(o.retiring.AppendedPEM(o.Now))
	}
	if err != nil || obj.Status.Renewed == nil && obj.Status.UnpublishedAt == nil && len(chain) == 0 {
		return err
	}
	_, trusted, err := r.served.ClientCAs(ctx)
	o.Kept = slices.ContainsFunc(trusted, func(one *x509.Certificate) bool { return trust.SameCA(one, cert) })
	o.RenewedSeen = obj.Status.Renewed != nil && slices.ContainsFunc(trusted, cert.Equal)
	if len(chain) > 0 {
		for _, one := range trust.Above(trusted, chain, o.Now) {
			o.Above = append(o.Above, fmt.Sprintf("%q", one.Subject.String()))
		}
	}
	return err
}

// readOwnCertificate reads whether the retiring CA has issued the client certificate of the manager itself. client-go also reads a
// file again when it changes.
func (r *Reconciler) readOwnCertificate(_ context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	if obj.Status.Retiring == nil {
		return nil
	}
	retiring, err := certificateOf(obj.Status.Retiring)
	own := rest.CopyConfig(r.config)
	if err := errors.Join(err, rest.LoadTLSFiles(own)); err != nil || len(own.CertData) == 0 {
		return err
	}
	chain, err := ca.ParseCertificates(own.CertData)
	o.OwnCertificate = slices.ContainsFunc(chain, func(one *x509.Certificate) bool {
		return retiring.CheckSignature(one.SignatureAlgorithm, one.RawTBSCertificate, one.Signature) == nil
	})
	return err
}
