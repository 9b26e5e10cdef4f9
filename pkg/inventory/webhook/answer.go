package webhook

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// nodeAnswer is the answer of the webhook.
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

// readAnswer accepts nothing but a whole and valid answer to the question about node and the request uid.
func readAnswer(data []byte, node string, uid types.UID) (*inventory.Entry, error) {
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
	case !*answer.Known:
		if len(answer.Names)+len(answer.Addresses)+len(answer.Suffixes) > 0 || answer.Bound != "" || answer.Created != nil {
			return nil, errors.New("the answer is about a node that is not known")
		}
		return nil, nil
	}
	return answer.entry(node)
}

// entry returns what the answer says of node.
func (a *nodeAnswer) entry(node string) (*inventory.Entry, error) {
	entry := &inventory.Entry{Source: "webhook", Bound: a.Bound}
	if a.Created != nil {
		entry.Created = *a.Created
	}
	var errs []error
	add := func(field string, values []string, add func(string) error) {
		for i, value := range values {
			if err := add(value); err != nil {
				errs = append(errs, fmt.Errorf("%s[%d] %q: %w", field, i, value, err))
			}
		}
	}
	add("names", a.Names, entry.AddName)
	add("addresses", a.Addresses, entry.AddAddress)
	add("suffixes", a.Suffixes, entry.AddSuffix)
	if a.Bound != "" && len(validation.IsDNS1123Subdomain(a.Bound)) > 0 {
		errs = append(errs, fmt.Errorf("bound %q: no Node can be called that", a.Bound))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return entry.For(node), nil
}
