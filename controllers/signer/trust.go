package signer

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

const (
	// trustEvery is the pause between two reads of the trust in a CA. After a failed read, the pause doubles from
	// trustRetry to trustRetryMax.
	trustEvery, trustRetry, trustRetryMax = 10 * time.Minute, time.Second, 30 * time.Second

	// API servers publish the CAs that they trust in a ConfigMap: trust.ExtensionKey has those for clients, and these keys
	// are about front proxies (k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust).
	frontProxyCAs   = "requestheader-client-ca-file"
	frontProxyNames = "requestheader-allowed-names"
	// Each namespace has this ConfigMap, with the CAs that clients in the cluster trust for API servers.
	rootsName = "kube-root-ca.crt"
	rootsKey  = "ca.crt"
)

// The clauses that say why strict rules apply to a custom signer. Its name completes them.
const (
	trustedForClients = "API servers trust the CA of signer %s for clients"
	trustedForProxies = "API servers trust the CA of signer %s for front proxies"
	trustedForServers = "clients trust the CA of signer %s for API servers"
	mayBeTrusted      = "API servers may trust the CA of signer %s, because its chain is incomplete " +
		"(append the certificates of its issuers, up to the root, to its ca.crt)"
)

// caTrust says what a cluster does with the certificates of a CA. If the cluster trusts the CA, a custom signer has
// strict rules. Otherwise its holder could make users or servers of the cluster.
type caTrust struct {
	authority *ca.Authority // the CA
	// unread says why the trust is not known. The strict rules apply, but what they refuse waits.
	unread string
	// strict is a clause that says why the strict rules apply; empty if they do not.
	strict string
	// proxies is a clause that says why a client may be a front proxy; empty if it can't. A front proxy names any user in a
	// header, and the API server believes it. proxyNames are the permitted common names; empty means any.
	proxies    string
	proxyNames []string
}

// notRead is why the trust in a CA is unknown before the first read.
const notRead = "that has not been read yet"

// unknownTrust returns the trust in authority while it is not known, because of why.
func unknownTrust(authority *ca.Authority, why string) caTrust {
	return caTrust{authority: authority, unread: why, strict: trustedForClients, proxies: trustedForProxies}
}

// sameRules reports whether t and other permit the same certificates.
func (t caTrust) sameRules(other caTrust) bool {
	return t.authority == other.authority && (t.unread == "") == (other.unread == "") && t.strict == other.strict &&
		t.proxies == other.proxies && slices.Equal(t.proxyNames, other.proxyNames)
}

// trusts holds the trust in the CA of each KeyPair. The zero value holds none. It is safe for concurrent use.
type trusts struct {
	mu    sync.Mutex
	known map[*keypair.KeyPair]caTrust
}

// of returns the trust in authority. Until it is read, it is unknown.
func (t *trusts) of(pair *keypair.KeyPair, authority *ca.Authority) caTrust {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, found := t.known[pair]; found && known.authority == authority {
		return known
	}
	return unknownTrust(authority, notRead)
}

// set replaces what is known of the CA of pair, and reports whether its rules changed.
func (t *trusts) set(pair *keypair.KeyPair, found caTrust) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = map[*keypair.KeyPair]caTrust{}
	}
	before := t.known[pair]
	t.known[pair] = found
	return !found.sameRules(before)
}

// published holds the CAs that a cluster has published as trusted.
type published struct {
	clients, proxies, servers []*x509.Certificate
	proxyNames                []string
	noRoots                   bool // nothing publishes kube-root-ca.crt
}

// readPublished reads the ConfigMaps with the CAs that a cluster trusts. If nothing publishes kube-root-ca.crt, as in
// envtest, no client uses it.
func readPublished(ctx context.Context, reader client.Reader) (p published, err error) {
	authentication, err := readConfigMap(ctx, reader, trust.ExtensionName)
	if err != nil {
		return published{}, err
	}
	roots, err := readConfigMap(ctx, reader, rootsName)
	if client.IgnoreNotFound(err) != nil {
		return published{}, err
	}
	p.noRoots = err != nil
	var errs [3]error
	p.clients, errs[0] = certificatesIn(authentication, trust.ExtensionKey)
	p.proxies, errs[1] = certificatesIn(authentication, frontProxyCAs)
	p.servers, errs[2] = certificatesIn(roots, rootsKey)
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

func readConfigMap(ctx context.Context, reader client.Reader, name string) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	obj := &corev1.ConfigMap{}
	obj.Namespace, obj.Name = trust.ExtensionNamespace, name
	if err := reader.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
		return obj, fmt.Errorf("read ConfigMap %s/%s: %w", obj.Namespace, name, err)
	}
	return obj, nil
}

