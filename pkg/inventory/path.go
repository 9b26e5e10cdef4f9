package inventory

import (
	"errors"
	"fmt"
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

// parsePath reads a path such as .status.addresses, with or without braces around it. Text, several paths, and ranges
// are none.
func parsePath(text string) (path, error) {
	if text == "" {
		return path{}, nil
	}
	errNoPath := fmt.Errorf("%q: want one path such as .status.addresses", text)
	inner := text
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		inner = text[1 : len(text)-1]
	}
	if !strings.HasPrefix(inner, ".") && !strings.HasPrefix(inner, "[") || strings.ContainsAny(inner, "{}") {
		return path{}, errNoPath
	}
	parser, err := jsonpath.Parse("path", "{"+inner+"}")
	if err != nil {
		return path{}, fmt.Errorf("%w: %w", errNoPath, err)
	}
	if len(parser.Root.Nodes) != 1 {
		return path{}, errNoPath
	}
	list, ok := parser.Root.Nodes[0].(*jsonpath.ListNode)
	if !ok {
		return path{}, errNoPath
	}
	for _, node := range list.Nodes {
		if node.Type() == jsonpath.NodeIdentifier {
			return path{}, errNoPath
		}
	}
	expression := jsonpath.New("path").AllowMissingKeys(true)
	return path{source: inner, expression: expression}, expression.Parse("{" + inner + "}")
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
