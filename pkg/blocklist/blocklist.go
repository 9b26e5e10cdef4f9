// Package blocklist reads the names of blocked nodes and the SHA-256 of blocked certificates from a ConfigMap. For
// these nodes, and for requests that were made with these certificates, nothing is approved and nothing is signed.
package blocklist

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
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
		Help: "Names of nodes in the block list that is in use.",
	})

	blockedCertificates = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_block_list_certificates",
		Help: "Certificates in the block list that is in use.",
	})

	blockListProblems = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "csr_block_list_problems",
		Help: "Invalid lines and unknown keys in the block list, which are ignored; " +
			"1 when the list does not exist or can't be read.",
	})
)

func init() { metrics.Registry.MustRegister(blockedNodes, blockedCertificates, blockListProblems) }

// The keys in the ConfigMap. It must have nodesKey, and may have certificatesKey.
const (
	nodesKey        = "nodes"
	certificatesKey = "certificates"
)

// entries are the names of the blocked nodes in lower case, and the SHA-256 of the blocked certificates in hex.
type entries struct{ nodes, certificates map[string]bool }

// List holds the entries that were read last. They stay in use until another version is read: deleting the ConfigMap
// unblocks nothing. Until the first version is read, requests of all nodes wait, and requests that were made with any
// certificate. A nil List blocks nothing.
type List struct {
	name      types.NamespacedName
	configMap *informer.Informer[*corev1.ConfigMap]
	log       logr.Logger
	reporter  *report.Reporter // may be nil
	// server returns the version of the API server. It may be nil.
	server func() (*version.Info, error)

	loading sync.Mutex // held from reading a version until it is in use, so that no older version follows it

	mu       sync.Mutex
	blocked  *entries // nil before the first version
	problem  string   // with the newest version; empty if there is none
	object   *corev1.ConfigMap
	onChange []func()
	settled  chan struct{} // closed once entries or a problem are known
}

// New returns a List that has not been read yet. SetupWithManager keeps it up to date, and ReadOnce reads it.
func New(name types.NamespacedName) *List {
	return &List{
		name: name, log: logr.Discard(), settled: make(chan struct{}), problem: informer.ErrNotRead.Error(),
		object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}},
	}
}

