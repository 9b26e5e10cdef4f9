package parity

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const refusal = "no certificate is stored here"

// refuser is an admission webhook that refuses every write of a certificate, and records the certificates by request.
type refuser struct {
	mu   sync.Mutex
	seen map[string][]string
}

func (r *refuser) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	review := &admissionv1.AdmissionReview{}
	obj := &certificatesv1.CertificateSigningRequest{}
	if err := json.NewDecoder(request.Body).Decode(review); err != nil || json.Unmarshal(review.Request.Object.Raw, obj) != nil {
		http.Error(w, "no review of a request", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: len(obj.Status.Certificate) == 0}
	if !review.Response.Allowed {
		review.Response.Result = &metav1.Status{Code: http.StatusInternalServerError, Message: refusal}
		r.mu.Lock()
		r.seen[obj.Name] = append(r.seen[obj.Name], string(obj.Status.Certificate))
		r.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(review)
}

// of returns how often a certificate was written to the request of that name, and how many of them differ.
func (r *refuser) of(name string) (writes, different int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]bool{}
	for _, certificate := range r.seen[name] {
		all[certificate] = true
	}
	return len(r.seen[name]), len(all)
}

// refuse configures the API server to refuse certificates until the end of the test.
func (e *env) refuse(t *testing.T) *refuser {
	t.Helper()
	r := &refuser{seen: map[string][]string{}}
	server := httptest.NewTLSServer(r)
	t.Cleanup(server.Close)
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	kit.Create(t, kit.Admin(t), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "parity-refuse"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "refuse.parity.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{certificatesv1.GroupName}, APIVersions: []string{"v1"}, Resources: []string{"certificatesigningrequests/status"},
				},
			}},
		}},
	})
	// The API server knows the webhook after a moment.
	obj := kit.ApprovedClient(t, "parity-refused-yet")
	kit.Eventually(t, "certificates are refused", func(ctx context.Context) error {
		tried := obj.DeepCopy()
		tried.Status.Certificate = e.CA.CertPEM
		if err := kit.Admin(t).Status().Update(ctx, tried, ctrl.DryRunAll); err == nil || !strings.Contains(err.Error(), refusal) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	return r
}

// testNotStored lets the API server refuse each certificate. Both programs try again, with a new certificate each time.
func (e *env) testNotStored(t *testing.T, own program) {
	t.Helper()
	refused := e.refuse(t)
	args := append(e.filesOf(t, "refused", e.CA.CertPEM, e.CA.KeyPEM), "--controllers=csrsigning")
	const enough = 3
	for _, p := range []program{kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")), own} {
		turn := e.turn(t, p)
		turn.make(t, "refused", client)
		turn.run(t, args...)
		name := turn.names["refused"]
		if err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 2*patience, true, func(context.Context) (bool, error) {
			writes, _ := refused.of(name)
			return writes >= enough, nil
		}); err != nil {
			t.Fatalf("%s does not try again: %v\n%s", p.id, err, turn.running.tail())
		}
		if writes, different := refused.of(name); different != writes {
			t.Errorf("%s wrote %d certificates in %d writes, want a new one each time", p.id, different, writes)
		}
		turn.running.check(t)
		turn.clear(t)
	}
}
