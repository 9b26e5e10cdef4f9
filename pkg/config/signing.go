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

// Signing configures the signer. It needs one CA for all of Kubernetes' signers, or one for each signer to serve.
type Signing struct {
	CA `json:",inline"`
	// Duration is the longest lifetime of a certificate, and the lifetime if the request asks for none. More than 2m9s.
	Duration metav1.Duration `json:"duration" flag:"cluster-signing-duration"`
	// MinRSABits is the smallest RSA key, at least 1024.
	MinRSABits int `json:"minRSABits" min:"1024"`
	// ForbiddenSubjects lists subjects that no signer issues, unless the signer has its own list: `O=value` or
	// `CN=value`, with at most one `*`, at the end. `O=system:masters` is forbidden too, unless the list is empty: `[]` forbids nothing.
	ForbiddenSubjects []string `json:"forbiddenSubjects,omitzero"`
	// Signers lists signers with settings of their own: Kubernetes' signers and custom signers.
	Signers []Signer `json:"signers"`
}

func (s *Signing) validate(m *mistakes, path *field.Path, needed bool) {
	s.CA.validate(m, path)
	m.lifetime(path.Child("duration"), &s.Duration)
	m.unless(s.MinRSABits <= ca.MaxRSABits, path.Child("minRSABits"), s.MinRSABits,
		fmt.Sprintf("longer RSA keys than %d bits are never permitted", ca.MaxRSABits))
	m.subjects(path.Child("forbiddenSubjects"), s.ForbiddenSubjects)
	seen := map[string]bool{}
	hasCA := !s.Empty()
	for i := range s.Signers {
		signer := &s.Signers[i]
		at := path.Child("signers").Key(signer.Name)
		m.unique(seen, at, signer.Name)
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

// servesKubernetesWith reports whether one of Kubernetes' signers has that CA.
func (s *Signing) servesKubernetesWith(authority CA) bool {
	return authority.sameSource(s.CA) || slices.ContainsFunc(s.Signers, func(signer Signer) bool {
		return isBuiltin(signer.Name) && signer.sameSource(authority)
	})
}

// validateGuarded finds CAs that can't be rotated.
func (s *Signing) validateGuarded(m *mistakes, path *field.Path) {
	const why = "with rotation.enabled, the CA must be in a Secret: a CA in files cannot be rotated"
	m.unless(s.CertFile == "", path.Child("certFile"), s.CertFile, why)
	for _, signer := range s.Signers {
		m.unless(signer.CertFile == "", path.Child("signers").Key(signer.Name).Child("certFile"), signer.CertFile, why)
	}
}

// CA names the source of a signing certificate and its key: a Secret of type kubernetes.io/tls, or two files. Values
// can be compared.
type CA struct {
	// Secret is the `namespace/name` of a Secret of type `kubernetes.io/tls` with the CA. Below `signing`, it serves
	// all of Kubernetes' signers.
	Secret string `json:"secret,omitempty" flag:"signing-secret" form:"namespace/name"`
	// CertFile is the file with the CA certificate, instead of a Secret. It needs `keyFile`.
	CertFile string `json:"certFile,omitempty" flag:"cluster-signing-cert-file" form:"file"`
	// KeyFile is the file with the CA's key. It needs `certFile`.
	KeyFile string `json:"keyFile,omitempty" flag:"cluster-signing-key-file" form:"file"`
	// Chain selects the certificates [after the leaf](signing-ca.md#chain): `Intermediates` (the default), `None` or
	// `WithRoot`.
	Chain ca.Chain `json:"chain,omitempty"`
	// CreateIfMissing makes the manager create a CA if the Secret does not exist.
	CreateIfMissing bool `json:"createIfMissing,omitempty"`
	// KeyAlgorithm is the key of a created CA: `ECDSAP256` (the default), `ECDSAP384`, `RSA3072`, `RSA4096`, `ED25519`, or
	// [post-quantum](signing-ca.md#post-quantum-keys) `MLDSA44`, `MLDSA65` or `MLDSA87`.
	KeyAlgorithm ca.Algorithm `json:"keyAlgorithm,omitempty"`
	// CADuration is the lifetime of a created CA. The default is ten years (87600h).
	CADuration metav1.Duration `json:"caDuration,omitzero"`
}

// Empty reports whether there is neither a Secret nor a file.
func (c CA) Empty() bool { return c.Secret == "" && c.CertFile == "" && c.KeyFile == "" }

// sameSource reports whether c and other are read from the same place.
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

// SecretName splits Secret into a namespace and a name. Both are empty for anything but namespace/name.
func (c CA) SecretName() (namespace, name string) { return splitName(c.Secret) }

func (c CA) validate(m *mistakes, path *field.Path) {
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

// Signer configures one signer.
type Signer struct {
	// Name is the signerName, such as `example.com/client`.
	Name string `json:"name"`
	CA   `json:",inline"`
	// Duration is the lifetime if the request asks for none. The default is `signing.duration`, at most `maxDuration`.
	Duration *metav1.Duration `json:"duration,omitempty"`
	// MinDuration is what a request for less gets. The default is ten minutes.
	MinDuration *metav1.Duration `json:"minDuration,omitempty"`
	// MaxDuration is what a request for more gets. The default is `duration`.
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`
	// Usages lists the permitted usages. Required for a custom signer, forbidden for Kubernetes' signers.
	Usages []certificatesv1.KeyUsage `json:"usages,omitempty"`
	// ForbiddenSubjects replaces `signing.forbiddenSubjects`. [What a trusted CA
	// forbids](signing-ca.md#custom-signers-whose-ca-the-cluster-trusts) stays forbidden.
	ForbiddenSubjects []string `json:"forbiddenSubjects,omitzero"`
	// AllowWildcards permits DNS names that begin with `*.` for a custom signer.
	AllowWildcards bool `json:"allowWildcards,omitempty"`
	// AllowedNames lists the names that a custom signer [on a trusted
	// CA](signing-ca.md#custom-signers-whose-ca-the-cluster-trusts) may issue to servers.
	AllowedNames []string `json:"allowedNames,omitempty"`
	// AllowNoExtKeyUsage permits certificates without an extended key usage, for a custom signer whose CA the cluster
	// does not trust.
	AllowNoExtKeyUsage bool `json:"allowNoExtKeyUsage,omitempty"`
}

func (s *Signer) validate(m *mistakes, path *field.Path, signing *Signing) {
	kubernetes := isBuiltin(s.Name)
	m.tags(s, path.String())
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
		authenticates := slices.Contains(s.Usages, certificatesv1.UsageClientAuth) ||
			slices.Contains(s.Usages, certificatesv1.UsageAny)
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
	_, extended, unknown := csr.X509Usages(s.Usages)
	m.unless(len(unknown) == 0, path.Child("usages"), unknown, "no such usage")
	for i, name := range s.AllowedNames {
		_, err := ca.NewAllowedNames([]string{name})
		m.check(err, path.Child("allowedNames").Index(i), name)
	}
	m.unless(len(s.Usages) == 0 || len(extended) > 0 || s.AllowNoExtKeyUsage, path.Child("usages"), s.Usages, "none is an extended key usage, such as server "+
		"auth, and without one a certificate is refused: add one, or set allowNoExtKeyUsage")
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

// Rotation configures the [rotation of the signing CAs](rotation.md).
type Rotation struct {
	// Enabled switches it on for every CA in a Secret. A CA then signs only after it is proven to be trusted.
	Enabled bool `json:"enabled"`
	// OldLifetimeCap is the longest lifetime of certificates that the old CA issues while the new CA waits to be
	// trusted.
	OldLifetimeCap metav1.Duration `json:"oldLifetimeCap"`
	// SettleFor is how long every API server must give the same answer about a CA.
	SettleFor metav1.Duration `json:"settleFor"`
}

// Cleaning configures the cleaner, and until when an approved request is signed.
type Cleaning struct {
	// Retention sets how long requests are kept.
	Retention Retention `json:"retention"`
	// Signers lists signers with a retention of their own.
	Signers []SignerRetention `json:"signers"`
	// DeletesPerSecond limits how fast a backlog is deleted.
	DeletesPerSecond int `json:"deletesPerSecond" min:"1"`
}

// Retention sets how long requests are kept. A negative duration keeps them forever.
type Retention struct {
	// Approved counts from the approval, for issued requests too, but not for failed ones. After that, no request is signed.
	// The default is 1h.
	Approved *metav1.Duration `json:"approved,omitempty"`
	// Denied counts from the denial. The default is 1h.
	Denied *metav1.Duration `json:"denied,omitempty"`
	// Failed counts from the failure, for approved requests too. The default is 1h.
	Failed *metav1.Duration `json:"failed,omitempty"`
	// Pending counts from the creation. The default is 24h.
	Pending *metav1.Duration `json:"pending,omitempty"`
	// Expired counts from the end of the issued certificate. The default is 0s: at once.
	Expired *metav1.Duration `json:"expired,omitempty"`
}

// SignerRetention overrides the retention for one signer. A field that is not set has the value for all.
type SignerRetention struct {
	// Name is the signerName.
	Name string `json:"name"`
	// Retention sets how long requests of this signer are kept.
	Retention Retention `json:"retention"`
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
	c.Retention.validate(m, path.Child("retention"))
	seen := map[string]bool{}
	for _, signer := range c.Signers {
		at := path.Child("signers").Key(signer.Name)
		m.signerName(at.Child("name"), signer.Name)
		m.unique(seen, at, signer.Name)
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
