// Package revocation tests that API servers refuse what a block list names, on two real API servers behind one etcd.
package revocation

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

func TestMain(m *testing.M) { kit.Main(m, 2) }

// host is a control-plane host: an API server, and the process that writes its authorization.
type host struct {
	file      string // its AuthorizationConfiguration
	config    *rest.Config
	writer    *cluster.Process
	apiServer *cluster.Process // nil for the first host, whose API server is the control plane's
	command   []string         // of apiServer
}

// hosts starts two API servers behind one etcd. Both read the default file. No writer runs.
func hosts(t *testing.T, run func(t *testing.T, all []*host)) {
	t.Helper()
	hostsIn(t, t.TempDir(), run)
}

// hostsIn is hosts with the files in dir. front-proxy.crt there, with front-proxy.key, is the client certificate of a front proxy.
func hostsIn(t *testing.T, dir string, run func(t *testing.T, all []*host)) {
	t.Helper()
	files := []string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")}
	for _, file := range files {
		kit.Write(t, file, []byte(authorization.Default))
	}
	proxies := kit.IssueCA(t, "front proxies", kit.NewKey(t), nil, time.Hour)
	pair := proxies.Leaf(t, "front-proxy-client")
	ca, cert, key := filepath.Join(dir, "front-proxies.crt"), filepath.Join(dir, "front-proxy.crt"), filepath.Join(dir, "front-proxy.key")
	kit.Write(t, ca, proxies.PEM())
	kit.Write(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	der := kit.Must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	kit.Write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	kit.WithAPIServer(t, nil, func(_ string, args *envtest.Arguments) {
		args.Disable("authorization-mode").Set("authorization-config", files[0]).
			Set("requestheader-client-ca-file", ca).Set("requestheader-allowed-names", "front-proxy-client").
			Set("requestheader-username-headers", "X-Remote-User").Set("requestheader-group-headers", "X-Remote-Group").
			Set("requestheader-extra-headers-prefix", "X-Remote-Extra-").
			Set("proxy-client-cert-file", cert).Set("proxy-client-key-file", key)
	})
	plane := kit.ControlPlane(t)
	pid := kit.Must(plane.APIServerPid())(t)
	line := kit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)))(t)
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	address := kit.FreeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	for i, arg := range args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--secure-port":
			args[i] = name + "=" + port
		case "--authorization-config":
			args[i] = name + "=" + files[1]
		}
	}
	config := rest.CopyConfig(plane.Config)
	config.Host = "https://" + address
	second := &host{file: files[1], config: config, command: args}
	second.serve(t)
	t.Logf("Kubernetes %s", kit.Must(kubernetes.NewForConfigOrDie(config).ServerVersion())(t).GitVersion)
	run(t, []*host{{file: files[0], config: plane.Config}, second})
}

// serve starts the API server of the second host, and waits until it answers.
func (h *host) serve(t *testing.T) {
	t.Helper()
	h.apiServer = kit.Must(kit.ControlPlane(t).StartProcess("second-apiserver", h.command[0], h.command[1:]...))(t)
	t.Cleanup(h.apiServer.Kill)
	kit.Eventually(t, "the second API server answers", func(ctx context.Context) error { return ask(ctx, h.config) })
}

// at returns cfg's user at the API server of h.
func (h *host) at(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Host = h.config.Host
	return cfg
}

// write starts the writer of h as cfg's user.
func (h *host) write(t *testing.T, cfg *rest.Config, args ...string) {
	t.Helper()
	name := "writer-" + filepath.Base(h.file)
	h.writer = kit.Must(kit.ControlPlane(t).StartProcess(name, kit.Must(cluster.Manager())(t), slices.Concat([]string{
		"write-authorization", "--block-list", kit.BlockListName, "--to", h.file, "--listen", kit.FreeAddress(t),
		"--kubeconfig", kit.Kubeconfig(t, name, h.at(cfg)),
	}, args)...))(t)
	writer := h.writer
	t.Cleanup(func() {
		writer.Kill()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", name, writer.Tail(30))
		}
	})
}

// says waits until the log of h's writer contains text.
func (h *host) says(t *testing.T, text string) {
	t.Helper()
	kit.Eventually(t, "the writer says "+text, func(context.Context) error {
		log, err := h.writer.Log()
		return errors.Join(err, kit.OrError(strings.Contains(log, text), "its log is:\n%s", log))
	})
}

// install creates the objects of the overlay but its DaemonSet, and returns the user of its Pods.
func install(t *testing.T) *rest.Config {
	t.Helper()
	all := slices.DeleteFunc(kit.Rendered(t, "overlays/authorization-files"), func(obj *unstructured.Unstructured) bool {
		return obj.GetKind() == "DaemonSet"
	})
	kit.ApplyAll(t, all)
	return kit.TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "csr-authorization-files", Name: "csr-authorization-files"}})
}

