package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// printToken runs the real command, creates the printed objects, and returns the Secret and the token.
func printToken(t *testing.T, args ...string) (secret *unstructured.Unstructured, token string) {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), path, append([]string{"bootstrap-token"}, args...)...)
	// The command calls no server, so it needs no cluster.
	command.Env, command.Stdout, command.Stderr = []string{"KUBECONFIG=/nonexistent"}, &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	found := regexp.MustCompile(`^# ([a-z0-9]{6}\.[a-z0-9]{16}) is the token of node [^\n]+\n$`).FindStringSubmatch(stderr.String())
	if found == nil {
		t.Fatalf("aside: %s", stderr.String())
	}
	documents := yaml.NewYAMLOrJSONDecoder(&stdout, 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := documents.Decode(obj); errors.Is(err, io.EOF) {
			return secret, found[1]
		} else if err != nil {
			t.Fatal(err)
		}
		kit.Create(t, kit.Admin(t), obj)
		if obj.GetKind() == "Secret" {
			secret = obj
		}
	}
}

// TestBootstrapTokenCommand uses a token as a kubelet does. The API server knows it, in the node's group and in no
// other group that kubeadm binds. Bindings to that group permit its certificate.
func TestBootstrapTokenCommand(t *testing.T) {
	kit.Parallel(t)
	secret, token := printToken(t, "--node", "token-a")
	c, err := client.New(kit.WithToken(t, token), client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	who := &authenticationv1.SelfSubjectReview{}
	if err := c.Create(t.Context(), who); err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(token, ".")
	user := who.Status.UserInfo
	slices.Sort(user.Groups)
	want := []string{"system:authenticated", "system:bootstrappers", csr.TokenGroup("token-a")}
	if user.Username != "system:bootstrap:"+id || !slices.Equal(user.Groups, want) {
		t.Errorf("the token is user %s in groups %q, want %q", user.Username, user.Groups, want)
	}

	kit.InstallRBAC(t)
	kit.GrantGroup(t, csr.TokenGroup("token-a"), kit.MayCreate)
	kit.GrantGroup(t, csr.TokenGroup("token-a"), kit.MayJoin)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false")
	obj := kit.NodeRequest(t, "token-a")
	kit.Eventually(t, "the authorizer knows of the bindings", func(ctx context.Context) error { return c.Create(ctx, obj) })
	t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), obj) })
	issued := kit.Reaches(t, obj, csr.Issued)
	if got := kit.Leaf(t, issued).Subject.CommonName; got != "system:node:token-a" {
		t.Errorf("common name %s", got)
	}

	if err := kit.Admin(t).Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	ends(t, c)
}

// TestBootstrapTokenEnds checks that the API server accepts a token until its expiry, and with kubeadm's group if
// that was requested.
func TestBootstrapTokenEnds(t *testing.T) {
	kit.Parallel(t)
	const lifetime = 4 * time.Second
	start := time.Now()
	_, token := printToken(t, "--node=token-b", "--kubeadm", "--ttl="+lifetime.String())
	c, err := client.New(kit.WithToken(t, token), client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	who := &authenticationv1.SelfSubjectReview{}
	if err := c.Create(t.Context(), who); err != nil && time.Since(start) < lifetime-time.Second {
		t.Fatal(err)
	} else if err == nil {
		for _, group := range []string{csr.TokenGroup("token-b"), "system:bootstrappers:kubeadm:default-node-token"} {
			if !slices.Contains(who.Status.UserInfo.Groups, group) {
				t.Errorf("group %s is not among %q", group, who.Status.UserInfo.Groups)
			}
		}
	}
	time.Sleep(time.Until(start.Add(lifetime)))
	ends(t, c)
}

// ends waits until the API server no longer accepts c's token. It caches authentications for ten seconds.
func ends(t *testing.T, c client.Client) {
	t.Helper()
	kit.Eventually(t, "the token ends", func(ctx context.Context) error {
		err := c.Create(ctx, &authenticationv1.SelfSubjectReview{})
		if apierrors.IsUnauthorized(err) {
			return nil
		}
		return fmt.Errorf("it is still known, or: %w", err)
	})
}
