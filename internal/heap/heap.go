// Package heap takes care of the memory of this process: how often the garbage collector runs, and that no core dump
// holds it.
//
// Go collects when the heap has doubled. A manager holds little memory, so a burst of requests would cause a
// collection every few megabytes, and a quarter of its CPU time would go there.
package heap

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
)

const (
	// floor is the size of the heap, in bytes, below which nothing is collected.
	floor = 64 << 20
	// usualPercent is Go's default for GOGC.
	usualPercent = 100
)

// limitFiles hold the memory limit of the container, in bytes: of cgroup v2 and v1.
var limitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// Tune sets the memory limit of the garbage collector to 90% of the container's limit. It sets GOGC so that the heap
// grows to 64 MiB, or to half of the memory limit if that is less, before it is collected. A larger heap may double,
// as usual. The environment variables GOMEMLIMIT and GOGC take precedence.
func Tune() {
	if os.Getenv("GOMEMLIMIT") == "" {
		if limit := containerLimit(limitFiles); limit > 0 {
			debug.SetMemoryLimit(limit / 10 * 9)
		}
	}
	if os.Getenv("GOGC") == "" {
		tuneAfterEachCollection(usualPercent, min(floor, debug.SetMemoryLimit(-1)/2))
	}
}

// containerLimit returns the limit in the first of files that has one, or zero.
func containerLimit(files []string) int64 {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// Without a limit, cgroup v2 has "max", and v1 a number near the largest one.
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < math.MaxInt64/2 {
			return limit
		}
	}
	return 0
}

// tuneAfterEachCollection sets GOGC, whose value is last, now and after each collection.
func tuneAfterEachCollection(last int, floor int64) {
	live, roots := marked()
	if percent := percentFor(floor, live, roots); percent != last {
		debug.SetGCPercent(percent)
		last = percent
	}
	runtime.AddCleanup(&struct{ _ [32]byte }{}, func(last int) { tuneAfterEachCollection(last, floor) }, last)
}

// percentFor returns the GOGC with which a heap grows to floor, but at least the usual one. live bytes of the heap are
// in use, and the roots have that many bytes. The result is a multiple of 50, because each change stops the process
// for a moment.
func percentFor(floor, live, roots int64) int {
	const step, smallest = 50, 4 << 20 // the runtime assumes at least 4 MiB
	return max(usualPercent, int((floor-live)*100/max(live+roots, smallest))/step*step)
}

// marked returns the bytes of the heap and of the roots that the last collection marked, see runtime/metrics.
func marked() (live, roots int64) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(samples)
	size := func(i int) int64 { return int64(samples[i].Value.Uint64()) } //nolint:gosec // no process has 2^63 bytes
	return size(0), size(1) + size(2)
}
