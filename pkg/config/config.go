// Package config is the versioned configuration: a file, and flags that override it. It reads the file, reports every
// mistake at once by flag name or field path, and knows nothing of controllers.
//
// "make docs" copies the comments of the fields into docs/reference/configuration.md.
package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/webhook"
)

// APIVersion and Kind must be in every configuration file.
const (
	APIVersion = "config.csr-controller-manager.io/v1alpha1"
	Kind       = "ControllerManagerConfiguration"
)

// Configuration holds all settings. Default fills it in.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// Controllers lists the controllers to run: `approver`, `signer`, `cleaner`, `rotation`, or kube-controller-manager's
	// names for them. `*` stands for all of them. A leading `-` excludes a controller.
	Controllers []string `json:"controllers"`
	// DryRun lists the controllers that only report what they would do, and write to no request. They have the same names.
	DryRun []string `json:"dryRun,omitempty"`
	// Kubeconfig is the file to reach the API server with. If it is empty, the manager tries the file that KUBECONFIG
	// names, then `~/.kube/config`, then the Pod's ServiceAccount.
	Kubeconfig string `json:"kubeconfig"`
	// KubeAPIQPS limits the requests to the API server per second. A negative value sets no limit: the API server's
	// priority and fairness decides.
	KubeAPIQPS float64 `json:"kubeAPIQPS"`
	// KubeAPIBurst limits the requests to the API server in a burst. It has an effect only with a positive `kubeAPIQPS`.
	KubeAPIBurst int `json:"kubeAPIBurst"`
	// Concurrency sets the number of workers of each controller.
	Concurrency Concurrency `json:"concurrency"`
	// LeaderElection configures the Lease.
	LeaderElection LeaderElection `json:"leaderElection"`
	// MetricsBindAddress is the `host:port` of `/metrics`. `0` switches the metrics off. Use an address that other hosts
	// can reach only with `metricsSecure`.
	MetricsBindAddress string `json:"metricsBindAddress"`
	// HealthProbeBindAddress is the `host:port` of `/healthz` and `/readyz`. `0` switches them off.
	HealthProbeBindAddress string `json:"healthProbeBindAddress"`
	// MetricsSecure serves the metrics by TLS, and only to users who may get the path `/metrics`.
	MetricsSecure bool `json:"metricsSecure"`
	// MetricsCertDir is the directory with `tls.crt` and `tls.key` for `metricsSecure`. If it is empty, the certificate is
	// self-signed.
	MetricsCertDir string `json:"metricsCertDir"`
	// Verbosity is the verbosity of the log: 0 logs every decision and every certificate, more is for debugging.
	Verbosity int `json:"verbosity"`
	// Audit configures the audit log.
	Audit Audit `json:"audit"`
	// SelfCheck configures the checks of rights.
	SelfCheck SelfCheck `json:"selfCheck"`
	// RequestLimits limits the size of a request.
	RequestLimits RequestLimits `json:"requestLimits"`
	// Approval configures the approver.
	Approval Approval `json:"approval"`
	// NodeBlockList is the `namespace/name` of a ConfigMap with names of nodes and the SHA-256 of client certificates.
	// Nothing is approved or signed for these nodes, or for requests that were made with these certificates: see
	// [Block a node or a certificate](../how-to/block-a-node.md).
	NodeBlockList string `json:"nodeBlockList,omitempty"`
	// Signing configures the signer.
	Signing Signing `json:"signing"`
	// Rotation configures the rotation of the signing CAs.
	Rotation Rotation `json:"rotation"`
	// Cleaning configures the cleaner.
	Cleaning Cleaning `json:"cleaning"`

	// Retired lists the flags that were given and have no effect.
	Retired []string `json:"-"`
}

// Audit configures the audit log: a JSON line for each decision and each certificate, in addition to the log.
type Audit struct {
	// Path is a file, or `-` for standard output. If it is empty, there is no audit log.
	Path string `json:"path"`
	// MaxSize is the size in MiB at which the file is rotated.
	MaxSize int `json:"maxSize"`
	// MaxBackups is the number of rotated files to keep. 0 keeps all of them.
	MaxBackups int `json:"maxBackups"`
	// MaxAge is the number of days to keep rotated files. 0 keeps them forever.
	MaxAge int `json:"maxAge"`
}

