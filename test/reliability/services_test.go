package reliability

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

type mode = int32

const (
	works mode = iota
	down       // answers 503
	slow       // answers after ten seconds
	lies       // says what is not true
)

type service struct {
	*httptest.Server
	mode  atomic.Int32
	calls [lies + 1]atomic.Int32 // in each mode
}

// breakService puts the service into mode for a while. It must get a request meanwhile.
func (w *world) breakService(to mode, lasts time.Duration) {
	w.service.mode.Store(to)
	w.pause(lasts)
	w.check(w.service.calls[to].Load() > 0, "no call reached the service in mode %d", to)
	w.service.mode.Store(works)
}

func (w *world) startService(start func(http.Handler) *httptest.Server, answer func(mode, *http.Request) any) {
	s := &service{}
	s.Server = start(http.HandlerFunc(func(writer http.ResponseWriter, r *http.Request) {
		now := s.mode.Load()
		s.calls[now].Add(1)
		switch now {
		case down:
			http.Error(writer, "down", http.StatusServiceUnavailable)
			return
		case slow:
			select {
			case <-time.After(10 * time.Second):
			case <-r.Context().Done():
				return
			}
		}
		writer.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(writer).Encode(answer(now, r)) // the client may have given up
	}))
	w.t.Cleanup(s.Close)
	w.service = s
}

// authorizers configures an authorizer that is asked first, about the permissions to be approved only.
const authorizers = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: slow
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    authorizedTTL: 1s
    unauthorizedTTL: 1s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
    matchConditions:
    - expression: has(request.resourceAttributes)
    - expression: request.resourceAttributes.group == 'certificates.k8s.io'
    - expression: request.resourceAttributes.subresource in ['nodeclient', 'selfnodeclient']
- {type: Node, name: node}
- {type: RBAC, name: rbac}
`

// slowAuthorizer adds a webhook to the API server's authorizers. It has no opinion of its own.
func slowAuthorizer(w *world) {
	w.startService(httptest.NewServer, func(mode, *http.Request) any {
		return authorizationv1.SubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		}
	})
	webhook, file := filepath.Join(w.Dir, "webhook.kubeconfig"), filepath.Join(w.Dir, "authorizers.yaml")
	kit.Write(w.t, webhook, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: w, cluster: {server: %q}}]\n"+
		"contexts: [{name: w, context: {cluster: w}}]\ncurrent-context: w\n", w.service.URL))
	kit.Write(w.t, file, fmt.Appendf(nil, authorizers, webhook))
	kit.NoError(w.t, w.KillAPIServer()) // it would wait for its watches to end
	kit.NoError(w.t, w.RestartAPIServer(func(args *envtest.Arguments) {
		args.Disable("authorization-mode").Set("authorization-config", file)
	}))
}

func hangAuthorizer(w *world) { w.breakService(slow, 15*time.Second) }

// startInventory has a server that knows the addresses of all nodes, in place of what the Nodes report.
func startInventory(w *world) {
	w.startService(httptest.NewTLSServer, func(now mode, r *http.Request) any {
		var question struct{ UID, Node string }
		_ = json.NewDecoder(r.Body).Decode(&question) // an empty question gets an answer that is refused
		addresses := []string{"203.0.113.99"}         // a lie is believed, so it is not the address that thieves ask for
		if now != lies {
			addresses = []string{w.addressOf(r.Context(), question.Node)}
		}
		return map[string]any{
			"apiVersion": "inventory.csr-controller-manager.io/v1alpha1", "kind": "NodeLookup",
			"uid": question.UID, "node": question.Node, "known": true, "addresses": addresses,
		}
	})
	ca := filepath.Join(w.Dir, "inventory.crt")
	kit.Write(w.t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.service.Certificate().Raw}))
	w.config = fmt.Sprintf(`approval:
  kubeletServing: {enabled: true}
  inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 2s}}]}
`, w.service.URL, ca)
}

func (w *world) addressOf(ctx context.Context, name string) string {
	node, err := w.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil || len(node.Status.Addresses) == 0 {
		return ""
	}
	return node.Status.Addresses[0].Address
}

func breakInventory(w *world) {
	for _, state := range []struct {
		mode  mode
		shown indicator
	}{{down, unavailable}, {slow, unavailable}, {lies, notOwned}} {
		before := w.oldest().indicators(w.t.Context(), nil)
		w.breakService(state.mode, 5*time.Second)
		fired := w.oldest().indicators(w.t.Context(), before)[state.shown]
		w.check(fired > 0, "the inventory is in mode %d, and %s does not fire", state.mode, state.shown)
	}
}
