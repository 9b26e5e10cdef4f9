package config

import (
	"net"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

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
