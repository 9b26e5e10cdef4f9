package static

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp/cmpopts"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/informertest"
)

func sans(texts ...string) []san.SAN { return san.Of(texts, nil) }

const someNodes = `# who is who
- name: node-1
  dnsNames: [Node-1.Example.Org., "${node}"]
  addresses: [10.0.0.1, "::ffff:10.0.0.2", 2001:DB8:0::1, 10.1.0.0/16, "::ffff:10.2.0.0/120"]
  shortNames: true
- name: worker-9
- namePattern: "worker-(?P<n>[0-9]+)"
  dnsNames: ["w${n}.rack.example.org"]
  suffixes: [".${node}.pods.example.org", "W${n}.example.org."]
- namePattern: "^worker-1.*$"
  dnsNames: [never.example.org]
- namePattern: "^(?P<x>.*)-odd$"
  dnsNames: ["${x}.example.org"]
- {name: node-2, dnsNames: [node-2.example.org], addresses: [10.0.0.3, 10.0.0.3]}
- {name: 1.10, dnsNames: [10, no, 2001-01-01]} # a text keeps its spelling, even if YAML reads it as another type
- {namePattern: "(?P<a>x?)(?P<b>[0-9.]*)", dnsNames: ["${a}.example.org", "${b}", "x${b}"], suffixes: ["${a}"]}
`

func TestSource(t *testing.T) {
	source, err := parseRows([]byte(someNodes))
	expect.NoError(t, err)
	for node, want := range map[string]*inventory.Entry{
		"node-1": {
			Source: "row 1 of configuration", ShortNames: true,
			SANs:     sans("10.0.0.1", "10.0.0.2", "2001:db8::1", "node-1.example.org", "node-1"),
			Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/24")},
		},
		"worker-9": {Source: "row 2 of configuration"}, // a name takes precedence over a pattern
		"worker-12": { // the first pattern that matches counts
			Source: "row 3 of configuration", SANs: sans("w12.rack.example.org"),
			Suffixes: []string{"worker-12.pods.example.org", "w12.example.org"},
		},
		"a-odd":            {Source: "row 5 of configuration", SANs: sans("a.example.org")},
		"1.10":             {Source: "row 7 of configuration", SANs: sans("10", "no", "2001-01-01")},
		"1.2.3.4":          {Source: "row 8 of configuration", SANs: sans("x1.2.3.4")}, // an expansion that is no name is left out
		"a..b-odd":         nil,                                                        // not a valid Node name
		"A-odd":            nil,
		"node-11":          nil,
		"evil-worker-12":   nil, // a pattern must match the whole name
		"worker-12.evil":   {Source: "row 4 of configuration", SANs: sans("never.example.org")},
		"worker-12\nevil":  nil,
		"":                 nil,
		"node-1.":          nil,
		"-odd":             nil,
		"system:node:node": nil,
	} {
		got, err := source.Lookup(t.Context(), node, nil)
		expect.Error(t, node, err, "")
		if want != nil {
			want.AnyTime = true                                                          // a row has no time
			want.Shared = !slices.Contains([]string{"node-1", "worker-9", "1.10"}, node) // a pattern is for several nodes
		}
		expect.Equal(t, node, got, want, cmpopts.EquateEmpty())
		if node == "node-1" { // a changed answer must not change the next one
			got.SANs[0], got.Prefixes[0] = san.Parse("evil"), netip.MustParsePrefix("0.0.0.0/0")
			again, _ := source.Lookup(t.Context(), node, nil)
			expect.Equal(t, node+", asked again", again, want, cmpopts.EquateEmpty())
		}
	}
}

