package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// perSignerFlags lists the signers with flags of their own, by the middle part of kube-controller-manager's
// --cluster-signing-<middle>-{cert,key}-file.
var perSignerFlags = []struct{ middle, signer string }{
	{"kubelet-serving", certificatesv1.KubeletServingSignerName},
	{"kubelet-client", certificatesv1.KubeAPIServerClientKubeletSignerName},
	{"kube-apiserver-client", certificatesv1.KubeAPIServerClientSignerName},
}

// retiredFlags lists kube-controller-manager's flags for kubernetes.io/legacy-unknown. certificates/v1 refuses that
// signer, so no request can name it. The flags are accepted because existing command lines may have them.
var retiredFlags = []string{"cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"}

// Flags holds the command line flags of a Configuration, in groups as --help shows them.
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

// NewFlags returns flags that set c. The values of c are their defaults.
func NewFlags(c *Configuration) *Flags {
	f := &Flags{fields: map[string]string{}}
	f.generic(c)
	f.leaderElection(&c.LeaderElection)
	f.group("Audit log")
	f.define(&c.Audit.Path, "audit-log-path", "audit.path",
		"write a JSON line for each decision and each certificate to this `file`; - is standard output")
	f.define(&c.Audit.MaxSize, "audit-log-maxsize", "audit.maxSize", "size in MiB at which the file is rotated")
	f.define(&c.Audit.MaxBackups, "audit-log-maxbackup", "audit.maxBackups",
		"number of rotated files to keep; 0 keeps all")
	f.define(&c.Audit.MaxAge, "audit-log-maxage", "audit.maxAge",
		"number of days to keep rotated files; 0 keeps them forever")
	f.group("Approval")
	f.define(&c.Approval.Inventory.Kubeconfig, "inventory-kubeconfig", "approval.inventory.kubeconfig",
		"kubeconfig `file` of the cluster that holds the machines, if it is another cluster")
	f.signing(c)
	return f
}

func (f *Flags) group(title string) {
	set := pflag.NewFlagSet(title, pflag.ContinueOnError)
	set.SortFlags = false
	f.Groups = append(f.Groups, Group{title, set})
}

// define adds a flag to the last group. The flag sets target, which belongs to the field of the file. The value of
// target is the default.
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

// Field returns the path of the field that the flag called name sets, or "" if the flag is no configuration.
func (f *Flags) Field(name string) string { return f.fields[name] }

// list returns a function that sets target from a comma-separated list. The flag overrides the file. If the flag is
// given twice, both lists count, as in kube-controller-manager.
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
	f.define(&f.file, "config", "", "read the configuration from this `file`; flags override it")
	f.define(list(&c.Controllers), "controllers", "controllers", "comma-separated `list` of controllers to run: "+
		"approver, signer, cleaner (or csrapproving, csrsigning, csrcleaner), rotation; "+
		"* stands for all, a leading - excludes a controller (default *)")
	f.define(list(&c.DryRun), "dry-run", "dryRun",
		"comma-separated `list` of controllers that only report what they would do, and write to no request")
	f.define(&c.NodeBlockList, "node-block-list", "nodeBlockList",
		"`namespace/name` of a ConfigMap with nodes and client certificates; nothing is approved or signed for them")
	f.define(&c.Kubeconfig, "kubeconfig", "kubeconfig",
		"kubeconfig `file`; without it the manager tries KUBECONFIG, then ~/.kube/config, then the Pod's ServiceAccount")
	f.define(&c.KubeAPIQPS, "kube-api-qps", "kubeAPIQPS",
		"limit of requests per second to the API server; a negative value sets no limit")
	f.define(&c.KubeAPIBurst, "kube-api-burst", "kubeAPIBurst",
		"limit of requests in a burst to the API server, with a positive --kube-api-qps")
	f.define(&c.Concurrency.Approver, "concurrent-approver-syncs", "concurrency.approver",
		"number of workers of the approver")
	f.define(&c.Concurrency.Signer, "concurrent-signer-syncs", "concurrency.signer",
		"number of workers of the signer")
	f.define(&c.Concurrency.Cleaner, "concurrent-cleaner-syncs", "concurrency.cleaner",
		"number of workers of the cleaner")
	f.define(&c.MetricsBindAddress, "metrics-bind-address", "metricsBindAddress",
		"`host:port` of /metrics; 0 switches it off")
	f.define(&c.MetricsSecure, "metrics-secure", "metricsSecure",
		"serve the metrics by TLS, and only to users who may get the path /metrics")
	f.define(&c.MetricsCertDir, "metrics-cert-dir", "metricsCertDir",
		"`directory` with tls.crt and tls.key for --metrics-secure; without it the certificate is self-signed")
	f.define(&c.HealthProbeBindAddress, "health-probe-bind-address", "healthProbeBindAddress",
		"`host:port` of /healthz and /readyz; 0 switches them off")
	f.define(&c.SelfCheck.Interval.Duration, "self-check-interval", "selfCheck.interval",
		"time between two checks of the manager's rights and the kubelets' rights; "+
			"a check that did not pass is repeated within a minute; 0 switches all of them off")
	f.define(&c.Verbosity, "v", "verbosity",
		"verbosity of the log: 0 logs every decision and every certificate, more is for debugging")
	f.define(&f.version, "version", "", "print the version and exit")
	f.Groups[0].Flags.BoolVarP(&f.help, "help", "h", false, "print this help and exit")
}

