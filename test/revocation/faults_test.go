package revocation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/authorization"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// world is what the parts of a test share: two hosts with writers. Each part begins and ends with a list that blocks mallory only.
type world struct {
	t       *testing.T // at whose end the processes end
	hosts   []*host
	list    *corev1.ConfigMap
	writer  *rest.Config
	base    string       // a file with the own authorizers of the first host
	mallory *rest.Config // is blocked all the time
	zoe     *rest.Config // is blocked and unblocked
	others  []*rest.Config
	asking  []func() // for each host: ends the calls of others
}

// withWorld runs a test with a world. Its files are in dir.
func withWorld(t *testing.T, dir string, run func(t *testing.T, w *world)) {
	t.Helper()
	hostsIn(t, dir, func(t *testing.T, all []*host) {
		w := &world{t: t, hosts: all, list: kit.BlockList(t, ""), writer: install(t), base: dir + "/base.yaml", others: bystanders(t)}
		kit.Write(t, w.base, []byte(authorization.Default))
		w.mallory, _ = user(t, "mallory")
		w.zoe, _ = user(t, "zoe")
		for _, h := range all {
			w.startWriter(h)
			w.asking = append(w.asking, keepAsking(t, h, w.others...))
		}
		w.block(t, "mallory")
		eventuallyRefused(t, "mallory", w.mallory, all...)
		run(t, w)
	})
}

// startWriter starts the writer of h. That of the first host has a base.
func (w *world) startWriter(h *host) {
	if h == w.hosts[0] {
		h.write(w.t, w.writer, "--base", w.base)
		return
	}
	h.write(w.t, w.writer)
}

// block replaces the list.
func (w *world) block(t *testing.T, users ...string) {
	t.Helper()
	w.set(t, map[string]string{"nodes": "", "users": strings.Join(users, "\n")})
}

func (w *world) set(t *testing.T, data map[string]string) {
	t.Helper()
	w.list.Data = data
	kit.Update(t, w.list)
}

// follows checks that the writers of all apply a change of the list, in both directions.
func (w *world) follows(t *testing.T) {
	t.Helper()
	w.block(t, "mallory", "zoe")
	eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
	w.block(t, "mallory")
	eventuallyWorks(t, "zoe", w.zoe, w.hosts...)
	w.staysRefused(t)
}

// staysRefused checks that mallory is refused now, with an answer of the webhook.
func (w *world) staysRefused(t *testing.T) {
	t.Helper()
	for _, h := range w.hosts {
		err := ask(t.Context(), h.at(w.mallory))
		kit.Check(t, refused(err), "mallory is answered: %v", err)
	}
}

// staysRefusedWithoutWebhook checks that mallory is refused by hosts on which nothing answers the webhook.
func (w *world) staysRefusedWithoutWebhook(t *testing.T, all ...*host) {
	t.Helper()
	for _, h := range all {
		err := ask(t.Context(), h.at(w.mallory))
		kit.Check(t, apierrors.IsInternalError(err), "mallory is answered: %v", err)
		kit.NoError(t, ask(t.Context(), h.at(w.zoe)))
	}
}

// TestFaults checks that no fault of a writer, of its files or of the list unblocks anybody, or fails a call of anybody else, and that
// the next version of the list applies afterwards.
func TestFaults(t *testing.T) {
	kit.Parallel(t)
	withWorld(t, t.TempDir(), func(t *testing.T, w *world) {
		for name, inject := range map[string]func(*testing.T, *world){
			"the writers are killed":                   killWriters,
			"a host starts without its writer":         rebootHost,
			"another process has the address":          takeAddress,
			"the list is emptied, and then deleted":    loseList,
			"the list has a bad line":                  addBadLine,
			"the list has 3,000 entries":               addMany,
			"the cluster's own authorizers are broken": breakBase,
			"a new file is left behind":                leaveNewFile,
			"a stranger replaces the file":             replaceFile,
			"the kubeconfig is deleted":                deleteKubeconfig,
		} {
			t.Run(name, func(t *testing.T) {
				inject(t, w)
				w.follows(t)
			})
		}
	})
}

func killWriters(t *testing.T, w *world) {
	for _, h := range w.hosts {
		h.writer.Kill()
	}
	w.block(t, "mallory", "zoe")
	w.staysRefusedWithoutWebhook(t, w.hosts...)
	for _, h := range w.hosts {
		w.startWriter(h)
	}
	eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
}

func rebootHost(t *testing.T, w *world) {
	second := w.hosts[1]
	w.asking[1]()
	second.writer.Kill()
	second.apiServer.Kill()
	second.serve(w.t)
	w.asking[1] = keepAsking(w.t, second, w.others...)
	w.staysRefusedWithoutWebhook(t, second)
	w.startWriter(second)
	eventuallyRefused(t, "mallory", w.mallory, second)
}

