package ca

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rsa"
	"crypto/x509/pkix"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

const (
	// Backdate is the time between NotBefore and issuance, for clocks that run late (Kubernetes
	// pkg/controller/certificates/signer/signer.go).
	Backdate = 5 * time.Minute

	// shortLived is the lifetime below which the backdating extends the validity. From there on it is part of the
	// validity (Kubernetes pkg/controller/certificates/authority/policies.go, PermissiveSigningPolicy.Short).
	shortLived = 8 * time.Hour

	// ShortestLifetime is the lifetime that a useful certificate must exceed. A client renews as early as after 70 %
	// of the validity (client-go util/certificate), and Backdate of it has passed at issuance. With 0.7 × (lifetime +
	// Backdate) <= Backdate, the client would renew at once, for ever.
	ShortestLifetime = Backdate * 3 / 7

	// DefaultLifetime is kube-controller-manager's: one year.
	DefaultLifetime = 365 * 24 * time.Hour

	// defaultMinLifetime is kube-controller-manager's: ten minutes.
	defaultMinLifetime = 10 * time.Minute

	// DefaultMinRSABits is the minimum of NIST SP 800-57 part 1 for use after 2013.
	DefaultMinRSABits = 2048
)

// ProfileConfig sets what an Authority may issue to one kind of requester. The zero value is
// kube-controller-manager's behaviour with a signing duration of one year, RSA keys of 2048 bits or more, and without
// O=system:masters.
type ProfileConfig struct {
	// Lifetime applies to requests that set none. Without MaxLifetime it is also the maximum. Zero means one year.
	Lifetime time.Duration
	// MinLifetime raises shorter requested lifetimes, up to MaxLifetime. Zero means ten minutes.
	MinLifetime time.Duration
	// MaxLifetime lowers longer requested lifetimes. Zero means Lifetime.
	MaxLifetime time.Duration
	// MinRSABits is the length of the shortest permitted RSA key. Zero means 2048.
	MinRSABits int
	// ForbiddenSubjects refuses subjects by pattern: "O=value" or "CN=value", where one trailing * matches any
	// suffix. O=system:masters is on the list unless it is empty but not nil: its members bypass every authorizer, and
	// the API server's admission (CertificateSubjectRestriction) keeps them from only one signer.
	ForbiddenSubjects []string
	// ForbidWildcards refuses DNS names that begin with "*.".
	ForbidWildcards bool
}

// Profile is a checked ProfileConfig. The zero Profile can't be used to issue; OrDefault turns it into the default
// Profile.
type Profile struct{ config ProfileConfig }

// OrDefault returns p, or for the zero Profile that of the zero ProfileConfig.
func (p Profile) OrDefault() Profile {
	if p.config.Lifetime == 0 {
		p, _ = NewProfile(ProfileConfig{}) // never fails
	}
	return p
}

// NewProfile fills in the defaults of config and checks it.
func NewProfile(config ProfileConfig) (Profile, error) {
	config.Lifetime = cmp.Or(config.Lifetime, DefaultLifetime)
	config.MinLifetime = cmp.Or(config.MinLifetime, defaultMinLifetime)
	config.MaxLifetime = cmp.Or(config.MaxLifetime, config.Lifetime)
	config.MinRSABits = cmp.Or(config.MinRSABits, DefaultMinRSABits)
	const masters = "O=system:masters"
	empty := config.ForbiddenSubjects != nil && len(config.ForbiddenSubjects) == 0
	config.ForbiddenSubjects = slices.Clone(config.ForbiddenSubjects)
	if !empty && !slices.Contains(config.ForbiddenSubjects, masters) {
		config.ForbiddenSubjects = append(config.ForbiddenSubjects, masters)
	}
	for _, lifetime := range []time.Duration{config.Lifetime, config.MinLifetime, config.MaxLifetime} {
		if err := CheckLifetime(lifetime); err != nil {
			return Profile{}, err
		}
	}
	if config.Lifetime > config.MaxLifetime {
		return Profile{}, fmt.Errorf("the default lifetime %s exceeds the maximum lifetime %s",
			config.Lifetime, config.MaxLifetime)
	}
	for _, pattern := range config.ForbiddenSubjects {
		if err := CheckSubjectPattern(pattern); err != nil {
			return Profile{}, err
		}
	}
	return Profile{config: config}, nil
}

