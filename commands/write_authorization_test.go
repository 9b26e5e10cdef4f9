package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestWriteAuthorizationCommand checks the flags.
func TestWriteAuthorizationCommand(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     `required flag(s) "block-list", "to" not set`,
		"--block-list a --to /a":               `--block-list: "a" is not namespace/name`,
		"--block-list /a --to /a":              `--block-list: "/a" is not namespace/name`,
		"--block-list a/b --to a":              "--to: want an absolute path",
		"--block-list a/b --to /a --base /a":   "--to: want an absolute path, and another file than --base",
		"--block-list a/b --to /a --listen :1": `--listen: ":1" is not a loopback address`,
		"--block-list a/b --to /a --listen x":  `--listen: "x" is not a loopback address`,
		"--block-list a/b --to /a b":           `unknown command "b"`,
	} {
		err := Execute(t.Context(), append([]string{"write-authorization"}, strings.Fields(args)...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
}

// TestWriteAuthorization checks what is written, and when, and that the files stay as they are if the base or the target is invalid.
func TestWriteAuthorization(t *testing.T) {
	dir := t.TempDir()
	o := authorizationOptions{base: filepath.Join(dir, "base.yaml"), to: filepath.Join(dir, "authorization.yaml")}
	kubeconfig := o.to + ".kubeconfig"
	once := func(user, want string) {
		t.Helper()
		blocked, _, err := entries.Parse(map[string]string{"nodes": "", "users": user})
		kit.NoError(t, err)
		err = o.once(t.Context(), blocked, "writer", []byte("a kubeconfig"), logr.Discard())
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) || want == "" && err != nil {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	names := func(user string) {
		t.Helper()
		written := kit.Must(os.ReadFile(o.to))(t)
		kit.Check(t, bytes.Contains(written, []byte(`"`+user+`"`)), "%s is not in:\n%s", user, written)
	}
	once("alice", "base.yaml: no such file")
	put(t, o.base, []byte(authorization.Default))
	put(t, o.to, []byte(authorization.Default)) // as an administrator prepares a host
	once("alice", "")
	names("alice")
	first := kit.Must(os.Stat(o.to))(t)
	kit.Equal(t, "mode", first.Mode().Perm(), 0o644)
	kit.NoError(t, os.Remove(kubeconfig))
	once("alice", "")
	kit.Check(t, os.SameFile(first, kit.Must(os.Stat(o.to))(t)), "the file was replaced without a change")
	kit.Must(os.Stat(kubeconfig))(t)
	once("bob", "")
	names("bob")
	for base, want := range map[string]string{
		"kind: [": "base.yaml: ", "authorizers: {}": "base.yaml: authorizers: want a list",
		strings.Replace(authorization.Default, "RBAC", "Rbac", 1): "stays as it is: ",
	} {
		put(t, o.base, []byte(base))
		once("carol", want)
		names("bob")
	}
	put(t, o.base, []byte(authorization.Default))
	put(t, o.to, []byte("# a stranger's\n"+authorization.Default))
	once("carol", "was not created by this command")
	kit.NoError(t, os.Remove(o.to))
	once("carol", "")
	names("carol")
}

// TestWebhookRefuses checks what an API server gets that asks with the kubeconfig, after another process had the address.
func TestWebhookRefuses(t *testing.T) {
	other := kit.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	o := authorizationOptions{listen: other.Addr().String(), list: types.NamespacedName{Namespace: "n", Name: "list"}}
	logged := make(chan string, 1)
	kubeconfig, err := o.serve(t.Context(), funcr.New(func(_, args string) {
		select {
		case logged <- args:
		default:
		}
	}, funcr.Options{}))
	kit.NoError(t, err)
	text := <-logged
	kit.Check(t, strings.Contains(text, "address already in use"), "logged: %s", text)
	kit.NoError(t, other.Close())
	cfg := kit.Must(clientcmd.RESTConfigFromKubeConfig(kubeconfig))(t)
	client := kit.Must(rest.HTTPClientFor(cfg))(t)
	kit.Eventually(t, "the webhook answers", func(context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", o.listen)
		if err != nil {
			return err
		}
		return connection.Close()
	})
	post := func(body []byte) (int, string) {
		t.Helper()
		request := kit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, cfg.Host, bytes.NewReader(body)))(t)
		response := kit.Must(client.Do(request))(t)
		defer func() { _ = response.Body.Close() }()
		return response.StatusCode, string(kit.Must(io.ReadAll(response.Body))(t))
	}
	asked := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "a\nb\u202e"}}
	status, text := post(kit.Must(json.Marshal(asked))(t))
	kit.Equal(t, "status", status, http.StatusOK)
	answer := authorizationv1.SubjectAccessReview{}
	kit.NoError(t, json.Unmarshal([]byte(text), &answer))
	kit.Equal(t, "answer", answer.Status, authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: `blocked: a\nb\u202e, see ConfigMap n/list`})
	for name, body := range map[string]string{"no review": "x", "too much": `{"kind":"` + strings.Repeat("x", maxReview)} {
		status, text := post([]byte(body))
		kit.Check(t, status == http.StatusBadRequest && strings.Contains(text, "want a SubjectAccessReview"), "%s: %d %s", name, status, text)
	}
}
