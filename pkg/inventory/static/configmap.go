package static

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// refusedRows counts the mistakes of all static sources together. There are few static sources, and each reports its
// mistakes by Event.
var refusedRows = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "csr_approver_static_rows_refused",
	Help: "Mistakes in static lists of nodes; a list with a mistake is not used, " +
		"and a list that can't be read counts as one mistake.",
})

func init() { metrics.Registry.MustRegister(refusedRows) }

var _ inventory.Owner = &ConfigMap{}

// ConfigMap is the inventory source that reads the rows under the key nodes.yaml of a ConfigMap. The ConfigMap is
// watched by name, so that a role for that one ConfigMap is enough. A version with a mistake is not used. The last
// good version stays in use while the ConfigMap exists.
type ConfigMap struct {
	// Changed is called with an empty name after the rows have changed.
	Changed func(node string)
	// Reporter, if set, writes Events about the ConfigMap: the mistakes in a new version, and their correction.
	Reporter *report.Reporter

	name  types.NamespacedName
	lists *informer.Informer[*nodeList]
	log   logr.Logger
	// good is the last good version. Only parse uses it, and parse is called for one object at a time.
	good *nodeList

	mu       sync.Mutex
	reported string // the last report
	refused  int    // its number of mistakes
}

// nodeList is one version of the ConfigMap.
type nodeList struct {
	metav1.ObjectMeta
	rows *Source // nil if no version was good
	err  error   // the mistakes in this version
}

var errNoList = errors.New("does not exist")

// NewConfigMap returns a source that reads from the cluster of config.
func NewConfigMap(config *rest.Config, name types.NamespacedName, log logr.Logger) (*ConfigMap, error) {
	resource, err := informer.ConfigMaps(config, nil)
	if err != nil {
		return nil, err
	}
	c := &ConfigMap{Changed: func(string) {}, name: name, log: log.WithValues("configMap", name.String())}
	c.lists = &informer.Informer[*nodeList]{
		Resource: resource, Namespace: name.Namespace, Name: name.Name, Log: c.log, Convert: c.parse,
		OnSync: c.observe, OnChange: func(_, _ *nodeList) { c.observe() },
		OnFailure: func(err error) {
			if apierrors.IsForbidden(err) { // readiness checks report an unreachable API server
				c.report("StaticListMissing", "", fmt.Errorf("it can't be read: %w", err), false)
			}
		},
	}
	return c, nil
}

// Start watches the ConfigMap until ctx ends.
func (c *ConfigMap) Start(ctx context.Context) error { return c.lists.Start(ctx) }

// NeedLeaderElection returns false, so that the cache of a standby is current.
func (*ConfigMap) NeedLeaderElection() bool { return false }

// Name implements inventory.Source.
func (*ConfigMap) Name() string { return "static" }

// Lookup implements inventory.Source.
func (c *ConfigMap) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	rows, err := c.rows()
	if err != nil {
		return nil, err
	}
	return rows.lookup(node), nil
}

// Owner implements inventory.Owner.
func (c *ConfigMap) Owner(value san.SAN) (string, error) {
	rows, err := c.rows()
	if err != nil {
		return "", err
	}
	return rows.Owner(value)
}

func (c *ConfigMap) rows() (*Source, error) {
	list, err := c.list()
	if err != nil {
		return nil, err
	}
	if list.rows == nil {
		return nil, list.err
	}
	return list.rows, nil
}

func (c *ConfigMap) list() (*nodeList, error) {
	list, found, err := c.lists.Get(c.name.Namespace, c.name.Name)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", c.name, err)
	}
	if !found {
		return nil, fmt.Errorf("ConfigMap %s %w: create it with a list of rows under %s", c.name, errNoList, nodesKey)
	}
	return list, nil
}

// parse parses a version of the ConfigMap.
func (c *ConfigMap) parse(object runtime.Object) *nodeList {
	obj := object.(*corev1.ConfigMap)
	list := &nodeList{ObjectMeta: metav1.ObjectMeta{
		Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
	}}
	text, found := obj.Data[nodesKey]
	if found {
		list.rows, list.err = Parse([]byte(text))
	} else {
		list.err = fmt.Errorf("has no key %s", nodesKey)
	}
	switch {
	case list.err == nil:
		list.rows.from, c.good = "ConfigMap "+c.name.String(), list
	case c.good != nil && c.good.UID == list.UID:
		list.rows = c.good.rows
	}
	if list.err != nil {
		list.err = fmt.Errorf("ConfigMap %s: %w", c.name, list.err)
	}
	return list
}

// observe reports the current state of the ConfigMap.
func (c *ConfigMap) observe() {
	switch list, err := c.list(); {
	case errors.Is(err, errNoList):
		c.report("StaticListMissing", "", err, false)
	case err != nil: // OnFailure reports it
	case list.err != nil:
		c.report("StaticListInvalid", list.UID, list.err, list.rows != nil)
	default:
		c.report("StaticListRead", list.UID, nil, false)
	}
	c.Changed("")
}

// report reports a problem with the newest version once, and later its end. uid is empty if the ConfigMap does not
// exist. kept reports that the last good version stays in use.
func (c *ConfigMap) report(reason string, uid types.UID, problem error, kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	message, count, eventType := "all rows are in use", 0, corev1.EventTypeNormal
	if problem != nil {
		mistakes := []error{problem}
		var joined interface{ Unwrap() []error }
		if errors.As(problem, &joined) { // from Parse
			mistakes = joined.Unwrap()
		}
		count, eventType = len(mistakes), corev1.EventTypeWarning
		message = "the list is rejected, and no row is in use: "
		if kept {
			message = "the list is rejected, and the last good version stays in use: "
		}
		message += summarize(mistakes)
	}
	refusedRows.Add(float64(count - c.refused))
	news := message != c.reported && (problem != nil || c.refused > 0)
	c.refused, c.reported = count, message
	if !news {
		return
	}
	if problem != nil {
		c.log.Error(problem, "Refused static inventory", "lastGoodInUse", kept)
	}
	if c.Reporter != nil {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.name.Namespace, Name: c.name.Name, UID: uid}}
		c.Reporter.Object(obj, eventType, "Load", reason, message)
	}
}

// summarize returns the first few mistakes, and the lines of the others.
func summarize(mistakes []error) string {
	const most, room = 5, 120
	var texts, lines []string
	for i, err := range mistakes {
		var row *RowError
		switch {
		case i < most:
			texts = append(texts, csr.ShortenTo(err.Error(), room))
		case errors.As(err, &row):
			lines = append(lines, strconv.Itoa(row.Line))
		}
	}
	text := strings.Join(texts, "; ")
	if len(lines) > 0 {
		text += "; and in lines " + strings.Join(slices.Compact(lines), ", ")
	}
	return text
}
