package config

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// PublishedSuffix follows the name of a manager's Lease in the name of the ConfigMap with its configuration.
	PublishedSuffix = "-configuration"
	// PublishedLabel is the label of these ConfigMaps.
	PublishedLabel = "csr-controller-manager.io/publishes"
	// PublishedValue is the value of that label.
	PublishedValue = "configuration"
	// PublishedKey is the key of the configuration in the ConfigMap.
	PublishedKey = "configuration.yaml"

	// hiddenURL stands for the URL of a webhook: any part of a URL, its path too, may be a secret.
	hiddenURL = "https://REMOVED"
)

// Published returns a copy of c as a manager publishes it: with explicit controllers, retention and namespace of the
// Lease, and without credentials. File names and names of Secrets are no credentials.
func (c *Configuration) Published(leaseNamespace string) (*Configuration, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("copy configuration: %w", err)
	}
	out := &Configuration{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("copy configuration: %w", err)
	}
	out.APIVersion, out.Kind = APIVersion, Kind
	out.LeaderElection.ResourceNamespace = leaseNamespace
	out.Controllers, out.DryRun = nil, nil
	for _, controller := range controllers {
		if c.Enabled(controller) {
			out.Controllers = append(out.Controllers, string(controller))
		}
		if c.DryRuns(controller) {
			out.DryRun = append(out.DryRun, string(controller))
		}
	}
	out.Cleaning.Retention = withDefaults(c.Cleaning.Retention)
	for _, source := range out.Approval.Inventory.Sources {
		if source.Webhook != nil {
			source.Webhook.URL = hiddenURL
		}
	}
	return out, nil
}

// controllers are all controllers, in the order in which a request meets them.
var controllers = []Controller{ApproverController, SignerController, CleanerController, RotationController}

// withDefaults returns r with the default for each unset duration.
func withDefaults(r Retention) Retention {
	for _, each := range []struct {
		set       **metav1.Duration
		otherwise metav1.Duration
	}{
		{&r.Approved, metav1.Duration{Duration: csr.DefaultRetention.Approved}},
		{&r.Denied, metav1.Duration{Duration: csr.DefaultRetention.Denied}},
		{&r.Failed, metav1.Duration{Duration: csr.DefaultRetention.Failed}},
		{&r.Pending, metav1.Duration{Duration: csr.DefaultRetention.Pending}},
		{&r.Expired, metav1.Duration{Duration: csr.DefaultRetention.Expired}},
	} {
		if *each.set == nil {
			*each.set = &each.otherwise
		}
	}
	return r
}

// ParsePublished returns the configuration that a manager has published. A newer manager may publish fields that this
// version does not know; unknown describes them. The reader is on another machine than the manager and has other
// rights, so it must not use the files and the servers that the configuration names.
func ParsePublished(data []byte) (c *Configuration, unknown, err error) {
	c = Default()
	if unknown = c.parse(data, yaml.UnmarshalStrict); unknown != nil {
		c = Default()
		if err := c.parse(data, yaml.Unmarshal); err != nil {
			return nil, nil, err
		}
	}
	if mistakes := c.validate(false); len(mistakes) > 0 {
		return nil, nil, mistakes.ToAggregate()
	}
	c.Kubeconfig, c.Verbosity, c.Audit.Path = "", 0, ""
	c.Approval.Inventory.Elsewhere = true
	c.Signing.Elsewhere = c.Signing.CertFile != ""
	for i := range c.Signing.Signers {
		one := &c.Signing.Signers[i]
		one.Elsewhere = one.CertFile != ""
	}
	return c, unknown, nil
}

// Merge returns one configuration of managers that share the work: for each controller, the settings of the first
// manager that runs it. Settings that several controllers read, such as requestLimits, come from the approver's
// manager, else from the signer's, else from the first one.
func Merge(managers []*Configuration) *Configuration {
	if len(managers) == 0 {
		return Default()
	}
	merged := *managers[0]
	for _, controller := range []Controller{CleanerController, RotationController, SignerController, ApproverController} {
		if c := firstWith(controller, managers); c != nil {
			merged = *c
		}
	}
	merged.Controllers, merged.DryRun = nil, nil
	for _, controller := range controllers {
		if c := firstWith(controller, managers); c != nil {
			merged.take(controller, c)
		}
	}
	return &merged
}

// firstWith returns the first of managers that runs controller, or nil.
func firstWith(controller Controller, managers []*Configuration) *Configuration {
	for _, c := range managers {
		if c.Enabled(controller) {
			return c
		}
	}
	return nil
}

// take adds controller to c, with its settings in from.
func (c *Configuration) take(controller Controller, from *Configuration) {
	c.Controllers = append(c.Controllers, string(controller))
	if from.DryRuns(controller) {
		c.DryRun = append(c.DryRun, string(controller))
	}
	switch controller {
	case ApproverController:
		c.Approval, c.SelfCheck = from.Approval, from.SelfCheck
	case SignerController:
		c.Signing, c.Rotation.Enabled = from.Signing, from.Rotation.Enabled
	case CleanerController:
		c.Cleaning = from.Cleaning
	case RotationController:
		c.Rotation = from.Rotation
	}
}
