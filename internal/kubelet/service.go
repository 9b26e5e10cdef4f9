package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// service is the service of systemd that runs the kubelet. Any Pod can have a process that is called kubelet, but no Pod is in the service's cgroup.
const service = "kubelet.service"

// supervisors maps how the names of services begin that run a kubelet of their own to how that kubelet moves to another CA.
var supervisors = map[string]string{
	"k3s":           "k3s issues its certificates from a CA of its own, which k3s certificate rotate-ca replaces",
	"rke2":          "RKE2 issues its certificates from a CA of its own, which rke2 certificate rotate-ca replaces",
	"k0s":           "let it join again with a new token",
	"snap.microk8s": "MicroK8s issues its certificates from a CA of its own, which microk8s refresh-certs replaces",
}

// otherKubelets is where a kubelet that is not moved here has its steps.
const otherKubelets = "docs/how-to/distributions.md#move-a-node-to-a-new-ca"

// mainProcess returns the kubelet's process: the one in its service's cgroup whose parent is not in it.
func mainProcess() (*os.Process, error) {
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	parents, elsewhere := map[int]int{}, ""
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		in := serviceOf(string(text))
		for prefix, instead := range supervisors {
			if strings.HasPrefix(in, prefix) {
				elsewhere = fmt.Sprintf("the kubelet runs in %s: %s (%s)", in, instead, otherKubelets)
			}
		}
		if in != service {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil {
			continue
		}
		// The name of the program, in parentheses, may hold anything. State and parent follow (proc_pid_stat(5)).
		fields := strings.Fields(string(status[strings.LastIndexByte(string(status), ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if parent, err := strconv.Atoi(fields[1]); err == nil && fields[0] != "Z" {
			parents[pid] = parent
		}
	}
	var found []int
	for pid, parent := range parents {
		if _, inside := parents[parent]; !inside {
			found = append(found, pid)
		}
	}
	switch {
	case len(found) == 1:
		return os.FindProcess(found[0])
	case len(found) == 0 && elsewhere != "":
		return nil, errors.New(elsewhere)
	default:
		return nil, fmt.Errorf("%d processes are at the top of the cgroup of %s, want the kubelet; for other systems see %s", len(found), service, otherKubelets)
	}
}

// serviceOf returns the service of systemd to which a process belongs, by its /proc/PID/cgroup: a line for each hierarchy, such as
// 0::/system.slice/kubelet.service. Nodes that reserve resources have slices of other names (Kubernetes' documentation, Reserve
// Compute Resources). Only root can put a process into a service right below a slice of the top. From within a Pod, the path begins
// with /.. (cgroup_namespaces(7)).
func serviceOf(cgroups string) string {
	for line := range strings.Lines(cgroups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		path := parts[len(parts)-1]
		for rest, found := strings.CutPrefix(path, "/.."); found; rest, found = strings.CutPrefix(path, "/..") {
			path = rest
		}
		names := strings.Split(path, "/") // the service may have cgroups of its own
		if len(names) > 2 && strings.HasSuffix(names[1], ".slice") && strings.HasSuffix(names[2], ".service") {
			return names[2]
		}
	}
	return ""
}

// signalFor returns the signal after which systemd starts the kubelet again: its exit code after SIGTERM is 0, so only SIGKILL counts
// as a failure (systemd.service(5), Restart=). The first folder that has the unit counts, and the first one that has a drop-in of a
// name. The drop-ins apply after the unit, ordered by their names (systemd.unit(5)). root is the root folder of the host.
func signalFor(root string) (syscall.Signal, error) {
	paths, dropIns := []string{}, map[string]string{}
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib", "lib"} {
		path := filepath.Join(root, dir, "systemd/system", service)
		if _, err := os.Lstat(path); err == nil && len(paths) == 0 {
			paths = append(paths, path)
		}
		found, err := filepath.Glob(path + ".d/*.conf")
		if err != nil {
			return 0, err
		}
		for _, each := range found {
			if name := filepath.Base(each); dropIns[name] == "" {
				dropIns[name] = each
			}
		}
	}
	restart := ""
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		paths = append(paths, dropIns[name])
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("read the unit files of the kubelet: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "Restart" {
				restart = strings.TrimSpace(value)
			}
		}
	}
	switch restart {
	case "always":
		return syscall.SIGTERM, nil
	case "on-failure", "on-abnormal", "on-abort":
		return syscall.SIGKILL, nil
	default:
		return 0, fmt.Errorf("the unit files of %s have Restart=%s: nothing would start the kubelet again", service, restart)
	}
}
