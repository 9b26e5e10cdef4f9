package manager

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// inventoryServer runs a webhook of the inventory. It returns the server, and the file with the CA of its certificate.
func inventoryServer(t *testing.T, answer http.HandlerFunc) (server *httptest.Server, caFile string) {
	t.Helper()
	server = httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // managers are killed at the end
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	caFile = filepath.Join(t.TempDir(), "inventory-ca.crt")
	kit.Write(t, caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return server, caFile
}

// knows returns a webhook that answers after some time, and knows the nodes for which known returns true. Their
// machines are a minute old.
func knows(t *testing.T, after time.Duration, known func(node string) bool) http.HandlerFunc {
	created := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	return func(w http.ResponseWriter, r *http.Request) {
		var lookup map[string]any
		if err := json.NewDecoder(r.Body).Decode(&lookup); err != nil {
			t.Error(err)
			return
		}
		delete(lookup, "requester")
		delete(lookup, "signerName")
		if lookup["known"] = known(lookup["node"].(string)); lookup["known"] == true {
			lookup["created"] = created
		}
		select {
		case <-time.After(after):
		case <-r.Context().Done():
		}
		_ = json.NewEncoder(w).Encode(lookup)
	}
}

// TestWebhookURLIsSecret has a webhook with a secret in its URL, which fails in several ways one after the other. The URL
// is in nothing that the manager stores, serves or logs, however verbose.
func TestWebhookURLIsSecret(t *testing.T) {
	kit.Parallel(t)
	var answer atomic.Pointer[http.HandlerFunc]
	answers := func(with http.HandlerFunc) { answer.Store(&with) }
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) })
	authority, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	kit.InstallRBAC(t)
	kit.Apply(t, "kubelet-serving")
	kit.Create(t, kit.Admin(t), signingSecretOf(t))
	forgetLeader(t)
	records := filepath.Join(t.TempDir(), "audit.log")
	sources := fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 2s}}, {node: {}}]", server.URL+"/s3cr3t-path?token=s3cr3t", ca)
	p := kit.StartManager(t, kit.ServiceAccountConfig(t), servingConfig(t, sources), "-v", "10", "--audit-log-path", records)
	fails := func(node, part string) {
		t.Helper()
		obj := asksFor(t, node, "192.0.2.90")
		kit.HasEvent(t, obj, "InventoryUnavailable", "ask webhook", part)
	}
	answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "s3cr3t", http.StatusInternalServerError) })
	fails("answers-500", "answered 500, want 200")
	answers(http.RedirectHandler("https://s3cr3t-host.example.com/s3cr3t", http.StatusTemporaryRedirect).ServeHTTP)
	fails("redirects", "answered 307, want 200")
	answers(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		<-r.Context().Done()
	})
	fails("hangs", "context deadline exceeded")
	kit.Write(t, ca, serverAuthority(t).certPEM)
	fails("has-another-ca", "certificate signed by unknown authority")
	kit.Write(t, ca, authority)
	server.CloseClientConnections()
	server.Close()
	fails("is-down", "connection refused")

	_, metrics := cluster.Get(t.Context(), p.Metrics, "/metrics")
	checkStop(t, p)
	audited, err := os.ReadFile(records)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{"the log": p.Output(t), "the metrics": metrics, "the audit log": string(audited)}
	for what, list := range map[string]client.ObjectList{
		"ConfigMaps": &corev1.ConfigMapList{}, "Events": &eventsv1.EventList{}, "Leases": &coordinationv1.LeaseList{},
		"requests": &certificatesv1.CertificateSigningRequestList{},
	} {
		if err := kit.Admin(t).List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		shown[what] = string(text)
	}
	if !strings.Contains(shown["the log"], "has-another-ca") {
		t.Error("the texts are not complete")
	}
	host := server.Listener.Addr().String()
	for what, text := range shown {
		for _, secret := range []string{"s3cr3t", host} {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s show %q: %s", what, secret, text[max(0, at-300):min(len(text), at+100)])
			}
		}
	}
}
