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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const header = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"

// load calls Load with args. If body is not empty, it first adds --config with a file that has body below the header.
func load(t *testing.T, body string, args ...string) (*config.Configuration, string) {
	t.Helper()
	if body != "" {
		args = append([]string{"--config=" + write(t, header+body)}, args...)
	}
	loaded, err := config.Load(args, cel.New)
	if err != nil {
		return loaded, err.Error()
	}
	return loaded, ""
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	expect.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

func TestLoad(t *testing.T) {
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
requestLimits: {maxRequestBytes: 1, maxDERBytes: 2, maxSubjectAttributes: 3, maxNames: 4, maxExtensions: 5, maxEntries: 6, maxObjectBytes: 7}
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
				c.RequestLimits = csr.Limits{RequestBytes: 1, DERBytes: 2, SubjectAttributes: 3, Names: 4, Extensions: 5, Entries: 6, ObjectBytes: 7}
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
		want := config.Default() // docs/reference/configuration.md has each default, and TestReferencePage compares them
		want.Signing.Secret = "kube-system/csr-signer"
		test.want(want)
		got, problem := load(t, test.body, append([]string{"--signing-secret=kube-system/csr-signer"}, test.args...)...)
		expect.Equal(t, name+": error", problem, "")
		expect.Equal(t, name, got, want)
	}
}

// TestAPairForEach checks that each pair of flags is for the signer in its name, alone and beside the other pairs.
// kube-controller-manager shifts two of these labels in its errors.
func TestAPairForEach(t *testing.T) {
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
	expect.Equal(t, "signers", loaded.Signing.Signers, want, cmpopts.SortSlices(func(a, b config.Signer) bool { return a.Name < b.Name }))
	expect.Equal(t, "error", problem, "")
}

// TestWarnings checks flags that do nothing, alone or in pairs, because the API refuses kubernetes.io/legacy-unknown (test/parity
// shows it), and metrics on loopback in a Pod.
func TestWarnings(t *testing.T) {
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
	expect.True(t, strings.Contains(problem, "unknown signer of Kubernetes, or one that cannot be served"), "in a file: %s", problem)
}

func pairFor(signer, cert, key string) config.Signer {
	return config.Signer{Name: signer, CA: config.CA{CertFile: cert, KeyFile: key}}
}

// TestExampleOfThePage loads the example of the configuration page.
func TestExampleOfThePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "configuration.md"))
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if err != nil || len(examples) != 1 {
		t.Fatalf("%d examples, want 1, error %v", len(examples), err)
	}
	if _, err := config.Load([]string{"--config", write(t, examples[0][1])}, cel.New); err != nil {
		t.Error(err)
	}
}

func TestBadFlagsAndFiles(t *testing.T) {
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
		"unknown field": {body: "signing: {secrets: a/b}\n", want: []string{`--config: FILE: unknown field "signing.secrets"`}},
		"two of them":   {body: "Verbosity: 1\nsigning: {secrets: a/b}\n", want: []string{`--config: FILE: unknown field "Verbosity"`, `unknown field "signing.secrets"`}},
		"not a text":    {body: "approval: {nodeClient: {clusterName: 1.10}}\n", want: []string{"--config: FILE: json: cannot unmarshal number into Go struct field NodeClient.approval.nodeClient.clusterName of type string: write it in quotes"}},
		"no unit":       {body: "cleaning: {retention: {pending: 5}}\n", want: []string{"--config: FILE: json: cannot unmarshal number into Go struct field Retention.cleaning.retention.pending of type string: write it in quotes"}},
		"field twice":   {body: "verbosity: 1\nverbosity: 2\n", want: []string{"--config: FILE: yaml: unmarshal errors:\n  line 4: key \"verbosity\" already set in map"}},
		"unknown flag":  {args: []string{ca, "--nonsense", "--kube-api-burst=0"}, want: []string{"unknown flag: --nonsense"}},
		"a text":        {file: "hello\n", want: []string{"--config: FILE: json: cannot unmarshal string into Go value of type config.Configuration"}},
		"no such file":  {args: []string{"--config=testdata/none.yaml"}, want: []string{"--config: open testdata/none.yaml: no such file or directory"}},
		"a folder":      {args: []string{"--config=."}, want: []string{"--config: read .: is a directory"}},
	})
}

