// Package blocklist reads the names of blocked nodes from a ConfigMap. For these nodes, nothing is approved and
// nothing is signed.
package blocklist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

var (
	blockedNodes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_block_list_nodes",
		Help: "Names in the block list of nodes that is in use.",
	})

	blockListProblems = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_block_list_problems",
		Help: "Invalid lines in the block list of nodes, which are ignored; " +
			"1 when the list does not exist or can't be read.",
	})
)

func init() { metrics.Registry.MustRegister(blockedNodes, blockListProblems) }

// namesKey is the key in the ConfigMap that holds the names.
const namesKey = "nodes"

// List holds the names that were read last. They stay in use until another version is read: deleting the ConfigMap
// unblocks no node. Until the first version is read, requests of all nodes wait. A nil List blocks no node.
type List struct {
	name      types.NamespacedName
	configMap *informer.Informer[*corev1.ConfigMap]
	log       logr.Logger
	reporter  *report.Reporter // may be nil

	loading sync.Mutex // held from reading a version until it is in use, so that no older version follows it

	mu       sync.Mutex
	names    map[string]bool // nil before the first version
	problem  string          // with the newest version; empty if there is none
	object   *corev1.ConfigMap
	onChange []func()
	settled  chan struct{} // closed once names or a problem are known
}

// New returns a List that has not been read yet. SetupWithManager keeps it up to date, and ReadOnce reads it.
func New(name types.NamespacedName) *List {
	return &List{
		name: name, log: logr.Discard(), settled: make(chan struct{}), problem: informer.ErrNotRead.Error(),
		object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}},
	}
}

// Check returns why req must wait because of the node that it is for or comes from. The reason is NodeBlocked, or
// InventoryUnavailable while no list was read. The reason is empty if req need not wait.
func (l *List) Check(req *csr.Request) (reason, message string) {
	if l == nil {
		return "", ""
	}
	nodes := nodesOf(req)
	kubelet := req.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName ||
		req.SignerName == certificatesv1.KubeletServingSignerName
	if len(nodes) == 0 && !kubelet {
		return "", ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		return "InventoryUnavailable", fmt.Sprintf("the request waits because it is unknown whether its node is blocked: "+
			"block list ConfigMap %s: %s", l.name, l.problem)
	}
	for _, name := range nodes {
		if l.names[name] {
			return "NodeBlocked", fmt.Sprintf("node %q is on the block list, ConfigMap %s: nothing is approved or signed "+
				"for it until its name is removed from the list", csr.Shorten(name), l.name)
		}
	}
	return "", ""
}

// nodesOf returns the names of the nodes that req is for and comes from, in lower case.
func nodesOf(req *csr.Request) []string {
	var names []string
	if name := req.NodeName(); name != "" {
		names = append(names, strings.ToLower(name))
	}
	if name, found := strings.CutPrefix(req.Requester.Username, csr.NodeUserPrefix); found && name != "" {
		names = append(names, strings.ToLower(name))
	}
	return names
}

// ready returns an error until a list was read.
func (l *List) ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		return fmt.Errorf("block list ConfigMap %s: %s", l.name, l.problem)
	}
	return nil
}

// offer applies a version of the ConfigMap. A nil obj means that the ConfigMap does not exist.
func (l *List) offer(obj *corev1.ConfigMap) {
	if obj == nil {
		l.refuse("BlockListMissing",
			errors.New("it does not exist: create it with the names of the blocked nodes under the key nodes, "+
				"or with an empty value"))
		return
	}
	l.mu.Lock()
	l.object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID}}
	l.mu.Unlock()
	text, found := obj.Data[namesKey]
	if !found {
		l.refuse("BlockListInvalid", fmt.Errorf("it has no key %s", namesKey))
		return
	}
	if l.use(parse(text)) {
		l.mu.Lock()
		callbacks := slices.Clone(l.onChange)
		l.mu.Unlock()
		for _, call := range callbacks {
			call()
		}
	}
}

// parse reads one name per line; # begins a comment. It skips an invalid line, and reports its number.
func parse(text string) (names map[string]bool, problems []string) {
	names = map[string]bool{}
	for number, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		name := strings.ToLower(strings.TrimSpace(line))
		switch {
		case name == "":
		case strings.HasPrefix(name, csr.NodeUserPrefix):
			problems = append(problems, fmt.Sprintf("line %d: %q is a user name: remove the prefix %s",
				number+1, csr.Shorten(name), csr.NodeUserPrefix))
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			problems = append(problems, fmt.Sprintf("line %d: %q is not a node name", number+1, csr.Shorten(name)))
		default:
			names[name] = true
		}
	}
	return names, problems
}

