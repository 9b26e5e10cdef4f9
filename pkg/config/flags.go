package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// perSignerFlags are the middles of kube-controller-manager's --cluster-signing-<middle>-{cert,key}-file.
var perSignerFlags = []struct{ middle, signer string }{
	{"kubelet-serving", certificatesv1.KubeletServingSignerName},
	{"kubelet-client", certificatesv1.KubeAPIServerClientKubeletSignerName},
	{"kube-apiserver-client", certificatesv1.KubeAPIServerClientSignerName},
}

// retiredFlags are kube-controller-manager's flags for kubernetes.io/legacy-unknown. certificates/v1 refuses that
// signer, so no request can name it. The flags are accepted for the sake of command lines that have them.
var retiredFlags = []string{"cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"}

// Flags binds command line flags to a Configuration, in groups as --help shows them.
type Flags struct {
	Groups []Group

	fields map[string]string // flag name → field path
	// These flags are not configuration.
	file          string
	version, help bool
}

// Group is a set of flags with a title.
type Group struct {
	Title string
	Flags *pflag.FlagSet
}

// NewFlags binds flags to c, whose values are their defaults.
func NewFlags(c *Configuration) *Flags {
	f := &Flags{fields: map[string]string{}}
	f.generic(c)
	f.leaderElection(&c.LeaderElection)
	f.group("Audit log")
	f.define(&c.Audit.Path, "audit-log-path", "audit.path",
		"`file` for decisions and issuances, as JSON lines; - is standard output")
	f.define(&c.Audit.MaxSize, "audit-log-maxsize", "audit.maxSize", "MiB at which the file is rotated")
	f.define(&c.Audit.MaxBackups, "audit-log-maxbackup", "audit.maxBackups", "rotated files to keep; 0 is all")
	f.define(&c.Audit.MaxAge, "audit-log-maxage", "audit.maxAge", "days to keep rotated files; 0 is for ever")
	f.group("Approval")
	f.define(&c.Approval.Inventory.Kubeconfig, "inventory-kubeconfig", "approval.inventory.kubeconfig",
		"`file` to reach the cluster with that holds the machines, if it is another one")
	f.signing(c)
	return f
}

func (f *Flags) group(title string) {
	set := pflag.NewFlagSet(title, pflag.ContinueOnError)
	set.SortFlags = false
	f.Groups = append(f.Groups, Group{title, set})
}

// define adds a flag to the last group. It sets target, which is field of the file, and whose value is its default.
func (f *Flags) define(target any, name, field, usage string) {
	set, short := f.Groups[len(f.Groups)-1].Flags, ""
	if len(name) == 1 {
		short = name
	}
	switch target := target.(type) {
	case *string:
		set.StringVarP(target, name, short, *target, usage)
	case *int:
		set.IntVarP(target, name, short, *target, usage)
	case *float64:
		set.Float64VarP(target, name, short, *target, usage)
	case *bool:
		set.BoolVarP(target, name, short, *target, usage)
	case *time.Duration:
		set.DurationVarP(target, name, short, *target, usage)
	case func(string) error:
		set.FuncP(name, short, usage, target)
	}
	f.fields[name] = field
}

// list returns what sets target to a list with commas. The flag overrides the file; given twice it adds up, as in
// kube-controller-manager.
func list(target *[]string) func(string) error {
	given := false
	return func(list string) error {
		if !given {
			*target, given = nil, true
		}
		*target = append(*target, strings.Split(list, ",")...)
		return nil
	}
}

func (f *Flags) generic(c *Configuration) {
	f.group("Generic")
	f.define(&f.file, "config", "", "`file` with the configuration; flags override it")
	f.define(list(&c.Controllers), "controllers", "controllers", "`list` of controllers to run, separated by commas: "+
		"approver, signer, cleaner (or csrapproving, csrsigning, csrcleaner), rotation; "+
		"* is all, a leading - leaves one out (default *)")
	f.define(list(&c.DryRun), "dry-run", "dryRun",
		"`list` of controllers, separated by commas, that only say what they would do, and write to no request")
	f.define(&c.NodeBlockList, "node-block-list", "nodeBlockList",
		"`namespace/name` of a ConfigMap with the names of nodes for which nothing is approved or signed")
	f.define(&c.Kubeconfig, "kubeconfig", "kubeconfig",
		"`file` to reach the API server with; without it the usual places, then the Pod's ServiceAccount")
	f.define(&c.KubeAPIQPS, "kube-api-qps", "kubeAPIQPS",
		"requests a second to the API server; negative is no limit of our own")
	f.define(&c.KubeAPIBurst, "kube-api-burst", "kubeAPIBurst", "requests at once to the API server, with --kube-api-qps")
	f.define(&c.Concurrency.Approver, "concurrent-approver-syncs", "concurrency.approver",
		"requests that the approver works on at a time")
	f.define(&c.Concurrency.Signer, "concurrent-signer-syncs", "concurrency.signer",
		"requests that the signer works on at a time")
	f.define(&c.Concurrency.Cleaner, "concurrent-cleaner-syncs", "concurrency.cleaner",
		"requests that the cleaner works on at a time")
	f.define(&c.MetricsBindAddress, "metrics-bind-address", "metricsBindAddress", "`host:port` for /metrics; 0 is off")
	f.define(&c.MetricsSecure, "metrics-secure", "metricsSecure",
		"serve metrics by TLS, and only to who may get the path /metrics")
	f.define(&c.MetricsCertDir, "metrics-cert-dir", "metricsCertDir",
		"`folder` with tls.crt and tls.key for --metrics-secure; without it the certificate is self-signed")
	f.define(&c.HealthProbeBindAddress, "health-probe-bind-address", "healthProbeBindAddress",
		"`host:port` for /healthz and /readyz; 0 is off")
	f.define(&c.SelfCheck.Interval.Duration, "self-check-interval", "selfCheck.interval",
		"time between two looks at our own rights, the kubelets' rights and the trust in our CA; 0 is never")
	f.define(&c.Verbosity, "v", "verbosity",
		"verbosity of the log: 0 every decision and certificate, more for debugging")
	f.define(&f.version, "version", "", "print the version and exit")
	f.Groups[0].Flags.BoolVarP(&f.help, "help", "h", false, "print this and exit")
}

