package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Empty says whether there is neither a Secret nor a file.
func (c CA) Empty() bool { return c.Secret == "" && c.CertFile == "" && c.KeyFile == "" }

// sameSource says whether c and other are read from the same place.
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

// SecretName splits Secret into its halves; both are empty for anything but namespace/name.
func (c CA) SecretName() (namespace, name string) {
	return splitName(c.Secret)
}

// BlockListName splits NodeBlockList into its halves; both are empty for anything but namespace/name.
func (c *Configuration) BlockListName() (namespace, name string) { return splitName(c.NodeBlockList) }

func splitName(text string) (namespace, name string) {
	namespace, name, _ = strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", ""
	}
	return namespace, name
}

func (c CA) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if _, name := c.SecretName(); c.Secret != "" && name == "" {
		errs = append(errs, field.Invalid(path.Child("secret"), c.Secret, "want namespace/name"))
	}
	if c.Secret != "" && (c.CertFile != "" || c.KeyFile != "") {
		errs = append(errs, field.Invalid(path.Child("secret"), c.Secret, "given together with files: drop one of them"))
	}
	switch {
	case c.CertFile != "" && c.KeyFile == "":
		errs = append(errs, field.Invalid(path.Child("certFile"), c.CertFile, "given without the key file that belongs to it"))
	case c.CertFile == "" && c.KeyFile != "":
		errs = append(errs, field.Invalid(path.Child("keyFile"), c.KeyFile, "given without the certificate file that belongs to it"))
	}
	return append(errs, c.validateSettings(path)...)
}

// validateSettings checks what is said of the CA beside where it is.
func (c CA) validateSettings(path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("chain"), c.Chain, ca.Chains())
	if c.Chain != "" && c.Empty() {
		errs = append(errs, field.Forbidden(path.Child("chain"), noCAHere))
	}
	if c.CreateIfMissing {
		return append(errs, c.validateCreation(path)...)
	}
	if c.KeyAlgorithm != "" {
		errs = append(errs, field.Forbidden(path.Child("keyAlgorithm"), "is for a CA that is made here: set createIfMissing"))
	}
	if c.CADuration.Duration != 0 {
		errs = append(errs, field.Forbidden(path.Child("caDuration"), "is for a CA that is made here: set createIfMissing"))
	}
	return errs
}

func (c CA) validateCreation(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.Empty() {
		errs = append(errs, field.Forbidden(path.Child("createIfMissing"), noCAHere))
	} else if c.Secret == "" {
		errs = append(errs, field.Forbidden(path.Child("createIfMissing"), "only a Secret is created, files are not"))
	}
	errs = append(errs, oneOf(path.Child("keyAlgorithm"), c.KeyAlgorithm, ca.Algorithms())...)
	if c.CADuration.Duration == 0 {
		return errs
	}
	return append(errs, lifetime(path.Child("caDuration"), &c.CADuration)...)
}

// oneOf refuses what is neither empty nor in known.
func oneOf[T ~string](path *field.Path, value T, known []T) field.ErrorList {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

// noCAHere is said of settings of a CA where there is none.
const noCAHere = "goes with the secret or the files that it is about: there are none here"

// signerName checks what the API server checks (Kubernetes pkg/apis/certificates/validation, ValidateSignerName): one
// slash, a domain of two or more labels before it, and something after it.
func signerName(path *field.Path, name string) field.ErrorList {
	domain, rest, found := strings.Cut(name, "/")
	if !found || rest == "" || strings.Contains(rest, "/") || !strings.Contains(domain, ".") || len(validation.IsDNS1123Subdomain(domain)) > 0 {
		return field.ErrorList{field.Invalid(path, name, "want domain/name, such as example.com/client")}
	}
	return nil
}

func (c *Cleaning) validate(path *field.Path) field.ErrorList {
	errs := atLeast(path.Child("deletesPerSecond"), c.DeletesPerSecond, 1)
	if after := c.SupersededAfter.Duration; after != 0 && after < csr.MinSupersededAfter {
		errs = append(errs, field.Invalid(path.Child("supersededAfter"), after.String(),
			fmt.Sprintf("must be %s or more, as a kubelet waits for its request so long, or 0 for never", csr.MinSupersededAfter)))
	}
	errs = append(errs, c.Retention.validate(path.Child("retention"))...)
	seen := map[string]bool{}
	for _, signer := range c.Signers {
		at := path.Child("signers").Key(signer.Name)
		errs = append(errs, signerName(at.Child("name"), signer.Name)...)
		if seen[signer.Name] {
			errs = append(errs, field.Duplicate(at, signer.Name))
		}
		seen[signer.Name] = true
		errs = append(errs, signer.Retention.validate(at.Child("retention"))...)
	}
	return errs
}

// validate refuses what would delete requests before anybody could act on them: times of the API are whole seconds.
func (r Retention) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, each := range []struct {
		name string
		age  *metav1.Duration
	}{{"approved", r.Approved}, {"denied", r.Denied}, {"failed", r.Failed}, {"pending", r.Pending}} {
		if each.age != nil && each.age.Duration >= 0 && each.age.Duration < time.Second {
			errs = append(errs, field.Invalid(path.Child(each.name), each.age.Duration.String(),
				"must be a second or more, or negative for ever: requests would be gone before anybody has seen them"))
		}
	}
	return errs
}

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
