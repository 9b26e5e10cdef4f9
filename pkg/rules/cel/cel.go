// Package cel compiles the conditions of approval rules, which are written in the Common Expression Language. It does no I/O.
// A context and a limit of the cost bound the time of conditions.
package cel

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/mldsa"
	"crypto/rsa"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// maxCost bounds the estimated cost of a condition, and the cost of all conditions that judge a request. An API server
// has the same limit for a call of a ValidatingAdmissionPolicy, about a tenth of a second.
const maxCost = 1_000_000

// maxTime bounds the time of a condition. To count the cost of a long list takes far longer than the list. It ends no call of a
// function, such as a slow matches: one call is in progress when it is over.
const maxTime = time.Second

// Library is a library of functions for conditions.
type Library struct {
	Name, Functions string
	option          cel.EnvOption
}

// Libraries returns the libraries beside the standard library of CEL. They are those of Kubernetes' API servers, with
// fixed versions.
func Libraries() []Library {
	return []Library{
		{"strings", "charAt, indexOf, join, lastIndexOf, lowerAscii, replace, split, substring, trim, upperAscii, format, quote", ext.Strings(ext.StringsVersion(2))},
		{"lists", "indexOf, isSorted, lastIndexOf, max, min, sum", library.Lists(library.ListsVersion(0))},
		{"regex", "find, findAll", library.Regex()},
		{"url", "url, isURL, getScheme, getHost, getHostname, getPort, getEscapedPath, getQuery", library.URLs()},
		{"ip", "ip, isIP, ip.isCanonical, family, isGlobalUnicast, isLinkLocalMulticast, isLinkLocalUnicast, isLoopback, isUnspecified", library.IP()},
		{"cidr", "cidr, isCIDR, containsIP, containsCIDR, masked, prefixLength", library.CIDR()},
	}
}

// Variable is a field of the variables of conditions. Their names and types do not change.
type Variable struct {
	// Path is the name in expressions.
	Path string
	// Doc is what it holds.
	Doc string
	// MaxBytes is the most bytes of a text, or of each text in a list. Zero means that requestLimits or maxCommonName bound it.
	MaxBytes int
	declared *apiservercel.DeclType
}

// Type returns the type in CEL.
func (v Variable) Type() string { return cel.FormatCELType(v.declared.CelType()) }

var (
	text    = apiservercel.StringType
	texts   = apiservercel.NewListType(text, -1)
	byText  = apiservercel.NewMapType(text, text, -1)
	listsBy = apiservercel.NewMapType(text, texts, -1)
)

// Variables returns all fields. A request is what the signer would sign.
func Variables() []Variable {
	return []Variable{
		{"request.commonName", "common name of the subject, or an empty text", 0, text},
		{"request.organizations", "organizations of the subject", 0, texts},
		{"request.names", "DNS names, in lower case and without a dot at the end", csr.MaxName, texts},
		{"request.addresses", "IP addresses as text, for `ip()`", 45, texts},
		{"request.emails", "e-mail addresses", csr.MaxEmail, texts},
		{"request.uris", "URIs as the certificate would hold them", csr.MaxURI, texts},
		{"request.usages", "usages as in `spec.usages`", 0, texts},
		{"request.duration", "lifetime of the certificate that would be issued: the requested one, or the default of the signer, within its limits", 0, apiservercel.DurationType},
		{"request.key.algorithm", "`RSA`, `ECDSA`, `Ed25519`, `ML-DSA-44`, `ML-DSA-65` or `ML-DSA-87`", 16, text},
		{"request.key.bits", "size of the key: of RSA the modulus, of ECDSA the curve, of others the public key", 0, apiservercel.IntType},
		{"requester.username", "user name", 1024, text},
		{"requester.uid", "UID, or an empty text", 128, text},
		{"requester.groups", "groups", 0, texts},
		{"requester.extra", "extra of the authenticator: for each key a list", 0, listsBy},
		{"requester.serviceAccount.namespace", "namespace of the ServiceAccount that the requester is", 63, text},
		{"requester.serviceAccount.name", "name of that ServiceAccount", 253, text},
		{"object.name", "name of the CertificateSigningRequest, which the requester chose", csr.MaxName, text},
		{"object.labels", "its labels, which the requester chose and others may change", 0, byText},
		{"object.annotations", "its annotations, likewise", 0, byText},
		{"object.created", "its creation, by the API server's clock", 0, apiservercel.TimestampType},
	}
}

// objectOf returns the type of the object at path: the fields of Variables below it.
func objectOf(path string) *apiservercel.DeclType {
	fields := map[string]*apiservercel.DeclField{}
	for _, each := range Variables() {
		below, found := strings.CutPrefix(each.Path, path+".")
		if !found {
			continue
		}
		name, _, isObject := strings.Cut(below, ".")
		declared := each.declared
		if isObject {
			declared = objectOf(path + "." + name)
		}
		fields[name] = apiservercel.NewDeclField(name, declared, true, nil, nil)
	}
	return apiservercel.NewObjectType("rules."+path, fields)
}

