package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestMain makes the test binary the go command if it has this name, as main does.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "go" {
		main()
		return
	}
	os.Exit(m.Run())
}

// mutated returns the command that tests a module with this body of a function, as gremlins calls it.
func mutated(t *testing.T, body string, timeout time.Duration) (command *exec.Cmd, dir string) {
	t.Helper()
	dir = t.TempDir()
	self, selfErr := os.Executable()
	goCommand, err := exec.LookPath("go")
	if err := errors.Join(selfErr, err,
		os.Symlink(self, filepath.Join(dir, "go")),
		os.Mkdir(filepath.Join(dir, "a"), 0o700),
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+modulePath+"\n\ngo 1.26.0\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "a", "a.go"), []byte("package a\n\nfunc f(a, b string) string {"+body+"}\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "a", "a_test.go"), []byte(testOfMutant), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	command = exec.Command(filepath.Join(dir, "go"), "test", "-timeout", timeout.String(), "-failfast", modulePath+"/a")
	command.Dir = filepath.Join(dir, "a")
	command.Env = append(os.Environ(), realGo+"="+goCommand, "GOTMPDIR="+dir, "GOFLAGS=", "GOWORK=off")
	return command, dir
}

// testOfMutant also has a mistake that only vet finds.
const testOfMutant = `package a

import (
	"fmt"
	"os"
	"testing"
)

func TestSlow(t *testing.T) { test(t, "slow", "") }
func TestF(t *testing.T)    { test(t, "fast", "a") }

func test(t *testing.T, file, a string) {
	if err := os.WriteFile(file, fmt.Append(nil, os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if f(a, "b") != a+"b" {
		t.Error("a mutant")
	}
	_ = fmt.Sprintf("%d", "a")
}
`

// TestGoCommand checks that a mutant is killed only if a test fails, and that slow tests run only if the other tests pass.
func TestGoCommand(t *testing.T) {
	t.Parallel()
	const allocates = "return a + b + string(make([]byte, 7<<30))"
	for _, test := range []struct {
		body, slow string // the pattern of slow tests
		code       exitCode
		slowRuns   bool
	}{
		{"return a + b", "", 0, true},
		{"return a - b", "", notViable, false},
		{allocates, "", testsFailed, true},
		{"return a + b", "^TestSlow$", 0, true},
		{"return b + a", "^TestSlow$", testsFailed, false},
		{"panic(a)", "^TestSlow$", testsFailed, false},
		{`if a == "" { return "" }; return a + b`, "^TestSlow$", testsFailed, true},
	} {
		command, dir := mutated(t, test.body, time.Minute)
		command.Env = append(command.Env, slowTests+"="+test.slow)
		out, err := command.CombinedOutput()
		_, slowErr := os.Stat(filepath.Join(dir, "a", "slow"))
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) || command.ProcessState.ExitCode() != int(test.code) || (slowErr == nil) != test.slowRuns {
			t.Errorf("%+v: %v, slow test ran: %t\n%s", test, err, slowErr == nil, out)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "mutant-*")); err != nil || len(left) > 0 {
			t.Errorf("%+v: leaves %q, error %v", test, left, err)
		}
	}
}

// TestGoCommandTimeout checks that nothing of a test that hangs is left when gremlins' time has passed, and that the
// command has not ended before.
func TestGoCommandTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 15 * time.Second
	command, dir := mutated(t, "for {}", timeout)
	began := time.Now()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait(); close(ended) }()
	gone := func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "a", "slow"))
		pid, err := strconv.Atoi(string(data))
		return err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	for !gone() && time.Since(began) < 2*timeout {
		time.Sleep(50 * time.Millisecond)
	}
	if took := time.Since(began); !gone() || took > timeout-gremlinsMargin+ownMargin/2 {
		t.Errorf("the test is gone: %t, after %s", gone(), took)
	}
	select {
	case err := <-ended:
		t.Errorf("the command has ended: %v", err)
	default:
	}
	_ = command.Process.Kill()
	for range ended { // until the command has ended
	}
}
