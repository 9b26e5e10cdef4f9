package servertime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// askTimeout bounds one question.
const askTimeout = 10 * time.Second

// Wrap returns a transport that notes the Date of every answer.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper { return &noting{c, next} }

type noting struct {
	clock *Clock
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (n *noting) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := n.clock.now()
	response, err := n.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if date, err := dateOf(response); err == nil {
		n.clock.note(date, sent)
	}
	return response, nil
}

// WrappedRoundTripper returns the transport inside. client-go closes its idle connections.
func (n *noting) WrappedRoundTripper() http.RoundTripper { return n.next }

// dateOf returns the time at which an API server answered.
func dateOf(response *http.Response) (time.Time, error) {
	if response.StatusCode >= http.StatusInternalServerError { // perhaps from a proxy in front of the API server
		return time.Time{}, fmt.Errorf("status %s", response.Status)
	}
	text := response.Header.Get("Date")
	if text == "" {
		return time.Time{}, errors.New("the answer has no Date header: configure the proxy in front of the API server to forward that header")
	}
	date, err := http.ParseTime(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse Date header: %w", err)
	}
	return date, nil
}

// question returns a function that sends a request to an API server of cfg, through wrap. Its connection is its own: if the
// connections of the controllers hang, their requests must not delay the question.
func question(cfg *rest.Config, wrap func(http.RoundTripper) http.RoundTripper) (func(context.Context) error, error) {
	own := rest.CopyConfig(cfg)
	own.Wrap(wrap)
	own.NextProtos = []string{"http/1.1"} // a request that takes too long closes its connection
	if own.Dial == nil && own.Transport == nil {
		own.Dial = (&net.Dialer{}).DialContext // client-go does not share a transport that has its own dialer
	}
	used, err := rest.HTTPClientFor(own)
	if err != nil {
		return nil, err
	}
	used.Timeout = askTimeout
	used.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base, _, err := rest.DefaultServerUrlFor(own)
	if err != nil {
		return nil, err
	}
	address := base.JoinPath("version").String()
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		response, err := used.Do(request)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection can be used again
		_ = response.Body.Close()
		if _, err := dateOf(response); err != nil {
			return fmt.Errorf("GET %s: %w", address, err)
		}
		return nil
	}, nil
}
