package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

const systemNamespace = "csr-controller-manager-system"

// binary builds the manager once.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(shared.Dir, "csr-controller-manager")
	return path, cluster.BuildManager(context.Background(), "../..", path)
})

// installRBAC applies config/rbac as it is shipped.
func installRBAC(t *testing.T) {
	t.Helper()
	for _, file := range []string{"namespace", "service_account", "approver", "signer", "cleaner", "signing_secret", "leader_election", "bindings"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			obj := &unstructured.Unstructured{}
			if err := documents.Decode(obj); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if err := admin.Create(t.Context(), obj); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
}

// serviceAccountConfig authenticates as the ServiceAccount that config/rbac binds.
func serviceAccountConfig(t *testing.T) *rest.Config {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-controller-manager"}}
	token := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(shared.Config)
	cfg.BearerToken = token.Status.Token
	return cfg
}

// process is a running manager.
type process struct {
	command *exec.Cmd
	log     *bytes.Buffer
	probes  string
	metrics string
	done    chan error
}

// startManager runs the real binary as cfg's user, and stops it with the test.
func startManager(t *testing.T, cfg *rest.Config, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := shared.WriteKubeconfig(strings.ReplaceAll(t.Name(), "/", "-"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{log: &bytes.Buffer{}, probes: freeAddress(t), metrics: freeAddress(t), done: make(chan error, 1)}
	p.command = exec.Command(path, append([]string{
		"--kubeconfig", kubeconfig, "--signing-secret", systemNamespace + "/csr-signer",
		"--leader-elect-resource-namespace", systemNamespace, "-v", "1",
		"--health-probe-bind-address", p.probes, "--metrics-bind-address", p.metrics,
	}, args...)...)
	p.command.Stderr = p.log
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	shared.Guard(p.command.Process)
	go func() { p.done <- p.command.Wait() }()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		_ = p.wait(t)
		if t.Failed() {
			t.Logf("log of the manager:\n%s", p.log)
		}
		if strings.Contains(p.log.String(), "DATA RACE") {
			t.Errorf("data race in the manager:\n%s", p.log)
		}
	})
	return p
}

// wait waits for the end of the process and returns how it ended, as often as it is asked.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(patience):
		t.Fatal("the manager does not stop")
		return nil
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// get returns the status and the body of a page of the manager, or 0 while it does not listen.
func get(ctx context.Context, address, path string) (int, string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// answers waits until a page has status and contains each of parts.
func (p *process) answers(t *testing.T, address, path string, status int, parts ...string) {
	t.Helper()
	eventually(t, path, func(ctx context.Context) error {
		got, body := get(ctx, address, path)
		if got != status {
			return fmt.Errorf("status %d, want %d: %s", got, status, body)
		}
		for _, part := range parts {
			if !strings.Contains(body, part) {
				return fmt.Errorf("%q is not in: %s", part, body)
			}
		}
		return nil
	})
}

func signingSecret(cert, key []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-signer"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
}

// TestManager runs the whole manager as it is shipped, under the shipped roles: without a CA, with one, with a bad one.
func TestManager(t *testing.T) {
	installRBAC(t)
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	p := startManager(t, serviceAccountConfig(t), "--leader-elect=false")

	// No CA yet: it runs, and says so.
	p.answers(t, p.probes, "/healthz", http.StatusOK)
	p.answers(t, p.probes, "/readyz?verbose", http.StatusInternalServerError, "signing-ca")
	waiting := createRequest(t, as(t, "joiner"), nodeRequest(t, "one"))
	reaches(t, waiting, csr.Approved)
	hasEvent(t, waiting, "CAMissing", "Secret csr-controller-manager-system/csr-signer does not exist")

	// It appears: what waited is signed at once.
	secret := signingSecret(shared.CA.CertPEM, shared.CA.KeyPEM)
	create(t, admin, secret)
	reaches(t, waiting, csr.Issued)
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	if got := leaf(t, waiting).Subject.CommonName; got != "system:node:one" {
		t.Errorf("common name is %q", got)
	}

	// A bad one keeps the last good one working, and is reported.
	secret.Data[corev1.TLSCertKey] = []byte("garbage")
	if err := admin.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	hasEvent(t, secret, "CAInvalid", "no PEM block of type CERTIFICATE", "the last good one stays in use")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "two")), csr.Issued)
	p.answers(t, p.probes, "/readyz", http.StatusOK)

	// What must not be approved is not, and says why.
	grant(t, "stranger", mayCreate)
	refused := createRequest(t, as(t, "stranger"), nodeRequest(t, "three"))
	hasEvent(t, refused, "NotAuthorized", `user "stranger"`, "create certificatesigningrequests/nodeclient")
	if got := csr.StateOf(reload(t, refused)); got != csr.Pending {
		t.Errorf("refused request is %s, want Pending", got)
	}

	// A node renews by itself once it may.
	p.answers(t, p.metrics, "/metrics", http.StatusOK,
		`csr_approver_decisions_total{reason="AutoApproved",rule="nodeclient",signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Approve"} 2`,
		`csr_approver_decisions_total{reason="NotAuthorized",rule="",signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Wait"} 1`,
		`csr_signer_outcomes_total{outcome="Issued",reason="",signer="kubernetes.io/kube-apiserver-client-kubelet"} 2`,
		`csr_signer_ca_reloads_total{result="rejected"} 2`,
		`csr_signer_ca_not_after_seconds{signer="kubernetes.io/kubelet-serving"}`)

	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); err != nil {
		t.Errorf("stopped with %v, want a clean exit", err)
	}
	if strings.Contains(p.log.String(), string(bytes.TrimSpace(shared.CA.KeyPEM)[30:60])) {
		t.Error("the log holds the key")
	}
	if strings.Contains(p.log.String(), "forbidden") {
		t.Errorf("the shipped roles do not suffice:\n%s", p.log)
	}
}

