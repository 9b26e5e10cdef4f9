//go:build nightly

package revocation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestCost measures how much longer a get of an unblocked user takes with a block list. It prints the latency and the ratio to an API
// server with --authorization-mode=Node,RBAC, each the median over the rounds. A round measures all forms, in random order.
//
//	go test -tags nightly -count=1 -v -run '^TestCost$' ./test/revocation
func TestCost(t *testing.T) {
	const rounds, calls = 11, 300
	forms := []*struct {
		name   string
		data   map[string]string // of the list; nil is no list
		file   []byte
		canary string
	}{
		{name: "Node, RBAC"},
		{name: "no entries", data: map[string]string{"nodes": ""}},
		{name: "100 certificates", data: map[string]string{"nodes": "", "certificates": numbered("%064x\n", 100)}},
		{name: "1,000 certificates", data: map[string]string{"nodes": "", "certificates": numbered("%064x\n", 1000)}},
		{name: "1,000 users", data: map[string]string{"nodes": "", "users": numbered("user-%d\n", 1000)}},
		{name: "1,000 nodes", data: map[string]string{"nodes": numbered("node-%d\n", 1000)}},
		{name: "2,000 certificates", data: map[string]string{"nodes": "", "certificates": numbered("%064x\n", 2000)}},
	}
	kit.Alone(t)
	hosts(t, func(t *testing.T, all []*host) {
		h := all[0]
		nobody := &rest.Config{Host: "https://" + kit.FreeAddress(t)} // the webhook is asked about canaries only
		kubeconfig := kit.Kubeconfig(t, "webhook", nobody)
		var canaries []string
		for _, form := range forms {
			if form.file = []byte(authorization.Default); form.data == nil {
				continue
			}
			blocked, _, err := entries.Parse(form.data)
			kit.NoError(t, err)
			form.file = kit.Must(authorization.Join(form.file, blocked, "writer", kubeconfig, nil))(t)
			form.canary = blocked.Canary()
			canaries = append(canaries, form.canary)
		}
		kit.GrantRule(t, "bystander", "", "namespaces", "get")
		cfg, _ := user(t, "bystander")
		medians, slowest := make([][]float64, len(forms)), make([][]float64, len(forms))
		for range rounds {
			for _, i := range rand.Perm(len(forms)) {
				use(t, h, forms[i].file, canaries, forms[i].canary)
				took := latencies(t, h.at(cfg), calls)
				medians[i], slowest[i] = append(medians[i], took[calls/2]), append(slowest[i], took[calls*99/100])
			}
		}
		t.Logf("%-20s %10s %7s %10s %7s", "list", "median µs", "ratio", "p99 µs", "ratio")
		for i, form := range forms {
			t.Logf("%-20s %10.0f %7.3f %10.0f %7.3f", form.name,
				median(medians[i]), median(ratios(medians[i], medians[0])), median(slowest[i]), median(ratios(slowest[i], slowest[0])))
			kit.Check(t, median(ratios(medians[i], medians[0])) < 1.5, "a get takes half as long again with %s", form.name)
		}
	})
}

// use makes h's API server read file, and waits until it denies those of canaries that denied says.
func use(t *testing.T, h *host, file []byte, canaries []string, denied string) {
	t.Helper()
	kit.Write(t, h.file+".new", file)
	kit.NoError(t, os.Rename(h.file+".new", h.file))
	reviews := kubernetes.NewForConfigOrDie(h.config).AuthorizationV1().SubjectAccessReviews()
	kit.Eventually(t, "the API server reads the file", func(ctx context.Context) error {
		for _, canary := range canaries {
			review, err := reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: canary, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"},
			}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if review.Status.Denied != (canary == denied) {
				return fmt.Errorf("%s is denied: %t", canary, review.Status.Denied)
			}
		}
		return nil
	})
}

// latencies returns how long calls of cfg's user take, in microseconds, sorted. Calls before them warm up.
func latencies(t *testing.T, cfg *rest.Config, calls int) (took []float64) {
	t.Helper()
	cfg.QPS = -1
	namespaces := kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces()
	for i := range calls + calls/10 {
		began := time.Now()
		_, err := namespaces.Get(t.Context(), "default", metav1.GetOptions{})
		kit.NoError(t, err)
		if i >= calls/10 {
			took = append(took, float64(time.Since(began).Microseconds()))
		}
	}
	slices.Sort(took)
	return took
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// ratios divides each value of a round by the value that base has in it.
func ratios(values, base []float64) (all []float64) {
	for i := range values {
		all = append(all, values[i]/base[i])
	}
	return all
}
