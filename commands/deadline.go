package commands

import (
	"context"
	"io"
	"net/http"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
)

// bounded is a transport that ends each call but a watch after call.ListTimeout, whose answer has been read by then.
type bounded struct{ next http.RoundTripper }

func newBounded(next http.RoundTripper) http.RoundTripper { return bounded{next} }

// WrappedRoundTripper returns the transport inside. client-go closes its idle connections.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Query().Get("watch") == "true" {
		return b.next.RoundTrip(request)
	}
	ctx, cancel := context.WithTimeout(request.Context(), call.ListTimeout)
	response, err := b.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		return response, err
	}
	response.Body = boundedBody{response.Body, cancel}
	return response, nil
}

// boundedBody ends the timeout of a call when its answer has been read.
type boundedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b boundedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
