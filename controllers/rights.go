package controllers

import (
	"maps"
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
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Rights returns the rights that a manager with configuration c needs. The manager's Lease is in leaseNamespace. A
// test compares the rights with config/rbac.
func Rights(c *config.Configuration, leaseNamespace string) ([]check.Right, error) {
	r := rights{manifest: "config/rbac"}
	if c.Enabled(config.ApproverController) {
		r.approver(c.Approval)
	}
	if c.Enabled(config.SignerController) {
		if err := r.signer(c); err != nil {
			return nil, err
		}
	}
	if c.Enabled(config.CleanerController) {
		r.add("cleaner", certificatesv1.GroupName, requestsResource, "", "", "list", "watch", "delete")
	}
	if c.Enabled(config.RotationController) {
		var err error
		if r.granted("config/rotation", func() { err = r.rotation(c) }); err != nil {
			return nil, err
		}
	}
	r.dryRun(c)
	if blockList(c) != nil {
		namespace, name := c.BlockListName()
		r.granted("config/node-block-list", func() {
			r.add("block list", "", "configmaps", namespace, name, "get", "list", "watch")
			r.events("block list", namespace)
		})
	}
	if c.LeaderElection.Enabled {
		r.leaderElection(leaseNamespace, c.LeaderElection.ResourceName)
		r.optional("the published configuration", "", "configmaps", leaseNamespace, PublishedName(c), "get", "update")
	}
	if c.MetricsSecure {
		const need = "secure metrics"
		r.optional(need, authenticationv1.GroupName, "tokenreviews", "", "", "create")
		r.optional(need, authorizationv1.GroupName, "subjectaccessreviews", "", "", "create")
	}
	return r.all, nil
}

// namespaceFile holds the Pod's namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// LeaseNamespace returns the namespace of the manager's Lease. It is the configured namespace or else the Pod's.
// Outside a cluster it is kube-system.
func LeaseNamespace(c *config.Configuration) string {
	if c.LeaderElection.ResourceNamespace != "" {
		return c.LeaderElection.ResourceNamespace
	}
	if _, err := rest.InClusterConfig(); err == nil {
		if namespace, err := os.ReadFile(namespaceFile); err == nil {
			return strings.TrimSpace(string(namespace))
		}
	}
	return metav1.NamespaceSystem
}

// rootCA is the ConfigMap with the CAs of the API servers' own certificates.
const rootCA = "kube-root-ca.crt"

const requestsResource = "certificatesigningrequests"

// rights collects the rights, without duplicates.
type rights struct {
	all []check.Right
	// manifest is the directory whose roles grant the rights that are added.
	manifest string
}

// granted calls add. It records manifest as the source of the rights that add adds.
func (r *rights) granted(manifest string, add func()) {
	before := r.manifest
	r.manifest = manifest
	add()
	r.manifest = before
}

// shippedCA is the Secret of the signing CA that the roles in config/ name.
var shippedCA = types.NamespacedName{Namespace: "csr-controller-manager-system", Name: "csr-signer"}

// ofSecret returns manifest if its roles name the Secret, and an empty string otherwise.
func ofSecret(manifest, namespace, name string) string {
	if (types.NamespacedName{Namespace: namespace, Name: name}) == shippedCA {
		return manifest
	}
	return ""
}

// ofSigner returns manifest for built-in signers, and an empty string for others. The roles in config/ name no
// other signers.
func ofSigner(manifest, name string) string {
	if _, builtin := csr.BuiltinSigner(name); builtin {
		return manifest
	}
	return ""
}

func (r *rights) add(need, group, resource, namespace, name string, verbs ...string) {
	for _, verb := range verbs {
		r.one(check.Right{Need: need, Group: group, Resource: resource, Namespace: namespace, Name: name, Verb: verb})
	}
}

// optional adds rights that the controllers can work without.
func (r *rights) optional(need, group, resource, namespace, name string, verbs ...string) {
	for _, verb := range verbs {
		r.one(check.Right{
			Need: need, Group: group, Resource: resource, Namespace: namespace, Name: name, Verb: verb, Optional: true,
		})
	}
}

func (r *rights) one(right check.Right) {
	right.Manifest = r.manifest
	for i := range r.all {
		known := &r.all[i]
		if known.String() != right.String() {
			continue
		}
		known.Need += " and " + right.Need
		known.Optional = known.Optional && right.Optional
		return
	}
	r.all = append(r.all, right)
}

func (r *rights) approver(c config.Approval) {
	const need = "approver"
	r.add(need, certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	r.add(need, certificatesv1.GroupName, requestsResource+"/approval", "", "", "update")
	for _, rule := range approverOf(c).Rules {
		r.add(need, certificatesv1.GroupName, "signers", "", rule.SignerName, "approve")
	}
	r.add(need, authorizationv1.GroupName, "subjectaccessreviews", "", "", "create")
	if c.KubeletServing.Enabled || c.NodeClient.Bound() {
		r.inventory(c)
	}
	r.events(need, metav1.NamespaceDefault)
}

func (r *rights) signer(all *config.Configuration) error {
	const need = "signer"
	c := all.Signing
	signers, err := signersOf(all)
	if err != nil {
		return err
	}
	r.add(need, certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	r.add(need, certificatesv1.GroupName, requestsResource+"/status", "", "", "update")
	for _, name := range slices.Sorted(maps.Keys(signers)) {
		r.granted(ofSigner(r.manifest, name), func() { r.add(need, certificatesv1.GroupName, "signers", "", name, "sign") })
	}
	r.events(need, metav1.NamespaceDefault)
	for _, source := range append([]config.Signer{{CA: c.CA}}, c.Signers...) {
		if namespace, name := source.SecretName(); name != "" {
			r.granted(ofSecret(r.manifest, namespace, name), func() {
				r.add(need, "", "secrets", namespace, name, "get", "list", "watch")
				r.events(need, namespace)
			})
			if source.CreateIfMissing { // needed at most once
				r.granted("config/create-ca", func() { r.optional("a new CA", "", "secrets", namespace, "", "create") })
			}
			if all.Rotation.Enabled && !all.DryRuns(config.SignerController) { // the rotation controller creates the ledger
				r.granted(ofSecret("config/rotation", namespace, name), func() {
					r.add("ledger", "", "configmaps", namespace, ledger.BookName(name), "get", "update")
				})
			}
		}
	}
	// Without these, the rules of custom signers are strict.
	for _, name := range []string{trust.ExtensionName, rootCA} {
		r.optional("trust in its CAs", "", "configmaps", trust.ExtensionNamespace, name, "get")
	}
	return nil
}

func (r *rights) leaderElection(namespace, name string) {
	const need = "leader election"
	r.add(need, coordinationv1.GroupName, "leases", namespace, "", "create")
	r.add(need, coordinationv1.GroupName, "leases", namespace, name, "get", "update")
	r.optional(need, "", "events", namespace, "", "create", "patch")
}

// events adds the rights to write Events about objects in namespace. Events about cluster-scoped objects are in
// namespace default.
func (r *rights) events(need, namespace string) {
	r.optional(need, eventsv1.GroupName, "events", namespace, "", "create", "patch")
}

// inventory adds the rights to read nodes and machines. It omits the rights for a machine source in the configuration,
// because the name of its resource is discovered later.
func (r *rights) inventory(c config.Approval) {
	const need = "inventory"
	if c.KubeletServing.Enabled {
		r.granted("config/kubelet-serving", func() {
			r.add(need, "", "nodes", "", "", "list", "watch")
			r.add(need, "", "services", "", "", "list", "watch")
			r.add(need, discoveryv1.GroupName, "endpointslices", metav1.NamespaceDefault, "", "list", "watch")
		})
	}
	if c.NodeClient.Bound() {
		r.granted("config/node-identity", func() {
			r.add(need, "", "nodes", "", "", "get", "list", "watch")
			r.add(need, coordinationv1.GroupName, "leases", corev1.NamespaceNodeLease, "", "get", "list", "watch")
			r.add(need, "", "configmaps", metav1.NamespacePublic, "cluster-info", "get", "list", "watch")
			r.add(need, "", "serviceaccounts", "", "", "get")
		})
	}
	// Rights in another cluster cannot be checked here.
	if options := presetMachines(c); options != nil && c.Inventory.Kubeconfig == "" {
		r.granted("config/inventory-"+c.NodeClient.Inventory, func() {
			r.add(need, options.Group, "machines", options.Namespace, "", "list", "watch")
		})
	}
	for _, source := range c.Inventory.Sources {
		if source.Static == nil {
			continue
		}
		if namespace, name := source.Static.ConfigMapName(); name != "" {
			r.granted("", func() {
				r.add(need, "", "configmaps", namespace, name, "list", "watch")
				r.events(need, namespace)
			})
		}
	}
}

// rotation adds the rights to rotate the CAs that c names. It omits the rights to publish trust bundles, because only
// a SigningAuthority names the targets. The condition Published reports missing rights.
func (r *rights) rotation(c *config.Configuration) error {
	const need = "rotation"
	signers, err := signersOf(c)
	if err != nil {
		return err
	}
	r.add(need, v1alpha1.GroupVersion.Group, "signingauthorities", "", "", "get", "list", "watch", "patch")
	r.add(need, v1alpha1.GroupVersion.Group, "signingauthorities/status", "", "", "update")
	r.add(need, certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	r.add(need, certificatesv1.GroupName, "clustertrustbundles", "", "", "get", "list", "create", "update", "delete")
	for _, name := range slices.Sorted(maps.Keys(signers)) {
		r.granted(ofSigner(r.manifest, name), func() { r.add(need, certificatesv1.GroupName, "signers", "", name, "attest") })
	}
	r.add(need, discoveryv1.GroupName, "endpointslices", "", "", "list")
	r.add(need, "apiregistration.k8s.io", "apiservices", "", "", "list")
	r.add(need, "", "services", "", "", "get")
	r.add(need, "", "configmaps", trust.ExtensionNamespace, trust.ExtensionName, "get", "update")
	r.events(need, metav1.NamespaceDefault)
	for _, source := range append([]config.Signer{{CA: c.Signing.CA}}, c.Signing.Signers...) {
		namespace, name := source.SecretName()
		if name == "" {
			continue
		}
		r.granted(ofSecret(r.manifest, namespace, name), func() {
			r.add(need, "", "secrets", namespace, "", "create")
			r.add(need, "", "secrets", namespace, name, "get", "list", "watch", "update")
			r.add(need, "", "configmaps", namespace, "", "create")
			for _, each := range append(ledger.NodesNames(name), ledger.BookName(name)) {
				r.add(need, "", "configmaps", namespace, each, "get", "update")
			}
		})
	}
	return nil
}

// writer returns the controller that needs right for its writes, or an empty string if right is for reads.
func writer(right check.Right) config.Controller {
	switch right.Resource + " " + right.Verb {
	case requestsResource + "/approval update", "signers approve":
		return config.ApproverController
	case requestsResource + "/status update", "signers sign", "secrets create":
		return config.SignerController
	case requestsResource + " delete":
		return config.CleanerController
	}
	return ""
}

// dryRun removes the write rights that a dry run does not use. It adds the Events that a cleaner writes in a dry run.
func (r *rights) dryRun(c *config.Configuration) {
	r.all = slices.DeleteFunc(r.all, func(right check.Right) bool {
		return writer(right) != "" && c.DryRuns(writer(right))
	})
	if c.Enabled(config.CleanerController) && c.DryRuns(config.CleanerController) {
		r.events("cleaner", metav1.NamespaceDefault)
	}
}
