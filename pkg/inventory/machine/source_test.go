package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/informertest"
)

// machineObject returns a machine called name in namespace default, with more fields.
func machineObject(t testing.TB, name, more string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	expect.NoError(t, yaml.Unmarshal([]byte(more), &obj.Object))
	if obj.Object == nil {
		obj.Object = map[string]any{}
	}
	obj.SetNamespace("default")
	obj.SetName(name)
	return obj
}

// sourceOf returns a Source that has read objects, by their names.
func sourceOf(t testing.TB, options Options, objects map[string]string) *Source {
	t.Helper()
	source, err := New(&rest.Config{}, options, logr.Discard())
	expect.NoError(t, err)
	var all []runtime.Object
	for name, more := range objects {
		all = append(all, machineObject(t, name, more))
	}
	informertest.Read(t, source.machines, all...)
	return source
}

func sans(texts ...string) []san.SAN { return san.Of(texts, nil) }

const (
	bound   = `{status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: host-1}]}}`
	leaving = `{metadata: {deletionTimestamp: "2026-01-02T03:04:05Z"}, spec: {infrastructureRef: {name: node-1}}, status: {addresses: [{type: InternalIP, address: 10.0.0.9}]}}`
	waiting = `{metadata: {creationTimestamp: "2026-01-02T03:04:05Z"}, spec: {infrastructureRef: {name: node-1}}}`
	other   = `{status: {nodeRef: {name: node-2}, addresses: [{type: Hostname, address: Node-1.}, {type: InternalIP, address: 10.0.0.2}]}}`
)

// reporting returns a machine that reports an address and nothing else.
func reporting(kind, address string) string {
	return "{status: {addresses: [{type: " + kind + ", address: " + address + "}]}}"
}