const (
	secret = "signing: {secret: ns/ca}\n"
	noCA   = "signing: Required value: no signing CA: set --signing-secret, or --cluster-signing-cert-file and --cluster-signing-key-file, " +
		"or one for each signer; or exclude the signer with --controllers=*,-signer"
	tooShort = " is too short: certificates are backdated by 5m0s and clients renew after as little as 70% of the validity, " +
		"so a certificate of 2m9s or less is due for renewal as soon as it is issued"
)

// loaded is a configuration that is loaded, and its errors.
type loaded struct {
	body string // below the header
	args []string
	want []string // accepted when empty. FILE stands for the file's name.
	file string   // in place of the header and body
}

// check loads each configuration, and compares its errors.
func check(t *testing.T, all map[string]loaded) {
	t.Helper()
	for name, test := range all {
		if test.body != "" {
			test.file = header + test.body
		}
		if test.file != "" {
			test.file = write(t, test.file)
			test.args = append([]string{"--config=" + test.file}, test.args...)
		}
		_, err := config.Load(test.args, cel.New)
		expect.Error(t, name, err, strings.ReplaceAll(strings.Join(test.want, "\n"), "FILE", test.file))
	}
}

// file is a configuration without flags.
func file(body string, want ...string) loaded { return loaded{body: body, want: want} }

// flag is a configuration with a CA and a flag.
func flag(arg string, want ...string) loaded {
	return loaded{body: secret, args: []string{arg}, want: want}
}