func (f *Flags) leaderElection(l *LeaderElection) {
	f.group("Leader election")
	f.define(&l.Enabled, "leader-elect", "leaderElection.enabled",
		"work only while this replica holds the Lease; needed for several replicas")
	f.define(&l.LeaseDuration.Duration, "leader-elect-lease-duration", "leaderElection.leaseDuration",
		"how long a standby waits before it takes the Lease over")
	f.define(&l.RenewDeadline.Duration, "leader-elect-renew-deadline", "leaderElection.renewDeadline",
		"how long the leader tries to renew the Lease before it gives up; must be less than the lease duration")
	f.define(&l.RetryPeriod.Duration, "leader-elect-retry-period", "leaderElection.retryPeriod",
		"pause between two attempts")
	onlyLeases := func(kind string) error {
		if kind != "leases" {
			return errors.New("want leases")
		}
		return nil
	}
	f.define(onlyLeases, "leader-elect-resource-lock", "", "`kind` of lock; only leases is supported (default leases)")
	f.define(&l.ResourceName, "leader-elect-resource-name", "leaderElection.resourceName", "`name` of the Lease")
	f.define(&l.ResourceNamespace, "leader-elect-resource-namespace", "leaderElection.resourceNamespace",
		"`namespace` of the Lease (default is the Pod's, or kube-system outside of a cluster)")
}

func (f *Flags) signing(c *Configuration) {
	s := &c.Signing
	f.group("Signing")
	f.define(&s.Secret, "signing-secret", "signing.secret",
		"`namespace/name` of the Secret (type kubernetes.io/tls) with the CA for all of Kubernetes' signers")
	f.define(&s.CertFile, "cluster-signing-cert-file", "signing.certFile",
		"`file` with the CA certificate for all of Kubernetes' signers")
	f.define(&s.KeyFile, "cluster-signing-key-file", "signing.keyFile",
		"`file` with the CA key for all of Kubernetes' signers")
	for _, one := range perSignerFlags {
		const usage = "`file` with the CA %s for %s only; signers without a pair of files are then not served"
		setCert := func(file string) error { s.signer(one.signer).CertFile = file; return nil }
		setKey := func(file string) error { s.signer(one.signer).KeyFile = file; return nil }
		flag, field := "cluster-signing-"+one.middle, fmt.Sprintf("signing.signers[%s]", one.signer)
		f.define(setCert, flag+"-cert-file", field+".certFile", fmt.Sprintf(usage, "certificate", one.signer))
		f.define(setKey, flag+"-key-file", field+".keyFile", fmt.Sprintf(usage, "key", one.signer))
	}
	for _, name := range retiredFlags {
		note := func(string) error { c.Retired = append(c.Retired, "--"+name); return nil }
		f.define(note, name, "",
			"`file` without effect: since Kubernetes 1.22 no request can name kubernetes.io/legacy-unknown")
	}
	f.define(&s.Duration.Duration, "cluster-signing-duration", "signing.duration",
		"longest lifetime of certificates, and the lifetime if the request asks for none")
}

// signer returns the settings of the signer with that name. It adds them if there are none.
func (s *Signing) signer(name string) *Signer {
	for i := range s.Signers {
		if s.Signers[i].Name == name {
			return &s.Signers[i]
		}
	}
	s.Signers = append(s.Signers, Signer{Name: name})
	return &s.Signers[len(s.Signers)-1]
}

// together returns the flags of all groups.
func (f *Flags) together() *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.Usage = func() {}
	for _, group := range f.Groups {
		set.AddFlagSet(group.Flags)
	}
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

// ErrHelp and ErrVersion are returned by Load if the flags ask for that.
var (
	ErrHelp    = pflag.ErrHelp
	ErrVersion = errors.New("version requested")
)

// Load returns the configuration of a manager: the defaults, overridden by the file that --config names, overridden by
// the other flags in args. An error holds every mistake, each with its flag or field path.
func Load(args []string) (*Configuration, error) {
	scout := NewFlags(Default())
	surplus, errs := parse(scout.together(), args)
	switch {
	case scout.help:
		return nil, ErrHelp
	case scout.version:
		return nil, ErrVersion
	}
	for _, arg := range surplus {
		errs = append(errs, fmt.Errorf("unexpected argument %q", arg))
	}
	configuration := Default()
	if scout.file != "" {
		if err := configuration.read(scout.file); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}
	// The same flags again, with the same mistakes: now they override the file.
	flags := NewFlags(configuration)
	set := flags.together()
	_, _ = parse(set, args)
	for _, mistake := range configuration.validate(true) {
		errs = append(errs, flags.name(set, mistake))
	}
	return configuration, errors.Join(errs...)
}

// LoadFile returns the configuration in a file, for a command that needs no CA.
func LoadFile(file string) (*Configuration, error) {
	configuration := Default()
	if err := configuration.read(file); err != nil {
		return nil, err
	}
	return configuration, configuration.validate(false).ToAggregate()
}

func (c *Configuration) read(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if err := checkRemoved(data); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if err := c.parse(data); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	return nil
}

// parse overrides c by the fields in data.
func (c *Configuration) parse(data []byte) error {
	c.APIVersion, c.Kind = "", ""
	// encoding/json decodes a list into existing elements. The first source would then have the fields of two sources.
	sources := c.Approval.Inventory.Sources
	c.Approval.Inventory.Sources = nil
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return err
	}
	if c.Approval.Inventory.Sources == nil {
		c.Approval.Inventory.Sources = sources
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("want apiVersion %s and kind %s, found %q and %q", APIVersion, Kind, c.APIVersion, c.Kind)
	}
	return nil
}
