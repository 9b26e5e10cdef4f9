package kubelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// cgroup is that of the kubelet's service. Any Pod can have a process that is called kubelet, but no Pod is in this cgroup.
const cgroup = "system.slice/kubelet.service"

// supervisors maps services that run a kubelet of their own to what renews its certificates.
var supervisors = map[string]string{
	"k3s.service":                           "k3s certificate rotate, with the agent stopped",
	"k3s-agent.service":                     "k3s certificate rotate, with the agent stopped",
	"rke2-server.service":                   "rke2 certificate rotate, with the server stopped",
	"rke2-agent.service":                    "a restart of rke2-agent",
	"k0scontroller.service":                 "a restart of k0scontroller",
	"k0sworker.service":                     "a restart of k0sworker",
	"snap.microk8s.daemon-kubelite.service": "microk8s refresh-certs",
}

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
		service := serviceOf(string(text))
		if instead := supervisors[service]; instead != "" {
			elsewhere = fmt.Sprintf("the kubelet runs in %s: use %s", service, instead)
		}
		if service != filepath.Base(cgroup) {
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
		return nil, fmt.Errorf("%d processes are at the top of the cgroup %s, want the kubelet", len(found), cgroup)
	}
}

// serviceOf returns the service of system.slice to which a process belongs, by its /proc/PID/cgroup: a line for each hierarchy, such
// as 0::/system.slice/kubelet.service. From within a Pod, the path begins with /.. (cgroup_namespaces(7)).
func serviceOf(cgroups string) string {
	for line := range strings.Lines(cgroups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		path := parts[len(parts)-1]
		for rest, found := strings.CutPrefix(path, "/.."); found; rest, found = strings.CutPrefix(path, "/..") {
			path = rest
		}
		if service, found := strings.CutPrefix(path, "/system.slice/"); found {
			service, _, _ = strings.Cut(service, "/") // the service may have cgroups of its own
			return service
		}
	}
	return ""
}

// signalFor returns the signal after which systemd starts the kubelet again: its exit code after SIGTERM is 0, so only SIGKILL counts
// as a failure (systemd.service(5), Restart=).
func signalFor() (syscall.Signal, error) {
	restart := ""
	for _, dir := range []string{"/lib", "/usr/lib", "/usr/local/lib", "/run", "/etc"} { // the last one counts
		unit := filepath.Join(dir, "systemd/system/kubelet.service")
		dropIns, err := filepath.Glob(unit + ".d/*.conf")
		if err != nil {
			return 0, err
		}
		slices.Sort(dropIns)
		for _, path := range append([]string{unit}, dropIns...) {
			text, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				if value, found := strings.CutPrefix(strings.TrimSpace(line), "Restart="); found {
					restart = strings.TrimSpace(value)
				}
			}
		}
	}
	switch restart {
	case "always":
		return syscall.SIGTERM, nil
	case "on-failure", "on-abnormal", "on-abort":
		return syscall.SIGKILL, nil
	default:
		return 0, fmt.Errorf("the unit files of kubelet.service have Restart=%s: nothing would start the kubelet again", restart)
	}
}
