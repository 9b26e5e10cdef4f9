package reliability

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// floods are the requests of a stranger who may only create requests. Each row is for a signer of this manager and for one that no
// program serves. The first is what any requester may write.
var floods = []struct {
	name   string
	change func(*request)
	whole  float64 // the bytes that the cache holds of a request that this manager serves
}{
	{"usual requests", func(*request) {}, 4000},
	{"as large as the limits permit", func(obj *request) {
		obj.Spec.Request = append(obj.Spec.Request, strings.Repeat("#", 131_072-len(obj.Spec.Request))...)
		obj.Annotations = map[string]string{"a": strings.Repeat("a", 65_000)}
	}, 4000},
	{"names of 400,000 control characters", func(obj *request) { obj.Name = strings.Repeat("\x01", 400_000-len(obj.Name)) + obj.Name }, 4000},
	{"10,000 labels", func(obj *request) {
		obj.Labels = map[string]string{}
		for i := range 10_000 {
			obj.Labels[fmt.Sprintf("example.com/%d", i)] = "a-value"
		}
	}, 4000},
	{"annotations of 250 kB", func(obj *request) { obj.Annotations = map[string]string{"a": strings.Repeat("a", 250_000)} }, 4000},
}

// cost is what one request costs.
type cost struct {
	live, log, audit, eventBytes float64 // bytes
	events, calls                float64
	processor                    time.Duration
}

// TestFlood measures what requests of a stranger cost, and that the memory is free again once they are deleted. The short form has
// fewer requests, and only those above the limits.
func TestFlood(t *testing.T) {
	kit.Alone(t)
	size := 30
	if full {
		size = 200
	}
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.Grant(t, "stranger", kit.MayCreate)
	kit.GrantJoining(t, "joiner")
	table := fmt.Sprintf("\n| %d requests | signer | live memory | peak resident | log | audit log | Events | API calls | processor | live after deletion |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", size)
	for i, flood := range floods {
		if i < 2 && !full {
			continue
		}
		for _, signer := range []string{certificatesv1.KubeAPIServerClientKubeletSignerName, foreignSigner} {
			t.Run(flood.name+" for "+signer, func(t *testing.T) {
				m := startMeasured(t)
				before := m.sample()
				m.send(size, signer, flood.change)
				each := m.sample().minus(before, float64(size))
				kit.NoError(t, kit.Admin(t).DeleteAllOf(t.Context(), &request{}, client.MatchingFields{"spec.signerName": signer}))
				m.join()
				after := m.sample().live - before.live
				table += fmt.Sprintf("| %s | %s | %.1f kB each | %.0f MiB | %.0f bytes each | %.0f bytes each | %.2f each, of %.0f bytes | %.2f each | %s each | %+.1f MB |\n",
					flood.name, map[bool]string{true: "none", false: "ours"}[signer == foreignSigner], each.live/1000, m.peak(), each.log, each.audit, each.events,
					each.eventBytes/max(each.events, 0.01), each.calls, each.processor.Round(time.Millisecond/10), after/1e6)
				const noise = 3e6 // bytes of memory for connections and the like
				whole := map[bool]float64{true: 4000, false: flood.whole}[signer == foreignSigner]
				for what, bound := range map[string][2]float64{
					"bytes of memory": {each.live, whole + noise/float64(size)}, "bytes of log": {each.log, 4000},
					"bytes of audit log": {each.audit, 1e4 / float64(size)}, // that of the kubelets of join: what waits is not recorded
					"Events":             {each.events, 0.5}, "bytes of Events": {each.eventBytes, 2000}, "calls": {each.calls, 3},
					"milliseconds of processor time": {float64(each.processor.Milliseconds()), 100}, "bytes of memory after the deletion": {after / float64(size), noise / float64(size)},
				} {
					kit.Check(t, bound[0] <= bound[1], "%s for each request: %.1f, want at most %.1f", what, bound[0], bound[1])
				}
			})
		}
	}
	t.Log(table)
}

// measured is a manager that is measured.
type measured struct {
	*kit.Process
	t     *testing.T
	proxy *faults.Proxy
	audit string
}