// CheckLifetime returns why certificates with this lifetime would be useless, or nil.
func CheckLifetime(lifetime time.Duration) error {
	if lifetime > ShortestLifetime {
		return nil
	}
	return fmt.Errorf("%s is too short: certificates are backdated by %s and clients renew after as little as 70%% "+
		"of the validity, so a certificate of %s or less is due for renewal as soon as it is issued",
		lifetime, Backdate, ShortestLifetime.Round(time.Second))
}

// CheckSubjectPattern returns why pattern is not valid in ProfileConfig.ForbiddenSubjects, or nil.
func CheckSubjectPattern(pattern string) error {
	attribute, value, found := strings.Cut(pattern, "=")
	if !found || (attribute != "O" && attribute != "CN") || value == "" ||
		strings.Contains(strings.TrimSuffix(value, "*"), "*") {
		return fmt.Errorf("%q is not a subject pattern: want O=value or CN=value, with at most one *, at the end", pattern)
	}
	return nil
}

// Within returns p with its lifetimes limited to longest. If longest is zero, Within returns p unchanged.
func (p Profile) Within(longest time.Duration) Profile {
	if longest > 0 {
		p.config.Lifetime, p.config.MaxLifetime = min(p.config.Lifetime, longest), min(p.config.MaxLifetime, longest)
	}
	return p
}

// Lifetime returns the lifetime for a request that sets none.
func (p Profile) Lifetime() time.Duration { return p.config.Lifetime }

// Violation is a reason why a Request can never be issued under a Profile or by an Authority. Reason is a token of
// docs/reference/reasons.md, and Message is a sentence.
type Violation struct{ Reason, Message string }

// Error returns the Message.
func (v *Violation) Error() string { return v.Message }

// Check returns the first reason why req can never be issued under p, or nil.
func (p Profile) Check(req Request) *Violation {
	if violation := p.checkKey(req.PublicKey); violation != nil {
		return violation
	}
	for _, pattern := range p.config.ForbiddenSubjects {
		if MatchesSubject(pattern, req.Subject) {
			return &Violation{"SubjectNotPermitted", fmt.Sprintf("subject %+q is not permitted: this signer never issues %s",
				SubjectText(req.Subject, maxSubjectText), pattern)}
		}
	}
	for _, name := range req.DNSNames {
		if err := san.CheckDNSName(name, !p.config.ForbidWildcards); err != nil {
			return &Violation{"NameNotPermitted", fmt.Sprintf("DNS name %+q %v", Shorten(name, maxSubjectText), err)}
		}
	}
	return nil
}

// MatchesSubject reports whether subject matches pattern, an entry of ProfileConfig.ForbiddenSubjects.
func MatchesSubject(pattern string, subject pkix.Name) bool {
	attribute, want, _ := strings.Cut(pattern, "=")
	values := subject.Organization
	if attribute == "CN" {
		values = []string{subject.CommonName}
	}
	return slices.ContainsFunc(values, func(value string) bool { return matches(want, value) })
}

// LifetimeOf returns the lifetime of a certificate under p for a requested lifetime, as kube-controller-manager limits it
// (pkg/controller/certificates/signer/signer.go, duration). Zero means the default. The maximum is applied last. The end of
// the CA may shorten it.
func (p Profile) LifetimeOf(requested time.Duration) time.Duration {
	if requested == 0 {
		return p.config.Lifetime
	}
	return min(max(requested, p.config.MinLifetime), p.config.MaxLifetime)
}

// MaxRSABits is the length of the longest RSA key that is verified or signed. Twice the length costs at least
// four times the time. crypto/tls refuses longer keys too.
const MaxRSABits = 8192