func TestLookup(t *testing.T) {
	const claimed = "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one"
	type all = map[string]string
	is := func(name, bound string, names ...string) *inventory.Entry {
		return &inventory.Entry{Source: "Machine default/" + name, Bound: bound, SANs: sans(names...)}
	}
	leaves := &inventory.Entry{Source: "Machine default/a", Leaving: true, SANs: sans("10.0.0.9")}
	made := func(name string) *inventory.Entry {
		return &inventory.Entry{Source: "Machine default/" + name, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	}
	for name, test := range map[string]struct {
		options Options
		objects all
		node    string
		want    *inventory.Entry
		wantErr string
	}{
		"nothing":                         {},
		"bound":                           {objects: all{"a": bound}, want: is("a", "node-1", "10.0.0.1", "host-1")},
		"bound, and another of that name": {objects: all{"a": bound, "b": waiting}, want: is("a", "node-1", "10.0.0.1", "host-1")},
		"all addresses": {
			objects: all{"a": `{status: {nodeRef: {name: node-1}, addresses: [
				{type: InternalIP, address: "::ffff:10.0.0.1"}, {type: InternalIP, address: "2001:DB8:0:0::1"}, {type: ExternalIP, address: 10.0.0.1},
				{type: InternalDNS, address: Node-1.Internal.}, {type: ExternalDNS, address: node-1.example.org}, {type: Hostname, address: 192.0.2.7},
				{type: InternalIP, address: node-2}, {type: ExternalIP, address: ""}, {type: Hostname, address: ""}, {type: Serial, address: x-1}]}}`},
			want: is("a", "node-1", "10.0.0.1", "2001:db8::1", "node-1.internal", "node-1.example.org", "192.0.2.7"),
		},
		"by the infrastructure's name":           {objects: all{"a": waiting}, want: made("a")},
		"by host name, whatever its case":        {objects: all{"a": reporting("Hostname", "NODE-1.")}, want: is("a", "", "node-1")},
		"a request in upper case is for no Node": {objects: all{"a": reporting("Hostname", "NODE-1")}, node: "NODE-1"},
		"not by external name":                   {objects: all{"a": reporting("ExternalDNS", "node-1")}},
		"not by the machine's own name":          {objects: all{"node-1": `{}`}},
		"OpenShift: by internal name": {
			options: OpenShift(), node: "ip-10-0-0-1.ec2.internal",
			objects: all{"a": reporting("InternalDNS", "Ip-10-0-0-1.EC2.internal.")}, want: is("a", "", "ip-10-0-0-1.ec2.internal"),
		},
		"OpenShift: not by host name": {
			options: OpenShift(),
			objects: all{"a": `{spec: {infrastructureRef: {name: node-1}}, status: {addresses: [{type: Hostname, address: node-1}]}}`},
		},
		"it has become another node":                   {objects: all{"b": other}, want: is("b", "node-2")},
		"is being deleted":                             {objects: all{"a": leaving}, want: leaves},
		"is being deleted, and its successor is there": {objects: all{"a": leaving, "b": waiting}, want: made("b")},
		"another machine lists it twice, and all else": {
			objects: all{"a": bound, "b": `{status: {addresses: ["10.0.0.1", "::ffff:10.0.0.1", HOST-1.]}}`},
			want:    is("a, without what other machines list too ([\"10.0.0.1\" \"host-1\"])", "node-1"),
		},
		"a machine that is being deleted lists the same address": {
			objects: all{"a": bound, "b": strings.Replace(leaving, "10.0.0.9", "10.0.0.1", 1)},
			want:    is("a", "node-1", "10.0.0.1", "host-1"),
		},
		"two machines for the node":                                      {objects: all{"b": waiting, "a": waiting}, wantErr: claimed},
		"one unbound, another of that host name has become another node": {objects: all{"a": other, "b": waiting}, want: made("b")},
		"two of that host name have become other nodes": {
			objects: all{"a": strings.Replace(other, "node-2", "node-3", 1), "b": other},
			want:    is("a", "node-3"),
		},
		"one can't be read, another is for the node": {
			objects: all{"a": waiting, "b": `{spec: {infrastructureRef: {name: node-1}}, status: {nodeRef: {name: [x, y]}}}`},
			wantErr: claimed,
		},
		"addresses of the wrong type": {
			objects: all{"a": `{spec: {infrastructureRef: {name: node-1}}, status: {nodeRef: {name: [x, y]}, addresses: [1]}}`},
			wantErr: "Machine default/a: .status.nodeRef.name: want one string\n.status.addresses: contains a value that is not an address",
		},
		"own paths": {
			options: Options{
				Kind: "Host", NodeRefPath: ".status.node", AddressesPath: `{.status.nics[?(@.up==true)].ip}`,
				NamePath: ".spec.names[*]", CreatedPath: ".status.started",
			},
			objects: all{"a": `{spec: {names: [x, Node-1]}, status: {started: "2026-02-03T04:05:06Z", nics: [
				{up: true, ip: 10.0.0.1}, {up: false, ip: 10.0.0.2}, {up: true, ip: "2001:db8::1"}]}}`},
			want: &inventory.Entry{Source: "Host default/a", SANs: sans("10.0.0.1", "2001:db8::1"), Created: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)},
		},
		"an invalid start time": {
			options: Options{Kind: "Host", NamePath: ".metadata.labels.node", CreatedPath: ".status.started"},
			objects: all{"a": `{metadata: {labels: {node: node-1}}, status: {started: yesterday}}`},
			wantErr: `Host default/a: .status.started: "yesterday" is not an RFC 3339 time`,
		},
	} {
		if test.options.Kind == "" {
			test.options = ClusterAPI()
		}
		got, err := sourceOf(t, test.options, test.objects).Lookup(t.Context(), cmp.Or(test.node, "node-1"), nil)
		expect.Error(t, name, err, test.wantErr)
		expect.Equal(t, name, got, test.want, cmpopts.EquateEmpty())
	}
}