func startMeasured(t *testing.T) *measured {
	t.Helper()
	m := &measured{t: t, proxy: kit.ThroughFaults(t, kit.ManagerConfig(t)), audit: filepath.Join(t.TempDir(), "audit.log")}
	m.Process = kit.StartManager(t, m.proxy.Config, "--leader-elect=false", "--audit-log-path", m.audit)
	m.join()
	return m
}

// join waits until a kubelet has a certificate: what was written before has reached the cache.
func (m *measured) join() {
	m.t.Helper()
	obj := kit.CreateRequest(m.t, kit.As(m.t, "joiner"), kit.NodeRequest(m.t, "joiner-1"))
	kit.Reaches(m.t, obj, csr.Issued)
}

// send creates requests of a stranger, and waits until the manager has dealt with them.
func (m *measured) send(size int, signer string, change func(*request)) {
	m.t.Helper()
	before := m.metric("csr_approver_decisions_total{")
	usual, stranger := kit.NodeRequest(m.t, "a"), kit.As(m.t, "stranger")
	create, ctx := errgroup.WithContext(m.t.Context())
	create.SetLimit(creators)
	for i := range size {
		create.Go(func() error {
			obj := usual.DeepCopy()
			obj.GenerateName, obj.Name, obj.Spec.SignerName = "", fmt.Sprintf("flood-%d", i), signer
			change(obj)
			return stranger.Create(ctx, obj)
		})
	}
	kit.NoError(m.t, create.Wait())
	m.join()
	if signer != foreignSigner {
		kit.Eventually(m.t, "all are judged", func(context.Context) error {
			judged := m.metric("csr_approver_decisions_total{") - before
			return kit.OrError(judged >= float64(size+1), "%.0f decisions", judged)
		})
	}
}

// metric returns the sum of the series whose lines begin with name.
func (m *measured) metric(name string) (sum float64) {
	m.t.Helper()
	_, body := cluster.Get(m.t.Context(), m.Metrics, "/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name) {
			var value float64
			_, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value)
			kit.NoError(m.t, err)
			sum += value
		}
	}
	return sum
}

// sample returns what the manager has used until now. Its live memory is that after the next garbage collection.
func (m *measured) sample() (all cost) {
	m.t.Helper()
	const cycles = "go_gc_duration_seconds_count "
	for last := m.metric(cycles) + 2; m.metric(cycles) < last; { // each answer makes garbage
		kit.NoError(m.t, m.t.Context().Err())
	}
	all.live = m.metric("go_memstats_next_gc_bytes ") / (1 + m.metric("go_gc_gogc_percent ")/100)
	all.log = float64(len(m.Output(m.t)))
	all.audit = float64(len(kit.Must(os.ReadFile(m.audit))(m.t)))
	for _, call := range m.proxy.Calls() {
		if call.Resource != "events" {
			all.calls++
		}
	}
	var events eventsv1.EventList
	kit.NoError(m.t, kit.Admin(m.t).List(m.t.Context(), &events))
	for _, event := range events.Items {
		if event.Regarding.Kind == "CertificateSigningRequest" {
			all.events++
			all.eventBytes += float64(event.Size())
		}
	}
	all.processor = time.Duration(m.CPUSeconds(m.t) * float64(time.Second))
	return all
}

func (c cost) minus(before cost, size float64) cost {
	return cost{
		live: (c.live - before.live) / size, log: (c.log - before.log) / size, audit: (c.audit - before.audit) / size,
		eventBytes: (c.eventBytes - before.eventBytes) / size, events: (c.events - before.events) / size, calls: (c.calls - before.calls) / size,
		processor: (c.processor - before.processor) / time.Duration(size),
	}
}

// peak returns the largest resident memory of the manager, in MiB.
func (m *measured) peak() (mib float64) {
	m.t.Helper()
	status := string(kit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Pid())))(m.t))
	_, value, _ := strings.Cut(status, "VmHWM:")
	_, err := fmt.Sscan(value, &mib)
	kit.NoError(m.t, err)
	return mib / 1024
}
