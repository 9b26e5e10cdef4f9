package reliability

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// endForMemory kills the program, and starts it with so little memory that the kernel ends it, twice. Then it has enough
// again.
func endForMemory(w *world) {
	w.pause(2 * time.Second)
	w.oldest().kill()
	enough := w.environment
	w.environment = append(slices.Clone(enough), "sh", "-c", `echo $$ > `+w.newMemoryLimit()+` && exec "$0" "$@"`)
	for range 2 {
		r := w.startReplica(false)
		r.killed = true // its end is no fault
		select {
		case <-r.Done:
		case <-time.After(30 * time.Second):
			w.t.Fatal("the kernel does not end the program")
		}
		if status, ok := r.Ended().Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			w.wrong("the program ended with %s, want SIGKILL: %s", r.Ended(), r.Tail(3))
		}
	}
	w.environment = enough
	w.startReplica(false)
}

// newMemoryLimit makes a control group of 12 MiB, of version 1 or 2, and returns the path of the file to which a member
// writes its process ID.
func (w *world) newMemoryLimit() string {
	w.t.Helper()
	root, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(root, "memory")); err == nil {
		root, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
	}
	folder := filepath.Join(root, "reliability-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(folder, 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := os.Remove(folder); err != nil { // its members have ended
			w.t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(folder, file), []byte(strconv.Itoa(12<<20)), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return filepath.Join(folder, "cgroup.procs")
}

// reachSoftLimit lasts as long as the load. The collector of the program tries to stay within GOMEMLIMIT.
func reachSoftLimit(w *world) {
	w.pause(12 * time.Second)
	r := w.oldest()
	used := r.metric(w.t.Context(), "go_memstats_sys_bytes") - r.metric(w.t.Context(), "go_memstats_heap_released_bytes")
	if w.theirs { // its metrics are not read
		pages, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", r.Pid()))
		if err != nil {
			w.t.Fatal(err)
		}
		resident, err := strconv.Atoi(strings.Fields(string(pages))[1])
		if err != nil {
			w.t.Fatal(err)
		}
		used = float64(resident * os.Getpagesize())
	}
	if used < 0.9*(24<<20) {
		w.t.Errorf("the program uses %.0f bytes, so its limit is not reached", used)
	}
}
