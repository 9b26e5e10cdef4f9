//go:build bench

package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// subject is a program that approves and signs.
type subject struct {
	name   string
	isKCM  bool
	args   []string
	config string // the text of its configuration file, if it has one
	most   int    // how many requests a burst has at most, because more would take minutes; 0 means no limit
}

var (
	ours = subject{name: "ours", args: []string{"--leader-elect=false"}}
	// another is another revision of ours.
	another = subject{name: "base", args: ours.args}
	// asShipped is kube-controller-manager with its default limits of 20 requests/s.
	asShipped = subject{name: "KCM as shipped", isKCM: true, most: 100}
	unlimited = subject{name: "KCM unlimited", isKCM: true, args: []string{"--kube-api-qps=10000", "--kube-api-burst=10000"}}
)

// running is a running subject. Only ours serves metrics and probes.
type running struct {
	kit.Process
	isKCM bool
}

// launch starts s and does not wait. The output of s goes to a file, as that of a service does, so each subject pays for its log.
func launch(t *testing.T, s subject) *running {
	t.Helper()
	plane := kit.ControlPlane(t)
	cert, key := signingFiles(t)
	r := &running{isKCM: s.isKCM}
	line := []string{os.Getenv("KUBE_CONTROLLER_MANAGER"), "--controllers=csrapproving,csrsigning,csrcleaner", "--leader-elect=false", "--secure-port=0"}
	if !s.isKCM {
		path := *binary
		if s.name == another.name {
			path = *base
		}
		r.Probes, r.Metrics = kit.FreeAddress(t), kit.FreeAddress(t)
		line = []string{
			"GOMEMLIMIT=800MiB", kit.Must(filepath.Abs(path))(t), // as in the manifests
			"--metrics-bind-address=" + r.Metrics, "--health-probe-bind-address=" + r.Probes,
		}
	}
	if s.config != "" {
		line = append(line, kit.Configure(t, s.config))
	}
	line = append(line, "--kubeconfig="+kit.Must(plane.WriteKubeconfig("subject", plane.Config))(t),
		"--cluster-signing-cert-file="+cert, "--cluster-signing-key-file="+key)
	r.Process.Process = kit.Must(plane.StartProcess("subject", "env", append(line, s.args...)...))(t)
	t.Cleanup(r.Kill)
	return r
}

func (r *running) end(t *testing.T) {
	t.Helper()
	if state := r.Ended(); state != nil {
		t.Fatalf("it ended by itself: %s\n%s", state, r.Tail(15))
	}
	_ = r.Stop() // the exit status after a signal does not matter
}

// during creates and issues requests by work while s runs, and deletes all of them afterwards. It adds what s needed for each.
func during(t *testing.T, s subject, requests []asked, work func(*testing.T, *issuing, []asked) values) values {
	t.Helper()
	defer deleteAll(t)
	r := launch(t, s)
	defer r.end(t)
	issueOne(t)
	w, usedBefore, callsBefore := watchIssued(t), r.cpu(t), apiCalls(t)
	found := work(t, w, requests)
	found[cpu] = float64((r.cpu(t) - usedBefore).Milliseconds()) / float64(len(requests))
	found[calls] = (apiCalls(t) - callsBefore) / float64(len(requests))
	found[peak] = r.status(t, "VmHWM")
	return found
}

// memory returns the resident memory: the peak, and the settled one after a pause. That of a full run is longer than two minutes, the
// longest time that Go takes until the next garbage collection. For ours it adds the live heap.
func (r *running) memory(t *testing.T) values {
	t.Helper()
	found, pause := values{peak: r.status(t, "VmHWM")}, 5*time.Second
	if *form == "full" {
		pause = 150 * time.Second
	}
	time.Sleep(pause)
	found[settled] = r.status(t, "VmRSS")
	if !r.isKCM {
		_, page := cluster.Get(t.Context(), r.Metrics, "/metrics")
		match := regexp.MustCompile(`(?m)^go_gc_heap_live_bytes (\S+)$`).FindStringSubmatch(page)
		kit.Require(t, match != nil, "no live heap in %s", page)
		found[live] = kit.Must(strconv.ParseFloat(match[1], 64))(t) / (1 << 20)
	}
	return found
}

func (r *running) proc(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", r.Pid(), name))
	if err != nil {
		t.Fatalf("%v: %s", err, r.Tail(15))
	}
	return data
}

// status returns a field of /proc/PID/status in MiB.
func (r *running) status(t *testing.T, field string) (mebibytes float64) {
	t.Helper()
	for line := range strings.Lines(string(r.proc(t, "status"))) {
		if rest, found := strings.CutPrefix(line, field+":"); found {
			kit.Must(fmt.Sscanf(rest, "%f kB", &mebibytes))(t)
			mebibytes /= 1024
		}
	}
	return mebibytes
}

// cpu returns the processor time of r since its start, from the fields 14 and 15 of /proc/PID/stat, in hundredths of a second. The name
// of the program is in parentheses and may have spaces.
func (r *running) cpu(t *testing.T) time.Duration {
	t.Helper()
	stat := r.proc(t, "stat")
	fields, ticks := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])), 0
	for _, field := range fields[11:13] {
		ticks += kit.Must(strconv.Atoi(field))(t)
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// apiCalls returns the API calls so far that concern requests, reviews and Events, without those that only the benchmark makes: to
// create, list and watch requests.
func apiCalls(t *testing.T) (sum float64) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(kit.ControlPlane(t).Config).Discovery().RESTClient()
	page := string(kit.Must(client.Get().AbsPath("/metrics").DoRaw(t.Context()))(t))
	counted := regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="(certificatesigningrequests|subjectaccessreviews|events)",.*` +
		`subresource="(.*)",verb="(.*?)",.*\} (\S+)$`)
	for _, found := range counted.FindAllStringSubmatch(page, -1) {
		resource, subresource, verb := found[1], found[2], found[3]
		if verb != "LIST" && verb != "WATCH" && (verb != "POST" || resource+subresource != "certificatesigningrequests") {
			sum += kit.Must(strconv.ParseFloat(found[4], 64))(t)
		}
	}
	return sum
}

// share returns the smallest value that so many percent of all do not exceed.
func share(all []float64, percent int) float64 {
	slices.Sort(all)
	return all[(len(all)*percent+99)/100-1]
}