// user returns a user with a client certificate, and the SHA-256 of the certificate.
func user(t *testing.T, name string, groups ...string) (cfg *rest.Config, sha256Hex string) {
	t.Helper()
	cfg = kit.Must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: name, Groups: groups}, nil))(t).Config()
	block, _ := pem.Decode(cfg.CertData)
	sum := sha256.Sum256(block.Bytes)
	return cfg, hex.EncodeToString(sum[:])
}

// bound returns a token of a ServiceAccount in namespace default that is bound to a node.
func bound(t *testing.T, account, node string) *rest.Config {
	t.Helper()
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
	}}
	obj := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: account}}
	kit.NoError(t, client.IgnoreAlreadyExists(kit.Admin(t).Create(t.Context(), obj.DeepCopy())))
	kit.NoError(t, kit.Admin(t).SubResource("token").Create(t.Context(), obj, token))
	return kit.WithToken(t, token.Status.Token)
}

// ask makes a call that every authenticated user may make, to a path that nobody has asked for before, so that no cache knows
// the answer. The path does not exist: NotFound means that the call was permitted.
func ask(ctx context.Context, cfg *rest.Config) error {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	err = c.RESTClient().Get().AbsPath("/apis/" + rand.Text()).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("not answered with NotFound: %w", err)
}

// refused reports whether err is the answer to a blocked user whom the webhook has refused.
func refused(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "blocked: ")
}

// eventuallyRefused waits until all refuse cfg's user because of the webhook, for ten seconds.
func eventuallyRefused(t *testing.T, what string, cfg *rest.Config, all ...*host) {
	t.Helper()
	for _, h := range all {
		kit.Within(t, 10*time.Second, what+" is refused", func(context.Context) error {
			err := ask(t.Context(), h.at(cfg)) // so that the last call is not one that the time limit ended
			return kit.OrError(refused(err), "answered with %v", err)
		})
	}
}

// eventuallyWorks waits until all answer cfg's user, for ten seconds.
func eventuallyWorks(t *testing.T, what string, cfg *rest.Config, all ...*host) {
	t.Helper()
	for _, h := range all {
		kit.Within(t, 10*time.Second, what+" works", func(context.Context) error { return ask(t.Context(), h.at(cfg)) })
	}
}

// keepAsking reads the namespace default from h's API server 50 times a second, as one of users after the other, until stop is
// called, or the test ends. The test fails if one call does.
func keepAsking(t *testing.T, h *host, users ...*rest.Config) (stop func()) {
	t.Helper()
	var clients []*kubernetes.Clientset
	for _, cfg := range users {
		cfg = h.at(cfg)
		cfg.QPS, cfg.Timeout = -1, 30*time.Second
		clients = append(clients, kubernetes.NewForConfigOrDie(cfg))
		read := clients[len(clients)-1].CoreV1().Namespaces()
		kit.Eventually(t, "the call is permitted", func(ctx context.Context) error {
			_, err := read.Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	}
	ending, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var mu sync.Mutex
	var failures []error
	began, asked := time.Now(), 0
	go func() {
		defer close(ended)
		var calls sync.WaitGroup
		defer calls.Wait()
		ticks := time.NewTicker(time.Second / 50)
		defer ticks.Stop()
		for ; ; asked++ {
			select {
			case <-ending.Done():
				return
			case <-ticks.C:
			}
			namespaces := clients[asked%len(clients)].CoreV1().Namespaces()
			calls.Go(func() {
				if _, err := namespaces.Get(context.WithoutCancel(ending), "default", metav1.GetOptions{}); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failures = append(failures, fmt.Errorf("after %s: %w", time.Since(began), err))
				}
			})
		}
	}()
	stop = sync.OnceFunc(func() {
		end()
		<-ended
		if len(failures) > 0 {
			t.Errorf("%d of %d calls failed, among them: %v", len(failures), asked, failures[:min(5, len(failures))])
		}
		t.Logf("%s answered %d calls in %s", filepath.Base(h.file), asked, time.Since(began).Round(time.Second))
	})
	t.Cleanup(stop)
	return stop
}

// bystanders returns users who are never blocked, and may read namespaces: a client certificate, the scheduler, the kubelet of node
// w2, and a token that is bound to w2.
func bystanders(t *testing.T) []*rest.Config {
	t.Helper()
	kit.NewNode(t, "w2")
	for _, name := range []string{"bystander", "system:kube-scheduler", "system:node:w2", "system:serviceaccount:default:bystander"} {
		kit.GrantRule(t, name, "", "namespaces", "get")
	}
	person, _ := user(t, "bystander")
	scheduler, _ := user(t, "system:kube-scheduler")
	kubelet, _ := user(t, "system:node:w2", "system:nodes")
	return []*rest.Config{person, scheduler, kubelet, bound(t, "bystander", "w2")}
}
