package rotation

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestAggregatedAPIServerHoldsTheOldCA follows a real aggregated API server through the end of a rotation. After all
// API servers refuse the old CA, it still accepts it as long as extension-apiserver-authentication has it.
func TestAggregatedAPIServerHoldsTheOldCA(t *testing.T) {
	kit.Parallel(t)
	c, own := ownCluster(t)
	p := publisher(t, c.Config)
	oldCA, newCA := c.CA, kit.NewCA(t)
	old, signing := kit.Load(t, oldCA), kit.Load(t, newCA)
	both, err := os.ReadFile(c.ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(both), string(oldCA.CertPEM), "", 1)
	trusts := func(bundle string) {
		t.Helper()
		if err := c.TrustClients([]byte(bundle)); err != nil {
			t.Fatal(err)
		}
	}
	trusts(string(both) + string(newCA.CertPEM))
	kit.Eventually(t, "the API server publishes what it trusts", func(ctx context.Context) error {
		return holds(ctx, p, true, oldCA, newCA)
	})
	startAggregated(t, c, own)

	prober := &probe.Prober{Clock: clock.RealClock{}}
	servers, err := probe.Listed([]string{c.Env.ControlPlane.GetAPIServer().SecureServing.URL("", "").Host})
	if err != nil {
		t.Fatal(err)
	}
	apiServers := probe.Direct(c.Config, "localhost", servers)
	aggregated, unknown, err := probe.Aggregated(t.Context(), own)
	if err != nil || len(aggregated) != 1 || len(unknown) != 0 {
		t.Fatalf("found %v and %v, error %v", aggregated, unknown, err)
	}
	recognise := func(ctx context.Context) probe.Round {
		return prober.Recognise(ctx, signing, slices.Concat(apiServers, aggregated))
	}
	refuse := func(ctx context.Context) probe.Round {
		return prober.Refuse(ctx, old, signing, slices.Concat(apiServers, aggregated))
	}
	is(t, "both accept the new CA", recognise, probe.Recognised, probe.Recognised)
	is(t, "both accept the old CA", refuse, probe.Recognised, probe.Recognised)

	trusts(without + string(newCA.CertPEM))
	is(t, "the API server refuses the old CA", refuse, probe.Refused, probe.Recognised)
	if err := holds(t.Context(), p, true, oldCA, newCA); err != nil {
		t.Error(err)
	}
	for range 2 { // the second call changes nothing
		if err := p.Prune(t.Context(), kit.Certificate(t, oldCA)); err != nil {
			t.Fatal(err)
		}
	}
	is(t, "both refuse the old CA", refuse, probe.Refused, probe.Refused)
	is(t, "both accept the new CA still", recognise, probe.Recognised, probe.Recognised)
	if err := holds(t.Context(), p, false, oldCA); err != nil {
		t.Error(err)
	}
}

// is waits until a round has these answers, of the API server and of the aggregated one.
func is(t *testing.T, what string, ask func(context.Context) probe.Round, apiServer, aggregated probe.Trust) {
	t.Helper()
	kit.Eventually(t, what, func(ctx context.Context) error {
		round := ask(ctx)
		for name, answer := range round.Answers {
			want := apiServer
			if strings.HasPrefix(name, "default/extension at ") {
				want = aggregated
			}
			if answer.Trust != want {
				return fmt.Errorf("%s: %s, want %s: %s", name, answer.Trust, want, answer.Evidence)
			}
		}
		if len(round.Answers) != 2 {
			return fmt.Errorf("answers are %v", round.Answers)
		}
		return nil
	})
}

func holds(ctx context.Context, p *trust.Publisher, want bool, cas ...*csrenv.CA) error {
	for i, one := range cas {
		certs, err := ca.ParseCertificates(one.CertPEM)
		if err != nil {
			return err
		}
		if got, err := p.Holds(ctx, certs[0]); err != nil || got != want {
			return fmt.Errorf("CA %d is held: %t, error %w", i+1, got, err)
		}
	}
	return nil
}

// startAggregated runs Kubernetes' apiextensions-apiserver as a separate program and registers it. It reads its
// client CAs from the API server.
func startAggregated(t *testing.T, c *cluster.Cluster, own client.Client) {
	t.Helper()
	address, err := cluster.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.WriteKubeconfig("aggregated", c.Config)
	if err != nil {
		t.Fatal(err)
	}
	serving := kit.NewCA(t)
	certFile, keyFile := serverCertificate(t, kit.Load(t, serving), "extension.default.svc")
	process, err := c.StartProcess("apiextensions-apiserver", filepath.Join(os.Getenv("CONTROLPLANE"), "apiextensions-apiserver"),
		"--etcd-servers", c.Env.ControlPlane.Etcd.URL.String(), "--etcd-prefix", "/aggregated", "--bind-address", host, "--secure-port", port,
		"--tls-cert-file", certFile, "--tls-private-key-file", keyFile,
		"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(process.Tail(30))
		}
		process.Kill()
	})
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "extension"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	announced := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.extension.test"},
		"spec": map[string]any{
			"group": "extension.test", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(10),
			"caBundle": base64.StdEncoding.EncodeToString(serving.CertPEM), "service": map[string]any{"namespace": "default", "name": "extension", "port": int64(number)},
		},
	}}
	for _, obj := range []client.Object{service, announced} {
		if err := own.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
}

func serverCertificate(t *testing.T, by *ca.Authority, name string) (certFile, keyFile string) {
	t.Helper()
	key := kit.NewKey(t)
	profile, err := ca.NewProfile(ca.ProfileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := by.Issue(profile, ca.Request{
		PublicKey: key.Public(), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	kit.Write(t, certFile, issued.PEM)
	kit.Write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return certFile, keyFile
}
