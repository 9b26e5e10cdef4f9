//go:build e2e

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// firstProcess is the shell that is process 1 of the namespaces. It reaps orphans while it waits for the tests.
const firstProcess = `set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
"$0" "$@" &
wait $!`

// outer runs the tests in their own namespaces. It returns their exit code, or 1 if they left something behind.
func outer() int {
	if err := checkMachine(); err != nil {
		return exitCode(err)
	}
	// Not in $TMPDIR: the machines have their own /var and /run. A run within a run uses the folder of the outer run.
	dir, err := os.MkdirTemp(cmp.Or(os.Getenv(dirVariable), "/tmp"), "csr-e2e-")
	if err != nil {
		return exitCode(err)
	}
	before := lookAround()
	g, err := startGuard(dir)
	if err != nil {
		return exitCode(errors.Join(err, os.RemoveAll(dir)))
	}
	code, err := inner(dir, g)
	if err != nil || code != 0 {
		printTails(os.Stdout, dir)
	}
	err = errors.Join(err, keepLogs(dir), g.stop())
	err = errors.Join(err, before.check(dir))
	return max(code, exitCode(err))
}

// checkMachine returns an error that lists everything that is missing on this machine.
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
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"} {
		if _, err := os.Stat(binary(name)); err != nil {
			errs = append(errs, fmt.Errorf("%w: CONTROLPLANE names the folder with the control plane's programs; make e2e sets it", err))
		}
	}
	if _, err := os.Stat(managerImage()); err != nil {
		errs = append(errs, fmt.Errorf("%w: make image builds it", err))
	}
	return errors.Join(errs...)
}

// inner runs the tests and returns their exit code.
func inner(dir string, g *guardProcess) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	if err := buildImages(dir); err != nil {
		return 1, err
	}
	command := exec.Command("sh", append([]string{"-c", firstProcess, self}, os.Args[1:]...)...)
	command.Env = append(os.Environ(), roleVariable+"=inner", dirVariable+"="+dir)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // Ctrl-C is for this process
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := command.Start(); err != nil {
		return 1, fmt.Errorf("start the tests in namespaces of their own: %w", err)
	}
	g.add(command.Process.Pid)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case one := <-signals:
			fmt.Printf("e2e: %s: ending the tests\n", one)
			_ = command.Process.Kill()
		case <-ended:
		}
	}()
	err = command.Wait()
	g.drop(command.Process.Pid)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// logDir is the folder with the logs of the control plane and the machines. podLogDir has the logs of a machine's
// pods.
func logDir(dir string) string             { return filepath.Join(dir, "logs") }
func podLogDir(dir, machine string) string { return filepath.Join(logDir(dir), "pods-"+machine) }

const tailLines = 25

// printTails prints the end of every log.
func printTails(to io.Writer, dir string) {
	_ = filepath.WalkDir(logDir(dir), func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		name, _ := filepath.Rel(logDir(dir), path)
		_, _ = fmt.Fprintf(to, "---- the end of %s\n%s\n", name, tail(string(data), tailLines))
		return nil
	})
}

// noise lists messages that a kubelet on such a machine repeats.
var noise = []string{"Unable to register mirror pod", "cannot find filesystem info for device"}

// tail returns the last lines of text that are not noise.
func tail(text string, count int) string {
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(line string) bool {
		return slices.ContainsFunc(noise, func(part string) bool { return strings.Contains(line, part) })
	})
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// keepLogs copies the logs to the folder E2E_LOGS, if that is set.
func keepLogs(dir string) error {
	to := os.Getenv("E2E_LOGS")
	if to == "" {
		return nil
	}
	if output, err := exec.Command("cp", "-rT", logDir(dir), to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the logs: %w: %s", err, output)
	}
	return nil
}
