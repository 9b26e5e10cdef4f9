// Package config is the versioned configuration: a file, and flags that override it. It reads the file, reports every
// mistake at once by flag name or field path, and knows nothing of controllers.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/webhook"
)

// APIVersion and Kind are what a configuration file must say.
const (
	APIVersion = "config.csr-controller-manager.io/v1alpha1"
	Kind       = "ControllerManagerConfiguration"
)

// Configuration is all that can be configured. Default fills it in.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// Controllers to run: approver, signer, cleaner, rotation, or kube-controller-manager's names for them; * is all, and
	// a leading - leaves one out.
	Controllers []string `json:"controllers"`
	// DryRun are the controllers, named as above, that only say what they would do, and write to no request.
	DryRun []string `json:"dryRun,omitempty"`
	// Kubeconfig is a file; empty means the usual places, then the Pod's ServiceAccount.
	Kubeconfig string `json:"kubeconfig"`
	// KubeAPIQPS and KubeAPIBurst bound the requests to the API server; a negative QPS, the default, leaves that to
	// the API server's priority and fairness.
	KubeAPIQPS   float64 `json:"kubeAPIQPS"`
	KubeAPIBurst int     `json:"kubeAPIBurst"`
	// Concurrency is how many requests each controller works on at a time.
	Concurrency    Concurrency    `json:"concurrency"`
	LeaderElection LeaderElection `json:"leaderElection"`
	// MetricsBindAddress and HealthProbeBindAddress are host:port; "0" switches them off.
	MetricsBindAddress     string `json:"metricsBindAddress"`
	HealthProbeBindAddress string `json:"healthProbeBindAddress"`
	// MetricsSecure serves metrics by TLS, and only to who may get the path /metrics. MetricsCertDir holds tls.crt and
	// tls.key for it; empty is a self-signed certificate.
	MetricsSecure  bool   `json:"metricsSecure"`
	MetricsCertDir string `json:"metricsCertDir"`
	// Verbosity of the log: 0 is every decision and certificate, more is for debugging.
	Verbosity int       `json:"verbosity"`
	Audit     Audit     `json:"audit"`
	SelfCheck SelfCheck `json:"selfCheck"`
	// RequestLimits bound what is read of a request. A larger one is never approved or signed.
	RequestLimits RequestLimits `json:"requestLimits"`
	Approval      Approval      `json:"approval"`
	// NodeBlockList is namespace/name of a ConfigMap with the names of nodes for which nothing is approved or signed.
	NodeBlockList string   `json:"nodeBlockList,omitempty"`
	Signing       Signing  `json:"signing"`
	Rotation      Rotation `json:"rotation"`
	Cleaning      Cleaning `json:"cleaning"`

	// Retired are the flags that were given and do nothing.
	Retired []string `json:"-"`
}

// Audit is where decisions and issuances are written as JSON lines, beside the log.
type Audit struct {
	// Path is a file, - for standard output, or empty for none.
	Path string `json:"path"`
	// MaxSize is in MiB, MaxAge in days; zero is no limit for MaxBackups and MaxAge.
	MaxSize    int `json:"maxSize"`
	MaxBackups int `json:"maxBackups"`
	MaxAge     int `json:"maxAge"`
}

// RequestLimits bound a request, before anything of it is parsed further, verified, compared or printed.
type RequestLimits struct {
	// MaxRequestBytes bounds spec.request, and MaxDERBytes the PKCS#10 request in its first PEM block.
	MaxRequestBytes int `json:"maxRequestBytes"`
	MaxDERBytes     int `json:"maxDERBytes"`
	// MaxSubjectAttributes bounds the attributes of the subject, and MaxNames the subjectAltNames of all kinds together.
	MaxSubjectAttributes int `json:"maxSubjectAttributes"`
	MaxNames             int `json:"maxNames"`
	// MaxExtensions bounds the attributes of the request and the extensions that they ask for, together.
	MaxExtensions int `json:"maxExtensions"`
}

// SelfCheck is what the manager asks the API server about its own ground: its rights, the kubelets', and whether its CA
// is trusted.
type SelfCheck struct {
	// Interval between checks; zero is never.
	Interval metav1.Duration `json:"interval"`
	// BootstrapGroups are those of which one at least must be able to join nodes; NodeGroups must all be able to renew.
	BootstrapGroups []string `json:"bootstrapGroups"`
	NodeGroups      []string `json:"nodeGroups"`
}

