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
	"k8s.io/utils/clock"
)

// askTimeout bounds one question. A slow answer only makes ages too low.
const askTimeout = 5 * time.Second

// dateOf returns a function that asks an API server of cfg for its time, each time by a new connection.
func dateOf(cfg *rest.Config) (func(context.Context) (time.Time, error), error) {
	own := rest.CopyConfig(cfg)
	own.NextProtos = []string{"http/1.1"} // one request for each connection
	if own.Dial == nil && own.Transport == nil {
		own.Dial = (&net.Dialer{}).DialContext // client-go shares no transport that has a dialer of its own
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
	return func(ctx context.Context) (time.Time, error) { return date(ctx, used, address) }, nil
}

func date(ctx context.Context, used *http.Client, address string) (time.Time, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return time.Time{}, err
	}
	request.Close = true
	response, err := used.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	_ = response.Body.Close()
	if response.StatusCode >= http.StatusInternalServerError { // perhaps by what stands before the API server
		return time.Time{}, fmt.Errorf("GET %s: status %s", address, response.Status)
	}
	text := response.Header.Get("Date")
	if text == "" {
		return time.Time{}, errors.New(
			"the answer of the API server has no Date header: let what stands before it pass that header on")
	}
	shown, err := http.ParseTime(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse Date header: %w", err)
	}
	return shown, nil
}

// Shifted is the clock of the machine, moved by what an API server's clock differs from it.
type Shifted struct {
	clock.RealClock
	offset time.Duration
}

// Measure asks an API server of cfg for its time, once, for a command that soon ends.
func Measure(ctx context.Context, cfg *rest.Config) (Shifted, error) {
	ask, err := dateOf(cfg)
	if err != nil {
		return Shifted{}, fmt.Errorf("measure the time of the API server: %w", err)
	}
	own := clock.RealClock{}
	local := own.Now()
	shown, err := ask(ctx)
	if err != nil {
		return Shifted{}, err
	}
	// A Date header has whole seconds. What differs by less than the answer took, and a second, may not differ at all.
	offset := shown.Sub(local)
	if took := own.Since(local); offset > -time.Second && offset < took {
		offset = 0
	}
	return Shifted{offset: offset}, nil
}

// Now returns the time of the API server.
func (s Shifted) Now() time.Time { return s.RealClock.Now().Add(s.offset) }

// Since returns the age of what an API server stamped with t.
func (s Shifted) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