// RequestLimits limits the size of a request. The manager checks it before it parses, verifies, compares or prints
// anything else of the request. A larger request is `RequestTooLarge`: it is never approved, and Failed once approved.
// A request with more than 100 extensions is too large with any limits.
type RequestLimits struct {
	// MaxRequestBytes limits `spec.request`.
	MaxRequestBytes int `json:"maxRequestBytes"`
	// MaxDERBytes limits the PKCS#10 request in the first PEM block of `spec.request`.
	MaxDERBytes int `json:"maxDERBytes"`
	// MaxSubjectAttributes limits the attributes of the subject.
	MaxSubjectAttributes int `json:"maxSubjectAttributes"`
	// MaxNames limits the subjectAltNames of all types together.
	MaxNames int `json:"maxNames"`
	// MaxExtensions limits the attributes of the request and the extensions that they ask for, together.
	MaxExtensions int `json:"maxExtensions"`
}

// SelfCheck configures what the manager asks the API server about itself: its rights, and the kubelets' rights.
type SelfCheck struct {
	// Interval is the time between two checks. A check that did not pass is repeated within a minute. 0 switches all
	// checks off.
	Interval metav1.Duration `json:"interval"`
	// BootstrapGroups lists groups of users. At least one of the groups must be able to join nodes.
	BootstrapGroups []string `json:"bootstrapGroups"`
	// NodeGroups lists groups of nodes. Every one of the groups must be able to renew certificates.
	NodeGroups []string `json:"nodeGroups"`
}

// Concurrency sets how many requests each controller works on at a time.
type Concurrency struct {
	// Approver is the number of workers of the approver.
	Approver int `json:"approver"`
	// Signer is the number of workers of the signer.
	Signer int `json:"signer"`
	// Cleaner is the number of workers of the cleaner.
	Cleaner int `json:"cleaner"`
}

// LeaderElection configures the Lease that selects one of several replicas.
type LeaderElection struct {
	// Enabled makes the manager work only while it holds the Lease.
	Enabled bool `json:"enabled"`
	// LeaseDuration is how long a standby waits before it takes the Lease over.
	LeaseDuration metav1.Duration `json:"leaseDuration"`
	// RenewDeadline is how long the leader tries to renew the Lease before it gives up. It must be less than
	// `leaseDuration`.
	RenewDeadline metav1.Duration `json:"renewDeadline"`
	// RetryPeriod is the pause between two attempts, of the leader to renew the Lease and of a standby to take it. A
	// leader that stops releases the Lease, so a standby takes over after one to two pauses.
	RetryPeriod metav1.Duration `json:"retryPeriod"`
	// ResourceName is the name of the Lease.
	ResourceName string `json:"resourceName"`
	// ResourceNamespace is the namespace of the Lease. If it is empty, it is the Pod's, or kube-system outside of a
	// cluster.
	ResourceNamespace string `json:"resourceNamespace"`
}

// Rotation configures the [rotation of the signing CAs](rotation.md). Each CA has a SigningAuthority.
type Rotation struct {
	// Enabled switches the rotation on for every signing CA in a Secret. A CA then signs only after it is proven to be
	// trusted.
	Enabled bool `json:"enabled"`
	// OldLifetimeCap is the longest lifetime of certificates that the old CA issues while the new CA waits to be trusted.
	OldLifetimeCap metav1.Duration `json:"oldLifetimeCap"`
	// SettleFor is how long every API server must give the same answer, that it trusts a CA or rejects it, before the
	// manager relies on it.
	SettleFor metav1.Duration `json:"settleFor"`
}

// Signing configures the signer. It needs one CA for all of Kubernetes' signers, or one for each signer to serve.
type Signing struct {
	CA `json:",inline"`
	// Duration is the longest lifetime of a certificate, and the lifetime if the request asks for none. It must be more
	// than 2m9s. A signer can have its own.
	Duration metav1.Duration `json:"duration"`
	// MinRSABits is the smallest size of an RSA key, at least 1024. Larger keys than 8192 bits are never permitted.
	MinRSABits int `json:"minRSABits"`
	// ForbiddenSubjects lists subjects that no signer issues, unless the signer has its own list: `O=value` or
	// `CN=value`, with at most one `*`, at the end. If it is not set, it is `O=system:masters`.
	ForbiddenSubjects []string `json:"forbiddenSubjects,omitzero"`
	// Signers lists the signers with settings of their own: Kubernetes' signers and custom signers.
	Signers []Signer `json:"signers"`
}