// conditions implements rules.Conditions.
type conditions struct {
	env    *cel.Env
	limits csr.Limits
}

// New returns the Conditions. The limits bound the sizes by which it estimates the cost of conditions.
func New(limits csr.Limits) (rules.Conditions, error) {
	options := []cel.EnvOption{
		cel.HomogeneousAggregateLiterals(), cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals()),
	}
	for _, each := range Libraries() {
		options = append(options, each.option)
	}
	env, err := cel.NewEnv(options...)
	if err == nil {
		request, requester, object := objectOf("request"), objectOf("requester"), objectOf("object")
		options, err = apiservercel.NewDeclTypeProvider(request, requester, object).EnvOptions(env.CELTypeProvider())
		options = append(options, cel.Variable("request", request.CelType()), cel.Variable("requester", requester.CelType()),
			cel.Variable("object", object.CelType()))
	}
	if err == nil {
		env, err = env.Extend(options...)
	}
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	return &conditions{env, limits}, nil
}

// Compile implements rules.Conditions.
func (c *conditions) Compile(rule rules.Rule, condition rules.Condition) (_ rules.Program, warnings, problems []string) {
	checked, issues := c.env.Compile(condition.Expression)
	if issues.Err() != nil {
		for _, each := range issues.Errors() {
			problems = append(problems, fmt.Sprintf("line %d, column %d: %s", each.Location.Line(), each.Location.Column()+1, each.Message))
		}
		return nil, nil, problems
	}
	if checked.OutputType() != cel.BoolType {
		return nil, nil, []string{fmt.Sprintf("line 1, column 1: the expression is of type %s, want bool", checked.OutputType())}
	}
	estimate, err := c.env.EstimateCost(checked, sizes{c.limits, rule.MaxCommonName})
	if err == nil && estimate.Max > maxCost {
		err = fmt.Errorf("the estimated cost is %d, more than %d: simplify the expression, or lower requestLimits", estimate.Max, maxCost)
	}
	if err != nil {
		return nil, nil, []string{err.Error()}
	}
	evaluator, err := c.env.Program(checked, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostTracking(&library.CostEstimator{}), cel.CostLimit(maxCost), cel.InterruptCheckFrequency(1))
	if err != nil {
		return nil, nil, []string{err.Error()}
	}
	return &program{condition, evaluator}, checkPatterns(rule.Name, checked), nil
}

// checkPatterns returns a warning for each pattern of matches in a condition of rule that may accept more than it says.
func checkPatterns(rule string, checked *cel.Ast) (warnings []string) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(checked.NativeRep()), ast.FunctionMatcher("matches")) {
		args := call.AsCall().Args()
		pattern := args[len(args)-1]
		if pattern.Kind() != ast.LiteralKind {
			warnings = append(warnings, fmt.Sprintf("approval rule %s computes a pattern of matches: a dot in a value of the pattern "+
				"matches every character; compare with ==", rule))
			continue
		}
		text := fmt.Sprint(pattern.AsLiteral().Value())
		re, err := syntax.Parse(text, syntax.Perl)
		if err != nil || re.Op != syntax.OpConcat || re.Sub[0].Op != syntax.OpBeginText || re.Sub[len(re.Sub)-1].Op != syntax.OpEndText {
			warnings = append(warnings, fmt.Sprintf("approval rule %s has matches(%q), which accepts each text with a match in it: "+
				"write ^(?:PATTERN)$", rule, text))
		}
	}
	return warnings
}

// program is a compiled condition. It implements rules.Program.
type program struct {
	rules.Condition
	evaluator cel.Program
}

// Check implements rules.Program.
func (p *program) Check(ctx context.Context, s *rules.Subject) csr.Objection {
	state := stateOf(s)
	result, err := state.eval(ctx, p.evaluator)
	if result == types.True {
		return csr.NoObjection
	}
	said := cmp.Or(p.Message, "the condition "+strings.Join(strings.Fields(p.Expression), " ")+" is not true")
	var cause string
	switch {
	case state.spent > maxCost:
		cause = fmt.Sprintf("the conditions cost more than %d, or take more than %s", maxCost, maxTime)
	case err != nil && s.Account.Name == "" && strings.Contains(p.Expression, "serviceAccount"):
		cause = "the requester is not a ServiceAccount"
	case err != nil:
		cause = "error: " + csr.ShortenTo(err.Error(), rules.MaxMessage/2-10)
	default:
		return csr.Objection(csr.ShortenTo(said, rules.MaxMessage))
	}
	return csr.Objection(fmt.Sprintf("%s (%s)", csr.ShortenTo(said, rules.MaxMessage/2), cause))
}

