package controllers

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/webhook"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// FromConfiguration returns the Options that a checked configuration describes.
func FromConfiguration(c *config.Configuration) (Options, error) {
	retention := retentionPolicy(c.Cleaning)
	auditLog, err := audit.Open(audit.Options(c.Audit))
	if err != nil {
		return Options{}, err
	}
	options := Options{Audit: auditLog, BlockList: blockList(c)}
	if c.Enabled(config.ApproverController) {
		options.Approver = approverOf(c.Approval)
		options.Approver.DryRun, options.Approver.RequestLimits = c.DryRuns(config.ApproverController), c.RequestLimits
		options.Approver.Workers = c.Concurrency.Approver
	}
	signers, err := signersOf(c)
	if err != nil {
		return Options{}, err
	}
	if c.Enabled(config.SignerController) {
		options.Signer = &signer.Reconciler{
			Signers: signers, Retention: retention, RequestLimits: c.RequestLimits, DryRun: c.DryRuns(config.SignerController),
			Workers: c.Concurrency.Signer,
		}
	}
	if options.Approver != nil {
		lifetimes := signers
		if c.DryRuns(config.SignerController) { // nothing is issued
			lifetimes = nil
		}
		AddApprovalRules(options.Approver.Judges, c.CompiledRules, lifetimes, options.Signer)
	}
	if c.Enabled(config.CleanerController) {
		rate := c.Cleaning.DeletesPerSecond
		options.Cleaner = &cleaner.Reconciler{
			Retention: retention, DryRun: c.DryRuns(config.CleanerController), Workers: c.Concurrency.Cleaner,
			Limiter: flowcontrol.NewTokenBucketRateLimiter(float32(rate), rate),
		}
	}
	if c.Enabled(config.RotationController) {
		options.Rotation = &rotation.Reconciler{
			OldLifetimeCap: c.Rotation.OldLifetimeCap.Duration, SettleFor: c.Rotation.SettleFor.Duration,
		}
		for _, one := range servedSigners(c.Signing) {
			if namespace, name := one.SecretName(); name != "" {
				options.Rotation.Secrets = append(options.Rotation.Secrets, types.NamespacedName{Namespace: namespace, Name: name})
			}
		}
	}
	if c.SelfCheck.Interval.Duration > 0 {
		options.SelfCheck = &SelfCheck{
			Interval: c.SelfCheck.Interval.Duration, Rights: Rights(c, LeaseNamespace(c)), Namespace: LeaseNamespace(c),
			BootstrapGroups: c.SelfCheck.BootstrapGroups, NodeGroups: c.SelfCheck.NodeGroups,
		}
		if c.Approval.NodeClient.Inventory == config.InventoryOpenShift { // nodes join by no group's permission
			options.SelfCheck.BootstrapGroups = nil
		}
	}
	return options, nil
}

// AddApprovalRules adds a Judge to judges for each signer of compiled, which has no other Judge: rules.Compile permits none for the
// signers of kubelets. The lifetimes are those of signers. signing is the signer of
// this process, or nil if it signs nothing. Another Deployment with the same configuration may sign then, so the lifetimes are
// known, but not which CAs API servers trust.
func AddApprovalRules(
	judges map[string]approver.Judge, compiled []*rules.Compiled, signers map[string]signer.Signer, signing *signer.Reconciler,
) {
	for _, rule := range compiled {
		name := rule.SignerName
		all, found := judges[name].(*approver.ApprovalRules)
		if !found {
			all = &approver.ApprovalRules{}
			judges[name] = all
		}
		all.Rules = append(all.Rules, rule)
		if served, found := signers[name]; found {
			all.Lifetime = served.Profile.LifetimeOf
			if signing != nil {
				all.Trusted = func(now time.Time) (rules.Trust, bool) { return signing.Trusted(name, now) }
			}
		}
	}
}

// blockList returns the configured block list, or nil if neither the approver nor the signer runs.
func blockList(c *config.Configuration) *blocklist.List {
	namespace, name := c.BlockListName()
	if name == "" || !c.Enabled(config.ApproverController) && !c.Enabled(config.SignerController) {
		return nil
	}
	list := blocklist.New(types.NamespacedName{Namespace: namespace, Name: name})
	if proof := c.BlockListEnforcement; proof.Enabled && c.Enabled(config.ApproverController) {
		list.Enforcement = &blocklist.Enforcement{APIServers: proof.APIServers, ServerName: proof.ServerName}
	}
	return list
}

// servedSigners returns the signers to serve with their settings and their CA, sorted by name. If signing has a CA of its
// own, they include Kubernetes' signers.
func servedSigners(c config.Signing) []config.Signer {
	settings := map[string]config.Signer{}
	if !c.Empty() {
		for _, name := range csr.BuiltinSigners() {
			settings[name] = config.Signer{Name: name}
		}
	}
	for _, one := range c.Signers {
		settings[one.Name] = one
	}
	var served []config.Signer
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		one := settings[name]
		if one.Empty() {
			one.CA = c.CA
		}
		served = append(served, one)
	}
	return served
}

