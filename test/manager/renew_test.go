package manager

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// TestRenewKubeconfig renews the certificate in a kubeconfig for the same user and groups. What it refuses stays as it is, and no
// program that a file names is run.
func TestRenewKubeconfig(t *testing.T) {
	kit.Parallel(t)
	p := start(t)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	dir := t.TempDir()
	write := func(name string, change func(*clientcmdapi.AuthInfo), groups ...string) (path string, cfg *rest.Config) {
		cfg = kit.Must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: name, Groups: groups}, nil))(t).Config()
		content := kit.Must(clientcmd.Load(kit.Must(cluster.Kubeconfig(cfg))(t)))(t)
		for _, user := range content.AuthInfos {
			change(user)
		}
		path = filepath.Join(dir, name)
		kit.NoError(t, clientcmd.WriteToFile(*content, path))
		return path, cfg
	}
	same := func(*clientcmdapi.AuthInfo) {}

	path, old := write("renew-me", same, "dev", "ops")
	kit.NoError(t, os.Chmod(path, 0o640))
	plugin(t, 0, "renew --yes "+path, `user "renew-me", groups ["dev" "ops"]`, path+" renewed; the old file is "+path+".before-")
	cfg := kit.Must(clientcmd.BuildConfigFromFlags("", path))(t)
	who := kit.Must(kubelet.WhoAmI(t.Context(), cfg))(t)
	kit.Check(t, who.Username == "renew-me" && slices.Contains(who.Groups, "dev") && slices.Contains(who.Groups, "ops"), "it is %+v", who)
	kit.Check(t, !bytes.Equal(cfg.CertData, old.CertData), "the certificate is the old one")
	kit.Equal(t, "mode", kit.Must(os.Stat(path))(t).Mode().Perm(), 0o640)
	copies := kit.Must(filepath.Glob(path + ".before-*"))(t)
	kit.Require(t, len(copies) == 1, "copies: %q", copies)
	kit.Equal(t, "the old certificate", string(kit.Must(clientcmd.BuildConfigFromFlags("", copies[0]))(t).CertData), string(old.CertData))

	ran := filepath.Join(dir, "ran")
	stranger := kit.NewCA(t)
	for name, test := range map[string]struct {
		change func(*clientcmdapi.AuthInfo)
		groups []string
		says   string
	}{
		"renew-master":  {same, []string{"system:masters"}, "group system:masters"},
		"renew-token":   {func(user *clientcmdapi.AuthInfo) { user.ClientCertificateData, user.Token = nil, "x" }, nil, "holds no client certificate"},
		"renew-kubelet": {func(user *clientcmdapi.AuthInfo) { user.ClientCertificate = "/x/kubelet-client-current.pem" }, nil, "renew-kubelet on its node"},
		"renew-program": {func(user *clientcmdapi.AuthInfo) {
			user.Exec = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "touch", Args: []string{ran}, InteractiveMode: "Never"}
		}, nil, "a program gets its credential"},
		"renew-elsewhere": {func(user *clientcmdapi.AuthInfo) {
			user.ClientCertificateData, user.ClientKeyData = stranger.CertPEM, stranger.KeyPEM
		}, nil, "is of another cluster"},
	} {
		path, _ := write(name, test.change, test.groups...)
		before := kit.Must(os.ReadFile(path))(t)
		plugin(t, 1, "renew --yes "+path, path+" stays as it is: ", test.says)
		kit.Equal(t, name, string(kit.Must(os.ReadFile(path))(t)), string(before))
	}
	_, err := os.Stat(ran)
	kit.Check(t, os.IsNotExist(err), "a program of a kubeconfig was run")
	kit.NoError(t, p.Stop())
}

// TestRenewKubeconfigKeepsTheRest renews the certificate in a file that kubectl finds over a link, while another program changes that
// file. All else in it stays, and paths in it lead to where kubectl looks: the folder of the link.
func TestRenewKubeconfigKeepsTheRest(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "renew-waiter", kit.MayCreate) // its request waits for an approval
	p := start(t)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	dir := t.TempDir()
	path, target := filepath.Join(dir, "home", "config"), filepath.Join(dir, "store")
	kit.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	kit.NoError(t, os.Symlink(target, path))
	cfg := kit.Must(kit.ControlPlane(t).Env.AddUser(envtest.User{Name: "renew-linked"}, nil))(t).Config()
	kit.NoError(t, os.WriteFile(filepath.Join(dir, "home", "ca.crt"), cfg.CAData, 0o600))
	content := kit.Must(clientcmd.Load(kit.Must(cluster.Kubeconfig(cfg))(t)))(t)
	content.AuthInfos["other"] = &clientcmdapi.AuthInfo{Token: "kept"}
	content.Extensions["example.com"] = &runtime.Unknown{Raw: []byte(`{"a":"kept"}`)}
	for _, place := range content.Clusters {
		place.CertificateAuthorityData, place.CertificateAuthority = nil, "ca.crt"
	}
	kit.NoError(t, clientcmd.WriteToFile(*content, target))

	admin := kit.Kubeconfig(t, "renew-linked-admin", kit.ControlPlane(t).Config)
	command := exec.CommandContext(t.Context(), kit.Must(cluster.Plugin())(t), "renew", "--yes", "--kubeconfig", admin, "--as", "renew-waiter", path)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	kit.NoError(t, command.Start())
	var obj *kit.Request
	kit.Within(t, time.Minute, "the request waits", func(ctx context.Context) error {
		all := &certificatesv1.CertificateSigningRequestList{}
		err := kit.Admin(t).List(ctx, all)
		for i := range all.Items {
			if all.Items[i].Spec.Username == "renew-waiter" {
				obj = &all.Items[i]
			}
		}
		return kit.OrError(err == nil && obj != nil, "none of %d, error %w", len(all.Items), err)
	})
	kit.Kubectl(t, path, "config", "set-context", "added", "--cluster=cluster", "--user=other")
	kit.Approve(t, obj)
	kit.Check(t, command.Wait() == nil, "%s", output.String())

	after := kit.Must(clientcmd.LoadFromFile(path))(t)
	for name, user := range content.AuthInfos {
		if name != "other" {
			kit.Check(t, !bytes.Equal(after.AuthInfos[name].ClientCertificateData, user.ClientCertificateData), "user %s was not renewed", name)
			user.ClientCertificateData, user.ClientKeyData = after.AuthInfos[name].ClientCertificateData, after.AuthInfos[name].ClientKeyData
		}
	}
	content.Contexts["added"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "other"}
	kit.Equal(t, "the file", string(kit.Must(clientcmd.Write(*after))(t)), string(kit.Must(clientcmd.Write(*content))(t)))
	kit.Equal(t, "the link", kit.Must(os.Readlink(path))(t), target)
	kit.Equal(t, "user", kit.Must(kubelet.WhoAmI(t.Context(), kit.Must(clientcmd.BuildConfigFromFlags("", path))(t)))(t).Username, "renew-linked")
	kit.NoError(t, p.Stop())
}