// Concurrency is the number of workers of each controller.
type Concurrency struct {
	Approver int `json:"approver"`
	Signer   int `json:"signer"`
	Cleaner  int `json:"cleaner"`
}

// LeaderElection is by a Lease.
type LeaderElection struct {
	Enabled       bool            `json:"enabled"`
	LeaseDuration metav1.Duration `json:"leaseDuration"`
	RenewDeadline metav1.Duration `json:"renewDeadline"`
	RetryPeriod   metav1.Duration `json:"retryPeriod"`
	ResourceName  string          `json:"resourceName"`
	// ResourceNamespace is the Pod's when empty, and kube-system outside of a cluster.
	ResourceNamespace string `json:"resourceNamespace"`
}

// Rotation is of the signing CAs, each with a SigningAuthority.
type Rotation struct {
	// Enabled has every signing Secret guarded: no CA signs that is not proven to be trusted.
	Enabled bool `json:"enabled"`
	// OldLifetimeCap is the longest that certificates live which a CA issues while its successor waits to be trusted.
	OldLifetimeCap metav1.Duration `json:"oldLifetimeCap"`
	// SettleFor is how long every API server must trust a CA, or refuse it, before that is believed.
	SettleFor metav1.Duration `json:"settleFor"`
}

// Signing configures the signer: either one CA for Kubernetes' three signers, or one for each that is to be served.
type Signing struct {
	CA `json:",inline"`
	// Duration of certificates, unless the request asks for less or a signer has its own.
	Duration metav1.Duration `json:"duration"`
	// MinRSABits refuses shorter RSA keys.
	MinRSABits int `json:"minRSABits"`
	// ForbiddenSubjects refuses subjects, for every signer that has none of its own: O=value or CN=value, with at most
	// one *, at the end. Unset is O=system:masters.
	ForbiddenSubjects []string `json:"forbiddenSubjects,omitempty"`
	// APIServers are those that are asked whether they trust a CA for clients, host:port or https URL each, where the
	// manager can't reach the endpoints of the Service kubernetes.
	APIServers []string `json:"apiServers,omitempty"`
	// Signers with settings of their own, Kubernetes' or custom ones.
	Signers []Signer `json:"signers"`
}

// CA is where a signing certificate and its key come from: a Secret of type kubernetes.io/tls, or two files. Values can
// be compared.
type CA struct {
	// Secret is namespace/name.
	Secret   string `json:"secret,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Chain says what certificates come with: Intermediates, the default, None or WithRoot.
	Chain ca.Chain `json:"chain,omitempty"`
	// CreateIfMissing has the manager make a CA, where Secret does not exist, with a key of KeyAlgorithm (ECDSAP256, the
	// default, ECDSAP384, RSA3072, RSA4096 or ED25519) and for CADuration, by default ten years.
	CreateIfMissing bool            `json:"createIfMissing,omitempty"`
	KeyAlgorithm    ca.Algorithm    `json:"keyAlgorithm,omitempty"`
	CADuration      metav1.Duration `json:"caDuration,omitzero"`
}

// Signer is one signer with settings of its own.
type Signer struct {
	// Name is the signerName that it serves.
	Name string `json:"name"`
	CA   `json:",inline"`
	// Duration, MinDuration and MaxDuration bound the lifetime of its certificates.
	Duration    *metav1.Duration `json:"duration,omitempty"`
	MinDuration *metav1.Duration `json:"minDuration,omitempty"`
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`
	// Usages are those that a custom signer permits; Kubernetes' signers have rules of their own.
	Usages []string `json:"usages,omitempty"`
	// ForbiddenSubjects is in the place of signing.forbiddenSubjects for this signer. Unset, a custom signer whose CA API
	// servers trust for clients forbids O=system:*, O=kubeadm:* and CN=system:* too.
	ForbiddenSubjects []string `json:"forbiddenSubjects,omitempty"`
	// AllowWildcards has a custom signer permit DNS names that begin with "*.", as Kubernetes' signers do.
	AllowWildcards bool `json:"allowWildcards,omitempty"`
	// AllowedNames are the names that a custom signer's server certificates may hold if API servers trust its CA for
	// clients: DNS names, *.suffix, IP addresses, CIDRs, URIs and e-mail addresses. Unset, it then serves no servers.
	AllowedNames []string `json:"allowedNames,omitempty"`
	// AllowNoExtKeyUsage has a custom signer whose CA API servers do not trust for clients issue certificates without an
	// extended key usage too.
	AllowNoExtKeyUsage bool `json:"allowNoExtKeyUsage,omitempty"`
}