// Check returns why req must wait because of the node that it is for or comes from, or because of the certificate with
// which it was made. The reason is NodeBlocked, CertificateBlocked, or InventoryUnavailable while no list was read. The
// reason is empty if req need not wait.
//
// Check blocks no certificate that was renewed from one on the list. Only stored requests connect the two, and the
// cleaner deletes requests: the block would end with them. So the administrator lists each certificate, or the node.
func (l *List) Check(req *csr.Request) (reason, message string) {
	if l == nil {
		return "", ""
	}
	nodes, certificates := nodesOf(req), req.Requester.Certificates()
	kubelet := req.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName ||
		req.SignerName == certificatesv1.KubeletServingSignerName
	if len(nodes)+len(certificates) == 0 && !kubelet {
		return "", ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked == nil {
		return "InventoryUnavailable", fmt.Sprintf("the request waits because it is unknown whether it is blocked: "+
			"block list ConfigMap %s: %s", l.name, l.problem)
	}
	for _, name := range nodes {
		if l.blocked.nodes[name] {
			return "NodeBlocked", fmt.Sprintf("node %q is on the block list, ConfigMap %s: nothing is approved or signed "+
				"for it until its name is removed from the list", csr.Shorten(name), l.name)
		}
	}
	for _, sum := range certificates {
		if l.blocked.certificates[sum] {
			return "CertificateBlocked", fmt.Sprintf("client certificate %s is on the block list, ConfigMap %s: nothing is "+
				"approved or signed for a request that was made with it until its SHA-256 is removed from the list", sum, l.name)
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
	if l.blocked == nil {
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
	if _, found := obj.Data[nodesKey]; !found {
		l.refuse("BlockListInvalid", fmt.Errorf("it has no key %s: add it, with an empty value if no node is blocked", nodesKey))
		return
	}
	read, problems := parse(obj.Data)
	if l.use(read, problems) {
		l.mu.Lock()
		callbacks := slices.Clone(l.onChange)
		l.mu.Unlock()
		for _, call := range callbacks {
			call()
		}
	}
	if len(read.certificates) > 0 { // the list is in use already: a slow answer must not delay a block
		if problem := l.unrecorded(); problem != "" {
			l.use(read, append(problems, problem))
		}
	}
}

// recordsSince is the first version whose API server records the certificates of requesters.
var recordsSince = utilversion.MustParseGeneric("1.32")

// unrecorded returns why the certificates in the list have no effect. It is empty if they have, and if the version of
// the API server is unknown.
func (l *List) unrecorded() string {
	if l.server == nil {
		return ""
	}
	info, err := l.server()
	if err != nil {
		return ""
	}
	if found, err := utilversion.ParseGeneric(info.GitVersion); err != nil || found.LessThan(recordsSince) {
		return fmt.Sprintf("the certificates have no effect: the API server %s records no certificate of a requester, "+
			"which needs Kubernetes %s", csr.Shorten(info.GitVersion), recordsSince)
	}
	return ""
}

// parse reads the data of a ConfigMap. It skips invalid lines and unknown keys, and reports them.
func parse(data map[string]string) (*entries, []string) {
	nodes, problems := parseLines(data[nodesKey], "line", parseNode)
	certificates, more := parseLines(data[certificatesKey], certificatesKey+", line", parseCertificate)
	problems = append(problems, more...)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if key != nodesKey && key != certificatesKey {
			problems = append(problems, fmt.Sprintf("key %q is unknown: the keys are %s and %s",
				csr.Shorten(key), nodesKey, certificatesKey))
		}
	}
	return &entries{nodes, certificates}, problems
}

// parseLines reads one entry per line; # begins a comment. It reports the number of an invalid line after label.
func parseLines(
	text, label string, parse func(line string) (entry, problem string),
) (read map[string]bool, problems []string) {
	read = map[string]bool{}
	for number, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.ToLower(strings.TrimSpace(line))
		if line == "" {
			continue
		}
		entry, problem := parse(line)
		if problem != "" {
			problems = append(problems, fmt.Sprintf("%s %d: %s", label, number+1, problem))
			continue
		}
		read[entry] = true
	}
	return read, problems
}

// parseNode reads the name of a node.
func parseNode(line string) (name, problem string) {
	switch {
	case strings.HasPrefix(line, csr.NodeUserPrefix):
		return "", fmt.Sprintf("%q is a user name: remove the prefix %s", csr.Shorten(line), csr.NodeUserPrefix)
	case len(validation.IsDNS1123Subdomain(line)) > 0:
		return "", fmt.Sprintf("%q is not a node name", csr.Shorten(line))
	}
	return line, ""
}

// parseCertificate reads the SHA-256 of a certificate: hex digits as in the audit log, with the prefix as in a request,
// or with colons as openssl prints it.
func parseCertificate(line string) (sha256Hex, problem string) {
	text := strings.TrimPrefix(line, strings.ToLower(csr.CertificateIDPrefix))
	text = strings.ReplaceAll(strings.TrimPrefix(text, "sha256 fingerprint="), ":", "")
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != sha256.Size {
		return "", fmt.Sprintf("%q is not the SHA-256 of a certificate: write its 64 hex digits", csr.Shorten(line))
	}
	return text, ""
}

// refuse reports why no version can be read. The entries that were read last stay in use.
func (l *List) refuse(reason string, problem error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	if l.problem == problem.Error() {
		return
	}
	l.problem = problem.Error()
	blockListProblems.Set(1)
	message := fmt.Sprintf("the block list can't be read: %s; nothing is approved or signed for any node, or for a "+
		"request that was made with a certificate", problem)
	if l.blocked != nil {
		message = fmt.Sprintf("the block list can't be read: %s; the last version stays in use: %s",
			problem, l.blocked.describe())
	}
	l.log.Error(nil, "No block list", "reason", reason, "message", message)
	l.event(corev1.EventTypeWarning, reason, message)
}

// use applies read, and reports whether requests may have waited for this.
func (l *List) use(read *entries, problems []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	problem, last := strings.Join(problems, "; "), l.problem
	same := l.blocked != nil && maps.Equal(read.nodes, l.blocked.nodes) &&
		maps.Equal(read.certificates, l.blocked.certificates)
	l.blocked, l.problem = read, problem
	blockedNodes.Set(float64(len(read.nodes)))
	blockedCertificates.Set(float64(len(read.certificates)))
	blockListProblems.Set(float64(len(problems)))
	if problem != "" && problem != last {
		message := "what is invalid is ignored, and the rest applies: " + few(problems)
		l.log.Error(nil, "Bad block list", "message", message)
		l.event(corev1.EventTypeWarning, "BlockListInvalid", message)
	}
	if same && (problem != "" || last == "") {
		return false
	}
	l.log.Info("Read block list", "nodes", slices.Sorted(maps.Keys(read.nodes)),
		"certificates", slices.Sorted(maps.Keys(read.certificates)))
	l.event(corev1.EventTypeNormal, "BlockListRead", read.describe())
	return true
}

// settle records that entries or a problem are known. The caller holds mu.
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

// describe lists what is blocked, for a message. It shortens the SHA-256 of certificates to 16 digits.
func (e *entries) describe() string {
	var parts []string
	if len(e.nodes) > 0 {
		parts = append(parts, few(slices.Sorted(maps.Keys(e.nodes))))
	}
	if len(e.certificates) > 0 {
		var sums []string
		for sum := range e.certificates {
			sums = append(sums, sum[:16])
		}
		slices.Sort(sums)
		parts = append(parts, "certificates "+few(sums))
	}
	if len(parts) == 0 {
		return "no node and no certificate is blocked"
	}
	return "blocked: " + strings.Join(parts, "; ")
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
	discovered, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("read the version of the API server: %w", err)
	}
	l.server = discovered.ServerVersion
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
