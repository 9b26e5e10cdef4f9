//go:build nightly

package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// blockOf returns the commands of a page that begin with start.
func blockOf(t *testing.T, page, start string) string {
	t.Helper()
	block := regexp.MustCompile("(?s)```sh\n( *" + regexp.QuoteMeta(start) + ".*?)```").FindStringSubmatch(howTo(t, page))
	if block == nil {
		t.Fatalf("the page has no commands that begin with %q", start)
	}
	return block[1]
}

// shell runs commands in a folder with a kubectl, as an administrator, and returns their output.
func shell(t *testing.T, dir, commands string) (string, error) {
	t.Helper()
	kubeconfig := kit.Kubeconfig(t, "shell", kit.ControlPlane(t).Config)
	script := exec.CommandContext(t.Context(), "bash", "-ec", commands)
	script.Dir = dir
	script.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
	out, err := script.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", commands, err, out)
	}
	return string(out), err
}

// clone is the folder of the repository.
var clone = filepath.Join("..", "..")

// run is shell for commands that succeed.
func run(t *testing.T, dir, commands string) string {
	t.Helper()
	return kit.Must(shell(t, dir, commands))(t)
}

// TestNodeDoesNotJoin follows docs/symptoms.md for a bootstrap token without rights: its kubelet may not create a request, and
// then its request waits.
func TestNodeDoesNotJoin(t *testing.T) {
	kit.Parallel(t)
	start(t)
	page := howTo(t, "../symptoms.md")
	find := regexp.MustCompile(`(?m)^kubectl describe csr \| grep.*$`).FindString(page)
	describe := regexp.MustCompile(`(?m)^kubectl describe csr NAME.*$`).FindString(page)
	repair := map[string]string{}
	for _, match := range regexp.MustCompile("`(kubectl create clusterrolebinding (csr-[a-z]+) [^`]+)`").FindAllStringSubmatch(page, -1) {
		repair[match[2]] = match[1]
	}
	if find == "" || describe == "" || len(repair) != 2 {
		t.Fatalf("commands of the page: %q, %q, %q", find, describe, repair)
	}

	// A bootstrap token without rights.
	kubelet := kit.Impersonate(t, "system:bootstrap:abcdef", "system:bootstrappers", "system:authenticated")
	obj := kit.NodeRequest(t, "worker-1")
	err := kubelet.Create(t.Context(), obj)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `is forbidden: User "system:bootstrap:abcdef" cannot create resource`) {
		t.Fatalf("%v: not the text of the page", err)
	}
	run(t, clone, repair["csr-create"])
	kit.Eventually(t, "the token may create requests", func(ctx context.Context) error { return kubelet.Create(ctx, obj) })

	found := regexp.MustCompile(`(?m)^Name: +(\S+)$`).FindStringSubmatch(run(t, clone, find))
	if found == nil || found[1] != obj.Name {
		t.Fatalf("%s finds %q, want %s", find, found, obj.Name)
	}
	kit.Eventually(t, "the reason", func(context.Context) error {
		out := run(t, clone, strings.Replace(describe, "NAME", found[1], 1))
		return kit.OrError(strings.Contains(out, "NotAuthorized"), "%s", out)
	})
	run(t, clone, repair["csr-join"])
	kit.Reaches(t, obj, csr.Issued)
}

// TestApproverOnly runs the first command of docs/how-to/approver-only.md. It then runs what that has installed, with its
// configuration, its flags and its ServiceAccount, beside the real kube-controller-manager, which signs.
func TestApproverOnly(t *testing.T) {
	kit.Parallel(t)
	own(t)
	startTheirs(t, kubeadmControllers)
	const page = "approver-only.md"
	run(t, clone, blockOf(t, page, "kubectl apply"))
	edits := regexp.MustCompile(`(?m)^ *sed -i '/\^serverTLSBootstrap.*$`).FindString(howTo(t, page))
	dir := t.TempDir()
	file := filepath.Join(dir, "kubelet.yaml")
	kit.Write(t, file, []byte("serverTLSBootstrap: false\nkind: KubeletConfiguration\n"))
	run(t, dir, strings.ReplaceAll(edits, "/var/lib/kubelet/config.yaml", file))
	kit.Equal(t, edits, string(kit.Must(os.ReadFile(file))(t)), "kind: KubeletConfiguration\nserverTLSBootstrap: true\n")
	approver := startInstalled(t)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
	kit.Create(t, kit.Admin(t), node)
	created := node.DeepCopy() // kube-controller-manager writes to the Node, too
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	kit.NoError(t, kit.Admin(t).Status().Patch(t.Context(), node, client.MergeFrom(created)))
	foreign, asked := asksFor(t, "worker-1", "worker-1", "192.0.2.2"), asksFor(t, "worker-1", "worker-1", "192.0.2.1")
	issuedBy(t, kit.Reaches(t, asked, csr.Issued), ours, theirs)
	kit.IsIn(t, foreign, csr.Pending)
	approver.Answers(t, approver.Probes, "/readyz", http.StatusOK)
}