func (f *Flags) leaderElection(l *LeaderElection) {
	f.group("Leader election")
	f.define(&l.Enabled, "leader-elect", "leaderElection.enabled",
		"work only while holding the Lease, so that several replicas can run")
	f.define(&l.LeaseDuration.Duration, "leader-elect-lease-duration", "leaderElection.leaseDuration",
		"how long a standby waits before it takes over")
	f.define(&l.RenewDeadline.Duration, "leader-elect-renew-deadline", "leaderElection.renewDeadline",
		"how long the leader tries to renew before it gives up; less than the lease duration")
	f.define(&l.RetryPeriod.Duration, "leader-elect-retry-period", "leaderElection.retryPeriod", "pause between tries")
	onlyLeases := func(kind string) error {
		if kind != "leases" {
			return errors.New("want leases")
		}
		return nil
	}
	f.define(onlyLeases, "leader-elect-resource-lock", "", "`kind` of lock; leases is the only one (default leases)")
	f.define(&l.ResourceName, "leader-elect-resource-name", "leaderElection.resourceName", "`name` of the Lease")
	f.define(&l.ResourceNamespace, "leader-elect-resource-namespace", "leaderElection.resourceNamespace",
		"`namespace` of the Lease (default the Pod's, or kube-system outside of a cluster)")
}

func (f *Flags) signing(c *Configuration) {
	s := &c.Signing
	f.group("Signing")
	f.define(&s.Secret, "signing-secret", "signing.secret",
		"`namespace/name` of a Secret of type kubernetes.io/tls with the CA for all of Kubernetes' signers")
	f.define(&s.CertFile, "cluster-signing-cert-file", "signing.certFile",
		"`file` with the CA certificate for all of Kubernetes' signers")
	f.define(&s.KeyFile, "cluster-signing-key-file", "signing.keyFile",
		"`file` with the CA key for all of Kubernetes' signers")
	for _, one := range perSignerFlags {
		const usage = "`file` with the CA %s for %s alone; signers without a pair are then not served"
		setCert := func(file string) error { s.signer(one.signer).CertFile = file; return nil }
		setKey := func(file string) error { s.signer(one.signer).KeyFile = file; return nil }
		flag, field := "cluster-signing-"+one.middle, fmt.Sprintf("signing.signers[%s]", one.signer)
		f.define(setCert, flag+"-cert-file", field+".certFile", fmt.Sprintf(usage, "certificate", one.signer))
		f.define(setKey, flag+"-key-file", field+".keyFile", fmt.Sprintf(usage, "key", one.signer))
	}
	for _, name := range retiredFlags {
		note := func(string) error { c.Retired = append(c.Retired, "--"+name); return nil }
		f.define(note, name, "",
			"`file` that does nothing: no request can name kubernetes.io/legacy-unknown since Kubernetes 1.22")
	}
	f.define(&s.Duration.Duration, "cluster-signing-duration", "signing.duration",
		"longest lifetime of certificates, and that of requests without a wish")
}

// signer returns the settings of the signer called name, and adds them if there are none.
func (s *Signing) signer(name string) *Signer {
	for i := range s.Signers {
		if s.Signers[i].Name == name {
			return &s.Signers[i]
		}
	}
	s.Signers = append(s.Signers, Signer{Name: name})
	return &s.Signers[len(s.Signers)-1]
}

// together returns the flags of all groups and of own, which may be nil.
func (f *Flags) together(own *pflag.FlagSet) *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.Usage = func() {}
	for _, group := range f.Groups {
		set.AddFlagSet(group.Flags)
	}
	set.AddFlagSet(own)
	return set
}

// parse sets the flags of set that args name. It returns the other arguments and every mistake: pflag itself stops at
// the first one.
func parse(set *pflag.FlagSet, args []string) ([]string, []error) {
	var mistakes []error
	ignore := func(*pflag.Flag, string) error { return nil }
	for {
		var unknown *pflag.NotExistError
		if err := set.ParseAll(args, ignore); !errors.As(err, &unknown) {
			break
		}
		mistakes = append(mistakes, unknown)
		name := "--" + unknown.GetSpecifiedName()
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			name = "-" + letters
		}
		isUnknown := func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") }
		known := slices.DeleteFunc(slices.Clone(args), isUnknown)
		if len(known) == len(args) {
			return set.Args(), mistakes
		}
		args = known
	}
	apply := func(flag *pflag.Flag, text string) error {
		before := flag.Value.String()
		if err := set.Set(flag.Name, text); err != nil {
			mistakes = append(mistakes, err)
			_ = flag.Value.Set(before) // pflag has set it to zero, which would be a second mistake
		}
		return nil
	}
	if err := set.ParseAll(args, apply); err != nil {
		mistakes = append(mistakes, err)
	}
	return set.Args(), mistakes
}

// name returns an error that names the flag that set the field, if one did, or else the field.
func (f *Flags) name(set *pflag.FlagSet, mistake *field.Error) error {
	where := mistake.Field
	set.Visit(func(flag *pflag.Flag) {
		if f.fields[flag.Name] == mistake.Field {
			where = "--" + flag.Name
		}
	})
	return fmt.Errorf("%s: %s", where, mistake.ErrorBody())
}