// state is what the conditions of all rules that judge a request have in common.
type state struct {
	variables map[string]any
	spent     uint64 // the cost of all conditions so far; above maxCost also after a condition that took too long
}

// stateOf returns the state of s. Its variables hold the ServiceAccount of the requester once a rule has read it.
func stateOf(s *rules.Subject) *state {
	if s.State == nil {
		s.State = &state{variables: variablesOf(s)}
	}
	kept := s.State.(*state)
	if s.Account.Name != "" {
		kept.variables["requester"].(map[string]any)["serviceAccount"] = map[string]any{
			"namespace": s.Account.Namespace, "name": s.Account.Name,
		}
	}
	return kept
}

// eval returns the result of a program, and adds its cost. There is no result above a limit.
func (s *state) eval(ctx context.Context, program cel.Program) (ref.Val, error) {
	if s.spent > maxCost {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	result, details, err := program.ContextEval(limited, s.variables)
	switch {
	case limited.Err() != nil || err != nil && strings.Contains(err.Error(), "actual cost limit exceeded"):
		s.spent = maxCost + 1
	case details != nil && details.ActualCost() != nil:
		s.spent += *details.ActualCost()
	}
	if s.spent > maxCost {
		return nil, nil
	}
	return result, err
}

// sizes estimates costs as API servers do, by the sizes of the variables. It implements checker.CostEstimator.
type sizes struct {
	csr.Limits
	maxCommonName int
}

// EstimateSize implements checker.CostEstimator. The texts of a list have together no more bytes than the limits permit.
func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path, _, inside := strings.Cut(strings.Join(element.Path(), "."), ".@")
	entries, bytes := cmp.Or(s.Names, csr.DefaultLimits.Names), cmp.Or(s.DERBytes, csr.DefaultLimits.DERBytes)
	all := Variables()
	i := slices.IndexFunc(all, func(known Variable) bool { return known.Path == path })
	longest := 0
	switch {
	case path == "request.commonName" || path == "request.organizations":
		entries, longest = cmp.Or(s.SubjectAttributes, csr.DefaultLimits.SubjectAttributes), s.maxCommonName
	case path == "request.usages" || !strings.HasPrefix(path, "request."):
		entries, bytes = cmp.Or(s.Entries, csr.DefaultLimits.Entries), cmp.Or(s.ObjectBytes, csr.DefaultLimits.ObjectBytes)
	}
	if i >= 0 {
		longest = cmp.Or(all[i].MaxBytes, longest)
	}
	most := cmp.Or(longest, bytes)
	switch kind := element.Type().Kind(); {
	case kind == types.ListKind || kind == types.MapKind:
		most = entries
	case i < 0 || inside:
		most = min(most, bytes/max(1, entries))
	}
	return &checker.SizeEstimate{Max: uint64(max(1, most))}
}

// EstimateCallCost implements checker.CostEstimator. It counts the result of replace too, which can be far larger than its
// input: a text for each letter.
func (s sizes) EstimateCallCost(
	function, overload string, target *checker.AstNode, args []checker.AstNode,
) *checker.CallEstimate {
	estimate := (&library.CostEstimator{SizeEstimator: s}).EstimateCallCost(function, overload, target, args)
	if function == "replace" && estimate != nil && estimate.ResultSize != nil {
		estimate.CostEstimate = estimate.Add(estimate.ResultSize.MultiplyByCostFactor(common.StringTraversalCostFactor))
	}
	return estimate
}

// variablesOf returns the variables for s, without the ServiceAccount of the requester.
func variablesOf(s *rules.Subject) map[string]any {
	algorithm, bits := keyOf(s.Cert.PublicKey)
	return map[string]any{
		"request": map[string]any{
			"commonName": s.Cert.Subject.CommonName, "organizations": s.Cert.Subject.Organization,
			"names": s.Cert.DNSNames, "addresses": ca.Texts(s.Cert.IPAddresses), "emails": s.Cert.EmailAddresses,
			"uris": ca.Texts(s.Cert.URIs), "usages": s.Usages, "duration": s.Lifetime, "key": map[string]any{"algorithm": algorithm, "bits": bits},
		},
		"requester": map[string]any{
			"username": s.Requester.Username, "uid": s.Requester.UID, "groups": s.Requester.Groups,
			"extra": s.Requester.Extra,
		},
		"object": map[string]any{
			"name": s.Name, "labels": s.Labels, "annotations": s.Annotations, "created": s.Created,
		},
	}
}

// keyOf returns the algorithm and the size of a public key. csr.Parse permits no others.
func keyOf(public crypto.PublicKey) (algorithm string, bits int) {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return "RSA", key.N.BitLen()
	case *ecdsa.PublicKey:
		return "ECDSA", key.Curve.Params().BitSize
	case ed25519.PublicKey:
		return "Ed25519", 256
	case *mldsa.PublicKey:
		return key.Parameters().String(), 8 * key.Parameters().PublicKeySize()
	}
	return "", 0
}
