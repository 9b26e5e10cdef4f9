package manager

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// kubeadmControllers is kubeadm's flag for kube-controller-manager.
const kubeadmControllers = "--controllers=*,bootstrapsigner,tokencleaner"

const theirs, ours = "kube-controller-manager", "csr-controller-manager"

const migrationPage = "migrate-from-kcm.md"

// howTo returns the text of a page.
func howTo(t *testing.T, name string) string {
	t.Helper()
	return string(kit.Must(os.ReadFile(filepath.Join("..", "..", "docs", "how-to", name)))(t))
}

// startKCM runs the real kube-controller-manager, with its flag --controllers.
func startKCM(t *testing.T, controllers string, flags ...string) *cluster.Process {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-") + "-kcm"
	kubeconfig := kit.Kubeconfig(t, name, kit.ControlPlane(t).Config)
	p := kit.Must(kit.ControlPlane(t).StartProcess(name, os.Getenv("KUBE_CONTROLLER_MANAGER"), append([]string{
		"--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=false", controllers,
	}, flags...)...))(t)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of the log of kube-controller-manager:\n%s", p.Tail(30))
		}
	})
	return p
}

// own runs the test on a control plane of its own: kube-controller-manager leaves objects everywhere.
func own(t *testing.T) {
	t.Helper()
	kit.WithAPIServer(t, nil, func(string, *envtest.Arguments) {})
}

// startTheirs is startKCM with the CA of the control plane. It returns once the other controllers work.
func startTheirs(t *testing.T, controllers string, flags ...string) *cluster.Process {
	t.Helper()
	p := startKCM(t, controllers, append(caFlags(t), flags...)...)
	controllersWork(t)
	return p
}

// controllersWork waits until kube-controller-manager has made the default ServiceAccount of a new namespace.
func controllersWork(t *testing.T) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sign-of-life-"}}
	kit.NoError(t, kit.Admin(t).Create(t.Context(), namespace))
	kit.Eventually(t, "the default ServiceAccount of a new namespace", func(ctx context.Context) error {
		return kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// startOurs runs a manager that signs from flags.
func startOurs(t *testing.T, flags ...string) *kit.Process {
	t.Helper()
	return kit.StartManager(t, kit.ManagerConfig(t), append([]string{"--leader-elect=false", "--signing-secret="}, flags...)...)
}

// caFlags name files with the CA of the control plane.
func caFlags(t *testing.T) []string {
	t.Helper()
	plane := kit.ControlPlane(t)
	cert, key := filepath.Join(plane.Dir, "ca.crt"), filepath.Join(plane.Dir, "ca.key")
	kit.Write(t, cert, plane.CA.CertPEM)
	kit.Write(t, key, plane.CA.KeyPEM)
	return []string{"--cluster-signing-cert-file=" + cert, "--cluster-signing-key-file=" + key}
}

// issues creates a request, which gets a certificate.
func issues(t *testing.T, node string) *kit.Request {
	t.Helper()
	return kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, node)), csr.Issued)
}

// issuedBy checks the field managers in managedFields, as the guide tells people to do.
func issuedBy(t *testing.T, obj *kit.Request, approver, signer string) {
	t.Helper()
	got := map[string]string{}
	for _, entry := range obj.ManagedFields {
		got[entry.Subresource] = entry.Manager
	}
	kit.Equal(t, "who approved", got["approval"], approver)
	kit.Equal(t, "who signed", got["status"], signer)
}

// TestTakeover follows docs/how-to/migrate-from-kcm.md with the real kube-controller-manager and all of its controllers: dry run,
// both at once, taken over, and back with the same CA.
func TestTakeover(t *testing.T) {
	kit.Parallel(t)
	own(t)

	before := startTheirs(t, kubeadmControllers)
	issuedBy(t, issues(t, "before"), theirs, theirs)

	// The dry run would decide as kube-controller-manager does, which does the work. It counts one or two requests: it knows
	// its own start to the second, and may judge the request of before.
	dry := startOurs(t, append(caFlags(t), "--dry-run=*")...)
	dry.Answers(t, dry.Probes, "/readyz", http.StatusOK)
	issuedBy(t, issues(t, "dry-run"), theirs, theirs)
	dry.Answers(t, dry.Metrics, "/metrics", http.StatusOK, `csr_approver_dry_run_total{reason="AutoApproved",`+
		`signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Approve"} `)
	kit.NoError(t, dry.Stop())

	// With the same CA either one may approve and sign, and neither stumbles.
	beside := startOurs(t, caFlags(t)...)
	for i := range 20 {
		issues(t, fmt.Sprint("beside-", i))
	}
	end(t, before)

	after := startTheirs(t, kubeadmControllers, patchedFlags(t, "")...)
	issuedBy(t, issues(t, "taken-over"), ours, ours)

	// Without kubeadm there may be no other flag --controllers. The other controllers must still work.
	end(t, after)
	after = startTheirs(t, flagOfPage(t))
	issuedBy(t, issues(t, "by-hand"), ours, ours)

	// Back with the same CA. Between the two, requests wait.
	kit.NoError(t, beside.Stop())
	pending := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "nobody"))
	controllersWork(t)
	kit.IsIn(t, pending, csr.Pending)
	end(t, after)
	startTheirs(t, kubeadmControllers)
	kit.Reaches(t, pending, csr.Issued)
}

// patchedFlags returns the flags that a patch in config/kubeadm adds.
func patchedFlags(t *testing.T, folder string) (flags []string) {
	t.Helper()
	data := kit.Must(os.ReadFile(filepath.Join("..", "..", "config", "kubeadm", folder, "kube-controller-manager0+json.yaml")))(t)
	var patch []struct{ Op, Path, Value string }
	kit.NoError(t, yaml.UnmarshalStrict(data, &patch))
	for _, each := range patch {
		kit.Require(t, each.Op == "add" && each.Path == "/spec/containers/0/command/-", "patch: %+v", patch)
		flags = append(flags, each.Value)
	}
	kit.Require(t, len(flags) > 0, "the patch adds no flag")
	return flags
}

// flagOfPage returns the flag --controllers that the page gives to clusters that kubeadm has not made.
func flagOfPage(t *testing.T) string {
	t.Helper()
	_, section, _ := strings.Cut(howTo(t, migrationPage), "\n### Without kubeadm\n")
	flag := regexp.MustCompile("(?s)```yaml\n *- (--controllers=[^\n]+)\n```").FindStringSubmatch(section)
	kit.Require(t, flag != nil, "the page has no flag for clusters without kubeadm")
	return flag[1]
}

// end stops kube-controller-manager, which does not exit cleanly. It fails if the process had ended before.
func end(t *testing.T, theirs *cluster.Process) {
	t.Helper()
	if theirs.Ended() != nil {
		t.Fatalf("it has ended by itself:\n%s", theirs.Tail(30))
	}
	theirs.Kill()
}
