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
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
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

var unreadAPIServers = metric.Gauge("csr_approver_api_servers_unread",
	"API servers whose serving certificate could not be read at the last attempt. "+
		"Names that only they hold are not reserved.").WithLabelValues()

// passed measures how long certificates are known.
var passed clock.RealClock

// APIServers knows the names and addresses in the serving certificates of the API servers, and the host in the
// kubeconfig. It makes one TLS handshake an hour with each endpoint of the Service kubernetes, and with the server of the
// kubeconfig. A certificate is trusted only to reserve the names in it.
type APIServers struct {
	// Changed is called once the first certificate has been verified.
	Changed func()

	config    *rest.Config
	endpoints func() ([]string, error) // host:port of each
	read      func(context.Context, *rest.Config) (probe.Shown, error)
	log       logr.Logger
	wake      chan struct{}
	servers   map[string]*apiServer // by host:port; only the goroutine of Start uses it

	mu      sync.RWMutex
	names   map[san.SAN]string
	err     error // why no certificate has been verified yet
	started time.Time
}

// apiServer is an endpoint, or the server of the kubeconfig.
type apiServer struct {
	names  []san.SAN // in the last certificate that was read
	read   time.Time // when that was; zero if another attempt is needed
	listed time.Time // when it was last an endpoint
	logged bool      // reports that the log has the reason why it can't be read
}

// NewAPIServers returns an APIServers for config and the endpoints of source. Start keeps it up to date.
func NewAPIServers(config *rest.Config, source *Source, log logr.Logger) *APIServers {
	a := &APIServers{
		Changed: func() {}, config: config, endpoints: source.apiServers, read: probe.ServingCertificate, log: log,
		wake: make(chan struct{}, 1), servers: map[string]*apiServer{}, err: informer.ErrNotRead,
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
	a.mu.Lock()
	a.started = passed.Now()
	a.mu.Unlock()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(a.round(ctx)):
		case <-a.wake:
		}
	}
	return nil
}

// Use returns how the API servers use value, such as "in the kubeconfig", or an empty text if no API server has value. An error
// says why their names are not known yet; later failures change nothing. Set own if value is the name of the requesting Node,
// which may be that of an API server too. Ten seconds after the start no such name waits any more, because an API server may
// never show a certificate that can be verified.
func (a *APIServers) Use(value san.SAN, own bool) (string, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	waited := !a.started.IsZero() && passed.Since(a.started) >= ownNamesWait
	if a.err != nil && (!own || !waited) {
		return "", a.err
	}
	return a.names[value], nil
}

// kubeconfigHost is the key in servers of the server in the kubeconfig.
const kubeconfigHost = "the kubeconfig's server"

// round reads each certificate that was not read within the last hour. It returns the pause until the next round.
func (a *APIServers) round(ctx context.Context) time.Duration {
	endpoints, err := a.endpoints()
	if err != nil && !errors.Is(err, probe.ErrNoEndpoints) {
		return a.publish(err)
	}
	due := a.list(endpoints[:min(len(endpoints), maxAPIServers)])
	type answer struct {
		probe.Shown
		err error
	}
	answers := make([]answer, len(due))
	var reading sync.WaitGroup
	for i, target := range due {
		reading.Go(func() { answers[i].Shown, answers[i].err = a.read(ctx, target.Cluster) })
	}
	reading.Wait()
	if ctx.Err() != nil {
		return retryFirst
	}
	unread, verified := 0, false
	cause := errors.New("the certificates that were read have another CA or other names")
	for i, target := range due {
		server, answer := a.servers[target.Name], answers[i]
		if answer.err == nil {
			// A wildcard reserves nothing by itself, because hosts below it may be nodes.
			names := slices.DeleteFunc(slices.Clone(answer.Certificate.DNSNames), func(name string) bool { return strings.Contains(name, "*") })
			sans := san.Of(names, answer.Certificate.IPAddresses)
			server.names, server.read, server.logged = sans[:min(len(sans), maxServerNames)], passed.Now(), false
			verified = verified || answer.Verified
			continue
		}
		unread++ // the names of the last certificate stay
		server.read, cause = time.Time{}, fmt.Errorf("%s: %w", target.Name, answer.err)
		if !server.logged {
			server.logged = true
			a.log.Error(answer.err, "Can't read the serving certificate of an API server: names that only it has are not "+
				"reserved", "apiServer", target.Name)
		}
	}
	unreadAPIServers.Set(float64(unread))
	if verified {
		return a.publish(nil)
	}
	return a.publish(fmt.Errorf("no API server has presented a serving certificate that the cluster's CA issued: %w", cause))
}

// list returns the API servers whose certificates are to be read. An API server that is no endpoint any more may restart:
// its names stay for an hour, and it is read again when it is back.
func (a *APIServers) list(endpoints []string) (due []probe.Target) {
	now, listed := passed.Now(), map[string]bool{}
	for _, target := range append(probe.Direct(a.config, "", endpoints), probe.Target{Name: kubeconfigHost, Cluster: a.config}) {
		if a.servers[target.Name] == nil {
			a.servers[target.Name] = &apiServer{}
		}
		server := a.servers[target.Name]
		server.listed, listed[target.Name] = now, true
		if now.Sub(server.read) >= readEvery {
			due = append(due, target)
		}
	}
	maps.DeleteFunc(a.servers, func(name string, server *apiServer) bool {
		if !listed[name] {
			server.read = time.Time{}
		}
		return now.Sub(server.listed) > readEvery
	})
	return due
}

// publish stores the names of the API servers. missing is why they are not known yet: it counts until they are known for
// the first time. publish returns the pause until the next round.
func (a *APIServers) publish(missing error) time.Duration {
	names := a.inKubeconfig()
	for _, name := range slices.Sorted(maps.Keys(a.servers)) { // the same texts for any order
		for _, value := range a.servers[name].names {
			if names[value] == "" {
				names[value] = "in the serving certificate of " + name
			}
		}
	}
	a.mu.Lock()
	a.names = names
	first := a.err != nil && missing == nil
	if a.err != nil {
		a.err = missing
	}
	ready := a.err == nil
	a.mu.Unlock()
	switch {
	case !ready:
		return retryFirst
	case first:
		a.Changed()
	}
	return retryOther
}

// inKubeconfig returns the names of the server in the kubeconfig. The wildcard of a certificate may cover them.
func (a *APIServers) inKubeconfig() map[san.SAN]string {
	all := map[san.SAN]string{}
	at, _, err := rest.DefaultServerUrlFor(a.config)
	if err != nil {
		at = &url.URL{}
	}
	for _, name := range inventory.ParseSANs(at.Hostname(), a.config.ServerName) {
		all[name] = "in the kubeconfig"
	}
	return all
}
