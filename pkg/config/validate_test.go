package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, args := "", test.args
			if test.body != "" {
				test.file = header + test.body
			}
			if test.file != "" {
				test.file = write(t, test.file)
				args = append([]string{"--config=" + test.file}, args...)
			}
			if _, err := config.Load(args); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(strings.ReplaceAll(strings.Join(test.want, "\n"), "FILE", test.file), got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// file is a configuration without flags.
func file(body string, want ...string) loaded { return loaded{body: body, want: want} }

// flag is a configuration with a CA and a flag.
func flag(arg string, want ...string) loaded {
	return loaded{body: secret, args: []string{arg}, want: want}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	custom := func(more string) string {
		return "signing: {signers: [{name: example.com/a, secret: ns/ca, usages: [client auth]" + more + "}]}\n"
	}
	check(t, map[string]loaded{
		"a Secret":                file(secret),
		"files":                   {args: []string{"--cluster-signing-cert-file=c", "--cluster-signing-key-file=k"}},
		"no signer, no CA":        {args: []string{"--controllers=*,-signer"}},
		"no address at all":       {body: secret, args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"}},
		"a custom signer alone":   file(custom("")),
		"the shortest lifetime":   flag("--cluster-signing-duration=130s"),
		"settings without own CA": {body: "signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, duration: 1h}]}\n"},
		"leader election is off, whatever its times": {body: secret, args: []string{"--leader-elect=false", "--leader-elect-lease-duration=0", "--leader-elect-resource-name="}},

		"no CA":                   {want: []string{noCA}},
		"unknown controller":      flag("--controllers=*,nonsense", `--controllers: Invalid value: "nonsense": unknown controller: want approver, signer, cleaner or rotation`),
		"no star to leave out":    flag("--controllers=-*", `--controllers: Invalid value: "-*": unknown controller: want approver, signer, cleaner or rotation`),
		"spaces count":            flag("--controllers=approver, signer", `--controllers: Invalid value: " signer": unknown controller: want approver, signer, cleaner or rotation`),
		"two unknown":             file("controllers: [a, -b]\n"+secret, `controllers: Invalid value: "a": unknown controller: want approver, signer, cleaner or rotation`, `controllers: Invalid value: "-b": unknown controller: want approver, signer, cleaner or rotation`),
		"no controller at all":    flag("--controllers=-signer", `--controllers: Invalid value: "-signer": no controller is left to run`),
		"rotation alone":          {body: "rotation: {enabled: true}\n" + secret, args: []string{"--controllers=rotation"}},
		"rotation alone, and off": flag("--controllers=rotation", `--controllers: Invalid value: "rotation": no controller is left to run`),
		"an empty list":           file("controllers: []\n", `controllers: Invalid value: "": no controller is left to run`),
		"dry run of all":          flag("--dry-run=*"),
		"dry run by KCM's name":   {body: "dryRun: [csrapproving, csrcleaner]\n" + secret},
		"dry run of what is not":  flag("--dry-run=signer,-cleaner", `--dry-run: Invalid value: "-cleaner": unknown controller: want approver, signer or cleaner`),
		"block list":              flag("--node-block-list=kube-system/blocked.nodes"),
		"block list of no name":   file("nodeBlockList: blocked\n"+secret, `nodeBlockList: Invalid value: "blocked": want namespace/name`),
		"QPS of zero":             file("kubeAPIQPS: 0\n"+secret, "kubeAPIQPS: Invalid value: 0: must be positive, or negative for no limit"),
		"burst":                   flag("--kube-api-burst=0", "--kube-api-burst: Invalid value: 0: must be 1 or more"),
		"metrics address":         flag("--metrics-bind-address=8080", `--metrics-bind-address: Invalid value: "8080": want host:port, or 0 to switch it off`),
		"health address":          flag("--health-probe-bind-address=", `--health-probe-bind-address: Invalid value: "": want host:port, or 0 to switch it off`),
		"certificate, no TLS":     flag("--metrics-cert-dir=x", `--metrics-cert-dir: Invalid value: "x": has no effect without --metrics-secure`),
		"audit log":               file(secret+"audit: {maxSize: 0, maxBackups: -1, maxAge: -1}\n", "audit.maxSize: Invalid value: 0: must be 1 or more", "audit.maxBackups: Invalid value: -1: must be 0 or more", "audit.maxAge: Invalid value: -1: must be 0 or more"),
		"self-check":              file(secret+"selfCheck: {interval: -1s, bootstrapGroups: [], nodeGroups: []}\n", `selfCheck.interval: Invalid value: "-1s": must be positive, or 0 to switch the check off`, "selfCheck.bootstrapGroups: Required value: list the groups of the users that join nodes", "selfCheck.nodeGroups: Required value: list the groups of the nodes"),
		"retry period":            flag("--leader-elect-retry-period=0", `--leader-elect-retry-period: Invalid value: "0s": must be positive`),
		"renew deadline":          flag("--leader-elect-renew-deadline=600ms", `--leader-elect-renew-deadline: Invalid value: "600ms": must be more than 1.2 times the retry period`),
		"lease duration":          flag("--leader-elect-lease-duration=10s", `--leader-elect-lease-duration: Invalid value: "10s": must be more than the renew deadline`),
		"lease without name":      flag("--leader-elect-resource-name=", "--leader-elect-resource-name: Required value: the Lease needs a name"),
		"denial":                  file("approval: {denial: Always}\n"+secret, `approval.denial: Unsupported value: "Always": supported values: "Never", "Permanent"`),
		"shortest over longest": {body: "signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, minDuration: 2h, maxDuration: 1h}]}\n", want: []string{
			`signing.signers[kubernetes.io/kubelet-serving].minDuration: Invalid value: "2h0m0s": must not be more than maxDuration`,
		}},
		"custom clients of the cluster's CA": {body: "signing: {secret: ns/ca, signers: [{name: example.com/a, secret: ns/ca, usages: [client auth]}]}\n", want: []string{
			"signing.signers[example.com/a].forbiddenSubjects: Required value: this signer permits client certificates and shares the CA of one of Kubernetes' signers, " +
				"so whoever may approve for it can make any user: say which subjects it never issues, or give it a CA of its own",
		}},
		"forbidden for all": {body: "signing: {secret: ns/ca, forbiddenSubjects: [nonsense]}\n", want: []string{
			`signing.forbiddenSubjects[0]: Invalid value: "nonsense": "nonsense" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`,
		}},
		"another lock": flag("--leader-elect-resource-lock=endpoints", `invalid argument "endpoints" for "--leader-elect-resource-lock" flag: want leases`),
		"gone at once": {body: "cleaning: {retention: {approved: 0s}, signers: [{name: example.com/a, retention: {pending: 1ms}}]}\n" + secret, want: []string{
			`cleaning.retention.approved: Invalid value: "0s": must be 1s or more, or negative to keep requests forever: shorter times delete them unseen`,
			`cleaning.signers[example.com/a].retention.pending: Invalid value: "1ms": must be 1s or more, or negative to keep requests forever: shorter times delete them unseen`,
		}},
		"signer to be cleaned":  file("cleaning: {signers: [{name: nonsense}]}\n"+secret, `cleaning.signers[nonsense].name: Invalid value: "nonsense": want domain/name, such as example.com/client`),
		"to be cleaned twice":   file("cleaning: {signers: [{name: example.com/a}, {name: example.com/a}]}\n"+secret, `cleaning.signers[example.com/a]: Duplicate value: "example.com/a"`),
		"Secret of no name":     {args: []string{"--signing-secret=ns/"}, want: []string{`--signing-secret: Invalid value: "ns/": want namespace/name`}},
		"Secret of two slashes": {args: []string{"--signing-secret=a/b/c"}, want: []string{`--signing-secret: Invalid value: "a/b/c": want namespace/name`}},
		"Secret and files":      {args: []string{"--signing-secret=ns/ca", "--cluster-signing-cert-file=c", "--cluster-signing-key-file=k"}, want: []string{`--signing-secret: Invalid value: "ns/ca": excludes the files: remove one of them`}},
		"certificate only":      {args: []string{"--cluster-signing-cert-file=c"}, want: []string{`--cluster-signing-cert-file: Invalid value: "c": needs the key file that belongs to it`}},
		"key only":              {args: []string{"--cluster-signing-key-file=k"}, want: []string{`--cluster-signing-key-file: Invalid value: "k": needs the certificate file that belongs to it`}},
		"certificate only, in the file": {
			body: "signing: {certFile: c}\n", want: []string{`signing.certFile: Invalid value: "c": needs the key file that belongs to it`},
		},
		"half a pair beside the Secret": {
			body: secret, args: []string{"--cluster-signing-kubelet-client-cert-file=c"},
			want: []string{
				`--cluster-signing-kubelet-client-cert-file: Invalid value: "c": needs the key file that belongs to it`,
				`signing.signers[kubernetes.io/kube-apiserver-client-kubelet]: Invalid value: "files \"c\" and \"\"": one of Kubernetes' signers can't have a CA of its own while there is one for all, Secret ns/ca: remove one of them`,
			},
		},
		"rotation": {body: "rotation: {oldLifetimeCap: 2m, settleFor: 0s}\n" + secret, want: []string{
			`rotation.oldLifetimeCap: Invalid value: "2m0s": 2m0s` + tooShort, `rotation.settleFor: Invalid value: "0s": must be positive`,
		}},
		"rotation of files": {
			body: "rotation: {enabled: true}\nsigning: {certFile: c, keyFile: k, signers: [{name: example.com/a, certFile: d, keyFile: e, usages: [any]}]}\n",
			want: []string{
				`signing.certFile: Invalid value: "c": with rotation.enabled, the CA must be in a Secret: a CA in files cannot be rotated`,
				`signing.signers[example.com/a].certFile: Invalid value: "d": with rotation.enabled, the CA must be in a Secret: a CA in files cannot be rotated`,
			},
		},
		"lifetime":        flag("--cluster-signing-duration=2m", `--cluster-signing-duration: Invalid value: "2m0s": 2m0s`+tooShort),
		"RSA bits, most":  file("signing: {secret: ns/ca, minRSABits: 8193}\n", "signing.minRSABits: Invalid value: 8193: longer RSA keys than 8192 bits are never permitted"),
		"RSA bits":        file("signing: {secret: ns/ca, minRSABits: 1023}\n", "signing.minRSABits: Invalid value: 1023: must be 1024 or more"),
		"signer twice":    file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving}, {name: kubernetes.io/kubelet-serving}]}\n", `signing.signers[kubernetes.io/kubelet-serving]: Duplicate value: "kubernetes.io/kubelet-serving"`),
		"signer, no name": file("signing: {secret: ns/ca, signers: [{secret: ns/b, usages: [any]}]}\n", `signing.signers[].name: Invalid value: "": want domain/name, such as example.com/client`),
		"signer, one label": {
			body: "signing: {signers: [{name: example/a, secret: ns/ca, usages: [any]}]}\n", want: []string{`signing.signers[example/a].name: Invalid value: "example/a": want domain/name, such as example.com/client`},
		},
		"signer of Kubernetes that nobody serves": {
			body: "signing: {signers: [{name: kubernetes.io/kube-apiserver-serving, secret: ns/ca, usages: [server auth]}]}\n",
			want: []string{`signing.signers[kubernetes.io/kube-apiserver-serving].name: Invalid value: "kubernetes.io/kube-apiserver-serving": unknown signer of Kubernetes, or one that cannot be served`},
		},
		"wildcards of Kubernetes' own": {body: "signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, allowWildcards: true}]}\n",
			want: []string{"signing.signers[kubernetes.io/kubelet-serving].allowWildcards: Invalid value: true: has an effect only for custom signers: Kubernetes' signers always permit wildcards"}},
		"custom signer, no CA":       file("signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [any]}]}\n", "signing.signers[example.com/a]: Required value: needs a CA: secret, or certFile and keyFile"),
		"custom signer, no usages":   file("signing: {signers: [{name: example.com/a, secret: ns/ca}]}\n", "signing.signers[example.com/a].usages: Required value: list the usages that this signer permits"),
		"custom signer, bad usage":   file("signing: {signers: [{name: example.com/a, secret: ns/ca, usages: [any, magic]}]}\n", `signing.signers[example.com/a].usages: Invalid value: ["magic"]: no such usage`),
		"custom signer, half a pair": file("signing: {signers: [{name: example.com/a, keyFile: k, usages: [any]}]}\n", `signing.signers[example.com/a].keyFile: Invalid value: "k": needs the certificate file that belongs to it`),
		"signer's lifetime":          file(custom(", duration: 1m"), `signing.signers[example.com/a].duration: Invalid value: "1m0s": 1m0s`+tooShort),
		"signer's least":             file(custom(", minDuration: 0s"), `signing.signers[example.com/a].minDuration: Invalid value: "0s": 0s`+tooShort),
		"signer's longest":           file(custom(", maxDuration: -1h"), `signing.signers[example.com/a].maxDuration: Invalid value: "-1h0m0s": -1h0m0s`+tooShort),
		"longest under the lifetime": file(custom(", duration: 2h, maxDuration: 1h"), `signing.signers[example.com/a].maxDuration: Invalid value: "1h0m0s": must not be less than the duration`),
		"bad subject":                file(custom(", forbiddenSubjects: [CN=a, OU=b]"), `signing.signers[example.com/a].forbiddenSubjects[1]: Invalid value: "OU=b": "OU=b" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`),
		"Kubernetes' signer, usages": file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, usages: [any]}]}\n", "signing.signers[kubernetes.io/kubelet-serving].usages: Forbidden: Kubernetes' signers have fixed rules"),
		"Kubernetes' signer, no CA":  file("signing: {signers: [{name: kubernetes.io/kubelet-serving}]}\n", "signing.signers[kubernetes.io/kubelet-serving]: Required value: needs a CA: secret, or certFile and keyFile", noCA),
		"everything at once": {
			body: "kubeAPIBurst: 0\napproval: {denial: x}\nsigning: {minRSABits: 1}\ncleaning: {deletesPerSecond: 0}\n",
			args: []string{"--controllers=x", "--leader-elect-resource-name="},
			want: []string{
				`--controllers: Invalid value: "x": unknown controller: want approver, signer, cleaner or rotation`,
				"kubeAPIBurst: Invalid value: 0: must be 1 or more",
				"signing.minRSABits: Invalid value: 1: must be 1024 or more",
				"cleaning.deletesPerSecond: Invalid value: 0: must be 1 or more",
				"--leader-elect-resource-name: Required value: the Lease needs a name",
				`approval.denial: Unsupported value: "x": supported values: "Never", "Permanent"`,
			},
		},
	})
}

