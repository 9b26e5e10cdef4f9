package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// perSignerFlags are the middles of kube-controller-manager's --cluster-signing-<middle>-{cert,key}-file.
var perSignerFlags = []struct{ middle, signer string }{
	{"kubelet-serving", certificatesv1.KubeletServingSignerName},
	{"kubelet-client", certificatesv1.KubeAPIServerClientKubeletSignerName},
	{"kube-apiserver-client", certificatesv1.KubeAPIServerClientSignerName},
}

// retiredFlags are kube-controller-manager's flags for kubernetes.io/legacy-unknown. certificates/v1 refuses that signer, so
// no request can name it, and it is not served. The flags are accepted for the sake of command lines that have them.
var retiredFlags = []string{"cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"}

// flags binds command line flags to a Configuration and remembers their groups and the fields they set.
type flags struct {
	set     *flag.FlagSet
	groups  []group
	fields  map[string]string // flag name → field path
	command *Command
}

type group struct {
	title string
	names []string
}

func (f *flags) group(title string) { f.groups = append(f.groups, group{title: title}) }

// add notes that the flag called name, just defined, sets field.
func (f *flags) add(name, field string) {
	last := &f.groups[len(f.groups)-1]
	last.names = append(last.names, name)
	f.fields[name] = field
}

func (f *flags) string(target *string, name, field, usage string) {
	f.set.StringVar(target, name, *target, usage)
	f.add(name, field)
}

func (f *flags) int(target *int, name, field, usage string) {
	f.set.IntVar(target, name, *target, usage)
	f.add(name, field)
}

func (f *flags) list(target *[]string, name, field, usage string) {
	given := false
	f.set.Func(name, usage, func(list string) error {
		if !given { // a flag overrides the file; given twice it adds up, as in kube-controller-manager
			*target, given = nil, true
		}
		*target = append(*target, strings.Split(list, ",")...)
		return nil
	})
	f.add(name, field)
}

// newFlags binds flags to c, whose values are their defaults. Those that are not configuration are in meta.
func newFlags(c *Configuration, meta *meta) *flags {
	f := &flags{set: flag.NewFlagSet("csr-controller-manager", flag.ContinueOnError), fields: map[string]string{}, command: meta.command}
	f.set.SetOutput(io.Discard)
	f.set.Usage = func() {}
	f.own()
	f.generic(c, meta)
	f.leaderElection(&c.LeaderElection)
	f.audit(&c.Audit)
	f.approval(&c.Approval)
	f.signing(c)
	return f
}

// own defines the flags of a subcommand.
func (f *flags) own() {
	if f.command == nil {
		return
	}
	f.group("Of this command")
	f.command.Flags(f.set)
	f.set.VisitAll(func(each *flag.Flag) { f.add(each.Name, "") })
}

