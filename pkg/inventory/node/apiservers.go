package node

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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// The role is for an approver of serving certificates.
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=kube-public,resourceNames=cluster-info,verbs=list;watch

// Intervals and limits of reading the certificates of API servers. After forgetAfter, the names of an API server that
// is no longer an endpoint are dropped. A restarting API server is away for a while.
const (
	readEvery      = 5 * time.Minute
	readUnread     = 30 * time.Second // while a certificate can't be read
	readFirst      = 2 * time.Second  // while no certificate has been read
	gatherRead     = 200 * time.Millisecond
	forgetAfter    = time.Hour
	maxAPIServers  = 32
	maxHosts       = 8    // names that are requested by SNI
	maxServerNames = 1000 // in one certificate
	readAtOnce     = 8
)

var unreadAPIServers = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "csr_approver_api_servers_unread",
	Help: "API servers whose serving certificate could not be read at the last attempt: " +
		"names that only they hold are not reserved.",
})

func init() { metrics.Registry.MustRegister(unreadAPIServers) }

// APIServers knows the names and addresses that clients use for the API servers. They come from the serving
// certificates, from the host in the kubeconfig, and from the servers in the ConfigMap cluster-info. A certificate is
// trusted only to reserve the names in it.
type APIServers struct {
	// Changed is called once the first certificate has been read.
	Changed func()
	// Freed is called with the names and addresses that no API server has any more.
	Freed func([]san.SAN)

	config    *rest.Config
	endpoints func() ([]string, error) // host:port of each
	read      func(context.Context, *rest.Config) (probe.Shown, error)
	info      *informer.Informer[*serverList]
	clock     clock.Clock
	log       logr.Logger
	wake      chan struct{}

	// Only the goroutine of Start uses these.
	listing string // why endpoints can't be listed
	servers map[string]*apiServer
	hosts   map[san.SAN]string // of cluster-info; they stay while it can't be read

	mu    sync.RWMutex
	names map[san.SAN]string
	err   error // why serving certificates can't be approved yet
}

// apiServer is one endpoint, or the address in the kubeconfig.
type apiServer struct {
	shown  map[san.SAN]time.Time // values in its certificate, and when each was last read
	listed time.Time             // when it was last an endpoint
	err    error                 // of the last attempt to read
}

// NewAPIServers returns an APIServers for config and the endpoints of source. Start keeps it up to date.
func NewAPIServers(config *rest.Config, source *Source, log logr.Logger) (*APIServers, error) {
	configMaps, err := informer.ConfigMaps(config, nil)
	if err != nil {
		return nil, err
	}
	a := &APIServers{
		Changed: func() {}, Freed: func([]san.SAN) {},
		config: config, endpoints: source.apiServers, read: probe.ServingCertificate, clock: clock.RealClock{},
		log: log, wake: make(chan struct{}, 1), servers: map[string]*apiServer{}, err: informer.ErrNotRead,
	}
	source.endpointsChanged = a.again
	a.info = &informer.Informer[*serverList]{
		Resource: configMaps, Namespace: clusterInfo.Namespace, Name: clusterInfo.Name, Convert: readServers,
		OnSync: a.again, OnChange: func(_, _ *serverList) { a.again() },
		Log: log.WithValues("configMap", clusterInfo.String()),
	}
	return a, nil
}

// clusterInfo is the ConfigMap in which joining clients find the API servers.
var clusterInfo = types.NamespacedName{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}

// again requests that Start reads soon.
func (a *APIServers) again() {
	select {
	case a.wake <- struct{}{}:
	default: // already requested
	}
}

// NeedLeaderElection returns false, so that a standby is ready too.
func (*APIServers) NeedLeaderElection() bool { return false }

// Start reads certificates until ctx ends.
func (a *APIServers) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = a.info.Start(ctx) }) // it returns no error
	for ctx.Err() == nil {
		timer := a.clock.NewTimer(a.round(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-a.wake:
			select { // endpoints often change in series
			case <-ctx.Done():
			case <-a.clock.After(gatherRead):
			}
		}
		timer.Stop()
	}
	return nil
}

