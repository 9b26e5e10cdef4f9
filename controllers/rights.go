package controllers

import (
	"os"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// Right is one verb on one kind of object.
type Right struct {
	// Verb, Group, Resource (with /subresource), Namespace and Name are as in a Role; empty Names and Namespaces are all.
	Verb, Group, Resource, Namespace, Name string
	// Cluster is HomeCluster or ServedCluster. It is empty if both are one.
	Cluster string
	// Need names the part of the manager that needs it.
	Need string
	// Manifest is the shipped folder that grants it. It is empty if only a role of the operator can.
	Manifest string
	// Optional means that the controllers work without the right.
	Optional bool
}

// The clusters of rights, if the home is another cluster than the served one.
const (
	HomeCluster   = "home"
	ServedCluster = "served"
)

// String returns the Right as in `kubectl auth can-i`, with its cluster.
func (r Right) String() string { return check.Right(r).String() }

// Rights returns the rights that a manager with configuration c needs. The manager's Lease is in leaseNamespace. A
// test compares the rights with config/rbac.
func Rights(c *config.Configuration, leaseNamespace string) []Right {
	var all []Right
	of := func(need, manifest string) rights {
		one := rights{all: &all, each: Right{Need: need, Manifest: manifest}}
		if c.Home.Apart() {
			one.each.Cluster = ServedCluster
		}
		return one
	}
	if c.Enabled(config.ApproverController) {
		of("approver", shippedRoles).approver(c)
	}
	if c.Enabled(config.SignerController) {
		of("signer", shippedRoles).signer(c)
	}
	if c.Enabled(config.CleanerController) {
		of("cleaner", shippedRoles).cleaner(c)
	}
	if c.Enabled(config.RotationController) {
		of("rotation", rotationRoles).rotation(c)
	}
	if blocked := blockList(c); blocked != nil {
		namespace, name := c.BlockListName()
		list := of("block list", "config/node-block-list")
		list.add("", "configmaps", namespace, name, "get", "list", "watch")
		list.events(namespace)
		if blocked.Enforcement != nil {
			enforced := of("block list", "config/block-list-enforced")
			enforced.add("", "configmaps", namespace, name+entries.StatusSuffix, "get", "create", "patch", "block")
			enforced.add("discovery.k8s.io", "endpointslices", "default", "", "list")
		}
	}
	if c.LeaderElection.Enabled {
		election := of("leader election", shippedRoles).atHome()
		election.add(coordinationv1.GroupName, "leases", leaseNamespace, "", "create")
		election.add(coordinationv1.GroupName, "leases", leaseNamespace, c.LeaderElection.ResourceName, "get", "update")
		election.optional().add("", "events", leaseNamespace, "", "create", "patch")
	}
	if c.MetricsSecure {
		metrics := of("secure metrics", shippedRoles).optional().atHome()
		metrics.add(authenticationv1.GroupName, "tokenreviews", "", "", "create")
		metrics.add(authorizationv1.GroupName, "subjectaccessreviews", "", "", "create")
	}
	return all
}

// namespaceFile holds the Pod's namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// LeaseNamespace returns the namespace of the manager's Lease. It is the configured namespace or else the Pod's.
// Outside a cluster it is kube-system.
func LeaseNamespace(c *config.Configuration) string {
	if c.LeaderElection.ResourceNamespace != "" {
		return c.LeaderElection.ResourceNamespace
	}
	if namespace, err := os.ReadFile(namespaceFile); err == nil {
		return strings.TrimSpace(string(namespace))
	}
	return metav1.NamespaceSystem
}

const (
	// rootCA is the ConfigMap with the CAs of the API servers' own certificates.
	rootCA = "kube-root-ca.crt"

	requestsResource = "certificatesigningrequests"

	// shippedRoles and rotationRoles are folders with roles.
	shippedRoles, rotationRoles = "config/rbac", "config/rotation"
)

// shippedCA is the Secret of the signing CA that the roles in config/ name.
var shippedCA = types.NamespacedName{Namespace: "csr-controller-manager-system", Name: "csr-signer"}

// rights adds rights to all, without duplicates. each has the fields that they share: the part of the manager that needs
// them, and the folder whose roles grant them.
type rights struct {
	all  *[]Right
	each Right
}

// by returns r for the rights that the part need of the manager needs.
func (r rights) by(need string) rights {
	r.each.Need = need
	return r
}

// from returns r for rights that the roles in the folder manifest grant. It is empty if no shipped role grants them.
func (r rights) from(manifest string) rights {
	r.each.Manifest = manifest
	return r
}

// atHome returns r for rights in the home.
func (r rights) atHome() rights {
	if r.each.Cluster != "" {
		r.each.Cluster = HomeCluster
	}
	return r
}

// optional returns r for rights that the controllers can work without.
func (r rights) optional() rights {
	r.each.Optional = true
	return r
}

// ofSecret returns r for rights about a Secret. The shipped roles name only one.
func (r rights) ofSecret(namespace, name string) rights {
	if (types.NamespacedName{Namespace: namespace, Name: name}) != shippedCA {
		return r.from("")
	}
	return r
}

// onSigner adds the right to verb the signer. The shipped roles name only built-in signers.
func (r rights) onSigner(name, verb string) {
	if _, builtin := csr.BuiltinSigner(name); !builtin {
		r = r.from("")
	}
	r.add(certificatesv1.GroupName, "signers", "", name, verb)
}

func (r rights) add(group, resource, namespace, name string, verbs ...string) {
	for _, verb := range verbs {
		right := r.each
		right.Verb, right.Group, right.Resource, right.Namespace, right.Name = verb, group, resource, namespace, name
		same := func(known Right) bool { return known.String() == right.String() }
		i := slices.IndexFunc(*r.all, same)
		if i < 0 {
			*r.all = append(*r.all, right)
			continue
		}
		known := &(*r.all)[i]
		known.Optional = known.Optional && right.Optional
		if !strings.Contains(known.Need, right.Need) {
			known.Need += " and " + right.Need
		}
	}
}

// events adds the rights to write Events about objects in namespace. Events about cluster-scoped objects are in
// namespace default.
func (r rights) events(namespace string) {
	r.optional().add(eventsv1.GroupName, "events", namespace, "", "create", "patch")
}

func (r rights) approver(c *config.Configuration) {
	r.add(certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	if !c.DryRuns(config.ApproverController) {
		r.add(certificatesv1.GroupName, requestsResource+"/approval", "", "", "update")
		r.onSigner(certificatesv1.KubeAPIServerClientKubeletSignerName, "approve")
		if c.Approval.KubeletServing.Enabled {
			r.from("config/kubelet-serving").onSigner(certificatesv1.KubeletServingSignerName, "approve")
		}
	}
	r.add(authorizationv1.GroupName, "subjectaccessreviews", "", "", "create")
	if c.Approval.KubeletServing.Enabled || c.Approval.NodeClient.Bound() {
		r.by("inventory").inventory(c.Approval)
	}
	for _, rule := range c.CompiledRules { // a missing right concerns only the rules that need it
		if !c.DryRuns(config.ApproverController) {
			r.by("the approval rules for this signer, which are off without it").from("").optional().onSigner(rule.SignerName, "approve")
		}
		facts := r.by("approval rules").from("config/approval-rules")
		if rule.ReadsAccount {
			facts.add("", "serviceaccounts", "", "", "get")
		}
		if rule.Preset == rules.ServiceNames {
			facts.add("", "services", "", "", "get")
		}
	}
	r.events(metav1.NamespaceDefault)
}

func (r rights) signer(c *config.Configuration) {
	dryRun := c.DryRuns(config.SignerController)
	r.add(certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	if !dryRun {
		r.add(certificatesv1.GroupName, requestsResource+"/status", "", "", "update")
	}
	r.events(metav1.NamespaceDefault)
	for _, one := range servedSigners(c.Signing) {
		if !dryRun {
			r.onSigner(one.Name, "sign")
		}
		namespace, name := one.SecretName()
		if name == "" {
			continue
		}
		secret := r.atHome().ofSecret(namespace, name)
		secret.add("", "secrets", namespace, name, "list", "watch")
		secret.events(namespace)
		if one.CreateIfMissing && !dryRun { // needed at most once
			r.by("a new CA").from("config/create-ca").optional().atHome().add("", "secrets", namespace, "", "create")
		}
		if c.Rotation.Enabled && !dryRun { // the rotation controller creates the ledger
			book := r.by("ledger").from(rotationRoles).atHome().ofSecret(namespace, name)
			book.add("", "configmaps", namespace, ledger.BookName(name), "get", "update")
		}
	}
	// Without these, the rules of custom signers are strict.
	for _, name := range []string{trust.ExtensionName, rootCA} {
		r.by("trust in its CAs").optional().add("", "configmaps", trust.ExtensionNamespace, name, "get")
	}
	r.by("trust in its CAs").optional().add(certificatesv1.GroupName, "clustertrustbundles", "", "", "list")
}

func (r rights) cleaner(c *config.Configuration) {
	r.add(certificatesv1.GroupName, requestsResource, "", "", "list", "watch")
	if c.DryRuns(config.CleanerController) {
		r.events(metav1.NamespaceDefault)
	} else {
		r.add(certificatesv1.GroupName, requestsResource, "", "", "delete")
	}
}

// inventory adds the rights to read nodes and machines. It omits the rights for a machine source in the configuration,
// because the name of its resource is discovered later.
func (r rights) inventory(c config.Approval) {
	if c.KubeletServing.Enabled {
		serving := r.from("config/kubelet-serving")
		serving.add("", "nodes", "", "", "list", "watch")
		serving.add("", "services", "", "", "list", "watch")
		serving.add(discoveryv1.GroupName, "endpointslices", metav1.NamespaceDefault, "", "list", "watch")
	}
	if c.NodeClient.Bound() {
		identity := r.from("config/node-identity")
		identity.add("", "nodes", "", "", "get", "list", "watch")
		identity.add(coordinationv1.GroupName, "leases", corev1.NamespaceNodeLease, "", "get", "list", "watch")
		identity.add("", "configmaps", metav1.NamespacePublic, "cluster-info", "get")
		identity.add("", "serviceaccounts", "", "", "get")
	}
	// Rights in another cluster cannot be checked here.
	if options := presetMachines(c); options != nil && c.Inventory.Kubeconfig == "" {
		machines := r.from("config/inventory-" + c.NodeClient.Inventory)
		machines.add(options.Group, "machines", options.Namespace, "", "list", "watch")
	}
	for _, source := range c.Inventory.Sources {
		if source.Static == nil || source.Static.ConfigMap == "" {
			continue
		}
		namespace, name := source.Static.ConfigMapName()
		r.from("").add("", "configmaps", namespace, name, "list", "watch")
		r.from("").events(namespace)
	}
}

// rotation adds the rights to rotate the CAs that c names. It omits the rights to publish trust bundles in ConfigMaps,
// because only a SigningAuthority names them. The condition Published reports missing rights.
func (r rights) rotation(c *config.Configuration) {
	home := r.atHome()
	home.add(v1alpha1.GroupVersion.Group, "signingauthorities", "", "", "get", "list", "watch", "patch")
	home.add(v1alpha1.GroupVersion.Group, "signingauthorities/status", "", "", "update")
	home.events(metav1.NamespaceDefault)
	r.add(certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	if c.Home.Apart() {
		r = r.optional() // the rest only publishes: it decides no step
	} else {
		r.add(discoveryv1.GroupName, "endpointslices", metav1.NamespaceDefault, "", "list")
	}
	r.add("", "configmaps", trust.ExtensionNamespace, trust.ExtensionName, "get", "update")
	for _, one := range servedSigners(c.Signing) {
		r.onSigner(one.Name, "attest")
		namespace, name := one.SecretName()
		if name == "" {
			continue
		}
		bundle := trust.BundleName(one.Name, name)
		r.ofSecret(namespace, name).add(certificatesv1.GroupName, "clustertrustbundles", "", bundle, "get", "create", "patch", "delete")
		secret := home.ofSecret(namespace, name)
		secret.add("", "secrets", namespace, "", "create")
		secret.add("", "secrets", namespace, name, "get", "update")
		secret.add("", "configmaps", namespace, "", "create")
		for _, each := range []string{ledger.MovedName(name), ledger.BookName(name)} {
			secret.add("", "configmaps", namespace, each, "get", "update")
		}
	}
}
