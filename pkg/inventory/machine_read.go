package inventory

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// machine is what is kept of a machine object.
type machine struct {
	metav1.ObjectMeta
	known
}

// known is what a machine tells of its node.
type known struct {
	node    string   // that it has become
	names   []string // that it may have
	sans    []SAN
	created time.Time
	leaving bool
	problem string // what could not be read
}

func (m *machine) describe(kind string) string {
	if m.Namespace == "" {
		return kind + " " + m.Name
	}
	return kind + " " + m.Namespace + "/" + m.Name
}

// entry is what m tells of node.
func (m *machine) entry(kind, node string) (*Entry, error) {
	if m.problem != "" {
		return nil, fmt.Errorf("%s: %s", m.describe(kind), m.problem)
	}
	return (&Entry{
		Source: m.describe(kind), SANs: slices.Clone(m.sans), Bound: m.node, Created: m.created, Leaving: m.leaving,
	}).of(node), nil
}

// of returns e, without what belongs to another node if the machine has become that.
func (e *Entry) of(node string) *Entry {
	if e.Bound != "" && e.Bound != node {
		e.SANs, e.Suffixes, e.Prefixes = nil, nil, nil
	}
	return e
}

// machinePaths are the paths of MachineOptions.
type machinePaths struct {
	nodeRef, addresses, name, created path
	nameTypes                         []string
}

func parsePaths(options MachineOptions) (machinePaths, error) {
	p := machinePaths{nameTypes: options.NameTypes}
	var errs []error
	for _, field := range []struct {
		name, text string
		path       *path
	}{
		{"nodeRefPath", options.NodeRefPath, &p.nodeRef},
		{"addressesPath", options.AddressesPath, &p.addresses},
		{"namePath", options.NamePath, &p.name},
		{"createdPath", options.CreatedPath, &p.created},
	} {
		var err error
		if *field.path, err = parsePath(field.text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field.name, err))
		}
	}
	return p, errors.Join(errs...)
}

// read never fails: what can't be read ends in the machine's problem, so that the others are not held up.
func (p machinePaths) read(obj *unstructured.Unstructured) metav1.Object {
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

// start is zero if CreatedPath leads nowhere: the machine has not started.
func (p machinePaths) start(obj *unstructured.Unstructured) (time.Time, error) {
	if p.created.expression == nil {
		return obj.GetCreationTimestamp().Time, nil
	}
	text, err := p.created.text(obj)
	if err != nil || text == "" {
		return time.Time{}, err
	}
	created, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %q is no time", p.created, text)
	}
	return created, nil
}

func (m *machine) readNames(p machinePaths, obj *unstructured.Unstructured) error {
	values, err := p.name.values(obj)
	for _, value := range values {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("%s: holds what is no name", p.name)
		}
		m.addName(text)
	}
	return err
}

func (m *machine) addName(text string) {
	if name := ParseSAN(text).String(); text != "" && !slices.Contains(m.names, name) {
		m.names = append(m.names, name)
	}
}

// readAddresses leaves out types that it does not know, and what is no address where one should be.
func (m *machine) readAddresses(p machinePaths, obj *unstructured.Unstructured) error {
	values, err := p.addresses.values(obj)
	for _, value := range values {
		switch value := value.(type) {
		case string:
			m.addSAN(ParseSAN(value))
		case map[string]any:
			kind, isText := value["type"].(string)
			text, isAddress := value["address"].(string)
			if !isText || !isAddress {
				return fmt.Errorf("%s: want type and address in each", p.addresses)
			}
			m.addTyped(kind, text)
			if slices.Contains(p.nameTypes, kind) {
				m.addName(text)
			}
		default:
			return fmt.Errorf("%s: holds what is no address", p.addresses)
		}
	}
	return err
}

func (m *machine) addTyped(kind, text string) {
	san := ParseSAN(text)
	switch corev1.NodeAddressType(kind) {
	case corev1.NodeInternalIP, corev1.NodeExternalIP:
		if san.Address.IsValid() {
			m.addSAN(san)
		}
	case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
		m.addSAN(san)
	}
}

func (m *machine) addSAN(san SAN) {
	if (san.Name != "" || san.Address.IsValid()) && !slices.Contains(m.sans, san) {
		m.sans = append(m.sans, san)
	}
}
