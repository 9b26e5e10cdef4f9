// Package rules judges requests by approval rules: what a request may contain, and presets. It decides in values and does no
// I/O. Facts that must be read are functions of its caller. It links no language for conditions: package cel below it has one.
package rules

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// ExpiryExtra is the key in the requester's extra that holds the end of its credential, in seconds since 1970, for
	// the preset `ownIdentity`. The certificate ends no later. Without this key in a request nothing is approved.
	ExpiryExtra string `json:"expiryExtra,omitempty"`
	// Usages lists the usages that a request may have. It needs at least one of them.
	Usages []certificatesv1.KeyUsage `json:"usages,omitempty"`
	// MaxDuration is the longest lifetime of the certificate that would be issued.
	MaxDuration metav1.Duration `json:"maxDuration,omitzero"`
	// Allow lists what a request may contain: `names`, `addresses`, `emails`, `uris`, `commonName`, `organizations`. It needs
	// at least one of them. What is not listed must be absent.
	Allow []string `json:"allow,omitempty"`
	// AllowWildcards permits DNS names that begin with `*.`.
	AllowWildcards bool `json:"allowWildcards,omitempty"`
	// MaxCommonName is the most bytes of the common name, and of each organization. The default is 64, as in X.520, and 253 for
	// a preset.
	MaxCommonName int `json:"maxCommonName,omitempty"`
	// Conditions must all be true.
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition is an expression in the [Common Expression Language](approval-rules.md#variables).
type Condition struct {
	// Expression must be true. An error is not true.
	Expression string `json:"expression"`
	// Message is what the Event says if the condition is not true. The default is the expression.
	Message string `json:"message,omitempty"`
}

// Conditions compiles conditions. cel.New of package cel returns the Conditions of the reference.
type Conditions interface {
	// Compile compiles a condition of rule. A warning says what it may accept by mistake. A problem says what is wrong, with
	// its line and column.
	Compile(rule Rule, condition Condition) (program Program, warnings, problems []string)
}

// Program is a compiled condition.
type Program interface {
	// Check returns an objection if the condition is not true for the request. ctx bounds the time.
	Check(ctx context.Context, s *Subject) csr.Objection
}

// Compiled is a checked Rule. Make it with Compile.
type Compiled struct {
	Rule // with the fields that a preset fixes
	// Warnings are sentences about what the rule may accept by mistake.
	Warnings []string
	// ReadsAccount reports that the rule needs to know which ServiceAccount the requester is.
	ReadsAccount bool

	programs []Program // of Conditions
}

// MaxMessage bounds the message of a condition, in bytes, so that those of three rules fit into an Event.
const MaxMessage = 200

// Compile returns the Compiled rule, or every mistake in it. conditions compiles its conditions; nil permits none.
func Compile(rule Rule, path *field.Path, conditions Conditions) (*Compiled, field.ErrorList) {
	mistakes := rule.checkPreset(path)
	rule.ClusterDomain = cmp.Or(rule.ClusterDomain, "cluster.local")
	if rule.Preset != "" {
		fixed := presets[rule.Preset].fixed
		rule.MaxCommonName = cmp.Or(rule.MaxCommonName, fixed.MaxCommonName)
		rule.Usages, rule.MaxDuration, rule.Allow, rule.AllowWildcards = fixed.Usages, fixed.MaxDuration, fixed.Allow, fixed.AllowWildcards
		return &Compiled{Rule: rule, ReadsAccount: rule.Preset != OwnIdentity}, mistakes
	}
	rule.MaxCommonName = cmp.Or(rule.MaxCommonName, csr.MaxCommonName)
	compiled := &Compiled{Rule: rule}
	mistakes = slices.Concat(mistakes, compiled.compileConditions(path.Child("conditions"), conditions), rule.checkFields(path))
	compiled.describeReads()
	return compiled, mistakes
}

// compileConditions sets c.programs. It returns every mistake in the conditions.
func (c *Compiled) compileConditions(path *field.Path, conditions Conditions) (mistakes field.ErrorList) {
	if conditions == nil {
		return unless(len(c.Conditions) == 0, field.Forbidden(path, "this program compiles no conditions: pass it those of package "+
			"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"))
	}
	for i, each := range c.Conditions {
		at := path.Index(i)
		mistakes = append(mistakes, unless(len(each.Message) <= MaxMessage, field.TooLong(at.Child("message"), each.Message, MaxMessage))...)
		program, warnings, problems := conditions.Compile(c.Rule, each)
		c.Warnings = append(c.Warnings, warnings...)
		for _, problem := range problems {
			mistakes = append(mistakes, field.Invalid(at.Child("expression"), each.Expression, problem))
		}
		if len(problems) == 0 {
			c.programs = append(c.programs, program)
		}
	}
	return mistakes
}

// describeReads sets ReadsAccount and Warnings. No expression reads a field whose name is not in its text.
func (c *Compiled) describeReads() {
	text := ""
	for _, each := range c.Conditions {
		text += each.Expression + "\n"
	}
	c.ReadsAccount = strings.Contains(text, "serviceAccount")
	for _, content := range c.Allow {
		if !strings.Contains(text, "request."+content) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("approval rule %s allows %s, but no condition reads request.%s: "+
				"every value is accepted", c.Name, content, content))
		}
	}
	if !strings.Contains(text, "requester") {
		c.Warnings = append(c.Warnings, fmt.Sprintf("approval rule %s never looks at the requester: each user with the "+
			"verb use on it, such as cluster-admin, gets every certificate that it accepts; compare the request with requester, or "+
			"keep the rule for users who may have all of them", c.Name))
	}
}

