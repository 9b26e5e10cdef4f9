package config

import (
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// validate returns every mistake in c. Only a manager needs a CA.
func (c *Configuration) validate(manager bool) field.ErrorList {
	errs := append(c.validateGeneric(), c.validateDryRun()...)
	if _, name := c.BlockListName(); c.NodeBlockList != "" && name == "" {
		errs = append(errs, field.Invalid(field.NewPath("nodeBlockList"), c.NodeBlockList, "want namespace/name"))
	}
	errs = append(errs, c.LeaderElection.validate(field.NewPath("leaderElection"))...)
	errs = append(errs, c.Audit.validate(field.NewPath("audit"))...)
	errs = append(errs, c.SelfCheck.validate(field.NewPath("selfCheck"))...)
	errs = append(errs, c.RequestLimits.validate(field.NewPath("requestLimits"))...)
	errs = append(errs, c.Approval.validate(field.NewPath("approval"))...)
	errs = append(errs, c.Signing.validate(field.NewPath("signing"), manager && c.Enabled(SignerController))...)
	errs = append(errs, c.Rotation.validate(field.NewPath("rotation"))...)
	if c.Rotation.Enabled && c.Enabled(SignerController) {
		errs = append(errs, c.Signing.validateGuarded(field.NewPath("signing"))...)
	}
	return append(errs, c.Cleaning.validate(field.NewPath("cleaning"))...)
}

func (l RequestLimits) validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		atLeast(path.Child("maxRequestBytes"), l.MaxRequestBytes, 1),
		atLeast(path.Child("maxDERBytes"), l.MaxDERBytes, 1),
		atLeast(path.Child("maxSubjectAttributes"), l.MaxSubjectAttributes, 1),
		atLeast(path.Child("maxNames"), l.MaxNames, 1),
		atLeast(path.Child("maxExtensions"), l.MaxExtensions, 1),
	)
}

func (c *Configuration) validateGeneric() field.ErrorList {
	var errs field.ErrorList
	running := false
	for _, controller := range []Controller{ApproverController, SignerController, CleanerController, RotationController} {
		running = running || c.Enabled(controller)
	}
	path := field.NewPath("controllers")
	for _, entry := range c.Controllers {
		if _, known := controllerNames[strings.TrimPrefix(entry, "-")]; !known && entry != "*" {
			errs = append(errs, field.Invalid(path, entry, "no such controller: want approver, signer, cleaner or rotation"))
		}
	}
	if !running && len(errs) == 0 {
		errs = append(errs, field.Invalid(path, strings.Join(c.Controllers, ","), "leaves no controller to run"))
	}
	if c.KubeAPIQPS == 0 {
		errs = append(errs, field.Invalid(field.NewPath("kubeAPIQPS"), c.KubeAPIQPS, "must be positive, or negative for no limit"))
	}
	errs = append(errs, atLeast(field.NewPath("kubeAPIBurst"), c.KubeAPIBurst, 1)...)
	errs = append(errs, atLeast(field.NewPath("concurrency", "approver"), c.Concurrency.Approver, 1)...)
	errs = append(errs, atLeast(field.NewPath("concurrency", "signer"), c.Concurrency.Signer, 1)...)
	errs = append(errs, atLeast(field.NewPath("concurrency", "cleaner"), c.Concurrency.Cleaner, 1)...)
	errs = append(errs, atLeast(field.NewPath("verbosity"), c.Verbosity, 0)...)
	return append(errs, c.validateServing()...)
}

func (c *Configuration) validateDryRun() field.ErrorList {
	var errs field.ErrorList
	for _, entry := range c.DryRun {
		if _, known := controllerNames[entry]; !known && entry != "*" {
			errs = append(errs, field.Invalid(field.NewPath("dryRun"), entry, "no such controller: want approver, signer or cleaner"))
		}
	}
	return errs
}

func atLeast(path *field.Path, value, least int) field.ErrorList {
	if value >= least {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "is too low")}
}

func (l *LeaderElection) validate(path *field.Path) field.ErrorList {
	if !l.Enabled {
		return nil
	}
	var errs field.ErrorList
	if l.RetryPeriod.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("retryPeriod"), l.RetryPeriod.Duration.String(), "must be positive"))
	}
	if float64(l.RenewDeadline.Duration) <= 1.2*float64(l.RetryPeriod.Duration) {
		errs = append(errs, field.Invalid(path.Child("renewDeadline"), l.RenewDeadline.Duration.String(), "must be more than 1.2 times the retry period"))
	}
	if l.LeaseDuration.Duration <= l.RenewDeadline.Duration {
		errs = append(errs, field.Invalid(path.Child("leaseDuration"), l.LeaseDuration.Duration.String(), "must be more than the renew deadline"))
	}
	if l.ResourceName == "" {
		errs = append(errs, field.Required(path.Child("resourceName"), "the Lease needs a name"))
	}
	return errs
}

