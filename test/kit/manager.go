package kit

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// Process is a running manager.
type Process struct {
	*cluster.Process
	Probes  string
	Metrics string
}

// StandardArgs are the flags of every manager in these tests. Flags behind them win.
var StandardArgs = []string{"--signing-secret", SystemNamespace + "/csr-signer", "--leader-elect-resource-namespace", SystemNamespace}

// Configure writes a configuration file with text, and returns its flag.
func Configure(t *testing.T, text string) (flag string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	Write(t, file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+text))
	return "--config=" + file
}

// StartManager runs the real binary as cfg's user, and stops it at the end of the test.
func StartManager(t *testing.T, cfg *rest.Config, args ...string) *Process {
	t.Helper()
	return StartNamed(t, strings.ReplaceAll(t.Name(), "/", "-"), cfg, args...)
}

// StartNamed is StartManager for tests with several users. Each needs a name of its own.
func StartNamed(t *testing.T, name string, cfg *rest.Config, args ...string) *Process {
	t.Helper()
	forbidAdministrator(t, cfg)
	path, err := cluster.Manager()
	NoError(t, err)
	kubeconfig, err := ControlPlane(t).WriteKubeconfig(name, cfg)
	NoError(t, err)
	p := &Process{Probes: FreeAddress(t), Metrics: FreeAddress(t)}
	p.Process, err = ControlPlane(t).StartProcess(name, path, slices.Concat([]string{
		"--kubeconfig", kubeconfig, "-v", "1", "--health-probe-bind-address", p.Probes, "--metrics-bind-address", p.Metrics,
	}, StandardArgs, args)...)
	NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the manager's log:\n%s", p.Tail(100))
		}
	})
	return p
}

// forbidAdministrator fails the test if a manager with cfg would run as the administrator: with the administrator's
// certificate, or with no credential at all, to which a proxy of kit/faults adds that certificate.
func forbidAdministrator(t testing.TB, cfg *rest.Config) {
	t.Helper()
	if cfg.BearerToken != "" {
		return
	}
	if block, _ := pem.Decode(cfg.CertData); block != nil {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err == nil && !slices.Contains(cert.Subject.Organization, user.SystemPrivilegedGroup) {
			return
		}
	}
	t.Fatal("this manager would run as the administrator: use ManagerConfig or RoleConfig, and the shipped roles")
}

// NewManager returns a manager that runs in this process as cfg's user.
func NewManager(t testing.TB, cfg *rest.Config, options manager.Options) manager.Manager {
	t.Helper()
	forbidAdministrator(t, cfg)
	unnamed := true // several managers run in one process
	options.Controller.SkipNameValidation = &unnamed
	options.Metrics, options.HealthProbeBindAddress = metricsserver.Options{BindAddress: "0"}, "0"
	mgr, err := manager.New(cfg, options)
	NoError(t, err)
	return mgr
}

// FreeAddress returns a loopback address that no program uses.
func FreeAddress(t *testing.T) string {
	t.Helper()
	address, err := cluster.FreeAddress()
	NoError(t, err)
	return address
}

// Output returns the output of the manager.
func (p *Process) Output(t *testing.T) string {
	t.Helper()
	text, err := p.Log()
	if err != nil {
		t.Error(err)
	}
	return text
}

// Answers waits until a page has status and contains each of parts.
func (p *Process) Answers(t *testing.T, address, path string, status int, parts ...string) {
	t.Helper()
	Eventually(t, path, func(ctx context.Context) error {
		got, body := cluster.Get(ctx, address, path)
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

// HasLed reports whether p has been elected. The text is from client-go.
func (p *Process) HasLed(t *testing.T) bool {
	t.Helper()
	return strings.Contains(p.Output(t), "Successfully acquired lease")
}

// CPUSeconds returns the CPU time that the manager has used.
func (p *Process) CPUSeconds(t *testing.T) (seconds float64) {
	t.Helper()
	Eventually(t, "/metrics", func(ctx context.Context) error {
		_, body := cluster.Get(ctx, p.Metrics, "/metrics")
		for line := range strings.Lines(body) {
			if rest, found := strings.CutPrefix(line, "process_cpu_seconds_total "); found {
				_, err := fmt.Sscan(rest, &seconds)
				return err
			}
		}
		return fmt.Errorf("no CPU time in: %s", body)
	})
	return seconds
}

// SecureGet is cluster.Get for a page that is served with TLS, with a token unless it is empty.
func SecureGet(ctx context.Context, address, path, token string) (int, string) {
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	return cluster.GetWith(ctx, trusting, "https://"+address+path, token)
}

// ReadAudit returns the complete records of an audit log.
func ReadAudit(t *testing.T, file string) []audit.Record {
	t.Helper()
	data, err := os.ReadFile(file)
	NoError(t, err)
	var records []audit.Record
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var record audit.Record
		NoError(t, json.Unmarshal(line, &record))
		records = append(records, record)
	}
	return records
}

// Plugin runs the real plugin as cfg's user. It returns what the plugin wrote to standard output and to standard error,
// and its exit code.
func Plugin(t *testing.T, cfg *rest.Config, args ...string) (out, aside string, exitCode int) {
	t.Helper()
	path, err := cluster.Plugin()
	NoError(t, err)
	kubeconfig, err := ControlPlane(t).WriteKubeconfig(strings.ReplaceAll(t.Name(), "/", "-")+"-plugin", cfg)
	NoError(t, err)
	command := exec.CommandContext(t.Context(), path, append(args[:len(args):len(args)], "--kubeconfig", kubeconfig)...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		exitCode = exit.ExitCode()
	}
	return stdout.String(), stderr.String(), exitCode
}

// RunPlugin runs the plugin, and returns all that it wrote and its exit code.
func RunPlugin(t *testing.T, cfg *rest.Config, args ...string) (output string, exitCode int) {
	t.Helper()
	out, aside, exitCode := Plugin(t, cfg, args...)
	return out + aside, exitCode
}

// Says fails unless output contains all parts and the exit code is want.
func Says(t *testing.T, output string, code, want int, parts ...string) {
	t.Helper()
	if code != want {
		t.Errorf("exit code %d, want %d:\n%s", code, want, output)
	}
	for _, part := range parts {
		if !strings.Contains(output, part) {
			t.Errorf("%q is not in:\n%s", part, output)
		}
	}
}

// ThroughFaults starts a proxy with rules between the manager's identity and the API server.
func ThroughFaults(t *testing.T, cfg *rest.Config, rules ...faults.Rule) *faults.Proxy {
	t.Helper()
	proxy, err := faults.Start(cfg, 1, rules...)
	NoError(t, err)
	t.Cleanup(func() {
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	return proxy
}
