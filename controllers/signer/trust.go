package signer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

const (
	// trustEvery is the pause between two reads of the trust in a CA, trustRetry the pause after a failed read, and
	// rootsRetry the pause while nothing publishes kube-root-ca.crt.
	trustEvery, trustRetry, rootsRetry = 10 * time.Minute, 5 * time.Second, 30 * time.Second

	// API servers publish the CAs that they trust in a ConfigMap: trust.ExtensionKey has those for clients, and these keys
	// are about front proxies (k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust).
	frontProxyCAs   = "requestheader-client-ca-file"
	frontProxyNames = "requestheader-allowed-names"
	// Each namespace has this ConfigMap, with the CAs that clients in the cluster trust for API servers.
	rootsName = "kube-root-ca.crt"
	rootsKey  = "ca.crt"
	// Pods that mount the ClusterTrustBundles of this signer trust the CAs in all of them for API servers
	// (k8s.io/kubernetes/pkg/controller/certificates/clustertrustbundlepublisher).
	rootsSigner = "kubernetes.io/kube-apiserver-serving"
)

// cause is why strict rules apply to a custom signer.
type cause int

const (
	noCause cause = iota
	trustedForClients
	trustedForProxies
	trustedForServers
	mayBeTrusted // its chain is incomplete
	mayBeUnread  // a certificate that was given with it cannot be read
)

// of returns c as a clause about the signer of that name.
func (c cause) of(signerName string) string {
	switch c {
	case trustedForClients:
		return fmt.Sprintf("API servers trust the CA of signer %s for clients", signerName)
	case trustedForProxies:
		return fmt.Sprintf("API servers trust the CA of signer %s for front proxies", signerName)
	case trustedForServers:
		return fmt.Sprintf("clients trust the CA of signer %s for API servers", signerName)
	case mayBeTrusted:
		return fmt.Sprintf("API servers may trust the CA of signer %s, because its chain is incomplete "+
			"(append the certificates of its issuers, up to the root, to its ca.crt)", signerName)
	case mayBeUnread:
		return fmt.Sprintf("API servers may trust the CA of signer %s, because a certificate in its file or Secret cannot be read "+
			"(remove or reissue it; openssl x509 -text shows it)", signerName)
	}
	return ""
}

// unread is why the trust in a CA is not known, as a clause.
type unread string

const (
	isRead  unread = ""
	notRead unread = "that has not been read yet"
)

// mistrust says that API servers refuse the client certificates of a built-in signer.
type mistrust string

const noMistrust mistrust = ""

// caTrust says what a cluster does with the certificates of a CA. If the cluster trusts the CA, a custom signer has
// strict rules. Otherwise its holder could make users or servers of the cluster.
type caTrust struct {
	authority *ca.Authority // the CA
	// unread is isRead if the trust is known. Otherwise the strict rules apply, but what they refuse waits.
	unread unread
	// strict is why the strict rules apply; noCause if they do not.
	strict cause
	// proxies is why a client may be a front proxy; noCause if it can't. A front proxy names any user in a header, and the
	// API server believes it. proxyNames are the permitted common names; empty means any.
	proxies    cause
	proxyNames []string
	// warning is noMistrust if API servers accept the CA. warned is when it was last reported.
	warning mistrust
	warned  time.Time
}

// differs reports whether the rules or the warning of other are different. Why the trust is unread does not count: the
// text of an error may differ each time.
func (c caTrust) differs(other caTrust) bool {
	return c.authority != other.authority || (c.unread == isRead) != (other.unread == isRead) || c.strict != other.strict ||
		c.proxies != other.proxies || !slices.Equal(c.proxyNames, other.proxyNames) || c.warning != other.warning
}

// unknownTrust returns the trust in authority while it is not known, because of why.
func unknownTrust(authority *ca.Authority, why unread) caTrust {
	return caTrust{authority: authority, unread: why, strict: trustedForClients, proxies: trustedForProxies}
}

// trustOf returns the trust in authority, the CA of pair. Until it is read, it is unknown.
func (r *Reconciler) trustOf(pair *keypair.KeyPair, authority *ca.Authority) caTrust {
	if known, found := r.trusts.Load(pair); found && known.(caTrust).authority == authority {
		return known.(caTrust)
	}
	return unknownTrust(authority, notRead)
}