// certificatesIn returns the certificates in a key of obj, or none if obj has no such key.
func certificatesIn(obj *corev1.ConfigMap, key string) ([]*x509.Certificate, error) {
	text := obj.Data[key]
	if text == "" {
		return nil, nil
	}
	certs, err := ca.ParseCertificates([]byte(text))
	if err == nil && len(certs) == 0 {
		err = errors.New("it holds no certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("%s of ConfigMap %s/%s: %w", key, obj.Namespace, obj.Name, err)
	}
	return certs, nil
}

// trustIn returns the trust of the cluster in authority. If the certificate of an issuer is missing, the cluster may trust
// that issuer, so the strict rules apply.
func (p published) trustIn(authority *ca.Authority) caTrust {
	found := caTrust{authority: authority, proxyNames: p.proxyNames}
	given := givenWith(authority)
	switch {
	case leadsTo(authority, given, p.proxies):
		found.proxies = trustedForProxies
	case len(p.proxies) > 0 && !complete(given):
		found.proxies = mayBeTrusted
	}
	switch {
	case leadsTo(authority, given, p.clients):
		found.strict = trustedForClients
	case leadsTo(authority, given, p.servers):
		found.strict = trustedForServers
	case found.proxies != "":
		found.strict = found.proxies
	case !complete(given):
		found.strict = mayBeTrusted
	}
	return found
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

// servesCustom reports whether pair signs for a custom signer.
func servesCustom(pair *keypair.KeyPair) bool {
	return slices.ContainsFunc(pair.Signers(), func(name string) bool {
		_, builtin := csr.BuiltinSigner(name)
		return !builtin
	})
}

// trustReader keeps the trust in the CA of one KeyPair up to date.
type trustReader struct {
	pair   *keypair.KeyPair
	trusts *trusts
	reader client.Reader
	clock  clock.Clock // API servers verify certificates by real time, whatever clock the controllers use
	wake   func()      // called when the trust has changed
	warned string      // the last warning
}

// run reads the trust at each change of the CA, and from time to time, until ctx ends.
func (t *trustReader) run(ctx context.Context, changed <-chan struct{}) {
	retry := trustRetry
	for ctx.Err() == nil {
		next := trustEvery
		if t.read(ctx) {
			retry = trustRetry
		} else {
			next, retry = retry, min(2*retry, trustRetryMax)
		}
		select {
		case <-ctx.Done():
		case <-changed:
			retry = trustRetry
		case <-t.clock.After(next):
		}
	}
}

// read reads the trust once, and wakes the requests that wait for it if it changed. It reports whether the trust is
// known.
func (t *trustReader) read(ctx context.Context) (known bool) {
	authority, err := t.pair.Authority(t.pair.Clock.Now())
	if err != nil {
		return false
	}
	published, err := readPublished(ctx, t.reader)
	if ctx.Err() != nil {
		return false
	}
	found := published.trustIn(authority)
	if err != nil {
		found = unknownTrust(authority, err.Error())
	} else {
		t.warn(authority, published)
	}
	if t.trusts.set(t.pair, found) {
		t.pair.Log.Info("Read whether the cluster trusts this CA", "source", t.pair.Name(), "issuerKeyID", authority.KeyID(),
			"strictRules", found.strict != "", "frontProxies", found.proxies != "", "problem", found.unread)
		t.wake()
	}
	return err == nil && !published.noRoots // they may be published soon
}

// warn warns, once, if API servers do not accept the client certificates that authority issues for built-in signers.
func (t *trustReader) warn(authority *ca.Authority, p published) {
	names, message := t.pair.ClientSigners(), ""
	if len(names) > 0 && !leadsTo(authority, givenWith(authority), p.clients) {
		message = fmt.Sprintf("%s of ConfigMap %s/%s does not hold the CA with key %s, so API servers answer 401 to its "+
			"certificates for %s: append this CA to the --client-ca-file of every API server, or sign with a CA that is in it",
			trust.ExtensionKey, trust.ExtensionNamespace, trust.ExtensionName, authority.KeyID(), strings.Join(names, " and "))
	}
	if message == t.warned {
		return
	}
	t.warned = message
	if message == "" {
		t.pair.Log.Info("API servers accept client certificates of this CA now", "source", t.pair.Name())
		return
	}
	t.pair.Log.Error(nil, "API servers do not accept client certificates of this CA", "source", t.pair.Name(), "message", message)
	t.pair.Warn("CANotTrusted", message)
}
