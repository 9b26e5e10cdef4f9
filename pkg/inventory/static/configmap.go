package static

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/lastgood"
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
	// Changed is called with an empty name after the ConfigMap has changed.
	Changed func(node string)
	// Reporter, if set, writes Events about the ConfigMap: the mistakes in a new version, and their correction.
	Reporter *report.Reporter

	name      types.NamespacedName
	configMap *informer.Informer[*corev1.ConfigMap]
	log       logr.Logger
	rows      lastgood.Value[*Source]

	// Only observe and report use these.
	uid     types.UID // of the ConfigMap; empty if it does not exist
	refused int       // number of mistakes in the newest version
}

// errMissing is the problem of a ConfigMap that does not exist, or that must not be read.
type errMissing struct{ error }

// NewConfigMap returns a source that reads from the cluster of config.
func NewConfigMap(config *rest.Config, name types.NamespacedName, log logr.Logger) (*ConfigMap, error) {
	resource, err := informer.ConfigMaps(config, name.Namespace)
	if err != nil {
		return nil, err
	}
	c := &ConfigMap{Changed: func(string) {}, name: name, log: log.WithValues("configMap", name.String())}
	c.rows.Report = c.report
	c.configMap = &informer.Informer[*corev1.ConfigMap]{
		Resource: resource, Name: name.Name, Log: c.log,
		OnSync: c.observe, OnChange: func(_, _ *corev1.ConfigMap) { c.observe() },
		OnFailure: func(err error) {
			if apierrors.IsForbidden(err) { // readiness checks report an unreachable API server
				c.rows.Refuse(errMissing{fmt.Errorf("it can't be read: %w", err)})
			}
		},
	}
	return c, nil
}

// Start watches the ConfigMap until ctx ends.
func (c *ConfigMap) Start(ctx context.Context) error { return c.configMap.Start(ctx) }

// NeedLeaderElection returns false, so that the cache of a standby is current.
func (*ConfigMap) NeedLeaderElection() bool { return false }

// Name implements inventory.Source.
func (*ConfigMap) Name() string { return "static" }

// Lookup implements inventory.Source.
func (c *ConfigMap) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	rows, err := c.current()
	if err != nil {
		return nil, err
	}
	return rows.lookup(node), nil
}

// Owner implements inventory.Owner.
func (c *ConfigMap) Owner(value san.SAN) (string, error) {
	rows, err := c.current()
	if err != nil {
		return "", err
	}
	return rows.Owner(value)
}

// current returns the rows in use, or why there are none.
func (c *ConfigMap) current() (*Source, error) {
	if err := c.configMap.Err(); err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", c.name, err)
	}
	state := c.rows.State()
	if !state.Known {
		return nil, cmp.Or(state.Problem, informer.ErrNotRead)
	}
	return state.Good, nil
}

// observe uses the newest version of the ConfigMap, or refuses it.
func (c *ConfigMap) observe() {
	obj, found, err := c.configMap.Get(c.name.Namespace, c.name.Name)
	switch {
	case err != nil: // OnFailure reports it
	case !found:
		c.uid = ""
		c.rows.Forget(errMissing{fmt.Errorf("ConfigMap %s does not exist: create it with a list of rows under %s", c.name, nodesKey)})
	default:
		rows, mistakes := c.parse(obj)
		switch {
		case mistakes == nil:
			c.uid = obj.UID
			c.rows.Use(rows, nil)
		case c.uid == obj.UID:
			c.rows.Refuse(mistakes)
		default: // the last good version was that of another ConfigMap
			c.uid = obj.UID
			c.rows.Forget(mistakes)
		}
	}
	c.Changed("")
}

// parse parses a version of the ConfigMap.
func (c *ConfigMap) parse(obj *corev1.ConfigMap) (*Source, error) {
	text, found := obj.Data[nodesKey]
	if !found {
		return nil, fmt.Errorf("ConfigMap %s: has no key %s", c.name, nodesKey)
	}
	rows, err := Parse([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", c.name, err)
	}
	rows.from = "ConfigMap " + c.name.String()
	return rows, nil
}

// report reports a problem with the newest version, and later its end. It does not report another good version.
func (c *ConfigMap) report(before, after lastgood.State[*Source]) {
	if before.Problem == nil && after.Problem == nil {
		return
	}
	reason, message, count, eventType := "StaticListRead", "all rows are in use", 0, corev1.EventTypeNormal
	if after.Problem != nil {
		mistakes := []error{after.Problem}
		var joined interface{ Unwrap() []error }
		if errors.As(after.Problem, &joined) { // from Parse
			mistakes = joined.Unwrap()
		}
		reason, count, eventType = "StaticListInvalid", len(mistakes), corev1.EventTypeWarning
		if errors.As(after.Problem, new(errMissing)) {
			reason = "StaticListMissing"
		}
		kept := after.Known && c.configMap.Err() == nil
		message = "the list is rejected, and no row is in use: "
		if kept {
			message = "the list is rejected, and the last good version stays in use: "
		}
		message += summarize(mistakes)
		c.log.Error(after.Problem, "Refused static inventory", "lastGoodInUse", kept)
	}
	refusedRows.Add(float64(count - c.refused))
	c.refused = count
	if c.Reporter != nil {
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.name.Namespace, Name: c.name.Name, UID: c.uid}}
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
