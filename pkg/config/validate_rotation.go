package config

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (r *Rotation) validate(path *field.Path) field.ErrorList {
	errs := lifetime(path.Child("oldLifetimeCap"), &r.OldLifetimeCap)
	if r.SettleFor.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("settleFor"), r.SettleFor.Duration.String(), "must be positive"))
	}
	return errs
}

// validateGuarded finds CAs that can't be rotated.
func (s *Signing) validateGuarded(path *field.Path) field.ErrorList {
	errs := s.validateGuardedCA(path)
	for i := range s.Signers {
		errs = append(errs, s.Signers[i].validateGuardedCA(path.Child("signers").Key(s.Signers[i].Name))...)
	}
	return errs
}

func (c CA) validateGuardedCA(path *field.Path) field.ErrorList {
	if c.CertFile == "" {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("certFile"), c.CertFile, "a CA in files can't be rotated: with rotation.enabled it must be in a Secret")}
}