func TestValidate(t *testing.T) {
	custom := func(more string) string {
		return "signing: {signers: [{name: example.com/a, secret: ns/ca, usages: [client auth]" + more + "}]}\n"
	}
	check(t, map[string]loaded{
		"a Secret":          file(secret),
		"files":             {args: []string{"--cluster-signing-cert-file=c", "--cluster-signing-key-file=k"}},
		"no address at all": {body: secret, args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"}},
		"leader election is off, whatever its times": {body: secret, args: []string{"--leader-elect=false", "--leader-elect-lease-duration=0", "--leader-elect-resource-name="}},

		"no CA":                          {want: []string{noCA}},
		"unknown controller":             flag("--controllers=*,nonsense", `--controllers: Invalid value: "nonsense": unknown controller: want approver, signer, cleaner or rotation`),
		"no controller at all":           flag("--controllers=-signer", `--controllers: Invalid value: "-signer": no controller is left to run`),
		"rotation alone":                 {body: "rotation: {enabled: true}\n" + secret, args: []string{"--controllers=rotation"}},
		"dry run of what is not":         flag("--dry-run=signer,-cleaner", `--dry-run: Invalid value: "-cleaner": unknown controller: want approver, signer or cleaner`),
		"a home, and not what it serves": flag("--home-kubeconfig=h", "kubeconfig: Required value: name the served cluster, because the home is another one"),
		"a home, and what it serves":     {body: secret, args: []string{"--home-kubeconfig=h", "--kubeconfig=k"}},
		"a home, and a block list": file("home: {kubeconfig: h}\nkubeconfig: k\nnodeBlockList: a/b\nblockListEnforcement: {enabled: true}\n"+secret,
			"blockListEnforcement.apiServers: Required value: list all API servers: with a home of its own, the manager does not believe the EndpointSlices of the served cluster"),
		"block list of no name": file("nodeBlockList: blocked\n"+secret, `nodeBlockList: Invalid value: "blocked": want namespace/name`),
		"QPS of zero":           file("kubeAPIQPS: 0\n"+secret, "kubeAPIQPS: Invalid value: 0: must be positive, or negative for no limit"),
		"burst":                 flag("--kube-api-burst=0", "--kube-api-burst: Invalid value: 0: must be 1 or more"),
		"metrics address":       flag("--metrics-bind-address=8080", `--metrics-bind-address: Invalid value: "8080": want host:port, or 0 to switch it off`),
		"certificate, no TLS":   flag("--metrics-cert-dir=x", `--metrics-cert-dir: Invalid value: "x": has no effect without --metrics-secure`),
		"audit log":             file(secret+"audit: {maxSize: 0, maxBackups: -1, maxAge: -1}\n", "audit.maxSize: Invalid value: 0: must be 1 or more", "audit.maxBackups: Invalid value: -1: must be 0 or more", "audit.maxAge: Invalid value: -1: must be 0 or more"),
		"self-check":            file(secret+"selfCheck: {interval: -1s, bootstrapGroups: [], nodeGroups: []}\n", `selfCheck.interval: Invalid value: "-1s": must be positive, or 0 to switch the check off`, "selfCheck.bootstrapGroups: Required value: list the groups of the users that join nodes", "selfCheck.nodeGroups: Required value: list the groups of the nodes"),
		"retry period":          flag("--leader-elect-retry-period=0", `--leader-elect-retry-period: Invalid value: "0s": must be positive`),
		"renew deadline":        flag("--leader-elect-renew-deadline=600ms", `--leader-elect-renew-deadline: Invalid value: "600ms": must be more than 1.2 times the retry period`),
		"lease duration":        flag("--leader-elect-lease-duration=10s", `--leader-elect-lease-duration: Invalid value: "10s": must be more than the renew deadline`),
		"lease without name":    flag("--leader-elect-resource-name=", "--leader-elect-resource-name: Required value: the Lease needs a name"),
		"denial":                file("approval: {denial: Always}\n"+secret, `approval.denial: Unsupported value: "Always": supported values: "Never", "Permanent"`),
		"shortest over longest": file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, minDuration: 2h, maxDuration: 1h}]}\n",
			`signing.signers[kubernetes.io/kubelet-serving].minDuration: Invalid value: "2h0m0s": must not be more than maxDuration`),
		"custom clients of the cluster's CA": file("signing: {secret: ns/ca, signers: [{name: example.com/a, secret: ns/ca, usages: [client auth]}]}\n",
			"signing.signers[example.com/a].forbiddenSubjects: Required value: this signer permits client certificates and shares the CA of one of Kubernetes' signers, "+
				"so whoever may approve for it can make any user: say which subjects it never issues, or give it a CA of its own"),
		"forbidden for all": file("signing: {secret: ns/ca, forbiddenSubjects: [nonsense]}\n",
			`signing.forbiddenSubjects[0]: Invalid value: "nonsense": "nonsense" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`),
		"another lock": flag("--leader-elect-resource-lock=endpoints", `invalid argument "endpoints" for "--leader-elect-resource-lock" flag: want leases`),
		"gone at once": file("cleaning: {retention: {approved: 0s}, signers: [{name: example.com/a, retention: {pending: 1ms}}]}\n"+secret,
			`cleaning.retention.approved: Invalid value: "0s": must be 1s or more, or negative to keep requests forever: shorter times delete them unseen`,
			`cleaning.signers[example.com/a].retention.pending: Invalid value: "1ms": must be 1s or more, or negative to keep requests forever: shorter times delete them unseen`),
		"to be cleaned twice": file("cleaning: {signers: [{name: example.com/a}, {name: example.com/a}]}\n"+secret, `cleaning.signers[example.com/a]: Duplicate value: "example.com/a"`),
		"Secret of no name":   {args: []string{"--signing-secret=ns/"}, want: []string{`--signing-secret: Invalid value: "ns/": want namespace/name`}},
		"Secret and files":    {args: []string{"--signing-secret=ns/ca", "--cluster-signing-cert-file=c", "--cluster-signing-key-file=k"}, want: []string{`--signing-secret: Invalid value: "ns/ca": excludes the files: remove one of them`}},
		"certificate only":    {args: []string{"--cluster-signing-cert-file=c"}, want: []string{`--cluster-signing-cert-file: Invalid value: "c": needs the key file that belongs to it`}},
		"rotation": file("rotation: {oldLifetimeCap: 2m, settleFor: 0s}\n"+secret,
			`rotation.oldLifetimeCap: Invalid value: "2m0s": 2m0s`+tooShort, `rotation.settleFor: Invalid value: "0s": must be positive`),
		"rotation of files": file("rotation: {enabled: true}\nsigning: {certFile: c, keyFile: k, signers: [{name: example.com/a, certFile: d, keyFile: e, usages: [any]}]}\n",
			`signing.certFile: Invalid value: "c": with rotation.enabled, the CA must be in a Secret: a CA in files cannot be rotated`,
			`signing.signers[example.com/a].certFile: Invalid value: "d": with rotation.enabled, the CA must be in a Secret: a CA in files cannot be rotated`),
		"lifetime":        flag("--cluster-signing-duration=2m", `--cluster-signing-duration: Invalid value: "2m0s": 2m0s`+tooShort),
		"RSA bits, most":  file("signing: {secret: ns/ca, minRSABits: 8193}\n", "signing.minRSABits: Invalid value: 8193: longer RSA keys than 8192 bits are never permitted"),
		"RSA bits":        file("signing: {secret: ns/ca, minRSABits: 1023}\n", "signing.minRSABits: Invalid value: 1023: must be 1024 or more"),
		"signer twice":    file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving}, {name: kubernetes.io/kubelet-serving}]}\n", `signing.signers[kubernetes.io/kubelet-serving]: Duplicate value: "kubernetes.io/kubelet-serving"`),
		"signer, no name": file("signing: {secret: ns/ca, signers: [{secret: ns/b, usages: [any]}]}\n", `signing.signers[].name: Invalid value: "": want domain/name, such as example.com/client`),
		"signer of Kubernetes that nobody serves": file("signing: {signers: [{name: kubernetes.io/kube-apiserver-serving, secret: ns/ca, usages: [server auth]}]}\n",
			`signing.signers[kubernetes.io/kube-apiserver-serving].name: Invalid value: "kubernetes.io/kube-apiserver-serving": unknown signer of Kubernetes, or one that cannot be served`),
		"wildcards of Kubernetes' own": file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, allowWildcards: true}]}\n",
			"signing.signers[kubernetes.io/kubelet-serving].allowWildcards: Invalid value: true: has an effect only for custom signers: Kubernetes' signers always permit wildcards"),
		"custom signer, no CA":       file("signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [any]}]}\n", "signing.signers[example.com/a]: Required value: needs a CA: secret, or certFile and keyFile"),
		"custom signer, no usages":   file("signing: {signers: [{name: example.com/a, secret: ns/ca}]}\n", "signing.signers[example.com/a].usages: Required value: list the usages that this signer permits"),
		"custom signer, bad usage":   file("signing: {signers: [{name: example.com/a, secret: ns/ca, usages: [any, magic]}]}\n", `signing.signers[example.com/a].usages: Invalid value: ["magic"]: no such usage`),
		"signer's lifetime":          file(custom(", duration: 1m"), `signing.signers[example.com/a].duration: Invalid value: "1m0s": 1m0s`+tooShort),
		"signer's least":             file(custom(", minDuration: 0s"), `signing.signers[example.com/a].minDuration: Invalid value: "0s": 0s`+tooShort),
		"longest under the lifetime": file(custom(", duration: 2h, maxDuration: 1h"), `signing.signers[example.com/a].maxDuration: Invalid value: "1h0m0s": must not be less than the duration`),
		"bad subject":                file(custom(", forbiddenSubjects: [CN=a, OU=b]"), `signing.signers[example.com/a].forbiddenSubjects[1]: Invalid value: "OU=b": "OU=b" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`),
		"Kubernetes' signer, usages": file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, usages: [any]}]}\n", "signing.signers[kubernetes.io/kubelet-serving].usages: Forbidden: Kubernetes' signers have fixed rules"),
		"Kubernetes' signer, no CA":  file("signing: {signers: [{name: kubernetes.io/kubelet-serving}]}\n", "signing.signers[kubernetes.io/kubelet-serving]: Required value: needs a CA: secret, or certFile and keyFile", noCA),
		"signer's longest": file(custom(", maxDuration: -1h"),
			`signing.signers[example.com/a].maxDuration: Invalid value: "-1h0m0s": -1h0m0s`+tooShort),

		"names of every kind": file(custom(`, allowedNames: [a.svc, "*.b.svc", 10.0.0.1, 10.9.0.0/16, "spiffe://a/*"]`)),
		"a bad name": file(custom(`, allowedNames: [a.svc, "*"]`), `signing.signers[example.com/a].allowedNames[1]: Invalid value: "*": `+
			`"*" is not an allowed name: want a DNS name, *.suffix, an IP address, a CIDR, a URI or an e-mail address`),
		"nothing that could be issued": file("signing: {signers: [{name: example.com/a, secret: ns/a, usages: [digital signature, key encipherment]}]}\n",
			`signing.signers[example.com/a].usages: Invalid value: ["digital signature","key encipherment"]: none is an extended key usage, `+
				"such as server auth, and without one a certificate is refused: add one, or set allowNoExtKeyUsage"),
		"all usages for Kubernetes' signers": file("signing: {secret: ns/a, signers: [{name: kubernetes.io/kubelet-serving, allowNoExtKeyUsage: true}]}\n",
			"signing.signers[kubernetes.io/kubelet-serving].allowNoExtKeyUsage: Forbidden: Kubernetes' signers have fixed rules"),
		"names for Kubernetes' signers": file("signing: {secret: ns/a, signers: [{name: kubernetes.io/kubelet-serving, allowedNames: [a]}]}\n",
			"signing.signers[kubernetes.io/kubelet-serving].allowedNames: Forbidden: Kubernetes' signers have fixed rules"),
	})
}

