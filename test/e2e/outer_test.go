//go:build e2e

// Package e2e runs the manager as users do: as a Deployment on real nodes, with real kubelets that join through it.
// It needs root and the programs that test/README.md lists. It pulls nothing from a registry.
//
// The test binary runs twice. The outer process is the one that go test starts. It starts a guard, which cleans up even
// if the outer process is killed. Then it starts itself again in its own namespaces (processes, mounts, network), where
// the tests run. When the first process there ends, the kernel ends all others, with their mounts and addresses.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// roleVariable names which of the two a process is, and dirVariable the folder that they share.
const roleVariable, dirVariable = "CSR_E2E_ROLE", "CSR_E2E_DIR"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "inner" {
		log.SetLogger(logr.Discard())
		os.Exit(m.Run())
	}
	code, err := outer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// removeCgroups removes a cgroup and those below. The kernel releases a cgroup a moment after its last process has ended.
const removeCgroups = `removeCgroups() {
  for try in $(seq 100); do
    find /sys/fs/cgroup -depth -type d \( -path "*/$1" -o -path "*/$1/*" \) -delete 2>/dev/null && return
    sleep 0.1
  done
  return 1
}
`

// guardScript reads the first process of the namespaces, or an empty line when that has ended. When the outer process
// is done or was killed, it ends that process, restores the kernel settings that a kubelet changes for the whole machine,
// and removes the cgroups and the folder.
const guardScript = removeCgroups + `dir=$1 first=
cd /proc/sys
before=$(grep -sH . vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)
while read -r pid; do first=$pid; done
[ -z "$first" ] || kill -9 "$first"
for try in $(seq 300); do
  grep -qs '^State:.[^ZX]' "/proc/${first:-none}/status" || break
  sleep 0.1
done
echo "$before" | while IFS=: read -r setting value; do
  [ "$(cat "$setting")" = "$value" ] || echo "$value" > "$setting"
done
removeCgroups "${dir##*/}"
rm -rf "$dir"`

// tracesScript prints the paths where a node keeps its files, for which our machines have folders that only they see,
// and all that refers to the folder $1 of a run: mounts, cgroups and processes.
const tracesScript = `exec 2>/dev/null
ls -d /etc/kubernetes /etc/cni /etc/containerd /var/lib/kubelet /var/lib/cni /var/lib/containerd /var/lib/etcd /var/log/pods \
  /var/log/containers /opt/cni /opt/containerd /run/containerd /run/netns/* /sys/class/net/* "$1"
grep -F "${1##*/}" /proc/self/mounts
find /sys/fs/cgroup -name "${1##*/}"
grep -lF "` + dirVariable + `=$1" /proc/[0-9]*/environ
true`

// noRun is the folder of no run.
const noRun = "/no-run-of-e2e"

// traces returns what shows on this machine that nodes have run, and what the run with the folder dir has left.
func traces(dir string) (sets.Set[string], error) {
	output, err := run(exec.Command("sh", "-c", tracesScript, "traces", dir))
	return sets.New(strings.Split(strings.TrimSpace(output), "\n")...), err
}

// leftBehind returns an error if the run with the folder dir has left something.
func leftBehind(before sets.Set[string], dir string) error {
	now, err := traces(dir)
	if left := now.Difference(before); err == nil && left.Len() > 0 {
		err = fmt.Errorf("left behind: %q", sets.List(left))
	}
	return err
}

// outer runs the tests in their own namespaces. It returns their exit code, and an error if they left something behind.
func outer() (code int, err error) {
	if err := checkMachine(); err != nil {
		return 1, err
	}
	before, err := traces(noRun)
	if err != nil {
		return 1, err
	}
	// Not in $TMPDIR: the machines have their own /var and /run. A run within a run uses the folder of the outer run.
	dir, err := os.MkdirTemp(cmp.Or(os.Getenv(dirVariable), "/tmp"), "csr-e2e-")
	if err != nil {
		return 1, err
	}
	guard := exec.Command("sh", "-c", guardScript, "guard", dir)
	guard.Stderr, guard.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Setsid: true} // Ctrl-C must not end it first
	input, err := guard.StdinPipe()
	if err := errors.Join(err, guard.Start()); err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	code, err = inner(dir, input)
	if err != nil || code != 0 {
		tails, _ := run(exec.Command("sh", "-c", tailsScript, "tails", logDir(dir)))
		fmt.Println(tails)
	}
	if to := os.Getenv("E2E_LOGS"); to != "" {
		_, copied := run(exec.Command("cp", "-rT", logDir(dir), filepath.Join(to, filepath.Base(dir))))
		err = errors.Join(err, copied)
	}
	return code, errors.Join(err, input.Close(), guard.Wait(), leftBehind(before, dir))
}

