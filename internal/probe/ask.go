package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Trust reports whether an API server accepts a Certificate. The zero value is Unknown.
type Trust int

// The values of Trust.
const (
	// Unknown means that there is no answer, or that the answer proves nothing.
	Unknown Trust = iota
	// Recognised means that the API server identifies the holder by this exact certificate.
	Recognised
	// Refused means that the API server does not accept the certificate.
	Refused
)

func (t Trust) String() string { return [...]string{"Unknown", "Recognised", "Refused"}[t] }

// Answer is a Trust with a sentence about the evidence.
type Answer struct {
	Trust    Trust
	Evidence string
}

// anonymousUser is the user of a request without credentials (k8s.io/apiserver/pkg/authentication/user, Anonymous).
// An API server that gets a certificate that it does not trust answers 401, even if it allows anonymous requests.
const anonymousUser = "system:anonymous"

// timeout bounds one call to a server.
const timeout = 10 * time.Second

// Ask presents c to the API server of cluster. It uses only the address and the CA of cluster, so that the answer
// can't be about a token or another certificate. Each call has its own connection.
func (c *Certificate) Ask(ctx context.Context, cluster *rest.Config) (answer Answer) {
	defer func() { answer.Evidence = ascii.Quote(answer.Evidence) }() // it has texts of the server
	if cluster.Insecure {
		return Answer{Unknown, fmt.Sprintf(
			"%s is not verified (insecure-skip-tls-verify), so another server could have answered", cluster.Host)}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	review, heard, err := c.review(ctx, anonymous(cluster))
	switch {
	case err == nil:
		return c.identifiedAs(review.Status.UserInfo)
	case refused(err):
		answer = c.refusal(cluster.Host, heard)
		if answer.Trust == Refused && c.mldsa {
			answer.Evidence += lacksMLDSA(ctx, anonymous(cluster))
		}
		return answer
	default:
		return Answer{Unknown, fmt.Sprintf("%s gave no conclusive answer: %v", cluster.Host, err)}
	}
}

// anonymous returns cluster without credentials: its address, and the settings to reach and to verify it.
func anonymous(cluster *rest.Config) *rest.Config {
	only := rest.AnonymousClientConfig(cluster)
	only.QPS, only.RateLimiter = -1, nil
	only.ContentConfig, only.NextProtos = rest.ContentConfig{}, nil
	return only
}

// review asks the API server for the user that it identifies by c.
func (c *Certificate) review(
	ctx context.Context, cluster *rest.Config,
) (*authenticationv1.SelfSubjectReview, *heard, error) {
	cluster.CertData, cluster.KeyData = c.certPEM, c.keyPEM
	used, heard, err := connection(cluster)
	if err != nil {
		return nil, heard, err
	}
	defer used.CloseIdleConnections()
	client, err := authenticationclient.NewForConfigAndClient(cluster, used)
	if err != nil {
		return nil, heard, fmt.Errorf("make client: %w", err)
	}
	review, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return review, heard, err
}

// heard is what a connection tells about its server, beside the answer.
type heard struct {
	*http.Transport
	// asked reports that the server requested a client certificate, and so has received c.
	asked bool
	// date is the server's clock, or zero if the response had none.
	date time.Time
}

// RoundTrip records the server's clock.
func (h *heard) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := h.Transport.RoundTrip(request)
	if err == nil {
		h.date, _ = http.ParseTime(response.Header.Get("Date"))
	}
	return response, err
}

// refusal returns what the 401 of a server proves. It proves nothing if the server has not seen the certificate, or if the
// certificate is not valid by the server's clock: a server that trusts the CA refuses it too.
func (c *Certificate) refusal(name string, heard *heard) Answer {
	evidence := fmt.Sprintf("%s answers 401 to a client certificate of this CA", name)
	switch {
	case !heard.asked:
		return Answer{Unknown, evidence + ", but did not ask for the certificate: no proof"}
	case !heard.date.IsZero() && !c.validAt(heard.date):
		return Answer{Unknown, fmt.Sprintf(
			"%s, but by its clock, %s, the certificate is not valid: no proof; synchronize the clocks",
			evidence, heard.date.UTC().Format(time.RFC3339))}
	default:
		return Answer{Refused, evidence}
	}
}

