// Package config is the versioned configuration: a file, and flags that override it. It reads the file, reports every
// mistake in a value at once by flag name or field path, and knows nothing of controllers.
//
// A field is described by its comment, which --help and docs/reference/configuration.md show, and by its tags: flag names
// the flag that sets it, form is the form of its value, and min its least value. All other checks stand beside the types.
package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// APIVersion and Kind must be in every configuration file.
const (
	APIVersion = "config.csr-controller-manager.io/v1alpha1"
	Kind       = "ControllerManagerConfiguration"
)

// Configuration holds all settings. Default fills it in.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// Controllers lists the controllers to run: approver, signer, cleaner, rotation, or kube-controller-manager's
	// names. `*` means all; a leading `-` excludes one.
	Controllers []string `json:"controllers" flag:"controllers" form:"list"`
	// DryRun lists the controllers that only report [what they would do](reasons.md#dry-run).
	DryRun []string `json:"dryRun,omitempty" flag:"dry-run" form:"list"`
	// Kubeconfig is the kubeconfig file. The default is KUBECONFIG, then `~/.kube/config`, then the Pod's
	// ServiceAccount.
	Kubeconfig string `json:"kubeconfig" flag:"kubeconfig" form:"file"`
	// Home is the cluster of the signing CAs, if it is not the served cluster.
	Home Home `json:"home"`
	// KubeAPIQPS limits requests to the API server per second. Negative means no limit.
	KubeAPIQPS float64 `json:"kubeAPIQPS" flag:"kube-api-qps"`
	// KubeAPIBurst limits a burst of them, with a positive `kubeAPIQPS` only.
	KubeAPIBurst int `json:"kubeAPIBurst" flag:"kube-api-burst" min:"1"`
	// Concurrency sets the number of workers of each controller.
	Concurrency Concurrency `json:"concurrency"`
	// LeaderElection configures the Lease.
	LeaderElection LeaderElection `json:"leaderElection"`
	// MetricsBindAddress is the `host:port` of `/metrics`; `0` switches it off.
	MetricsBindAddress string `json:"metricsBindAddress" flag:"metrics-bind-address" form:"host:port"`
	// HealthProbeBindAddress is the `host:port` of `/healthz` and `/readyz`; `0` switches them off.
	HealthProbeBindAddress string `json:"healthProbeBindAddress" flag:"health-probe-bind-address" form:"host:port"`
	// MetricsSecure serves metrics by TLS, only to users who may `get` the path `/metrics`.
	MetricsSecure bool `json:"metricsSecure" flag:"metrics-secure"`
	// MetricsCertDir is the directory with `tls.crt` and `tls.key` for `metricsSecure`. If empty, the certificate is
	// self-signed.
	MetricsCertDir string `json:"metricsCertDir" flag:"metrics-cert-dir" form:"directory"`
	// Verbosity is the verbosity of the log: 0 logs every decision and certificate.
	Verbosity int `json:"verbosity" flag:"v" min:"0"`
	// Audit configures the audit log.
	Audit Audit `json:"audit"`
	// SelfCheck configures the checks of rights.
	SelfCheck SelfCheck `json:"selfCheck"`
	// RequestLimits limits the size of a request.
	RequestLimits csr.Limits `json:"requestLimits"`
	// Approval configures the approver.
	Approval Approval `json:"approval"`
	// NodeBlockList is the `namespace/name` of the ConfigMap with the [block list](../how-to/revoke-a-credential.md).
	NodeBlockList string `json:"nodeBlockList,omitempty" flag:"node-block-list" form:"namespace/name"`
	// BlockListEnforcement configures the proof that API servers enforce the block list.
	BlockListEnforcement BlockListEnforcement `json:"blockListEnforcement"`
	// Signing configures the signer.
	Signing Signing `json:"signing"`
	// Rotation configures the rotation of the signing CAs.
	Rotation Rotation `json:"rotation"`
	// Cleaning configures the cleaner.
	Cleaning Cleaning `json:"cleaning"`

	// Retired lists the flags that were given and have no effect.
	Retired []string `json:"-"`
	// CompiledRules are those of Approval.Rules. Load and LoadFile set them.
	CompiledRules []*rules.Compiled `json:"-"`
}

