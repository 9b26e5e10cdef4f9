package clock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// programMark is set in the environment of the program of TestShift.
const programMark = "CLOCK_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programMark) == "" {
		os.Exit(m.Run())
	}
	start := time.Now()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); { // prints both clocks for each line
		fmt.Println(time.Now().Unix(), time.Since(start).Nanoseconds())
	}
}

// TestShift shifts the clock of a program that runs.
func TestShift(t *testing.T) {
	t.Parallel()
	program := exec.CommandContext(t.Context(), os.Args[0])
	program.Env = append(os.Environ(), programMark+"=1")
	in, out := kit.Must(program.StdinPipe())(t), kit.Must(program.StdoutPipe())(t)
	kit.NoError(t, program.Start())
	began, lines := time.Now(), bufio.NewScanner(out)
	read := func() (wall, mono time.Duration) {
		t.Helper()
		var seconds, nanoseconds int64
		if _, err := fmt.Fprintln(in); err != nil || !lines.Scan() {
			t.Fatalf("the program ended: %v", errors.Join(err, lines.Err()))
		}
		kit.Must(fmt.Sscan(lines.Text(), &seconds, &nanoseconds))(t)
		return time.Until(time.Unix(seconds, 0)), time.Duration(nanoseconds)
	}
	read() // it has started
	for _, by := range []time.Duration{time.Hour, -24 * time.Hour, 0} {
		kit.NoError(t, Shift(program.Process.Pid, by))
		if wall, mono := read(); wall > by || wall < by-10*time.Second || mono < 0 || mono > time.Since(began) {
			t.Errorf("the clock is shifted by %s, want %s; the monotonic clock shows %s", wall, by, mono)
		}
	}
	kit.NoError(t, errors.Join(in.Close(), program.Wait()))
	if err := Shift(1<<30, time.Hour); err == nil { // above the largest process ID
		t.Error("the clock of no process was shifted")
	}
}
