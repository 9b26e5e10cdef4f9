package node

import (
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
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Intervals and limits of reading the certificates of API servers.
const (
	readEvery      = time.Hour
	retryFirst     = 2 * time.Second // while no certificate has been verified
	retryOther     = time.Minute     // for an API server that could not be read
	ownNamesWait   = 10 * time.Second
	maxAPIServers  = 32
	maxServerNames = 1000 // in one certificate
)

var unreadAPIServers = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "csr_approver_api_servers_unread",
	Help: "API servers whose serving certificate could not be read at the last attempt: " +
		"names that only they hold are not reserved.",
})

func init() { metrics.Registry.MustRegister(unreadAPIServers) }

// APIServers knows the names and addresses in the serving certificates of the API servers, and the host in the
// kubeconfig. It makes one TLS handshake an hour with each endpoint of the Service kubernetes, and with the server of the
// kubeconfig. A certificate is trusted only to reserve the names in it.
type APIServers struct {
	// Changed is called once the first certificate has been verified, and once own names no longer wait for that.
	Changed func()
	// Freed is called with the names and addresses that no API server has any more.
	Freed func([]san.SAN)

	config    *rest.Config
	endpoints func() ([]string, error) // host:port of each
	read      func(context.Context, *rest.Config) (probe.Shown, error)
	clock     clock.PassiveClock
	log       logr.Logger
	wake      chan struct{}
	servers   map[string]*apiServer // by host:port; only the goroutine of Start uses it

	mu     sync.RWMutex
	names  map[san.SAN]string
	err    error // why no certificate has been verified yet
	waited bool  // reports that Start has begun long ago
}

// apiServer is an endpoint, or the server of the kubeconfig.
type apiServer struct {
	config *rest.Config
	names  []san.SAN // in the last certificate that was read
	read   time.Time // when that was; zero requests another attempt
	listed time.Time // when it was last an endpoint
	// verified reports that the cluster's CA has issued that certificate for an API server.
	verified bool
	err      error // of the last attempt
	logged   bool  // reports that the log has the reason of this failure
}

// NewAPIServers returns an APIServers for config and the endpoints of source. Start keeps it up to date.
func NewAPIServers(config *rest.Config, source *Source, log logr.Logger) *APIServers {
	a := &APIServers{
		Changed: func() {}, Freed: func([]san.SAN) {}, config: config, endpoints: source.apiServers,
		read: probe.ServingCertificate, clock: clock.RealClock{}, log: log, wake: make(chan struct{}, 1), servers: map[string]*apiServer{},
		err: informer.ErrNotRead,
	}
	a.names = a.inKubeconfig() // known before the first handshake, as endpoints are
	source.endpointsChanged = func() {
		select {
		case a.wake <- struct{}{}:
		default: // a round is already requested
		}
	}
	return a
}

// NeedLeaderElection returns false, so that a standby is ready too.
func (*APIServers) NeedLeaderElection() bool { return false }

// Start reads certificates until ctx ends.
func (a *APIServers) Start(ctx context.Context) error {
	defer time.AfterFunc(ownNamesWait, a.stopWaiting).Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(a.round(ctx)):
		case <-a.wake:
		}
	}
	return nil
}

// stopWaiting lets the own names of nodes pass.
func (a *APIServers) stopWaiting() {
	a.mu.Lock()
	waits := a.err != nil
	a.waited = true
	a.mu.Unlock()
	if waits {
		a.Changed()
	}
}

// Has returns how the API servers use value, such as "in the kubeconfig". It returns an empty text if no API server has
// value.
func (a *APIServers) Has(value san.SAN) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.names[value]
}

// ReadyForOwnNames returns why even a node's own name must wait, which may be the name of an API server, or nil. Ten seconds
// after the start no such name waits any more, because an API server may never show a certificate that can be verified.
func (a *APIServers) ReadyForOwnNames() error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.waited {
		return nil
	}
	return a.err
}

// Ready returns why the names of the API servers are not known yet, or nil. Later failures change nothing.
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