// Cleaning configures the cleaner, and up to when an approved request is signed.
type Cleaning struct {
	Retention Retention `json:"retention"`
	// Signers with a retention of their own.
	Signers []SignerRetention `json:"signers"`
	// SupersededAfter is how long a pending request of a node is kept once the same requester has made a newer request
	// for the same node and signer. Zero, the default, keeps it as long as any pending request, as KCM does.
	SupersededAfter metav1.Duration `json:"supersededAfter"`
	// DeletesPerSecond bounds how fast a backlog goes.
	DeletesPerSecond int `json:"deletesPerSecond"`
}

// Retention says how long requests are kept; a negative duration is for ever.
type Retention struct {
	Approved *metav1.Duration `json:"approved,omitempty"`
	Denied   *metav1.Duration `json:"denied,omitempty"`
	Failed   *metav1.Duration `json:"failed,omitempty"`
	Pending  *metav1.Duration `json:"pending,omitempty"`
	// Expired counts from the end of the issued certificate.
	Expired *metav1.Duration `json:"expired,omitempty"`
}

// SignerRetention overrides the retention for the requests of one signer; what is unset is as for all.
type SignerRetention struct {
	Name      string    `json:"name"`
	Retention Retention `json:"retention"`
}

// Default is the configuration of a manager that is given nothing.
func Default() *Configuration {
	return &Configuration{
		TypeMeta:     metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		Controllers:  []string{"*"},
		KubeAPIQPS:   -1,
		KubeAPIBurst: 30,
		Concurrency:  Concurrency{Approver: 20, Signer: 20, Cleaner: 1},
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
		RequestLimits: RequestLimits{
			MaxRequestBytes: csr.DefaultLimits.RequestBytes, MaxDERBytes: csr.DefaultLimits.DERBytes,
			MaxSubjectAttributes: csr.DefaultLimits.SubjectAttributes, MaxNames: csr.DefaultLimits.Names,
			MaxExtensions: csr.DefaultLimits.Extensions,
		},
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
		// An API server looks every minute whether its client CA file has changed.
		Rotation: Rotation{
			OldLifetimeCap: metav1.Duration{Duration: 24 * time.Hour}, SettleFor: metav1.Duration{Duration: 90 * time.Second},
		},
		Cleaning: Cleaning{DeletesPerSecond: 100},
	}
}

// Approval configures the approver.
type Approval struct {
	// Denial is Never or Permanent: whether what can never become valid is denied.
	Denial         string         `json:"denial"`
	NodeClient     NodeClient     `json:"nodeClient"`
	KubeletServing KubeletServing `json:"kubeletServing"`
	// Inventory is what is known of nodes.
	Inventory Inventory `json:"inventory"`
	// Limit bounds the approvals of each requester for each node and signer; zero is no limit.
	Limit ApprovalLimit `json:"limit"`
}

// ApprovalLimit is a number at once, and one for each hour after that.
type ApprovalLimit struct {
	Burst   int `json:"burst"`
	PerHour int `json:"perHour"`
}

// KubeletServing switches the approval of kubelet serving certificates on.
type KubeletServing struct {
	Enabled bool `json:"enabled"`
	// ClusterDomain is the domain of Services: no node gets a name in it.
	ClusterDomain string `json:"clusterDomain"`
	// Reserved are names, addresses and CIDRs that no node gets, beside those that the manager knows itself: virtual
	// addresses and load balancers before the API servers, the Service CIDR.
	Reserved []string `json:"reserved,omitempty"`
	// APIServerNodes are the nodes on which an API server runs, whose endpoint is the node's own address.
	APIServerNodes []string `json:"apiServerNodes,omitempty"`
}

