package integration

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
)

// wire is the connection of a loop to the API server. It can be cut, and counts the refused reads of the Secret.
type wire struct {
	mu      sync.Mutex
	open    []net.Conn
	refused int
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open = append(w.open, conn)
	}
	return conn, err
}

// cut closes all connections, and so all watches.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		_ = conn.Close()
	}
	w.open = nil
}

// count is a rest.Config's WrapTransport that counts.
func (w *wire) count(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err == nil && response.StatusCode == http.StatusForbidden && strings.Contains(request.URL.Path, "/secrets") {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused++
		}
		return response, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
