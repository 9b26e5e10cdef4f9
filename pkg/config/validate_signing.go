package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func (s *Signing) validate(m *mistakes, path *field.Path, needed bool) {
	s.CA.validate(m, path)
	m.lifetime(path.Child("duration"), &s.Duration)
	m.atLeast(path.Child("minRSABits"), s.MinRSABits, 1024)
	m.unless(s.MinRSABits <= ca.MaxRSABits, path.Child("minRSABits"), s.MinRSABits,
		fmt.Sprintf("longer RSA keys than %d bits are never permitted", ca.MaxRSABits))
	m.subjects(path.Child("forbiddenSubjects"), s.ForbiddenSubjects)
	seen := map[string]bool{}
	hasCA := !s.Empty()
	for i := range s.Signers {
		signer := &s.Signers[i]
		at := path.Child("signers").Key(signer.Name)
		if seen[signer.Name] {
			m.all = append(m.all, field.Duplicate(at, signer.Name))
		}
		seen[signer.Name] = true
		hasCA = hasCA || !signer.Empty()
		signer.validate(m, at, s)
		contradicts := func(before Signer) bool { return signer.sameSource(before.CA) && signer.CA != before.CA }
		before := append([]Signer{{CA: s.CA}}, s.Signers[:i]...)
		m.unless(signer.Empty() || !slices.ContainsFunc(before, contradicts), at, signer.CA,
			"names the same CA as an earlier entry, with another chain, createIfMissing, keyAlgorithm or caDuration: "+
				"use the same values")
	}
	m.require(!needed || hasCA, path, "no signing CA: set --signing-secret, or --cluster-signing-cert-file and "+
		"--cluster-signing-key-file, or one for each signer; or exclude the signer with --controllers=*,-signer")
}

func (s *Signer) validate(m *mistakes, path *field.Path, signing *Signing) {
	kubernetes := isBuiltin(s.Name)
	s.CA.validate(m, path)
	if strings.HasPrefix(s.Name, "kubernetes.io/") {
		m.unless(kubernetes, path.Child("name"), s.Name, "unknown signer of Kubernetes, or one that cannot be served")
	} else {
		m.signerName(path.Child("name"), s.Name)
	}
	m.unless(!kubernetes || s.Empty() || signing.Empty(), path, s.CA, "one of Kubernetes' signers can't have a CA of its "+
		"own while there is one for all, "+signing.String()+": remove one of them")
	m.require(!s.Empty() || kubernetes && !signing.Empty(), path, "needs a CA: secret, or certFile and keyFile")
	s.validateUsages(m, path, kubernetes)
	s.validateLifetimes(m, path)
	m.unless(!s.AllowWildcards || !kubernetes, path.Child("allowWildcards"), s.AllowWildcards,
		"has an effect only for custom signers: Kubernetes' signers always permit wildcards")
	s.validateSubjects(m, path.Child("forbiddenSubjects"), signing)
}

func (s *Signer) validateLifetimes(m *mistakes, path *field.Path) {
	m.lifetime(path.Child("duration"), s.Duration)
	m.lifetime(path.Child("minDuration"), s.MinDuration)
	m.lifetime(path.Child("maxDuration"), s.MaxDuration)
	if s.MaxDuration != nil {
		longest := s.MaxDuration.Duration
		m.unless(s.Duration == nil || longest >= s.Duration.Duration, path.Child("maxDuration"), longest,
			"must not be less than the duration")
		if s.MinDuration != nil {
			m.unless(longest >= s.MinDuration.Duration, path.Child("minDuration"), s.MinDuration.Duration,
				"must not be more than maxDuration")
		}
	}
}

func (s *Signer) validateSubjects(m *mistakes, path *field.Path, signing *Signing) {
	m.subjects(path, s.ForbiddenSubjects)
	if s.ForbiddenSubjects == nil && !isBuiltin(s.Name) && !s.Empty() {
		authenticates := slices.Contains(s.Usages, string(certificatesv1.UsageClientAuth)) ||
			slices.Contains(s.Usages, string(certificatesv1.UsageAny))
		m.require(!authenticates || !signing.servesKubernetesWith(s.CA), path,
			"this signer permits client certificates and shares the CA of one of Kubernetes' signers, so whoever may "+
				"approve for it can make any user: say which subjects it never issues, or give it a CA of its own")
	}
}

// validateUsages checks the fields that only a custom signer may have: its usages, and the names that it may issue.
func (s *Signer) validateUsages(m *mistakes, path *field.Path, kubernetes bool) {
	if kubernetes {
		const why = "Kubernetes' signers have fixed rules"
		m.forbid(len(s.Usages) > 0, path.Child("usages"), why)
		m.forbid(len(s.AllowedNames) > 0, path.Child("allowedNames"), why)
		m.forbid(s.AllowNoExtKeyUsage, path.Child("allowNoExtKeyUsage"), why)
		return
	}
	m.require(len(s.Usages) > 0, path.Child("usages"), "list the usages that this signer permits")
	issues := len(s.Usages) == 0 || s.AllowNoExtKeyUsage
	for i, usage := range s.Usages {
		_, extended, unknown := csr.X509Usages([]certificatesv1.KeyUsage{certificatesv1.KeyUsage(usage)})
		m.unless(len(unknown) == 0, path.Child("usages").Index(i), usage, "no such usage")
		issues = issues || len(extended) > 0
	}
	for i, name := range s.AllowedNames {
		_, err := ca.NewAllowedNames([]string{name})
		m.check(err, path.Child("allowedNames").Index(i), name)
	}
	m.unless(issues, path.Child("usages"), strings.Join(s.Usages, ","), "none is an extended key usage, such as server "+
		"auth, and without one a certificate is refused: add one, or set allowNoExtKeyUsage")
}

