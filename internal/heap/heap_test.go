package heap

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, test := range map[string]struct {
		floor, live, roots int64
		want               int
	}{
		"at the start":                    {64 * mib, 0, 0, 1600},
		"the smallest heap":               {64 * mib, 4 * mib, 0, 1500},
		"a small heap":                    {64 * mib, 10 * mib, 5 * mib, 350},
		"a heap just below the floor":     {64 * mib, 50 * mib, 5 * mib, 100},
		"a heap of the size of the floor": {64 * mib, 64 * mib, 5 * mib, 100},
		"a large heap":                    {64 * mib, 1024 * mib, 5 * mib, 100},
		"no room":                         {0, 10 * mib, 0, 100},
	} {
		got := percentFor(test.floor, test.live, test.roots)
		if got != test.want {
			t.Errorf("%s: GOGC=%d, want %d", name, got, test.want)
		}
		// The runtime computes the next goal so.
		goal := max(test.live+(test.live+test.roots)*int64(got)/100, 4*mib*int64(got)/100)
		if most := max(test.floor, 2*test.live+test.roots, 4*mib); goal > most {
			t.Errorf("%s: the heap grows to %d bytes, want at most %d", name, goal, most)
		}
	}
}

func TestContainerLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		contents []string
		want     int64
	}{
		"no container":            {nil, 0},
		"cgroup v2":               {[]string{"268435456\n"}, 268435456},
		"cgroup v2 without limit": {[]string{"max\n"}, 0},
		"cgroup v1 without limit": {[]string{"9223372036854771712\n"}, 0},
		"the second file":         {[]string{"max\n", "1024\n"}, 1024},
		"no number":               {[]string{"many\n", ""}, 0},
		"no memory":               {[]string{"0\n"}, 0},
	} {
		files := []string{filepath.Join(t.TempDir(), "absent")}
		for _, content := range test.contents {
			file := filepath.Join(t.TempDir(), "limit")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		if got := containerLimit(files); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestTune checks that the environment takes precedence, and that GOGC follows the heap.
func TestTune(t *testing.T) { //nolint:paralleltest // it changes the process
	restore := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(restore) })
	t.Setenv("GOMEMLIMIT", "off")
	t.Setenv("GOGC", "70")
	Tune()
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC is set to %d in spite of the environment", got)
	}
	t.Setenv("GOGC", "")
	runtime.GC() // Tune reads the size that the last collection found, perhaps in an earlier run of this test
	Tune()
	if got := debug.SetGCPercent(150); got < 300 {
		t.Errorf("GOGC is %d with a small heap", got)
	}
	held := make([]byte, floor)
	runtime.GC()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		got := debug.SetGCPercent(150)
		if got == usualPercent {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("GOGC is %d with a large heap", got)
		}
	}
	runtime.KeepAlive(held)
}