// Home is [another cluster than the served one](../how-to/host-a-control-plane-elsewhere.md).
type Home struct {
	// Kubeconfig is the kubeconfig file of the cluster that holds the signing Secrets, the SigningAuthorities, their ConfigMaps
	// and Secrets, and the Lease. Requests are in the cluster of `kubeconfig`. If empty, one cluster is both.
	Kubeconfig string `json:"kubeconfig" flag:"home-kubeconfig" form:"file"`
}

// Apart reports whether the home is another cluster than the served one.
func (h Home) Apart() bool { return h.Kubeconfig != "" }

// BlockListEnforcement configures the proof that API servers [enforce the block list](../how-to/revoke-a-credential.md#set-up).
type BlockListEnforcement struct {
	// Enabled asks each API server whether it refuses what the list names: after every change, and every five minutes. Set it if
	// `write-authorization` runs beside each API server.
	Enabled bool `json:"enabled" flag:"block-list-enforcement"`
	// APIServers lists the `host:port` of all API servers. If empty, they are the endpoints of the Service `kubernetes`.
	APIServers []string `json:"apiServers"`
	// ServerName is the name in the API servers' certificates. If empty, it is `kubernetes.default.svc`.
	ServerName string `json:"serverName"`
}

// Audit configures the [audit log](metrics.md#audit-log).
type Audit struct {
	// Path is a file, or `-` for standard output. If empty, there is no audit log.
	Path string `json:"path" flag:"audit-log-path" form:"file"`
	// MaxSize is the size in MiB at which the file is rotated.
	MaxSize int `json:"maxSize" flag:"audit-log-maxsize" min:"1"`
	// MaxBackups is the number of rotated files to keep; 0 keeps all.
	MaxBackups int `json:"maxBackups" flag:"audit-log-maxbackup" min:"0"`
	// MaxAge is the number of days to keep rotated files; 0 keeps them forever.
	MaxAge int `json:"maxAge" flag:"audit-log-maxage" min:"0"`
}

// SelfCheck configures the [self-check](check.md).
type SelfCheck struct {
	// Interval is the time between two checks; 0 switches all checks off.
	Interval metav1.Duration `json:"interval" flag:"self-check-interval"`
	// BootstrapGroups lists groups, of which one must be able to join nodes, except with the inventory `openshift`.
	BootstrapGroups []string `json:"bootstrapGroups"`
	// NodeGroups lists groups that must be able to renew certificates.
	NodeGroups []string `json:"nodeGroups"`
}

// Concurrency limits how many requests each controller works on at a time.
type Concurrency struct {
	// Approver is the number of the approver's workers.
	Approver int `json:"approver" flag:"concurrent-approver-syncs" min:"1"`
	// Signer is the number of the signer's workers.
	Signer int `json:"signer" flag:"concurrent-signer-syncs" min:"1"`
	// Cleaner is the number of the cleaner's workers.
	Cleaner int `json:"cleaner" flag:"concurrent-cleaner-syncs" min:"1"`
}

// LeaderElection configures the Lease that selects one of several replicas.
type LeaderElection struct {
	// Enabled makes the manager work only while it holds the Lease.
	Enabled bool `json:"enabled" flag:"leader-elect"`
	// LeaseDuration is how long a standby waits before it takes the Lease over.
	LeaseDuration metav1.Duration `json:"leaseDuration" flag:"leader-elect-lease-duration"`
	// RenewDeadline is how long the leader tries to renew before it gives up; less than `leaseDuration`.
	RenewDeadline metav1.Duration `json:"renewDeadline" flag:"leader-elect-renew-deadline"`
	// RetryPeriod is the pause between two attempts to renew or take the Lease.
	RetryPeriod metav1.Duration `json:"retryPeriod" flag:"leader-elect-retry-period"`
	// ResourceName is the name of the Lease.
	ResourceName string `json:"resourceName" flag:"leader-elect-resource-name" form:"name"`
	// ResourceNamespace is the namespace of the Lease. The default is the Pod's, or kube-system outside a cluster.
	ResourceNamespace string `json:"resourceNamespace" flag:"leader-elect-resource-namespace" form:"namespace"`
}

