//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machineInit is the first process of a machine. It makes files written to /etc, /var and /run stay in memory,
// visible only to the machine. Then it reaps orphans until it is killed.
const machineInit = `set -eu
name=$1 files=$2 pods=$3
mount --make-rprivate /
mount -t proc proc /proc
hostname "$name"
mkdir -p "$files"
mount -t tmpfs tmpfs "$files"
for place in etc var; do
  mkdir "$files/$place" "$files/$place.work"
  mount -t overlay overlay -o "lowerdir=/$place,upperdir=$files/$place,workdir=$files/$place.work" "/$place"
done
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /var/lib/containerd /var/lib/kubelet /var/log/pods /etc/cni/net.d /etc/containerd /etc/kubernetes/manifests
mount -t tmpfs tmpfs /var/lib/containerd # overlays can't be on overlays
mount --bind "$pods" /var/log/pods
mount --make-rshared /
touch /run/up
while :; do sleep 3600 & wait $!; done`

// machine is a separate computer, as far as the kernel permits: with its own processes, files, network and
// containerd, on which a kubelet can run.
type machine struct {
	name    string
	dir     string
	address string
	cable   string // the veth interface, once it is connected

	// enter is the prefix of a command line that runs on the machine.
	enter []string

	first      *exec.Cmd
	containerd *process
	kubelet    *process
}

// startMachine starts the machine with that number, counted from 1, and its containerd. It loads the images in the
// archives.
func startMachine(ctx context.Context, dir, name string, number int, archives ...string) (*machine, error) {
	m := &machine{name: name, dir: dir, address: fmt.Sprintf("10.99.0.%d", number+1)}
	if err := errors.Join(os.MkdirAll(podLogDir(dir, name), 0o700), makeCgroup(m.cgroup())); err != nil {
		return nil, err
	}
	m.first = exec.Command("sh", "-c", machineInit, "machine", name, filepath.Join(dir, "files-"+name), podLogDir(dir, name))
	m.first.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	m.first.Stderr = os.Stderr
	if err := m.first.Start(); err != nil {
		return nil, fmt.Errorf("start machine %s: %w", name, err)
	}
	m.enter = []string{"nsenter", "--target", strconv.Itoa(m.first.Process.Pid), "--mount", "--pid", "--net", "--ipc", "--uts", "--"}
	err := until(ctx, 10*time.Second, "machine "+name+" is up", func(context.Context) (bool, error) {
		_, err := os.Stat(m.file("/run/up"))
		return err == nil, err
	})
	if err == nil {
		err = m.plugIn(number)
	}
	if err == nil {
		err = m.startContainerd(ctx, number)
	}
	for _, archive := range archives {
		if err == nil {
			err = m.load(archive)
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.stop())
	}
	return m, nil
}

// cgroup returns the cgroup of the processes of its pods.
func (m *machine) cgroup() string { return filepath.Base(m.dir) + "/" + m.name }

// file returns the path of one of the machine's files, as seen from the outside.
func (m *machine) file(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.first.Process.Pid), path)
}

func (m *machine) write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(m.file(path)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(m.file(path), data, 0o600)
}

// command returns a command that runs a program on the machine.
func (m *machine) command(args ...string) *exec.Cmd {
	line := slices.Concat(m.enter, args)
	return exec.Command(line[0], line[1:]...)
}

// plugIn connects the machine with the control plane and, through it, with the other machines' pods.
func (m *machine) plugIn(number int) error {
	cable, pods := fmt.Sprintf("machine%d", number), podRange(number)
	if _, err := run(exec.Command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(m.first.Process.Pid))); err != nil {
		return err
	}
	m.cable = cable
	for _, command := range []*exec.Cmd{
		exec.Command("ip", "link", "set", cable, "master", "machines", "up"),
		exec.Command("ip", "route", "replace", pods, "via", m.address),
		m.command("ip", "link", "set", "lo", "up"),
		m.command("ip", "address", "add", m.address+"/24", "dev", "eth0"),
		m.command("ip", "link", "set", "eth0", "up"),
		m.command("ip", "route", "add", "default", "via", controlPlaneAddress),
		m.command("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
		exec.Command("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
	} {
		if _, err := run(command); err != nil {
			return err
		}
	}
	return nil
}

func podRange(number int) string { return fmt.Sprintf("10.98.%d.0/24", number) }

// cniDir returns the folder in which the distribution keeps the CNI plugins, or an empty text.
func cniDir() string {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} {
		_, bridge := os.Stat(filepath.Join(dir, "bridge"))
		_, local := os.Stat(filepath.Join(dir, "host-local"))
		if bridge == nil && local == nil {
			return dir
		}
	}
	return ""
}

const containerdConfig = `version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

func (m *machine) startContainerd(ctx context.Context, number int) (err error) {
	err = errors.Join(
		m.write("/etc/containerd/config.toml", fmt.Appendf(nil, containerdConfig, cniDir())),
		m.write("/etc/cni/net.d/pods.conflist", fmt.Appendf(nil, cniConfig, podRange(number))))
	if err != nil {
		return err
	}
	if m.containerd, err = startProcess(m.dir, m.name+"-containerd", m.command("containerd", "--log-level=warn")); err != nil {
		return err
	}
	return until(ctx, 20*time.Second, "containerd of "+m.name+" answers", func(context.Context) (bool, error) {
		_, err := run(m.command("ctr", "version"))
		return err == nil, err
	})
}

// load loads the images in an archive.
func (m *machine) load(archive string) error {
	_, err := run(m.command("ctr", "-n", "k8s.io", "images", "import", archive))
	return err
}

// stop ends the machine like a power failure: the kernel ends all its processes with the first one.
func (m *machine) stop() error {
	var unplugged error
	if m.cable != "" { // the kernel takes its time to do so for a network that is gone, and the next machine has the same
		unplugged = exec.Command("ip", "link", "delete", m.cable).Run()
	}
	killed := m.first.Process.Kill()
	_ = m.first.Wait() // an error, because it was killed
	return errors.Join(unplugged, killed, exec.Command("ip", "route", "flush", "via", m.address).Run(), removeCgroups(m.cgroup()))
}

// processOf returns the machine's process ID of a container. It checks that the process belongs to the pod.
func (m *machine) processOf(containerID, podUID string) (string, error) {
	tasks, err := run(m.command("ctr", "-n", "k8s.io", "tasks", "ls"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(tasks) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != containerID {
			continue
		}
		cgroups, err := run(m.command("cat", "/proc/"+fields[1]+"/cgroup"))
		if err != nil {
			return "", err
		}
		cgroups = strings.ReplaceAll(cgroups, "_", "-") // systemd's names have no dashes
		if !strings.Contains(cgroups, "pod"+podUID) || !strings.Contains(cgroups, containerID) {
			return "", fmt.Errorf("process %s is not of container %s of pod %s:\n%s", fields[1], containerID, podUID, cgroups)
		}
		return fields[1], nil
	}
	return "", fmt.Errorf("no task of container %s: %w:\n%s", containerID, fs.ErrNotExist, tasks)
}
