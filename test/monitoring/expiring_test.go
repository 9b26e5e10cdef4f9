package monitoring

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const rotatingConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing: {secret: csr-controller-manager-system/csr-signer}
rotation: {enabled: true, settleFor: 1s}
`

// authorityManifest names a single API server that never gets the new CA, so a rotation stays in Preparing.
const authorityManifest = `apiVersion: csr-controller-manager.io/v1alpha1
kind: SigningAuthority
metadata: {name: cluster}
spec:
  secret: {namespace: csr-controller-manager-system, name: csr-signer}
  signers: [kubernetes.io/kube-apiserver-client, kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kubelet-serving]
  trust: {configMaps: [{namespace: csr-controller-manager-system, name: csr-trust}]}
  verification: {apiServers: [%q], serverName: localhost}
`

// TestKubeletAlertsDuringRotation issues real certificates under the cap of a rotation. Kubelets report the remaining
// lifetimes, and only kubelets that did not renew may cause alerts.
func TestKubeletAlertsDuringRotation(t *testing.T) {
	l := newLab(t)
	kubelets := newKubelets(t)
	metrics := kit.FreeAddress(t)
	p := startPrometheus(t, []string{kubelets.address()}, metrics)
	l.startRotation(t, metrics)

	now := time.Now()
	kubelets.joins("new", clientCertificate(t, "new", 0), servingCertificate(t, "new", 0))
	for name, end := range map[string]time.Time{"client": kubelets.client["new"], "serving": kubelets.serving["new"]} {
		if left := end.Sub(now); left < 23*time.Hour || left > 25*time.Hour {
			t.Fatalf("the %s certificate is good for %s, not for the rotation's cap of 24h", name, left)
		}
	}
	kubelets.joins("stuck", clientCertificate(t, "stuck", time.Hour), servingCertificate(t, "stuck", time.Hour))
	kit.Within(t, patience, "samples of all kubelets", func(ctx context.Context) error {
		return p.data(ctx, `kubelet_certificate_manager_client_ttl_seconds{node="new"} and on (node) kubelet_certificate_manager_server_ttl_seconds`)
	})
	kit.Within(t, patience, "alerts for the kubelet stuck alone", func(ctx context.Context) error {
		rules, err := p.rules(ctx)
		if err != nil {
			return err
		}
		count := 0
		for _, r := range rules {
			concerned := r.Name == "CSRKubeletClientExpiring" || r.Name == "CSRKubeletServerExpiring"
			if concerned {
				count++
			}
			if concerned && (len(r.Alerts) != 1 || r.Alerts[0].Labels["node"] != "stuck") {
				return fmt.Errorf("%s sees %v", r.Name, r.Alerts)
			}
		}
		if count != 2 {
			return fmt.Errorf("%d of the two alerts are loaded", count)
		}
		return nil
	})
}

// startRotation starts a manager, and a rotation that waits for the API server's trust.
func (l *lab) startRotation(t *testing.T, metrics string) {
	t.Helper()
	kit.Apply(t, "rotation")
	l.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	authority := filepath.Join(t.TempDir(), "authority.yaml")
	kit.Write(t, authority, fmt.Appendf(nil, authorityManifest, strings.Trim(strings.TrimPrefix(kit.ControlPlane(t).Config.Host, "https://"), "/")))
	l.kubectl("apply", "-f", authority)
	kit.Write(t, l.config, []byte(rotatingConfig))
	l.startManager("rotating", metrics)
	phase := func(phase string) {
		l.kubectl("wait", "--for=jsonpath={.status.phase}="+phase, "--timeout=60s", "signingauthority/cluster")
	}
	phase("Completed")
	l.kubectl("annotate", "signingauthority/cluster", "csr-controller-manager.io/operation=start")
	phase("Preparing")
}

// clientCertificate joins a node. The certificate has the requested lifetime, or the manager's default.
func clientCertificate(t *testing.T, node string, lifetime time.Duration) *x509.Certificate {
	t.Helper()
	obj := kit.NodeRequest(t, node)
	obj.Spec.ExpirationSeconds = seconds(lifetime)
	return kit.Leaf(t, kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), obj), csr.Issued))
}

// servingCertificate requests a serving certificate, which is approved by hand.
func servingCertificate(t *testing.T, node string, lifetime time.Duration) *x509.Certificate {
	t.Helper()
	obj := kit.ServingRequest(t, node, node)
	obj.Spec.ExpirationSeconds = seconds(lifetime)
	kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), obj))
	return kit.Leaf(t, kit.Reaches(t, obj, csr.Issued))
}

// kubelets serves the metrics of kubelets, computed from the expiry of their certificates.
type kubelets struct {
	*httptest.Server
	mu              sync.Mutex
	client, serving map[string]time.Time
}

func newKubelets(t *testing.T) *kubelets {
	k := &kubelets{client: map[string]time.Time{}, serving: map[string]time.Time{}}
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, name := range []string{"client", "server"} {
			ends := map[string]map[string]time.Time{"client": k.client, "server": k.serving}[name]
			metric := "kubelet_certificate_manager_" + name + "_ttl_seconds"
			_, _ = fmt.Fprintf(w, "# TYPE %s gauge\n", metric)
			for _, node := range slices.Sorted(maps.Keys(ends)) {
				_, _ = io.WriteString(w, fmt.Sprintf("%s{node=%q} %f\n", metric, node, time.Until(ends[node]).Seconds()))
			}
		}
	}))
	t.Cleanup(k.Close)
	return k
}

func (k *kubelets) address() string { return k.Listener.Addr().String() }

// joins adds node, whose certificates are reported from now on.
func (k *kubelets) joins(node string, client, serving *x509.Certificate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.client[node], k.serving[node] = client.NotAfter, serving.NotAfter
}

// seconds returns lifetime in seconds, or nil, which requests none, if lifetime is zero.
func seconds(lifetime time.Duration) *int32 {
	if lifetime == 0 {
		return nil
	}
	return new(int32(lifetime / time.Second))
}
