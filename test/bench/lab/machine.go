package lab

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// Machine describes this machine and the control plane.
func (l *Lab) Machine() (report.Machine, error) {
	version, err := l.Admin.Discovery().ServerVersion()
	if err != nil {
		return report.Machine{}, fmt.Errorf("read the version of the API server: %w", err)
	}
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return report.Machine{}, err
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return report.Machine{}, err
	}
	return report.Machine{
		CPUs: runtime.NumCPU(), Model: processorModel(), MemoryMiB: int(info.Totalram * uint64(info.Unit) / mebibyte),
		Kernel: string(bytes.TrimSpace(kernel)), Go: runtime.Version(), Kubernetes: version.GitVersion,
	}, nil
}

// processorModel returns the first model in /proc/cpuinfo. Some platforms name none.
func processorModel() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
