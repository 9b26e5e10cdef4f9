//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// makeCgroup creates the cgroup for a kubelet's pods: in version 1 one for each controller, in version 2 one with all
// controllers.
const makeCgroup = `set -eu
roots=/sys/fs/cgroup
[ -e $roots/cgroup.controllers ] || roots=$(find $roots -mindepth 1 -maxdepth 1 -type d)
for dir in $roots; do
  for part in $(echo "$1" | tr / ' '); do
    for controller in $(cat "$dir/cgroup.controllers" 2>/dev/null); do echo "+$controller" > "$dir/cgroup.subtree_control"; done
    dir=$dir/$part
    mkdir -p "$dir"
  done
done`

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
mkdir -p /run/netns /run/systemd /var/lib/containerd /var/lib/kubelet /var/log/pods /etc/cni/net.d /etc/containerd /etc/kubernetes/manifests
mount -t tmpfs tmpfs /var/lib/containerd # overlays can't be on overlays
mount --bind "$pods" /var/log/pods
mount --make-rshared /
touch /run/up
while :; do sleep 3600 & wait $!; done`

// nameByDigest gives the manager's image the name that it has after a pull, so that Pods report it and can run it by its digest.
const nameByDigest = `set -eu
name=docker.io/library/csr-controller-manager
digest=$(ctr -n k8s.io images ls "name==$name:dev" | awk 'NR == 2 { print $3 }')
ctr -n k8s.io images tag "$name:dev" "$name@$digest"`

// machine is a separate computer, as far as the kernel permits: with its own processes, files, network and
// containerd, on which a kubelet can run.
type machine struct {
	name    string
	dir     string
	address string
	cable   string   // the veth interface, once it is connected
	enter   []string // the prefix of a command line that runs on the machine
	first   *exec.Cmd
	kubelet *process
}

// machine starts one more machine and its containerd, and loads the images in the archives.
func (c *cluster) machine(t *testing.T, name string, archives ...string) *machine {
	number := len(c.machines) + 1
	m := &machine{name: name, dir: c.dir, address: fmt.Sprintf("10.99.0.%d", number+1)}
	kit.NoError(t, os.MkdirAll(podLogDir(c.dir, name), 0o700))
	mustRun(t, exec.Command("sh", "-c", makeCgroup, "sh", m.cgroup()))
	m.first = exec.Command("sh", "-c", machineInit, "machine", name, filepath.Join(c.dir, "files-"+name), podLogDir(c.dir, name))
	m.first.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	m.first.Stderr = os.Stderr
	kit.NoError(t, m.first.Start())
	c.machines[name] = m
	m.enter = []string{"nsenter", "--target", strconv.Itoa(m.first.Process.Pid), "--mount", "--pid", "--net", "--ipc", "--uts", "--"}
	until(t, 10*time.Second, "machine "+name+" is up", func(context.Context) (bool, error) {
		_, err := os.Stat(m.file("/run/up"))
		return err == nil, err
	})
	m.plugIn(t, number)
	m.startContainerd(t, number)
	for _, archive := range append(archives, pauseArchive(c.dir), managerImage()) {
		m.must(t, "ctr", "-n", "k8s.io", "images", "import", archive)
	}
	m.must(t, "sh", "-c", nameByDigest)
	return m
}

func (m *machine) cgroup() string { return filepath.Base(m.dir) + "/" + m.name }

// file returns the path of one of the machine's files, as seen from the outside.
func (m *machine) file(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.first.Process.Pid), path)
}

func (m *machine) write(t *testing.T, path string, data []byte) {
	t.Helper()
	kit.NoError(t, os.MkdirAll(filepath.Dir(m.file(path)), 0o755))
	kit.Write(t, m.file(path), data)
}

func (m *machine) command(args ...string) *exec.Cmd {
	line := slices.Concat(m.enter, args)
	return exec.Command(line[0], line[1:]...)
}

func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	return mustRun(t, m.command(args...))
}

// plugIn connects the machine with the control plane and, through it, with the other machines' pods.
func (m *machine) plugIn(t *testing.T, number int) {
	cable, forward := fmt.Sprintf("machine%d", number), []string{"sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"}
	mustRun(t, exec.Command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(m.first.Process.Pid)))
	m.cable = cable
	mustRun(t, exec.Command("ip", "link", "set", cable, "master", "machines", "up"))
	mustRun(t, exec.Command("ip", "route", "replace", podRange(number), "via", m.address))
	m.must(t, "ip", "link", "set", "lo", "up")
	m.must(t, "ip", "address", "add", m.address+"/24", "dev", "eth0")
	m.must(t, "ip", "link", "set", "eth0", "up")
	m.must(t, "ip", "route", "add", "default", "via", controlPlaneAddress)
	m.must(t, forward...)
	mustRun(t, exec.Command(forward[0], forward[1:]...))
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

func (m *machine) startContainerd(t *testing.T, number int) {
	m.write(t, "/etc/containerd/config.toml", fmt.Appendf(nil, containerdConfig, cniDir()))
	m.write(t, "/etc/cni/net.d/pods.conflist", fmt.Appendf(nil, cniConfig, podRange(number)))
	startProcess(t, m.dir, m.name+"-containerd", m.command("containerd", "--log-level=warn"))
	until(t, 20*time.Second, "containerd of "+m.name+" answers", func(context.Context) (bool, error) {
		_, err := run(m.command("ctr", "version"))
		return err == nil, err
	})
}

// stop ends the machine like a power failure: the kernel ends all its processes with the first one.
func (m *machine) stop() error {
	var errs []error
	if m.cable != "" { // the kernel takes its time to do so for a network that is gone, and the next machine has the same
		errs = append(errs, exec.Command("ip", "link", "delete", m.cable).Run())
	}
	errs = append(errs, m.first.Process.Kill())
	_ = m.first.Wait() // an error, because it was killed
	return errors.Join(append(errs,
		exec.Command("ip", "route", "flush", "via", m.address).Run(),
		exec.Command("sh", "-c", removeCgroups+`removeCgroups "$1"`, "sh", m.cgroup()).Run())...)
}

// process is a program that runs until end or kill. If neither is called, it ends with the namespaces.
type process struct {
	name    string
	log     string // the file with its output
	command *exec.Cmd
	done    chan struct{}
}

// startProcess runs command. Its output is appended to the log of that name.
func startProcess(t *testing.T, dir, name string, command *exec.Cmd) *process {
	p := &process{name: name, log: filepath.Join(logDir(dir), name+".log"), command: command, done: make(chan struct{})}
	kit.NoError(t, os.MkdirAll(logDir(dir), 0o700))
	log := kit.Must(os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	command.Stdout, command.Stderr = log, log
	kit.NoError(t, command.Start())
	go func() {
		_ = command.Wait() // ProcessState holds the result
		_ = log.Close()
		close(p.done)
	}()
	return p
}

func (p *process) ended() *os.ProcessState {
	select {
	case <-p.done:
		return p.command.ProcessState
	default:
		return nil
	}
}

// end sends a signal and waits for the end of the process. If nsenter runs the program, the signal is for nsenter's child.
func (p *process) end(signal syscall.Signal) error {
	pid := p.command.Process.Pid
	if filepath.Base(p.command.Path) == "nsenter" {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(children)))
		}
		if err != nil {
			return fmt.Errorf("find the process of %s: %w", p.name, err)
		}
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s does not end within 30 s of %s", p.name, signal)
	}
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	kit.NoError(t, p.end(syscall.SIGKILL))
}

func run(command *exec.Cmd) (string, error) {
	output, err := command.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, output)
	}
	return string(output), nil
}

func mustRun(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	return kit.Must(run(command))(t)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	return kit.Must(os.ReadFile(path))(t)
}

// until fails the test unless done reports success in time. After an error it tries again.
func until(t *testing.T, timeout time.Duration, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	kit.Within(t, timeout, what, func(ctx context.Context) error {
		ok, err := done(ctx)
		return kit.OrError(err == nil && ok, "not yet, error %w", err)
	})
}

const (
	kubeconfigPath = "/etc/kubernetes/kubelet.conf"
	bootstrapPath  = "/etc/kubernetes/bootstrap-kubelet.conf"
	staticPodDir   = "/etc/kubernetes/manifests"
)

// kubeletConfig leaves out what a machine in namespaces can't do. %[1]v is whether the client certificate is rotated,
// %[2]v whether the serving certificate is requested, and %[3]s the cgroup.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
rotateCertificates: %[1]v
serverTLSBootstrap: %[2]v
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%[3]s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
resolvConf: ""
syncFrequency: 10s
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%}
`