func (s *Signing) validate(path *field.Path, needed bool) field.ErrorList {
	errs := s.CA.validate(path)
	errs = append(errs, lifetime(path.Child("duration"), &s.Duration)...)
	errs = append(errs, atLeast(path.Child("minRSABits"), s.MinRSABits, 1024)...)
	if s.MinRSABits > ca.MaxRSABits {
		errs = append(errs, field.Invalid(path.Child("minRSABits"), s.MinRSABits, fmt.Sprintf("longer RSA keys than %d bits are never permitted", ca.MaxRSABits)))
	}
	errs = append(errs, subjects(path.Child("forbiddenSubjects"), s.ForbiddenSubjects)...)
	if _, err := probe.Listed(s.APIServers); len(s.APIServers) > 0 && err != nil {
		errs = append(errs, field.Invalid(path.Child("apiServers"), strings.Join(s.APIServers, ","), err.Error()))
	}
	seen := map[string]bool{}
	specific := false
	for i := range s.Signers {
		signer := &s.Signers[i]
		at := path.Child("signers").Key(signer.Name)
		if seen[signer.Name] {
			errs = append(errs, field.Duplicate(at, signer.Name))
		}
		seen[signer.Name] = true
		specific = specific || !signer.Empty()
		errs = append(errs, signer.validate(at, s)...)
		errs = append(errs, s.otherwise(at, i)...)
	}
	if needed && s.Empty() && !specific {
		errs = append(errs, field.Required(path, "no CA to sign with: give --signing-secret, or --cluster-signing-cert-file and --cluster-signing-key-file, "+
			"or one for each signer; or leave the signer out with --controllers=*,-signer"))
	}
	return errs
}

// otherwise refuses what signer i says of its CA if it was said otherwise before: there is one in each place.
func (s *Signing) otherwise(path *field.Path, i int) field.ErrorList {
	own := s.Signers[i].CA
	for _, before := range append([]Signer{{CA: s.CA}}, s.Signers[:i]...) {
		if !own.Empty() && own.sameSource(before.CA) && own != before.CA {
			return field.ErrorList{field.Invalid(path, own.String(), "was named before with another chain, createIfMissing, keyAlgorithm or caDuration: say the same")}
		}
	}
	return nil
}

func (s *Signer) validate(path *field.Path, signing *Signing) field.ErrorList {
	kubernetes := isKubernetesSigner(s.Name)
	errs := s.CA.validate(path)
	errs = append(errs, servedName(path.Child("name"), s.Name)...)
	switch {
	case kubernetes && !s.Empty() && !signing.Empty():
		errs = append(errs, field.Invalid(path, s.String(), "one of Kubernetes' signers can't have a CA of its own while there is one for all, "+signing.String()+": drop one of them"))
	case s.Empty() && (!kubernetes || signing.Empty()):
		errs = append(errs, field.Required(path, "needs a CA: secret, or certFile and keyFile"))
	}
	errs = append(errs, s.validateUsages(path.Child("usages"), kubernetes)...)
	errs = append(errs, s.validateNames(path, kubernetes)...)
	errs = append(errs, s.validateLifetimes(path)...)
	if s.AllowWildcards && kubernetes {
		errs = append(errs, field.Invalid(path.Child("allowWildcards"), s.AllowWildcards, "is for custom signers: Kubernetes' own permit wildcards"))
	}
	return append(errs, s.validateSubjects(path.Child("forbiddenSubjects"), signing)...)
}

func (s *Signer) validateSubjects(path *field.Path, signing *Signing) field.ErrorList {
	if s.ForbiddenSubjects == nil && !s.Empty() && !isKubernetesSigner(s.Name) && s.authenticates() && signing.servesKubernetesWith(s.CA) {
		return field.ErrorList{field.Required(path, "this signer permits client certificates and shares the CA of one of Kubernetes' signers, "+
			"so whoever may approve for it can make any user: say which subjects it never issues, or give it a CA of its own")}
	}
	return subjects(path, s.ForbiddenSubjects)
}

func servedName(path *field.Path, name string) field.ErrorList {
	if strings.HasPrefix(name, "kubernetes.io/") && !isKubernetesSigner(name) {
		return field.ErrorList{field.Invalid(path, name, "Kubernetes has no such signer that can be served")}
	}
	return signerName(path, name)
}

// authenticates says whether certificates of this signer can be used by clients.
func (s *Signer) authenticates() bool {
	return slices.Contains(s.Usages, string(certificatesv1.UsageClientAuth)) || slices.Contains(s.Usages, string(certificatesv1.UsageAny))
}

// servesKubernetesWith says whether one of Kubernetes' signers has that CA.
func (s *Signing) servesKubernetesWith(authority CA) bool {
	return authority.sameSource(s.CA) || slices.ContainsFunc(s.Signers, func(one Signer) bool {
		return isKubernetesSigner(one.Name) && one.sameSource(authority)
	})
}

func subjects(path *field.Path, patterns []string) field.ErrorList {
	var errs field.ErrorList
	for i, pattern := range patterns {
		if err := ca.CheckSubjectPattern(pattern); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), pattern, err.Error()))
		}
	}
	return errs
}

