// Package faults provides a proxy that injects faults between a client and a real API server.
//
//	proxy, err := faults.Start(cluster.Config, 1,
//		faults.Rule{Verbs: faults.Writes, Share: 0.15, Do: faults.Answer(500)},
//		faults.Rule{Verbs: faults.Writes, Share: 0.15, Do: faults.Answer(500).Landed()},
//		faults.Rule{Share: 0.05, Do: faults.Answer(429).RetryAfter(time.Second)},
//		faults.Rule{Verbs: faults.Watch, Do: faults.Cut(3 * time.Second)},
//	)
//	defer proxy.Stop()
//	mgr, err := manager.New(proxy.Config, …)
//
// The schedule follows from the seed. The fate of a request is a hash of the seed, its verb, its path, and the number
// of earlier requests with that verb and path. So it does not depend on the order in which requests for different
// objects arrive. Use fixed object names if a schedule must repeat.
package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// Proxy is a running proxy. Its rules can be changed at any time.
type Proxy struct {
	// Config reaches the API server through the proxy.
	Config *rest.Config

	address     string
	certificate tls.Certificate
	backend     backend
	infos       request.RequestInfoFactory
	seed        uint64

	mu       sync.Mutex
	server   *http.Server // nil while it is down
	end      func()       // ends hanging requests
	rules    []Rule
	watches  context.Context // ends together with the rules under which the watches began
	endRules func()
	matched  []int          // the requests that each rule matched
	applied  []int          // the times that each rule was applied
	attempts map[string]int // the requests of each verb and path
	calls    []*Call
}

// Call is one request that reached the proxy.
type Call struct {
	Verb, Resource, Name, Path string
	// Start is when it arrived.
	Start time.Time
	// Fault is the String of the Action that applied: "", "Answer 500 landed", "Hang", …
	Fault string
	// Status is the status code that the client got, or 0 if it got none or not the whole answer. It is 0 until the call
	// has Ended.
	Status int
	Ended  bool
}

// Start starts a proxy in front of the API server of upstream. It presents upstream's client certificate to the API
// server, unless a request has its own token. Call Stop at the end.
func Start(upstream *rest.Config, seed uint64, rules ...Rule) (*Proxy, error) {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the proxy: %w", err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load the proxy's certificate: %w", err)
	}
	address, err := cluster.FreeAddress()
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		address:     address,
		certificate: certificate,
		seed:        seed,
		infos: request.RequestInfoFactory{
			APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
		},
	}
	if p.backend, err = newBackend(upstream); err != nil {
		return nil, err
	}
	p.Use(rules...)
	if err := p.Up(); err != nil {
		return nil, err
	}
	p.Config = rest.AnonymousClientConfig(upstream)
	p.Config.Host, p.Config.BearerToken = "https://"+p.address, upstream.BearerToken
	p.Config.TLSClientConfig = rest.TLSClientConfig{CAData: certPEM}
	return p, nil
}

// Use replaces all rules and restarts their schedule. It ends all watches, so that the new rules apply to them too.
// Other requests in flight keep their fate.
func (p *Proxy) Use(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endRules != nil {
		p.endRules()
	}
	p.watches, p.endRules = context.WithCancel(context.Background())
	p.rules = slices.Clone(rules)
	p.matched, p.applied, p.attempts = make([]int, len(rules)), make([]int, len(rules)), map[string]int{}
}

// Calls returns all requests so far.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := make([]Call, len(p.calls))
	for i, call := range p.calls {
		calls[i] = *call
	}
	return calls
}

// Applied returns how often each rule of the last Use was applied.
func (p *Proxy) Applied() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.applied)
}

// Up listens on the same address again after Down.
func (p *Proxy) Up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	p.server = &http.Server{
		Handler:     p,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{p.certificate}, MinVersion: tls.VersionTLS12},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          quiet,
	}
	go func(server *http.Server) { _ = server.ServeTLS(listener, "", "") }(p.server) // ends with Down
	return nil
}

// Down closes all connections and refuses new ones, like a stopped API server.
func (p *Proxy) Down() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	p.end()
	err := p.server.Close()
	p.server = nil
	return err
}

// Stop ends the proxy.
func (p *Proxy) Stop() error {
	p.backend.close()
	return p.Down()
}

// ServeHTTP handles one request as the rules say.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := &Call{Path: r.URL.Path, Start: time.Now()}
	if info, err := p.infos.NewRequestInfo(r); err == nil {
		call.Verb, call.Resource, call.Name = info.Verb, info.Resource, info.Name
		if info.Subresource != "" {
			call.Resource += "/" + info.Subresource
		}
	}
	action, shift, watches := p.decide(call)
	if call.Verb == "watch" {
		ctx, end := context.WithCancel(r.Context())
		defer end()
		defer context.AfterFunc(watches, end)()
		r = r.WithContext(ctx)
	}
	if shift != 0 {
		w = &shifted{ResponseWriter: w, by: shift}
	}
	status := 0
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		call.Status, call.Ended = status, true
	}()
	answer := &statusWriter{ResponseWriter: w}
	p.backend.serve(action, call.Verb == "watch", answer, r) // panics if it gives no whole answer
	status = answer.status
}

// decide records call, and returns what happens to it and how far the Date of its response is shifted. It also
// returns the context that ends with the rules.
func (p *Proxy) decide(call *Call) (action Action, shift time.Duration, watches context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := call.Verb + " " + call.Path
	p.attempts[key]++
	draw := p.draw(fmt.Sprint(key, " ", p.attempts[key]))
	for i := range p.rules {
		rule := &p.rules[i]
		if !rule.matches(call) || !p.due(i) {
			continue
		}
		switch hit := rule.Share == 0 || draw < rule.Share; {
		case rule.Do.kind == dated && hit:
			shift += rule.Do.after
			p.applied[i]++
		case rule.Do.kind == dated || action.kind != forwarded:
		case hit:
			action = rule.Do
			p.applied[i]++
		default:
			draw -= rule.Share // the next rule has the next share
		}
	}
	call.Fault = action.String()
	p.calls = append(p.calls, call)
	return action, shift, p.watches
}

// due counts a request that matches rule i, and reports whether the rule is past its Skip and within its Times.
func (p *Proxy) due(i int) bool {
	p.matched[i]++
	rule := &p.rules[i]
	return p.matched[i] > rule.Skip && (rule.Times == 0 || p.applied[i] < rule.Times)
}

// draw returns a number from 0 to 1 that depends only on the seed and key.
func (p *Proxy) draw(key string) float64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key))
	return rand.New(rand.NewPCG(p.seed, hash.Sum64())).Float64()
}

// newForward returns the reverse proxy to target.
func newForward(target *url.URL, transport http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      quiet,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
		},
		// If the API server does not answer a request, abort it, as without a proxy.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}
