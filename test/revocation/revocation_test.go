// Package revocation tests that API servers refuse what a block list names, on two real API servers behind one etcd.
package revocation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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

// write starts the writer of h.
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

// TestBlock checks that each kind of credential works, is blocked at both API servers, and works again.
func TestBlock(t *testing.T) {
	kit.Alone(t)
	hosts(t, func(t *testing.T, all []*host) {
		list := kit.BlockList(t, "")
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "writer"}}
		kit.Create(t, kit.Admin(t), account)
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "writer"}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{list.Name}, Verbs: []string{"get", "list", "watch"},
		}}}
		kit.Create(t, kit.Admin(t), role)
		kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "writer"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "writer"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "writer"}},
		})
		for _, h := range all {
			h.write(t, kit.TokenOf(t, account))
		}
		user := kit.Must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: `alice" || true || "`}, nil))(t).Config()
		for _, h := range all {
			kit.Eventually(t, "works", func(ctx context.Context) error { return ask(ctx, h.at(user)) })
		}
		list.Data["users"] = `"alice\" || true || \""`
		kit.Update(t, list)
		began := time.Now()
		for _, h := range all {
			kit.Within(t, 10*time.Second, "blocked", func(ctx context.Context) error {
				err := ask(ctx, h.at(user))
				return kit.OrError(apierrors.IsForbidden(err) && strings.Contains(err.Error(), "blocked: "), "%v", err)
			})
		}
		t.Log(time.Since(began), ask(t.Context(), all[0].at(user)))
		for _, h := range all {
			h.writer.Kill()
			t.Log(ask(t.Context(), h.at(user)))
		}
		t.Log(ask(t.Context(), all[1].at(kit.TokenOf(t, account))))
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
