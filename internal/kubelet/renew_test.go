package kubelet

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestConnect checks which kubeconfigs of a kubelet lead to the pair that it rotates. Before Kubernetes 1.17, kubeadm init left
// the first certificate in the kubeconfig, and a join named it.
func TestConnect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := pairOf(t, "node")
	for name, test := range map[string]struct {
		user clientcmdapi.AuthInfo
		want string
	}{
		"rotated":   {clientcmdapi.AuthInfo{ClientCertificate: "kubelet-client-current.pem", ClientKey: dir + "/kubelet-client-current.pem"}, ""},
		"embedded":  {clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}, "correct both paths and restart the kubelet"},
		"of a join": {clientcmdapi.AuthInfo{ClientCertificate: "kubelet-client.crt", ClientKey: "kubelet-client.key"}, "correct both paths and restart the kubelet"},
		"a token":   {clientcmdapi.AuthInfo{Token: "x"}, "does not name kubelet-client-current.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := clientcmdapi.NewConfig()
			content.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
			content.AuthInfos["u"] = &test.user
			content.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
			content.CurrentContext = "x"
			r := &Renewal{Kubeconfig: filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))}
			expect.NoError(t, clientcmd.WriteToFile(*content, r.Kubeconfig))
			for _, file := range []string{"kubelet-client.crt", "kubelet-client.key", "kubelet-client-current.pem"} {
				expect.NoError(t, os.WriteFile(filepath.Join(dir, file), append(cert, key...), 0o600))
			}
			client, err := r.connect()
			if test.want == "" {
				expect.NoError(t, err)
				expect.Equal(t, "link", client.current(), dir+"/kubelet-client-current.pem")
				return
			}
			expect.True(t, err != nil && strings.Contains(err.Error(), test.want), "error: %v", err)
		})
	}
}

// TestReady checks that nothing is requested for a kubelet that is not healthy, or whose addresses are not known: after a renewal
// it would look like one that does not come back. An unfinished renewal goes on.
func TestReady(t *testing.T) {
	t.Parallel()
	code := http.StatusOK
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	defer health.Close()
	stranger := httptest.NewTLSServer(nil)
	defer stranger.Close()
	served := httptest.NewUnstartedServer(nil)
	host, port, err := net.SplitHostPort(served.Listener.Addr().String())
	expect.NoError(t, err)
	node := &corev1.Node{}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "w1"}, {Type: corev1.NodeInternalIP, Address: host}}
	number, err := strconv.Atoi(port)
	expect.NoError(t, err)
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expect.Equal(t, "path", r.URL.Path, "/api/v1/nodes/w1")
		w.Header().Set("Content-Type", "application/json")
		expect.NoError(t, json.NewEncoder(w).Encode(node))
	}))
	defer api.Close()
	s := kept(t)
	kinds := []kind{{store: s}}
	pair, err := s.read()
	expect.NoError(t, err)
	served.TLS = &tls.Config{Certificates: []tls.Certificate{*pair}}
	served.StartTLS()
	defer served.Close()
	ready := func(healthz, address string) error {
		r := &Renewal{Healthz: healthz, Address: address, Serving: true, api: kubernetes.NewForConfigOrDie(&rest.Config{Host: api.URL}), serving: s, node: "w1"}
		return r.ready(t.Context(), kinds)
	}
	healthz := health.Listener.Addr().String()
	expect.NoError(t, ready(healthz, ""))
	refused := func(name, healthz, address string) {
		t.Helper()
		err := ready(healthz, address)
		expect.True(t, err != nil && strings.Contains(err.Error(), "--healthz and --address"), "%s: %v", name, err)
	}
	refused("another health check", "127.0.0.1:1", "")
	refused("another address", healthz, "127.0.0.1:1")
	refused("another server", healthz, stranger.Listener.Addr().String())
	code = http.StatusInternalServerError
	refused("not healthy", healthz, "")
	cert, key := pairOf(t, "new")
	expect.NoError(t, s.replace(cert, key, time.Now().Add(time.Hour)))
	expect.NoError(t, ready(healthz, ""))
}
