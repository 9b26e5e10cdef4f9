package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
)

// The role is for an approver of serving certificates.
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=kube-public,resourceNames=cluster-info,verbs=list;watch

// How often certificates of API servers are read, and for how long the names of an API server count that is not among the
// endpoints any more: one that restarts is away for a while.
const (
	readEvery      = 5 * time.Minute
	readUnread     = 30 * time.Second // while one can't be read
	readFirst      = 2 * time.Second  // while none has been read
	gatherRead     = 200 * time.Millisecond
	forgetAfter    = time.Hour
	maxAPIServers  = 32
	maxHosts       = 8    // names that are asked for by SNI
	maxServerNames = 1000 // in one certificate
	readAtOnce     = 8
)

var unreadAPIServers = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "csr_approver_api_servers_unread",
	Help: "API servers whose serving certificate could not be read the last time: names that only they have are not reserved.",
})

func init() { metrics.Registry.MustRegister(unreadAPIServers) }

// APIServers knows the names and addresses by which clients reach the API servers: those in their serving certificates,
// the host of the kubeconfig, and the servers in the ConfigMap cluster-info. It trusts a certificate for nothing but
// reserving what is in it.
type APIServers struct {
	// Changed, if set, is called once the first certificate has been read.
	Changed func()
	// Freed, if set, is called with the names and addresses that no API server has any more.
	Freed func([]SAN)

	config    *rest.Config
	endpoints func() ([]string, error) // host:port of each
	read      func(context.Context, *rest.Config) (probe.Shown, error)
	info      *view
	clock     clock.Clock
	log       logr.Logger
	wake      chan struct{}

	// Only the goroutine of Start uses these.
	listing string // why endpoints can't be listed
	servers map[string]*apiServer
	hosts   map[SAN]string // of cluster-info, which stay when it can't be read

	mu    sync.RWMutex
	names map[SAN]string
	err   error // why serving certificates can't be approved yet
}

// apiServer is one endpoint, or the address in the kubeconfig.
type apiServer struct {
	shown  map[SAN]time.Time // what its certificate holds, and when that was read last
	listed time.Time         // when it was an endpoint last
	err    error             // of the last reading
}

// NewAPIServers reads from the API servers that cfg and the endpoints in cluster lead to. Start keeps that current.
func NewAPIServers(cfg *rest.Config, cluster *Cluster, log logr.Logger) (*APIServers, error) {
	a := &APIServers{
		config: cfg, endpoints: cluster.apiServers, read: probe.ServingCertificate, clock: clock.RealClock{},
		log: log, wake: make(chan struct{}, 1), servers: map[string]*apiServer{}, err: errNotRead,
	}
	cluster.Endpoints = a.again
	var err error
	a.info, err = viewConfigMap(cfg, clusterInfo, readServers, func(_, _ metav1.Object) { a.again() }, log)
	return a, err
}

// again makes Start read soon.
func (a *APIServers) again() {
	select {
	case a.wake <- struct{}{}:
	default: // it is about to
	}
}

// NeedLeaderElection is false: a standby is ready too.
func (*APIServers) NeedLeaderElection() bool { return false }

// Start reads until ctx ends.
func (a *APIServers) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { a.info.run(ctx) })
	for ctx.Err() == nil {
		timer := a.clock.NewTimer(a.round(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-a.wake:
			select { // endpoints change one after the other
			case <-ctx.Done():
			case <-a.clock.After(gatherRead):
			}
		}
		timer.Stop()
	}
	return nil
}