// Trusted returns whether API servers may accept certificates of signerName, one of Signers. reading means that this is about to
// be read.
func (r *Reconciler) Trusted(signerName string, now time.Time) (_ rules.Trust, reading bool) {
	pair := r.Signers[signerName].KeyPair
	authority, err := pair.Authority(now)
	if err != nil {
		return rules.Trust{Why: fmt.Sprintf("it is unknown whether API servers trust the CA of signer %s: %v", signerName, err)}, false
	}
	trust := r.trustOf(pair, authority)
	switch {
	case trust.unread != isRead:
		return rules.Trust{Why: fmt.Sprintf("it is unknown whether API servers trust the CA of signer %s: %s", signerName, trust.unread)},
			trust.unread == notRead
	case trust.strict != noCause:
		return rules.Trust{Why: trust.strict.of(signerName)}, false
	}
	return rules.Trust{Untrusted: true}, false
}

// published holds the CAs that a cluster has published as trusted.
type published struct {
	clients, proxies, servers []*x509.Certificate
	proxyNames                []string
	noRoots                   bool // nothing publishes kube-root-ca.crt
}

// readPublished reads the ConfigMaps and ClusterTrustBundles with the CAs that a cluster trusts. If nothing publishes
// kube-root-ca.crt, as in envtest, no client uses it.
func readPublished(ctx context.Context, reader client.Reader) (published, error) {
	authentication, err := readConfigMap(ctx, reader, trust.ExtensionName)
	if err != nil {
		return published{}, err
	}
	roots, err := readConfigMap(ctx, reader, rootsName)
	if client.IgnoreNotFound(err) != nil {
		return published{}, err
	}
	p := published{noRoots: err != nil}
	var errs [4]error
	p.clients, errs[0] = trust.Certificates(authentication, trust.ExtensionKey)
	p.proxies, errs[1] = trust.Certificates(authentication, frontProxyCAs)
	p.servers, errs[2] = trust.Certificates(roots, rootsKey)
	errs[3] = p.addBundles(ctx, reader)
	if err := errors.Join(errs[:]...); err != nil {
		return published{}, err
	}
	if text := authentication.Data[frontProxyNames]; text != "" {
		if err := json.Unmarshal([]byte(text), &p.proxyNames); err != nil {
			return published{}, fmt.Errorf("%s of ConfigMap %s/%s: %w", frontProxyNames, trust.ExtensionNamespace, trust.ExtensionName, err)
		}
	}
	return p, nil
}

// addBundles adds the CAs in the ClusterTrustBundles of rootsSigner to p.servers. An API server that does not serve
// certificates.k8s.io/v1 of them (older than Kubernetes 1.37) has none.
func (p *published) addBundles(ctx context.Context, reader client.Reader) error {
	bundles := &certificatesv1.ClusterTrustBundleList{}
	err := call.List(ctx, reader, bundles, client.MatchingFields{"spec.signerName": rootsSigner})
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("list ClusterTrustBundles of %s: %w", rootsSigner, err)
	}
	for _, bundle := range bundles.Items {
		certs, err := ca.ParseCertificates([]byte(bundle.Spec.TrustBundle))
		if err != nil {
			return fmt.Errorf("ClusterTrustBundle %s: %w", bundle.Name, err)
		}
		p.servers = append(p.servers, certs...)
	}
	return nil
}

// readConfigMap reads a ConfigMap in kube-system. It is empty if the error says that there is none.
func readConfigMap(ctx context.Context, reader client.Reader, name string) (*corev1.ConfigMap, error) {
	obj := &corev1.ConfigMap{}
	if err := call.Get(ctx, reader, client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: name}, obj); err != nil {
		return obj, fmt.Errorf("read ConfigMap %s/%s: %w", trust.ExtensionNamespace, name, err)
	}
	return obj, nil
}

// trustIn returns the trust of the cluster in authority. If the certificate of an issuer is missing, the cluster may trust
// that issuer, so the strict rules apply.
func (p published) trustIn(authority *ca.Authority) caTrust {
	given, doubt := givenWith(authority), noCause
	switch {
	case authority.Unread():
		doubt = mayBeUnread
	case !complete(given):
		doubt = mayBeTrusted
	}
	causeIn := func(roots []*x509.Certificate, trusted cause) cause {
		if leadsTo(authority, given, roots) {
			return trusted
		}
		return noCause
	}
	proxies := causeIn(p.proxies, trustedForProxies)
	if len(p.proxies) > 0 {
		proxies = cmp.Or(proxies, doubt)
	}
	strict := cmp.Or(causeIn(p.clients, trustedForClients), causeIn(p.servers, trustedForServers), proxies, doubt)
	return caTrust{authority: authority, strict: strict, proxies: proxies, proxyNames: p.proxyNames}
}

// refuses returns whether API servers refuse the client certificates that authority signs for clients.
func (p published) refuses(authority *ca.Authority, clients []string) mistrust {
	if len(clients) == 0 || leadsTo(authority, givenWith(authority), p.clients) {
		return noMistrust
	}
	return mistrust(fmt.Sprintf("%s of ConfigMap %s/%s does not hold the CA with key %s, so API servers answer 401 to its "+
		"certificates for %s: append this CA to the --client-ca-file of every API server, or sign with a CA that is in it",
		trust.ExtensionKey, trust.ExtensionNamespace, trust.ExtensionName, authority.KeyID(), strings.Join(clients, " and ")))
}