// lacksMLDSA reports whether this program has no ML-DSA keys, as with version v1.0.0 of Go's FIPS 140-3 module.
var lacksMLDSA = sync.OnceValue(func() bool { return MLDSA44.Check() != nil })

// PermittedKeys lists the keys that a certificate can be for.
func PermittedKeys() string {
	const others = "use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521"
	if lacksMLDSA() {
		return others + ", or Ed25519"
	}
	return others + ", Ed25519, or ML-DSA-44, ML-DSA-65 or ML-DSA-87"
}

// CheckKey returns why no certificate is ever signed for the public key, or nil. It does no arithmetic on the key, so
// it can run before a signature is verified with the key.
func CheckKey(public crypto.PublicKey) *Violation {
	refuse := func(format string, args ...any) *Violation {
		return &Violation{Reason: "KeyNotPermitted", Message: fmt.Sprintf(format, args...) + "; " + PermittedKeys()}
	}
	switch key := public.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits > MaxRSABits {
			return refuse("RSA keys of %d bits are not permitted", bits)
		}
		// crypto/rsa accepts no other exponents. The exponent 1 would leave every message unchanged.
		if key.E < 3 || key.E%2 == 0 || key.E > math.MaxInt32 {
			return refuse("RSA keys with the public exponent %d are not permitted", key.E)
		}
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
		default:
			return refuse("ECDSA keys on the curve %s are not permitted", key.Curve.Params().Name)
		}
	case ed25519.PublicKey, *mldsa.PublicKey:
	default:
		return refuse("public keys of type %T are not permitted", public)
	}
	return nil
}

// checkKey returns why p does not permit the public key, or nil. Beyond CheckKey it checks the length of RSA keys.
func (p Profile) checkKey(public crypto.PublicKey) *Violation {
	if violation := CheckKey(public); violation != nil {
		return violation
	}
	key, isRSA := public.(*rsa.PublicKey)
	if !isRSA || key.N.BitLen() >= p.config.MinRSABits {
		return nil
	}
	return &Violation{"KeyTooWeak",
		fmt.Sprintf("RSA key of %d bits is too weak: at least %d bits are needed", key.N.BitLen(), p.config.MinRSABits)}
}

const (
	// maxSubjectText bounds a subject in a message, in bytes.
	maxSubjectText = 256

	ellipsis = "..."
)

// SubjectText renders name in the form of its String method, shortened to room bytes as in Shorten. The common name and the
// organizations, which API servers read, come first: other attributes can't push them out. It takes time in proportion to
// room and to the number of attributes. pkix.RDNSequence.String copies the whole text again for each attribute.
func SubjectText(name pkix.Name, room int) string {
	name.Names = nil // String adds the unknown attributes of a parsed name, which no certificate holds
	rest := name
	rest.CommonName, rest.Organization = "", nil
	user := pkix.Name{CommonName: name.CommonName, Organization: name.Organization}
	rdns := slices.Concat(rest.ToRDNSequence(), user.ToRDNSequence())
	var text strings.Builder
	for i := len(rdns) - 1; i >= 0; i-- {
		for j, attribute := range rdns[i] {
			if text.Len() > room {
				return Shorten(text.String(), room)
			}
			switch {
			case j > 0:
				text.WriteByte('+')
			case text.Len() > 0:
				text.WriteByte(',')
			}
			if value, ok := attribute.Value.(string); ok {
				attribute.Value = value[:min(len(value), room+1)]
			}
			text.WriteString(pkix.RDNSequence{{attribute}}.String())
		}
	}
	return Shorten(text.String(), room)
}

// Texts returns the text of each of all.
func Texts[T fmt.Stringer](all []T) (texts []string) {
	for _, each := range all {
		texts = append(texts, each.String())
	}
	return texts
}

// Shorten cuts text to at most room bytes. A shortened text ends in "...".
func Shorten(text string, room int) string {
	if len(text) <= room {
		return text
	}
	return strings.ToValidUTF8(text[:room-len(ellipsis)], "") + ellipsis
}