// CA names the source of a signing certificate and its key: a Secret of type kubernetes.io/tls, or two files. Values
// can be compared.
type CA struct {
	// Secret is the `namespace/name` of a Secret of type `kubernetes.io/tls` with the CA. It excludes the files.
	Secret string `json:"secret,omitempty"`
	// CertFile is the file with the CA certificate. It needs `keyFile`.
	CertFile string `json:"certFile,omitempty"`
	// KeyFile is the file with the key of the CA. It needs `certFile`.
	KeyFile string `json:"keyFile,omitempty"`
	// Chain selects the CA certificates that follow an issued certificate: `Intermediates` (the default), `None` or
	// `WithRoot`. See [The signing CA](signing-ca.md).
	Chain ca.Chain `json:"chain,omitempty"`
	// CreateIfMissing makes the manager create a CA if the Secret does not exist.
	CreateIfMissing bool `json:"createIfMissing,omitempty"`
	// KeyAlgorithm is the key of a CA that the manager creates: `ECDSAP256` (the default), `ECDSAP384`, `RSA3072`,
	// `RSA4096` or `ED25519`.
	KeyAlgorithm ca.Algorithm `json:"keyAlgorithm,omitempty"`
	// CADuration is the lifetime of a CA that the manager creates. The default is ten years (87600h).
	CADuration metav1.Duration `json:"caDuration,omitzero"`
}