func (f *flags) generic(c *Configuration, meta *meta) {
	f.group("Generic")
	f.string(&meta.file, "config", "", "`file` with the configuration; flags override it")
	f.list(&c.Controllers, "controllers", "controllers", "`list` of controllers to run, separated by commas: approver, signer, cleaner (or csrapproving, csrsigning, csrcleaner), rotation; * is all, a leading - leaves one out (default *)")
	f.list(&c.DryRun, "dry-run", "dryRun", "`list` of controllers, separated by commas, that only say what they would do, and write to no request")
	f.string(&c.NodeBlockList, "node-block-list", "nodeBlockList", "`namespace/name` of a ConfigMap with the names of nodes for which nothing is approved or signed")
	f.string(&c.Kubeconfig, "kubeconfig", "kubeconfig", "`file` to reach the API server with; without it the usual places, then the Pod's ServiceAccount")
	f.set.Float64Var(&c.KubeAPIQPS, "kube-api-qps", c.KubeAPIQPS, "requests a second to the API server; negative is no limit of our own")
	f.add("kube-api-qps", "kubeAPIQPS")
	f.int(&c.KubeAPIBurst, "kube-api-burst", "kubeAPIBurst", "requests at once to the API server, with --kube-api-qps")
	f.int(&c.Concurrency.Approver, "concurrent-approver-syncs", "concurrency.approver", "requests that the approver works on at a time")
	f.int(&c.Concurrency.Signer, "concurrent-signer-syncs", "concurrency.signer", "requests that the signer works on at a time")
	f.int(&c.Concurrency.Cleaner, "concurrent-cleaner-syncs", "concurrency.cleaner", "requests that the cleaner works on at a time")
	f.string(&c.MetricsBindAddress, "metrics-bind-address", "metricsBindAddress", "`host:port` for /metrics; 0 is off")
	f.set.BoolVar(&c.MetricsSecure, "metrics-secure", c.MetricsSecure, "serve metrics by TLS, and only to who may get the path /metrics")
	f.add("metrics-secure", "metricsSecure")
	f.string(&c.MetricsCertDir, "metrics-cert-dir", "metricsCertDir", "`folder` with tls.crt and tls.key for --metrics-secure; without it the certificate is self-signed")
	f.string(&c.HealthProbeBindAddress, "health-probe-bind-address", "healthProbeBindAddress", "`host:port` for /healthz and /readyz; 0 is off")
	f.set.DurationVar(&c.SelfCheck.Interval.Duration, "self-check-interval", c.SelfCheck.Interval.Duration, "time between two looks at our own rights, the kubelets' rights and the trust in our CA; 0 is never")
	f.add("self-check-interval", "selfCheck.interval")
	f.int(&c.Verbosity, "v", "verbosity", "verbosity of the log: 0 every decision and certificate, more for debugging")
	f.set.BoolVar(&meta.version, "version", false, "print the version and exit")
	f.add("version", "")
	f.set.BoolVar(&meta.help, "help", false, "print this and exit")
	f.add("help", "")
}

func (f *flags) audit(a *Audit) {
	f.group("Audit log")
	f.string(&a.Path, "audit-log-path", "audit.path", "`file` for decisions and issuances, as JSON lines; - is standard output")
	f.int(&a.MaxSize, "audit-log-maxsize", "audit.maxSize", "MiB at which the file is rotated")
	f.int(&a.MaxBackups, "audit-log-maxbackup", "audit.maxBackups", "rotated files to keep; 0 is all")
	f.int(&a.MaxAge, "audit-log-maxage", "audit.maxAge", "days to keep rotated files; 0 is for ever")
}

func (f *flags) approval(a *Approval) {
	f.group("Approval")
	f.string(&a.Inventory.Kubeconfig, "inventory-kubeconfig", "approval.inventory.kubeconfig", "`file` to reach the cluster with that holds the machines, if it is another one")
}

func (f *flags) leaderElection(l *LeaderElection) {
	f.group("Leader election")
	f.set.BoolVar(&l.Enabled, "leader-elect", l.Enabled, "work only while holding the Lease, so that several replicas can run")
	f.add("leader-elect", "leaderElection.enabled")
	f.set.DurationVar(&l.LeaseDuration.Duration, "leader-elect-lease-duration", l.LeaseDuration.Duration, "how long a standby waits before it takes over")
	f.add("leader-elect-lease-duration", "leaderElection.leaseDuration")
	f.set.DurationVar(&l.RenewDeadline.Duration, "leader-elect-renew-deadline", l.RenewDeadline.Duration, "how long the leader tries to renew before it gives up; less than the lease duration")
	f.add("leader-elect-renew-deadline", "leaderElection.renewDeadline")
	f.set.DurationVar(&l.RetryPeriod.Duration, "leader-elect-retry-period", l.RetryPeriod.Duration, "pause between tries")
	f.add("leader-elect-retry-period", "leaderElection.retryPeriod")
	f.set.Func("leader-elect-resource-lock", "`kind` of lock; leases is the only one (default leases)", func(kind string) error {
		if kind != "leases" {
			return errors.New("want leases")
		}
		return nil
	})
	f.add("leader-elect-resource-lock", "")
	f.string(&l.ResourceName, "leader-elect-resource-name", "leaderElection.resourceName", "`name` of the Lease")
	f.string(&l.ResourceNamespace, "leader-elect-resource-namespace", "leaderElection.resourceNamespace", "`namespace` of the Lease (default the Pod's, or kube-system outside of a cluster)")
}

