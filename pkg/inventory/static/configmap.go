package static

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-logr/logr"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/lastgood"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// nodesKey is the key in a ConfigMap that holds the rows.
const nodesKey = "nodes.yaml"

// refusedRows counts the mistakes of all static sources together. There are few static sources, and each reports its
// mistakes by Event.
var refusedRows = metric.Gauge("csr_approver_static_rows_refused",
	"Mistakes in static lists of nodes. A list with a mistake is not used; "+
		"a list that can't be read counts as one.").WithLabelValues()

var _ inventory.Owner = &ConfigMap{}

// ConfigMap is the inventory source that reads the rows under the key nodes.yaml of a ConfigMap. The ConfigMap is
// watched by name, so that a role for that one ConfigMap is enough. A version with a mistake is not used. The last
// good version stays in use while the ConfigMap exists.
type ConfigMap struct {
	// Changed is called with an empty name after the ConfigMap has changed.
	Changed inventory.Changed
	// Recorder, if set, writes Events about the ConfigMap: the mistakes in a new version, and their correction.
	Recorder events.EventRecorder

	name      types.NamespacedName
	configMap *informer.Informer[*corev1.ConfigMap]
	log       logr.Logger
	rows      lastgood.Value[*Source]
	// about is the ConfigMap without its data, for Events. Only offer and report use the field.
	about *corev1.ConfigMap
}

// errMissing is the problem of a ConfigMap that does not exist, or that must not be read.
type errMissing struct{ error }

// NewConfigMap returns a source that reads from the cluster of config.
func NewConfigMap(config *rest.Config, name types.NamespacedName, log logr.Logger) (*ConfigMap, error) {
	resource, err := informer.ConfigMaps(config, name.Namespace)
	if err != nil {
		return nil, err
	}
	c := &ConfigMap{Changed: func(string, ...san.SAN) {}, name: name, log: log.WithValues("configMap", name.String())}
	c.about = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	c.rows.Report = c.report
	c.configMap = informer.One(resource, name, c.log, c.offer, func(err error) {
		if apierrors.IsForbidden(err) { // readiness checks report an unreachable API server
			c.rows.Refuse(errMissing{fmt.Errorf("it can't be read: %w", err)})
		}
	})
	return c, nil
}

// Start reads the ConfigMap until ctx ends.
func (c *ConfigMap) Start(ctx context.Context) error { return c.configMap.Start(ctx) }

// NeedLeaderElection returns false, because a standby reads too.
func (*ConfigMap) NeedLeaderElection() bool { return false }

// Name implements inventory.Source.
func (*ConfigMap) Name() string { return "static" }

// Lookup implements inventory.Source.
func (c *ConfigMap) Lookup(ctx context.Context, node string, req *csr.Request) (*inventory.Entry, error) {
	rows, err := c.current()
	if err != nil {
		return nil, err
	}
	return rows.Lookup(ctx, node, req)
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

// offer uses a version of the ConfigMap, or refuses it. A nil obj means that the ConfigMap does not exist.
func (c *ConfigMap) offer(obj *corev1.ConfigMap) {
	before := c.about.UID
	if c.about.UID = ""; obj != nil {
		c.about.UID = obj.UID
	}
	switch rows, err := c.parse(obj); {
	case err == nil:
		c.rows.Use(rows, nil)
	case obj != nil && obj.UID == before:
		c.rows.Refuse(err)
	default: // the last good version was that of another ConfigMap
		c.rows.Forget(err)
	}
	c.Changed("")
}

// parse parses a version of the ConfigMap, or returns why there is none.
func (c *ConfigMap) parse(obj *corev1.ConfigMap) (*Source, error) {
	if obj == nil {
		return nil, errMissing{fmt.Errorf("ConfigMap %s does not exist: create it with a list of rows under %s", c.name, nodesKey)}
	}
	text, hasKey := obj.Data[nodesKey]
	if !hasKey {
		return nil, fmt.Errorf("ConfigMap %s: has no key %s", c.name, nodesKey)
	}
	rows, err := parseRows([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", c.name, err)
	}
	rows.from = "ConfigMap " + c.name.String()
	return rows, nil
}

// parseRows parses a YAML list of Rows. Its error may be an Aggregate of several mistakes.
func parseRows(data []byte) (*Source, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var rows []Row
	err := decoder.Decode(&rows)
	var wrong *yaml.TypeError // lists every field that is unknown, is set twice or has the wrong type
	switch {
	case errors.As(err, &wrong):
		var mistakes []error
		for _, text := range wrong.Errors {
			mistakes = append(mistakes, fmt.Errorf("%s: %s", nodesKey, text))
		}
		return nil, utilerrors.NewAggregate(mistakes)
	case rows == nil && (err == nil || errors.Is(err, io.EOF)):
		return nil, fmt.Errorf("%s: is empty: write [] for no rows", nodesKey)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", nodesKey, err)
	case !errors.Is(decoder.Decode(&yaml.Node{}), io.EOF):
		return nil, fmt.Errorf("%s: want one YAML document", nodesKey)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", nodesKey, err)
	}
	if line := nullIn(&document); line > 0 {
		return nil, fmt.Errorf("%s: line %d: is empty: remove it, or give it a value", nodesKey, line)
	}
	source, mistakes := New(field.NewPath(nodesKey), rows)
	return source, mistakes.ToAggregate()
}

// nullIn returns the line of the first null at or below node, or 0. The decoder leaves nulls out of lists. A row that lost
// its content that way would give its node to a wider pattern.
func nullIn(node *yaml.Node) (line int) {
	if node.Tag == "!!null" {
		return node.Line
	}
	for _, each := range node.Content {
		if line = nullIn(each); line > 0 {
			break
		}
	}
	return line
}

// report reports a problem with the newest version, and later its end. It does not report another good version.
func (c *ConfigMap) report(before, after lastgood.State[*Source]) {
	if before.Problem == nil && after.Problem == nil {
		return
	}
	mistakes := mistakesIn(after.Problem)
	refusedRows.Add(float64(len(mistakes) - len(mistakesIn(before.Problem))))
	eventType, reason, message := corev1.EventTypeNormal, "StaticListRead", "all rows are in use"
	if after.Problem != nil {
		eventType, reason = corev1.EventTypeWarning, "StaticListInvalid"
		if errors.As(after.Problem, new(errMissing)) {
			reason = "StaticListMissing"
		}
		kept, inUse := after.Known && c.configMap.Err() == nil, "no row is in use"
		if kept {
			inUse = "the last good version stays in use"
		}
		message = fmt.Sprintf("the list is rejected, and %s: %s", inUse, strings.Join(csr.ShortenAll(mistakes), "; "))
		c.log.Error(after.Problem, "Refused static inventory", "lastGoodInUse", kept)
	}
	report.Event(c.Recorder, c.about.DeepCopy(), eventType, "Load", reason, message)
}

// mistakesIn returns the mistakes in a version that is not used because of problem.
func mistakesIn(problem error) []string {
	var several utilerrors.Aggregate // from parseRows
	switch {
	case problem == nil:
		return nil
	case !errors.As(problem, &several):
		return []string{problem.Error()}
	}
	var texts []string
	for _, each := range several.Errors() {
		texts = append(texts, each.Error())
	}
	return texts
}
