//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// requestFor returns a kubelet's request of that name for the node of that name.
func requestFor(t *testing.T, name string) *kit.Request {
	t.Helper()
	return kit.NodeRequest(t, name, func(obj *kit.Request) { obj.Name = name })
}

func (c *cluster) requestsOf(ctx context.Context, node string) ([]kit.Request, error) {
	return c.requestsTo(ctx, certificatesv1.KubeAPIServerClientKubeletSignerName, node)
}

func (c *cluster) requestsTo(ctx context.Context, signer, node string) ([]kit.Request, error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	err := c.admin.List(ctx, list)
	var found []kit.Request
	for _, obj := range list.Items {
		req, parsed := csr.Parse(&obj)
		if parsed != nil {
			return nil, parsed
		}
		if req.SignerName == signer && req.Cert.Subject.CommonName == "system:node:"+node {
			found = append(found, obj)
		}
	}
	return found, err
}

func issued(obj *kit.Request) *x509.Certificate {
	certs, err := cert.ParseCertsPEM(obj.Status.Certificate)
	if err != nil {
		return nil // it has none: the API server accepts no other one
	}
	return certs[0]
}

// hasEvent reports whether there is an Event with that reason about an object, with part in its note.
func (c *cluster) hasEvent(ctx context.Context, obj client.Object, reason, part string) (bool, error) {
	events := &eventsv1.EventList{}
	err := c.admin.List(ctx, events, client.InNamespace(metav1.NamespaceDefault))
	return slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
		return event.Regarding.UID == obj.GetUID() && event.Reason == reason && strings.Contains(event.Note, part)
	}), err
}

func (c *cluster) whoAmI(ctx context.Context, certAndKey []byte) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(c.config)
	config.CertData, config.KeyData = certAndKey, certAndKey
	return kubelet.WhoAmI(ctx, config)
}

func (c *cluster) wantUnauthorized(t *testing.T, what string, certAndKey []byte) {
	t.Helper()
	who, err := c.whoAmI(t.Context(), certAndKey)
	kit.Check(t, apierrors.IsUnauthorized(err), "with %s the API server takes one for %q: %v, want Unauthorized", what, who.Username, err)
}

// wantIdentity checks that the API server identifies the holder of cert as the node, by exactly that certificate.
func (c *cluster) wantIdentity(t *testing.T, m *machine, file []byte, cert *x509.Certificate) {
	t.Helper()
	who := kit.Must(c.whoAmI(t.Context(), file))(t)
	found, id := who.Extra["authentication.kubernetes.io/credential-id"], fmt.Sprintf("X509SHA256=%x", sha256.Sum256(cert.Raw))
	kit.Check(t, who.Username == "system:node:"+m.name && slices.Contains(found, id),
		"the API server takes the certificate of %s for %q by %s, want %s", m.name, who.Username, found, id)
}

// wantWriter checks by the API server's audit log that one of the manager's ServiceAccounts was the last to do verb to the request name, or to
// its subresource. The log is written in batches.
func (c *cluster) wantWriter(t *testing.T, verb, name, subresource, serviceAccount string) {
	t.Helper()
	want := fmt.Sprintf("system:serviceaccount:%s:%s", namespace, serviceAccount)
	kit.Within(t, 10*time.Second, fmt.Sprintf("%s did %s %s %s", want, verb, name, subresource), func(context.Context) error {
		log, err := os.ReadFile(c.path("audit.log"))
		got := ""
		for line := range bytes.Lines(log) {
			var event struct {
				Verb           string
				User           struct{ Username string }
				ObjectRef      struct{ Resource, Name, Subresource string }
				ResponseStatus struct{ Code int }
			}
			err = errors.Join(err, json.Unmarshal(line, &event))
			if ref := event.ObjectRef; event.Verb == verb && ref.Name == name && ref.Subresource == subresource && event.ResponseStatus.Code == 200 {
				got = event.User.Username
			}
		}
		return kit.OrError(err == nil && got == want, "it was %q, error %w", got, err)
	})
}

func (c *cluster) served(t *testing.T, m *machine) *x509.Certificate {
	t.Helper()
	return kit.Must(c.servedBy(m))(t)
}

// servedBy connects as the API server does, with the CAs in its file.
func (c *cluster) servedBy(m *machine) (*x509.Certificate, error) {
	trusted, err := cert.NewPool(c.kubeletCA)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	conn, err := tls.DialWithDialer(dialer, "tcp", net.JoinHostPort(m.address, "10250"), &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet of %s: %w", m.name, err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0], nil
}

// wantOurs checks that the kubelet requested the certificate with which it serves, and that the Deployment signed it.
func (c *cluster) wantOurs(t *testing.T, m *machine) {
	cert := c.served(t, m)
	requests := kit.Must(c.requestsTo(t.Context(), certificatesv1.KubeletServingSignerName, m.name))(t)
	i := slices.IndexFunc(requests, func(obj kit.Request) bool { return cert.Equal(issued(&obj)) })
	if i < 0 || requests[i].Spec.Username != "system:node:"+m.name {
		t.Fatalf("the certificate that %s serves is not of a request that the kubelet made: number %d of %+v", m.name, i, requests)
	}
	for _, subresource := range []string{"approval", "status"} {
		c.wantWriter(t, "update", requests[i].Name, subresource, kit.ManagerAccount)
	}
}

// wantReachable checks that the API server can connect to the kubelet: kubectl exec always opens a new connection.
func (c *cluster) wantReachable(t *testing.T, m *machine) {
	c.wantLog(t, m.name)
	kit.Equal(t, "output of kubectl exec", c.kubectl(t, "exec", "on-"+m.name, "--", "/pause", "reached"), "reached\n")
}

func (c *cluster) health(m *machine) (string, error) {
	return c.tryKubectl("get", "--raw", "/api/v1/nodes/"+m.name+"/proxy/healthz")
}
