package revocation

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// blocker returns a user with the roles of config/kubectl-plugin for kubectl csr block.
func blocker(t *testing.T, name string) *rest.Config {
	t.Helper()
	kit.Apply(t, "kubectl-plugin")
	cfg, _ := user(t, name)
	kit.Grant(t, name, "csr-plugin-viewer")
	kit.Grant(t, name, "csr-plugin-blocker")
	for _, role := range []string{"csr-plugin-block-list", "csr-plugin-blocker"} {
		kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Namespace: kit.SystemNamespace},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		})
	}
	return cfg
}

// TestBlockCommand checks that kubectl csr block ends with success exactly if both API servers refuse what it names: no test of
// it waits after the command.
func TestBlockCommand(t *testing.T) {
	kit.Alone(t)
	hosts(t, func(t *testing.T, all []*host) {
		list := kit.BlockList(t, "# ours\nnot a node\n")
		operator, writer := blocker(t, "operator"), install(t)
		command := func(want int, text string, args ...string) {
			t.Helper()
			output, code := kit.RunPlugin(t, operator, args...)
			kit.Says(t, output, code, want, text)
		}
		kit.NewNode(t, "w1")
		kubelet, _ := user(t, "system:node:w1", "system:nodes")
		odd, _ := user(t, `alice" || true || "# x`)
		bob, _ := user(t, "bob")
		bobAgain, _ := user(t, "bob")
		certificate := filepath.Join(t.TempDir(), "bob.crt")
		kit.Write(t, certificate, bob.CertData)

		command(1, "which stops new certificates only", "block", "w1", "--yes")
		command(1, "Blocking works only for new certificates", "check")
		command(0, "which stops new certificates only", "unblock", "w1", "--yes")

		kit.Apply(t, "node-block-list")
		kit.Apply(t, "block-list-enforced")
		var addresses []string
		for _, h := range all {
			addresses = append(addresses, kit.Must(url.Parse(h.config.Host))(t).Host)
			h.write(t, writer)
		}
		kit.StartManager(t, kit.ManagerConfig(t), kit.Configure(t, fmt.Sprintf(`nodeBlockList: %s
blockListEnforcement: {enabled: true, apiServers: [%q, %q], serverName: localhost}
`, kit.BlockListName, addresses[0], addresses[1])))
		kit.Eventually(t, "what the manager publishes", func(ctx context.Context) error { // until then, block says that it is not set up
			name := client.ObjectKey{Namespace: list.Namespace, Name: list.Name + entries.StatusSuffix}
			return kit.Admin(t).Get(ctx, name, &corev1.ConfigMap{})
		})
		kit.GrantGroup(t, csr.NodeGroup, kit.MayCreate)
		request := kit.CreateRequest(t, kit.KubeletOf(t, "w1"), kit.NodeRequest(t, "w1"))
		for _, test := range []struct {
			what           string
			blocked, works *rest.Config
			args           []string
		}{
			{"a node", kubelet, bob, []string{"w1"}},
			{"a user", odd, bob, []string{`alice" || true || "# x`}},
			{"a certificate", bob, bobAgain, []string{"--certificate", certificate}},
		} {
			for _, h := range all {
				kit.NoError(t, ask(t.Context(), h.at(test.blocked)))
			}
			command(0, "and each API server follows", append([]string{"block", "--yes"}, test.args...)...)
			for _, h := range all {
				err := ask(t.Context(), h.at(test.blocked))
				kit.Check(t, refused(err), "%s: %v", test.what, err)
				kit.NoError(t, ask(t.Context(), h.at(test.works)))
			}
			if test.blocked == kubelet {
				command(0, "API server "+addresses[1]+": it follows since ", "explain", request.Name)
				command(1, "block-list-enforced  ok       API server "+addresses[1], "check", "-v")
			}
			command(0, "and each API server follows", append([]string{"unblock", "--yes"}, test.args...)...)
			for _, h := range all {
				kit.NoError(t, ask(t.Context(), h.at(test.blocked)))
			}
		}
		kit.Equal(t, "the list", kit.Get(t, list.Namespace, list.Name, &corev1.ConfigMap{}).Data["nodes"], "# ours\nnot a node\n")

		own := filepath.Join(t.TempDir(), "own.der")
		block, _ := pem.Decode(operator.CertData)
		kit.Write(t, own, block.Bytes)
		command(1, "you use it yourself", "block", "--yes", "--user", "operator")
		command(1, "you use it yourself", "block", "--yes", "--certificate", own)
		command(1, "the cluster needs this user", "block", "--yes", "system:kube-scheduler")
		command(1, "none refuses the user of write-authorization", "block", "--yes", "--timeout", "5s",
			"system:serviceaccount:csr-authorization-files:csr-authorization-files")
		command(0, "is not on the block list", "unblock", "--yes", "system:serviceaccount:csr-authorization-files:csr-authorization-files")

		all[1].writer.Kill()
		command(1, addresses[1]+": it does not refuse the canary", "block", "--yes", "--timeout", "5s", "w1")
		command(1, "block-list-enforced  failed   API server "+addresses[1], "check")
		command(0, "API server "+addresses[1]+": it does not refuse the canary", "explain", request.Name)
		all[1].write(t, writer)
		output, code := kit.RunPlugin(t, operator, "block", "--yes", "w1")
		kit.Says(t, output, code, 0, "The block list needs no change.", "and each API server follows")
		kit.Check(t, strings.Count(kit.Get(t, list.Namespace, list.Name, &corev1.ConfigMap{}).Data["nodes"], "w1") == 1, "%q", kit.Get(t, list.Namespace, list.Name, &corev1.ConfigMap{}).Data)
		for _, h := range all {
			err := ask(t.Context(), h.at(kubelet))
			kit.Check(t, refused(err), "%v", err)
		}
	})
}