// givenWith returns the certificates that were given with the CA, and its own. The holder of a leaf can append any of
// them.
func givenWith(authority *ca.Authority) []*x509.Certificate {
	return append(authority.Given(), authority.Certificate())
}

// complete reports whether certs holds the issuer of each of certs.
func complete(certs []*x509.Certificate) bool {
	return !slices.ContainsFunc(certs, func(cert *x509.Certificate) bool {
		return !slices.ContainsFunc(certs, func(issuer *x509.Certificate) bool {
			return bytes.Equal(issuer.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(issuer) == nil
		})
	})
}

// leadsTo reports whether a chain of given certificates leads from the key of authority to the key of one of roots. A
// cross-certificate is another certificate for the same key. Names and validity do not count: a leaf outlives the day on
// which it was issued, and a certificate that is not valid yet becomes valid.
func leadsTo(authority *ca.Authority, given, roots []*x509.Certificate) bool {
	sameKey := func(a, b *x509.Certificate) bool {
		return bytes.Equal(a.RawSubjectPublicKeyInfo, b.RawSubjectPublicKeyInfo)
	}
	signed := func(cert, by *x509.Certificate) bool {
		return by.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
	}
	reached := []*x509.Certificate{authority.Certificate()}
	for i := 0; i < len(reached); i++ { // reached grows
		last := reached[i]
		if slices.ContainsFunc(roots, func(root *x509.Certificate) bool { return sameKey(root, last) || signed(last, root) }) {
			return true
		}
		for _, next := range given {
			if !slices.Contains(reached, next) && (sameKey(next, last) || signed(last, next)) {
				reached = append(reached, next)
			}
		}
	}
	return false
}

// followTrust returns a source that reads the trust in the CA of pair at each change of the CA, and from time to time. If
// the trust has changed, it queues the requests that wait for pair.
func (r *Reconciler) followTrust(reader client.Reader, pair *keypair.KeyPair) requestSource {
	changed := pair.Subscribe()
	return source.TypedFunc[fairqueue.Key](func(ctx context.Context, queue requestQueue) error {
		go func() {
			for ctx.Err() == nil {
				pause := r.readTrust(ctx, reader, pair, queue)
				select {
				case <-ctx.Done():
				case <-changed:
				case <-time.After(pause):
				}
			}
		}()
		return nil
	})
}

// readTrust reads the trust in the CA of pair once, reports it if it is new, and queues the requests that wait for pair
// if it has changed. It returns when to read the trust again.
func (r *Reconciler) readTrust(
	ctx context.Context, reader client.Reader, pair *keypair.KeyPair, queue requestQueue,
) (pause time.Duration) {
	authority, err := pair.Authority(pair.Clock.Now())
	if err != nil {
		return trustRetry
	}
	published, err := readPublished(ctx, reader)
	if ctx.Err() != nil {
		return 0
	}
	last, _ := r.trusts.Load(pair)
	before, _ := last.(caTrust) // zero before the first read
	var found caTrust
	if err == nil {
		found, pause = published.trustIn(authority), trustEvery
		found.warning = published.refuses(authority, pair.ClientSigners())
		found.warned = warnOfTrust(pair, before, found.warning)
	} else {
		found, pause = unknownTrust(authority, unread(err.Error())), trustRetry
		found.warning, found.warned = before.warning, before.warned
	}
	if published.noRoots { // they may be published soon
		pause = rootsRetry
	}
	r.trusts.Store(pair, found)
	if found.differs(before) {
		pair.Log.Info("Read whether the cluster trusts this CA", "source", pair.Name(), "issuerKeyID", authority.KeyID(),
			"strictRules", found.strict != noCause, "frontProxies", found.proxies != noCause, "problem", found.unread, "warning", found.warning)
		for _, key := range r.waitingFor(pair) {
			queue.Add(key)
		}
	}
	return pause
}

// warnOfTrust reports warning as metric and Event, the Event again while it holds. It returns when it wrote the last Event.
func warnOfTrust(pair *keypair.KeyPair, before caTrust, warning mistrust) time.Time {
	refused, now := 0.0, pair.Clock.Now()
	if warning != noMistrust {
		refused = 1
	}
	for _, name := range pair.ClientSigners() {
		caNotTrusted.WithLabelValues(name).Set(refused)
	}
	if warning == noMistrust || warning == before.warning && now.Sub(before.warned) < report.Again {
		return before.warned
	}
	pair.Warn("CANotTrusted", string(warning))
	return now
}