func (f *flags) signing(c *Configuration) {
	s := &c.Signing
	f.group("Signing")
	f.string(&s.Secret, "signing-secret", "signing.secret", "`namespace/name` of a Secret of type kubernetes.io/tls with the CA for all of Kubernetes' signers")
	f.string(&s.CertFile, "cluster-signing-cert-file", "signing.certFile", "`file` with the CA certificate for all of Kubernetes' signers")
	f.string(&s.KeyFile, "cluster-signing-key-file", "signing.keyFile", "`file` with the CA key for all of Kubernetes' signers")
	for _, one := range perSignerFlags {
		f.pair(s, one.middle, one.signer)
	}
	for _, name := range retiredFlags {
		f.set.Func(name, "`file` that does nothing: no request can name kubernetes.io/legacy-unknown since Kubernetes 1.22", func(string) error {
			c.Retired = append(c.Retired, "--"+name)
			return nil
		})
		f.add(name, "")
	}
	f.set.DurationVar(&s.Duration.Duration, "cluster-signing-duration", s.Duration.Duration, "longest lifetime of certificates, and that of requests without a wish")
	f.add("cluster-signing-duration", "signing.duration")
}

// pair defines the two file flags of one signer.
func (f *flags) pair(s *Signing, middle, signer string) {
	for _, half := range []struct {
		name, what, field string
		target            func(*Signer) *string
	}{
		{"cert", "certificate", "certFile", func(s *Signer) *string { return &s.CertFile }},
		{"key", "key", "keyFile", func(s *Signer) *string { return &s.KeyFile }},
	} {
		name := fmt.Sprintf("cluster-signing-%s-%s-file", middle, half.name)
		f.set.Func(name, fmt.Sprintf("`file` with the CA %s for %s alone; signers without a pair are then not served", half.what, signer), func(file string) error {
			*half.target(s.signer(signer)) = file
			return nil
		})
		f.add(name, fmt.Sprintf("signing.signers[%s].%s", signer, half.field))
	}
}

// signer returns the settings of the signer called name, and makes them where there are none.
func (s *Signing) signer(name string) *Signer {
	for i := range s.Signers {
		if s.Signers[i].Name == name {
			return &s.Signers[i]
		}
	}
	s.Signers = append(s.Signers, Signer{Name: name})
	return &s.Signers[len(s.Signers)-1]
}

// commands are the lines of the help about subcommands.
const commands = `       csr-controller-manager check [flags]           look whether everything around it is as it must be
       csr-controller-manager explain [flags] NAME    say what becomes of a request, and why
       csr-controller-manager bootstrap-token ...     print a bootstrap token for one node
`

// help writes all flags, by group.
func (f *flags) help(out io.Writer) {
	about, usage := "csr-controller-manager approves, signs and cleans CertificateSigningRequests.", "[flags]\n"+commands
	if f.command != nil {
		about, usage = f.command.About, f.command.Usage+"\n"
	}
	_, _ = fmt.Fprintf(out, "%s\n\nUsage: csr-controller-manager %s", about, usage)
	for _, group := range f.groups {
		_, _ = fmt.Fprintf(out, "\n%s:\n", group.title)
		for _, name := range group.names {
			def := f.set.Lookup(name)
			what, usage := flag.UnquoteUsage(def)
			if def.DefValue != "" && def.DefValue != "false" {
				usage += fmt.Sprintf(" (default %s)", def.DefValue)
			}
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			_, _ = fmt.Fprintf(out, "  %s\n        %s\n", strings.TrimSpace(dashes+name+" "+what), usage)
		}
	}
}