// unless returns mistake, unless ok.
func unless(ok bool, mistake *field.Error) field.ErrorList {
	if ok {
		return nil
	}
	return field.ErrorList{mistake}
}

// checkPreset returns the mistakes in the name, the signer and the preset.
func (r Rule) checkPreset(path *field.Path) (mistakes field.ErrorList) {
	for _, problem := range validation.IsDNS1123Label(r.Name) {
		mistakes = append(mistakes, field.Invalid(path.Child("name"), r.Name, problem))
	}
	signer, own := path.Child("signerName"), r.Preset == OwnIdentity
	_, known := presets[r.Preset]
	return slices.Concat(
		mistakes,
		unless(own || !strings.HasPrefix(r.SignerName, "kubernetes.io/"), field.Invalid(signer, r.SignerName,
			"a signer of Kubernetes accepts only the preset ownIdentity")),
		unless(!own || r.SignerName == certificatesv1.KubeAPIServerClientSignerName, field.Invalid(signer, r.SignerName,
			"the preset ownIdentity is for "+certificatesv1.KubeAPIServerClientSignerName)),
		unless(known || r.Preset == "", field.NotSupported(path.Child("preset"), r.Preset, []Preset{ServiceNames, SPIFFE, OwnIdentity})),
		unless(r.Preset == "" || len(r.Usages)+len(r.Allow)+len(r.Conditions) == 0 && r.MaxDuration.Duration == 0 && !r.AllowWildcards,
			field.Forbidden(path.Child("preset"), "fixes usages, maxDuration, allow, allowWildcards and conditions: remove these")),
		unless(r.MaxCommonName >= 0, field.Invalid(path.Child("maxCommonName"), r.MaxCommonName, "must be 0 or more")),
		r.checkPresetValues(path),
	)
}

// checkPresetValues returns the mistakes in the fields that belong to one preset.
func (r Rule) checkPresetValues(path *field.Path) field.ErrorList {
	const trustDomain = "abcdefghijklmnopqrstuvwxyz0123456789.-_" // SPIFFE-ID section 2.1
	isDomain := r.Preset == ServiceNames && len(validation.IsDNS1123Subdomain(r.ClusterDomain)) == 0
	isTrust := r.TrustDomain != "" && len(r.TrustDomain) <= 255 && strings.Trim(r.TrustDomain, trustDomain) == ""
	return slices.Concat(
		unless(isDomain || r.ClusterDomain == "", field.Invalid(path.Child("clusterDomain"), r.ClusterDomain,
			"want a DNS name, and the preset serviceNames")),
		unless(isTrust || r.Preset != SPIFFE, field.Invalid(path.Child("trustDomain"), r.TrustDomain,
			"want 1 to 255 lower-case letters, digits, dots, dashes and underscores")),
		unless(r.TrustDomain == "" || r.Preset == SPIFFE, field.Forbidden(path.Child("trustDomain"), "has an effect only with the preset spiffe")),
		unless(r.ExpiryExtra == "" || r.Preset == OwnIdentity, field.Forbidden(path.Child("expiryExtra"), "has an effect only with the preset ownIdentity")),
	)
}

// checkFields returns the mistakes in the fields that a preset fixes.
func (r Rule) checkFields(path *field.Path) field.ErrorList {
	_, _, unknown := csr.X509Usages(r.Usages)
	other := slices.DeleteFunc(slices.Clone(r.Allow), func(content string) bool { return slices.Contains(contents, content) })
	return slices.Concat(
		unless(len(r.Usages) > 0, field.Required(path.Child("usages"), "list the usages that a request may have")),
		unless(len(unknown) == 0, field.Invalid(path.Child("usages"), unknown, "no such usage")),
		unless(r.MaxDuration.Duration > 0, field.Required(path.Child("maxDuration"), "set the longest lifetime of a certificate")),
		unless(len(r.Allow) > 0, field.Required(path.Child("allow"), "list what a request may contain: "+strings.Join(contents, ", "))),
		unless(len(other) == 0, field.NotSupported(path.Child("allow"), strings.Join(other, ","), contents)),
		unless(!r.AllowWildcards || slices.Contains(r.Allow, "names"), field.Forbidden(path.Child("allowWildcards"),
			"has an effect only if names are allowed")),
		unless(len(r.Conditions) > 0, field.Required(path.Child("conditions"), "write at least one condition")),
	)
}