func TestControllers(t *testing.T) {
	running := func(on func(config.Controller) bool) (all string) {
		for _, name := range []config.Controller{"approver", "signer", "cleaner"} {
			if on(name) {
				all += string(name[:1])
			}
		}
		return all
	}
	for list, want := range map[string][2]string{ // those that run, and those in a dry run, where a dash has no meaning
		"": {}, "*": {"asc", "asc"}, "*,-signer": {"ac", "asc"}, "-signer,*": {"ac", "asc"}, "-signer,signer": {"", "s"}, "Signer": {},
		"signer,-signer": {"s", "s"}, "signer,-signer,*": {"asc", "asc"}, "-approver,cleaner": {"c", "c"}, // the first one decides
		"csrapproving": {"a", "a"}, "*,-csrcleaner": {"as", "asc"}, "csrsigning,-certificatesigningrequest-signing-controller": {"s", "s"},
		"certificatesigningrequest-approving-controller,certificatesigningrequest-cleaner-controller": {"ac", "ac"},
	} {
		c := &config.Configuration{Controllers: strings.Split(list, ","), DryRun: strings.Split(list, ",")}
		expect.Equal(t, list, [2]string{running(c.Enabled), running(c.DryRuns)}, want)
	}
}

// TestValidateCA checks the fields that describe a CA, in addition to its location.
func TestValidateCA(t *testing.T) {
	const (
		here    = "Forbidden: needs a secret or files of the same entry"
		created = "Forbidden: has an effect only with createIfMissing"
		same    = "names the same CA as an earlier entry, with another chain, createIfMissing, keyAlgorithm or caDuration: use the same values"
	)
	one := func(settings string) string {
		return "signing: {signers: [{name: example.com/a, usages: [server auth], " + settings + "}]}\n"
	}
	check(t, map[string]loaded{
		"everything":         {body: "signing: {secret: ns/ca, createIfMissing: true, keyAlgorithm: MLDSA65, caDuration: 48h, chain: WithRoot}\n"},
		"one CA named twice": {body: "signing: {secret: ns/ca, chain: None, signers: [{name: example.com/a, usages: [server auth], secret: ns/ca, chain: None}]}\n"},

		"files are not made":    file(one("certFile: c, keyFile: k, createIfMissing: true"), "signing.signers[example.com/a].createIfMissing: Forbidden: the manager creates only Secrets, not files"),
		"duration, not made":    file("signing: {secret: ns/ca, caDuration: 1h}\n", "signing.caDuration: "+created),
		"unknown algorithm":     file(one("secret: ns/a, createIfMissing: true, keyAlgorithm: DSA"), `signing.signers[example.com/a].keyAlgorithm: Unsupported value: "DSA": supported values: "ECDSAP256", "ECDSAP384", "RSA3072", "RSA4096", "ED25519", "MLDSA44", "MLDSA65", "MLDSA87"`),
		"unknown chain":         file("signing: {secret: ns/ca, chain: none}\n", `signing.chain: Unsupported value: "none": supported values: "Intermediates", "None", "WithRoot"`),
		"too short":             file("signing: {secret: ns/ca, createIfMissing: true, caDuration: -1h}\n", `signing.caDuration: Invalid value: "-1h0m0s": -1h0m0s`+tooShort),
		"settings without a CA": file("signing: {chain: None, createIfMissing: true, signers: [{name: example.com/a, usages: [server auth], secret: ns/a}]}\n", "signing.chain: "+here, "signing.createIfMissing: "+here),
		"one CA in two ways":    file("signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [server auth], secret: ns/ca, chain: None}]}\n", `signing.signers[example.com/a]: Invalid value: "Secret ns/ca": `+same),
		"a CA of two is made": file("signing: {signers: [{name: example.com/a, usages: [any], secret: ns/a, createIfMissing: true}, "+
			"{name: example.com/b, usages: [any], secret: ns/a}]}\n", `signing.signers[example.com/b]: Invalid value: "Secret ns/a": `+same),
		"still the cluster's CA": file("signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [client auth], secret: ns/ca, chain: None}]}\n",
			`signing.signers[example.com/a].forbiddenSubjects: Required value: this signer permits client certificates and shares the CA of one of Kubernetes' signers, `+
				"so whoever may approve for it can make any user: say which subjects it never issues, or give it a CA of its own",
			`signing.signers[example.com/a]: Invalid value: "Secret ns/ca": `+same),
	})
}

