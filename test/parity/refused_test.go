package parity

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
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
	configurations := e.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := configurations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
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
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = configurations.Delete(context.Background(), "parity-refuse", metav1.DeleteOptions{}) })
	// The API server knows the webhook after a moment.
	requests := e.admin.CertificatesV1().CertificateSigningRequests()
	err = wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		const name = "parity-refused-yet"
		if err := e.create(ctx, name, client); err != nil {
			return false, err
		}
		obj, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		obj.Status.Certificate = e.CA.CertPEM
		_, err = requests.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
		refused := err != nil && strings.Contains(err.Error(), refusal)
		return refused, errors.Join(requests.Delete(ctx, name, metav1.DeleteOptions{}))
	})
	if err != nil {
		t.Fatalf("certificates are not refused: %v", err)
	}
	return r
}

// testNotStored lets the API server refuse each certificate. Both programs try again, with a new certificate each time.
func (e *env) testNotStored(t *testing.T, own program) {
	t.Helper()
	refused := e.refuse(t)
	cert, key, err := writePair(e.Dir, "refused", e.CA.CertPEM, e.CA.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	const enough = 3
	for _, p := range []program{kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER")), own} {
		turn := e.turn(t, p)
		turn.make(t, "refused", client)
		turn.run(t, "--controllers=csrsigning", "--cluster-signing-cert-file="+cert, "--cluster-signing-key-file="+key)
		name := turn.names["refused"]
		if err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 2*patience, true, func(context.Context) (bool, error) {
			writes, _ := refused.of(name)
			return writes >= enough, nil
		}); err != nil {
			t.Fatalf("%s does not try again: %v\n%s", p.id, err, turn.running.tail(t))
		}
		if writes, different := refused.of(name); different != writes {
			t.Errorf("%s wrote %d certificates in %d writes, want a new one each time", p.id, different, writes)
		}
		turn.running.check(t, p.ours())
		turn.clear(t)
	}
}
