//go:build nightly

package manager

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// blockOf returns the commands of a page that begin with start.
func blockOf(t *testing.T, page, start string) string {
	t.Helper()
	block := regexp.MustCompile("(?s)```sh\n( *" + regexp.QuoteMeta(start) + ".*?)```").FindStringSubmatch(howTo(t, page))
	kit.Require(t, block != nil, "the page has no commands that begin with %q", start)
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
	find := regexp.MustCompile(`(?m)^kubectl describe csr \| .*$`).FindString(page)
	describe := regexp.MustCompile(`(?m)^kubectl describe csr NAME.*$`).FindString(page)
	repair := map[string]string{}
	for _, match := range regexp.MustCompile("`(kubectl create clusterrolebinding (csr-[a-z]+) [^`]+)`").FindAllStringSubmatch(page, -1) {
		repair[match[2]] = match[1]
	}
	kit.Require(t, find != "" && describe != "" && len(repair) == 2, "commands of the page: %q, %q, %q", find, describe, repair)

	// A bootstrap token of kubeadm without rights.
	kubelet := kit.Impersonate(t, "system:bootstrap:abcdef", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated")
	obj := kit.NodeRequest(t, "worker-1")
	err := kubelet.Create(t.Context(), obj)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `is forbidden: User "system:bootstrap:abcdef" cannot create resource`) {
		t.Fatalf("%v: not the text of the page", err)
	}
	run(t, clone, repair["csr-create"])
	kit.Eventually(t, "the token may create requests", func(ctx context.Context) error { return kubelet.Create(ctx, obj) })

	found := regexp.MustCompile(`(?m)^Name: +(\S+)$`).FindStringSubmatch(run(t, clone, find))
	kit.Require(t, found != nil && found[1] == obj.Name, "%s finds %q, want %s", find, found, obj.Name)
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
	all := &appsv1.DeploymentList{}
	if err := kit.Admin(t).List(t.Context(), all, client.InNamespace(kit.SystemNamespace)); err != nil || len(all.Items) != 1 {
		t.Fatalf("%d Deployments, error %v", len(all.Items), err)
	}
	pod := all.Items[0].Spec.Template.Spec
	configuration := kit.Get(t, kit.SystemNamespace, pod.Volumes[0].ConfigMap.Name, &corev1.ConfigMap{})
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
	trusted := kit.Must(os.ReadFile(plane.ClientCAFile()))(t)
	follow("cp new-ca/ca.crt")
	kit.Eventually(t, "the API server refuses the old CA", func(context.Context) error {
		_, err := shell(t, dir, old)
		refused := err != nil && strings.Contains(err.Error(), "(Unauthorized)")
		return kit.OrError(refused, "it accepts a certificate of the old CA, or %w", err)
	})
	run(t, dir, "kubectl --kubeconfig kubernetes/super-admin.conf --user kubernetes-super-admin get nodes")
	kit.NoError(t, plane.TrustClients(trusted)) // the kit cleans up as the old administrator
	kit.Eventually(t, "the API server accepts the old CA again", func(context.Context) error {
		_, err := shell(t, dir, old)
		return err
	})
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

// waiting labels requests that wait until the end of a load.
var waiting = client.MatchingLabels{"waits": "yes"}

// hangingReviews runs the test on an API server with an authorizer that decides what the roles do not permit. It permits
// nothing, and hangs for one user. It returns how many reviews hang.
func hangingReviews(t *testing.T, user string) *atomic.Int32 {
	t.Helper()
	hanging := &atomic.Int32{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		if review.Spec.User == user {
			hanging.Add(1)
			defer hanging.Add(-1)
			<-r.Context().Done()
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.CloseClientConnections)
	kit.WithAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		config := clientcmdapi.NewConfig()
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		config.Clusters["it"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: ca}
		config.Contexts["it"], config.CurrentContext = &clientcmdapi.Context{Cluster: "it"}, "it"
		file := filepath.Join(dir, "authorizer.kubeconfig")
		kit.NoError(t, clientcmd.WriteToFile(*config, file))
		args.Set("authorization-mode", "Node", "RBAC", "Webhook").
			Set("authorization-webhook-version", "v1").Set("authorization-webhook-config-file", file)
	})
	return hanging
}

// renew has fifty nodes renew, one after the other. None may wait for others.
func renew(t *testing.T) {
	t.Helper()
	l := newLoad(t, client.MatchingLabels{"timed": "yes"})
	for i := range 50 {
		node := fmt.Sprint("renews-", i)
		kit.NoError(t, l.add(t.Context(), kit.KubeletOf(t, node), kit.NodeRequest(t, node)))
		if longest := l.longest(t); longest > 5*time.Second { // a request that waits for a stalled worker takes ten
			t.Fatalf("a renewal took %s", longest)
		}
	}
}

