// Package postquantum tests requests and CAs with ML-DSA keys on a real API server. An API server that is built with Go 1.27 or later
// accepts them, and an older one does not. Each test asks the API server which Go it was built with, and checks what holds there.
package postquantum

import (
	"context"
	"crypto"
	"crypto/mldsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"go/version"
	"os"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	certutil "k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

func TestMain(m *testing.M) { kit.Main(m, 3, "../../config/crd") }

// refusal is what an API server says that cannot read an ML-DSA key.
const refusal = "x509: cannot verify signature: algorithm unimplemented"

// parameters are those of ML-DSA.
var parameters = []mldsa.Parameters{mldsa.MLDSA44(), mldsa.MLDSA65(), mldsa.MLDSA87()}

// newKey returns a new ML-DSA key.
func newKey(t *testing.T, of mldsa.Parameters) crypto.Signer {
	t.Helper()
	return kit.Must(mldsa.GenerateKey(of))(t)
}

// builtWith returns the version of Go that the API server was built with, and whether that version has ML-DSA.
func builtWith(t *testing.T) (name string, knows bool) {
	t.Helper()
	server := kit.Must(kit.Must(discovery.NewDiscoveryClientForConfig(kit.ControlPlane(t).Config))(t).ServerVersion())(t)
	kit.Require(t, version.IsValid(server.GoVersion), "the API server does not name its version of Go: %v", server)
	return server.GoVersion, version.Compare(server.GoVersion, "go1.27") >= 0
}

// trusted returns a CA with key that is in the API server's client CA file.
func trusted(t *testing.T, name string, key crypto.Signer) *csrenv.CA {
	t.Helper()
	made := kit.IssueCA(t, name, key, nil, ca.DefaultAuthorityLifetime)
	c := kit.ControlPlane(t)
	kit.NoError(t, c.TrustClients(slices.Concat(kit.Must(os.ReadFile(c.ClientCAFile()))(t), made.PEM())))
	return &csrenv.CA{CertPEM: made.PEM(), KeyPEM: made.KeyPEM(t)}
}

// bootstrap returns what makes kubelets with a bootstrap token, whose requests the approver may approve.
func bootstrap(t *testing.T) func(name string) *kubelet.Node {
	t.Helper()
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayCreate)
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayJoin)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	token := kit.WithToken(t, kit.BootstrapperToken)
	return func(name string) *kubelet.Node { return &kubelet.Node{Name: name, Dir: t.TempDir(), Bootstrap: token} }
}

// startLoop runs the controllers with the shipped roles. They sign with authority, and approve serving certificates too.
func startLoop(t *testing.T, authority *csrenv.CA) {
	t.Helper()
	kit.Apply(t, "kubelet-serving")
	kit.StartLoopAs(t, kit.ManagerConfig(t), csrenv.Options{CA: authority, Customize: func(o *controllers.Options) {
		o.Approver.Inventory = &approver.Inventory{Sources: []approver.SourceBuilder{approver.NodeSource}}
		o.Approver.Judges[certificatesv1.KubeletServingSignerName] = approver.KubeletServing{}
	}})
}

// TestNodes has kubelets with ML-DSA keys, which join, renew with their own certificates, and serve with TLS. CAs with an ECDSA key and with
// ML-DSA keys sign. An older API server refuses the requests of such kubelets, and an ECDSA key gets its certificate after them.
func TestNodes(t *testing.T) {
	kit.Parallel(t)
	kubelets := bootstrap(t)
	authorities := map[string]*csrenv.CA{"ecdsa": trusted(t, "ecdsa", kit.NewKey(t))}
	goVersion, knows := builtWith(t)
	for _, each := range parameters {
		if knows {
			authorities[strings.ToLower(each.String())] = trusted(t, each.String(), newKey(t, each))
		}
	}
	for name, authority := range authorities {
		t.Run(name, func(t *testing.T) {
			startLoop(t, authority)
			identifies(t, authority)
			for _, each := range parameters {
				node := kubelets(name + "-" + strings.ToLower(each.String()))
				node.Key = newKey(t, each)
				if knows {
					lives(t, node, each, authority)
					continue
				}
				_, err := node.Request(t.Context(), node.Bootstrap, node.Key, certificatesv1.UsageClientAuth)
				kit.Check(t, err != nil && strings.Contains(err.Error(), refusal), "%s takes an %s key: %v", goVersion, each, err)
			}
			kubelets("last-" + name).Join(t)
		})
	}
}

// identifies waits until the API server identifies clients by authority: it has read its client CA file again.
func identifies(t *testing.T, authority *csrenv.CA) {
	t.Helper()
	pair := kit.Must(tls.X509KeyPair(authority.CertPEM, authority.KeyPEM))(t)
	kit.Eventually(t, "the API server trusts the CA", func(ctx context.Context) error {
		_, err := kit.WhoIs(ctx, kit.ControlPlane(t).Config, &pair)
		return err
	})
}