func TestControllers(t *testing.T) {
	t.Parallel()
	type running struct{ Approver, Signer, Cleaner bool }
	all := running{true, true, true}
	for _, test := range []struct {
		list            string
		enabled, dryRun running // dryRun is for the same list, where a dash has no meaning
	}{
		{"", running{}, running{}},
		{"*", all, all},
		{"*,-signer", running{Approver: true, Cleaner: true}, all},
		{"-signer,*", running{Approver: true, Cleaner: true}, all},
		{"signer,-signer", running{Signer: true}, running{Signer: true}}, // the first one decides
		{"-signer,signer", running{}, running{Signer: true}},
		{"signer,-signer,*", all, all},
		{"-approver,cleaner", running{Cleaner: true}, running{Cleaner: true}},
		{"csrapproving", running{Approver: true}, running{Approver: true}},
		{"*,-csrcleaner", running{Approver: true, Signer: true}, all},
		{"csrsigning,-certificatesigningrequest-signing-controller", running{Signer: true}, running{Signer: true}},
		{"certificatesigningrequest-approving-controller,certificatesigningrequest-cleaner-controller",
			running{Approver: true, Cleaner: true}, running{Approver: true, Cleaner: true}},
		{"*,-certificatesigningrequest-approving-controller", running{Signer: true, Cleaner: true}, all},
		{"Signer", running{}, running{}},
	} {
		c := &config.Configuration{Controllers: strings.Split(test.list, ","), DryRun: strings.Split(test.list, ",")}
		if got := (running{c.Enabled("approver"), c.Enabled("signer"), c.Enabled("cleaner")}); got != test.enabled {
			t.Errorf("%q enables %+v", test.list, got)
		}
		if got := (running{c.DryRuns("approver"), c.DryRuns("signer"), c.DryRuns("cleaner")}); got != test.dryRun {
			t.Errorf("%q is a dry run of %+v", test.list, got)
		}
	}
}