// lacksMLDSA returns that the server of cluster can't verify ML-DSA, or "" if its version of Go can. It reads /version without credentials, as the
// ClusterRole system:public-info-viewer permits.
func lacksMLDSA(ctx context.Context, cluster *rest.Config) string {
	used, _, err := connection(cluster)
	if err != nil {
		return ""
	}
	defer used.CloseIdleConnections()
	client, err := discovery.NewDiscoveryClientForConfigAndClient(cluster, used)
	if err != nil {
		return ""
	}
	server, err := client.ServerVersionWithContext(ctx)
	if err != nil {
		return fmt.Sprintf("; only a server that is built with Go 1.27 or later can verify ML-DSA, and this one does not name its version: %v", err)
	}
	if trust.ReadsMLDSA(server.GoVersion) {
		return ""
	}
	return fmt.Sprintf("; it is built with %s, and only Go 1.27 and later can verify ML-DSA", csr.Shorten(server.GoVersion))
}

// connection returns a client with its own transport, because client-go caches every transport that it makes. The
// client follows no redirect.
func connection(cluster *rest.Config) (*http.Client, *heard, error) {
	tlsConfig, err := rest.TLSConfigFor(cluster)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	if tlsConfig == nil {
		return nil, nil, errors.New("there is no TLS, and so no client certificate")
	}
	heard := &heard{}
	if shown := tlsConfig.GetClientCertificate; shown != nil {
		tlsConfig.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			heard.asked = true
			return shown(info)
		}
	}
	proxy, dial := cluster.Proxy, cluster.Dial
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	heard.Transport = &http.Transport{TLSClientConfig: tlsConfig, Proxy: proxy, DialContext: dial, DisableKeepAlives: true}
	return &http.Client{
		Transport:     heard,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, heard, nil
}

// refused reports whether err is the 401 of an API server, and not of a proxy in between.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsUnauthorized(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || !slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// identifiedAs returns what it proves that the API server identifies the holder of c as user.
func (c *Certificate) identifiedAs(user authenticationv1.UserInfo) Answer {
	ids := user.Extra[csr.CredentialIDKey]
	switch {
	case user.Username == anonymousUser:
		return Answer{Unknown, "the API server identifies the holder of a client certificate of this CA as anonymous: " +
			"either it trusts no client CA at all, or a proxy in front of it terminates TLS"}
	case user.Username != c.Subject:
		return Answer{Refused, fmt.Sprintf(
			"the API server identifies the holder of a client certificate of this CA as %q", user.Username)}
	case len(ids) == 0:
		return Answer{Unknown, "the API server knows the subject, but does not say by which credential, " +
			"like old versions: no proof"}
	case !slices.Equal(ids, []string{c.ID}):
		return Answer{Unknown, fmt.Sprintf(
			"the API server knows the subject, but by another credential, %q: no proof", ids)}
	default:
		return Answer{Recognised, fmt.Sprintf(
			"the API server knows the subject of a new client certificate of this CA, by that certificate (%s)", c.ID)}
	}
}

// Shown is the serving certificate that a server has presented.
type Shown struct {
	Certificate *x509.Certificate
	// Verified reports that the certificate is valid for the server by the rules of the *rest.Config that led to it.
	Verified bool
}

// ServingCertificate returns the certificate that the server of cluster presents, even if it can't be trusted. It
// uses cluster's address, proxy and CA, and no credential.
func ServingCertificate(ctx context.Context, cluster *rest.Config) (Shown, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cluster = anonymous(cluster)
	at, _, err := rest.DefaultServerUrlFor(cluster)
	if err != nil {
		return Shown{}, err
	}
	if cluster.ServerName == "" && at.Scheme == "https" {
		cluster.ServerName = at.Hostname() // client-go makes no TLS settings if cluster has none
	}
	client, heard, err := connection(cluster)
	if err != nil {
		return Shown{}, err
	}
	defer client.CloseIdleConnections()
	config := heard.TLSClientConfig
	name, roots := config.ServerName, config.RootCAs
	shown := make(chan Shown, 1) // a handshake may continue after its request has given up
	// A name in a certificate of unknown origin may be reserved, but must not be used for anything else.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		select {
		case shown <- Shown{
			Certificate: state.PeerCertificates[0],
			Verified:    cluster.Insecure || verifies(state.PeerCertificates, roots, name),
		}:
		default:
		}
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return Shown{}, err
	}
	response, err := client.Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	select {
	case found := <-shown: // the response, or the lack of a response, does not matter
		return found, nil
	default:
		return Shown{}, fmt.Errorf("read the serving certificate of %s: %w", at.Host, err)
	}
}

func verifies(chain []*x509.Certificate, roots *x509.CertPool, name string) bool {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), DNSName: name}
	for _, each := range chain[1:] {
		options.Intermediates.AddCert(each)
	}
	_, err := chain[0].Verify(options)
	return err == nil
}