func (s *Signer) validateLifetimes(path *field.Path) field.ErrorList {
	errs := lifetime(path.Child("duration"), s.Duration)
	errs = append(errs, lifetime(path.Child("minDuration"), s.MinDuration)...)
	errs = append(errs, lifetime(path.Child("maxDuration"), s.MaxDuration)...)
	if s.MaxDuration != nil && s.Duration != nil && s.MaxDuration.Duration < s.Duration.Duration {
		errs = append(errs, field.Invalid(path.Child("maxDuration"), s.MaxDuration.Duration.String(), "is less than the duration"))
	}
	if s.MaxDuration != nil && s.MinDuration != nil && s.MaxDuration.Duration < s.MinDuration.Duration {
		errs = append(errs, field.Invalid(path.Child("minDuration"), s.MinDuration.Duration.String(), "is more than the longest, maxDuration"))
	}
	return errs
}

func (s *Signer) validateUsages(path *field.Path, kubernetes bool) field.ErrorList {
	switch {
	case kubernetes && len(s.Usages) > 0:
		return field.ErrorList{field.Forbidden(path, "Kubernetes' signers have rules of their own")}
	case !kubernetes && len(s.Usages) == 0:
		return field.ErrorList{field.Required(path, "say which usages this signer permits")}
	}
	var errs field.ErrorList
	for i, usage := range s.Usages {
		if !csr.KnownUsage(certificatesv1.KeyUsage(usage)) {
			errs = append(errs, field.Invalid(path.Index(i), usage, "no such usage"))
		}
	}
	return errs
}

// validateNames checks what a custom signer alone may be given beside its usages.
func (s *Signer) validateNames(path *field.Path, kubernetes bool) field.ErrorList {
	var errs field.ErrorList
	if kubernetes && len(s.AllowedNames) > 0 {
		errs = append(errs, field.Forbidden(path.Child("allowedNames"), "Kubernetes' signers have rules of their own"))
	}
	if kubernetes && s.AllowNoExtKeyUsage {
		errs = append(errs, field.Forbidden(path.Child("allowNoExtKeyUsage"), "Kubernetes' signers have rules of their own"))
	}
	for i, name := range s.AllowedNames {
		if _, err := ca.NewAllowedNames([]string{name}); err != nil {
			errs = append(errs, field.Invalid(path.Child("allowedNames").Index(i), name, err.Error()))
		}
	}
	extended := func(usage string) bool { return csr.ExtendedUsage(certificatesv1.KeyUsage(usage)) }
	if len(s.Usages) > 0 && !s.AllowNoExtKeyUsage && !slices.ContainsFunc(s.Usages, extended) {
		errs = append(errs, field.Invalid(path.Child("usages"), strings.Join(s.Usages, ","),
			"none is an extended key usage, such as server auth, and without one a certificate is refused: add one, or set allowNoExtKeyUsage"))
	}
	return errs
}

func lifetime(path *field.Path, value *metav1.Duration) field.ErrorList {
	if value == nil {
		return nil
	}
	if err := ca.CheckLifetime(value.Duration); err != nil {
		return field.ErrorList{field.Invalid(path, value.Duration.String(), err.Error())}
	}
	return nil
}

func isKubernetesSigner(name string) bool {
	return slices.ContainsFunc(perSignerFlags, func(one struct{ middle, signer string }) bool { return one.signer == name })
}

func (c *Configuration) validateServing() field.ErrorList {
	errs := bindAddress(field.NewPath("metricsBindAddress"), c.MetricsBindAddress)
	if c.MetricsCertDir != "" && !c.MetricsSecure {
		errs = append(errs, field.Invalid(field.NewPath("metricsCertDir"), c.MetricsCertDir, "is of no use without --metrics-secure"))
	}
	return append(errs, bindAddress(field.NewPath("healthProbeBindAddress"), c.HealthProbeBindAddress)...)
}

func bindAddress(path *field.Path, address string) field.ErrorList {
	if address == "0" {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return field.ErrorList{field.Invalid(path, address, "want host:port, or 0 for none")}
	}
	return nil
}

func (a *Audit) validate(path *field.Path) field.ErrorList {
	errs := atLeast(path.Child("maxSize"), a.MaxSize, 1)
	errs = append(errs, atLeast(path.Child("maxBackups"), a.MaxBackups, 0)...)
	return append(errs, atLeast(path.Child("maxAge"), a.MaxAge, 0)...)
}

func (s *SelfCheck) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Interval.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("interval"), s.Interval.Duration.String(), "must be positive, or 0 for never"))
	}
	if len(s.BootstrapGroups) == 0 {
		errs = append(errs, field.Required(path.Child("bootstrapGroups"), "say which groups join nodes"))
	}
	if len(s.NodeGroups) == 0 {
		errs = append(errs, field.Required(path.Child("nodeGroups"), "say which groups nodes are in"))
	}
	return errs
}
