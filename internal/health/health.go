// Package health serves the probes of a manager. Unlike controller-runtime's server, it says why a check failed.
package health

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// Off is the address that disables the server.
const Off = "0"

// longestReason bounds the text of a reason in a response.
const longestReason = 512

// served is a manager whose checks are answered by this package's server.
type served struct {
	manager.Manager
	live, ready *probe
}

// Serve returns mgr with a server of /healthz and /readyz at address. The server answers for the checks that are
// added to the returned manager. mgr itself must have no address for probes.
func Serve(mgr manager.Manager, address string) (manager.Manager, error) {
	if address == Off || address == "" {
		return mgr, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	log := mgr.GetLogger().WithName("health")
	s := &served{Manager: mgr, live: newProbe("healthz", log), ready: newProbe("readyz", log)}
	mux := http.NewServeMux()
	for _, each := range []*probe{s.live, s.ready} {
		mux.Handle("/"+each.name, each)
		mux.Handle("/"+each.name+"/", each)
	}
	server := &http.Server{Handler: mux, MaxHeaderBytes: 1 << 20, IdleTimeout: 90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second}
	if err := mgr.Add(&manager.Server{Name: "health probe", Server: server, Listener: listener}); err != nil {
		return nil, fmt.Errorf("add the server of probes: %w", err)
	}
	return s, nil
}

// AddHealthzCheck adds a check of liveness.
func (s *served) AddHealthzCheck(name string, check healthz.Checker) error {
	return s.live.add(name, check)
}

// AddReadyzCheck adds a check of readiness.
func (s *served) AddReadyzCheck(name string, check healthz.Checker) error {
	return s.ready.add(name, check)
}

// probe answers for a set of checks: for all at /name, and for a single check at /name/check.
type probe struct {
	name string
	log  logr.Logger

	mu      sync.Mutex
	checks  map[string]healthz.Checker
	failing string // the names of the failed checks that were last logged
}

func newProbe(name string, log logr.Logger) *probe {
	return &probe{name: name, log: log, checks: map[string]healthz.Checker{}}
}

func (p *probe) add(name string, check healthz.Checker) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.checks[name] != nil {
		return fmt.Errorf("two checks have the name %q", name)
	}
	p.checks[name] = check
	return nil
}

// ServeHTTP lists the checks that fail, with the reason, before those that pass. "verbose" and "exclude" are
// parameters as in Kubernetes.
func (p *probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	checks, found := p.chosen(r)
	if !found {
		http.NotFound(w, r)
		return
	}
	var failed, passed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if err := checks[name](r); err != nil {
			_, _ = fmt.Fprintf(&failed, "[-]%s failed: %s\n", name, shortened(err))
		} else {
			_, _ = fmt.Fprintf(&passed, "[+]%s ok\n", name)
		}
	}
	if r.URL.Path == "/"+p.name && !r.URL.Query().Has("exclude") {
		p.note(failed.String())
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case failed.Len() > 0:
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "%s%s%s check failed\n", &failed, &passed, p.name)
	case r.URL.Query().Has("verbose"):
		_, _ = fmt.Fprintf(w, "%s%s check passed\n", &passed, p.name)
	default:
		_, _ = fmt.Fprint(w, "ok")
	}
}

// chosen returns the checks that r selects: a single check, or all but the excluded checks.
func (p *probe) chosen(r *http.Request) (map[string]healthz.Checker, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := strings.Trim(strings.TrimPrefix(path.Clean(r.URL.Path), "/"+p.name), "/"); one != "" {
		return map[string]healthz.Checker{one: p.checks[one]}, p.checks[one] != nil
	}
	checks := maps.Clone(p.checks)
	for _, name := range r.URL.Query()["exclude"] {
		delete(checks, name)
	}
	return checks, true
}

// note logs the failed checks when they change, because a kubelet's Event has the status code and not the response.
func (p *probe) note(failed string) {
	names := failing(failed)
	p.mu.Lock()
	defer p.mu.Unlock()
	if names == p.failing {
		return
	}
	p.failing = names
	if failed == "" {
		p.log.Info("All checks pass again", "probe", p.name)
		return
	}
	p.log.Info("A check fails", "probe", p.name, "failed", strings.Split(strings.TrimSpace(failed), "\n"))
}

// failing returns the names of the checks in failed. Reasons are left out, because they may hold times.
func failing(failed string) string {
	var names []string
	for line := range strings.Lines(failed) {
		name, _, _ := strings.Cut(line, " failed: ")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// shortened returns one line of printable ASCII.
func shortened(err error) string {
	text := ascii.Quote(err.Error())
	if len(text) > longestReason {
		text = text[:longestReason] + "..."
	}
	return text
}