// round reads each certificate that was not read within the last hour. It returns the pause until the next round.
func (a *APIServers) round(ctx context.Context) time.Duration {
	endpoints, err := a.endpoints()
	if err != nil && !errors.Is(err, probe.ErrNoEndpoints) {
		_, _ = a.wait(err)
		return retryFirst
	}
	a.list(endpoints[:min(len(endpoints), maxAPIServers)])
	var reading sync.WaitGroup
	for _, server := range a.servers {
		if server.config != nil && a.clock.Since(server.read) >= readEvery {
			reading.Go(func() { a.readOne(ctx, server) })
		}
	}
	reading.Wait()
	if ctx.Err() != nil {
		return retryFirst
	}
	if a.publish(a.failure()) != nil {
		return retryFirst
	}
	return retryOther
}

// list sets which API servers exist. An API server that is no endpoint any more may restart: its names stay for an hour,
// and it is read again when it is back.
func (a *APIServers) list(endpoints []string) {
	now := a.clock.Now()
	for _, server := range a.servers {
		server.config = nil
	}
	for _, target := range append(probe.Direct(a.config, "", endpoints), probe.Target{Name: kubeconfigHost, Cluster: a.config}) {
		if a.servers[target.Name] == nil {
			a.servers[target.Name] = &apiServer{}
		}
		a.servers[target.Name].config, a.servers[target.Name].listed = target.Cluster, now
	}
	maps.DeleteFunc(a.servers, func(_ string, server *apiServer) bool {
		if server.config == nil {
			server.read, server.err = time.Time{}, nil
		}
		return now.Sub(server.listed) > readEvery
	})
}

// readOne reads the certificate that one API server presents. If that fails, the names of the last one stay.
func (a *APIServers) readOne(ctx context.Context, server *apiServer) {
	shown, err := a.read(ctx, server.config)
	if err != nil {
		server.read, server.err = time.Time{}, err
		return
	}
	// A wildcard reserves nothing by itself, because hosts below it may be nodes.
	names := slices.DeleteFunc(slices.Clone(shown.Certificate.DNSNames), func(name string) bool {
		return strings.Contains(name, "*")
	})
	sans := san.Of(names, shown.Certificate.IPAddresses)
	server.names, server.verified = sans[:min(len(sans), maxServerNames)], shown.Verified
	server.read, server.err, server.logged = a.clock.Now(), nil, false
}

// failure returns why no certificate could be verified, or nil. It logs each API server that can't be read, once.
func (a *APIServers) failure() error {
	unread, verified := 0, false
	cause := errors.New("the certificates that were read have another CA or other names")
	for _, name := range slices.Sorted(maps.Keys(a.servers)) {
		server := a.servers[name]
		verified = verified || server.verified
		if server.err == nil {
			continue
		}
		unread++
		cause = fmt.Errorf("%s: %w", name, server.err)
		if !server.logged {
			server.logged = true
			a.log.Error(server.err, "Can't read the serving certificate of an API server: names that only it has are not "+
				"reserved", "apiServer", name)
		}
	}
	unreadAPIServers.Set(float64(unread))
	if verified {
		return nil
	}
	return fmt.Errorf("no API server has presented a serving certificate that the cluster's CA issued: %w", cause)
}

// publish stores the names of the API servers. failed is the reason why none was verified: it counts until the first one
// is. publish returns why the names are not known yet, or nil.
func (a *APIServers) publish(failed error) error {
	names := a.inKubeconfig()
	for _, name := range slices.Sorted(maps.Keys(a.servers)) { // the same texts for any order
		for _, value := range a.servers[name].names {
			if names[value] == "" {
				names[value] = "in the serving certificate of " + name
			}
		}
	}
	a.mu.Lock()
	before := a.names
	a.names = names
	a.mu.Unlock()
	first, err := a.wait(failed)
	if first {
		a.Changed()
	}
	if gone := without(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(names))); len(gone) > 0 {
		a.Freed(gone)
	}
	return err
}

// wait stores why the names are not known yet, unless they have been known before. It returns what Ready returns from now
// on, and whether this is the first time that nothing is missing.
func (a *APIServers) wait(missing error) (first bool, _ error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		return false, nil
	}
	a.err = missing
	return missing == nil, missing
}

// inKubeconfig returns the names of the server in the kubeconfig. The wildcard of a certificate may cover them.
func (a *APIServers) inKubeconfig() map[san.SAN]string {
	all := map[san.SAN]string{}
	at, _, err := rest.DefaultServerUrlFor(a.config)
	if err != nil {
		at = &url.URL{}
	}
	for _, name := range []string{at.Hostname(), a.config.ServerName} {
		if name != "" {
			all[parseSloppy(name)] = "in the kubeconfig"
		}
	}
	return all
}
