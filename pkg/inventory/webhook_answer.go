package inventory

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"
)

// nodeAnswer is what the webhook answers.
type nodeAnswer struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	UID        types.UID  `json:"uid"`
	Node       string     `json:"node"`
	Known      *bool      `json:"known"`
	Names      []string   `json:"names"`
	Addresses  []string   `json:"addresses"`
	Suffixes   []string   `json:"suffixes"`
	Bound      string     `json:"bound"`
	Created    *time.Time `json:"created"`
}

// readAnswer takes nothing but a whole and valid answer to the question about node and the request uid.
func readAnswer(data []byte, node string, uid types.UID) (*Entry, error) {
	var answer nodeAnswer
	strict, err := json.UnmarshalStrict(data, &answer)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	switch {
	case answer.APIVersion != lookupVersion || answer.Kind != lookupKind:
		return nil, fmt.Errorf("the answer is no %s of %s", lookupKind, lookupVersion)
	case answer.UID != uid:
		return nil, fmt.Errorf("the answer is to another request: uid is not %s", uid)
	case answer.Node != node: // one request may make us ask about several
		return nil, fmt.Errorf("the answer is about another node: node is not %q", node)
	case answer.Known == nil:
		return nil, errors.New("the answer does not say whether the node is known")
	case !*answer.Known && !answer.empty():
		return nil, errors.New("the answer is about a node that is not known")
	case !*answer.Known:
		return nil, nil
	}
	return answer.entry(node)
}

func (a *nodeAnswer) empty() bool {
	return len(a.Names)+len(a.Addresses)+len(a.Suffixes) == 0 && a.Bound == "" && a.Created == nil
}

func (a *nodeAnswer) entry(node string) (*Entry, error) {
	var own owned
	var errs []error
	add := func(field string, values []string, add func(string) error) {
		for i, value := range values {
			if err := add(value); err != nil {
				errs = append(errs, fmt.Errorf("%s[%d] %q: %w", field, i, value, err))
			}
		}
	}
	add("names", a.Names, own.addName)
	add("addresses", a.Addresses, own.addAddress)
	add("suffixes", a.Suffixes, own.addSuffix)
	if a.Bound != "" && len(validation.IsDNS1123Subdomain(a.Bound)) > 0 {
		errs = append(errs, fmt.Errorf("bound %q: no Node can be called that", a.Bound))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	entry := &Entry{Source: "webhook", SANs: own.sans, Suffixes: own.suffixes, Prefixes: own.prefixes, Bound: a.Bound}
	if a.Created != nil {
		entry.Created = *a.Created
	}
	return entry.of(node), nil
}