func TestSecretName(t *testing.T) {
	t.Parallel()
	for secret, want := range map[string][2]string{
		"ns/name": {"ns", "name"}, "kube-system/csr.signer": {"kube-system", "csr.signer"},
		"": {}, "name": {}, "/name": {}, "ns/": {}, "a/b/c": {}, "NS/name": {}, "n.s/name": {}, "ns/Name": {}, "ns/na me": {},
	} {
		namespace, name := config.CA{Secret: secret}.SecretName()
		if got := [2]string{namespace, name}; got != want {
			t.Errorf("%q: %q", secret, got)
		}
	}
}

// TestValidateWhatCustomSignersMayIssue checks the fields that limit what a custom signer issues, in addition to its
// usages.
func TestValidateWhatCustomSignersMayIssue(t *testing.T) {
	t.Parallel()
	one := func(settings string) string {
		return "signing: {signers: [{name: example.com/a, secret: ns/a, " + settings + "}]}\n"
	}
	kubernetes := func(settings string) string {
		return "signing: {secret: ns/a, signers: [{name: kubernetes.io/kubelet-serving, " + settings + "}]}\n"
	}
	const rules = "Forbidden: Kubernetes' signers have fixed rules"
	check(t, map[string]loaded{
		"names of every kind": {body: one(`usages: [server auth], allowedNames: [a.svc, "*.b.svc", 10.0.0.1, 10.9.0.0/16, "spiffe://a/*"]`)},
		"no extended usage":   {body: one(`usages: [digital signature], allowNoExtKeyUsage: true`)},
		"a bad name": {body: one(`usages: [server auth], allowedNames: [a.svc, "*"]`), want: []string{
			`signing.signers[example.com/a].allowedNames[1]: Invalid value: "*": "*" is not an allowed name: want a DNS name, *.suffix, an IP address, a CIDR, a URI or an e-mail address`}},
		"nothing that could be issued": {body: one(`usages: [digital signature, key encipherment]`), want: []string{
			`signing.signers[example.com/a].usages: Invalid value: ["digital signature","key encipherment"]: none is an extended key usage, such as server auth, ` +
				"and without one a certificate is refused: add one, or set allowNoExtKeyUsage"}},
		"names for Kubernetes' signers": {body: kubernetes(`allowedNames: [a]`), want: []string{"signing.signers[kubernetes.io/kubelet-serving].allowedNames: " + rules}},
		"all usages for Kubernetes' signers": {body: kubernetes(`allowNoExtKeyUsage: true`), want: []string{
			"signing.signers[kubernetes.io/kubelet-serving].allowNoExtKeyUsage: " + rules}},
	})
}

