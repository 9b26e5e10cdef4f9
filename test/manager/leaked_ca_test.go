//go:build nightly

package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestLeakedCA follows docs/how-to/replace-a-leaked-ca.md. The API server of the test has the client CA file of the page
// from its start, and its nodes have no kubelets.
func TestLeakedCA(t *testing.T) {
	kit.Parallel(t)
	w := newTakeover(t)
	for _, obj := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kit.SystemNamespace}}, kit.SigningSecret(w.CA.CertPEM, w.CA.KeyPEM),
	} {
		if err := w.admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	w.startOurs(t, "--signing-secret="+kit.SystemNamespace+"/csr-signer")
	kit.IssuedBy(t, w.issued(t, "before"), w.CA)
	h := newLeakedHost(t, w)

	h.follow(t, "umask 077; mkdir -p new-ca")
	h.follow(t, "cat /etc/kubernetes/pki/ca.crt")
	h.follow(t, "kubectl -n csr-controller-manager-system create secret")
	replacement := &csrenv.CA{CertPEM: h.read(t, "new-ca/ca.crt")}
	kit.Eventually(t, "the new CA signs", func(context.Context) error {
		leaf := kit.Leaf(t, w.issued(t, "after"))
		return leaf.CheckSignatureFrom(kit.Certificate(t, replacement))
	})
	h.follow(t, "renew() {")
	for user, file := range map[string]string{
		"kubernetes-admin": "admin.conf", "kubernetes-super-admin": "super-admin.conf",
		"system:kube-controller-manager": "controller-manager.conf", "system:kube-scheduler": "scheduler.conf",
	} {
		kit.Eventually(t, user+" is known", func(context.Context) error {
			return h.kubectl(t, user, "--kubeconfig", "kubernetes/"+file, "--user", user, "auth", "whoami")
		})
	}

	old := []string{"--client-certificate", "old.crt", "--client-key", "old.key", "get", "nodes"}
	if err := h.kubectl(t, "", old...); err != nil {
		t.Fatal(err)
	}
	h.follow(t, "cp new-ca/ca.crt")
	kit.Eventually(t, "the API server refuses the old CA", func(context.Context) error {
		err := h.kubectl(t, "", old...)
		if err == nil {
			return errors.New("it accepts a certificate of the old CA")
		}
		if !strings.Contains(err.Error(), "(Unauthorized)") {
			return err
		}
		return nil
	})
	if err := h.kubectl(t, "", "--kubeconfig", "kubernetes/super-admin.conf", "--user", "kubernetes-super-admin", "get", "nodes"); err != nil {
		t.Error(err)
	}
}

// leakedHost is a folder that stands for a control-plane node.
type leakedHost struct {
	dir   string
	page  string
	paths *strings.Replacer
	env   []string
}

// newLeakedHost returns a host with an administrator's kubeconfig, whose certificate is of an old CA, as old.crt and old.key.
func newLeakedHost(t *testing.T, w *takeover) *leakedHost {
	t.Helper()
	h := &leakedHost{dir: t.TempDir(), page: howTo(t, "replace-a-leaked-ca.md")}
	h.paths = strings.NewReplacer("/etc/kubernetes/pki/client-ca.crt", w.ClientCAFile(), "/etc/kubernetes", filepath.Join(h.dir, "kubernetes"))
	kubeconfig, err := w.WriteKubeconfig("host", w.Config)
	if err != nil {
		t.Fatal(err)
	}
	h.env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
	admin, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := os.ReadFile(w.ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(h.dir, "kubernetes", "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"kubernetes/pki/ca.crt": trusted, "old.crt": w.Config.CertData, "old.key": w.Config.KeyData,
		"kubernetes/admin.conf": admin, "kubernetes/super-admin.conf": admin,
		"kubernetes/controller-manager.conf": admin, "kubernetes/scheduler.conf": admin,
	} {
		kit.Write(t, filepath.Join(h.dir, name), data)
	}
	return h
}

func (h *leakedHost) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// elsewhere matches the commands of the page for what a test's control plane has not: static Pods, and roles of kubelets.
var elsewhere = regexp.MustCompile(`(?m)^ *(sed -i|kubectl csr check).*$`)

// follow runs the block of commands of the page that begins with start.
func (h *leakedHost) follow(t *testing.T, start string) {
	t.Helper()
	block := regexp.MustCompile("(?s)```sh\n( *" + regexp.QuoteMeta(start) + ".*?)```").FindStringSubmatch(h.page)
	if block == nil {
		t.Fatalf("the page has no commands that begin with %q", start)
	}
	script := exec.CommandContext(t.Context(), "bash", "-ec", h.paths.Replace(elsewhere.ReplaceAllString(block[1], "")))
	script.Dir, script.Env = h.dir, h.env
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", block[1], err, out)
	}
}

// kubectl runs a kubectl, whose output must contain want.
func (h *leakedHost) kubectl(t *testing.T, want string, args ...string) error {
	t.Helper()
	command := exec.CommandContext(t.Context(), "kubectl", args...)
	command.Path = filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	command.Dir, command.Env = h.dir, h.env
	out, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %q: %w\n%s", args, err, out)
	}
	if !strings.Contains(string(out), want) {
		return fmt.Errorf("kubectl %q prints %q", args, out)
	}
	return nil
}
