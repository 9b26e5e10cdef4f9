package rules

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// maxCost bounds the estimated cost of a condition, and the cost of all conditions that judge a request. An API server
// has the same limit for a call of a ValidatingAdmissionPolicy, about a tenth of a second.
const maxCost = 1_000_000

// maxTime bounds the time of a condition. To count the cost of a long list takes far longer than the list.
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

// Compiler compiles rules. Make it with NewCompiler.
type Compiler struct {
	env   *cel.Env
	sizes sizes
}

// NewCompiler returns a Compiler. The limits bound the sizes by which it estimates the cost of conditions.
func NewCompiler(limits csr.Limits) (*Compiler, error) {
	options := []cel.EnvOption{
		cel.HomogeneousAggregateLiterals(), cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals()),
	}
	for _, each := range Libraries() {
		options = append(options, each.option)
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	options, err = declare(env)
	if err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	if env, err = env.Extend(options...); err != nil {
		return nil, fmt.Errorf("set up CEL: %w", err)
	}
	return &Compiler{env: env, sizes: sizesOf(limits)}, nil
}

// condition is a compiled Condition.
type condition struct {
	Condition
	program                      cel.Program
	readsRequester, readsAccount bool
	reads                        []string // the fields of request
}

// condition compiles an expression. A mistake says the line and the column.
func (c *Compiler) condition(source Condition, path *field.Path) (condition, field.ErrorList) {
	compiled := condition{Condition: source}
	mistake := func(format string, args ...any) (condition, field.ErrorList) {
		return compiled, field.ErrorList{field.Invalid(path, source.Expression, fmt.Sprintf(format, args...))}
	}
	checked, issues := c.env.Compile(source.Expression)
	if issues.Err() != nil {
		var mistakes field.ErrorList
		for _, each := range issues.Errors() {
			at := each.Location
			_, more := mistake("line %d, column %d: %s", at.Line(), at.Column()+1, each.Message)
			mistakes = append(mistakes, more...)
		}
		return compiled, mistakes
	}
	if checked.OutputType() != cel.BoolType {
		return mistake("line 1, column 1: the expression is of type %s, want bool", checked.OutputType())
	}
	estimate, err := c.env.EstimateCost(checked, estimator{&library.CostEstimator{SizeEstimator: c.sizes}})
	if err != nil {
		return mistake("estimate the cost: %v", err)
	}
	if estimate.Max > maxCost {
		return mistake("the estimated cost is %d, more than %d: simplify the expression, or lower requestLimits",
			estimate.Max, maxCost)
	}
	compiled.program, err = c.env.Program(checked, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostTracking(&library.CostEstimator{}), cel.CostLimit(maxCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return mistake("%v", err)
	}
	compiled.read(checked.NativeRep().Expr())
	return compiled, nil
}

// read notes which variables expr reads.
func (c *condition) read(expr celast.Expr) {
	celast.PreOrderVisit(expr, celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.IdentKind:
			c.readsRequester = c.readsRequester || e.AsIdent() == "requester"
		case celast.SelectKind:
			selected := e.AsSelect()
			c.readsAccount = c.readsAccount || selected.FieldName() == "serviceAccount"
			if selected.Operand().AsIdent() == "request" {
				c.reads = append(c.reads, selected.FieldName())
			}
		}
	}))
}

// check returns why the condition is not true for s, or an empty text.
func (c condition) check(ctx context.Context, s *Subject) string {
	result, err := s.eval(ctx, c.program)
	if result == types.True {
		return ""
	}
	said := c.Message
	if said == "" {
		said = "the condition " + strings.Join(strings.Fields(c.Expression), " ") + " is not true"
	}
	const room = maxMessage / 2 // for each half of a sentence with a cause
	switch {
	case s.slow:
		return fmt.Sprintf("%s (the conditions take more than %s)", csr.ShortenTo(said, room), maxTime)
	case s.spent > maxCost:
		return fmt.Sprintf("%s (the conditions cost more than %d)", csr.ShortenTo(said, room), maxCost)
	case err != nil && c.readsAccount && s.noAccount != "":
		return fmt.Sprintf("%s (%s)", csr.ShortenTo(said, room), s.noAccount)
	case err != nil:
		return fmt.Sprintf("%s (error: %s)", csr.ShortenTo(said, room), csr.ShortenTo(err.Error(), room-10))
	}
	return csr.ShortenTo(said, maxMessage)
}