// TestRemovedFieldsSayWhatToDoInstead checks the errors about fields that earlier versions had.
func TestRemovedFieldsSayWhatToDoInstead(t *testing.T) {
	const (
		superseded = "cleaning.supersededAfter was removed: requests are deleted after cleaning.retention.pending; delete this field"
		apiServers = "signing.apiServers was removed: the signer reads which CAs the API servers trust from the ConfigMaps " +
			"extension-apiserver-authentication and kube-root-ca.crt in kube-system; delete this field"
	)
	check(t, map[string]loaded{
		"several, one without a value": file("signing: {secret: ns/ca, apiServers: }\ncleaning: {supersededAfter: 30m}\n", "--config: FILE: "+superseded+"\n"+apiServers),
		"the same name at the top":     file("supersededAfter: 30m\n"+secret, `--config: FILE: unknown field "supersededAfter"`),
		"a section without any value":  file("cleaning:\nunknown: 1\n"+secret, `--config: FILE: unknown field "unknown"`),
	})
}

const rows = "inventory: {sources: [{static: {rows: [{name: a}]}}, {node: {}}]}"

func TestNodeClientMistakes(t *testing.T) {
	const own = "the inventory openshift has fixed rules: set cluster-api or sources to use this field"
	const useless = "has no effect without inventory or requireTokenBinding"
	of := func(approval string, want ...string) loaded {
		for i := range want {
			want[i] = "approval." + want[i]
		}
		return loaded{body: secret + "approval: {" + approval + "}\n", want: want}
	}
	check(t, map[string]loaded{
		"every field": of(`
  nodeClient: {inventory: sources, joinWindow: {before: 0s, after: 1h}, maxRequestAge: 5m, rejoin: true, certificateLifetime: 24h,
    requireTokenBinding: true, bootstrapUsers: [a]},
  inventory: {sources: [{static: {configMap: ns/nodes}}, {static: {rows: [{namePattern: "worker-[0-9]+"}]}}, {node: {}}, {machine: {
    group: example.com, version: v1, kind: Host, namespace: ns, selector: a=b, nodeRefPath: .a, addressesPath: .b, namePath: .c,
    nameTypes: [Hostname], createdPath: .d}}]}`),
		"cluster-api":                of("nodeClient: {inventory: cluster-api, clusterName: lab, rejoin: true}"),
		"cluster-api of a namespace": of("nodeClient: {inventory: cluster-api, clusterName: fleet/lab}"),
		"no name of a cluster":       of("nodeClient: {inventory: cluster-api, clusterName: 'a,b'}", `nodeClient.clusterName: Invalid value: "a,b": want name or namespace/name`),
		"a cluster of no namespace":  of("nodeClient: {inventory: cluster-api, clusterName: /lab}", `nodeClient.clusterName: Invalid value: "/lab": want name or namespace/name`),
		"a window that is negative":  of("nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {after: -1s}}", `nodeClient.joinWindow.after: Invalid value: "-1s": must not be negative`),
		"static without rows":        of("nodeClient: {inventory: static}", `nodeClient.inventory: Invalid value: "static": approval.inventory.sources has no static source`),
		"cluster-api of any cluster": of("nodeClient: {inventory: cluster-api}", `nodeClient.clusterName: Required value: name the Cluster whose Machines are this cluster's nodes, as name or namespace/name: the Machines of other clusters are none of them`),
		"a cluster for openshift":    of("nodeClient: {inventory: openshift, clusterName: lab}", `nodeClient.clusterName: Invalid value: "lab": has an effect only with the inventory cluster-api, and without a machine source`),
		"sources":                    of("nodeClient: {inventory: sources}, " + rows),
		"an age for nothing":         of("nodeClient: {maxRequestAge: 5m}", `nodeClient.maxRequestAge: Invalid value: "5m0s": `+useless),
		"a window for nothing":       of("nodeClient: {joinWindow: {after: 1h}}", `nodeClient.joinWindow: Invalid value: "before 10s, after 1h0m0s": has no effect without inventory: the creation of a machine is not known then`),
		"unknown inventory":          of("nodeClient: {inventory: nodes}", `nodeClient.inventory: Unsupported value: "nodes": supported values: "", "sources", "static", "cluster-api", "openshift"`),
		"sources that know nothing":  of("nodeClient: {inventory: sources}", `nodeClient.inventory: Invalid value: "sources": approval.inventory.sources has no source other than node`),
		"window before":              of("nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {before: -1s}}", `nodeClient.joinWindow.before: Invalid value: "-1s": must not be negative`),
		"age":                        of("nodeClient: {inventory: cluster-api, clusterName: lab, maxRequestAge: 0s}", `nodeClient.maxRequestAge: Invalid value: "0s": must be positive`),
		"lifetime for nothing":       of("nodeClient: {certificateLifetime: 1h}", `nodeClient.certificateLifetime: Invalid value: "1h0m0s": has no effect without rejoin`),
		"nothing that could rejoin":  of("nodeClient: {rejoin: true}", `nodeClient.rejoin: Invalid value: true: `+useless),
		"openshift with other rules": of("nodeClient: {inventory: openshift, rejoin: true, requireTokenBinding: true, bootstrapUsers: [a]}",
			`nodeClient.requireTokenBinding: Invalid value: true: `+own, `nodeClient.rejoin: Invalid value: true: `+own, `nodeClient.bootstrapUsers: Invalid value: ["a"]: `+own),
		"not an address": of("kubeletServing: {reserved: [010.0.0.1, 10.0.0.300]}",
			`kubeletServing.reserved[0]: Invalid value: "010.0.0.1": want a name, an address or a CIDR`,
			`kubeletServing.reserved[1]: Invalid value: "10.0.0.300": want a name, an address or a CIDR`),
		"two kinds in one":                             of("inventory: {sources: [{node: {}, static: {rows: []}}]}", `inventory.sources[0]: Required value: want exactly one kind of source`),
		"machines of no kind":                          of("inventory: {sources: [{machine: {group: a}}]}", `inventory.sources[0].machine.kind: Required value: name the kind of the machine objects`),
		"rows and a map":                               of("inventory: {sources: [{static: {rows: [], configMap: a/b}}]}", `inventory.sources[0].static: Required value: want configMap or rows`),
		"a webhook without TLS, and of no CA":          of("inventory: {sources: [{webhook: {url: 'http://a'}}]}", "inventory.sources[0].webhook: Invalid value: url: want https://HOST\ncaFile: set the file with the CA of the server"),
		"an API server's node that anybody can become": of("kubeletServing: {enabled: true, apiServerNodes: [a]}", "kubeletServing.apiServerNodes: Invalid value: \"a\": every holder of a bootstrap token could become such a node: set nodeClient.inventory or nodeClient.requireTokenBinding too"),
		"openshift with other sources":                 of("nodeClient: {inventory: openshift}, "+rows, `nodeClient.inventory: Invalid value: "openshift": excludes sources other than OpenShift's Machines: leave approval.inventory.sources at node, or set sources`),
		"half a limit":                                 of("limit: {burst: 1}", `limit: Invalid value: "burst 1, perHour 0": both must be positive, or both 0 for no limit`),
		"a bad row":                                    of("inventory: {sources: [{static: {rows: [{}]}}]}", `inventory.sources[0].static.rows[0]: Required value: set either name or namePattern`),
	})
}