// TestValidateCA checks the fields that describe a CA, in addition to its location.
func TestValidateCA(t *testing.T) {
	t.Parallel()
	const (
		here    = "Forbidden: needs a secret or files of the same entry"
		created = "Forbidden: has an effect only with createIfMissing"
		same    = "names the same CA as an earlier entry, with another chain, createIfMissing, keyAlgorithm or caDuration: use the same values"
	)
	one := func(settings string) string {
		return "signing: {signers: [{name: example.com/a, usages: [server auth], " + settings + "}]}\n"
	}
	check(t, map[string]loaded{
		"made":                     {body: "signing: {secret: ns/ca, createIfMissing: true}\n"},
		"made, the Secret by flag": {body: "signing: {createIfMissing: true}\n", args: []string{"--signing-secret=ns/ca"}},
		"everything":               {body: "signing: {secret: ns/ca, createIfMissing: true, keyAlgorithm: ED25519, caDuration: 48h, chain: WithRoot}\n"},
		"for one signer":           {body: one("secret: ns/a, createIfMissing: true, keyAlgorithm: RSA4096, chain: None")},
		"chain of files":           {body: one("certFile: c, keyFile: k, chain: Intermediates")},
		"one CA named twice":       {body: "signing: {secret: ns/ca, chain: None, signers: [{name: example.com/a, usages: [server auth], secret: ns/ca, chain: None}]}\n"},

		"files are not made":    file(one("certFile: c, keyFile: k, createIfMissing: true"), "signing.signers[example.com/a].createIfMissing: Forbidden: the manager creates only Secrets, not files"),
		"algorithm, not made":   file("signing: {secret: ns/ca, keyAlgorithm: RSA3072}\n", "signing.keyAlgorithm: "+created),
		"duration, not made":    file("signing: {secret: ns/ca, caDuration: 1h}\n", "signing.caDuration: "+created),
		"unknown algorithm":     file(one("secret: ns/a, createIfMissing: true, keyAlgorithm: DSA"), `signing.signers[example.com/a].keyAlgorithm: Unsupported value: "DSA": supported values: "ECDSAP256", "ECDSAP384", "RSA3072", "RSA4096", "ED25519"`),
		"unknown chain":         file("signing: {secret: ns/ca, chain: none}\n", `signing.chain: Unsupported value: "none": supported values: "Intermediates", "None", "WithRoot"`),
		"too short":             file("signing: {secret: ns/ca, createIfMissing: true, caDuration: -1h}\n", `signing.caDuration: Invalid value: "-1h0m0s": -1h0m0s`+tooShort),
		"settings without a CA": file("signing: {chain: None, createIfMissing: true, signers: [{name: example.com/a, usages: [server auth], secret: ns/a}]}\n", "signing.chain: "+here, "signing.createIfMissing: "+here),
		"of the CA for all":     file("signing: {secret: ns/ca, signers: [{name: kubernetes.io/kubelet-serving, chain: None}]}\n", "signing.signers[kubernetes.io/kubelet-serving].chain: "+here),
		"one CA in two ways":    file("signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [server auth], secret: ns/ca, chain: None}]}\n", `signing.signers[example.com/a]: Invalid value: "Secret ns/ca": `+same),
		"a CA of two is made":   file("signing: {signers: [{name: example.com/a, usages: [any], secret: ns/a, createIfMissing: true}, {name: example.com/b, usages: [any], secret: ns/a}]}\n", `signing.signers[example.com/b]: Invalid value: "Secret ns/a": `+same),
		"still the cluster's CA": {body: "signing: {secret: ns/ca, signers: [{name: example.com/a, usages: [client auth], secret: ns/ca, chain: None}]}\n", want: []string{
			`signing.signers[example.com/a].forbiddenSubjects: Required value: this signer permits client certificates and shares the CA of one of Kubernetes' signers, ` +
				"so whoever may approve for it can make any user: say which subjects it never issues, or give it a CA of its own",
			`signing.signers[example.com/a]: Invalid value: "Secret ns/ca": ` + same,
		}},
	})
}

