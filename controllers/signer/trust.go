package signer

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list

const (
	// askKnown is the pause after an answer about a CA. Without an answer, the pause doubles from askUnknownMin to
	// askUnknownMax.
	askKnown, askUnknownMin, askUnknownMax = 10 * time.Minute, time.Second, 30 * time.Second
	// dialTimeout bounds the check whether an API server accepts connections.
	dialTimeout = 3 * time.Second
)

// trustCache holds the API servers' answers about the CA of each KeyPair. The zero value is empty. It is safe for
// concurrent use.
type trustCache struct {
	asked bool // whether API servers are asked; set before the first use

	mu    sync.Mutex
	known map[*keypair.KeyPair]caTrust
}

const notAsked = "they have not been asked yet"

// of returns what API servers do with the certificates of authority. It is Unknown until they are asked.
func (c *trustCache) of(pair *keypair.KeyPair, authority *ca.Authority) caTrust {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, found := c.known[pair]; found && known.authority == authority {
		return known
	}
	unknown := caTrust{Answer: probe.Answer{Evidence: notAsked}, authority: authority}
	if c.asked {
		unknown.front.unread = notAsked
	}
	return unknown
}

// note records the API servers' answer about authority, and whether they accept it for front proxies. frontErr reports
// that the latter could not be read. If anything changed, note wakes the requests that wait for pair.
func (c *trustCache) note(
	pair *keypair.KeyPair, authority *ca.Authority, answer probe.Answer, front frontProxy, frontErr error, now time.Time,
) {
	before := c.of(pair, authority)
	after := before.with(answer, now).withFront(front, frontErr)
	c.mu.Lock()
	if c.known == nil {
		c.known = map[*keypair.KeyPair]caTrust{}
	}
	c.known[pair] = after
	c.mu.Unlock()

	log := pair.Log.WithValues("source", pair.Name(), "issuerKeyID", authority.KeyID())
	if after.Trust != before.Trust {
		log.Info("Asked whether API servers accept client certificates of this CA",
			"answer", answer.Trust, "evidence", answer.Evidence)
		pair.Notify()
	}
	if !after.front.equal(before.front) {
		if after.front.trusted {
			log.Info("API servers accept this CA for front proxies", "commonNames", front.names)
		}
		pair.Notify()
	}
}

// trustAsker asks the API servers, in the background, which CAs they accept for clients. The rules of custom signers
// depend on the answers, and a CA whose client certificates are not accepted causes a warning. It is a Runnable of the
// leader.
type trustAsker struct {
	cache   *trustCache
	pairs   []*keypair.KeyPair
	cluster *rest.Config
	listed  []string // API servers to ask; empty means the endpoints of the Service kubernetes
	live    client.Reader
	prober  *probe.Prober
	clock   clock.Clock
}

var _ manager.Runnable = &trustAsker{}

// askTrust adds a trustAsker to mgr for the pairs whose trust matters. A dry run issues nothing, not even a probe.
func (r *Reconciler) askTrust(mgr manager.Manager, pairs []*keypair.KeyPair) error {
	asked := slices.DeleteFunc(slices.Clone(pairs), func(pair *keypair.KeyPair) bool {
		return !servesCustom(pair) && len(pair.ClientSigners()) == 0
	})
	if r.DryRun || len(asked) == 0 {
		return nil
	}
	scheme := runtime.NewScheme() // a caller may have set a manager scheme without these types
	if err := errors.Join(discoveryv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("ask about trust: %w", err)
	}
	live, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return fmt.Errorf("ask about trust: %w", err)
	}
	r.trust.asked = true
	// API servers verify certificates by real time, whatever clock the controllers use.
	wall := clock.RealClock{}
	return mgr.Add(&trustAsker{
		cache: &r.trust, pairs: asked, cluster: mgr.GetConfig(), listed: r.APIServers, live: live,
		prober: &probe.Prober{Audit: r.Audit, Clock: wall}, clock: wall,
	})
}

// servesCustom reports whether pair signs for a custom signer.
func servesCustom(pair *keypair.KeyPair) bool {
	return slices.ContainsFunc(pair.Signers(), func(name string) bool {
		_, builtin := csr.BuiltinSigner(name)
		return !builtin
	})
}