func (l *LeaderElection) validate(m *mistakes, path *field.Path) {
	if !l.Enabled {
		return
	}
	retry, renew, lease := l.RetryPeriod.Duration, l.RenewDeadline.Duration, l.LeaseDuration.Duration
	m.unless(retry > 0, path.Child("retryPeriod"), retry, "must be positive")
	m.unless(float64(renew) > 1.2*float64(retry), path.Child("renewDeadline"), renew,
		"must be more than 1.2 times the retry period")
	m.unless(lease > renew, path.Child("leaseDuration"), lease, "must be more than the renew deadline")
	m.require(l.ResourceName != "", path.Child("resourceName"), "the Lease needs a name")
}

// Default returns the configuration of a manager without a file and without flags.
func Default() *Configuration {
	return &Configuration{
		TypeMeta:     metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		Controllers:  []string{"*"},
		KubeAPIQPS:   -1,
		KubeAPIBurst: 30,
		Concurrency:  Concurrency{Approver: call.ApproverWorkers, Signer: call.SignerWorkers, Cleaner: call.CleanerWorkers},
		LeaderElection: LeaderElection{
			Enabled:       true,
			LeaseDuration: metav1.Duration{Duration: 15 * time.Second},
			RenewDeadline: metav1.Duration{Duration: 10 * time.Second},
			RetryPeriod:   metav1.Duration{Duration: 500 * time.Millisecond},
			ResourceName:  "csr-controller-manager",
		},
		MetricsBindAddress:     "127.0.0.1:8080",
		HealthProbeBindAddress: ":8081",
		Audit:                  Audit{MaxSize: 100, MaxBackups: 10},
		SelfCheck: SelfCheck{
			Interval:        metav1.Duration{Duration: time.Hour},
			BootstrapGroups: []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"},
			NodeGroups:      []string{"system:nodes"},
		},
		RequestLimits: csr.DefaultLimits,
		Approval: Approval{
			Denial: "Never",
			NodeClient: NodeClient{
				JoinWindow: JoinWindow{
					Before: metav1.Duration{Duration: 10 * time.Second}, After: metav1.Duration{Duration: 2 * time.Hour},
				},
				MaxRequestAge: metav1.Duration{Duration: 15 * time.Minute},
			},
			KubeletServing: KubeletServing{ClusterDomain: "cluster.local"},
			Inventory:      Inventory{Sources: []Source{{Node: &NodeSource{}}}},
		},
		Signing: Signing{Duration: metav1.Duration{Duration: ca.DefaultLifetime}, MinRSABits: ca.DefaultMinRSABits},
		Rotation: Rotation{
			OldLifetimeCap: metav1.Duration{Duration: v1alpha1.DefaultOldLifetimeCap},
			SettleFor:      metav1.Duration{Duration: v1alpha1.DefaultSettleFor},
		},
		Cleaning: Cleaning{DeletesPerSecond: call.DeletesPerSecond},
	}
}

// Controller names a controller that can be switched on and off.
type Controller string

// The controllers.
const (
	ApproverController Controller = "approver"
	SignerController   Controller = "signer"
	CleanerController  Controller = "cleaner"
	RotationController Controller = "rotation"
)

// controllerNames maps all names of the controllers: ours, and kube-controller-manager's with their aliases
// (cmd/kube-controller-manager/names/controller_names.go).
var controllerNames = map[string]Controller{
	"approver":     ApproverController,
	"csrapproving": ApproverController,
	"certificatesigningrequest-approving-controller": ApproverController,
	"signer":     SignerController,
	"csrsigning": SignerController,
	"certificatesigningrequest-signing-controller": SignerController,
	"cleaner":    CleanerController,
	"csrcleaner": CleanerController,
	"certificatesigningrequest-cleaner-controller": CleanerController,
	"rotation": RotationController,
}

// DryRuns reports whether a controller only reports what it would do.
func (c *Configuration) DryRuns(controller Controller) bool {
	names := func(entry string) bool { return entry == "*" || controllerNames[entry] == controller }
	return slices.ContainsFunc(c.DryRun, names)
}

// Enabled reports whether a controller runs. As in kube-controller-manager the first entry that names it decides, and
// only then the * (k8s.io/controller-manager/app, IsControllerEnabled). Rotation must be on as well, and has no dry
// run.
func (c *Configuration) Enabled(controller Controller) bool {
	if controller == RotationController && (!c.Rotation.Enabled || c.DryRuns(controller)) {
		return false
	}
	star := false
	for _, entry := range c.Controllers {
		name, off := strings.CutPrefix(entry, "-")
		switch {
		case entry == "*":
			star = true
		case controllerNames[name] == controller:
			return !off
		}
	}
	return star
}

