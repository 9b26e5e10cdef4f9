package inventory

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// machineObject is a machine called name in namespace default, with more fields.
func machineObject(t testing.TB, name, more string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(more), &obj.Object); err != nil {
		t.Fatal(err)
	}
	if obj.Object == nil {
		obj.Object = map[string]any{}
	}
	obj.SetNamespace("default")
	obj.SetName(name)
	return obj
}

// machines is the view of objects by their names.
func machines(t testing.TB, options MachineOptions, objects map[string]string) toolscache.Indexer {
	t.Helper()
	paths, err := parsePaths(options)
	if err != nil {
		t.Fatal(err)
	}
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, machineIndexers)
	for name, more := range objects {
		if err := store.Add(paths.read(machineObject(t, name, more))); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

const (
	bound   = `{status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: host-1}]}}`
	leaving = `{metadata: {deletionTimestamp: "2026-01-02T03:04:05Z"}, spec: {infrastructureRef: {name: node-1}}, status: {addresses: [{type: InternalIP, address: 10.0.0.9}]}}`
	waiting = `{metadata: {creationTimestamp: "2026-01-02T03:04:05Z"}, spec: {infrastructureRef: {name: node-1}}}`
	other   = `{status: {nodeRef: {name: node-2}, addresses: [{type: Hostname, address: Node-1.}, {type: InternalIP, address: 10.0.0.2}]}}`
)

func TestLookupMachine(t *testing.T) {
	for name, test := range map[string]struct {
		options MachineOptions
		objects map[string]string
		node    string
		want    *Entry
		wantErr string
	}{
		"nothing": {},
		"bound": {
			objects: map[string]string{"a": bound},
			want:    &Entry{Source: "Machine default/a", Bound: "node-1", SANs: sans("10.0.0.1", "host-1")},
		},
		"bound, and another that would be": {
			objects: map[string]string{"a": bound, "b": waiting},
			want:    &Entry{Source: "Machine default/a", Bound: "node-1", SANs: sans("10.0.0.1", "host-1")},
		},
		"all addresses": {
			objects: map[string]string{"a": `{status: {nodeRef: {name: node-1}, addresses: [
				{type: InternalIP, address: "::ffff:10.0.0.1"}, {type: InternalIP, address: "2001:DB8:0:0::1"}, {type: ExternalIP, address: 10.0.0.1},
				{type: InternalDNS, address: Node-1.Internal.}, {type: ExternalDNS, address: node-1.example.org}, {type: Hostname, address: 192.0.2.7},
				{type: InternalIP, address: node-2}, {type: ExternalIP, address: ""}, {type: Hostname, address: ""}, {type: Serial, address: x-1}]}}`},
			want: &Entry{Source: "Machine default/a", Bound: "node-1",
				SANs: sans("10.0.0.1", "2001:db8::1", "node-1.internal", "node-1.example.org", "192.0.2.7")},
		},
		"by the infrastructure's name": {
			objects: map[string]string{"a": waiting},
			want:    &Entry{Source: "Machine default/a", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		},
		"by host name, whatever its case": {
			objects: map[string]string{"a": `{status: {addresses: [{type: Hostname, address: NODE-1.}]}}`},
			want:    &Entry{Source: "Machine default/a", SANs: sans("node-1")},
		},
		"a request in upper case is for no Node": {
			objects: map[string]string{"a": `{status: {addresses: [{type: Hostname, address: NODE-1}]}}`}, node: "NODE-1",
		},
		"not by external name": {
			objects: map[string]string{"a": `{status: {addresses: [{type: ExternalDNS, address: node-1}]}}`},
		},
		"not by the machine's own name": {objects: map[string]string{"node-1": `{}`}},
		"OpenShift: by internal name": {
			options: OpenShift(), node: "ip-10-0-0-1.ec2.internal",
			objects: map[string]string{"a": `{status: {addresses: [{type: InternalDNS, address: Ip-10-0-0-1.EC2.internal.}]}}`},
			want:    &Entry{Source: "Machine default/a", SANs: sans("ip-10-0-0-1.ec2.internal")},
		},
		"OpenShift: not by host name": {
			options: OpenShift(),
			objects: map[string]string{"a": `{spec: {infrastructureRef: {name: node-1}}, status: {addresses: [{type: Hostname, address: node-1}]}}`},
		},
		"it has become another node": { // whose addresses are not ours
			objects: map[string]string{"b": other},
			want:    &Entry{Source: "Machine default/b", Bound: "node-2"},
		},
		"is being deleted": {
			objects: map[string]string{"a": leaving},
			want:    &Entry{Source: "Machine default/a", Leaving: true, SANs: sans("10.0.0.9")},
		},
		"is being deleted, and its successor is there": {
			objects: map[string]string{"a": leaving, "b": waiting},
			want:    &Entry{Source: "Machine default/b", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		},
		"two expect it": {
			objects: map[string]string{"b": waiting, "a": waiting},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"one expects it by its infrastructure, another by its host name": {
			objects: map[string]string{"a": waiting, "b": `{status: {addresses: [{type: Hostname, address: node-1}]}}`},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"one expects it, another of that host name has become another node": {
			objects: map[string]string{"a": other, "b": waiting},
			want:    &Entry{Source: "Machine default/b", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		},
		"two of that host name have become other nodes": {
			objects: map[string]string{"a": strings.Replace(other, "node-2", "node-3", 1), "b": other},
			want:    &Entry{Source: "Machine default/a", Bound: "node-3"},
		},
		"one can't be read, another expects it": {
			objects: map[string]string{"a": waiting, "b": `{spec: {infrastructureRef: {name: node-1}}, status: {nodeRef: {name: [x, y]}}}`},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"two have become it": {
			objects: map[string]string{"a": bound, "b": bound},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"two that leave": {
			objects: map[string]string{"a": leaving, "b": leaving},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"addresses that are none": {
			objects: map[string]string{"a": `{status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP}]}}`},
			wantErr: "Machine default/a: .status.addresses: want type and address in each",
		},
		"addresses of the wrong type": {
			objects: map[string]string{"a": `{spec: {infrastructureRef: {name: node-1}}, status: {nodeRef: {name: [x, y]}, addresses: [1]}}`},
			wantErr: "Machine default/a: .status.nodeRef.name: want one text\n.status.addresses: holds what is no address",
		},
		"own paths": {
			options: MachineOptions{
				Kind: "Host", NodeRefPath: ".status.node", AddressesPath: `{.status.nics[?(@.up==true)].ip}`,
				NamePath: ".spec.names[*]", CreatedPath: ".status.started",
			},
			objects: map[string]string{"a": `{spec: {names: [x, Node-1]}, status: {started: "2026-02-03T04:05:06Z", nics: [
				{up: true, ip: 10.0.0.1}, {up: false, ip: 10.0.0.2}, {up: true, ip: "2001:db8::1"}]}}`},
			want: &Entry{Source: "Host default/a", SANs: sans("10.0.0.1", "2001:db8::1"), Created: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)},
		},
		"not started": {
			options: MachineOptions{Kind: "Host", NamePath: ".metadata.labels.node", CreatedPath: ".status.started"},
			objects: map[string]string{"a": `{metadata: {creationTimestamp: "2026-01-02T03:04:05Z", labels: {node: node-1}}}`},
			want:    &Entry{Source: "Host default/a"},
		},
		"started at no time": {
			options: MachineOptions{Kind: "Host", NamePath: ".metadata.labels.node", CreatedPath: ".status.started"},
			objects: map[string]string{"a": `{metadata: {labels: {node: node-1}}, status: {started: yesterday}}`},
			wantErr: `Host default/a: .status.started: "yesterday" is no time`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.options.Kind == "" {
				test.options = ClusterAPI()
			}
			if test.node == "" {
				test.node = "node-1"
			}
			got, err := lookupMachine(machines(t, test.options, test.objects), test.options.Kind, test.node)
			if text := ""; err != nil || test.wantErr != "" {
				if err != nil {
					text = err.Error()
				}
				if diff := cmp.Diff(test.wantErr, text); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(test.want, got, byValue); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestOneBadMachine holds up nobody else.
func TestOneBadMachine(t *testing.T) {
	store := machines(t, ClusterAPI(), map[string]string{"a": bound, "b": `{status: {nodeRef: 7, addresses: no, x: [[[]]]}}`})
	if entry, err := lookupMachine(store, "Machine", "node-1"); err != nil || entry == nil {
		t.Errorf("is %+v, %v", entry, err)
	}
}

func TestOwnerMachine(t *testing.T) {
	store := machines(t, ClusterAPI(), map[string]string{
		"a": bound, "b": bound, "c": leaving,
		"bad": `{spec: {infrastructureRef: {name: [x, y]}}, status: {addresses: [{type: InternalIP, address: 10.0.0.7}, {type: InternalIP}]}}`,
	})
	for san, want := range map[string]string{
		"10.0.0.1":        "Machine default/a (node node-1)", // of two the first
		"::ffff:10.0.0.1": "Machine default/a (node node-1)",
		"HOST-1.":         "Machine default/a (node node-1)",
		"10.0.0.9":        "Machine default/c",   // to the end
		"10.0.0.7":        "Machine default/bad", // as far as it can be read, and without holding up anybody
		"10.0.0.8":        "",
		"node-1":          "", // the infrastructure's name is no name of a host
	} {
		if got, err := ownerMachine(store, "Machine", ParseSAN(san)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", san, got, err, want)
		}
	}
}

func TestChangedMachines(t *testing.T) {
	paths, err := parsePaths(ClusterAPI())
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	source := &Machine{Changed: func(node string) { told = append(told, node) }}
	read := func(more string) *machine { return paths.read(machineObject(t, "a", more)).(*machine) }
	for name, test := range map[string]struct {
		change func()
		want   []string
	}{
		"anything":         {func() { source.changed(nil, nil) }, []string{""}},
		"added":            {func() { source.changed(nil, read(bound)) }, []string{"host-1", "node-1"}},
		"deleted":          {func() { source.changed(read(waiting), nil) }, []string{"node-1"}},
		"was and is":       {func() { source.changed(read(waiting), read(other)) }, []string{"node-1", "node-2"}},
		"gone":             {func() { source.changed(read(bound), nil) }, []string{"host-1", "node-1"}},
		"lost an address":  {func() { source.changed(read(bound), read(strings.Replace(bound, "10.0.0.1", "10.0.0.2", 1))) }, []string{"host-1", "node-1"}},
		"of no interest":   {func() { source.changed(read(bound), read(strings.Replace(bound, "{", "{spec: {x: y}, ", 1))) }, nil},
		"is being deleted": {func() { source.changed(read(`{spec: {infrastructureRef: {name: a}}}`), read(leaving)) }, []string{"a", "node-1"}},
	} {
		told = nil
		test.change()
		if diff := cmp.Diff(test.want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestPathMistakes(t *testing.T) {
	for _, text := range []string{
		"status.addresses", "status", "$", "{.a}{.b}", "{range .a[*]}{.b}{end}", "x{.a}", ".a}{.b", ".a[", ".a[?(@.b", "{.a", "'x'", ".a end", " ",
	} {
		if got, err := parsePath(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
	_, err := parsePaths(MachineOptions{NodeRefPath: "a", CreatedPath: "b"})
	want := "nodeRefPath: \"a\": want one path such as .status.addresses\ncreatedPath: \"b\": want one path such as .status.addresses"
	if err == nil || err.Error() != want {
		t.Errorf("is %v, want both", err)
	}
}

// FuzzMachine reads what somebody may have put into an object by paths that somebody may have thought of.
func FuzzMachine(f *testing.F) {
	f.Add(bound, ".status.nodeRef.name", ".status.addresses")
	f.Add(other, "..name", ".status.addresses[?(@.type=='InternalIP')].address")
	f.Add(`{"a":[null,[[1]],{"b":null}]}`, ".a[*].b", ".a[0:2]")
	f.Fuzz(func(t *testing.T, object, first, second string) {
		obj := &unstructured.Unstructured{}
		if yaml.Unmarshal([]byte(object), &obj.Object) != nil || obj.Object == nil {
			return
		}
		paths, err := parsePaths(MachineOptions{
			NodeRefPath: first, NamePath: first, CreatedPath: first, AddressesPath: second, NameTypes: []string{"Hostname"},
		})
		if err != nil {
			return
		}
		m := paths.read(obj).(*machine)
		for _, san := range m.sans {
			if san != ParseSAN(san.String()) {
				t.Errorf("%+v is not as it should be", san)
			}
		}
	})
}