func TestApprovalRuleMistakes(t *testing.T) {
	of := func(approval string, want ...string) loaded {
		return loaded{body: secret + "approval: {" + approval + "}\n", want: want}
	}
	const full = "usages: [server auth], maxDuration: 1h, allow: [names]"
	check(t, map[string]loaded{
		"presets": of(`rules: [{name: a, signerName: example.com/a, preset: serviceNames, clusterDomain: lab},
    {name: b, signerName: example.com/a, preset: spiffe, trustDomain: a.b}, {name: c, signerName: kubernetes.io/kube-apiserver-client, preset: ownIdentity, expiryExtra: a/b}],
  tests: [{request: x, accepts: [a]}, {request: "y"}]`),
		"conditions": of("rules: [{name: a, signerName: example.com/a, " + full + ", allowWildcards: true, conditions: [{expression: 'true', message: m}]}]"),
		"every mistake": of("rules: [{name: a, signerName: a, "+full+", conditions: [{expression: 'request.nmes == []'}]}, {name: a, signerName: example.com/a, preset: x}], tests: [{accepts: [b]}]",
			`approval.rules[a].signerName: Invalid value: "a": want domain/name, such as example.com/client`,
			`approval.rules[a].conditions[0].expression: Invalid value: "request.nmes == []": line 1, column 8: undefined field 'nmes'`,
			`approval.rules[a]: Duplicate value: "a"`,
			`approval.rules[a].preset: Unsupported value: "x": supported values: "serviceNames", "spiffe", "ownIdentity"`,
			`approval.tests[0].request: Required value: name a request in the files of rules test`,
			`approval.tests[0].accepts[0]: Invalid value: "b": is not one of approval.rules`),
		"a signer of kubelets": of("rules: [{name: a, signerName: kubernetes.io/kubelet-serving, preset: serviceNames}]",
			`approval.rules[a].signerName: Invalid value: "kubernetes.io/kubelet-serving": a signer of Kubernetes accepts only the preset ownIdentity`),
	})
}
