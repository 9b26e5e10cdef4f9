package kit

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
)

// Wire is the connection of a loop to the API server. It can be cut, and counts the refused reads of the Secret.
type Wire struct {
	Mu      sync.Mutex
	open    []net.Conn
	Refused int
}

// Dial is a rest.Config's Dial.
func (w *Wire) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		w.open = append(w.open, conn)
	}
	return conn, err
}

// Cut closes all connections, and so all watches.
func (w *Wire) Cut() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, conn := range w.open {
		_ = conn.Close()
	}
	w.open = nil
}

// Count is a rest.Config's WrapTransport that counts.
func (w *Wire) Count(next http.RoundTripper) http.RoundTripper {
	return RoundTrip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil && response.StatusCode == http.StatusForbidden && strings.Contains(request.URL.Path, "/secrets") {
			w.Mu.Lock()
			defer w.Mu.Unlock()
			w.Refused++
		}
		return response, err
	})
}

// RoundTrip is a http.RoundTripper.
type RoundTrip func(*http.Request) (*http.Response, error)

// RoundTrip calls r.
func (r RoundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
