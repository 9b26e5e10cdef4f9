package signer

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The keys of the ConfigMap extension-apiserver-authentication that API servers fill from --requestheader-client-ca-file and
// --requestheader-allowed-names (k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust).
const (
	frontProxyCAs   = "requestheader-client-ca-file"
	frontProxyNames = "requestheader-allowed-names"
)

// frontProxy is whether API servers accept a CA for front proxies. The holder of such a certificate names any user in a
// header, and the API server believes it. The zero value is a CA that they do not accept.
type frontProxy struct {
	unread  string // why that is not known yet
	trusted bool
	names   []string // the common names of front proxies; none means any
}

func (f frontProxy) equal(other frontProxy) bool {
	return f.unread == other.unread && f.trusted == other.trusted && slices.Equal(f.names, other.names)
}

// forbids returns why a custom signer must not issue req, or nil. While f is not known, it holds for every certificate that
// is good for a client.
func (f frontProxy) forbids(req *csr.Request) *ca.Violation {
	forClients := len(req.Cert.ExtKeyUsage) == 0 || slices.ContainsFunc(req.Cert.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageAny || usage == x509.ExtKeyUsageClientAuth
	})
	named := len(f.names) == 0 || slices.Contains(f.names, req.Cert.Subject.CommonName)
	if !forClients || f.unread == "" && (!f.trusted || !named) {
		return nil
	}
	return &ca.Violation{Reason: "SubjectNotPermitted",
		Message: fmt.Sprintf("subject %+q is not permitted: API servers accept the CA of signer %s for front proxies (--requestheader-client-ca-file), "+
			"so a client of that name could act for any user; give the signer a CA of its own", req.SubjectText(), req.SignerName)}
}

// waitsForFrontProxy is the message about a request that waits because of violation.
func (f frontProxy) waitsForFrontProxy(violation *ca.Violation) string {
	return fmt.Sprintf("it is not known whether API servers accept this CA for front proxies: %s; if they do, the request is refused (%s: %s), else it is signed",
		f.unread, violation.Reason, violation.Message)
}

// readFrontProxy finds out whether API servers accept authority for front proxies: it has the key of one of their CAs, or
// one of these CAs has issued it, directly or not.
func readFrontProxy(ctx context.Context, reader client.Reader, authority *ca.Authority, now time.Time) (frontProxy, error) {
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

// leadsTo reports whether a leaf of authority leads to one of roots, with any certificate that its holder may append.
func leadsTo(authority *ca.Authority, roots []*x509.Certificate, now time.Time) bool {
	cert := authority.Certificate()
	if slices.ContainsFunc(roots, func(root *x509.Certificate) bool {
		return bytes.Equal(root.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
	}) {
		return true
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, root := range roots {
		options.Roots.AddCert(root)
	}
	options.Intermediates.AppendCertsFromPEM(authority.WithAllGiven().AppendedPEM())
	if _, err := cert.Verify(options); err == nil {
		return true
	}
	// A cross-certificate is another certificate of the same key.
	given, _ := ca.ParseCertificates(authority.WithAllGiven().AppendedPEM()) // Load has read them
	return slices.ContainsFunc(given, func(other *x509.Certificate) bool {
		if !bytes.Equal(other.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) {
			return false
		}
		_, err := other.Verify(options)
		return err == nil
	})
}
