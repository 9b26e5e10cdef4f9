package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const header = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"

// load calls Load with args. If body is not empty, it first adds --config with a file that has body below the header.
func load(t *testing.T, body string, args ...string) (*config.Configuration, string) {
	t.Helper()
	if body != "" {
		args = append([]string{"--config=" + write(t, header+body)}, args...)
	}
	loaded, err := config.Load(args)
	if err != nil {
		return loaded, err.Error()
	}
	return loaded, ""
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

func TestLoad(t *testing.T) {
	t.Parallel()
	duration := func(n int) *metav1.Duration { value := seconds(n); return &value }
	for name, test := range map[string]struct {
		body string
		args []string
		want func(*config.Configuration)
	}{
		"defaults": {want: func(*config.Configuration) {}},
		"every flag": {
			args: []string{
				"--controllers=approver,-cleaner", "--kubeconfig=k", "--kube-api-qps=7.5", "--kube-api-burst=8",
				"--concurrent-approver-syncs=11", "--concurrent-signer-syncs=12", "--concurrent-cleaner-syncs=13",
				"--metrics-bind-address=0", "--health-probe-bind-address", "127.0.0.1:1", "-v=2",
				"--leader-elect=false", "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s",
				"--leader-elect-resource-name=lease", "--leader-elect-resource-namespace=ns", "--cluster-signing-duration=1h", "--signing-secret=ns/ca",
				"--metrics-secure", "--metrics-cert-dir=certs", "--self-check-interval=2s",
				"--audit-log-path=-", "--audit-log-maxsize=1", "--audit-log-maxbackup=2", "--audit-log-maxage=3",
			},
			want: func(c *config.Configuration) {
				c.Controllers, c.Kubeconfig, c.KubeAPIQPS, c.KubeAPIBurst = []string{"approver", "-cleaner"}, "k", 7.5, 8
				c.Concurrency = config.Concurrency{Approver: 11, Signer: 12, Cleaner: 13}
				c.MetricsBindAddress, c.HealthProbeBindAddress, c.Verbosity = "0", "127.0.0.1:1", 2
				c.LeaderElection = config.LeaderElection{LeaseDuration: seconds(4), RenewDeadline: seconds(3), RetryPeriod: seconds(1), ResourceName: "lease", ResourceNamespace: "ns"}
				c.Signing.Duration, c.Signing.Secret = seconds(3600), "ns/ca"
				c.MetricsSecure, c.MetricsCertDir, c.SelfCheck.Interval = true, "certs", seconds(2)
				c.Audit = config.Audit{Path: "-", MaxSize: 1, MaxBackups: 2, MaxAge: 3}
			},
		},
		"a file": {
			body: `
controllers: [signer, csrcleaner]
kubeAPIQPS: 20
dryRun: [approver]
nodeBlockList: ns/blocked
selfCheck: {bootstrapGroups: [joiners]}
requestLimits: {maxRequestBytes: 1, maxDERBytes: 2, maxSubjectAttributes: 3, maxNames: 4, maxExtensions: 5}
concurrency: {signer: 9}
leaderElection: {enabled: false}
approval: {denial: Permanent}
signing:
  duration: 2h
  minRSABits: 3072
  createIfMissing: true
  keyAlgorithm: ECDSAP384
  caDuration: 48h
  chain: None
  signers:
  - {name: example.com/a, certFile: c, keyFile: k, duration: 1h, minDuration: 30m, maxDuration: 3h, usages: [client auth], forbiddenSubjects: [CN=a*]}
cleaning:
  deletesPerSecond: 5
  retention: {pending: -1s}
  signers: [{name: example.com/a, retention: {approved: 5m}}]
`,
			want: func(c *config.Configuration) {
				c.Controllers, c.KubeAPIQPS, c.Concurrency.Signer, c.LeaderElection.Enabled = []string{"signer", "csrcleaner"}, 20, 9, false
				c.SelfCheck.BootstrapGroups = []string{"joiners"}
				c.RequestLimits = csr.Limits{RequestBytes: 1, DERBytes: 2, SubjectAttributes: 3, Names: 4, Extensions: 5}
				c.DryRun, c.NodeBlockList = []string{"approver"}, "ns/blocked"
				c.Approval.Denial, c.Signing.Duration, c.Signing.MinRSABits = "Permanent", seconds(7200), 3072
				c.Signing.CreateIfMissing, c.Signing.KeyAlgorithm, c.Signing.CADuration, c.Signing.Chain = true, "ECDSAP384", seconds(48*3600), "None"
				c.Signing.Signers = []config.Signer{{
					Name: "example.com/a", CA: config.CA{CertFile: "c", KeyFile: "k"}, Duration: duration(3600), MinDuration: duration(1800), MaxDuration: duration(3 * 3600),
					Usages: []certificatesv1.KeyUsage{"client auth"}, ForbiddenSubjects: []string{"CN=a*"},
				}}
				c.Cleaning = config.Cleaning{
					DeletesPerSecond: 5, Retention: config.Retention{Pending: duration(-1)},
					Signers: []config.SignerRetention{{Name: "example.com/a", Retention: config.Retention{Approved: duration(300)}}},
				}
			},
		},
		"flags override the file": {
			body: "controllers: [signer]\nkubeAPIBurst: 1\nverbosity: 3\n",
			args: []string{"--controllers=approver", "--controllers=cleaner", "--kube-api-burst=2"}, // given twice, both lists count
			want: func(c *config.Configuration) {
				c.Controllers, c.KubeAPIBurst, c.Verbosity = []string{"approver", "cleaner"}, 2, 3
			},
		},
		"a flag that equals the default overrides too": {
			body: "kubeAPIBurst: 1\nleaderElection: {enabled: false}\n",
			args: []string{"--kube-api-burst=30", "--leader-elect"},
			want: func(*config.Configuration) {},
		},
		"a flag completes a pair of the file": {
			body: "signing: {signers: [{name: kubernetes.io/kubelet-serving, certFile: c, duration: 1h}]}\n",
			args: []string{"--signing-secret=", "--cluster-signing-kubelet-serving-key-file=k"},
			want: func(c *config.Configuration) {
				c.Signing.Secret = ""
				c.Signing.Signers = []config.Signer{pairFor("kubernetes.io/kubelet-serving", "c", "k")}
				c.Signing.Signers[0].Duration = duration(3600)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := config.Default() // docs/reference/configuration.md has each default, and TestReferencePage compares them
			want.Signing.Secret = "kube-system/csr-signer"
			test.want(want)
			got, problem := load(t, test.body, append([]string{"--signing-secret=kube-system/csr-signer"}, test.args...)...)
			if problem != "" {
				t.Fatal(problem)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAPairForEach checks that each pair of flags is for the signer in its name, alone and beside the other pairs.
// kube-controller-manager shifts two of these labels in its errors.
func TestAPairForEach(t *testing.T) {
	t.Parallel()
	var all []string
	var want []config.Signer
	for middle, signer := range map[string]string{
		"kubelet-serving": "kubernetes.io/kubelet-serving", "kubelet-client": "kubernetes.io/kube-apiserver-client-kubelet",
		"kube-apiserver-client": "kubernetes.io/kube-apiserver-client",
	} {
		cert, key := "--cluster-signing-"+middle+"-cert-file", "--cluster-signing-"+middle+"-key-file"
		all, want = append(all, key+"="+middle+".key", cert+"="+middle+".crt"), append(want, pairFor(signer, middle+".crt", middle+".key"))
		check(t, map[string]loaded{
			middle + ", alone":          {args: []string{cert + "=c", key + "=k"}},
			middle + ", no key":         {args: []string{cert + "=c"}, want: []string{cert + `: Invalid value: "c": needs the key file that belongs to it`}},
			middle + ", no certificate": {args: []string{key + "=k"}, want: []string{key + `: Invalid value: "k": needs the certificate file that belongs to it`}},
			middle + ", one for all": {args: []string{cert + "=c", key + "=k", "--signing-secret=ns/ca"}, want: []string{
				"signing.signers[" + signer + `]: Invalid value: "files \"c\" and \"k\"": one of Kubernetes' signers can't have a ` +
					"CA of its own while there is one for all, Secret ns/ca: remove one of them"}},
		})
	}
	loaded, problem := load(t, "", all...)
	if diff := cmp.Diff(want, loaded.Signing.Signers, cmpopts.SortSlices(func(a, b config.Signer) bool { return a.Name < b.Name })); diff != "" || problem != "" {
		t.Errorf("signers (-want +got):\n%serror %s", diff, problem)
	}
}

// TestWarnings checks flags that do nothing, alone or in pairs, because the API refuses kubernetes.io/legacy-unknown (test/parity
// shows it), and metrics on loopback in a Pod.
func TestWarnings(t *testing.T) {
	t.Parallel()
	const cert, key, loopback = "--cluster-signing-legacy-unknown-cert-file", "--cluster-signing-legacy-unknown-key-file", "metrics"
	plain, _ := load(t, "", "--signing-secret=ns/ca")
	for _, test := range []struct {
		args  []string
		inPod bool
		want  []string // parts of the warnings
	}{
		{nil, false, nil},
		{[]string{cert + "=c", key + "=k"}, false, []string{cert + " does nothing", key + " does nothing"}},
		{[]string{key + "=k"}, false, []string{key + " does nothing"}},
		{nil, true, []string{loopback}},
		{[]string{"--metrics-bind-address=:8443"}, true, nil},
		{[]string{"--metrics-bind-address=0"}, true, nil},
	} {
		loaded, problem := load(t, "", append(test.args, "--signing-secret=ns/ca")...)
		got := loaded.Warnings(test.inPod)
		if len(got) != len(test.want) || problem != "" || !strings.Contains(strings.Join(got, "\n"), strings.Join(test.want[:min(1, len(test.want))], "")) {
			t.Errorf("%q: warnings %q, error %s", test.args, got, problem)
		}
		loaded.Retired = nil
		if diff := cmp.Diff(plain, loaded); diff != "" && !test.inPod {
			t.Errorf("%q do something:\n%s", test.args, diff)
		}
	}
	ignores, _ := load(t, "signing: {secret: ns/ca}\napproval: {rules: [{name: a, signerName: example.com/a, usages: [server auth], maxDuration: 1h, "+
		"allow: [names], conditions: [{expression: 'requester.username == object.name'}]}]}\n")
	if got := ignores.Warnings(false); len(got) != 1 || got[0] != "approval rule a allows names, but no condition reads request.names: every value is accepted" {
		t.Errorf("warnings %q", got)
	}
	if _, problem := load(t, "", cert+"=c", key+"=k"); !strings.Contains(problem, "no signing CA") {
		t.Errorf("they are a CA to sign with: %s", problem)
	}
	_, problem := load(t, "signing: {signers: [{name: kubernetes.io/legacy-unknown, secret: ns/ca}]}\n")
	if !strings.Contains(problem, "unknown signer of Kubernetes, or one that cannot be served") {
		t.Errorf("in a file: %s", problem)
	}
}

func pairFor(signer, cert, key string) config.Signer {
	return config.Signer{Name: signer, CA: config.CA{CertFile: cert, KeyFile: key}}
}

// TestExampleOfThePage loads the example of the configuration page.
func TestExampleOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "configuration.md"))
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if err != nil || len(examples) != 1 {
		t.Fatalf("%d examples, want 1, error %v", len(examples), err)
	}
	if _, err := config.Load([]string{"--config", write(t, examples[0][1])}); err != nil {
		t.Error(err)
	}
}

func TestBadFlagsAndFiles(t *testing.T) {
	t.Parallel()
	const ca = "--signing-secret=ns/ca"
	check(t, map[string]loaded{
		"not a number":                    {args: []string{ca, "--kube-api-qps=zz"}, want: []string{`invalid argument "zz" for "--kube-api-qps" flag: strconv.ParseFloat: parsing "zz": invalid syntax`}},
		"a value that begins with a dash": {args: []string{ca, "--kube-api-burst", "-1"}, want: []string{"--kube-api-burst: Invalid value: -1: must be 1 or more"}},
		"many at once": {
			args: []string{"--kube-api-qps=zz", "--concurrent-cleaner-syncs=0", "--leader-elect-retry-period=x", "--kube-api-qps=0"},
			want: []string{
				`invalid argument "zz" for "--kube-api-qps" flag: strconv.ParseFloat: parsing "zz": invalid syntax`, `invalid argument "x" for "--leader-elect-retry-period" flag: time: invalid duration "x"`,
				"--kube-api-qps: Invalid value: 0: must be positive, or negative for no limit", "--concurrent-cleaner-syncs: Invalid value: 0: must be 1 or more", noCA,
			},
		},
		"a value that the file gave stays": {args: []string{ca, "--kube-api-burst=x"}, body: "kubeAPIBurst: 0\n", want: []string{
			`invalid argument "x" for "--kube-api-burst" flag: strconv.ParseInt: parsing "x": invalid syntax`, "kubeAPIBurst: Invalid value: 0: must be 1 or more",
		}},

		"empty file":    {file: "\n", want: []string{`--config: FILE: want apiVersion config.csr-controller-manager.io/v1alpha1 and kind ControllerManagerConfiguration, found "" and ""`}},
		"wrong version": {file: strings.Replace(header, "v1alpha1", "v1", 1), want: []string{`--config: FILE: want apiVersion config.csr-controller-manager.io/v1alpha1 and kind ControllerManagerConfiguration, found "config.csr-controller-manager.io/v1" and "ControllerManagerConfiguration"`}},
		"unknown field": {body: "signing: {secrets: a/b}\n", want: []string{`--config: FILE: error unmarshaling JSON: while decoding JSON: json: unknown field "secrets"`}},
		"field twice":   {body: "verbosity: 1\nverbosity: 2\n", want: []string{"--config: FILE: error converting YAML to JSON: yaml: unmarshal errors:\n  line 4: key \"verbosity\" already set in map"}},
		"unknown flag":  {args: []string{ca, "--nonsense", "--kube-api-burst=0"}, want: []string{"unknown flag: --nonsense"}},
		"a text":        {file: "hello\n", want: []string{"--config: FILE: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal string into Go value of type config.Configuration"}},
		"no such file":  {args: []string{"--config=testdata/none.yaml"}, want: []string{"--config: open testdata/none.yaml: no such file or directory"}},
		"a folder":      {args: []string{"--config=."}, want: []string{"--config: read .: is a directory"}},
	})
}