// TestAStalledSourceDelaysNoRenewal has a source that holds every lookup for ten seconds while a thousand requests of
// more nodes than it has places wait for it. Renewals need no source.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	kit.Parallel(t)
	server, ca := inventoryServer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		<-r.Context().Done()
	})
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	startServing(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", server.URL, ca))
	kit.HasEvent(t, asksFor(t, "stalled", "192.0.2.200"), "InventoryUnavailable", "ask webhook: context deadline exceeded")
	for i := range 50 {
		node := fmt.Sprintf("stalled-%d", i)
		keepWaiting(t, kit.KubeletOf(t, node), 20, kit.ServingRequest(t, node, "192.0.2.200"))
	}
	renew(t)
}

// TestHangingReviewsOfOneRequesterDelayNobody has an authorizer of the API server that hangs for one bootstrapper, who
// asks for certificates of 2,000 nodes. At most half of the workers wait for its reviews.
func TestHangingReviewsOfOneRequesterDelayNobody(t *testing.T) {
	kit.Parallel(t)
	const flooder = "bootstrapper"
	hanging := hangingReviews(t, flooder)
	startServing(t, "")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	var all []*kit.Request
	for i := range 2000 {
		all = append(all, kit.NodeRequest(t, fmt.Sprintf("joins-%d", i)))
	}
	keepWaiting(t, kit.Impersonate(t, flooder, "flooders"), 1, all...)
	most := int32(call.ApproverWorkers / 2)
	kit.Eventually(t, "some reviews hang", func(context.Context) error {
		got := hanging.Load() // more hang that have just ended
		return kit.OrError(got >= 1 && got <= most, "%d do, want 1 to %d", got, most)
	})
	renew(t)
}

// keepWaiting creates each of objs count times as c's user, with ten at once. They wait until the end of the load.
func keepWaiting(t *testing.T, c client.Client, count int, objs ...*kit.Request) {
	t.Helper()
	deletesRequests(t, waiting)
	var creators errgroup.Group
	creators.SetLimit(10)
	for _, obj := range objs {
		obj.Labels = waiting
		for range count {
			creators.Go(func() error { return c.Create(t.Context(), obj.DeepCopy()) })
		}
	}
	kit.NoError(t, creators.Wait())
}

// TestAHostileNodeDelaysNobody has a node that keeps five hundred requests pending. Twenty times a second it reports the
// addresses that they name, and no longer reports them. A second node, which is on the block list, does the same with the
// addresses of all other nodes, which get serving certificates meanwhile.
func TestAHostileNodeDelaysNobody(t *testing.T) {
	kit.Parallel(t)
	kit.BlockList(t, "x-liar\n")
	kit.Apply(t, "node-block-list")
	startWithBlockList(t)
	const nodes = 50
	var theirs, own []string
	for i := range nodes {
		theirs, own = append(theirs, fmt.Sprintf("198.51.100.%d", i)), append(own, fmt.Sprintf("198.51.100.%d", nodes+i))
		kit.NewNode(t, fmt.Sprintf("honest-%d", i), theirs[i])
	}
	hostile, liar := kit.NewNode(t, "x-hostile"), kit.NewNode(t, "x-liar")
	keepWaiting(t, kit.KubeletOf(t, hostile.Name), 500, kit.ServingRequest(t, hostile.Name, own[0], own[1], theirs[0])) // for the last one
	flips := atomic.Int32{}
	defer every(t, 50*time.Millisecond, func(i int) error { // a faster rate would measure the API server, which limits it
		kit.Publish(t, hostile, [][]string{own, {"198.51.100.250"}}[i%2]...)
		kit.Publish(t, liar, [][]string{theirs, {"198.51.100.251"}}[i%2]...)
		flips.Add(1)
		return nil
	})()
	l := newLoad(t, client.MatchingLabels{"timed": "yes"})
	for i := 0; i < 10*nodes && (i < nodes || flips.Load() < 20); i++ { // a fast machine needs several rounds
		node := fmt.Sprintf("honest-%d", i%nodes)
		kit.NoError(t, l.add(t.Context(), kit.KubeletOf(t, node), kit.ServingRequest(t, node, theirs[i%nodes])))
		if longest := l.longest(t); longest > 5*time.Second {
			t.Fatalf("a request took %s", longest)
		}
	}
	kit.Check(t, flips.Load() >= 20, "%d flips prove nothing", flips.Load())
}