func TestOwner(t *testing.T) {
	source := sourceOf(t, ClusterAPI(), map[string]string{
		"a": bound, "b": bound, "c": leaving,
		"bad": `{spec: {infrastructureRef: {name: [x, y]}}, status: {addresses: [{type: InternalIP, address: 10.0.0.7}, {type: InternalIP}]}}`,
	})
	for value, want := range map[string]string{
		"10.0.0.1":        "Machine default/a (node node-1)", // of two, the first
		"::ffff:10.0.0.1": "Machine default/a (node node-1)",
		"HOST-1.":         "Machine default/a (node node-1)",
		"10.0.0.9":        "Machine default/c",   // until its deletion ends
		"10.0.0.7":        "Machine default/bad", // as far as it can be read, without affecting others
		"10.0.0.8":        "",
		"node-1":          "", // the infrastructure's name is not a host name
	} {
		got, err := source.Owner(san.Parse(value))
		expect.True(t, err == nil && got == want, "%s: %q, %v, want %q", value, got, err, want)
	}
}

// TestChanged checks which nodes a change of a machine names, and what the machine had: requests of other nodes may wait
// for that.
func TestChanged(t *testing.T) {
	const both, leaving = "host-1 [10.0.0.1 host-1], node-1 [10.0.0.1 host-1]", "{metadata: {deletionTimestamp: '2026-01-02T03:04:05Z'}, "
	changed := func(old, text string) string { return strings.Replace(bound, old, text, 1) }
	for name, test := range map[string]struct{ before, after, want string }{
		"added":            {"", bound, "host-1 [], node-1 []"},
		"deleted":          {waiting, "", "node-1 []"},
		"was and is":       {waiting, other, "node-1 [], node-2 []"},
		"gone":             {bound, "", both},
		"lost an address":  {bound, changed("10.0.0.1", "10.0.0.2"), both},
		"an unused field":  {bound, changed("{", "{spec: {x: y}, "), ""},
		"is being deleted": {bound, changed("{", leaving), both},
		"without a node":   {reporting("InternalIP", "10.0.0.1"), "", "a [10.0.0.1]"},
	} {
		var told []string
		source := sourceOf(t, ClusterAPI(), nil)
		source.Changed = func(node string, had ...san.SAN) { told = append(told, fmt.Sprint(node, " ", had)) }
		read := func(more string) *machine {
			if more == "" {
				return nil
			}
			return source.machines.Convert(machineObject(t, "a", more))
		}
		source.machines.OnChange(read(test.before), read(test.after))
		slices.Sort(told)
		expect.Equal(t, name+": told", strings.Join(slices.Compact(told), ", "), test.want)
		told = nil
		source.machines.OnSync()
		expect.Equal(t, name+": told after all were read", told, []string{" []"})
	}
}

func TestPathMistakes(t *testing.T) {
	for _, text := range []string{
		"status.addresses", "status", "$", "{.a}{.b}", "{range .a[*]}{.b}{end}", "x{.a}", ".a}{.b", ".a[", ".a[?(@.b", "{.a", "'x'", ".a end", " ",
	} {
		if got, err := parsePath("x", text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
	_, err := parsePaths(Options{NodeRefPath: "a", CreatedPath: "b"})
	want := "nodeRefPath: \"a\": want one path such as .status.addresses\ncreatedPath: \"b\": want one path such as .status.addresses"
	expect.Error(t, "error", err, want)
}

// TestUnreadMachines checks that the source returns an error, and no answer, while it has no copy.
func TestUnreadMachines(t *testing.T) {
	source, err := New(&rest.Config{}, ClusterAPI(), logr.Discard())
	expect.NoError(t, err)
	_, lookupErr := source.Lookup(t.Context(), "node-1", nil)
	_, ownerErr := source.Owner(san.Parse("10.0.0.1"))
	for _, err := range []error{lookupErr, ownerErr} {
		expect.Error(t, "error", err, "Machine.cluster.x-k8s.io: not read yet")
	}
}