func TestOwner(t *testing.T) {
	source, err := parseRows([]byte(someNodes))
	expect.NoError(t, err)
	const one, six = "row 1 of configuration (node node-1)", "row 6 of configuration (node node-2)"
	for value, want := range map[string]string{
		"10.0.0.1": one, "10.0.0.3": six, "::ffff:10.0.0.2": one, "NODE-1.example.org": one, "node-1": one, "node-2.example.org": six,
		"node-2":               "", // that row has no short names
		"10.1.0.1":             "", // in a CIDR
		"w12.rack.example.org": "", // of a pattern
	} {
		if got, err := source.Owner(san.Parse(value)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", value, got, err, want)
		}
	}
}

func TestMistakes(t *testing.T) {
	const empty = "nodes.yaml: is empty: write [] for no rows"
	for name, test := range map[string]struct{ text, want string }{
		"nothing":       {"", empty},
		"a map":         {"nodes: []\n", "nodes.yaml: line 1: cannot unmarshal !!map into []static.Row"},
		"two documents": {"[]\n---\n[]\n", "nodes.yaml: want one YAML document"},
		"a null row":    {"- name: a\n  addresses: [10.0.0.1]\n-\n", "nodes.yaml: line 3: is empty: remove it, or give it a value"},
		"no YAML":       {"- name: a\n  - b: [\n", "nodes.yaml: yaml: line 1: did not find expected key"},
		"several mistakes": {`
- name: node-1
  addresses:
  - 10.0.0.1
  - "10.0.0"
  - 0.0.0.0/0
- name: node-1
  dnsNames: ["*.example.org", "${n}", "10.0.0.1", "a_b", "a$"]
  suffixes: ["", "."]
`, "[" + strings.Join([]string{
			`nodes.yaml[0].addresses[1]: Invalid value: "10.0.0": is not an IP address`,
			`nodes.yaml[0].addresses[2]: Invalid value: "0.0.0.0/0": is too wide: /8 is the widest`,
			`nodes.yaml[1].dnsNames[0]: Invalid value: "*.example.org": is not a DNS name`,
			`nodes.yaml[1].dnsNames[1]: Invalid value: "${n}": use $ only in ${node}, and in ${group} for a group of the pattern`,
			`nodes.yaml[1].dnsNames[2]: Invalid value: "10.0.0.1": is an address: list it as one`,
			`nodes.yaml[1].dnsNames[3]: Invalid value: "a_b": is not a DNS name`,
			`nodes.yaml[1].dnsNames[4]: Invalid value: "a$": use $ only in ${node}, and in ${group} for a group of the pattern`,
			`nodes.yaml[1].suffixes[0]: Invalid value: "": is not a DNS name`,
			`nodes.yaml[1].suffixes[1]: Invalid value: ".": is not a DNS name`,
			`nodes.yaml[1].name: Duplicate value: "node-1"`,
		}, ", ") + "]"},
		"an address in two rows, in another notation": {
			"- {name: a, addresses: [10.0.0.1, 10.0.0.1]}\n- {name: b, addresses: ['::ffff:10.0.0.1', 10.0.0.2]}\n",
			`nodes.yaml[1]: Invalid value: "10.0.0.1": row 1 lists it too: only rows with namePattern may share names and addresses`,
		},
		"a short name in two rows, and a name by a template": {
			"- {name: a, dnsNames: [x.eu.test, b.test], shortNames: true}\n- {name: b, dnsNames: [x, '${node}.test']}\n",
			`[nodes.yaml[1]: Invalid value: "x": row 1 lists it too: only rows with namePattern may share names and addresses, ` +
				`nodes.yaml[1]: Invalid value: "b.test": row 1 lists it too: only rows with namePattern may share names and addresses]`,
		},
		"both names": {"- {name: a, namePattern: b}\n", "nodes.yaml[0]: Required value: set either name or namePattern"},
		"upper case": {"- name: Node-1\n", `nodes.yaml[0].name: Invalid value: "Node-1": is not a valid Node name`},
		"the second group is unknown": {
			"- namePattern: 'a(?P<n>.)'\n  dnsNames: ['${n}-${x}']\n",
			`nodes.yaml[0].dnsNames[0]: Invalid value: "${n}-${x}": use $ only in ${node}, and in ${group} for a group of the pattern`,
		},
		"bad pattern": {"- namePattern: 'a('\n  dnsNames: ['${x}']\n",
			"nodes.yaml[0].namePattern: Invalid value: \"a(\": error parsing regexp: missing closing ): `a(`"},
		"pattern that breaks anchors": {"- namePattern: 'a)|(?:b'\n",
			"nodes.yaml[0].namePattern: Invalid value: \"a)|(?:b\": error parsing regexp: unexpected ): `a)|(?:b`"},
		"IPv6 all": {"- {name: a, addresses: ['::/0']}\n",
			`nodes.yaml[0].addresses[0]: Invalid value: "::/0": is too wide: /8 is the widest`},
		"half of IPv4": {"- {name: a, addresses: [0.0.0.0/1]}\n",
			`nodes.yaml[0].addresses[0]: Invalid value: "0.0.0.0/1": is too wide: /8 is the widest`},
		"group named node": {"- namePattern: '(?P<node>a)b'\n",
			`nodes.yaml[0].namePattern: Invalid value: "(?P<node>a)b": ${node} stands for the whole name: use another name for the group`},
		"pattern twice":    {"- namePattern: a+\n- namePattern: a+\n", `nodes.yaml[1].namePattern: Duplicate value: "a+"`},
		"all IPv4, mapped": {"- {name: a, addresses: ['::ffff:0:0/96']}\n", `nodes.yaml[0].addresses[0]: Invalid value: "::ffff:0:0/96": is too wide: /8 is the widest`},
		"a host's CIDR":    {"- {name: a, addresses: [10.0.0.5/24]}\n", `nodes.yaml[0].addresses[0]: Invalid value: "10.0.0.5/24": has bits beyond the prefix: want 10.0.0.0/24`},
		"a zone":           {"- {name: a, addresses: ['fd00::1%eth0']}\n", `nodes.yaml[0].addresses[0]: Invalid value: "fd00::1%eth0": is not an IP address`},
	} {
		source, err := parseRows([]byte(test.text))
		expect.Error(t, name, err, test.want)
		expect.Equal(t, name+": no source", source == nil, true)
	}
}