// TestManagerCleans deletes what is due when the manager starts, and what becomes due while it runs.
func TestManagerCleans(t *testing.T) {
	installRBAC(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: [cleaner]
cleaning:
  signers:
  - name: kubernetes.io/kubelet-serving
    retention: {approved: 2s}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	old := nodeRequest(t, "old", func(obj *request) {
		obj.Name, obj.UID, obj.CreationTimestamp = "stored-a-day-ago", "u-1", metav1.NewTime(time.Now().Add(-25*time.Hour))
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	})
	if err := shared.Store(t.Context(), "certificatesigningrequests/"+old.Name, old); err != nil {
		t.Fatal(err)
	}
	fresh := createRequest(t, admin, nodeRequest(t, "fresh"))
	short := createRequest(t, admin, nodeRequest(t, "short", func(obj *request) {
		obj.Spec.SignerName = certificatesv1.KubeletServingSignerName
	}))
	approve(t, short)
	startManager(t, serviceAccountConfig(t), "--leader-elect=false", "--config", file)
	for _, obj := range []*request{old, short} {
		eventually(t, obj.Name+" is deleted", func(ctx context.Context) error {
			err := admin.Get(ctx, client.ObjectKeyFromObject(obj), obj)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %w", err)
		})
	}
	reload(t, fresh)
}

// TestLeaderElection hands over when the leader stops: it gives the Lease back, and the standby is warm.
func TestLeaderElection(t *testing.T) {
	installRBAC(t)
	create(t, admin, signingSecret(shared.CA.CertPEM, shared.CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	first := startManager(t, serviceAccountConfig(t))
	leader := leaderAfter(t, "")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "first")), csr.Issued)

	second := startManager(t, serviceAccountConfig(t))
	second.answers(t, second.probes, "/readyz", http.StatusOK) // warm: it knows the CA
	if err := first.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := first.wait(t); err != nil {
		t.Errorf("the leader stopped with %v", err)
	}
	start := time.Now()
	leaderAfter(t, leader)
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "second")), csr.Issued)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the standby took %s, the Lease was not given back", took)
	}
}

// leaderAfter waits for a holder of the Lease that is not the one before.
func leaderAfter(t *testing.T, before string) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	eventually(t, "a new leader", func(ctx context.Context) error {
		err := admin.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "csr-controller-manager"}, lease)
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" || *holder == before {
			return errors.New("there is none")
		}
		return nil
	})
	return *lease.Spec.HolderIdentity
}

func TestManagerRefusesBadConfiguration(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "--cluster-signing-kubelet-client-cert-file=x", "--controllers=foo", "--bogus").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("exit is %v, want 1", err)
	}
	for _, part := range []string{"-bogus", "--controllers: ", "--cluster-signing-kubelet-client-cert-file: "} {
		if !strings.Contains(string(out), part) {
			t.Errorf("%q is not in:\n%s", part, out)
		}
	}
}
