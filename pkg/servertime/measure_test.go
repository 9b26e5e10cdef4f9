package servertime

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestMeasureFollowsTheDateHeader(t *testing.T) {
	for offset, want := range map[time.Duration]time.Duration{0: 0, 3 * time.Hour: 3 * time.Hour, -3 * time.Hour: -3 * time.Hour} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
		}))
		defer server.Close()
		shown, err := Measure(t.Context(), &rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Until(shown.Now()); (got-want).Abs() > 2*time.Second || want == 0 && got > 0 {
			t.Errorf("%s ahead, want %s", got, want)
		}
	}
}

func TestMeasureWithoutADateIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil }))
	defer server.Close()
	if _, err := Measure(t.Context(), &rest.Config{Host: server.URL}); err == nil {
		t.Error("no error")
	}
}
