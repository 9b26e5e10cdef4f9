package config

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// mistakes collects what is wrong with a Configuration.
type mistakes struct{ all field.ErrorList }

// unless adds a mistake about an invalid value, unless ok.
func (m *mistakes) unless(ok bool, path *field.Path, value any, why string) {
	if ok {
		return
	}
	if text, is := value.(fmt.Stringer); is {
		value = text.String()
	}
	m.all = append(m.all, field.Invalid(path, value, why))
}

// check adds a mistake about value if err is not nil.
func (m *mistakes) check(err error, path *field.Path, value any) {
	if err != nil {
		m.unless(false, path, value, err.Error())
	}
}

// require adds a mistake about a missing value, unless ok.
func (m *mistakes) require(ok bool, path *field.Path, why string) {
	if !ok {
		m.all = append(m.all, field.Required(path, why))
	}
}

// forbid adds a mistake if a value is set that must not be set.
func (m *mistakes) forbid(given bool, path *field.Path, why string) {
	if given {
		m.all = append(m.all, field.Forbidden(path, why))
	}
}

func (m *mistakes) atLeast(path *field.Path, value, least int) {
	m.unless(value >= least, path, value, fmt.Sprintf("must be %d or more", least))
}

// oneOf adds a mistake unless value is one of known.
func oneOf[T ~string](m *mistakes, path *field.Path, value T, known ...T) {
	if !slices.Contains(known, value) {
		m.all = append(m.all, field.NotSupported(path, value, known))
	}
}

// validate returns every mistake in c. Only a manager needs a CA.
func (c *Configuration) validate(manager bool) field.ErrorList {
	m, path := &mistakes{}, field.NewPath
	c.validateControllers(m)
	m.unless(c.KubeAPIQPS != 0, path("kubeAPIQPS"), c.KubeAPIQPS, "must be positive, or negative for no limit")
	m.atLeast(path("kubeAPIBurst"), c.KubeAPIBurst, 1)
	m.atLeast(path("concurrency", "approver"), c.Concurrency.Approver, 1)
	m.atLeast(path("concurrency", "signer"), c.Concurrency.Signer, 1)
	m.atLeast(path("concurrency", "cleaner"), c.Concurrency.Cleaner, 1)
	m.atLeast(path("verbosity"), c.Verbosity, 0)
	m.bindAddress(path("metricsBindAddress"), c.MetricsBindAddress)
	m.unless(c.MetricsCertDir == "" || c.MetricsSecure, path("metricsCertDir"), c.MetricsCertDir,
		"has no effect without --metrics-secure")
	m.bindAddress(path("healthProbeBindAddress"), c.HealthProbeBindAddress)
	for _, entry := range c.DryRun {
		_, known := controllerNames[entry]
		m.unless(known || entry == "*", path("dryRun"), entry, "unknown controller: want approver, signer or cleaner")
	}
	m.namespacedName(path("nodeBlockList"), c.NodeBlockList)
	c.LeaderElection.validate(m, path("leaderElection"))
	m.atLeast(path("audit", "maxSize"), c.Audit.MaxSize, 1)
	m.atLeast(path("audit", "maxBackups"), c.Audit.MaxBackups, 0)
	m.atLeast(path("audit", "maxAge"), c.Audit.MaxAge, 0)
	interval := c.SelfCheck.Interval.Duration
	m.unless(interval >= 0, path("selfCheck", "interval"), interval, "must be positive, or 0 to switch the check off")
	m.require(len(c.SelfCheck.BootstrapGroups) > 0, path("selfCheck", "bootstrapGroups"),
		"list the groups of the users that join nodes")
	m.require(len(c.SelfCheck.NodeGroups) > 0, path("selfCheck", "nodeGroups"), "list the groups of the nodes")
	limits := c.RequestLimits
	m.atLeast(path("requestLimits", "maxRequestBytes"), limits.MaxRequestBytes, 1)
	m.atLeast(path("requestLimits", "maxDERBytes"), limits.MaxDERBytes, 1)
	m.atLeast(path("requestLimits", "maxSubjectAttributes"), limits.MaxSubjectAttributes, 1)
	m.atLeast(path("requestLimits", "maxNames"), limits.MaxNames, 1)
	m.atLeast(path("requestLimits", "maxExtensions"), limits.MaxExtensions, 1)
	c.Approval.validate(m, path("approval"))
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

func (m *mistakes) bindAddress(path *field.Path, address string) {
	_, _, err := net.SplitHostPort(address)
	m.unless(err == nil || address == "0", path, address, "want host:port, or 0 to switch it off")
}

// namespacedName adds a mistake unless text is empty or namespace/name.
func (m *mistakes) namespacedName(path *field.Path, text string) {
	_, name := splitName(text)
	m.unless(text == "" || name != "", path, text, "want namespace/name")
}

// splitName splits text into a namespace and a name. Both are empty for anything but namespace/name.
func splitName(text string) (namespace, name string) {
	namespace, name, _ = strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", ""
	}
	return namespace, name
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
