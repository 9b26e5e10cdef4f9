package faults

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// landTimeout bounds the duration of a request whose response is dropped.
const landTimeout = 30 * time.Second

// quiet discards net/http's log messages about faults.
var quiet = log.New(io.Discard, "", 0)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// backend is the API server, for requests with and without a token.
type backend struct {
	own, token *http.Transport
	proxy      *httputil.ReverseProxy
}

func newBackend(upstream *rest.Config) (*backend, error) {
	target, _, err := rest.DefaultServerUrlFor(upstream)
	if err != nil {
		return nil, fmt.Errorf("parse the address of the API server: %w", err)
	}
	// New transports, because client-go's transports are shared with other clients in this process.
	var transports [2]*http.Transport
	for i, cfg := range []*rest.Config{upstream, rest.AnonymousClientConfig(upstream)} {
		settings, err := rest.TLSConfigFor(cfg)
		if err != nil {
			return nil, fmt.Errorf("read the TLS settings of the API server: %w", err)
		}
		transports[i] = &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100}
	}
	b := &backend{own: transports[0], token: transports[1]}
	b.proxy = &httputil.ReverseProxy{
		Transport:     b,
		FlushInterval: -1,
		ErrorLog:      quiet,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
			r.Out.Host = target.Host
		},
		// If the API server does not answer a request, abort it, as without a proxy.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return b, nil
}

// RoundTrip sends r to the API server.
func (b *backend) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") != "" {
		return b.token.RoundTrip(r)
	}
	return b.own.RoundTrip(r)
}

// serve applies action to r.
func (b *backend) serve(action Action, watch bool, w http.ResponseWriter, r *http.Request) {
	if action.landed && !watch { // a watch changes nothing and does not end
		b.land(r)
	}
	ctx := r.Context()
	switch action.kind {
	case answered:
		answer(action, w, r)
	case hung:
		<-ctx.Done()
		panic(http.ErrAbortHandler)
	case reset:
		panic(http.ErrAbortHandler)
	case connectionReset:
		resetConnection(ctx)
		panic(http.ErrAbortHandler)
	case cut:
		ctx, cancel := context.WithTimeout(ctx, action.after)
		defer cancel()
		b.proxy.ServeHTTP(w, r.WithContext(ctx))
	case stalled:
		b.proxy.ServeHTTP(&stalling{w, ctx}, r)
	case delayed:
		pause(ctx, action.after)
		b.proxy.ServeHTTP(w, r)
	default:
		b.proxy.ServeHTTP(w, r)
	}
}

func pause(ctx context.Context, delay time.Duration) {
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
}

// land sends r to the API server, and drops the response. The client can't stop it half-way.
func (b *backend) land(r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), landTimeout)
	defer cancel()
	defer func() { _ = recover() }() // if the API server aborts the response, the fault is the same
	b.proxy.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
}

// answer writes a Status object like an API server.
func answer(action Action, w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	seconds := int(action.retryAfter / time.Second)
	status := apierrors.NewGenericServerResponse(action.code, r.Method, schema.GroupResource{}, "", "a fault of the test", seconds, false).ErrStatus
	status.Kind, status.APIVersion = "Status", "v1"
	body, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	if seconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(action.code)
	_, _ = w.Write(body)
}

// resetConnection closes the connection of ctx with a TCP reset.
func resetConnection(ctx context.Context) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
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

// stalling is a ResponseWriter that blocks until ctx ends.
type stalling struct {
	http.ResponseWriter
	ctx context.Context
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (s *stalling) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Write blocks after the header.
func (s *stalling) Write([]byte) (int, error) {
	_ = http.NewResponseController(s.ResponseWriter).Flush() // fails if the client is gone
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}