// step is a change of a ConfigMap, and what follows from it.
type step struct {
	what     string
	do       func(testing.TB, *ConfigMap)
	lookup   string // the prefix of a lookup's error; empty if the row answers
	event    string // the prefix of the Event; empty if there is none
	mistakes float64
}

// version has the source read a version of the ConfigMap. Without a UID there is no ConfigMap.
func version(uid types.UID, text string) func(testing.TB, *ConfigMap) {
	return func(t testing.TB, source *ConfigMap) {
		var objs []runtime.Object
		if uid != "" {
			meta := metav1.ObjectMeta{Namespace: "ns", Name: "nodes", UID: uid}
			objs = append(objs, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{nodesKey: text}})
		}
		informertest.Read(t, source.configMap, objs...)
	}
}

// fails has the source fail to read the ConfigMap.
func fails(err error) func(testing.TB, *ConfigMap) {
	return func(t testing.TB, source *ConfigMap) { informertest.Fail(t, source.configMap, err) }
}

// TestLastGoodListStaysInUse checks when the last good version answers, and when no version does. Mistakes are reported
// once: in an Event of bounded length about the ConfigMap, in the log, and as a number. A good list is no news.
func TestLastGoodListStaysInUse(t *testing.T) { // not in parallel, because it reads a metric of the whole process
	const (
		good    = "[{name: a}]"
		oops    = "ConfigMap ns/nodes: nodes.yaml: line 1: cannot unmarshal !!str `oops` into []static.Row"
		missing = "ConfigMap ns/nodes does not exist: create it with a list of rows under nodes.yaml"
		invalid = "Warning StaticListInvalid the list is rejected, and "
		gone    = "Warning StaticListMissing the list is rejected, and no row is in use: "
		none    = invalid + "no row is in use: nodes.yaml"
		kept    = invalid + "the last good version stays in use: nodes.yaml"
		fine    = "Normal StaticListRead all rows are in use"
	)
	two := `[0].name: Invalid value: "A": is not a valid Node name; nodes.yaml[1].addresses[0]: Invalid value: "x": is not an IP address`
	many := ""
	for i := range 300 {
		many += fmt.Sprintf("- name: %s%d\n", strings.Repeat("X", 300), i)
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("configmaps"), "nodes", errors.New("no"))
	for _, steps := range [][]step{{
		{"not read", func(testing.TB, *ConfigMap) {}, "ConfigMap ns/nodes: not read yet", "", 0},
		{"good", version("1", good), "", "", 0},
		{"bad", version("1", "oops"), "", kept + ": line 1: ", 1},
		{"good again", version("1", good), "", fine, 0},
		{"another refusal", fails(apierrors.NewUnauthorized("who")), "ConfigMap ns/nodes: list configmaps: who", "", 0},
		{"forbidden", fails(forbidden), `ConfigMap ns/nodes: grant list and watch on configmaps: configmaps "nodes" is forbidden: no`, gone + "it can't be read: ", 1},
		{"bad when it can be read again", version("1", "oops"), "", kept, 1},
		{"another ConfigMap, which is bad", version("2", "oops"), oops, none, 1},
		{"good once more", version("2", good), "", fine, 0},
		{"deleted", version("", ""), missing, gone + missing, 1},
	}, {
		{"bad", version("1", "oops"), oops, none + ": line 1: cannot unmarshal !!str `oops` into []static.Row", 1},
		{"the same mistake", version("1", "oops # again"), oops, "", 1},
		{"two mistakes", version("1", "- name: A\n- name: b\n  addresses: [x]\n"), "ConfigMap ns/nodes: [nodes.yaml[0].name: ", none + two, 2},
		{"good", version("1", good), "", fine, 0},
		{"another good one", version("1", good+" # again"), "", "", 0},
		{"many mistakes", version("1", many), "", kept + "[0].name: Invalid value: ", 300},
		{"no rows", version("1", "[]"), "-", fine, 0},
	}} {
		refusedRows.Set(0)
		logged, told, recorder := 0, 0, events.NewFakeRecorder(10)
		log := funcr.New(func(_, line string) { logged += strings.Count(line, "Refused static inventory") }, funcr.Options{})
		source, err := NewConfigMap(&rest.Config{}, types.NamespacedName{Namespace: "ns", Name: "nodes"}, log)
		expect.NoError(t, err)
		source.Changed = func(string, ...san.SAN) { told++ }
		source.Recorder = recorder
		for _, step := range steps {
			told, logged = 0, 0
			step.do(t, source)
			entry, err := source.Lookup(t.Context(), "a", nil)
			expect.True(t, (entry == nil) == (step.lookup != "") && (err == nil || strings.HasPrefix(err.Error(), step.lookup)),
				"%s: entry %v, error %v, want %q", step.what, entry, err, step.lookup)
			event, problem := "", strings.HasPrefix(step.event, "Warning")
			if len(recorder.Events) > 0 {
				event = <-recorder.Events
			}
			if !strings.HasPrefix(event, step.event) || step.event == "" && event != "" || len(event) > 1100 || (logged == 1) != problem {
				t.Errorf("%s: logged %d times, Event of %d bytes %q, want %q", step.what, logged, len(event), event, step.event)
			}
			expect.Equal(t, step.what+": told of a change", told == 1, source.configMap.Err() == nil)
			number := &dto.Metric{}
			if err := refusedRows.Write(number); err != nil || number.GetGauge().GetValue() != step.mistakes {
				t.Errorf("%s: %v mistakes, error %v, want %v", step.what, number.GetGauge().GetValue(), err, step.mistakes)
			}
		}
	}
}