// Subject is a request that the rules of its signer judge one after the other, with what is known about it beside its
// content. An error of a function means that the fact is unknown, and that no rule that needs it decides.
type Subject struct {
	*csr.Request
	// Lifetime is that of the certificate that would be issued. Zero means unknown.
	Lifetime time.Duration
	// Trust says whether certificates of the signer may be those of users.
	Trust Trust
	// MayUse returns whether the requester may use the rule of that name. Judge asks after the fields accept the request.
	MayUse func(rule string) (bool, error)
	// Gone returns an objection if the ServiceAccount that the requester claims to be is not the requester.
	Gone func() (csr.Objection, error)
	// Now returns the time of the API servers.
	Now func() (time.Time, error)

	// Permitted reports that the requester may use the rule that judged last.
	Permitted bool
	// Services are those that must exist for an approval by the rule that judged last, which accepts the request.
	Services []types.NamespacedName
	// Account is the ServiceAccount that the requester is. Judge sets it before it checks the conditions of a rule that reads it.
	Account types.NamespacedName
	// State belongs to the conditions. It lives as long as the request is judged, and holds for example their cost.
	State any

	values *csr.Objection // the result of checkValues, or nil before it ran
}

// Trust says whether API servers may accept certificates of a signer as those of users. The zero value says that they may.
type Trust struct {
	// Untrusted reports that API servers certainly do not trust the CA of the signer.
	Untrusted bool
	// Why is a clause that says why API servers trust the CA, or why that is unknown.
	Why string
}

// account returns the ServiceAccount that the requester is, or an objection. An error means that this is unknown.
func (s *Subject) account() (types.NamespacedName, csr.Objection, error) {
	namespace, name, objection := s.Requester.ServiceAccount()
	switch {
	case namespace == "":
		return types.NamespacedName{}, cmp.Or(objection, "the requester is not a ServiceAccount"), nil
	case s.Requester.UID == "":
		return types.NamespacedName{}, "the requester has the name of a ServiceAccount, but no UID", nil
	}
	if objection, err := s.Gone(); err != nil || objection != csr.NoObjection {
		return types.NamespacedName{}, objection, err
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, csr.NoObjection, nil
}

// NotPermitted is the objection to a requester that may not use a rule.
const NotPermitted csr.Objection = "the requester may not use it"

// Judge returns an objection if the rule does not accept the request. An error means that a fact is unknown. Judge makes
// the cheap checks first, so that a requester that may use no rule causes no work by conditions.
//
//  1. The rule is for the signer of the request.
//  2. The values are of their kinds, and the usages, the trust in the CA, the content and the lifetime are those of the rule.
//  3. The requester may use the rule.
//  4. A preset has its own check, and no conditions.
//  5. If a condition reads the ServiceAccount, a requester with the user name of one must be that one. Otherwise a condition
//     such as !has(requester.serviceAccount) would become true when the ServiceAccount is deleted.
//  6. Every condition is true.
func (c *Compiled) Judge(ctx context.Context, s *Subject) (csr.Objection, error) {
	s.Services, s.Permitted = nil, false
	if s.SignerName != c.SignerName {
		return csr.Objection("the rule is for signer " + c.SignerName), nil
	}
	if s.values == nil {
		objection := checkValues(s)
		s.values = &objection
	}
	if objection := cmp.Or(c.checkUsages(s), c.checkTrust(s), *s.values, c.checkContent(s), c.checkLifetime(s)); objection != csr.NoObjection {
		return objection, nil
	}
	var err error
	s.Permitted, err = s.MayUse(c.Name)
	switch {
	case err != nil:
		return csr.NoObjection, err
	case !s.Permitted:
		return NotPermitted, nil
	case c.Preset != "":
		return presets[c.Preset].check(c.Rule, s)
	case len(c.programs) != len(c.Conditions):
		return "the conditions of the rule are not compiled", nil
	case c.ReadsAccount:
		var objection csr.Objection
		s.Account, objection, err = s.account()
		if err != nil || objection != csr.NoObjection && strings.HasPrefix(s.Requester.Username, "system:serviceaccount:") {
			return objection, err
		}
	}
	for _, program := range c.programs {
		if objection := program.Check(ctx, s); objection != csr.NoObjection {
			return objection, nil
		}
	}
	return csr.NoObjection, nil
}
