package servertime

import (
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
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf("the answer has no valid Date header: configure the proxy in front of the API server to "+
			"forward that header: %w", err)
	}
	return date, nil
}

// New returns a Clock that can ask the API servers of cfg. It knows the time of other answers too if the caller calls
// cfg.Wrap(clock.Wrap) before it makes clients. The connection for questions is its own: if the connections of the
// controllers hang, their requests must not delay a question.
func New(cfg *rest.Config) (*Clock, error) {
	c := &Clock{}
	own := rest.CopyConfig(cfg)
	own.Wrap(c.Wrap)
	own.Timeout = askTimeout
	own.NextProtos = []string{"http/1.1"} // a request that takes too long closes its connection
	if own.Dial == nil && own.Transport == nil {
		own.Dial = (&net.Dialer{}).DialContext // client-go does not share a transport that has its own dialer
	}
	used, err := rest.HTTPClientFor(own)
	base, _, urlErr := rest.DefaultServerUrlFor(own)
	if err := errors.Join(err, urlErr); err != nil {
		return nil, fmt.Errorf("ask the API servers for their time: %w", err)
	}
	used.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	address := base.JoinPath("version").String()
	c.ask = func() error {
		response, err := used.Get(address)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection can be used again
		_ = response.Body.Close()
		if _, err := dateOf(response); err != nil {
			return fmt.Errorf("GET %s: %w", address, err)
		}
		return nil
	}
	return c, nil
}