// servesKubernetesWith reports whether one of Kubernetes' signers has that CA.
func (s *Signing) servesKubernetesWith(authority CA) bool {
	return authority.sameSource(s.CA) || slices.ContainsFunc(s.Signers, func(signer Signer) bool {
		return isBuiltin(signer.Name) && signer.sameSource(authority)
	})
}

func (m *mistakes) subjects(path *field.Path, patterns []string) {
	for i, pattern := range patterns {
		m.check(ca.CheckSubjectPattern(pattern), path.Index(i), pattern)
	}
}

func (m *mistakes) lifetime(path *field.Path, value *metav1.Duration) {
	if value != nil {
		m.check(ca.CheckLifetime(value.Duration), path, value.Duration)
	}
}

func isBuiltin(signerName string) bool {
	_, found := csr.BuiltinSigner(signerName)
	return found
}

func (c CA) validate(m *mistakes, path *field.Path) {
	m.namespacedName(path.Child("secret"), c.Secret)
	m.unless(c.Secret == "" || c.CertFile == "" && c.KeyFile == "", path.Child("secret"), c.Secret,
		"excludes the files: remove one of them")
	m.unless(c.CertFile == "" || c.KeyFile != "", path.Child("certFile"), c.CertFile,
		"needs the key file that belongs to it")
	m.unless(c.KeyFile == "" || c.CertFile != "", path.Child("keyFile"), c.KeyFile,
		"needs the certificate file that belongs to it")
	const noCAHere = "needs a secret or files of the same entry"
	if c.Chain != "" {
		oneOf(m, path.Child("chain"), c.Chain, ca.Chains()...)
		m.forbid(c.Empty(), path.Child("chain"), noCAHere)
	}
	if !c.CreateIfMissing {
		const why = "has an effect only with createIfMissing"
		m.forbid(c.KeyAlgorithm != "", path.Child("keyAlgorithm"), why)
		m.forbid(c.CADuration.Duration != 0, path.Child("caDuration"), why)
		return
	}
	m.forbid(c.Empty(), path.Child("createIfMissing"), noCAHere)
	m.forbid(!c.Empty() && c.Secret == "", path.Child("createIfMissing"), "the manager creates only Secrets, not files")
	if c.KeyAlgorithm != "" {
		oneOf(m, path.Child("keyAlgorithm"), c.KeyAlgorithm, ca.Algorithms()...)
	}
	if c.CADuration.Duration != 0 {
		m.lifetime(path.Child("caDuration"), &c.CADuration)
	}
}

// validateGuarded finds CAs that can't be rotated.
func (s *Signing) validateGuarded(m *mistakes, path *field.Path) {
	const why = "with rotation.enabled, the CA must be in a Secret: a CA in files cannot be rotated"
	m.unless(s.CertFile == "", path.Child("certFile"), s.CertFile, why)
	for _, signer := range s.Signers {
		m.unless(signer.CertFile == "", path.Child("signers").Key(signer.Name).Child("certFile"), signer.CertFile, why)
	}
}

// signerName checks what the API server checks (Kubernetes pkg/apis/certificates/validation, ValidateSignerName): one
// slash, a domain of two or more labels before it, and something after it.
func (m *mistakes) signerName(path *field.Path, name string) {
	domain, rest, _ := strings.Cut(name, "/")
	isDomain := strings.Contains(domain, ".") && len(validation.IsDNS1123Subdomain(domain)) == 0
	m.unless(isDomain && rest != "" && !strings.Contains(rest, "/"), path, name,
		"want domain/name, such as example.com/client")
}

func (c *Cleaning) validate(m *mistakes, path *field.Path) {
	m.atLeast(path.Child("deletesPerSecond"), c.DeletesPerSecond, 1)
	c.Retention.validate(m, path.Child("retention"))
	seen := map[string]bool{}
	for _, signer := range c.Signers {
		at := path.Child("signers").Key(signer.Name)
		m.signerName(at.Child("name"), signer.Name)
		if seen[signer.Name] {
			m.all = append(m.all, field.Duplicate(at, signer.Name))
		}
		seen[signer.Name] = true
		signer.Retention.validate(m, at.Child("retention"))
	}
}

// validate refuses retentions that delete a request before a controller or a person can act on it. Times of the API are
// whole seconds.
func (r Retention) validate(m *mistakes, path *field.Path) {
	for _, each := range []struct {
		name string
		age  *metav1.Duration
	}{{"approved", r.Approved}, {"denied", r.Denied}, {"failed", r.Failed}, {"pending", r.Pending}} {
		if each.age != nil {
			age := each.age.Duration
			m.unless(age < 0 || age >= time.Second, path.Child(each.name), age,
				"must be 1s or more, or negative to keep requests forever: shorter times delete them unseen")
		}
	}
}