// signersOf returns the signers to serve, by name.
func signersOf(all *config.Configuration) (map[string]signer.Signer, error) {
	signers := map[string]signer.Signer{}
	pairs := map[config.CA]*keypair.KeyPair{} // signers with the same CA share a key pair, so its source is read once
	var errs []error
	for _, one := range servedSigners(all.Signing) {
		profile, err := profile(all.Signing, one)
		if err != nil {
			errs = append(errs, fmt.Errorf("signer %s: %w", one.Name, err))
		}
		if pairs[one.CA] == nil {
			pairs[one.CA] = keyPair(one.CA, all.Rotation.Enabled)
		}
		names, err := ca.NewAllowedNames(one.AllowedNames)
		if err != nil {
			errs = append(errs, fmt.Errorf("signer %s: %w", one.Name, err))
		}
		signers[one.Name] = signer.Signer{
			Profile: profile, Usages: one.Usages, AllowNoExtKeyUsage: one.AllowNoExtKeyUsage,
			AllowedNames: names, KeyPair: pairs[one.CA],
		}
	}
	return signers, errors.Join(errs...)
}

func profile(c config.Signing, one config.Signer) (ca.Profile, error) {
	longest := duration(one.MaxDuration, 0)
	otherwise := c.Duration.Duration
	if longest > 0 {
		otherwise = min(otherwise, longest)
	}
	forbidden := one.ForbiddenSubjects
	if forbidden == nil {
		forbidden = c.ForbiddenSubjects
	}
	return ca.NewProfile(ca.ProfileConfig{
		Lifetime:          duration(one.Duration, otherwise),
		MinLifetime:       duration(one.MinDuration, 0),
		MaxLifetime:       longest,
		MinRSABits:        c.MinRSABits,
		ForbiddenSubjects: forbidden,
		ForbidWildcards:   !one.AllowWildcards && !slices.Contains(csr.BuiltinSigners(), one.Name),
	})
}

func keyPair(c config.CA, rotated bool) *keypair.KeyPair {
	var source keypair.Source = keypair.Files{Cert: c.CertFile, Key: c.KeyFile}
	if namespace, name := c.SecretName(); name != "" && rotated {
		source = keypair.Guarded{Secret: keypair.Secret{Namespace: namespace, Name: name}}
	} else if name != "" {
		source = keypair.Secret{Namespace: namespace, Name: name}
	}
	pair := keypair.New(source)
	pair.Chain = c.Chain
	if c.CreateIfMissing {
		pair.Create = &keypair.Creation{Algorithm: c.KeyAlgorithm, Lifetime: c.CADuration.Duration}
	}
	return pair
}

func retentionPolicy(c config.Cleaning) csr.RetentionPolicy {
	policy := csr.RetentionPolicy{
		Default: retention(c.Retention, csr.DefaultRetention), Signers: map[string]csr.Retention{},
	}
	for _, one := range c.Signers {
		policy.Signers[one.Name] = retention(one.Retention, policy.Default)
	}
	return policy
}

func retention(c config.Retention, otherwise csr.Retention) csr.Retention {
	return csr.Retention{
		Approved: duration(c.Approved, otherwise.Approved),
		Denied:   duration(c.Denied, otherwise.Denied),
		Failed:   duration(c.Failed, otherwise.Failed),
		Pending:  duration(c.Pending, otherwise.Pending),
		Expired:  duration(c.Expired, otherwise.Expired),
	}
}

func duration(set *metav1.Duration, otherwise time.Duration) time.Duration {
	if set == nil {
		return otherwise
	}
	return set.Duration
}

// approverOf returns the approver for the signers of kubelets, as c says.
func approverOf(c config.Approval) *approver.Reconciler {
	r := &approver.Reconciler{Denial: approver.Denial(c.Denial), Limit: approver.Limit(c.Limit), Judges: map[string]approver.Judge{}}
	if c.NodeClient.Bound() || c.KubeletServing.Enabled {
		r.Inventory = inventoryOf(c)
	}
	nodes := approver.KubeletClient{}
	if c.NodeClient.Bound() {
		nodes.Bootstrap = bootstrapPolicyOf(c.NodeClient)
	}
	r.Judges[certificatesv1.KubeAPIServerClientKubeletSignerName] = nodes
	if c.KubeletServing.Enabled {
		r.Judges[certificatesv1.KubeletServingSignerName] = approver.KubeletServing{Policy: serving.Policy{
			Reserved: reservedOf(c.KubeletServing), APIServerNodes: c.KubeletServing.APIServerNodes,
		}}
	}
	return r
}

