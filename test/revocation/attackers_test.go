package revocation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestAttackers checks what attackers try with a valid credential. Others never notice.
func TestAttackers(t *testing.T) {
	kit.Parallel(t)
	withWorld(t, t.TempDir(), func(t *testing.T, w *world) {
		for name, attack := range map[string]func(*testing.T, *world){
			"impersonation": impersonate, "a front proxy": useFrontProxy, "names that are CEL": nameInCEL, "the right to write ConfigMaps": editList,
		} {
			t.Run(name, func(t *testing.T) {
				attack(t, w)
				w.follows(t)
			})
		}
	})
}

// impersonate checks that a blocked user can't act as another, that nobody acts as a blocked user, and that a user who may choose any
// extra data refuses only himself.
func impersonate(t *testing.T, w *world) {
	eve, _ := user(t, "eve")
	bob := rest.ImpersonationConfig{UserName: "bob", Groups: []string{"system:authenticated"}}
	as := func(cfg *rest.Config, node string, keys ...string) *rest.Config {
		cfg = rest.CopyConfig(cfg)
		cfg.Impersonate = bob
		for _, key := range keys {
			cfg.Impersonate.Extra = map[string][]string{key: {"w2", node}}
		}
		return cfg
	}
	w.set(t, map[string]string{"nodes": ""})
	eventuallyWorks(t, "mallory", w.mallory, w.hosts...)
	mayImpersonate(t, "mallory") // it waits until the first API server says so
	mayImpersonate(t, "eve")
	eventuallyWorks(t, "mallory as bob", as(w.mallory, ""), w.hosts...)
	w.set(t, map[string]string{"nodes": "w1\n" + numbered("node-%d\n", 1000), "users": "mallory"})
	eventuallyRefused(t, "mallory", w.mallory, w.hosts...)
	eventuallyRefused(t, "mallory as bob", as(w.mallory, ""), w.hosts...)
	for _, name := range []string{"mallory", "system:node:w1"} {
		cfg := rest.CopyConfig(eve)
		cfg.Impersonate.UserName = name
		eventuallyRefused(t, "eve as "+name, cfg, w.hosts...)
	}
	for _, key := range []string{csr.NodeNameKey, "Authentication.Kubernetes.Io/Node-Name", strings.ToUpper(csr.NodeNameKey)} {
		eventuallyRefused(t, "eve as bob on w1 by "+key, as(eve, "w1", key), w.hosts...)
		eventuallyWorks(t, "eve as bob on w10 by "+key, as(eve, "w10", key), w.hosts...)
	}
	bob.Extra = map[string][]string{csr.NodeNameKey: strings.Fields(numbered("other-%d ", 3000))} // nobody has so many
	eventuallyRefused(t, "eve with 3,000 values", as(eve, ""), w.hosts...)
	eventuallyWorks(t, "eve", eve, w.hosts...)
	bob.Extra = map[string][]string{"scopes": strings.Fields(numbered("other-%d ", 3000))}
	eventuallyWorks(t, "eve with 3,000 values that no condition reads", as(eve, ""), w.hosts...)
}

// numbered returns count texts.
func numbered(format string, count int) string {
	var text strings.Builder
	for i := range count {
		fmt.Fprintf(&text, format, i)
	}
	return text.String()
}

// mayImpersonate lets name impersonate every user, on every node.
func mayImpersonate(t *testing.T, name string) {
	t.Helper()
	kit.GrantRule(t, name, "", "users", "impersonate")
	kit.GrantRule(t, name, "", "groups", "impersonate")
	kit.GrantRule(t, name, "authentication.k8s.io", "userextras/"+csr.NodeNameKey, "impersonate")
	kit.GrantRule(t, name, "authentication.k8s.io", "userextras/scopes", "impersonate")
}

// headers adds headers to each request.
type headers struct {
	http.Header
	next http.RoundTripper
}

// RoundTrip sends request.
func (h headers) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	for name, values := range h.Header {
		request.Header[name] = values // in the case in which name is written
	}
	return h.next.RoundTrip(request)
}

// behindProxy returns the configuration of a front proxy that sends header. protocol is h2 or http/1.1.
func behindProxy(h *host, protocol string, header http.Header) *rest.Config {
	dir := filepath.Dir(h.file)
	cfg := &rest.Config{Host: h.config.Host, TLSClientConfig: rest.TLSClientConfig{
		CAData: h.config.CAData, CertFile: filepath.Join(dir, "front-proxy.crt"), KeyFile: filepath.Join(dir, "front-proxy.key"), NextProtos: []string{protocol},
	}}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return headers{header, next} })
	return cfg
}

