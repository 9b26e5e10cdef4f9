// Package revocation tests that API servers refuse what a block list names, on two real API servers behind one etcd.
package revocation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	file   string // its AuthorizationConfiguration
	config *rest.Config
	writer *cluster.Process
}

// hosts starts two API servers behind one etcd. Both read the default file. No writer runs.
func hosts(t *testing.T, run func(t *testing.T, all []*host)) {
	t.Helper()
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")}
	for _, file := range files {
		kit.Write(t, file, []byte(authorization.Default))
	}
	kit.WithAPIServer(t, nil, func(_ string, args *envtest.Arguments) {
		args.Disable("authorization-mode").Set("authorization-config", files[0])
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
	second := kit.Must(plane.StartProcess("second-apiserver", args[0], args[1:]...))(t)
	t.Cleanup(second.Kill)
	config := rest.CopyConfig(plane.Config)
	config.Host = "https://" + address
	run(t, []*host{{file: files[0], config: plane.Config}, {file: files[1], config: config}})
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
	h.writer = kit.Must(kit.ControlPlane(t).StartProcess("writer", kit.Must(cluster.Manager())(t), slices.Concat([]string{
		"write-authorization", "--block-list", kit.BlockListName, "--to", h.file, "--listen", kit.FreeAddress(t),
		"--kubeconfig", kit.Kubeconfig(t, "writer", cfg), "--interval", "200ms",
	}, args)...))(t)
	t.Cleanup(func() {
		h.writer.Kill()
		if t.Failed() {
			t.Logf("the writer's log:\n%s", h.writer.Tail(30))
		}
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

// refused is the answer to a blocked user whom the webhook has refused.
func refused(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "blocked: ")
}

// TestBlock checks that each kind of credential works, is refused by both API servers within ten seconds, and works again, and
// that others never notice.
func TestBlock(t *testing.T) {
	kit.Alone(t)
	hosts(t, func(t *testing.T, all []*host) {
		list := kit.BlockList(t, "")
		writer := install(t)
		for _, h := range all {
			h.write(t, writer)
		}
		kit.NewNode(t, "w1")
		kit.NewNode(t, "w2")
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
			StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
		}
		kit.Create(t, kit.Admin(t), secret)
		alice, _ := user(t, `alice" || true || "`)
		_, leaked := user(t, "unused")
		bob, sum := user(t, "bob")
		bobAgain, _ := user(t, "bob")
		kubelet, _ := user(t, "system:node:w1", "system:nodes")
		other, _ := user(t, "system:node:w2", "system:nodes")
		for name, test := range map[string]struct {
			blocked, works *rest.Config
			data           map[string]string
		}{
			"client certificate":         {alice, bob, map[string]string{"nodes": "", "users": `"alice\" || true || \""`}},
			"certificate by its SHA-256": {bob, bobAgain, map[string]string{"nodes": "", "certificates": sum + "\n" + leaked}},
			"kubelet":                    {kubelet, other, map[string]string{"nodes": "w1"}},
			"token bound to a node":      {bound(t, "app", "w1"), bound(t, "app", "w2"), map[string]string{"nodes": "w1"}},
			"ServiceAccount":             {bound(t, "app", "w1"), bound(t, "app2", "w1"), map[string]string{"nodes": "", "users": "system:serviceaccount:default:app # leaked"}},
			"bootstrap token":            {kit.WithToken(t, "abcdef.0123456789abcdef"), alice, map[string]string{"nodes": "", "users": "system:bootstrap:abcdef"}},
		} {
			for _, h := range all {
				kit.Eventually(t, name+" works", func(ctx context.Context) error { return ask(ctx, h.at(test.blocked)) })
			}
			began := time.Now()
			list.Data = test.data
			kit.Update(t, list)
			for _, h := range all {
				kit.Within(t, 10*time.Second, name+" is refused", func(ctx context.Context) error {
					err := ask(ctx, h.at(test.blocked))
					return kit.OrError(refused(err), "%v", err)
				})
				kit.NoError(t, ask(t.Context(), h.at(test.works)))
			}
			t.Logf("%s: refused by both after %s", name, time.Since(began).Round(time.Millisecond))
			list.Data = map[string]string{"nodes": ""}
			kit.Update(t, list)
			for _, h := range all {
				kit.Within(t, 10*time.Second, name+" works again", func(ctx context.Context) error { return ask(ctx, h.at(test.blocked)) })
			}
		}
	})
}

// TestProof checks that the manager says which API server enforces which version of the list.
func TestProof(t *testing.T) {
	kit.Alone(t)
	hosts(t, func(t *testing.T, all []*host) {
		list := kit.BlockList(t, "")
		all[0].write(t, install(t))
		cfg := kit.ManagerConfig(t)
		kit.Apply(t, "node-block-list")
		kit.Apply(t, "block-list-enforced")
		var addresses []string
		for _, h := range all {
			addresses = append(addresses, kit.Must(url.Parse(h.config.Host))(t).Host)
		}
		p := kit.StartManager(t, cfg, kit.Configure(t, fmt.Sprintf(`nodeBlockList: %s
blockListEnforcement: {enabled: true, apiServers: [%q, %q], serverName: localhost}
`, kit.BlockListName, addresses[0], addresses[1])))
		p.Answers(t, p.Metrics, "/metrics", 200, fmt.Sprintf("csr_block_list_enforced{server=%q} 1", addresses[0]), fmt.Sprintf("csr_block_list_enforced{server=%q} 0", addresses[1]))
		t.Log(list.Name)
	})
}

// ask makes a call that every authenticated user may make.
func ask(ctx context.Context, cfg *rest.Config) error {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return err
}
