package inventory

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

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
		Help: "What is wrong with the block list of nodes: lines that are left out, or 1 when there is none or it can't be read.",
	})
)

func init() { metrics.Registry.MustRegister(blockedNodes, blockListProblems) }

// BlockList is the names of nodes for which nothing is approved and nothing signed, from a ConfigMap. What was read last
// holds until there is something else to read: nothing is unblocked because a ConfigMap is gone. Before anything has been
// read every node is held back. A nil BlockList blocks nothing.
type BlockList struct {
	name types.NamespacedName
	view *view

	log      logr.Logger
	reporter *report.Reporter // may be nil

	mu      sync.Mutex
	names   map[string]bool // nil until there has been something to read
	problem string          // what is wrong now
	object  *corev1.ConfigMap
	changed []chan struct{}
	settled chan struct{} // closed once something is known: names, or a problem
}

// NewBlockList returns one that has not been read yet; SetupWithManager has it read, and ReadOnce reads it.
func NewBlockList(name types.NamespacedName) *BlockList {
	return &BlockList{
		name: name, log: logr.Discard(), settled: make(chan struct{}), problem: errNotRead.Error(),
		object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}},
	}
}

// Check says whether req must wait because of the node that it is for or from: then reason is NodeBlocked, or
// InventoryUnavailable while nobody can say. It is empty otherwise.
func (b *BlockList) Check(req *csr.Request) (reason, message string) {
	if b == nil || !isOfNode(req) {
		return "", ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names == nil {
		return "InventoryUnavailable", fmt.Sprintf("whether its node is blocked can't be found out, so it waits: block list ConfigMap %s: %s", b.name, b.problem)
	}
	for _, name := range aboutNodes(req) {
		if b.names[name] {
			return "NodeBlocked", fmt.Sprintf("node %q is on the block list, ConfigMap %s: nothing is approved or signed for it until it is taken off", csr.Shorten(name), b.name)
		}
	}
	return "", ""
}

// ready says why nothing has been read yet.
func (b *BlockList) ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names == nil {
		return fmt.Errorf("block list ConfigMap %s: %s", b.name, b.problem)
	}
	return nil
}

// offer takes a version of the ConfigMap, or nil when there is none.
func (b *BlockList) offer(obj *corev1.ConfigMap) {
	if obj == nil {
		b.refuse("BlockListMissing", errors.New("it does not exist: create it with the names of the blocked nodes under the key nodes, or with none"))
		return
	}
	b.mu.Lock()
	b.object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID}}
	b.mu.Unlock()
	text, found := obj.Data[blockListKey]
	if !found {
		b.refuse("BlockListInvalid", fmt.Errorf("it has no key %s", blockListKey))
		return
	}
	names, problems := parseBlockList(text)
	b.accept(names, problems)
}

// refuse reports why there is nothing to read. What has been read holds.
func (b *BlockList) refuse(reason string, problem error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle()
	if b.problem == problem.Error() {
		return
	}
	b.problem = problem.Error()
	blockListProblems.Set(1)
	message := fmt.Sprintf("no block list of nodes can be read: %s; nothing is approved or signed for any node", problem)
	if b.names != nil {
		message = fmt.Sprintf("no block list of nodes can be read: %s; the last one holds: %s", problem, inWords(b.names))
	}
	b.log.Error(nil, "No block list", "reason", reason, "message", message)
	b.tell(corev1.EventTypeWarning, reason, message)
}

func (b *BlockList) accept(names map[string]bool, problems []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.settle()
	problem, last := strings.Join(problems, "; "), b.problem
	same := b.names != nil && maps.Equal(names, b.names)
	b.names, b.problem = names, problem
	blockedNodes.Set(float64(len(names)))
	blockListProblems.Set(float64(len(problems)))
	if problem != "" && problem != last {
		message := "lines are left out, the others hold: " + few(problems)
		b.log.Error(nil, "Bad block list", "message", message)
		b.tell(corev1.EventTypeWarning, "BlockListInvalid", message)
	}
	if same && (problem != "" || last == "") {
		return
	}
	b.log.Info("Read block list", "nodes", sorted(names))
	b.tell(corev1.EventTypeNormal, "BlockListRead", inWords(names))
	for _, changed := range b.changed {
		select {
		case changed <- struct{}{}:
		default: // a wake-up is already on its way
		}
	}
}

// settle notes that something is known.
func (b *BlockList) settle() {
	select {
	case <-b.settled:
	default:
		close(b.settled)
	}
}

func (b *BlockList) tell(eventType, reason, message string) {
	if b.reporter != nil {
		b.reporter.Object(b.object, eventType, "Load", reason, message)
	}
}
