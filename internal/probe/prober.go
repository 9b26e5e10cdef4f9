// Package probe finds out whether an API server accepts the client certificates of a CA, by presenting one. It
// decides nothing from errors: if a server could not be asked, the answer is Unknown.
package probe

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// atOnce bounds how many servers are asked at the same time.
	atOnce = 16
	// margin is the time before its expiry, by Prober.Now, at which a certificate is no longer used. If clocks differ by
	// more, the certificate of the control in Ask shows that.
	margin = time.Minute
	// renewBefore is the time before its expiry at which a certificate is replaced: time for two calls, and the
	// margin.
	renewBefore = margin + 2*timeout
)

// Prober asks servers whether they accept client certificates of a CA. It reuses its certificates for as long as they
// are certainly valid, so that a few minutes of calls need one issuance. It is safe for concurrent use.
type Prober struct {
	Audit *audit.Log       // gets a record of each certificate
	Now   func() time.Time // the time of the servers

	mu     sync.Mutex
	minted map[string][]*Certificate // by the certificates of their CAs
}

// Ask asks all targets concurrently whether they accept certificates that authority issues. With a control, an answer
// counts as Refused only if the same server then recognises a certificate of control that expires no later. That proves
// that the server refused neither the validity nor every certificate.
// The answers are by Target.Name.
func (p *Prober) Ask(ctx context.Context, authority, control *ca.Authority, targets []Target) map[string]Answer {
	shown, err := p.certificates(ctx, authority, control)
	return askAll(targets, func(target Target) Answer {
		if err != nil {
			return Answer{Evidence: fmt.Sprintf("no certificate to present: %v", err)}
		}
		answer := p.ask(ctx, shown[0], target)
		if control == nil || answer.Trust != Refused {
			return answer
		}
		if accepts := p.ask(ctx, shown[1], target); accepts.Trust != Recognised {
			return Answer{Evidence: fmt.Sprintf(
				"%s; but that proves nothing, because it is unknown whether the server accepts the CA that signs now: %s",
				answer.Evidence, accepts.Evidence)}
		}
		return answer
	})
}

// ask presents one to target. Only an answer that arrived while one was certainly valid counts.
func (p *Prober) ask(ctx context.Context, one *Certificate, target Target) Answer {
	answer := one.Ask(ctx, target.Cluster)
	if now := p.Now(); answer.Trust != Unknown && !one.validAt(now.Add(margin)) {
		return Answer{Evidence: fmt.Sprintf("%s; but the answer came at %s, when the certificate may have expired",
			answer.Evidence, now.UTC().Format(time.RFC3339))}
	}
	return answer
}

// certificates returns one certificate of each of authorities that is not nil, all of the same age. None is valid for
// longer than the first.
func (p *Prober) certificates(ctx context.Context, authorities ...*ca.Authority) ([]*Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, key := p.Now(), ""
	authorities = slices.DeleteFunc(authorities, func(authority *ca.Authority) bool { return authority == nil })
	for _, authority := range authorities { // with the chain that a leaf comes with
		key += string(authority.CertificatePEM()) + string(authority.AppendedPEM(now)) + "\n"
	}
	maps.DeleteFunc(p.minted, func(_ string, all []*Certificate) bool {
		return slices.ContainsFunc(all, func(one *Certificate) bool { return !one.validAt(now.Add(renewBefore)) })
	})
	if kept := p.minted[key]; kept != nil {
		return kept, nil
	}
	if end := authorities[0].NotAfter(now); end.Before(now.Add(lifetime)) {
		return nil, fmt.Errorf("the CA itself expires at %s, and could be refused for that reason",
			end.UTC().Format(time.RFC3339))
	}
	var made []*Certificate
	for _, authority := range authorities {
		one, err := mintCertificate(ctx, authority, p.Audit, now)
		if err != nil {
			return nil, err
		}
		made = append(made, one)
	}
	if p.minted == nil {
		p.minted = map[string][]*Certificate{}
	}
	p.minted[key] = made
	return made, nil
}

// validAt reports whether c is valid at now.
func (c *Certificate) validAt(now time.Time) bool {
	return now.After(c.NotBefore) && now.Before(c.NotAfter)
}

// askAll asks all targets concurrently, and collects the answers.
func askAll(targets []Target, ask func(Target) Answer) map[string]Answer {
	answers := make(map[string]Answer, len(targets))
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(atOnce)
	for _, target := range targets {
		asking.Go(func() error {
			answer := ask(target)
			mu.Lock()
			defer mu.Unlock()
			answers[target.Name] = answer
			return nil
		})
	}
	_ = asking.Wait()
	return answers
}

// subjectPrefix begins the common name of every probe certificate. No rights may be granted to such a user.
const subjectPrefix = "csr-controller-manager.io:trust-probe:"

// lifetime and ca.Backdate together are the maximum validity of a probe certificate, ten minutes.
const lifetime = 10*time.Minute - ca.Backdate

// Certificate is a client certificate for a subject of this program, without a group and without rights.
type Certificate struct {
	// Subject is the common name. No other certificate has it.
	Subject string
	// ID identifies the certificate in a user's extra, under csr.CredentialIDKey.
	ID string
	// NotBefore and NotAfter bound the validity.
	NotBefore, NotAfter time.Time

	certPEM, keyPEM []byte
	mldsa           bool // reports whether a certificate that came with the CA has an ML-DSA key
}