func checkMachine() error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("needs root: namespaces, mounts and cgroups; run make e2e as root"))
	}
	for _, tool := range []string{"containerd", "ctr", "runc", "ip", "nsenter", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: Debian has it in containerd, runc, iproute2 or util-linux", tool))
		}
	}
	if cniDir() == "" {
		errs = append(errs, errors.New("the CNI plugins bridge and host-local are missing: Debian has them in containernetworking-plugins"))
	}
	files := []string{managerImage()}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"} {
		files = append(files, binary(name))
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("%w: make e2e builds the image, and sets CONTROLPLANE to the folder with the control plane's programs", err))
		}
	}
	return errors.Join(errs...)
}

// firstProcess is the shell that is process 1 of the namespaces. It reaps orphans while it waits for the tests.
const firstProcess = `set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
"$0" "$@" &
wait $!`

// inner runs the tests and returns their exit code. It tells the guard which process to end.
func inner(dir string, guard io.Writer) (int, error) {
	self, err := os.Executable()
	if err == nil {
		err = buildPause(dir) // while there is still a network to download from
	}
	if err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := exec.CommandContext(ctx, "sh", append([]string{"-c", firstProcess, self}, os.Args[1:]...)...)
	command.Env = append(os.Environ(), roleVariable+"=inner", dirVariable+"="+dir)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // Ctrl-C is for this process
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	if err := command.Start(); err != nil {
		return 1, fmt.Errorf("start the tests in namespaces of their own: %w", err)
	}
	_, _ = fmt.Fprintln(guard, command.Process.Pid)
	err = command.Wait()
	_, _ = fmt.Fprintln(guard)
	if code := command.ProcessState.ExitCode(); code > 0 {
		return code, nil
	}
	return 0, err
}

// logDir is the folder with the logs of the control plane and the machines. podLogDir has the logs of a machine's
// pods.
func logDir(dir string) string             { return filepath.Join(dir, "logs") }
func podLogDir(dir, machine string) string { return filepath.Join(logDir(dir), "pods-"+machine) }

// tailsScript prints the ends of the logs in $1, without messages that a kubelet on such a machine repeats.
const tailsScript = `find "$1" -type f | while read -r log; do
  echo "---- the end of $log"
  grep -v -e 'Unable to register mirror pod' -e 'cannot find filesystem info for device' "$log" | tail -n 25
done`

// TestKilledRunLeavesNothing starts a run within this run, and kills it once its first kubelet has started a pod.
func TestKilledRunLeavesNothing(t *testing.T) {
	dir := os.Getenv(dirVariable)
	self := kit.Must(os.Executable())(t)
	before := kit.Must(traces(noRun))(t)
	outer := exec.Command(self, "-test.run", "^TestDeployment$")
	outer.Env = append(os.Environ(), roleVariable+"=outer")
	kit.NoError(t, outer.Start())
	t.Cleanup(func() { _ = outer.Process.Kill() })
	var logs []string
	until(t, time.Minute, "the run has started a pod", func(context.Context) (started bool, err error) {
		logs, err = filepath.Glob(filepath.Join(podLogDir(filepath.Join(dir, "csr-e2e-*"), "*"), "*", "*", "0.log"))
		return len(logs) > 0, err
	})
	kit.NoError(t, outer.Process.Kill())
	_ = outer.Wait() // an error, because it was killed
	killed := logs[0]
	for filepath.Dir(killed) != dir {
		killed = filepath.Dir(killed)
	}
	kit.Within(t, 30*time.Second, "nothing is left of it", func(context.Context) error { return leftBehind(before, killed) })
}