// startInstalled runs the container of the only Deployment as a process, and waits until it is ready.
func startInstalled(t *testing.T) *kit.Process {
	t.Helper()
	all, configuration := &appsv1.DeploymentList{}, &corev1.ConfigMap{}
	if err := kit.Admin(t).List(t.Context(), all, client.InNamespace(kit.SystemNamespace)); err != nil || len(all.Items) != 1 {
		t.Fatalf("%d Deployments, error %v", len(all.Items), err)
	}
	pod := all.Items[0].Spec.Template.Spec
	kit.NoError(t, kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: pod.Volumes[0].ConfigMap.Name}, configuration))
	dir := t.TempDir()
	kit.Write(t, filepath.Join(dir, "config.yaml"), []byte(configuration.Data["config.yaml"]))
	args := []string{"--signing-secret="} // which every test gives
	for _, arg := range pod.Containers[0].Args {
		args = append(args, strings.Replace(arg, pod.Containers[0].VolumeMounts[0].MountPath, dir, 1))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: pod.ServiceAccountName}}
	p := kit.StartManager(t, kit.TokenOf(t, account), args...)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	return p
}

// TestTakeoverBackWithAnotherCA follows the way back of docs/how-to/migrate-from-kcm.md when the files of kube-controller-manager hold
// an old CA: it gets the one in the Secret.
func TestTakeoverBackWithAnotherCA(t *testing.T) {
	kit.Parallel(t)
	own(t)
	cfg, rotated := kit.ManagerConfig(t), kit.NewCA(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(rotated.CertPEM, rotated.KeyPEM))
	beside := kit.StartManager(t, cfg, "--leader-elect=false")
	kit.IssuedBy(t, issues(t, "rotated"), rotated)

	dir := t.TempDir()
	onHost := func(text string) string {
		return strings.ReplaceAll(text, "/etc/kubernetes/pki/csr-signer", filepath.Join(dir, "csr-signer"))
	}
	kit.Equal(t, "output", run(t, dir, onHost(blockOf(t, migrationPage, "install -d"))), "1\n")
	flags := patchedFlags(t, "other-ca")
	for i := range flags {
		flags[i] = onHost(flags[i])
	}
	startTheirs(t, kubeadmControllers, flags...)
	kit.NoError(t, beside.Stop())
	back := issues(t, "back")
	issuedBy(t, back, theirs, theirs)
	kit.IssuedBy(t, back, rotated)
}

// TestLeakedCA follows docs/how-to/replace-a-leaked-ca.md. The API server of the test has the client CA file of the page
// from its start, and its nodes have no kubelets.
func TestLeakedCA(t *testing.T) {
	kit.Parallel(t)
	own(t)
	cfg := kit.ManagerConfig(t)
	signingSecret(t)
	kit.StartManager(t, cfg, "--leader-elect=false")
	plane := kit.ControlPlane(t)
	kit.IssuedBy(t, issues(t, "before"), plane.CA)
	dir := leakedHost(t)
	// Not what a test's control plane has not: static Pods, and roles of kubelets.
	elsewhere := regexp.MustCompile(`(?m)^ *(sed -i|kubectl csr check).*$`)
	paths := strings.NewReplacer("/etc/kubernetes/pki/client-ca.crt", plane.ClientCAFile(), "/etc/kubernetes", filepath.Join(dir, "kubernetes"))
	follow := func(start string) {
		t.Helper()
		run(t, dir, paths.Replace(elsewhere.ReplaceAllString(blockOf(t, "replace-a-leaked-ca.md", start), "")))
	}

	follow("umask 077; mkdir -p new-ca")
	follow("cat /etc/kubernetes/pki/ca.crt")
	follow("kubectl -n csr-controller-manager-system create secret")
	made := kit.Must(os.ReadFile(filepath.Join(dir, "new-ca", "ca.crt")))(t)
	kit.Eventually(t, "the new CA signs", func(context.Context) error {
		return kit.Leaf(t, issues(t, "after")).CheckSignatureFrom(kit.Certificate(t, &csrenv.CA{CertPEM: made}))
	})
	follow("renew() {")
	for user, file := range map[string]string{
		"kubernetes-admin": "admin.conf", "kubernetes-super-admin": "super-admin.conf",
		"system:kube-controller-manager": "controller-manager.conf", "system:kube-scheduler": "scheduler.conf",
	} {
		kit.Eventually(t, user+" is known", func(context.Context) error {
			out, err := shell(t, dir, "kubectl --kubeconfig kubernetes/"+file+" --user "+user+" auth whoami")
			return errors.Join(err, kit.OrError(strings.Contains(out, user), "it is %s", out))
		})
	}

	const old = "kubectl --client-certificate old.crt --client-key old.key get nodes"
	run(t, dir, old)
	follow("cp new-ca/ca.crt")
	kit.Eventually(t, "the API server refuses the old CA", func(context.Context) error {
		_, err := shell(t, dir, old)
		refused := err != nil && strings.Contains(err.Error(), "(Unauthorized)")
		return kit.OrError(refused, "it accepts a certificate of the old CA, or %w", err)
	})
	run(t, dir, "kubectl --kubeconfig kubernetes/super-admin.conf --user kubernetes-super-admin get nodes")
}

// leakedHost makes a folder that stands for a control-plane node. It has the administrator's kubeconfigs, whose certificate is
// of an old CA, also as old.crt and old.key.
func leakedHost(t *testing.T) (dir string) {
	t.Helper()
	plane := kit.ControlPlane(t)
	dir = t.TempDir()
	run(t, dir, "mkdir -p kubernetes/pki; "+
		"for name in admin super-admin controller-manager scheduler; do cp "+kit.Kubeconfig(t, "host", plane.Config)+" kubernetes/$name.conf; done; "+
		"cp "+plane.ClientCAFile()+" kubernetes/pki/ca.crt")
	kit.Write(t, filepath.Join(dir, "old.crt"), plane.Config.CertData)
	kit.Write(t, filepath.Join(dir, "old.key"), plane.Config.KeyData)
	return dir
}
