package manifests

import (
	"context"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

const nodeBootstrap = "node-bootstrap"

// testNodesJoin installs config/default with the component on a cluster that kubeadm did not make. A
// bootstrap token of the component's group joins a node, which then renews. A token of another group may not even ask.
func (u *upgrade) testNodesJoin(t *testing.T) {
	u.roll(t, install{name: "nodes that join", components: []string{nodeBootstrap}})
	joiner := u.token(t, "joiner", "system:bootstrappers:kubeadm:default-node-token")
	other := u.token(t, "others", "system:bootstrappers:others")
	node := u.certified(t, "the node joins", joiner)
	u.certified(t, "the node renews", node)
	if err := kit.ClientOf(t, other).Create(t.Context(), kit.NodeRequest(t, "a")); !apierrors.IsForbidden(err) {
		t.Errorf("a token of another group asks: %v", err)
	}
}

// token returns the configuration of a new bootstrap token of that group. It waits until the API server knows the token.
func (u *upgrade) token(t *testing.T, id, group string) *rest.Config {
	t.Helper()
	const secret = "0123456789abcdef"
	u.make(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "auth-extra-groups": group},
	})
	cfg := rest.AnonymousClientConfig(u.Config)
	cfg.BearerToken = id + "." + secret
	u.within(t, "the API server knows the token", func(ctx context.Context) error {
		_, err := kubelet.WhoAmI(ctx, cfg)
		return err
	})
	return cfg
}

// certified asks for a certificate of node a with by, and returns a configuration with the certificate.
func (u *upgrade) certified(t *testing.T, what string, by *rest.Config) (cfg *rest.Config) {
	t.Helper()
	node := &kubelet.Node{Name: "a", Dir: t.TempDir(), Bootstrap: by}
	u.within(t, what, func(ctx context.Context) error { // a new right takes a moment
		cert, err := node.Join(ctx)
		if err == nil {
			cfg, err = node.ConfigFor(cert)
		}
		return err
	})
	return cfg
}

// TestChartNodeBootstrap compares the bindings of the chart with the component: with its group, and with another group
// that the reader of docs/how-to/deploy.md chooses. The self-check must ask about the group that is bound.
func TestChartNodeBootstrap(t *testing.T) {
	t.Parallel()
	const first, last = "components:\n- ../node-bootstrap\n", "- {op: replace, path: /subjects/0/name, value: \"system:bootstrappers:workers\"}\n"
	chosen := regexp.MustCompile(`(?s)` + regexp.QuoteMeta(first) + `.*?` + regexp.QuoteMeta(last)).FindString(string(read(t, filepath.Join(root, "docs/how-to/deploy.md"))))
	without := helm(t)
	for name, test := range map[string]struct {
		text, value, group string
	}{
		"the default": {first, "", "system:bootstrappers:kubeadm:default-node-token"},
		"another":     {chosen, ",nodeBootstrap.group=system:bootstrappers:workers", "system:bootstrappers:workers"},
	} {
		all := helm(t, "--set=nodeBootstrap.enabled=true"+test.value)
		accept(t, all)
		if got := load(t, all)["csr-controller-manager"].SelfCheck.BootstrapGroups; !cmp.Equal(got, []string{test.group}) {
			t.Errorf("%s: the self-check asks about %q", name, got)
		}
		if want := myCluster(t, test.text); len(want) != 3 {
			t.Errorf("%s: %d bindings", name, len(want))
		}
		same(t, myCluster(t, test.text), added(without, all))
	}
	mine := helm(t, "--set=nodeBootstrap.enabled=true", `--set-json=config.selfCheck.bootstrapGroups=["system:bootstrappers:mine"]`)
	if got := load(t, mine)["csr-controller-manager"].SelfCheck.BootstrapGroups; !cmp.Equal(got, []string{"system:bootstrappers:mine"}) {
		t.Errorf("the self-check asks about %q, not about the configured group", got)
	}
}

// TestConfigurePage renders the kustomization of docs/how-to/configure.md beside the shipped configuration, and loads the configuration
// of the page.
func TestConfigurePage(t *testing.T) {
	t.Parallel()
	page := string(read(t, filepath.Join(root, "docs/how-to/configure.md")))
	blocks := regexp.MustCompile("(?s)```yaml\n(apiVersion: .*?)```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d whole files", len(blocks))
	}
	all := myCluster(t, blocks[0][1])
	for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
		if got := deployment.Spec.Template.Spec.Containers[0].Image; got != "registry.example.com/csr-controller-manager:dev" {
			t.Errorf("%s has the image %s", name, got)
		}
	}
	if loaded := load(t, all); len(loaded) != 3 || loaded[signer].Signing.Secret != systemNamespace+"/"+signingSecret {
		t.Errorf("%+v", loaded)
	}
	accept(t, all)
	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.Write(t, file, []byte(blocks[1][1]))
	loaded, err := config.Load([]string{"--config=" + file})
	if err != nil || !loaded.Approval.KubeletServing.Enabled || loaded.NodeBlockList != systemNamespace+"/csr-node-block-list" {
		t.Errorf("error %v, loaded %+v", err, loaded)
	}
}

// myCluster renders a kustomization in a folder like config/my-cluster, with a copy of the shipped configuration.
func myCluster(t *testing.T, text string) objects {
	t.Helper()
	return inFolder(t, root, map[string]string{"kustomization.yaml": text, "config.yaml": shippedConfig(t, root)})
}
