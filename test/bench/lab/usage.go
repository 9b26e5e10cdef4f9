package lab

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// ticksPerSecond is the unit of CPU times in /proc. Linux has the same on all platforms.
const ticksPerSecond = 100

const mebibyte = 1 << 20

// cost is what a subject has used since its start.
type cost struct {
	cpu          time.Duration
	allocated    float64 // bytes, 0 if the subject has no metrics
	calls        map[string]float64
	certificates int
}

func (r *Running) cost(ctx context.Context) (cost, error) {
	cpu, err := r.CPU()
	if err != nil {
		return cost{}, err
	}
	c := cost{cpu: cpu, certificates: r.lab.tracker.count(issued)}
	if c.calls, err = r.lab.calls(ctx); err != nil {
		return cost{}, err
	}
	if r.metrics != "" {
		c.allocated, err = r.metric(ctx, "go_gc_heap_allocs_bytes_total")
	}
	return c, err
}

// measure adds the costs of r during work to the values of work.
func (r *Running) measure(ctx context.Context, work func(*Running) (report.Values, error)) (report.Round, error) {
	before, err := r.cost(ctx)
	if err != nil {
		return report.Round{}, err
	}
	values, err := work(r)
	if err != nil {
		return report.Round{}, err
	}
	after, err := r.cost(ctx)
	if err != nil {
		return report.Round{}, err
	}
	round := report.Round{Values: values, Calls: map[string]float64{}}
	if _, measured := values[report.Peak]; !measured {
		if values[report.Peak], err = r.memory("VmHWM"); err != nil {
			return report.Round{}, err
		}
	}
	count := float64(after.certificates - before.certificates)
	if count == 0 {
		return round, nil
	}
	values[report.CPU] = float64(after.cpu-before.cpu) / float64(time.Millisecond) / count
	if after.allocated > 0 {
		values[report.Allocated] = (after.allocated - before.allocated) / 1024 / count
	}
	for name, calls := range after.calls {
		if calls > before.calls[name] {
			round.Calls[name] = (calls - before.calls[name]) / count
			values[report.Calls] += round.Calls[name]
		}
	}
	return round, nil
}

// Memory returns the resident memory: the peak, and the settled one after a pause. For ours it adds the live heap. The
// pause of a full run is longer than two minutes, the longest time that Go takes until the next garbage collection.
func (r *Running) Memory(ctx context.Context) (report.Values, error) {
	values := report.Values{}
	var err error
	if values[report.Peak], err = r.memory("VmHWM"); err != nil {
		return nil, err
	}
	select {
	case <-time.After(r.lab.Settle):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if values[report.Settled], err = r.memory("VmRSS"); err != nil {
		return nil, err
	}
	if r.metrics != "" {
		live, err := r.metric(ctx, "go_gc_heap_live_bytes")
		if err != nil {
			return nil, err
		}
		values[report.LiveHeap] = live / mebibyte
	}
	return values, nil
}

// PeakMemory returns the largest resident memory since the start, in MiB.
func (r *Running) PeakMemory() (float64, error) { return r.memory("VmHWM") }

// memory returns a field of /proc/PID/status in MiB.
func (r *Running) memory(field string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Process.Pid()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, field+":"); found {
			kibibytes, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kibibytes / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/%d/status", field, r.Process.Pid())
}

// CPU returns the CPU time of the process since its start.
func (r *Running) CPU() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Process.Pid()))
	if err != nil {
		return 0, err
	}
	// The name of the program is in parentheses and may contain spaces. The times are the fields 14 and 15.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / ticksPerSecond, err
}

// metric returns the sum of a metric of the subject.
func (r *Running) metric(ctx context.Context, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for _, s := range samples(body, name) {
		sum, found = sum+s.value, true
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", r.subject.Name, name)
	}
	return sum, nil
}

// calls returns the API calls so far that concern requests, reviews and Events, by verb and resource. It leaves out
// what only the benchmark does: create, list and watch requests.
func (l *Lab) calls(ctx context.Context) (map[string]float64, error) {
	body, err := l.Admin.CertificatesV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	calls := map[string]float64{}
	for _, s := range samples(body, "apiserver_request_total") {
		verb, resource := s.labels["verb"], s.labels["resource"]
		if sub := s.labels["subresource"]; sub != "" {
			resource += "/" + sub
		}
		switch {
		case verb == "LIST", verb == "WATCH", verb == "POST" && resource == "certificatesigningrequests":
		case strings.HasPrefix(resource, "certificatesigningrequests"),
			resource == "subjectaccessreviews", resource == "events":
			calls[verb+" "+resource] += s.value
		}
	}
	return calls, nil
}

// sample is a line of the text format of Prometheus.
type sample struct {
	labels map[string]string
	value  float64
}

// samples returns the samples of a metric. It reads what Go programs write: no label value has a comma or a quote.
func samples(body []byte, name string) []sample {
	var all []sample
	for scanner := bufio.NewScanner(bytes.NewReader(body)); scanner.Scan(); {
		rest, found := strings.CutPrefix(scanner.Text(), name)
		if !found || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		labels, number, _ := strings.Cut(strings.TrimPrefix(rest, "{"), "} ")
		if rest[0] == ' ' {
			labels, number = "", rest[1:]
		}
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			continue
		}
		s := sample{map[string]string{}, value}
		for label := range strings.SplitSeq(labels, ",") {
			key, quoted, _ := strings.Cut(label, "=")
			s.labels[key] = strings.Trim(quoted, `"`)
		}
		all = append(all, s)
	}
	return all
}