func reservedOf(c config.KubeletServing) san.Reserved {
	reserved := san.Reserved{ClusterDomain: c.ClusterDomain}
	for _, text := range c.Reserved {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			reserved.Prefixes = append(reserved.Prefixes, san.UnmapPrefix(prefix))
		} else {
			reserved.Endpoints = append(reserved.Endpoints, san.Parse(text))
		}
	}
	return reserved
}

// inventoryOf returns the inventory with its sources in order. The Machines of a preset come first, unless c
// configures a machine source.
func inventoryOf(c config.Approval) *approver.Inventory {
	i := &approver.Inventory{}
	if options := presetMachines(c); options != nil {
		i.Sources = append(i.Sources, sourceOf(config.Source{Machine: options}, c.Inventory.Kubeconfig))
	}
	for _, source := range c.Inventory.Sources {
		i.Sources = append(i.Sources, sourceOf(source, c.Inventory.Kubeconfig))
	}
	return i
}

// presetMachines returns the options of the preset's machine source. It returns nil without a preset, or if c
// configures a machine source.
func presetMachines(c config.Approval) *machine.Options {
	if slices.ContainsFunc(c.Inventory.Sources, func(source config.Source) bool { return source.Machine != nil }) {
		return nil
	}
	var options machine.Options
	switch c.NodeClient.Inventory {
	case config.InventoryClusterAPI:
		options = machine.ClusterAPI()
		namespace, name := c.NodeClient.Cluster()
		options.Namespace, options.Selector = namespace, machine.ClusterNameLabel+"="+name
	case config.InventoryOpenShift:
		options = machine.OpenShift()
	default:
		return nil
	}
	return &options
}

// sourceOf returns a builder of a source. Machines are in the cluster of kubeconfig, or in the manager's cluster if that is
// empty. A change at the server of a webhook wakes no request: waiting requests are judged again after a pause.
func sourceOf(c config.Source, kubeconfig string) approver.SourceBuilder {
	return func(mgr manager.Manager, nodes *node.Source, changed inventory.Changed) (inventory.Source, error) {
		switch {
		case c.Machine != nil:
			return machineSource(mgr, *c.Machine, kubeconfig, changed)
		case c.Static != nil && c.Static.ConfigMap != "":
			namespace, name := c.Static.ConfigMapName()
			key := types.NamespacedName{Namespace: namespace, Name: name}
			source, err := static.NewConfigMap(mgr.GetConfig(), key, mgr.GetLogger().WithName("inventory"))
			if err != nil {
				return nil, err
			}
			source.Changed, source.Recorder = changed, mgr.GetEventRecorder("csr-static-inventory")
			return source, mgr.Add(source)
		case c.Static != nil:
			source, mistakes := static.New(field.NewPath("rows"), c.Static.Rows)
			return source, mistakes.ToAggregate()
		case c.Webhook != nil:
			return webhook.New(c.Webhook.Options())
		case c.Node != nil:
			return approver.NodeSource(mgr, nodes, changed)
		}
		return nil, errUnknownSource
	}
}

var errUnknownSource = errors.New("sourceOf does not know this kind of source")

// machineSource returns a source that reads Machines.
func machineSource(
	mgr manager.Manager, options machine.Options, kubeconfig string, changed inventory.Changed,
) (inventory.Source, error) {
	cluster := mgr.GetConfig()
	if kubeconfig != "" {
		var err error
		if cluster, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
			return nil, fmt.Errorf("load --inventory-kubeconfig: %w", ascii.WithoutKeys(err))
		}
	}
	source, err := machine.New(cluster, options, mgr.GetLogger().WithName("inventory"))
	if err != nil {
		return nil, err
	}
	source.Changed = changed
	return source, mgr.Add(source)
}

// openshiftBootstrapper is the ServiceAccount with which OpenShift's machines join: workers by its token, and control-plane
// nodes by a client certificate in its name.
const openshiftBootstrapper = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"

func bootstrapPolicyOf(c config.NodeClient) *bootstrap.Policy {
	policy := &bootstrap.Policy{
		Expected:            c.Inventory != "",
		TokenBinding:        c.RequireTokenBinding,
		Users:               c.BootstrapUsers,
		Rejoin:              c.Rejoin,
		MaxRequestAge:       c.MaxRequestAge.Duration,
		Window:              bootstrap.Window{Before: c.JoinWindow.Before.Duration, After: c.JoinWindow.After.Duration},
		CertificateLifetime: c.CertificateLifetime.Duration,
	}
	if c.Inventory == config.InventoryOpenShift {
		policy.Users, policy.Trusted = []string{openshiftBootstrapper}, true
	}
	return policy
}
