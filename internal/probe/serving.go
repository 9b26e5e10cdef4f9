package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
)

// Shown is the serving certificate that a server has shown.
type Shown struct {
	Certificate *x509.Certificate
	// Verified reports that the certificate is good for the server by the rules of the *rest.Config that led to it.
	Verified bool
}

// ServingCertificate returns the certificate that the server of cluster shows, even if it is not to be trusted. It uses
// cluster's address, proxy and CA, and no credential.
func ServingCertificate(ctx context.Context, cluster *rest.Config) (Shown, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cluster = anonymous(cluster)
	at, _, err := rest.DefaultServerUrlFor(cluster)
	if err != nil {
		return Shown{}, err
	}
	if cluster.ServerName == "" && at.Scheme == "https" {
		cluster.ServerName = at.Hostname() // client-go makes no TLS settings for a cluster that has none
	}
	client, heard, err := connection(cluster)
	if err != nil {
		return Shown{}, err
	}
	defer client.CloseIdleConnections()
	config := heard.transport.(*http.Transport).TLSClientConfig
	name, roots := config.ServerName, config.RootCAs
	shown := make(chan Shown, 1) // a handshake goes on beside the request that has given it up
	// A name in a certificate of unknown origin may be reserved, but is used for nothing else.
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
	case found := <-shown: // the answer, or the lack of one, does not matter
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
