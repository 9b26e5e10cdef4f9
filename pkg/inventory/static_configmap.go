package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// retryEvery is the longest wait between attempts to read what can't be read, such as a CRD that is not installed.
const retryEvery = 10 * time.Second

// StaticConfigMap knows nodes by the rows under the key nodes.yaml of a ConfigMap. It is watched by name, so that a role
// for that one ConfigMap is enough. A version that is wrong is not used: the last good one stays in use, while there is
// a ConfigMap.
type StaticConfigMap struct {
	// Changed, if set, is called after the rows have.
	Changed func(node string)
	// Reporter, if set, writes Events about the ConfigMap: what is wrong with a new version, and that it is good again.
	Reporter *report.Reporter

	name types.NamespacedName
	view *view
	// good is the last good version. Only the view's transform uses it, which is called for one object at a time.
	good *nodeList

	mu      sync.Mutex
	told    string // what has been reported last
	refused int    // how many mistakes that was
}

// nodeList is one version of the ConfigMap.
type nodeList struct {
	metav1.ObjectMeta
	rows *Static // nil if there has been no good version
	err  error   // what is wrong with this one
}

var errNoList = errors.New("does not exist")

// NewStaticConfigMap reads from the cluster of cfg.
func NewStaticConfigMap(cfg *rest.Config, name types.NamespacedName, log logr.Logger) (*StaticConfigMap, error) {
	s := &StaticConfigMap{name: name}
	var err error
	if s.view, err = viewConfigMap(cfg, name, s.parse, s.changed, log); err != nil {
		return nil, err
	}
	s.view.failed = s.fail
	return s, nil
}

// Start follows the ConfigMap until ctx ends.
func (s *StaticConfigMap) Start(ctx context.Context) error {
	s.view.run(ctx)
	return nil
}

// NeedLeaderElection is false: a standby is warm.
func (s *StaticConfigMap) NeedLeaderElection() bool { return false }

// Name implements Source.
func (s *StaticConfigMap) Name() string { return "static" }

// Lookup implements Source.
func (s *StaticConfigMap) Lookup(_ context.Context, node string, _ *csr.Request) (*Entry, error) {
	rows, err := s.rows()
	if err != nil {
		return nil, err
	}
	return rows.lookup(node), nil
}

// Owner implements Owner.
func (s *StaticConfigMap) Owner(san SAN) (string, error) {
	rows, err := s.rows()
	if err != nil {
		return "", err
	}
	return rows.Owner(san)
}

func (s *StaticConfigMap) rows() (*Static, error) {
	list, err := s.list()
	if err == nil && list.rows == nil {
		err = list.err
	}
	if err != nil {
		return nil, err
	}
	return list.rows, nil
}

func (s *StaticConfigMap) list() (*nodeList, error) {
	store, err := s.view.read()
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", s.name, err)
	}
	list, found, err := store.GetByKey(s.name.String())
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("ConfigMap %s %w: create it with a list of rows under %s", s.name, errNoList, nodesKey)
	}
	return list.(*nodeList), nil
}

// parse reads a version of the ConfigMap.
func (s *StaticConfigMap) parse(obj *unstructured.Unstructured) metav1.Object {
	list := &nodeList{ObjectMeta: metav1.ObjectMeta{
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}}
	text, found, err := unstructured.NestedString(obj.Object, "data", nodesKey)
	switch {
	case err != nil || !found:
		list.err = fmt.Errorf("has no key %s", nodesKey)
	default:
		list.rows, list.err = ParseStatic([]byte(text))
	}
	switch {
	case list.err == nil:
		list.rows.from, s.good = "ConfigMap "+s.name.String(), list
	case s.good != nil && s.good.UID == list.UID:
		list.rows = s.good.rows
	}
	if list.err != nil {
		list.err = fmt.Errorf("ConfigMap %s: %w", s.name, list.err)
	}
	return list
}

// changed reports how the ConfigMap is now, whatever has changed.
func (s *StaticConfigMap) changed(_, _ metav1.Object) {
	switch list, err := s.list(); {
	case errors.Is(err, errNoList):
		s.tell("StaticListMissing", "", err, false)
	case err != nil: // told by fail
	case list.err != nil:
		s.tell("StaticListInvalid", list.UID, list.err, list.rows != nil)
	default:
		s.tell("StaticListRead", list.UID, nil, false)
	}
	if s.Changed != nil {
		s.Changed("")
	}
}
