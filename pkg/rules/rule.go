// Package rules judges requests by the approval rules of the configuration: what a request may contain, and conditions
// in CEL. It decides in values and does no I/O; a context bounds the time of conditions. Facts that must be read are functions of its caller.
package rules

import (
	"context"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Rule says which requests for a signer are approved. The requester also needs the permission to `use` the rule: the verb
// `use` on `approvalrules` of the API group `csr-controller-manager.io`, with the name of the rule.
type Rule struct {
	// Name names the rule in permissions, Events, metrics and the audit log. It is a DNS label.
	Name string `json:"name"`
	// SignerName is the exact signerName of the requests.
	SignerName string `json:"signerName"`
	// Preset is `serviceNames`, `spiffe` or `ownIdentity`. It excludes `usages`, `maxDuration`, `allow`, `allowWildcards` and
	// `conditions`, which it fixes. A signer below `kubernetes.io/` accepts only `ownIdentity`.
	Preset Preset `json:"preset,omitempty"`
	// ClusterDomain is the domain of Services, for the preset `serviceNames`. The default is `cluster.local`.
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// TrustDomain is the trust domain of SPIFFE IDs. The preset `spiffe` requires it.
	TrustDomain string `json:"trustDomain,omitempty"`
	// ExpiryExtra is the key in the requester's extra that holds the end of its credential, in seconds since 1970, for the
	// preset `ownIdentity`. The certificate then ends earlier, and without this key nothing is approved.
	ExpiryExtra string `json:"expiryExtra,omitempty"`
	// Usages lists the usages that a request may have. It needs at least one of them.
	Usages []string `json:"usages,omitempty"`
	// MaxDuration is the longest lifetime of the certificate that would be issued.
	MaxDuration metav1.Duration `json:"maxDuration,omitzero"`
	// Allow lists what a request may contain: `names`, `addresses`, `emails`, `uris`, `commonName`, `organizations`. It needs
	// at least one of them. What is not listed must be absent.
	Allow []string `json:"allow,omitempty"`
	// AllowWildcards permits DNS names that begin with `*.`.
	AllowWildcards bool `json:"allowWildcards,omitempty"`
	// Conditions must all be true.
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition is an expression in the [Common Expression Language](approval-rules.md#variables).
type Condition struct {
	// Expression must be true. An error is not true.
	Expression string `json:"expression"`
	// Message is what the Event says if the condition is not true. If it is empty, the Event has the expression.
	Message string `json:"message,omitempty"`
}

// Compiled is a checked Rule. Make it with Compiler.Compile.
type Compiled struct {
	Name, SignerName string
	// IgnoresRequester reports that no condition looks at the requester: the permission alone decides who.
	IgnoresRequester bool
	// Unread lists what the rule allows and no condition reads, so any value is accepted.
	Unread []string
	// ReadsAccount reports that the rule needs to know which ServiceAccount the requester is.
	ReadsAccount bool
	// ReadsServices reports that Services must be read before an approval.
	ReadsServices bool

	rule       Rule
	preset     preset // nil for a rule with conditions
	conditions []condition
}

// maxMessage bounds the message of a condition, in bytes, so that those of three rules fit into an Event.
const maxMessage = 200

// Compile returns the Compiled rule, or every mistake in it.
func (c *Compiler) Compile(rule Rule, path *field.Path) (*Compiled, field.ErrorList) {
	compiled := &Compiled{Name: rule.Name, SignerName: rule.SignerName, rule: rule}
	var mistakes field.ErrorList
	for _, problem := range validation.IsDNS1123Label(rule.Name) {
		mistakes = append(mistakes, field.Invalid(path.Child("name"), rule.Name, problem))
	}
	if strings.HasPrefix(rule.SignerName, "kubernetes.io/") && rule.Preset != OwnIdentity {
		mistakes = append(mistakes, field.Invalid(path.Child("signerName"), rule.SignerName,
			"a signer of Kubernetes accepts only the preset ownIdentity"))
	}
	mistakes = append(mistakes, rule.checkPresetFields(path)...)
	if rule.Preset != "" {
		compiled.preset = presets[rule.Preset]
		compiled.ReadsAccount = rule.Preset != OwnIdentity
		compiled.ReadsServices = rule.Preset == ServiceNames
		return compiled, mistakes
	}
	mistakes = append(mistakes, rule.checkFields(path)...)
	compiled.IgnoresRequester, compiled.Unread = true, slices.Clone(rule.Allow)
	for i, each := range rule.Conditions {
		at := path.Child("conditions").Index(i)
		if len(each.Message) > maxMessage {
			mistakes = append(mistakes, field.TooLong(at.Child("message"), each.Message, maxMessage))
		}
		done, problems := c.condition(each, at.Child("expression"))
		mistakes = append(mistakes, problems...)
		compiled.conditions = append(compiled.conditions, done)
		compiled.ReadsAccount = compiled.ReadsAccount || done.readsAccount
		compiled.IgnoresRequester = compiled.IgnoresRequester && !done.readsRequester
		compiled.Unread = slices.DeleteFunc(compiled.Unread, func(content string) bool { return slices.Contains(done.reads, content) })
	}
	return compiled, mistakes
}

// checkPresetFields returns the mistakes in the fields that only a preset, or only a rule without one, may have.
func (r Rule) checkPresetFields(path *field.Path) (mistakes field.ErrorList) {
	_, known := presets[r.Preset]
	if r.Preset != "" && !known {
		return field.ErrorList{field.NotSupported(path.Child("preset"), r.Preset, Presets())}
	}
	forbid := func(set bool, name, why string) {
		if set {
			mistakes = append(mistakes, field.Forbidden(path.Child(name), why))
		}
	}
	if r.Preset != "" {
		const why = "a preset fixes this field"
		forbid(r.Usages != nil, "usages", why)
		forbid(r.MaxDuration.Duration != 0, "maxDuration", why)
		forbid(r.Allow != nil, "allow", why)
		forbid(r.AllowWildcards, "allowWildcards", why)
		forbid(r.Conditions != nil, "conditions", why)
	}
	forbid(r.ClusterDomain != "" && r.Preset != ServiceNames, "clusterDomain", "has an effect only with the preset serviceNames")
	forbid(r.TrustDomain != "" && r.Preset != SPIFFE, "trustDomain", "has an effect only with the preset spiffe")
	forbid(r.ExpiryExtra != "" && r.Preset != OwnIdentity, "expiryExtra", "has an effect only with the preset ownIdentity")
	return append(mistakes, r.checkPresetValues(path)...)
}

// checkPresetValues returns the mistakes in the values of a preset.
func (r Rule) checkPresetValues(path *field.Path) (mistakes field.ErrorList) {
	for _, problem := range validation.IsDNS1123Subdomain(r.clusterDomain()) {
		mistakes = append(mistakes, field.Invalid(path.Child("clusterDomain"), r.ClusterDomain, problem))
	}
	isDomain := r.TrustDomain != "" && len(r.TrustDomain) <= 255 && strings.Trim(r.TrustDomain, trustDomainCharacters) == ""
	if r.Preset == SPIFFE && !isDomain {
		mistakes = append(mistakes, field.Invalid(path.Child("trustDomain"), r.TrustDomain,
			"want 1 to 255 lower-case letters, digits, dots, dashes and underscores"))
	}
	if r.Preset == OwnIdentity && r.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		mistakes = append(mistakes, field.Invalid(path.Child("signerName"), r.SignerName,
			"the preset ownIdentity is for "+certificatesv1.KubeAPIServerClientSignerName))
	}
	return mistakes
}

// trustDomainCharacters are those of a SPIFFE trust domain (SPIFFE-ID section 2.1).
const trustDomainCharacters = "abcdefghijklmnopqrstuvwxyz0123456789.-_"

// checkFields returns the mistakes in the fields of a rule without a preset.
func (r Rule) checkFields(path *field.Path) (mistakes field.ErrorList) {
	require := func(set bool, name, why string) {
		if !set {
			mistakes = append(mistakes, field.Required(path.Child(name), why))
		}
	}
	require(len(r.Usages) > 0, "usages", "list the usages that a request may have")
	require(r.MaxDuration.Duration > 0, "maxDuration", "set the longest lifetime of a certificate")
	require(len(r.Allow) > 0, "allow", "list what a request may contain: "+strings.Join(contents, ", "))
	require(len(r.Conditions) > 0, "conditions", "write at least one condition")
	for i, usage := range r.Usages {
		if _, _, unknown := csr.X509Usages([]certificatesv1.KeyUsage{certificatesv1.KeyUsage(usage)}); len(unknown) > 0 {
			mistakes = append(mistakes, field.Invalid(path.Child("usages").Index(i), usage, "no such usage"))
		}
	}
	for i, content := range r.Allow {
		if !slices.Contains(contents, content) {
			mistakes = append(mistakes, field.NotSupported(path.Child("allow").Index(i), content, contents))
		}
	}
	if r.AllowWildcards && !slices.Contains(r.Allow, "names") {
		mistakes = append(mistakes, field.Forbidden(path.Child("allowWildcards"), "has an effect only if names are allowed"))
	}
	return mistakes
}

// clusterDomain returns the domain of Services.
func (r Rule) clusterDomain() string {
	if r.ClusterDomain == "" {
		return "cluster.local"
	}
	return r.ClusterDomain
}

// Account is a ServiceAccount.
type Account struct{ Namespace, Name string }

// NoAccount says why the requester is not a ServiceAccount. It implements error.
type NoAccount string

// Error implements error.
func (n NoAccount) Error() string { return string(n) }

// Facts holds what is known about a request, beside its content. An error of a function means that the fact is unknown,
// and that no rule that needs it decides.
type Facts struct {
	// Lifetime is that of the certificate that would be issued. Zero means unknown.
	Lifetime time.Duration
	// Trusted is a clause that says why certificates of the signer may be those of users: API servers trust its CA, or it is
	// unknown whether they do. It is empty if they do not.
	Trusted string
	// Account returns the ServiceAccount that the requester is, or a NoAccount.
	Account func() (Account, error)
	// Now returns the time of the API servers.
	Now func() (time.Time, error)
}

// Subject is a request that the rules of its signer judge one after the other.
type Subject struct {
	*csr.Request
	Facts Facts

	variables map[string]any // nil until a condition needs them
	noAccount NoAccount      // why the variables have no ServiceAccount
	spent     uint64         // the cost of all conditions so far
	slow      bool           // a condition took too long
}

// Judge returns why the rule does not accept the content of the request, or an empty text if it does. An error means that
// a fact is unknown.
func (c *Compiled) Judge(ctx context.Context, s *Subject) (refusal string, err error) {
	if c.preset != nil {
		return c.preset(c.rule, s)
	}
	refusal = first(checkUsages(s, c.rule.Usages), checkTrust(s), checkContent(s, c.rule.Allow...),
		checkNames(s, c.rule.AllowWildcards), checkLifetime(s, c.rule.MaxDuration.Duration))
	if refusal != "" {
		return refusal, nil
	}
	if err := s.fillVariables(c.ReadsAccount); err != nil {
		return "", err
	}
	for _, condition := range c.conditions {
		if refusal := condition.check(ctx, s); refusal != "" {
			return refusal, nil
		}
	}
	return "", nil
}
