// Package servertimetest provides a Clock that follows an API server whose clock a test sets. It starts a server on loopback.
package servertimetest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

var stored atomic.Int64

// NewVersion returns the resourceVersion of a request that the API server stores now.
func NewVersion() string { return strconv.FormatInt(stored.Add(1), 10) }

// Measured returns a Clock that has measured the time of an API server, and knows it. It does not measure again by itself. set sets
// that API server's clock ahead of the machine's.
func Measured(t *testing.T) (measured *servertime.Clock, set func(ahead time.Duration)) {
	t.Helper()
	var ahead atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", clock.RealClock{}.Now().Add(time.Duration(ahead.Load())).UTC().Format(http.TimeFormat))
		_, _ = fmt.Fprintf(w, `{"metadata": {"resourceVersion": "%d"}}`, stored.Load())
	}))
	t.Cleanup(server.Close)
	measured, err := servertime.New(&rest.Config{Host: server.URL}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = measured.Start(t.Context()) }() // it measures again after a minute
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		_, err := measured.Skew()
		return err == nil, nil
	})
	if err != nil {
		t.Fatal("the time of the server is not known")
	}
	return measured, func(by time.Duration) { ahead.Store(int64(by)) }
}
