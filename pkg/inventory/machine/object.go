package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// machine is a machine object, reduced to the fields that are used.
type machine struct {
	metav1.ObjectMeta
	known
}

// known holds the facts about a node that its machine shows.
type known struct {
	node    string   // that the machine has become
	names   []string // that its node may have
	sans    []san.SAN
	created time.Time
	leaving bool
	problem string // why a field could not be read
}

// describe names the machine, for messages.
func (m *machine) describe(kind string) string {
	if m.Namespace == "" {
		return kind + " " + m.Name
	}
	return kind + " " + m.Namespace + "/" + m.Name
}

// entry returns the entry for node that m describes.
func (m *machine) entry(kind, node string) (*inventory.Entry, error) {
	if m.problem != "" {
		return nil, fmt.Errorf("%s: %s", m.describe(kind), m.problem)
	}
	return (&inventory.Entry{
		Source: m.describe(kind), SANs: slices.Clone(m.sans), Bound: m.node, Created: m.created, Leaving: m.leaving,
	}).For(node), nil
}

// paths are the parsed paths of Options.
type paths struct {
	nodeRef, addresses, name, created path
	nameTypes                         []string
}

func parsePaths(options Options) (paths, error) {
	p := paths{nameTypes: options.NameTypes}
	var errs [4]error
	p.nodeRef, errs[0] = parsePath("nodeRefPath", options.NodeRefPath)
	p.addresses, errs[1] = parsePath("addressesPath", options.AddressesPath)
	p.name, errs[2] = parsePath("namePath", options.NamePath)
	p.created, errs[3] = parsePath("createdPath", options.CreatedPath)
	return p, errors.Join(errs[:]...)
}

// read reduces a machine object to the fields that are used. It does not fail: a field that can't be read becomes the
// problem of this machine, so that other machines are not blocked.
func (p paths) read(object runtime.Object) *machine {
	obj := object.(*unstructured.Unstructured)
	m := &machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}}
	m.leaving = obj.GetDeletionTimestamp() != nil
	var errs [4]error
	m.node, errs[0] = p.nodeRef.text(obj)
	errs[1] = m.readNames(p, obj)
	errs[2] = m.readAddresses(p, obj)
	m.created, errs[3] = p.start(obj)
	if err := errors.Join(errs[:]...); err != nil {
		m.problem = err.Error()
	}
	return m
}

// start returns the time from which a join window counts. It is zero if CreatedPath leads to no value, because the
// machine has not started.
func (p paths) start(obj *unstructured.Unstructured) (time.Time, error) {
	if p.created.expression == nil {
		return obj.GetCreationTimestamp().Time, nil
	}
	text, err := p.created.text(obj)
	if err != nil || text == "" {
		return time.Time{}, err
	}
	created, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %q is not an RFC 3339 time", p.created.source, text)
	}
	return created, nil
}

func (m *machine) readNames(p paths, obj *unstructured.Unstructured) error {
	values, err := p.name.values(obj)
	for _, value := range values {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("%s: contains a value that is not a name", p.name.source)
		}
		m.addName(text)
	}
	return err
}

func (m *machine) addName(text string) {
	if text != "" {
		m.names = append(m.names, san.Parse(text).String())
	}
}

// readAddresses reads the addresses. It skips unknown types and invalid IP addresses.
func (m *machine) readAddresses(p paths, obj *unstructured.Unstructured) error {
	values, err := p.addresses.values(obj)
	for _, value := range values {
		switch value := value.(type) {
		case string:
			m.addSAN(san.Parse(value))
		case map[string]any:
			kind, isText := value["type"].(string)
			text, isAddress := value["address"].(string)
			if !isText || !isAddress {
				return fmt.Errorf("%s: want type and address in each", p.addresses.source)
			}
			parsed := san.Parse(text)
			switch corev1.NodeAddressType(kind) {
			case corev1.NodeInternalIP, corev1.NodeExternalIP:
				if parsed.Address.IsValid() {
					m.addSAN(parsed)
				}
			case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
				m.addSAN(parsed)
			}
			if slices.Contains(p.nameTypes, kind) {
				m.addName(text)
			}
		default:
			return fmt.Errorf("%s: contains a value that is not an address", p.addresses.source)
		}
	}
	return err
}

func (m *machine) addSAN(value san.SAN) {
	if (value.Name != "" || value.Address.IsValid()) && !slices.Contains(m.sans, value) {
		m.sans = append(m.sans, value)
	}
}

// path leads to values in an object. The zero value leads to no value.
type path struct {
	source     string
	expression *jsonpath.JSONPath
}

// parsePath parses a path such as .status.addresses, with or without braces around it. field is its field of Options.
func parsePath(field, text string) (path, error) {
	if text == "" {
		return path{}, nil
	}
	inner := text
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		inner = text[1 : len(text)-1]
	}
	parser, err := jsonpath.Parse("path", "{"+inner+"}")
	if err != nil {
		return path{}, fmt.Errorf("%s: %q: %w", field, text, err)
	}
	// The text must be a single path. It must hold no other text, and no range, because a range keeps state.
	one := (strings.HasPrefix(inner, ".") || strings.HasPrefix(inner, "[")) && !strings.ContainsAny(inner, "{}") &&
		len(parser.Root.Nodes) == 1
	if one {
		list, ok := parser.Root.Nodes[0].(*jsonpath.ListNode)
		one = ok && !slices.ContainsFunc(list.Nodes, func(node jsonpath.Node) bool {
			return node.Type() == jsonpath.NodeIdentifier
		})
	}
	if !one {
		return path{}, fmt.Errorf("%s: %q: want one path such as .status.addresses", field, text)
	}
	expression := jsonpath.New("path").AllowMissingKeys(true)
	return path{source: inner, expression: expression}, expression.Parse("{" + inner + "}")
}

// values returns the values to which p leads in obj, if any. It flattens lists.
func (p path) values(obj *unstructured.Unstructured) ([]any, error) {
	if p.expression == nil {
		return nil, nil
	}
	results, err := p.expression.FindResults(obj.Object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.source, err)
	}
	var all []any
	for _, result := range results {
		for _, value := range result {
			switch value := value.Interface().(type) { // each is in a map or a list, so it is valid
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

// text returns the text to which p leads, or an empty text.
func (p path) text(obj *unstructured.Unstructured) (string, error) {
	values, err := p.values(obj)
	if err != nil || len(values) == 0 {
		return "", err
	}
	text, ok := values[0].(string)
	if !ok || len(values) > 1 {
		return "", errors.New(p.source + ": want one string")
	}
	return text, nil
}
