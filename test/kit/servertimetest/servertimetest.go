// Package servertimetest provides a Clock that follows an API server whose clock a test sets. It starts a server on loopback.
package servertimetest

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Measured returns a Clock that knows the time of an API server, whose clock is so far ahead of the machine's. It asks again after a
// minute, and when its Fresh is called. set sets the API server's clock.
func Measured(t *testing.T, ahead time.Duration) (measured *servertime.Clock, set func(ahead time.Duration)) {
	t.Helper()
	var by atomic.Int64
	by.Store(int64(ahead))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", clock.RealClock{}.Now().Add(time.Duration(by.Load())).UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(server.Close)
	measured, err := servertime.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := measured.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	return measured, func(ahead time.Duration) { by.Store(int64(ahead)) }
}