// keepRunning starts a program again and again in the cgroup of kubelet.service.
const keepRunning = `set -eu
cgroup=/sys/fs/cgroup/systemd
[ -e $cgroup ] || cgroup=/sys/fs/cgroup
cgroup=$cgroup/system.slice/kubelet.service
mkdir -p $cgroup
while :; do sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' $cgroup "$@" || true; sleep 1; done`

type kubeletOptions struct {
	Binary string // its path; empty means the control plane's version
	// KeepCertificate disables the rotation of the client certificate. The kubelet then also uses the bootstrap that
	// finds its request again after a restart.
	KeepCertificate bool
	SelfSigned      bool   // it signs its serving certificate itself, as it does by default
	Address         string // that its Node reports, if it is not the machine's
	StaticPods      bool   // it runs the pods in the folder for static pods
	Service         bool   // a loop starts it again, in the cgroup of kubelet.service, as systemd does
	ShortCaches     bool   // its port asks the API server about a user again after 5 s, instead of 5 minutes
}

func (c *cluster) bootstrapConfig(token string) *rest.Config {
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.QPS = token, -1
	return config
}

func (c *cluster) join(t *testing.T, name string, options kubeletOptions) *machine {
	m := c.machine(t, name)
	m.firstKubelet(t, c.bootstrapConfig(bootstrapToken), options)
	return m
}

