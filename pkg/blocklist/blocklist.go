// Package blocklist holds the names of nodes for which nothing is approved and nothing is signed, read from a
// ConfigMap.
package blocklist

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

var (
	blockedNodes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_block_list_nodes",
		Help: "Names on the block list of nodes that is in use.",
	})

	blockListProblems = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_block_list_problems",
		Help: "What is wrong with the block list of nodes: lines that are left out, " +
			"or 1 when there is none or it can't be read.",
	})
)

func init() { metrics.Registry.MustRegister(blockedNodes, blockListProblems) }

// namesKey is the key of the ConfigMap that holds the names.
const namesKey = "nodes"

// List holds the names that were read last. They count until another version is read: a ConfigMap that is deleted
// unblocks no node. Until the first version is read, requests of all nodes wait. A nil List blocks nothing.
type List struct {
	name      types.NamespacedName
	configMap *informer.Informer[*corev1.ConfigMap]
	log       logr.Logger
	reporter  *report.Reporter // may be nil

	loading sync.Mutex // held from reading a version until it is in use, so that no older one follows it

	mu       sync.Mutex
	names    map[string]bool // nil before the first version
	problem  string          // with the newest version; empty is none
	object   *corev1.ConfigMap
	onChange []func()
	settled  chan struct{} // closed once names or a problem are known
}

// New returns a List that was not read yet. SetupWithManager keeps it up to date, and ReadOnce reads it.
func New(name types.NamespacedName) *List {
	return &List{
		name: name, log: logr.Discard(), settled: make(chan struct{}), problem: informer.ErrNotRead.Error(),
		object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}},
	}
}

// Check returns why req must wait because of the node that it is for or from. The reason is NodeBlocked, or
// InventoryUnavailable while no list was read. It is empty if req need not wait.
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
		return "InventoryUnavailable", fmt.Sprintf("whether its node is blocked can't be found out, so it waits: "+
			"block list ConfigMap %s: %s", l.name, l.problem)
	}
	for _, name := range nodes {
		if l.names[name] {
			return "NodeBlocked", fmt.Sprintf("node %q is on the block list, ConfigMap %s: nothing is approved or signed "+
				"for it until it is taken off", csr.Shorten(name), l.name)
		}
	}
	return "", ""
}

// nodesOf returns the names of the nodes that req is for and from, in lower case.
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

// ready returns why no list was read yet.
func (l *List) ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		return fmt.Errorf("block list ConfigMap %s: %s", l.name, l.problem)
	}
	return nil
}

// offer uses a version of the ConfigMap, which is nil if it does not exist.
func (l *List) offer(obj *corev1.ConfigMap) {
	if obj == nil {
		l.refuse("BlockListMissing",
			errors.New("it does not exist: create it with the names of the blocked nodes under the key nodes, or with none"))
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

// parse reads one name a line; # begins a comment. It leaves out a line that is wrong, and reports its number.
func parse(text string) (names map[string]bool, problems []string) {
	names = map[string]bool{}
	for number, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		name := strings.ToLower(strings.TrimSpace(line))
		switch {
		case name == "":
		case strings.HasPrefix(name, csr.NodeUserPrefix):
			problems = append(problems, fmt.Sprintf("line %d: %q is a user's name: leave out %s",
				number+1, csr.Shorten(name), csr.NodeUserPrefix))
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			problems = append(problems, fmt.Sprintf("line %d: %q is no node's name", number+1, csr.Shorten(name)))
		default:
			names[name] = true
		}
	}
	return names, problems
}

// refuse reports why there is no version to read. The names that were read last stay in use.
func (l *List) refuse(reason string, problem error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	if l.problem == problem.Error() {
		return
	}
	l.problem = problem.Error()
	blockListProblems.Set(1)
	message := fmt.Sprintf("no block list of nodes can be read: %s; nothing is approved or signed for any node", problem)
	if l.names != nil {
		message = fmt.Sprintf("no block list of nodes can be read: %s; the last one holds: %s", problem, describe(l.names))
	}
	l.log.Error(nil, "No block list", "reason", reason, "message", message)
	l.event(corev1.EventTypeWarning, reason, message)
}

// use puts names in use, and reports whether requests may have waited for that.
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
		message := "lines are left out, the others hold: " + few(problems)
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

// settle notes that names or a problem are known. The caller holds mu.
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

// describe says which nodes are blocked.
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