// Warnings returns a sentence for each setting that loads but does not do what an operator would expect of it. inPod
// says whether the manager runs in a Pod.
func (c *Configuration) Warnings(inPod bool) []string {
	var warnings []string
	for _, rule := range c.CompiledRules {
		warnings = append(warnings, rule.Warnings...)
	}
	if standard := Default().MetricsBindAddress; inPod && c.MetricsBindAddress == standard {
		warnings = append(warnings, fmt.Sprintf("metricsBindAddress is %s, the default: nothing outside of this Pod can "+
			"read the metrics; set metricsBindAddress \":8443\" and metricsSecure true, or metricsBindAddress \"0\" for no metrics",
			standard))
	}
	for _, name := range c.Retired {
		warnings = append(warnings, fmt.Sprintf("%s does nothing: no request can name kubernetes.io/legacy-unknown since "+
			"Kubernetes 1.22; remove the flag", name))
	}
	return warnings
}

// BlockListName splits NodeBlockList into a namespace and a name. Both are empty for anything but namespace/name.
func (c *Configuration) BlockListName() (namespace, name string) { return splitName(c.NodeBlockList) }

// validate returns every mistake in c. Only a manager needs a CA.
func (c *Configuration) validate(manager bool, conditions NewConditions) field.ErrorList {
	m, path := &mistakes{}, field.NewPath
	c.validateControllers(m)
	m.unless(c.KubeAPIQPS != 0, path("kubeAPIQPS"), c.KubeAPIQPS, "must be positive, or negative for no limit")
	m.tags(c, "")
	m.unless(c.MetricsCertDir == "" || c.MetricsSecure, path("metricsCertDir"), c.MetricsCertDir,
		"has no effect without --metrics-secure")
	for _, entry := range c.DryRun {
		_, known := controllerNames[entry]
		m.unless(known || entry == "*", path("dryRun"), entry, "unknown controller: want approver, signer or cleaner")
	}
	proof := path("blockListEnforcement", "enabled")
	m.unless(!c.BlockListEnforcement.Enabled || c.NodeBlockList != "", proof, true, "needs a nodeBlockList")
	if c.Home.Apart() {
		m.require(c.Kubeconfig != "", path("kubeconfig"), "name the served cluster, because the home is another one")
		m.require(!c.BlockListEnforcement.Enabled || len(c.BlockListEnforcement.APIServers) > 0, path("blockListEnforcement", "apiServers"),
			"list all API servers: with a home of its own, the manager does not believe the EndpointSlices of the served cluster")
	}
	c.LeaderElection.validate(m, path("leaderElection"))
	interval := c.SelfCheck.Interval.Duration
	m.unless(interval >= 0, path("selfCheck", "interval"), interval, "must be positive, or 0 to switch the check off")
	m.require(len(c.SelfCheck.BootstrapGroups) > 0, path("selfCheck", "bootstrapGroups"),
		"list the groups of the users that join nodes")
	m.require(len(c.SelfCheck.NodeGroups) > 0, path("selfCheck", "nodeGroups"), "list the groups of the nodes")
	c.Approval.validate(m, path("approval"))
	c.compileRules(m, conditions)
	c.Signing.validate(m, path("signing"), manager && c.Enabled(SignerController))
	m.lifetime(path("rotation", "oldLifetimeCap"), &c.Rotation.OldLifetimeCap)
	settle := c.Rotation.SettleFor.Duration
	m.unless(settle > 0, path("rotation", "settleFor"), settle, "must be positive")
	if c.Rotation.Enabled && c.Enabled(SignerController) {
		c.Signing.validateGuarded(m, path("signing"))
	}
	c.Cleaning.validate(m, path("cleaning"))
	return m.all
}

func (c *Configuration) validateControllers(m *mistakes) {
	path := field.NewPath("controllers")
	for _, entry := range c.Controllers {
		_, known := controllerNames[strings.TrimPrefix(entry, "-")]
		m.unless(known || entry == "*", path, entry, "unknown controller: want approver, signer, cleaner or rotation")
	}
	all := []Controller{ApproverController, SignerController, CleanerController, RotationController}
	m.unless(len(m.all) > 0 || slices.ContainsFunc(all, c.Enabled), path, strings.Join(c.Controllers, ","),
		"no controller is left to run")
}