// Has returns what of the API servers san is, or nothing.
func (a *APIServers) Has(san SAN) string {
	if a == nil {
		return ""
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.names[san]
}

// Ready returns why nobody can say yet what belongs to the API servers.
func (a *APIServers) Ready() error {
	if a == nil {
		return nil
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.err
}

// kubeconfigHost names the manager's own way to an API server among the servers.
const kubeconfigHost = "the kubeconfig's server"

// round reads all certificates once, and returns when to do so again.
func (a *APIServers) round(ctx context.Context) time.Duration {
	endpoints, err := a.endpoints()
	if IsUnread(err) {
		return gatherRead
	}
	listed := err == nil || errors.Is(err, probe.ErrNoEndpoints)
	endpoints = a.bounded(endpoints, err)
	infoErr := a.readInfo()
	names := a.known(endpoints)
	targets := a.targets(endpoints, names)
	verified, failed := a.readAll(ctx, targets)
	if ctx.Err() != nil {
		return readFirst
	}
	a.forget(targets, listed)
	for name, server := range a.servers {
		for san := range server.shown {
			if names[san] == "" {
				names[san] = "in the serving certificate of " + name
			}
		}
	}
	if infoErr == nil && !verified {
		infoErr = fmt.Errorf("no serving certificate of an API server has been read that the cluster's CA has issued: %w",
			cmp.Or(failed, errNotIssued))
	}
	switch {
	case !a.publish(names, infoErr):
		return readFirst
	case failed != nil:
		return readUnread
	}
	return readEvery
}

// errNotIssued is why certificates that could be read do not count.
var errNotIssued = errors.New("those that were read are of another CA, or for other names")

// bounded returns those of endpoints that are asked. It logs why there are no more, once while that is so.
func (a *APIServers) bounded(endpoints []string, err error) []string {
	if len(endpoints) > maxAPIServers {
		err = fmt.Errorf("there are %d, and only %d of them are asked", len(endpoints), maxAPIServers)
		endpoints = endpoints[:maxAPIServers]
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != a.listing {
		a.log.Error(err, "Can't read the serving certificates of all API servers")
	}
	a.listing = problem
	return endpoints
}

// forget drops API servers that have not been among targets for a while. While endpoints can't be listed it drops none: when
// they can be again, approvals go on before every certificate has been read anew.
func (a *APIServers) forget(targets map[string][]*rest.Config, listed bool) {
	now := a.clock.Now()
	maps.DeleteFunc(a.servers, func(name string, server *apiServer) bool {
		if _, asked := targets[name]; asked || !listed {
			server.listed = now
		}
		return now.Sub(server.listed) > forgetAfter
	})
}

// publish makes names those of the API servers, and failed what stands in the way if there has been no answer before.
func (a *APIServers) publish(names map[SAN]string, failed error) bool {
	a.mu.Lock()
	before := a.names
	first := a.err != nil && failed == nil
	a.names = names
	if a.err != nil {
		a.err = failed
	}
	ready := a.err == nil
	a.mu.Unlock()
	if first && a.Changed != nil {
		a.Changed()
	}
	freed := without(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(names)))
	if len(freed) > 0 && a.Freed != nil {
		a.Freed(freed)
	}
	return ready
}

// readInfo takes the servers of cluster-info, and keeps the last ones when it can't be read. Without the right to read it
// there is none.
func (a *APIServers) readInfo() error {
	store, err := a.info.read()
	if apierrors.IsForbidden(err) {
		return nil // told in the log by the view
	}
	if err != nil {
		if a.hosts != nil {
			return nil
		}
		return fmt.Errorf("read ConfigMap %s: %w", clusterInfo, err)
	}
	a.hosts = map[SAN]string{}
	if obj, found, _ := store.GetByKey(clusterInfo.String()); found {
		for _, san := range obj.(*serverList).servers {
			a.hosts[san] = fmt.Sprintf("in ConfigMap %s", clusterInfo)
		}
	}
	return nil
}

// known are the names and addresses that are known without a certificate.
func (a *APIServers) known(endpoints []string) map[SAN]string {
	all := map[SAN]string{}
	for _, endpoint := range endpoints {
		if host := hostOf("https://" + endpoint); host != "" {
			all[parseSloppy(host)] = "an endpoint"
		}
	}
	maps.Copy(all, a.hosts)
	if at, _, err := rest.DefaultServerUrlFor(a.config); err == nil && at.Hostname() != "" {
		all[parseSloppy(at.Hostname())] = "in the kubeconfig"
	}
	if name := a.config.ServerName; name != "" {
		all[ParseSAN(name)] = "in the kubeconfig"
	}
	return all
}

// targets are the ways to ask each API server: by its usual name, and by the names that clients use, as it may show another
// certificate for them.
func (a *APIServers) targets(endpoints []string, hosts map[SAN]string) map[string][]*rest.Config {
	names := []string{probe.ServerName}
	for _, san := range slices.SortedFunc(maps.Keys(hosts), func(x, y SAN) int { return strings.Compare(x.Name, y.Name) }) {
		if san.Name != "" && len(names) <= maxHosts {
			names = append(names, san.Name)
		}
	}
	all := map[string][]*rest.Config{kubeconfigHost: {a.config}}
	for _, name := range names {
		for _, target := range probe.Direct(a.config, name, endpoints) {
			all[target.Name] = append(all[target.Name], target.Cluster)
		}
	}
	return all
}

// readAll reads the certificates of all targets. It reports whether one of them could be verified, and why some could not
// be read.
func (a *APIServers) readAll(ctx context.Context, targets map[string][]*rest.Config) (verified bool, failed error) {
	var mu sync.Mutex
	var reading sync.WaitGroup
	free := make(chan struct{}, readAtOnce)
	results := map[string]*apiServer{}
	for name, ways := range targets {
		free <- struct{}{}
		reading.Go(func() {
			defer func() { <-free }()
			server, good := a.readOne(ctx, ways)
			mu.Lock()
			defer mu.Unlock()
			results[name] = server
			verified = verified || good
		})
	}
	reading.Wait()
	unread, now := 0, a.clock.Now()
	for _, name := range slices.Sorted(maps.Keys(results)) {
		server, last := results[name], a.servers[name]
		if server.err != nil {
			unread++
			failed = errors.Join(failed, fmt.Errorf("%s: %w", name, server.err))
			if last == nil || last.err == nil {
				a.log.Error(server.err, "Can't read the serving certificate of an API server: names that only it has are not reserved",
					"apiServer", name)
			}
		}
		server.remember(last, name == kubeconfigHost, now)
		a.servers[name] = server
	}
	unreadAPIServers.Set(float64(unread))
	return verified, failed
}

// remember keeps of last, the reading before, what this one does not show: all if it failed, and what was shown in the last
// hour behind a load balancer, which leads to another API server each time.
func (s *apiServer) remember(last *apiServer, balanced bool, now time.Time) {
	switch {
	case last == nil:
	case s.err != nil:
		s.shown = last.shown
	case balanced:
		for san, at := range last.shown {
			if _, again := s.shown[san]; !again && now.Sub(at) <= forgetAfter {
				s.shown[san] = at
			}
		}
	}
}

// readOne reads what one API server shows in each of the ways to ask it.
func (a *APIServers) readOne(ctx context.Context, ways []*rest.Config) (server *apiServer, verified bool) {
	server = &apiServer{shown: map[SAN]time.Time{}}
	for _, way := range ways {
		shown, err := a.read(ctx, way)
		if err != nil {
			server.err = err
			return server, verified // the others would fail too
		}
		verified = verified || shown.Verified
		sans := servedNames(shown)
		if more := len(sans) - maxServerNames; more > 0 {
			server.err = fmt.Errorf("it holds %d names more than are reserved", more)
			sans = sans[:maxServerNames]
		}
		for _, san := range sans {
			server.shown[san] = a.clock.Now()
		}
	}
	return server, verified
}

// servedNames are the names and addresses in a certificate. A wildcard reserves nothing by itself: of the hosts that it
// stands for, those that clients use are known from elsewhere, and others may be nodes.
func servedNames(shown probe.Shown) []SAN {
	var all []SAN
	for _, name := range shown.Certificate.DNSNames {
		if san := ParseSAN(name); !strings.Contains(name, "*") {
			all = append(all, san)
		}
	}
	for _, ip := range shown.Certificate.IPAddresses {
		all = append(all, ipSAN(ip))
	}
	return all
}

// serverList is the ConfigMap cluster-info, with the hosts of its servers.
type serverList struct {
	metav1.ObjectMeta
	servers []SAN
}

// maxInfo bounds the kubeconfig in cluster-info: kubeadm's is 2 KiB.
const maxInfo = 64 << 10

func readServers(obj *unstructured.Unstructured) metav1.Object {
	list := &serverList{ObjectMeta: metav1.ObjectMeta{
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}}
	text, _, _ := unstructured.NestedString(obj.Object, "data", kubeconfigKey)
	if len(text) > maxInfo {
		return list
	}
	config, err := clientcmd.Load([]byte(text))
	if err != nil {
		return list
	}
	for _, name := range slices.Sorted(maps.Keys(config.Clusters)) {
		cluster := config.Clusters[name]
		for _, host := range []string{hostOf(cluster.Server), cluster.TLSServerName} {
			if host != "" && len(list.servers) < maxHosts {
				list.servers = append(list.servers, parseSloppy(host))
			}
		}
	}
	return list
}

func hostOf(server string) string {
	at, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return at.Hostname()
}