// Signer configures one signer.
type Signer struct {
	// Name is the signerName, such as `example.com/client`.
	Name string `json:"name"`
	CA   `json:",inline"`
	// Duration is the lifetime of a certificate if the request asks for none. The default is `signing.duration`.
	Duration *metav1.Duration `json:"duration,omitempty"`
	// MinDuration is the shortest lifetime: a request for less gets this. The default is ten minutes.
	MinDuration *metav1.Duration `json:"minDuration,omitempty"`
	// MaxDuration is the longest lifetime: a request for more gets this. The default is `duration`.
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`
	// Usages lists the usages that a custom signer permits. Required for a custom signer, and forbidden for Kubernetes'
	// signers, which have rules of their own.
	Usages []string `json:"usages,omitempty"`
	// ForbiddenSubjects replaces `signing.forbiddenSubjects` for this signer. If it is not set, a custom signer whose CA
	// the API servers trust for clients also forbids `O=system:*`, `O=kubeadm:*` and `CN=system:*`.
	ForbiddenSubjects []string `json:"forbiddenSubjects,omitzero"`
	// AllowWildcards permits DNS names that begin with `*.` for a custom signer. Kubernetes' signers always permit them.
	AllowWildcards bool `json:"allowWildcards,omitempty"`
	// AllowedNames lists the names that server certificates of a custom signer may hold if API servers trust its CA for
	// clients: DNS names, `*.suffix`, IP addresses, CIDRs, URIs and e-mail addresses. If it is not set, such a signer
	// issues no server certificates.
	AllowedNames []string `json:"allowedNames,omitempty"`
	// AllowNoExtKeyUsage permits certificates without an extended key usage for a custom signer whose CA no API server
	// trusts for clients.
	AllowNoExtKeyUsage bool `json:"allowNoExtKeyUsage,omitempty"`
}

// Cleaning configures the cleaner, and until when an approved request is signed.
type Cleaning struct {
	// Retention sets how long requests are kept.
	Retention Retention `json:"retention"`
	// Signers lists the signers with a retention of their own.
	Signers []SignerRetention `json:"signers"`
	// DeletesPerSecond limits how fast a backlog is deleted.
	DeletesPerSecond int `json:"deletesPerSecond"`
}

// Retention sets how long requests are kept. A negative duration keeps them forever.
type Retention struct {
	// Approved counts from the approval, for issued requests too. Requests that were approved longer ago are not signed.
	// The default is 1h.
	Approved *metav1.Duration `json:"approved,omitempty"`
	// Denied counts from the denial. The default is 1h.
	Denied *metav1.Duration `json:"denied,omitempty"`
	// Failed counts from the failure. The default is 1h.
	Failed *metav1.Duration `json:"failed,omitempty"`
	// Pending counts from the creation of the request. The default is 24h.
	Pending *metav1.Duration `json:"pending,omitempty"`
	// Expired counts from the end of the issued certificate. The default is 0s: the request is deleted at once.
	Expired *metav1.Duration `json:"expired,omitempty"`
}

// SignerRetention overrides the retention for the requests of one signer. A field that is not set has the value for all signers.
type SignerRetention struct {
	// Name is the signerName.
	Name string `json:"name"`
	// Retention sets how long requests of this signer are kept.
	Retention Retention `json:"retention"`
}

// Default returns the configuration of a manager without a file and without flags.
func Default() *Configuration {
	return &Configuration{
		TypeMeta:     metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		Controllers:  []string{"*"},
		KubeAPIQPS:   -1,
		KubeAPIBurst: 30,
		Concurrency:  Concurrency{Approver: 50, Signer: 20, Cleaner: 5},
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
		// An API server reads its client CA file again every minute.
		Rotation: Rotation{
			OldLifetimeCap: metav1.Duration{Duration: 24 * time.Hour}, SettleFor: metav1.Duration{Duration: 90 * time.Second},
		},
		Cleaning: Cleaning{DeletesPerSecond: 100},
	}
}

// Approval configures the approver.
type Approval struct {
	// Denial is `Never`, or `Permanent`: deny requests that can never become valid.
	Denial string `json:"denial"`
	// NodeClient configures the approval of first certificates of nodes.
	NodeClient NodeClient `json:"nodeClient"`
	// KubeletServing configures the approval of serving certificates of kubelets.
	KubeletServing KubeletServing `json:"kubeletServing"`
	// Inventory configures the sources that know the nodes.
	Inventory Inventory `json:"inventory"`
	// Limit limits the approvals of each requester for each node and signer.
	Limit ApprovalLimit `json:"limit"`
}

// ApprovalLimit limits how often one requester is approved for one node and one signer. 0 for both fields sets no
// limit.
type ApprovalLimit struct {
	// Burst is the number of approvals in a burst.
	Burst int `json:"burst"`
	// PerHour is the number of approvals per hour after that.
	PerHour int `json:"perHour"`
}

// KubeletServing configures the [approval of serving certificates of kubelets](../how-to/approve-kubelet-serving.md).
type KubeletServing struct {
	// Enabled switches the approval on.
	Enabled bool `json:"enabled"`
	// ClusterDomain is the domain of Services. No node gets a name in it.
	ClusterDomain string `json:"clusterDomain"`
	// Reserved lists names, addresses and CIDRs that no node gets, in addition to those that the manager knows itself:
	// virtual addresses and load balancers of the API servers, and the Service CIDR.
	Reserved []string `json:"reserved,omitempty"`
	// APIServerNodes lists the nodes on which an API server runs, and whose address is that of its endpoint. It needs
	// `nodeClient.inventory` or `nodeClient.requireTokenBinding`.
	APIServerNodes []string `json:"apiServerNodes,omitempty"`
}

// Inventory configures what belongs to a node.
type Inventory struct {
	// Sources lists the sources, strongest first. The first source that knows a node decides alone.
	Sources []Source `json:"sources"`
	// Kubeconfig is the file to reach the cluster with that holds the machines, if it is another cluster.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Source configures one source. Exactly one field must be set.
type Source struct {
	// Machine reads objects that describe machines, such as Machines of Cluster API.
	Machine *MachineSource `json:"machine,omitempty"`
	// Static reads a list that administrators write.
	Static *StaticSource `json:"static,omitempty"`
	// Webhook asks a server.
	Webhook *WebhookSource `json:"webhook,omitempty"`
	// Node uses what each Node reports of itself. It is `{}`.
	Node *NodeSource `json:"node,omitempty"`
}

// NodeSource uses the addresses that a Node reports of itself. It has no fields.
type NodeSource struct{}

// Values of NodeClient.Inventory.
const (
	// InventorySources asks approval.inventory.sources.
	InventorySources = "sources"
	// InventoryStatic asks approval.inventory.sources, too. At least one source must be static.
	InventoryStatic = "static"
	// InventoryClusterAPI and InventoryOpenShift first ask the Machines of Cluster API and of OpenShift.
	InventoryClusterAPI = "cluster-api"
	InventoryOpenShift  = "openshift"
)

// NodeClient configures which nodes get a first certificate. By default, the requester's permission alone decides, as
// with kube-controller-manager. Renewals do not depend on these fields. See
// [Node identity](../explanation/node-identity.md).
type NodeClient struct {
	// Inventory selects what must expect a node: `sources`, `static`, `cluster-api` or `openshift`. If it is empty, a node
	// need not be expected. `sources` asks `approval.inventory.sources`; with `static`, one of them must be static.
	Inventory string `json:"inventory"`
	// ClusterName is the `name` or `namespace/name` of this cluster's Cluster object (cluster.x-k8s.io). It is required
	// with `cluster-api`: a management cluster holds the Machines of all its clusters, and only those of this cluster
	// count.
	ClusterName string `json:"clusterName,omitempty"`
	// JoinWindow is the time in which a new machine may ask. It needs `inventory`.
	JoinWindow JoinWindow `json:"joinWindow"`
	// MaxRequestAge is the age from which a request for a first certificate is not approved. It needs `inventory` or
	// `requireTokenBinding`.
	MaxRequestAge metav1.Duration `json:"maxRequestAge"`
	// Rejoin lets an expected machine join again if its Node is dead or gone. It needs `inventory` or
	// `requireTokenBinding`.
	Rejoin bool `json:"rejoin"`
	// CertificateLifetime is the longest lifetime of a kubelet's client certificate in this cluster, whoever signed it.
	// It needs `rejoin`: a node that was not seen for longer counts as dead. 0 means that it is not known.
	CertificateLifetime metav1.Duration `json:"certificateLifetime"`
	// RequireTokenBinding requires that a bootstrap token is bound to the node: see
	// [Bind bootstrap tokens](../how-to/bind-bootstrap-tokens.md).
	RequireTokenBinding bool `json:"requireTokenBinding"`
	// BootstrapUsers lists the only users who may bootstrap nodes. If it is empty, their permission decides. It
	// needs `inventory` or `requireTokenBinding`.
	BootstrapUsers []string `json:"bootstrapUsers,omitempty"`
}

// JoinWindow is the time in which a new machine may ask, relative to the creation of its object.
type JoinWindow struct {
	// Before is how long before the creation the window opens.
	Before metav1.Duration `json:"before"`
	// After is how long after the creation the window closes. 0 sets no limit: a machine may ask at any time.
	After metav1.Duration `json:"after"`
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

// MachineSource selects the objects that describe machines. Paths are written as for `kubectl get -o jsonpath`.
type MachineSource struct {
	// Group is the API group of the objects.
	Group string `json:"group"`
	// Version is the API version. If it is empty, it is the version that the API server prefers.
	Version string `json:"version,omitempty"`
	// Kind is the kind of the objects.
	Kind string `json:"kind"`
	// Namespace is the namespace of the objects. If it is empty, all namespaces count. A management cluster has the
	// machines of all its clusters: select those of this cluster by namespace or selector.
	Namespace string `json:"namespace,omitempty"`
	// Selector is a label selector for the objects.
	Selector string `json:"selector,omitempty"`
	// NodeRefPath leads to the name of the Node that the machine became.
	NodeRefPath string `json:"nodeRefPath,omitempty"`
	// AddressesPath leads to addresses `{type, address}` as in a Node's status, or to plain addresses and names.
	AddressesPath string `json:"addressesPath,omitempty"`
	// NamePath leads to the name that the machine's Node will have, if `nameTypes` do not give it.
	NamePath string `json:"namePath,omitempty"`
	// NameTypes lists the types of addresses that give the name of the node.
	NameTypes []string `json:"nameTypes,omitempty"`
	// CreatedPath leads to the time from which the join window counts. If it is empty, the creation of the object counts.
	CreatedPath string `json:"createdPath,omitempty"`
}

// StaticSource is a list of nodes: in a ConfigMap, or in this file.
type StaticSource struct {
	// ConfigMap is the `namespace/name` of a ConfigMap whose key `nodes.yaml` holds the rows.
	ConfigMap string `json:"configMap,omitempty"`
	// Rows holds the rows themselves. It excludes `configMap`.
	Rows []static.Row `json:"rows,omitempty"`
}

// WebhookSource configures a [server that is asked by HTTPS](inventory-webhook.md).
type WebhookSource struct {
	// URL is the address of the server.
	URL string `json:"url"`
	// CAFile holds the CAs that the server's certificate may chain to. No others are trusted.
	CAFile string `json:"caFile"`
	// CertFile is the manager's client certificate, if the server asks for one.
	CertFile string `json:"certFile,omitempty"`
	// KeyFile is the key of the client certificate.
	KeyFile string `json:"keyFile,omitempty"`
	// Timeout limits one lookup. The default is 5s.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Options returns the options of the webhook.
func (w *WebhookSource) Options() webhook.Options {
	return webhook.Options{
		URL: w.URL, CAFile: w.CAFile, CertFile: w.CertFile, KeyFile: w.KeyFile, Timeout: w.Timeout.Duration,
	}
}

// ConfigMapName splits ConfigMap into its halves; both are empty for anything but namespace/name.
func (s *StaticSource) ConfigMapName() (namespace, name string) { return splitName(s.ConfigMap) }

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