// takeAddress checks that a process that takes the address of the webhook does not stop enforcement.
func takeAddress(t *testing.T, w *world) {
	first := w.hosts[0]
	first.writer.Kill()
	other := kit.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	first.write(w.t, w.writer, "--base", w.base, "--listen", other.Addr().String())
	w.block(t, "mallory", "zoe")
	eventuallyRefused(t, "zoe", w.zoe, w.hosts[1])
	kit.Within(t, 10*time.Second, "zoe is refused without an answer", func(ctx context.Context) error {
		err := ask(ctx, first.at(w.zoe))
		return kit.OrError(apierrors.IsInternalError(err), "answered with %v", err)
	})
	kit.NoError(t, other.Close())
	eventuallyRefused(t, "zoe", w.zoe, first)
}

func loseList(t *testing.T, w *world) {
	w.set(t, nil)
	for _, h := range w.hosts {
		h.says(t, "it has no key nodes: add it, with an empty value if no node is blocked; the last version stays in use")
	}
	w.staysRefused(t)
	kit.Remove(t, w.list)
	for _, h := range w.hosts {
		h.says(t, "it does not exist: create it")
	}
	w.staysRefused(t)
	second := w.hosts[1]
	second.writer.Kill()
	w.startWriter(second) // it has never read a list
	second.says(t, "it does not exist: create it")
	w.staysRefusedWithoutWebhook(t, second)
	w.list = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.list.Namespace, Name: w.list.Name}, Data: map[string]string{"nodes": "", "users": "mallory"}}
	kit.NoError(t, kit.Admin(t).Create(t.Context(), w.list))
	eventuallyRefused(t, "mallory", w.mallory, w.hosts...)
}

func addBadLine(t *testing.T, w *world) {
	w.block(t, "mallory", "system:node:w1", `"not JSON`, "system:kube-scheduler", "zoe")
	eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
	for _, h := range w.hosts {
		h.says(t, "what is invalid is ignored, and the rest applies")
	}
	w.staysRefused(t)
}

func addMany(t *testing.T, w *world) {
	var certificates strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&certificates, "%064x\n", i)
	}
	w.set(t, map[string]string{"nodes": "", "certificates": certificates.String(), "users": "mallory\nzoe"})
	eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
	w.staysRefused(t)
}

func breakBase(t *testing.T, w *world) {
	first := w.hosts[0]
	for _, test := range []struct{ base, says string }{
		{"kind: [", "base.yaml: "},
		{strings.Replace(authorization.Default, "type: RBAC", "type: Rbac", 1), "stays as it is: "},
	} {
		kit.Write(t, w.base, []byte(test.base))
		w.block(t, "mallory", "zoe")
		first.says(t, test.says)
		eventuallyRefused(t, "zoe", w.zoe, w.hosts[1])
		kit.NoError(t, ask(t.Context(), first.at(w.zoe))) // its API server has the last good file
		w.staysRefused(t)
		kit.Write(t, w.base, []byte(authorization.Default))
		eventuallyRefused(t, "zoe", w.zoe, first)
		w.block(t, "mallory")
		eventuallyWorks(t, "zoe", w.zoe, w.hosts...)
	}
	kit.NoError(t, os.Remove(w.base))
	first.says(t, "base.yaml: no such file")
	w.staysRefused(t)
	kit.Write(t, w.base, []byte(authorization.Default))
}

func leaveNewFile(t *testing.T, w *world) {
	left := w.hosts[0].file + ".csr-new"
	kit.NoError(t, os.WriteFile(left, []byte("half a fi"), 0o400))
	w.block(t, "mallory", "zoe")
	eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
	_, err := os.Stat(left)
	kit.Check(t, errors.Is(err, fs.ErrNotExist), "%s: %v", left, err)
}

// replaceFile is the fault after which an API server lets a blocked user in: it reads a file that names nobody. The writer must not
// replace the file, and the manager names the API server (TestProof).
func replaceFile(t *testing.T, w *world) {
	first := w.hosts[0]
	good := kit.Must(os.ReadFile(first.file))(t)
	kit.Write(t, first.file, []byte("# a stranger's\n"+authorization.Default))
	first.says(t, "was not created by this command: move it away")
	eventuallyWorks(t, "mallory", w.mallory, first)
	kit.Write(t, first.file, good)
	eventuallyRefused(t, "mallory", w.mallory, first)
}

// deleteKubeconfig deletes a file without which no API server starts.
func deleteKubeconfig(t *testing.T, w *world) {
	for _, h := range w.hosts {
		file := h.file + ".kubeconfig"
		kit.NoError(t, os.Remove(file))
		w.staysRefused(t)
		isWrittenAgain(t, file)
	}
}

func isWrittenAgain(t *testing.T, file string) {
	t.Helper()
	kit.Eventually(t, file+" is written again", func(context.Context) error {
		_, err := os.Stat(file)
		return err
	})
}
