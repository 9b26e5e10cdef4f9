package reliability

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// endForMemory lets the kernel end the program twice: when it starts with too little memory, and when it works and needs more than it has.
func endForMemory(w *world) {
	w.pause(2 * time.Second)
	w.oldest().kill()
	enough, group := w.environment, w.newMemoryGroup()
	w.environment = append(slices.Clone(enough), "sh", "-c", `echo $$ > `+group.members+` && exec "$0" "$@"`)
	group.permit(8 << 20)
	w.endsForMemory(w.startReplica(false))
	group.permit(1 << 30)
	r := w.startReplica(false)
	w.waitReady(r)
	w.pause(time.Second)
	group.squeeze()
	w.endsForMemory(r)
	w.environment = enough
	w.startReplica(false)
}

// endsForMemory waits until the kernel ends r.
func (w *world) endsForMemory(r *replica) {
	w.t.Helper()
	r.killed = true // its end is no fault
	select {
	case <-r.Done:
	case <-time.After(30 * time.Second):
		w.wrong("the kernel does not end the program")
		r.Kill()
		return
	}
	if status, ok := r.Ended().Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		w.wrong("the program ended with %s, want SIGKILL: %s", r.Ended(), r.Tail(3))
	}
}

// memoryGroup is a control group with a memory limit, of version 1 or 2. A process that writes its ID to members becomes a member.
type memoryGroup struct {
	t                         *testing.T
	members, limit, statistic string
}

func (w *world) newMemoryGroup() memoryGroup {
	w.t.Helper()
	root, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(root, "memory")); err == nil {
		root, limit = filepath.Join(root, "memory"), "memory.limit_in_bytes"
	}
	folder := filepath.Join(root, "reliability-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // a test that was killed leaves it
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := os.Remove(folder); err != nil { // its members have ended
			w.t.Error(err)
		}
	})
	swap := filepath.Join(folder, "memory.swap.max") // of version 2, if there is swap
	if _, err := os.Stat(swap); err == nil {
		if err := os.WriteFile(swap, []byte("0"), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return memoryGroup{w.t, filepath.Join(folder, "cgroup.procs"), filepath.Join(folder, limit), filepath.Join(folder, "memory.stat")}
}

// permit sets the limit in bytes.
func (g memoryGroup) permit(bytes int) {
	g.t.Helper()
	if err := os.WriteFile(g.limit, []byte(strconv.Itoa(bytes)), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// squeeze sets the smallest limit that the kernel accepts while the members have what they use.
func (g memoryGroup) squeeze() {
	g.t.Helper()
	var err error
	for limit := g.heaps(); limit < 1<<30; limit += 256 << 10 {
		if err = os.WriteFile(g.limit, []byte(strconv.Itoa(limit)), 0o600); !errors.Is(err, syscall.EBUSY) { // of version 1
			break
		}
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// heaps returns how many bytes the members use that the kernel cannot take back: "anon" of version 2, "rss" of version 1.
func (g memoryGroup) heaps() (bytes int) {
	g.t.Helper()
	text, err := os.ReadFile(g.statistic)
	if err != nil {
		g.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var name string
		if _, err := fmt.Sscan(line, &name, &bytes); err == nil && (name == "anon" || name == "rss") {
			return bytes
		}
	}
	g.t.Fatalf("no use of memory in %s", text)
	return 0
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