// refuse reports why no version can be read. The names that were read last stay in use.
func (l *List) refuse(reason string, problem error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	if l.problem == problem.Error() {
		return
	}
	l.problem = problem.Error()
	blockListProblems.Set(1)
	message := fmt.Sprintf("the block list of nodes can't be read: %s; nothing is approved or signed for any node",
		problem)
	if l.names != nil {
		message = fmt.Sprintf("the block list of nodes can't be read: %s; the last version stays in use: %s",
			problem, describe(l.names))
	}
	l.log.Error(nil, "No block list", "reason", reason, "message", message)
	l.event(corev1.EventTypeWarning, reason, message)
}

// use applies names, and reports whether requests may have waited for this.
func (l *List) use(names map[string]bool, problems []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	problem, last := strings.Join(problems, "; "), l.problem
	same := l.names != nil && maps.Equal(names, l.names)
	l.names, l.problem = names, problem
	blockedNodes.Set(float64(len(names)))
	blockListProblems.Set(float64(len(problems)))
	if problem != "" && problem != last {
		message := "invalid lines are ignored, and the other lines apply: " + few(problems)
		l.log.Error(nil, "Bad block list", "message", message)
		l.event(corev1.EventTypeWarning, "BlockListInvalid", message)
	}
	if same && (problem != "" || last == "") {
		return false
	}
	l.log.Info("Read block list", "nodes", slices.Sorted(maps.Keys(names)))
	l.event(corev1.EventTypeNormal, "BlockListRead", describe(names))
	return true
}

// settle records that names or a problem are known. The caller holds mu.
func (l *List) settle() {
	select {
	case <-l.settled:
	default:
		close(l.settled)
	}
}

func (l *List) event(eventType, reason, message string) {
	if l.reporter != nil {
		l.reporter.Object(l.object, eventType, "Load", reason, message)
	}
}

// describe lists the blocked nodes, for a message.
func describe(names map[string]bool) string {
	if len(names) == 0 {
		return "no node is blocked"
	}
	return "blocked: " + few(slices.Sorted(maps.Keys(names)))
}

// few shortens a list for a message.
func few(all []string) string {
	const most = 10
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}

// settleTimeout bounds how long the controller waits, at the start, for the first result of reading the block list.
// After that, the message of waiting requests says that no list was read yet.
const settleTimeout = 10 * time.Second

// SetupWithManager adds a watch of the ConfigMap to mgr. Standbys watch too. The watch is by name, so that a role for
// that name is enough. The manager is not ready before a list was read.
func (l *List) SetupWithManager(mgr manager.Manager) error {
	l.log = mgr.GetLogger().WithName("block-list")
	l.reporter = report.New(mgr.GetEventRecorder("csr-block-list"), clock.RealClock{})
	configMaps, err := informer.ConfigMaps(mgr.GetConfig(), nil)
	if err != nil {
		return err
	}
	l.watch(configMaps)
	if err := mgr.AddReadyzCheck("block-list", func(*http.Request) error { return l.ready() }); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(l.configMap)
}

// watch creates the informer that keeps l up to date while it runs.
func (l *List) watch(configMaps informer.Resource) {
	reload := func() {
		l.loading.Lock()
		defer l.loading.Unlock()
		if obj, _, err := l.configMap.Get(l.name.Namespace, l.name.Name); err == nil {
			l.offer(obj)
		}
	}
	l.configMap = &informer.Informer[*corev1.ConfigMap]{
		Resource: configMaps, Namespace: l.name.Namespace, Name: l.name.Name,
		Log:    l.log.WithValues("configMap", l.name.String()),
		OnSync: reload, OnChange: func(_, _ *corev1.ConfigMap) { reload() },
		OnFailure: func(err error) { l.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err)) },
	}
}

// ReadOnce reads the list from reader.
func (l *List) ReadOnce(ctx context.Context, reader client.Reader) error {
	obj := &corev1.ConfigMap{}
	err := reader.Get(ctx, l.name, obj)
	switch {
	case apierrors.IsNotFound(err):
		l.offer(nil)
		return nil
	case err != nil:
		l.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
		return err
	}
	l.offer(obj)
	return nil
}

// requestQueue is the work queue of a controller.
type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Source returns a source for a controller. It calls enqueue after each change of the list. The controller does not
// start before the list was read, or could not be read.
func (l *List) Source(enqueue func(context.Context, requestQueue)) source.SyncingSource {
	return listSource{list: l, enqueue: enqueue}
}

type listSource struct {
	list    *List
	enqueue func(context.Context, requestQueue)
}

// Start implements source.Source.
func (s listSource) Start(ctx context.Context, queue requestQueue) error {
	s.list.mu.Lock()
	defer s.list.mu.Unlock()
	s.list.onChange = append(s.list.onChange, func() {
		if ctx.Err() == nil {
			s.enqueue(ctx, queue)
		}
	})
	return nil
}

// WaitForSync implements source.SyncingSource. It returns nil after settleTimeout, because an error would end the
// manager.
func (s listSource) WaitForSync(ctx context.Context) error {
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.list.settled:
	}
	return nil
}

// String returns the name of the source in the controller's log.
func (listSource) String() string { return "block list" }