// Has returns how the API servers use value, such as "an endpoint". It returns an empty text if no API server has
// value.
func (a *APIServers) Has(value san.SAN) string {
	if a == nil {
		return ""
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.names[value]
}

// Ready returns why the names of the API servers are not known yet, or nil.
func (a *APIServers) Ready() error {
	if a == nil {
		return nil
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.err
}

// kubeconfigHost is the key in servers of the server in the kubeconfig.
const kubeconfigHost = "the kubeconfig's server"

// round reads all certificates once, and returns the pause until the next round.
func (a *APIServers) round(ctx context.Context) time.Duration {
	endpoints, err := a.endpoints()
	if errors.Is(err, informer.ErrNotRead) {
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
		for value := range server.shown {
			if names[value] == "" {
				names[value] = "in the serving certificate of " + name
			}
		}
	}
	if infoErr == nil && !verified {
		infoErr = fmt.Errorf("no API server has presented a serving certificate that the cluster's CA issued: %w",
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

// errNotIssued is the reason why certificates that were read do not count.
var errNotIssued = errors.New("the certificates that were read have another CA or other names")

// bounded returns the endpoints to ask. It logs once why other endpoints are left out.
func (a *APIServers) bounded(endpoints []string, err error) []string {
	if len(endpoints) > maxAPIServers {
		err = fmt.Errorf("there are %d endpoints, and only %d of them are read", len(endpoints), maxAPIServers)
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

// forget drops API servers that have not been among targets for forgetAfter. While endpoints can't be listed, it
// drops none. Once they can, approvals continue before every certificate has been read again.
func (a *APIServers) forget(targets map[string][]*rest.Config, listed bool) {
	now := a.clock.Now()
	maps.DeleteFunc(a.servers, func(name string, server *apiServer) bool {
		if _, asked := targets[name]; asked || !listed {
			server.listed = now
		}
		return now.Sub(server.listed) > forgetAfter
	})
}

// publish stores the names of the API servers. failed is the reason why the names are incomplete. It counts until the
// first complete result. publish reports whether there has been such a result.
func (a *APIServers) publish(names map[san.SAN]string, failed error) bool {
	a.mu.Lock()
	before := a.names
	first := a.err != nil && failed == nil
	a.names = names
	if a.err != nil {
		a.err = failed
	}
	ready := a.err == nil
	a.mu.Unlock()
	if first {
		a.Changed()
	}
	freed := without(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(names)))
	if len(freed) > 0 {
		a.Freed(freed)
	}
	return ready
}

// readInfo reads the servers of cluster-info. If it can't, it keeps the last servers. Without the right to read
// cluster-info, there are no servers.
func (a *APIServers) readInfo() error {
	list, found, err := a.info.Get(clusterInfo.Namespace, clusterInfo.Name)
	switch {
	case apierrors.IsForbidden(err): // the informer has logged it
		return nil
	case err != nil && a.hosts != nil:
		return nil
	case err != nil:
		return fmt.Errorf("read ConfigMap %s: %w", clusterInfo, err)
	}
	a.hosts = map[san.SAN]string{}
	if found {
		for _, value := range list.servers {
			a.hosts[value] = fmt.Sprintf("in ConfigMap %s", clusterInfo)
		}
	}
	return nil
}

// known returns the names and addresses that are known without reading a certificate.
func (a *APIServers) known(endpoints []string) map[san.SAN]string {
	all := map[san.SAN]string{}
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
		all[san.Parse(name)] = "in the kubeconfig"
	}
	return all
}

// targets returns the ways to connect to each API server: with its usual name, and with the names that clients use.
// An API server may present another certificate for each name.
func (a *APIServers) targets(endpoints []string, hosts map[san.SAN]string) map[string][]*rest.Config {
	names := []string{probe.ServerName}
	byName := func(x, y san.SAN) int { return strings.Compare(x.Name, y.Name) }
	for _, value := range slices.SortedFunc(maps.Keys(hosts), byName) {
		if value.Name != "" && len(names) <= maxHosts {
			names = append(names, value.Name)
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

// readAll reads the certificates of all targets. It reports whether one of them could be verified, and why others
// could not be read.
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
				a.log.Error(server.err, "Can't read the serving certificate of an API server: names that only it has are not "+
					"reserved", "apiServer", name)
			}
		}
		server.remember(last, name == kubeconfigHost, now)
		a.servers[name] = server
	}
	unreadAPIServers.Set(float64(unread))
	return verified, failed
}

// remember adds values of last, the previous read, to s. If this read failed, it adds all values. A load balancer
// leads to another API server each time, so behind it remember adds the values of the last hour.
func (s *apiServer) remember(last *apiServer, balanced bool, now time.Time) {
	switch {
	case last == nil:
	case s.err != nil:
		s.shown = last.shown
	case balanced:
		for value, at := range last.shown {
			if _, again := s.shown[value]; !again && now.Sub(at) <= forgetAfter {
				s.shown[value] = at
			}
		}
	}
}

// readOne reads the certificates that one API server presents in each way to connect to it.
func (a *APIServers) readOne(ctx context.Context, ways []*rest.Config) (server *apiServer, verified bool) {
	server = &apiServer{shown: map[san.SAN]time.Time{}}
	for _, way := range ways {
		shown, err := a.read(ctx, way)
		if err != nil {
			server.err = err
			return server, verified // the other ways would fail too
		}
		verified = verified || shown.Verified
		// A wildcard reserves nothing by itself. The hosts below it that clients use are known from elsewhere, and
		// other hosts may be nodes.
		names := slices.DeleteFunc(slices.Clone(shown.Certificate.DNSNames), func(name string) bool {
			return strings.Contains(name, "*")
		})
		sans := san.Of(names, shown.Certificate.IPAddresses)
		if more := len(sans) - maxServerNames; more > 0 {
			server.err = fmt.Errorf("the certificate has %d more names than can be reserved", more)
			sans = sans[:maxServerNames]
		}
		for _, value := range sans {
			server.shown[value] = a.clock.Now()
		}
	}
	return server, verified
}

// serverList is the ConfigMap cluster-info, reduced to the hosts of its servers.
type serverList struct {
	metav1.ObjectMeta
	servers []san.SAN
}

// maxInfo bounds the kubeconfig in cluster-info: kubeadm's is 2 KiB.
const maxInfo = 64 << 10

// readServers returns the hosts of the servers in cluster-info.
func readServers(obj runtime.Object) *serverList {
	info := obj.(*corev1.ConfigMap)
	list := &serverList{ObjectMeta: metav1.ObjectMeta{
		Namespace: info.Namespace, Name: info.Name, UID: info.UID, ResourceVersion: info.ResourceVersion,
	}}
	text := info.Data[bootstrapapi.KubeConfigKey]
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
