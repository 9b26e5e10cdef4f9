package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"
)

// path leads to values in an object. The zero value leads nowhere.
type path struct {
	source     string
	expression *jsonpath.JSONPath
}

func (p path) String() string { return p.source }

// parsePath reads a path such as .status.addresses, with or without braces around it.
func parsePath(text string) (path, error) {
	if text == "" {
		return path{}, nil
	}
	inner := text
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		inner = text[1 : len(text)-1]
	}
	parser, err := jsonpath.Parse("path", "{"+inner+"}")
	switch {
	case err != nil:
		return path{}, fmt.Errorf("%q: %w", text, err)
	case !isOnePath(parser, inner):
		return path{}, fmt.Errorf("%q: want one path such as .status.addresses", text)
	}
	expression := jsonpath.New("path").AllowMissingKeys(true)
	return path{source: inner, expression: expression}, expression.Parse("{" + inner + "}")
}

// isOnePath says whether parser has read a path, and not several, text, or a range, which keeps state.
func isOnePath(parser *jsonpath.Parser, text string) bool {
	if !strings.HasPrefix(text, ".") && !strings.HasPrefix(text, "[") || strings.ContainsAny(text, "{}") || len(parser.Root.Nodes) != 1 {
		return false
	}
	list, ok := parser.Root.Nodes[0].(*jsonpath.ListNode)
	return ok && !slices.ContainsFunc(list.Nodes, func(node jsonpath.Node) bool { return node.Type() == jsonpath.NodeIdentifier })
}

// values returns what p leads to in obj, nothing where it leads nowhere. Lists are taken apart.
func (p path) values(obj *unstructured.Unstructured) ([]any, error) {
	if p.expression == nil {
		return nil, nil
	}
	results, err := p.expression.FindResults(obj.Object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	var all []any
	for _, result := range results {
		for _, value := range result {
			if !value.IsValid() || !value.CanInterface() {
				continue
			}
			switch value := value.Interface().(type) {
			case nil:
			case []any:
				all = append(all, value...)
			default:
				all = append(all, value)
			}
		}
	}
	return all, nil
}

// text returns the one text that p leads to, if any.
func (p path) text(obj *unstructured.Unstructured) (string, error) {
	values, err := p.values(obj)
	if err != nil || len(values) == 0 {
		return "", err
	}
	text, ok := values[0].(string)
	if !ok || len(values) > 1 {
		return "", errors.New(p.source + ": want one text")
	}
	return text, nil
}