// Inventory is where is known what belongs to a node.
type Inventory struct {
	// Sources in order, strongest first: the first one that knows a node answers alone.
	Sources []Source `json:"sources"`
	// Kubeconfig is a file to reach the cluster with that holds the machines, if it is another one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Source is one source: exactly one field is set.
type Source struct {
	Machine *MachineSource `json:"machine,omitempty"`
	Static  *StaticSource  `json:"static,omitempty"`
	Webhook *WebhookSource `json:"webhook,omitempty"`
	Node    *NodeSource    `json:"node,omitempty"`
}

// NodeSource believes the addresses that a Node reports of itself.
type NodeSource struct{}

// Values of NodeClient.Inventory.
const (
	// InventorySources asks approval.inventory.sources.
	InventorySources = "sources"
	// InventoryStatic is InventorySources, of which one at least must be static.
	InventoryStatic = "static"
	// InventoryClusterAPI and InventoryOpenShift ask the Machines of Cluster API and of OpenShift first.
	InventoryClusterAPI = "cluster-api"
	InventoryOpenShift  = "openshift"
)

// NodeClient says which nodes may get a first certificate. By default that is up to the requester's permission alone,
// as with kube-controller-manager. Renewals are not its matter.
type NodeClient struct {
	// Inventory is who must expect a node: sources, static, cluster-api or openshift; empty is nobody.
	Inventory string `json:"inventory"`
	// ClusterName is the Cluster of cluster.x-k8s.io that this cluster is, as name or namespace/name. A management cluster
	// holds the Machines of all its clusters, and cluster-api counts only those of this one.
	ClusterName string `json:"clusterName,omitempty"`
	// JoinWindow is when a machine may ask, counted from its creation.
	JoinWindow JoinWindow `json:"joinWindow"`
	// MaxRequestAge is the age at which a request is not approved any more.
	MaxRequestAge metav1.Duration `json:"maxRequestAge"`
	// Rejoin lets an expected machine come back whose Node is dead or gone.
	Rejoin bool `json:"rejoin"`
	// CertificateLifetime is the longest that a kubelet's client certificate lives in this cluster, whoever signed it:
	// with rejoin, a node that has not been seen for longer is dead. Zero is not known.
	CertificateLifetime metav1.Duration `json:"certificateLifetime"`
	// RequireTokenBinding wants a bootstrap token to be bound to the node.
	RequireTokenBinding bool `json:"requireTokenBinding"`
	// BootstrapUsers, if any, are the only ones who may bootstrap.
	BootstrapUsers []string `json:"bootstrapUsers,omitempty"`
}

// JoinWindow is from Before a machine's creation to After it. Zero for After is no window.
type JoinWindow struct {
	Before metav1.Duration `json:"before"`
	After  metav1.Duration `json:"after"`
}

// Cluster splits ClusterName into its halves. The namespace is empty if ClusterName is a name alone.
func (n *NodeClient) Cluster() (namespace, name string) {
	if namespace, name, found := strings.Cut(n.ClusterName, "/"); found {
		return namespace, name
	}
	return "", n.ClusterName
}

// Bound reports whether a first certificate needs more than a permission.
func (n *NodeClient) Bound() bool { return n.Inventory != "" || n.RequireTokenBinding }

// MachineSource says which objects are machines, and where in them to look, by paths as in kubectl get -o jsonpath.
type MachineSource struct {
	Group string `json:"group"`
	// Version is the one that the API server prefers when empty.
	Version       string   `json:"version,omitempty"`
	Kind          string   `json:"kind"`
	Namespace     string   `json:"namespace,omitempty"`
	Selector      string   `json:"selector,omitempty"`
	NodeRefPath   string   `json:"nodeRefPath,omitempty"`
	AddressesPath string   `json:"addressesPath,omitempty"`
	NamePath      string   `json:"namePath,omitempty"`
	NameTypes     []string `json:"nameTypes,omitempty"`
	CreatedPath   string   `json:"createdPath,omitempty"`
}

// StaticSource is a list that somebody keeps: in a ConfigMap, or here.
type StaticSource struct {
	// ConfigMap is namespace/name; the rows are under the key nodes.yaml.
	ConfigMap string       `json:"configMap,omitempty"`
	Rows      []static.Row `json:"rows,omitempty"`
}

// WebhookSource is a server that is asked by HTTPS.
type WebhookSource struct {
	URL string `json:"url"`
	// CAFile holds the only certificates that the server's may chain to; CertFile and KeyFile, if set, are shown to it.
	CAFile   string `json:"caFile"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Timeout of one lookup; 0 is five seconds.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Options are those of the webhook.
func (w *WebhookSource) Options() webhook.Options {
	return webhook.Options{
		URL: w.URL, CAFile: w.CAFile, CertFile: w.CertFile, KeyFile: w.KeyFile, Timeout: w.Timeout.Duration,
	}
}

// ConfigMapName splits ConfigMap into its halves; both are empty for anything but namespace/name.
func (s *StaticSource) ConfigMapName() (namespace, name string) { return splitName(s.ConfigMap) }

// Controller is one of the controllers that can be switched on and off.
type Controller string

// The controllers.
const (
	ApproverController Controller = "approver"
	SignerController   Controller = "signer"
	CleanerController  Controller = "cleaner"
	RotationController Controller = "rotation"
)

// controllerNames are all names of the controllers: ours, and kube-controller-manager's with their aliases
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

// Empty reports whether there is neither a Secret nor a file.
func (c CA) Empty() bool { return c.Secret == "" && c.CertFile == "" && c.KeyFile == "" }

// sameSource reports whether c and other are read from the same place.
func (c CA) sameSource(other CA) bool {
	return c.Secret == other.Secret && c.CertFile == other.CertFile && c.KeyFile == other.KeyFile
}

// String names the CA in messages.
func (c CA) String() string {
	if c.Secret != "" {
		return "Secret " + c.Secret
	}
	return fmt.Sprintf("files %q and %q", c.CertFile, c.KeyFile)
}

// SecretName splits Secret into a namespace and a name. Both are empty for anything but namespace/name.
func (c CA) SecretName() (namespace, name string) { return splitName(c.Secret) }

// BlockListName splits NodeBlockList into a namespace and a name. Both are empty for anything but namespace/name.
func (c *Configuration) BlockListName() (namespace, name string) { return splitName(c.NodeBlockList) }

// ErrHelp and ErrVersion are returned by Load if the flags ask for that.
var (
	ErrHelp    = pflag.ErrHelp
	ErrVersion = errors.New("version requested")
)

// Command is what a command takes beside the manager's flags.
type Command struct {
	Flags   *pflag.FlagSet
	MaxArgs int
}

// Load returns the configuration: the defaults, overridden by the file that --config names, overridden by the other
// flags in args. It also returns the other arguments that command, which is nil for the manager, takes. Only the
// manager needs a CA. An error holds every mistake, each with its flag or field path.
func Load(args []string, command *Command) (*Configuration, []string, error) {
	manager := command == nil
	if manager {
		command = &Command{}
	}
	scout := NewFlags(Default())
	rest, errs := parse(scout.together(command.Flags), args)
	switch {
	case scout.help:
		return nil, nil, ErrHelp
	case scout.version:
		return nil, nil, ErrVersion
	}
	rest, surplus := rest[:min(len(rest), command.MaxArgs)], rest[min(len(rest), command.MaxArgs):]
	for _, arg := range surplus {
		errs = append(errs, fmt.Errorf("unexpected argument %q", arg))
	}
	configuration := Default()
	if scout.file != "" {
		if err := configuration.read(scout.file); err != nil {
			return nil, rest, errors.Join(append(errs, err)...)
		}
	}
	// The same flags again, with the same mistakes: now they override the file.
	flags := NewFlags(configuration)
	set := flags.together(command.Flags)
	_, _ = parse(set, args)
	for _, mistake := range configuration.validate(manager) {
		errs = append(errs, flags.name(set, mistake))
	}
	return configuration, rest, errors.Join(errs...)
}

func (c *Configuration) read(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	c.APIVersion, c.Kind = "", ""
	// encoding/json reads a list into the elements that are there: the first source would be two.
	sources := c.Approval.Inventory.Sources
	c.Approval.Inventory.Sources = nil
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if c.Approval.Inventory.Sources == nil {
		c.Approval.Inventory.Sources = sources
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("--config: %s: want apiVersion %s and kind %s, found %q and %q",
			file, APIVersion, Kind, c.APIVersion, c.Kind)
	}
	return nil
}
