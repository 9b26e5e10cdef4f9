package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func deleteRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	if err := kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, label); err != nil {
		t.Error(err)
	}
}

// joinAll creates requests of kubelets, each once, and returns how long each took until it was issued.
func joinAll(t *testing.T, name string, count int) []time.Duration {
	t.Helper()
	label := client.MatchingLabels{"join": name}
	t.Cleanup(func() { deleteRequests(t, label) })
	payloads := make([]*kit.Request, count)
	for i := range payloads {
		payloads[i] = kit.NodeRequest(t, fmt.Sprintf("%s-%03d", name, i))
		payloads[i].GenerateName, payloads[i].Name, payloads[i].Labels = "", fmt.Sprintf("%s-%03d", name, i), label
	}
	issued := issuedRequests(t, label)
	var mu sync.Mutex
	began := map[string]time.Time{}
	var group sync.WaitGroup
	defer group.Wait()
	joiner := kit.As(t, "joiner")
	for creator := range 10 {
		group.Go(func() {
			for i := creator; i < count; i += 10 {
				mu.Lock()
				began[payloads[i].Name] = time.Now()
				mu.Unlock()
				if err := joiner.Create(t.Context(), payloads[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended, giveUp := map[string]time.Duration{}, time.After(3*time.Minute)
	for len(ended) < count {
		select {
		case obj := <-issued:
			mu.Lock()
			ended[obj.Name] = time.Since(began[obj.Name])
			mu.Unlock()
		case <-giveUp:
			for _, obj := range payloads {
				if _, served := ended[obj.Name]; !served {
					t.Errorf("%s was not served within three minutes: %+v", obj.Name, kit.Reload(t, obj).Status.Conditions)
				}
			}
			t.FailNow()
		}
	}
	var took []time.Duration
	for _, one := range ended {
		took = append(took, one)
	}
	return took
}

// issuedRequests returns each request with label once, as soon as it is issued. It reopens a watch that ends.
func issuedRequests(t *testing.T, label client.MatchingLabels) <-chan *kit.Request {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	issued, seen := make(chan *kit.Request, 10_000), map[types.UID]bool{}
	note := func(obj any) {
		if found := obj.(*kit.Request); csr.StateOf(found) == csr.Issued && !seen[found.UID] {
			seen[found.UID] = true
			issued <- found
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewFilteredListWatchFromClient(clientset.CertificatesV1().RESTClient(), "certificatesigningrequests", "",
			func(options *metav1.ListOptions) { options.LabelSelector = labels.FormatLabels(label) }),
		ObjectType: &kit.Request{},
		Handler:    toolscache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) }},
	})
	go informer.RunWithContext(t.Context())
	kit.Eventually(t, "the requests are watched", func(context.Context) error {
		if !informer.HasSynced() {
			return errors.New("they are not yet")
		}
		return nil
	})
	return issued
}
