// Package faults provides a proxy that injects faults between a client and a real API server.
//
//	proxy, err := faults.Start(cluster.Config, 1,
//		faults.Rule{Verbs: faults.Writes, Share: 0.15, Do: faults.Answer(500)},
//		faults.Rule{Verbs: faults.Writes, Share: 0.15, Do: faults.Answer(500).Landed()},
//		faults.Rule{Share: 0.05, Do: faults.AnswerRetryAfter(429, time.Second)},
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
	"encoding/pem"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
)

// landTimeout bounds the duration of a request whose response is dropped.
const landTimeout = 30 * time.Second

// quiet discards net/http's log messages about faults.
var quiet = log.New(io.Discard, "", 0)

// Proxy is a running proxy. Its rules can be changed at any time.
type Proxy struct {
	// Config reaches the API server through the proxy.
	Config *rest.Config

	server  *httptest.Server
	end     func() // ends hanging requests
	forward *httputil.ReverseProxy
	// own sends the requests without a token to the API server, and token the others.
	own, token *http.Transport
	infos      request.RequestInfoFactory
	seed       uint64

	mu       sync.Mutex
	rules    []Rule
	watches  context.Context // ends together with the rules under which the watches began
	endRules func()
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
func Start(upstream *rest.Config, seed uint64, rules ...Rule) (p *Proxy, err error) {
	p = &Proxy{seed: seed, infos: request.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	}}
	if err := p.connect(upstream); err != nil {
		return nil, err
	}
	p.Use(rules...)
	ctx, end := context.WithCancel(context.Background())
	p.end, p.server = end, httptest.NewUnstartedServer(p)
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = quiet
	p.server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	p.server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	p.server.StartTLS()
	p.Config = rest.AnonymousClientConfig(upstream)
	p.Config.Host, p.Config.BearerToken = p.server.URL, upstream.BearerToken
	p.Config.TLSClientConfig = rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})}
	return p, nil
}

// connect prepares the connections to the API server. They are not those of client-go, which other clients in this process share.
func (p *Proxy) connect(upstream *rest.Config) error {
	target, _, err := rest.DefaultServerUrlFor(upstream)
	own, ownErr := rest.TLSConfigFor(upstream)
	token, tokenErr := rest.TLSConfigFor(rest.AnonymousClientConfig(upstream))
	if err := errors.Join(err, ownErr, tokenErr); err != nil {
		return fmt.Errorf("read the configuration of the API server: %w", err)
	}
	p.own = &http.Transport{TLSClientConfig: own, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100}
	p.token = &http.Transport{TLSClientConfig: token, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100}
	p.forward = &httputil.ReverseProxy{
		Transport: p, FlushInterval: -1, ErrorLog: quiet,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
			r.Out.Host = target.Host
		},
		// If the API server does not answer a request, abort it, as without a proxy.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return nil
}

// RoundTrip sends r to the API server.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") != "" {
		return p.token.RoundTrip(r)
	}
	return p.own.RoundTrip(r)
}

// Stop ends the proxy.
func (p *Proxy) Stop() error {
	p.end()
	p.server.CloseClientConnections()
	p.server.Close()
	p.own.CloseIdleConnections()
	p.token.CloseIdleConnections()
	return nil
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
	p.applied, p.attempts = make([]int, len(rules)), map[string]int{}
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
	status := 0
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		call.Status, call.Ended = status, true
	}()
	answer := &writer{ResponseWriter: w, shift: shift}
	if action.landed && call.Verb != "watch" {
		p.land(r)
	}
	if action.do == nil {
		p.forward.ServeHTTP(answer, r)
	} else {
		action.do(p.forward, answer, r) // panics if it gives no whole answer
	}
	status = answer.status
}

// land sends r to the API server, and drops the response. The client can't stop it half-way.
func (p *Proxy) land(r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), landTimeout)
	defer cancel()
	defer func() { _ = recover() }() // if the API server aborts the response, the fault is the same
	p.forward.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
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
		if !rule.matches(call) || rule.Times > 0 && p.applied[i] >= rule.Times {
			continue
		}
		switch hit := rule.Share == 0 || draw < rule.Share; {
		case rule.Do.shift != 0 && hit:
			shift += rule.Do.shift
			p.applied[i]++
		case rule.Do.shift != 0 || action.do != nil:
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

// draw returns a number from 0 to 1 that depends only on the seed and key.
func (p *Proxy) draw(key string) float64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key))
	return rand.New(rand.NewPCG(p.seed, hash.Sum64())).Float64()
}

// writer is a ResponseWriter that remembers the status, and shifts the Date header.
type writer struct {
	http.ResponseWriter
	shift  time.Duration
	status int
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader remembers code. It shifts the API server's Date, or this machine's time if there is none.
func (w *writer) WriteHeader(code int) {
	if w.shift != 0 && w.status == 0 {
		date, err := http.ParseTime(w.Header().Get("Date"))
		if err != nil {
			date = time.Now()
		}
		w.Header().Set("Date", date.Add(w.shift).UTC().Format(http.TimeFormat))
	}
	w.status = code
	w.ResponseWriter.WriteHeader(code)
}