// useFrontProxy checks that a blocked user, and a token of a blocked node, are refused behind a front proxy, however the proxy writes
// the names of its headers.
func useFrontProxy(t *testing.T, w *world) {
	w.set(t, map[string]string{"nodes": "w1", "users": "mallory\nzoe"})
	eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
	const extra = "X-Remote-Extra-"
	for name, test := range map[string]struct {
		header  http.Header
		refused bool
	}{
		"bob":                       {http.Header{"X-Remote-User": {"bob"}}, false},
		"mallory":                   {http.Header{"X-Remote-User": {"mallory"}}, true},
		"another user":              {http.Header{"X-Remote-User": {"MALLORY"}}, false},
		"node":                      {http.Header{"X-Remote-User": {"bob"}, extra + "authentication.kubernetes.io%2fnode-name": {"w1"}}, true},
		"node in odd case":          {http.Header{"X-Remote-User": {"bob"}, "x-REMOTE-extra-Authentication.Kubernetes.Io%2FNode%2dName": {"w1"}}, true},
		"another node":              {http.Header{"X-Remote-User": {"bob"}, extra + "authentication.kubernetes.io%2fnode-name": {"w10"}}, false},
		"key that is escaped twice": {http.Header{"X-Remote-User": {"bob"}, extra + "authentication.kubernetes.io%252fnode-name": {"w1"}}, false},
	} {
		test.header["X-Remote-Group"] = []string{"system:authenticated"}
		for _, protocol := range []string{"h2", "http/1.1"} {
			for _, h := range w.hosts {
				err := ask(t.Context(), behindProxy(h, protocol, test.header))
				kit.Check(t, refused(err) == test.refused && (err != nil) == test.refused, "%s over %s: %v", name, protocol, err)
			}
		}
	}
}

// nameInCEL checks that names that look like CEL, YAML or Go are refused exactly, and refuse nobody else.
func nameInCEL(t *testing.T, w *world) {
	blocked := map[string]*rest.Config{}
	lines := []string{"mallory"}
	for _, name := range []string{
		`"`, `'`, `\`, `\"`, `"] || true || ["`, `\"] || true || [\"`, "a\nb", "a\r\n- name: b", "a\x00b", "a\u2028b", "ü\u202e", "😀", `%s%d%!`, `{{.}}`, `$(id)`,
		"#", "a #b", "]", `"""`, `r"a"`, `\u0061`, "// b", "https://issuer#subject", strings.Repeat("long", 500),
	} {
		blocked[name], _ = user(t, name)
		lines = append(lines, string(kit.Must(json.Marshal(name))(t)))
	}
	for name, cfg := range blocked {
		eventuallyWorks(t, name, cfg, w.hosts...)
	}
	w.block(t, lines...)
	for name, cfg := range blocked {
		eventuallyRefused(t, name, cfg, w.hosts...)
	}
	for _, name := range []string{"a", "b", "true", "u", `""`, `\\`, "issuer"} {
		cfg, _ := user(t, name)
		eventuallyWorks(t, name, cfg, w.hosts...)
	}
}

// editList checks that a user who may write every ConfigMap in the namespace, but not block, can neither stop the scheduler nor unblock
// mallory, nor say that API servers enforce the list.
func editList(t *testing.T, w *world) {
	status := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.list.Namespace, Name: w.list.Name + entries.StatusSuffix}}
	kit.Create(t, kit.Admin(t), status)
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{ // kube-controller-manager would make the role edit of it
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Namespace: w.list.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "editor"}},
	})
	cfg, _ := user(t, "editor")
	editor := kit.ClientOf(t, cfg)
	dry := client.DryRunAll
	refuses := func(what string, write func(ctx context.Context) error) {
		t.Helper()
		kit.Within(t, 10*time.Second, what, func(context.Context) error { // a policy begins to apply soon after it was created
			err := write(t.Context())
			return kit.OrError(apierrors.IsForbidden(err), "want Forbidden, got %v", err)
		})
	}
	for _, obj := range []*corev1.ConfigMap{w.list, status} {
		other := obj.DeepCopy()
		other.ObjectMeta = metav1.ObjectMeta{Namespace: obj.Namespace, Name: "other"}
		kit.Eventually(t, "the editor may write ConfigMaps", func(ctx context.Context) error { return editor.Create(ctx, other.DeepCopy(), dry) })
		obj.Data = map[string]string{"nodes": "", "forcedUsers": "system:kube-scheduler"}
		refuses("update "+obj.Name, func(ctx context.Context) error { return editor.Update(ctx, obj.DeepCopy(), dry) })
		for _, patch := range []string{`{"data":{"users":""}}`, `{"immutable":true}`} {
			refuses("patch "+obj.Name, func(ctx context.Context) error {
				return editor.Patch(ctx, obj.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), dry)
			})
		}
		refuses("delete "+obj.Name, func(ctx context.Context) error { return editor.Delete(ctx, obj.DeepCopy(), dry) })
		refuses("delete all", func(ctx context.Context) error {
			return editor.DeleteAllOf(ctx, obj.DeepCopy(), client.InNamespace(obj.Namespace), client.MatchingFields{"metadata.name": obj.Name}, dry)
		})
		kit.Remove(t, obj)
		obj.ObjectMeta = metav1.ObjectMeta{Namespace: obj.Namespace, Name: obj.Name}
		refuses("create "+obj.Name, func(ctx context.Context) error { return editor.Create(ctx, obj.DeepCopy(), dry) })
	}
	w.staysRefused(t)
	w.list.Data = map[string]string{"nodes": "", "users": "mallory"}
	kit.NoError(t, kit.Admin(t).Create(t.Context(), w.list))
}
