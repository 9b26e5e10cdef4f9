package loop

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestCustomSignerMakesNoFrontProxy has a custom signer on a copy of the CA for front proxies
// (--requestheader-client-ca-file). The API server answers 401 to its client certificates. But it trusts the headers of a
// front proxy.
func TestCustomSignerMakesNoFrontProxy(t *testing.T) {
	kit.Parallel(t)
	proxies := kit.IssueCA(t, "front proxies", kit.NewKey(t), nil, 24*time.Hour)
	kit.WithAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		file := filepath.Join(dir, "front-proxy-ca.crt")
		kit.Write(t, file, proxies.PEM())
		args.Set("requestheader-client-ca-file", file).Set("requestheader-allowed-names", "front-proxy-client").
			Set("requestheader-username-headers", "X-Remote-User").Set("requestheader-group-headers", "X-Remote-Group")
	})
	// This shows the power of such a certificate.
	if got := asRemoteUser(t, proxies.Leaf(t, "front-proxy-client")); got != http.StatusOK {
		t.Fatalf("a front proxy gets %d", got)
	}
	if got := asRemoteUser(t, proxies.Leaf(t, plain.CommonName)); got != http.StatusUnauthorized {
		t.Fatalf("a client that is no front proxy gets %d", got)
	}
	publishesTrust(t, "requestheader-client-ca-file", proxies.PEM())
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	kit.StartLoop(t, csrenv.Options{Customize: hook(proxies.PEM(), proxies.KeyPEM(t), func(s *signer.Signer) {
		s.Usages, s.AllowNoExtKeyUsage = append(s.Usages, "client auth"), true
	})}, "signer")
	proxy := pkix.Name{CommonName: "front-proxy-client"}
	for _, wanted := range [][]certificatesv1.KeyUsage{{"digital signature", "client auth"}, {"digital signature", "any"}, {"digital signature"}} {
		failsAs(t, askHook(t, proxy, "", wanted...), "SubjectNotPermitted", "API servers trust the CA of signer example.com/hook for front proxies")
	}
	failsAs(t, askHook(t, plain, "", "digital signature"), "UsagesNotPermitted", "")
	failsAs(t, askHook(t, kubeadmAdmin, "", "digital signature", "client auth"), "SubjectNotPermitted", "")
	kit.Reaches(t, askHook(t, plain, "", "digital signature", "client auth"), csr.Issued) // the API server does not trust it
}

// asRemoteUser reads the Secrets of the cluster with pair, as an administrator in headers, and returns the status.
func asRemoteUser(t *testing.T, pair tls.Certificate) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(kit.ControlPlane(t).Config.CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(kit.ControlPlane(t).Config.Host, "/")+"/api/v1/secrets", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"X-Remote-User": {"mallory"}, "X-Remote-Group": {"system:masters"}}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}
