package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// realGo is the environment variable with the path of the go command.
	realGo = "MUTATION_GO"
	// slowTests is the environment variable with target.Slow.
	slowTests  = "MUTATION_SLOW"
	modulePath = "github.com/csr-controller-manager/csr-controller-manager"
	// memoryLimit bounds the address space of a test binary, because a mutant can allocate without end.
	memoryLimit = 6 << 30
)

// exitCode is the exit code of the go command, as gremlins reads it. Gremlins takes every other code for a survivor.
type exitCode int

const (
	testsFailed exitCode = 1
	notViable   exitCode = 2 // the mutant does not compile
	otherError  exitCode = 3
)

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// asGo runs the go command with args. In gremlins' PATH, this program is the go command, for two reasons. The coverage
// profile of "go test" lacks code, see cover. And "go test" exits with 1 if a mutant does not compile or if vet fails,
// which gremlins reads as a mutant that a test has killed, see testMutant.
func asGo(args []string) error {
	if profile := profileOf(args); profile != "" {
		return cover(args, profile)
	}
	if len(args) > 0 && args[0] == "test" {
		return testMutant(args[1:])
	}
	return syscall.Exec(os.Getenv(realGo), append([]string{"go"}, args...), os.Environ())
}

// testMutant builds the tests of a package and runs them. args are those that gremlins gives to "go test". The slow tests
// run last, and only if no other test has killed the mutant.
func testMutant(args []string) error {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	timeout := flags.Duration("timeout", time.Minute, "")
	failFast := flags.Bool("failfast", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	deadline := time.Now().Add(*timeout - gremlinsMargin - ownMargin)
	dir, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "mutant-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "mutant.test")
	build := exec.Command(os.Getenv(realGo), "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary, flags.Arg(0))
	build.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=2GiB") // twice as fast
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return notViable
	}
	sources, err := packageDir(flags.Arg(0))
	if err != nil {
		return err
	}
	passes := []string{"-test.run=."}
	if slow := os.Getenv(slowTests); slow != "" {
		passes = []string{"-test.skip=" + slow, "-test.run=" + slow}
	}
	for _, choice := range passes {
		command := exec.Command(binary, fmt.Sprintf("-test.failfast=%t", *failFast), choice)
		command.Dir = sources
		if err := runTests(command, deadline); err != nil {
			return err
		}
	}
	return nil
}

const (
	// gremlinsMargin is the part of -timeout that gremlins does not wait.
	gremlinsMargin = 2 * time.Second
	// ownMargin is the time to end the tests before gremlins ends this process.
	ownMargin = time.Second
)

// runTests runs the tests. At the deadline, it kills them and every process that they have started. Then it waits until
// gremlins ends this process, because gremlins reports a mutant as timed out only if gremlins has ended it.
func runTests(command *exec.Cmd, deadline time.Time) error {
	limit := syscall.Rlimit{Cur: memoryLimit, Max: memoryLimit}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	group := -command.Process.Pid
	expired := make(chan struct{})
	timer := time.AfterFunc(time.Until(deadline), func() {
		close(expired)
		_ = syscall.Kill(group, syscall.SIGKILL)
	})
	err := command.Wait()
	if !timer.Stop() {
		<-expired
		time.Sleep(time.Minute)
		return otherError
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // the processes that the tests have left
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return testsFailed
	}
	return err
}

// packageDir returns the directory of a package of the module that holds the working directory.
func packageDir(importPath string) (string, error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			return "", errors.New("no directory above has a go.mod")
		}
		root = filepath.Dir(root)
	}
	return filepath.Join(root, filepath.FromSlash(strings.TrimPrefix(importPath, modulePath))), nil
}

// codeOf returns the exit code for err.
func codeOf(err error) int {
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	return int(otherError)
}
