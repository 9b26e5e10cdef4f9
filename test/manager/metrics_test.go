package manager

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// tokenReviews returns how many TokenReviews the API server has answered.
func tokenReviews(t *testing.T) (total float64) {
	t.Helper()
	set, err := kubernetes.NewForConfig(kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := set.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("apiserver_request_total{")) && bytes.Contains(line, []byte(`resource="tokenreviews"`)) {
			fields := strings.Fields(string(line))
			value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatal(err)
			}
			total += value
		}
	}
	return total
}

// TestRandomTokensCostFewReviews checks that a client of the metrics port causes at most a few TokenReviews a second.
// A scraper whose token was reviewed before is still served.
func TestRandomTokensCostFewReviews(t *testing.T) {
	kit.Parallel(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-flood"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}
	kit.Create(t, kit.Admin(t), role)
	kit.Grant(t, "joiner", role.Name)
	p := kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", "--controllers=cleaner", "--metrics-secure")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 10}}
	scrape := func(ctx context.Context, token string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.Metrics+"/metrics", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", response.StatusCode)
		}
		return nil
	}
	kit.Eventually(t, "a scrape", func(ctx context.Context) error { return scrape(ctx, "joiner-token") })

	const seconds, clients = 2, 10
	before, begun := tokenReviews(t), time.Now()
	flood, stop := context.WithTimeout(t.Context(), seconds*time.Second)
	defer stop()
	var sent atomic.Int64
	var attackers sync.WaitGroup
	for attacker := range clients {
		attackers.Go(func() {
			for n := 0; flood.Err() == nil; n++ {
				short, done := context.WithTimeout(flood, 100*time.Millisecond)
				if err := scrape(short, fmt.Sprintf("random-%d-%d", attacker, n)); err == nil {
					t.Error("metrics for a random token")
				}
				done()
				sent.Add(1)
				time.Sleep(20 * time.Millisecond) // more costs processor time, and shows nothing else
			}
		})
	}
	for flood.Err() == nil {
		if err := scrape(t.Context(), "joiner-token"); err != nil {
			t.Errorf("the scraper: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	attackers.Wait()
	// The limit is 5 a second, and 10 at once. Requests that were queued at the end of the flood are ignored.
	took := time.Since(begun).Seconds()
	if got, most := tokenReviews(t)-before, 10+5*took+5; got < 1 || got > most || sent.Load() < 4*int64(most) {
		t.Errorf("%d random tokens in %.1fs cost %.0f reviews, want 1 to %.0f", sent.Load(), took, got, most)
	}
	if lines := strings.Count(p.Output(t), "Authentication failed"); lines > 2 {
		t.Errorf("%d lines of log", lines)
	}
	checkStop(t, p)
}