// eval returns the result of a program, and adds its cost. There is no result above a limit, and none after a program that was too
// slow.
func (s *Subject) eval(ctx context.Context, program cel.Program) (ref.Val, error) {
	if s.slow {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	result, details, err := program.ContextEval(limited, s.variables)
	s.slow = s.slow || limited.Err() != nil
	switch {
	case err != nil && strings.Contains(err.Error(), "actual cost limit exceeded"):
		s.spent = maxCost + 1
	case details != nil && details.ActualCost() != nil:
		s.spent += *details.ActualCost()
	}
	if s.spent > maxCost || s.slow {
		return nil, nil
	}
	return result, err
}

// estimator estimates costs as API servers do, and counts the result of replace too, which can be far larger than its input: a text
// for each letter.
type estimator struct{ *library.CostEstimator }

// EstimateCallCost implements checker.CostEstimator.
func (e estimator) EstimateCallCost(
	function, overload string, target *checker.AstNode, args []checker.AstNode,
) *checker.CallEstimate {
	estimate := e.CostEstimator.EstimateCallCost(function, overload, target, args)
	if function == "replace" && estimate != nil && estimate.ResultSize != nil {
		estimate.CostEstimate = estimate.Add(estimate.ResultSize.MultiplyByCostFactor(common.StringTraversalCostFactor))
	}
	return estimate
}

// sizes estimates the sizes of texts and lists in the variables. It implements checker.CostEstimator.
type sizes struct {
	known          map[string]uint64 // of single texts, by path
	entries, entry uint64            // of each list and map, and the average of their texts
}

// sizesOf returns the sizes for limits. A list has as many entries as names are permitted, and they have together as many
// bytes as a request may have in DER.
func sizesOf(limits csr.Limits) sizes {
	entries, bytes := max(1, cmp.Or(limits.Names, csr.DefaultLimits.Names)), cmp.Or(limits.DERBytes, csr.DefaultLimits.DERBytes)
	estimated := sizes{known: map[string]uint64{}, entries: uint64(entries), entry: uint64(max(1, bytes/entries))}
	for _, each := range Variables() {
		if kind := each.declared.CelType().Kind(); kind == types.StringKind {
			estimated.known[each.Path] = cmp.Or(each.MaxBytes, uint64(max(1, bytes)))
		}
	}
	return estimated
}

// EstimateSize implements checker.CostEstimator.
func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	size, known := s.known[strings.Join(element.Path(), ".")]
	switch kind := element.Type().Kind(); {
	case known:
	case kind == types.ListKind || kind == types.MapKind:
		size = s.entries
	default:
		size = s.entry
	}
	return &checker.SizeEstimate{Max: size}
}

// EstimateCallCost implements checker.CostEstimator. The library has the costs of calls.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// fillVariables sets the variables of s. With account, they hold the ServiceAccount of the requester, if it is one. An
// error means that this is unknown.
func (s *Subject) fillVariables(account bool) error {
	if s.variables == nil {
		s.variables = variablesOf(s)
	}
	requester := s.variables["requester"].(map[string]any)
	if _, known := requester["serviceAccount"]; !account || known || s.noAccount != "" {
		return nil
	}
	found, refusal, err := s.account()
	if err != nil {
		return err
	}
	if s.noAccount = NoAccount(refusal); refusal == "" {
		requester["serviceAccount"] = map[string]any{"namespace": found.Namespace, "name": found.Name}
	}
	return nil
}