// mintCertificate issues a Certificate by authority, valid from ca.Backdate before now. It writes the certificate to log before
// it returns.
func mintCertificate(ctx context.Context, authority *ca.Authority, log *audit.Log, now time.Time) (*Certificate, error) {
	key, keyPEM, err := ca.NewKeyLike(nil)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	random := make([]byte, 8) // with a longer name, the subject would exceed X.520's bound of 64 letters
	_, _ = rand.Read(random)  // never fails
	request := ca.Request{
		PublicKey:   key.Public(),
		Subject:     pkix.Name{CommonName: subjectPrefix + hex.EncodeToString(random)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime})
	if err != nil {
		return nil, err
	}
	issued, err := authority.Issue(profile, request, now.Truncate(time.Second)) // certificates hold whole seconds
	if err != nil {
		return nil, fmt.Errorf("issue a trust probe: %w", err)
	}
	block, _ := pem.Decode(issued.PEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read trust probe: %w", err)
	}
	keySum, fingerprint := sha256.Sum256(leaf.RawSubjectPublicKeyInfo), sha256.Sum256(leaf.Raw)
	log.Write(ctx, now, audit.TrustProbe, audit.Record{
		Subject:     leaf.Subject.String(),
		Usages:      []string{"digital signature", "client auth"},
		KeySHA256:   hex.EncodeToString(keySum[:]),
		Serial:      issued.Serial.Text(16),
		IssuerKeyID: authority.KeyID(),
		NotBefore:   issued.NotBefore,
		NotAfter:    issued.NotAfter,
	})
	return &Certificate{
		Subject:   leaf.Subject.CommonName,
		ID:        csr.CertificateIDPrefix + hex.EncodeToString(fingerprint[:]),
		NotBefore: leaf.NotBefore,
		NotAfter:  leaf.NotAfter,
		certPEM:   issued.PEM,
		mldsa: slices.ContainsFunc(authority.Given(), func(one *x509.Certificate) bool {
			return one.PublicKeyAlgorithm == x509.MLDSA
		}),
		keyPEM: keyPEM,
	}, nil
}

// ServerName is a name in every API server's serving certificate.
const ServerName = "kubernetes.default.svc"

// Target is a server to ask.
type Target struct {
	// Name is the host:port of the server, or what the caller calls it.
	Name string
	// Cluster holds the settings to reach and to verify the server. Credentials in it are not used.
	Cluster *rest.Config
}

// Direct returns the API servers at addresses, each host:port, as Endpoints returns them. They are verified by the CA of
// cluster and by serverName. An empty serverName means ServerName. Nothing else of cluster is used, so the servers
// are asked without a proxy.
func Direct(cluster *rest.Config, serverName string, addresses []string) []Target {
	targets := make([]Target, 0, len(addresses))
	for _, address := range addresses {
		targets = append(targets, Target{Name: address, Cluster: &rest.Config{
			Host: "https://" + address, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
			TLSClientConfig: rest.TLSClientConfig{
				CAData: cluster.CAData, CAFile: cluster.CAFile, Insecure: cluster.Insecure,
				ServerName: cmp.Or(serverName, ServerName),
			},
		}})
	}
	return targets
}

// ErrNoEndpoints is the error of Endpoints if the API servers publish no address, as in envtest.
var ErrNoEndpoints = errors.New("the Service default/kubernetes has no endpoints, so there is no API server to ask")

// Endpoints returns the addresses of all API servers as they publish them: host:port of every endpoint of the Service
// kubernetes, ready or not, sorted. It fails if there is no endpoint, or if a slice lacks the port, because a proof
// must not miss a server. It needs list on endpointslices.discovery.k8s.io in namespace default.
//
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list
func Endpoints(ctx context.Context, reader client.Reader) ([]string, error) {
	list := &discoveryv1.EndpointSliceList{}
	ofService := client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}
	if err := call.List(ctx, reader, list, client.InNamespace("default"), ofService); err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of Service default/kubernetes: %w", err)
	}
	return EndpointsOf(list.Items)
}

// EndpointsOf is Endpoints for the given EndpointSlices of the Service kubernetes.
func EndpointsOf(all []discoveryv1.EndpointSlice) ([]string, error) {
	const port = "https"
	var addresses []string
	for _, slice := range all {
		if len(slice.Endpoints) == 0 {
			continue
		}
		at := slices.IndexFunc(slice.Ports, func(each discoveryv1.EndpointPort) bool {
			return each.Port != nil && ptr.Deref(each.Name, "") == port
		})
		if at < 0 {
			return nil, fmt.Errorf("EndpointSlice %s/%s has no port %q", slice.Namespace, slice.Name, port)
		}
		number := strconv.Itoa(int(*slice.Ports[at].Port))
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				addresses = append(addresses, net.JoinHostPort(address, number))
			}
		}
	}
	if len(addresses) == 0 {
		return nil, ErrNoEndpoints
	}
	slices.Sort(addresses)
	return slices.Compact(addresses), nil
}
