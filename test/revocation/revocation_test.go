package revocation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestBlock checks that each kind of credential works, is refused by both API servers within ten seconds, and works again, and
// that others never notice.
func TestBlock(t *testing.T) {
	kit.Parallel(t)
	hosts(t, func(t *testing.T, all []*host) {
		list := kit.BlockList(t, "")
		writer := install(t)
		others := bystanders(t)
		for _, h := range all {
			h.write(t, writer)
			keepAsking(t, h, others...)
		}
		kit.NewNode(t, "w1")
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
			StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
		}
		kit.Create(t, kit.Admin(t), secret)
		alice, _ := user(t, "alice")
		bob, sum := user(t, "bob")
		bobAgain, _ := user(t, "bob")
		kubelet, _ := user(t, "system:node:w1", "system:nodes")
		other, _ := user(t, "system:node:w2", "system:nodes")
		for name, test := range map[string]struct {
			blocked, works *rest.Config
			data           map[string]string
		}{
			"client certificate":         {alice, bob, map[string]string{"nodes": "", "users": "alice"}},
			"certificate by its SHA-256": {bob, bobAgain, map[string]string{"nodes": "", "certificates": sum}},
			"kubelet":                    {kubelet, other, map[string]string{"nodes": "w1"}},
			"token bound to a node":      {bound(t, "app", "w1"), bound(t, "app", "w2"), map[string]string{"nodes": "w1"}},
			"ServiceAccount":             {bound(t, "app", "w1"), bound(t, "app2", "w1"), map[string]string{"nodes": "", "users": "system:serviceaccount:default:app # leaked"}},
			"bootstrap token":            {kit.WithToken(t, "abcdef.0123456789abcdef"), alice, map[string]string{"nodes": "", "users": "system:bootstrap:abcdef"}},
		} {
			eventuallyWorks(t, name, test.blocked, all...)
			began := time.Now()
			list.Data = test.data
			kit.Update(t, list)
			eventuallyRefused(t, name, test.blocked, all...)
			t.Logf("%s: refused by both after %s", name, time.Since(began).Round(time.Millisecond))
			for _, h := range all {
				kit.NoError(t, ask(t.Context(), h.at(test.works)))
			}
			list.Data = map[string]string{"nodes": ""}
			kit.Update(t, list)
			eventuallyWorks(t, name, test.blocked, all...)
		}
	})
}

// TestProof checks that the manager says which API server enforces which version of the list, and which does not: one that reads
// no file of the writer, and one whose file somebody has replaced.
func TestProof(t *testing.T) {
	kit.Parallel(t)
	hosts(t, func(t *testing.T, all []*host) {
		list := kit.BlockList(t, "")
		writer := install(t)
		all[0].write(t, writer)
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
		publishes := func(what string, enforced ...float64) {
			t.Helper()
			read, _, err := entries.Parse(list.Data)
			kit.NoError(t, err)
			for i, address := range addresses {
				p.Answers(t, p.Metrics, "/metrics", 200, fmt.Sprintf("csr_block_list_enforced{server=%q} %g", address, enforced[i]))
			}
			kit.Eventually(t, what, func(ctx context.Context) error {
				published, status := &corev1.ConfigMap{}, entries.Enforcement{}
				name := client.ObjectKey{Namespace: list.Namespace, Name: list.Name + entries.StatusSuffix}
				if err := kit.Admin(t).Get(ctx, name, published); err != nil {
					return err
				}
				text := published.Data[entries.StatusKey]
				if err := json.Unmarshal([]byte(text), &status); err != nil {
					return err
				}
				found := map[string]float64{}
				for _, server := range status.Servers {
					if found[server.Address] = 0; server.Problem == "" {
						found[server.Address] = 1
					}
				}
				return kit.OrError(status.Digest == read.Digest() && found[addresses[0]] == enforced[0] && found[addresses[1]] == enforced[1],
					"want digest %s, published is %s", read.Digest(), text)
			})
		}
		publishes("only the first reads a file of a writer", 1, 0)
		about := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: list.Name}}
		kit.HasEvent(t, about, "BlockListNotEnforced", addresses[1])
		all[1].write(t, writer)
		list.Data["users"] = "mallory"
		kit.Update(t, list) // without a change, the manager would look again after 16 seconds
		publishes("both do", 1, 1)
		kit.AnEvent(t, about, "BlockListEnforced", func(event *eventsv1.Event) bool { return event.Type == corev1.EventTypeNormal })
		all[0].writer.Kill() // a writer would log that it does not replace the stranger's file
		kit.Write(t, all[0].file, []byte("# a stranger's\n"+authorization.Default))
		list.Data["users"] = "mallory\nzoe"
		kit.Update(t, list)
		publishes("the first has a stranger's file", 0, 1)
	})
}