// firstKubelet writes the CA and a kubeconfig, and starts a kubelet. The kubeconfig is for the bootstrap if its user has a token.
func (m *machine) firstKubelet(t *testing.T, config *rest.Config, options kubeletOptions) {
	path := kubeconfigPath
	if config.BearerToken != "" {
		path = bootstrapPath
	}
	m.write(t, "/etc/kubernetes/pki/ca.crt", config.CAData)
	m.write(t, path, kit.Must(testcluster.Kubeconfig(config))(t))
	m.startKubelet(t, options)
}

func (m *machine) startKubelet(t *testing.T, options kubeletOptions) {
	config := fmt.Appendf(nil, kubeletConfig, !options.KeepCertificate, !options.SelfSigned, m.cgroup())
	if options.StaticPods {
		config = fmt.Appendf(config, "staticPodPath: %s\n", staticPodDir)
	}
	if options.ShortCaches {
		config = append(config, "authorization: {webhook: {cacheAuthorizedTTL: 5s, cacheUnauthorizedTTL: 5s}}\n"...)
	}
	m.write(t, "/var/lib/kubelet/config.yaml", config)
	line := []string{
		cmp.Or(options.Binary, binary("kubelet")), "--config=/var/lib/kubelet/config.yaml", "--kubeconfig=" + kubeconfigPath,
		"--bootstrap-kubeconfig=" + bootstrapPath, "--hostname-override=" + m.name, "--node-ip=" + cmp.Or(options.Address, m.address),
	}
	if options.Service {
		m.write(t, "/etc/systemd/system/kubelet.service", []byte("[Service]\nRestart=always\n"))
		line = append([]string{"sh", "-c", keepRunning, "sh"}, line...)
	}
	m.kubelet = startProcess(t, m.dir, m.name+"-kubelet", m.command(line...))
}

// stopService ends a kubelet and the loop that would start it again.
func (m *machine) stopService(t *testing.T) {
	t.Helper()
	m.kubelet.kill(t)
	m.must(t, "kill", "-9", strings.TrimSpace(m.kubeletID(t)))
}

func (m *machine) restartKubelet(t *testing.T, options kubeletOptions) {
	t.Helper()
	kit.NoError(t, m.kubelet.end(syscall.SIGTERM))
	m.startKubelet(t, options)
}

// certificate returns the file that the kubelet's kubeconfig names, and the client certificate in it.
func (m *machine) certificate() (file []byte, cert *x509.Certificate, err error) {
	text, err := run(m.command("cat", "/var/lib/kubelet/pki/kubelet-client-current.pem"))
	if err != nil {
		return nil, nil, err
	}
	both, err := tls.X509KeyPair([]byte(text), []byte(text))
	return []byte(text), both.Leaf, err
}

// current is certificate for a kubelet that must have one.
func (m *machine) current(t *testing.T) ([]byte, *x509.Certificate) {
	file, cert, err := m.certificate()
	kit.NoError(t, err)
	return file, cert
}

func (m *machine) kubeletID(t *testing.T) string {
	t.Helper()
	id := m.must(t, "sh", "-c", `for one in /proc/[0-9]*; do [ "$(cat $one/comm 2>/dev/null)" != kubelet ] || echo ${one#/proc/}; done`)
	kit.Require(t, id != "", "no kubelet runs on %s", m.name)
	return id
}
