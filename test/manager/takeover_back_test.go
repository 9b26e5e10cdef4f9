//go:build nightly

package manager

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestTakeoverBackWithAnotherCA follows the way back of docs/how-to/migrate-from-kcm.md when the files of kube-controller-manager hold
// an old CA: it gets the one in the Secret.
func TestTakeoverBackWithAnotherCA(t *testing.T) {
	kit.Parallel(t)
	w := newTakeover(t)
	rotated := kit.NewCA(t)
	for _, obj := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kit.SystemNamespace}}, kit.SigningSecret(rotated.CertPEM, rotated.KeyPEM),
	} {
		if err := w.admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	beside := w.startOurs(t, "--signing-secret="+kit.SystemNamespace+"/csr-signer")
	kit.IssuedBy(t, w.issued(t, "rotated"), rotated)

	w.runOnHost(t, "install -d")
	flags := append(w.caFlags(t), patchedFlags(t, "other-ca")...)
	for i := range flags {
		flags[i] = w.onHost(flags[i])
	}
	w.startTheirs(t, kubeadmControllers, flags...)
	if err := beside.Stop(); err != nil {
		t.Fatal(err)
	}
	w.issuedBy(t, "back", theirs, theirs)
	kit.IssuedBy(t, w.issued(t, "back-again"), rotated)
}

// onHost replaces the folder of the control-plane node by one of the test.
func (w *takeover) onHost(text string) string {
	return strings.ReplaceAll(text, "/etc/kubernetes/pki/csr-signer", filepath.Join(w.Dir, "csr-signer"))
}

// runOnHost runs the commands of the page that begin with start.
func (w *takeover) runOnHost(t *testing.T, start string) {
	t.Helper()
	block := regexp.MustCompile("(?s)```sh\n( *" + start + ".*?)```").FindStringSubmatch(howTo(t, migrationPage))
	if block == nil {
		t.Fatalf("the page has no commands that begin with %q", start)
	}
	kubeconfig, err := w.WriteKubeconfig("host", w.Config)
	if err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(t.Context(), "bash", "-ec", w.onHost(block[1]))
	script.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
	if out, err := script.CombinedOutput(); err != nil || string(out) != "1\n" {
		t.Fatalf("%s: %v\n%s", block[1], err, out)
	}
}
