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
	"maps"
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
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
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
	p := &Process{Probes: FreeAddress(t), Metrics: FreeAddress(t)}
	p.Process = Must(ControlPlane(t).StartProcess(name, Must(cluster.Manager())(t), slices.Concat([]string{
		"--kubeconfig", Kubeconfig(t, name, cfg), "-v", "1", "--health-probe-bind-address", p.Probes, "--metrics-bind-address", p.Metrics,
	}, StandardArgs, args)...))(t)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the manager's log:\n%s", p.Tail(100))
		}
	})
	return p
}

// Kubeconfig writes the configuration of a user to a file, and returns its path.
func Kubeconfig(t testing.TB, name string, cfg *rest.Config) string {
	t.Helper()
	return Must(ControlPlane(t).WriteKubeconfig(name, cfg))(t)
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
	return Must(manager.New(cfg, options))(t)
}

// Run runs mgr until the test ends.
func Run(t testing.TB, mgr manager.Manager) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// FreeAddress returns a loopback address that no program uses.
func FreeAddress(t *testing.T) string {
	t.Helper()
	return Must(cluster.FreeAddress())(t)
}

// Output returns the output of the manager.
func (p *Process) Output(t *testing.T) string {
	t.Helper()
	return Must(p.Log())(t)
}

// Answers waits until a page has status and contains each of parts.
func (p *Process) Answers(t *testing.T, address, path string, status int, parts ...string) {
	t.Helper()
	Eventually(t, path, func(ctx context.Context) error {
		got, body := cluster.Get(ctx, address, path)
		missing := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return strings.Contains(body, part) })
		return OrError(got == status && len(missing) == 0, "status %d, want %d; %q is not in: %s", got, status, missing, body)
	})
}

// CPUSeconds returns the CPU time that the manager has used.
func (p *Process) CPUSeconds(t *testing.T) (seconds float64) {
	t.Helper()
	Eventually(t, "/metrics", func(ctx context.Context) error {
		_, body := cluster.Get(ctx, p.Metrics, "/metrics")
		_, value, _ := strings.Cut(body, "\nprocess_cpu_seconds_total ")
		_, err := fmt.Sscan(value, &seconds)
		return err
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
	var records []audit.Record
	for line := range bytes.Lines(Must(os.ReadFile(file))(t)) {
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
	kubeconfig := Kubeconfig(t, strings.ReplaceAll(t.Name(), "/", "-")+"-plugin", cfg)
	command := exec.CommandContext(t.Context(), Must(cluster.Plugin())(t), append(args[:len(args):len(args)], "--kubeconfig", kubeconfig)...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); command.ProcessState == nil { // it did not start
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), command.ProcessState.ExitCode()
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
	proxy := Must(faults.Start(cfg, 1, rules...))(t)
	AtEnd(t, proxy.Stop)
	return proxy
}

// StartLoop runs the named controllers in process, or approver, signer and cleaner. Each has a manager of its own, with only the
// roles that are shipped for it.
func StartLoop(t testing.TB, opts csrenv.Options, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = []string{"approver", "signer", "cleaner"}
	}
	customize := opts.Customize
	for _, name := range names {
		opts.Customize = func(o *controllers.Options) {
			if customize != nil {
				customize(o)
			}
			only := map[string]controllers.Options{"approver": {Approver: o.Approver}, "signer": {Signer: o.Signer}, "cleaner": {Cleaner: o.Cleaner}}[name]
			o.Approver, o.Signer, o.Cleaner = only.Approver, only.Signer, only.Cleaner
		}
		StartLoopAs(t, RoleConfig(t, name), opts)
	}
}

// StartLoopAs runs the controllers of opts in one manager, as cfg's user, until the test ends.
func StartLoopAs(t testing.TB, cfg *rest.Config, opts csrenv.Options) {
	t.Helper()
	forbidAdministrator(t, cfg)
	if opts.CA == nil {
		opts.CA = ControlPlane(t).CA
	}
	opts.SkipRBAC = true
	AtEnd(t, Must(csrenv.Start(t.Context(), cfg, opts))(t).Stop)
}

// Counted returns the sum of a counter of the loops in this process over all series with labels.
func Counted(t testing.TB, counter string, labels map[string]string) int {
	t.Helper()
	sum := 0
	for _, family := range Must(metrics.Registry.Gather())(t) {
		for _, metric := range family.GetMetric() {
			found := map[string]string{}
			for _, label := range metric.GetLabel() {
				if _, wanted := labels[label.GetName()]; wanted {
					found[label.GetName()] = label.GetValue()
				}
			}
			if family.GetName() == counter && maps.Equal(found, labels) {
				sum += int(metric.GetCounter().GetValue())
			}
		}
	}
	return sum
}