// Start asks about each CA, in parallel, until ctx ends.
func (a *trustAsker) Start(ctx context.Context) error {
	var group sync.WaitGroup
	for _, pair := range a.pairs {
		group.Go(func() { a.follow(ctx, pair) })
	}
	group.Wait()
	return nil
}

// follow asks about a new CA of pair at once, and about the current CA from time to time.
func (a *trustAsker) follow(ctx context.Context, pair *keypair.KeyPair) {
	changed := pair.Subscribe()
	var last *ca.Authority
	var due time.Time
	var warned string
	pause := askUnknownMin
	for ctx.Err() == nil {
		authority, _ := pair.Authority(pair.Clock.Now())
		if authority != last {
			last, due, pause = authority, time.Time{}, askUnknownMin
		}
		next := askUnknownMax // a CA may become valid or expire meanwhile
		if authority != nil {
			if !a.clock.Now().Before(due) {
				known := a.ask(ctx, pair, authority, &warned)
				due = a.clock.Now().Add(pause)
				pause = min(2*pause, askUnknownMax)
				if known {
					due, pause = a.clock.Now().Add(askKnown), askUnknownMin
				}
			}
			next = due.Sub(a.clock.Now())
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-a.clock.After(next):
		}
	}
}

// ask asks about authority, records the answer and warns. It reports whether every question was answered.
func (a *trustAsker) ask(ctx context.Context, pair *keypair.KeyPair, authority *ca.Authority, warned *string) bool {
	targets, missing := a.targets(ctx)
	known := true
	if servesCustom(pair) {
		// A certificate's holder can append CA certificates that the configured chain omits.
		answer := together(a.prober.Recognise(ctx, authority.WithAllGiven(), targets), missing)
		front, err := readFrontProxy(ctx, a.live, authority, a.clock.Now())
		if ctx.Err() == nil {
			a.cache.note(pair, authority, answer, front, err, a.clock.Now())
		}
		known = answer.Trust != probe.Unknown && err == nil
	}
	if names := pair.ClientSigners(); len(names) > 0 {
		round := a.prober.Recognise(ctx, authority, targets)
		if ctx.Err() == nil {
			warnOfDistrust(pair, authority, names, round, warned)
		}
		known = known && together(round, missing).Trust != probe.Unknown
	}
	return known
}

// targets returns the API servers to ask: the manager's own, and all endpoints of the Service kubernetes. Each has its
// own trust. An error reports that some are missing.
func (a *trustAsker) targets(ctx context.Context) ([]probe.Target, error) {
	targets := []probe.Target{{Name: a.cluster.Host, Cluster: a.cluster}}
	if len(a.listed) > 0 {
		addresses, err := probe.Listed(a.listed)
		return append(targets, probe.Direct(a.cluster, "", addresses)...), err
	}
	addresses, err := probe.Endpoints(ctx, a.live)
	if errors.Is(err, probe.ErrNoEndpoints) { // there is no other API server
		return targets, nil
	}
	// API servers of envtest publish addresses without a listener. If all addresses refuse connections, they are omitted.
	// If only some do, those API servers are restarting. They are asked too, so there is no verdict without their answer.
	if !slices.ContainsFunc(addresses, func(address string) bool { return !refusesConnections(ctx, address) }) {
		addresses = nil
	}
	return append(targets, probe.Direct(a.cluster, "", addresses)...), err
}