// TestRemovedFieldsSayWhatToDoInstead checks the errors about fields that earlier versions had.
func TestRemovedFieldsSayWhatToDoInstead(t *testing.T) {
	t.Parallel()
	const (
		superseded = "cleaning.supersededAfter was removed: requests are deleted after cleaning.retention.pending; delete this field"
		apiServers = "signing.apiServers was removed: the signer reads which CAs the API servers trust from the ConfigMaps " +
			"extension-apiserver-authentication and kube-root-ca.crt in kube-system; delete this field"
	)
	check(t, map[string]loaded{
		"superseded requests":         file("cleaning: {supersededAfter: 30m}\n"+secret, "--config: FILE: "+superseded),
		"also a zero":                 file("cleaning:\n  supersededAfter: 0s\n"+secret, "--config: FILE: "+superseded),
		"also without a value":        file("signing: {secret: ns/ca, apiServers: }\n", "--config: FILE: "+apiServers),
		"several at once":             file("signing: {secret: ns/ca, apiServers: [a]}\ncleaning: {supersededAfter: 30m}\n", "--config: FILE: "+superseded+"\n"+apiServers),
		"the same name at the top":    file("supersededAfter: 30m\n"+secret, `--config: FILE: error unmarshaling JSON: while decoding JSON: json: unknown field "supersededAfter"`),
		"a section of another type":   file("cleaning: [supersededAfter]\n"+secret, `--config: FILE: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go struct field Configuration.cleaning of type config.Cleaning`),
		"a section without any value": file("cleaning:\nunknown: 1\n"+secret, `--config: FILE: error unmarshaling JSON: while decoding JSON: json: unknown field "unknown"`),
	})
}