// TestOneNodesKeyCostsLittle has a node whose key is stolen. Its requests wait, because another Node reports the last
// address of each. They cost little processor time, although the Node's status changes each second, and delay no other
// node. The flood is as large as the limits of requests and of API objects permit.
func TestOneNodesKeyCostsLittle(t *testing.T) {
	kit.Alone(t)
	const addresses, requests, each = 25_000, 3000, 900
	const quiet, measured, cores = 2 * time.Minute, time.Minute, 0.3 // of the time since the first request
	p := startServing(t, "")
	kit.NewNode(t, "flooded-other", "198.51.100.1")
	kit.Reaches(t, asksFor(t, "flooded-other", "198.51.100.1"), csr.Issued)
	var all []string
	for i := range addresses {
		all = append(all, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	stolen := kit.NewNode(t, "flooded", all...)
	const contested = "198.51.100.2"
	kit.NewNode(t, "flooded-victim", contested)
	kit.Publish(t, stolen, append([]string{contested}, all...)...) // of so many, only the first count
	first := asksFor(t, stolen.Name, contested)
	kit.HasEvent(t, first, "SANContested", "Node flooded-victim")

	begin, l, other := time.Now(), newLoad(t, client.MatchingLabels{"timed": "yes"}), kit.KubeletOf(t, "flooded-other")
	endHonest := every(t, time.Second/5, func(int) error {
		return l.add(t.Context(), other, kit.ServingRequest(t, "flooded-other", "198.51.100.1"))
	})
	usual, more := stolen.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.3"}
	endChanges := every(t, time.Second, func(i int) error {
		stolen.Status.Addresses = [][]corev1.NodeAddress{append([]corev1.NodeAddress{more}, usual...), usual}[i%2]
		return kit.Admin(t).Status().Update(t.Context(), stolen)
	})
	keepWaiting(t, kit.KubeletOf(t, stolen.Name), requests, kit.ServingRequest(t, stolen.Name, append(all[:each-1:each-1], contested)...))
	t.Logf("%d requests are stored after %s", requests, time.Since(begin))
	time.Sleep(time.Until(begin.Add(quiet)))
	before, begun := p.CPUSeconds(t), time.Now()
	time.Sleep(measured)
	used := (p.CPUSeconds(t) - before) / time.Since(begun).Seconds()
	t.Logf("%.2f cores", used)
	kit.Check(t, used <= cores, "the manager uses %.2f cores, want at most %.1f", used, cores)
	endHonest()
	endChanges()
	if longest := l.longest(t); longest > 5*time.Second {
		t.Errorf("a certificate of another node took %s", longest)
	}
	kit.IsIn(t, first, csr.Pending)
	checkStop(t, p)
}

// TestSharedBootstrapToken has a token that all nodes share, and a webhook that needs 200 ms for an answer. The holder of
// the token makes 2,000 requests for a node that the webhook does not know. Meanwhile thirty nodes join with the token,
// each within five seconds.
func TestSharedBootstrapToken(t *testing.T) {
	kit.Alone(t)
	prepareIdentity(t)
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) {
		var lookup struct{ APIVersion, Kind, UID, Node string }
		if err := json.NewDecoder(r.Body).Decode(&lookup); err != nil {
			t.Error(err)
		}
		time.Sleep(200 * time.Millisecond)
		known := lookup.Node != "flooded"
		answer := map[string]any{
			"apiVersion": lookup.APIVersion, "kind": lookup.Kind, "uid": lookup.UID, "node": lookup.Node, "known": known,
		}
		if known {
			answer["created"] = time.Now().UTC().Format(time.RFC3339)
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	startIdentityManager(t, fmt.Sprintf("nodeClient: {inventory: sources}, inventory: {sources: [{webhook: {url: %q, caFile: %q}}]}", server.URL, ca))
	token := newToken(t, "shared")
	first := token.asks(t, "flooded")
	kit.HasEvent(t, first, "NotExpected", `node "flooded"`)
	keepWaiting(t, token.Client, 2000, kit.NodeRequest(t, "flooded"))
	if longest := joinAll(t, token.Client, 30).longest(t); longest > 5*time.Second {
		t.Errorf("a node has joined after %s", longest)
	}
	kit.IsIn(t, first, csr.Pending)
}

// TestAnswersAfter25Seconds delays every call almost as long as an admission webhook may.
func TestAnswersAfter25Seconds(t *testing.T) {
	kit.Parallel(t)
	joinSlowly(t, 10, 25*time.Second, 115*time.Second)
}

// TestHungDeleteHoldsUpNoOther has one hanging delete of the cleaner: the others continue, and it is retried.
func TestHungDeleteHoldsUpNoOther(t *testing.T) {
	kit.Alone(t)
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "cleaner"),
		faults.Rule{Verbs: []string{"delete"}, Resources: []string{"certificatesigningrequests"}, Times: 1, Do: faults.Hang()})
	const due = 20
	for range due {
		kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "due", signerName("example.com/foreign")))
	}
	config := kit.Configure(t, `controllers: [csrcleaner]
cleaning: {signers: [{name: example.com/foreign, retention: {pending: 2s}}]}
`)
	kit.StartManager(t, proxy.Config, config, "--leader-elect=false")
	atMost := func(most int) {
		t.Helper()
		kit.Within(t, 90*time.Second, "due requests are deleted", func(ctx context.Context) error {
			left := &certificatesv1.CertificateSigningRequestList{}
			err := kit.Admin(t).List(ctx, left)
			return errors.Join(err, kit.OrError(len(left.Items) <= most, "%d are left", len(left.Items)))
		})
	}
	atMost(1)
	// The hanging delete ends after 45 seconds, and is then repeated. All others come before that.
	var hung string
	others := map[string]bool{}
	for _, call := range proxy.Calls() {
		if call.Verb != "delete" {
			continue
		}
		if call.Fault == "Hang" {
			hung = call.Name
		} else if call.Name == hung {
			break
		} else {
			others[call.Name] = true
		}
	}
	if want := due - 1; hung == "" || len(others) != want {
		t.Errorf("%d others were deleted while the delete of %q hung, want %d", len(others), hung, want)
	}
	atMost(0)
}