// refusesConnections reports whether address refuses connections. An address that does not answer at all may still be
// an API server.
func refusesConnections(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = connection.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// together combines the answers of all API servers. A CA is trusted if any of them trusts it, and not trusted if all
// of them say so.
func together(round probe.Round, missing error) probe.Answer {
	var refused, unknown []string
	for _, name := range slices.Sorted(maps.Keys(round.Answers)) {
		switch answer := round.Answers[name]; answer.Trust {
		case probe.Recognised:
			return answer
		case probe.Refused:
			refused = append(refused, answer.Evidence)
		case probe.Unknown:
			unknown = append(unknown, answer.Evidence)
		}
	}
	if missing != nil {
		unknown = append(unknown, missing.Error())
	}
	if len(unknown) > 0 || len(refused) == 0 {
		return probe.Answer{Evidence: strings.Join(unknown, "; ")}
	}
	return probe.Answer{Trust: probe.Refused, Evidence: strings.Join(refused, "; ")}
}

// warnOfDistrust warns, once, that API servers do not accept certificates that authority issues for names.
func warnOfDistrust(pair *keypair.KeyPair, authority *ca.Authority, names []string, round probe.Round, warned *string) {
	var refusing, silent []string
	for _, name := range slices.Sorted(maps.Keys(round.Answers)) {
		switch round.Answers[name].Trust {
		case probe.Refused:
			refusing = append(refusing, name)
		case probe.Unknown:
			silent = append(silent, name)
		case probe.Recognised:
		}
	}
	message := ""
	if len(refusing) > 0 {
		message = fmt.Sprintf("API servers %s answer 401 to certificates of key %s for %s: "+
			"append this CA to the --client-ca-file of every API server, or sign with a CA that is in it",
			strings.Join(refusing, ", "), authority.KeyID(), strings.Join(names, " and "))
	}
	if message == *warned || message == "" && len(silent) > 0 { // without an answer an earlier warning stands
		return
	}
	*warned = message
	log := pair.Log.WithValues("source", pair.Name(), "issuerKeyID", authority.KeyID())
	if message == "" {
		log.Info("API servers accept client certificates of this CA now")
		return
	}
	log.Error(nil, "API servers do not accept client certificates of this CA", "message", message)
	pair.Warn("CANotTrusted", message)
}

// These are keys of the ConfigMap extension-apiserver-authentication. API servers fill them from
// --requestheader-client-ca-file and --requestheader-allowed-names
// (k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust).
const (
	frontProxyCAs   = "requestheader-client-ca-file"
	frontProxyNames = "requestheader-allowed-names"
)

// readFrontProxy reads whether API servers accept authority for front proxies. They do if it has the key of one of
// their front-proxy CAs, or chains to one of them.
func readFrontProxy(
	ctx context.Context, reader client.Reader, authority *ca.Authority, now time.Time,
) (frontProxy, error) {
	published := &corev1.ConfigMap{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}, published)
	if apierrors.IsNotFound(err) || err == nil && published.Data[frontProxyCAs] == "" {
		return frontProxy{}, nil
	}
	where := fmt.Sprintf("ConfigMap %s/%s", trust.ExtensionNamespace, trust.ExtensionName)
	if err != nil {
		return frontProxy{}, fmt.Errorf("read %s: %w", where, err)
	}
	accepted, err := ca.ParseCertificates([]byte(published.Data[frontProxyCAs]))
	if err == nil && len(accepted) == 0 {
		err = errors.New("it holds no certificate")
	}
	if err != nil {
		return frontProxy{}, fmt.Errorf("read %s of %s: %w", frontProxyCAs, where, err)
	}
	var names []string
	if text := published.Data[frontProxyNames]; text != "" {
		if err := json.Unmarshal([]byte(text), &names); err != nil {
			return frontProxy{}, fmt.Errorf("read %s of %s: %w", frontProxyNames, where, err)
		}
	}
	return frontProxy{trusted: leadsTo(authority, accepted, now), names: names}, nil
}

// leadsTo reports whether a leaf of authority chains to one of roots, with any certificates that the leaf's holder may
// append.
func leadsTo(authority *ca.Authority, roots []*x509.Certificate, now time.Time) bool {
	cert := authority.Certificate()
	if slices.ContainsFunc(roots, func(root *x509.Certificate) bool {
		return bytes.Equal(root.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
	}) {
		return true
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, root := range roots {
		options.Roots.AddCert(root)
	}
	options.Intermediates.AppendCertsFromPEM(authority.WithAllGiven().AppendedPEM())
	if _, err := cert.Verify(options); err == nil {
		return true
	}
	// A cross-certificate is another certificate for the same key.
	given, _ := ca.ParseCertificates(authority.WithAllGiven().AppendedPEM()) // Load has parsed them before
	return slices.ContainsFunc(given, func(other *x509.Certificate) bool {
		if !bytes.Equal(other.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) {
			return false
		}
		_, err := other.Verify(options)
		return err == nil
	})
}