// lives has node join, register, renew and serve, always with new keys.
func lives(t *testing.T, node *kubelet.Node, of mldsa.Parameters, authority *csrenv.CA) {
	t.Helper()
	first := node.Join(t)
	node.Register(t, first)
	renewed := kit.Must(node.Renew(t.Context(), first, newKey(t, of)))(t)
	hasAsked(t, node, kit.Bootstrapper, node.User())
	user, err := kit.WhoIs(t.Context(), kit.ControlPlane(t).Config, renewed)
	kit.Check(t, err == nil && user == node.User(), "the API server takes %s for %q, error %v", node.User(), user, err)
	kit.Publish(t, kit.Get(t, "", node.Name, &corev1.Node{}), "192.0.2.1") // the approver waits until a Node has an address
	serving := kit.Must(node.Serve(t.Context(), renewed, newKey(t, of)))(t)
	for _, pair := range []*tls.Certificate{first, renewed, serving} {
		kit.NoError(t, pair.Leaf.CheckSignatureFrom(kit.Certificate(t, authority)))
		key, is := pair.Leaf.PublicKey.(*mldsa.PublicKey)
		kit.Check(t, is && key.Parameters() == of && pair.Leaf.KeyUsage == x509.KeyUsageDigitalSignature, "%+v", pair.Leaf)
	}
	verifies(t, serving, node.Name, authority)
}

// hasAsked checks who has made the requests of node for client certificates, and that the approver has approved all of them.
func hasAsked(t *testing.T, node *kubelet.Node, want ...string) {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list))
	var users []string
	for _, obj := range list.Items {
		if kit.Must(csr.Parse(&obj))(t).Cert.Subject.CommonName == node.User() {
			users = append(users, obj.Spec.Username)
			kit.Equal(t, "approval", csr.Condition(&obj, certificatesv1.CertificateApproved).Reason, "AutoApproved")
		}
	}
	slices.Sort(users)
	kit.Equal(t, "requesters", users, want)
}

// verifies checks that a client with the CA verifies a server with pair.
func verifies(t *testing.T, pair *tls.Certificate, name string, authority *csrenv.CA) {
	t.Helper()
	listener := kit.Must(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*pair}}))(t)
	defer func() { _ = listener.Close() }()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = errors.Join(conn.(*tls.Conn).HandshakeContext(t.Context()), conn.Close())
		}
		served <- err
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.CertPEM)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name}}
	conn := kit.Must(dialer.DialContext(t.Context(), "tcp", listener.Addr().String()))(t)
	kit.Equal(t, "served", conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw, pair.Leaf.Raw)
	kit.NoError(t, errors.Join(conn.Close(), <-served))
}

// TestAuthority signs for an ECDSA key with an ML-DSA CA. An older API server stores the certificate, does not identify its holder, and
// goes on to identify others. The manager signs the next request.
func TestAuthority(t *testing.T) {
	kit.Parallel(t)
	kubelets := bootstrap(t)
	authority := trusted(t, "ML-DSA-65", newKey(t, mldsa.MLDSA65()))
	startLoop(t, authority)
	goVersion, knows := builtWith(t)
	if knows {
		identifies(t, authority)
	}
	for _, name := range []string{"first", "second"} {
		node, key := kubelets(name), kit.NewKey(t)
		issued := kit.Must(node.Request(t.Context(), node.Bootstrap, key, certificatesv1.UsageClientAuth))(t)
		kit.NoError(t, issued.Leaf.CheckSignatureFrom(kit.Certificate(t, authority)))
		user, err := kit.WhoIs(t.Context(), kit.ControlPlane(t).Config, issued)
		kit.Check(t, knows && user == node.User() || !knows && apierrors.IsUnauthorized(err), "%s: the API server takes %s for %q, error %v",
			goVersion, node.User(), user, err)
	}
}

// TestKeyEncipherment checks that a request for an ML-DSA key with a usage that such a key cannot have becomes Failed, with the text of
// Kubernetes 1.38.
func TestKeyEncipherment(t *testing.T) {
	kit.Parallel(t)
	kit.StartLoop(t, csrenv.Options{})
	obj := kit.NodeRequest(t, "encipherment", func(obj *kit.Request) {
		subject := pkix.Name{CommonName: csr.NodeUserPrefix + "encipherment", Organization: []string{csr.NodeGroup}}
		obj.Spec.Request = kit.Must(certutil.MakeCSR(newKey(t, mldsa.MLDSA44()), &subject, nil, nil))(t)
		obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageKeyEncipherment)
	})
	goVersion, knows := builtWith(t)
	if !knows {
		err := kit.Admin(t).Create(t.Context(), obj)
		kit.Check(t, err != nil && strings.Contains(err.Error(), refusal), "%s takes an ML-DSA-44 key: %v", goVersion, err)
		return
	}
	kit.Create(t, kit.Admin(t), obj)
	kit.Approve(t, obj)
	failed := csr.Condition(kit.Reaches(t, obj, csr.Failed), certificatesv1.CertificateFailed)
	kit.Equal(t, "reason", failed.Reason, "SignerValidationFailure")
	kit.Equal(t, "message", failed.Message,
		"validating usages for ml-dsa key: usage key encipherment cannot be used with an ML-DSA signed certificate request")
}
