package machine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// machineObject returns a machine called name in namespace default, with more fields.
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

// sourceOf returns a Source that has read objects, by their names.
func sourceOf(t testing.TB, options Options, objects map[string]string) *Source {
	t.Helper()
	source, err := New(&rest.Config{}, options, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	var all []*machine
	for name, more := range objects {
		all = append(all, source.machines.Convert(machineObject(t, name, more)))
	}
	source.machines.Fake(nil, all...)
	return source
}

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func sans(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		all = append(all, san.Parse(text))
	}
	return all
}

const (
	bound   = `{status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: host-1}]}}`
	leaving = `{metadata: {deletionTimestamp: "2026-01-02T03:04:05Z"}, spec: {infrastructureRef: {name: node-1}}, status: {addresses: [{type: InternalIP, address: 10.0.0.9}]}}`
	waiting = `{metadata: {creationTimestamp: "2026-01-02T03:04:05Z"}, spec: {infrastructureRef: {name: node-1}}}`
	other   = `{status: {nodeRef: {name: node-2}, addresses: [{type: Hostname, address: Node-1.}, {type: InternalIP, address: 10.0.0.2}]}}`
)

func TestLookup(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		objects map[string]string
		node    string
		want    *inventory.Entry
		wantErr string
	}{
		"nothing": {},
		"bound": {
			objects: map[string]string{"a": bound},
			want:    &inventory.Entry{Source: "Machine default/a", Bound: "node-1", SANs: sans("10.0.0.1", "host-1")},
		},
		"bound, and another of that name": {
			objects: map[string]string{"a": bound, "b": waiting},
			want:    &inventory.Entry{Source: "Machine default/a", Bound: "node-1", SANs: sans("10.0.0.1", "host-1")},
		},
		"all addresses": {
			objects: map[string]string{"a": `{status: {nodeRef: {name: node-1}, addresses: [
				{type: InternalIP, address: "::ffff:10.0.0.1"}, {type: InternalIP, address: "2001:DB8:0:0::1"}, {type: ExternalIP, address: 10.0.0.1},
				{type: InternalDNS, address: Node-1.Internal.}, {type: ExternalDNS, address: node-1.example.org}, {type: Hostname, address: 192.0.2.7},
				{type: InternalIP, address: node-2}, {type: ExternalIP, address: ""}, {type: Hostname, address: ""}, {type: Serial, address: x-1}]}}`},
			want: &inventory.Entry{Source: "Machine default/a", Bound: "node-1",
				SANs: sans("10.0.0.1", "2001:db8::1", "node-1.internal", "node-1.example.org", "192.0.2.7")},
		},
		"by the infrastructure's name": {
			objects: map[string]string{"a": waiting},
			want:    &inventory.Entry{Source: "Machine default/a", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		},
		"by host name, whatever its case": {
			objects: map[string]string{"a": `{status: {addresses: [{type: Hostname, address: NODE-1.}]}}`},
			want:    &inventory.Entry{Source: "Machine default/a", SANs: sans("node-1")},
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
			want:    &inventory.Entry{Source: "Machine default/a", SANs: sans("ip-10-0-0-1.ec2.internal")},
		},
		"OpenShift: not by host name": {
			options: OpenShift(),
			objects: map[string]string{"a": `{spec: {infrastructureRef: {name: node-1}}, status: {addresses: [{type: Hostname, address: node-1}]}}`},
		},
		"it has become another node": { // its addresses are not ours
			objects: map[string]string{"b": other},
			want:    &inventory.Entry{Source: "Machine default/b", Bound: "node-2"},
		},
		"is being deleted": {
			objects: map[string]string{"a": leaving},
			want:    &inventory.Entry{Source: "Machine default/a", Leaving: true, SANs: sans("10.0.0.9")},
		},
		"is being deleted, and its successor is there": {
			objects: map[string]string{"a": leaving, "b": waiting},
			want:    &inventory.Entry{Source: "Machine default/b", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		},
		"another machine lists the same address": {
			objects: map[string]string{"a": bound, "b": strings.Replace(other, "10.0.0.2", "10.0.0.1", 1)},
			want:    &inventory.Entry{Source: "Machine default/a, without what other machines list too ([\"10.0.0.1\"])", Bound: "node-1", SANs: sans("host-1")},
		},
		"another machine lists it twice, and all else": {
			objects: map[string]string{"a": bound, "b": `{status: {addresses: ["10.0.0.1", "::ffff:10.0.0.1", HOST-1.]}}`},
			want:    &inventory.Entry{Source: "Machine default/a, without what other machines list too ([\"10.0.0.1\" \"host-1\"])", Bound: "node-1"},
		},
		"a machine that is being deleted lists the same address": {
			objects: map[string]string{"a": bound, "b": strings.Replace(leaving, "10.0.0.9", "10.0.0.1", 1)},
			want:    &inventory.Entry{Source: "Machine default/a", Bound: "node-1", SANs: sans("10.0.0.1", "host-1")},
		},
		"is being deleted, and another machine lists the same address": {
			objects: map[string]string{"a": leaving, "b": strings.Replace(other, "10.0.0.2", "10.0.0.9", 1)},
			want:    &inventory.Entry{Source: "Machine default/a, without what other machines list too ([\"10.0.0.9\"])", Leaving: true},
		},
		"two machines for the node": {
			objects: map[string]string{"b": waiting, "a": waiting},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"one by its infrastructure, another by its host name": {
			objects: map[string]string{"a": waiting, "b": `{status: {addresses: [{type: Hostname, address: node-1}]}}`},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"one unbound, another of that host name has become another node": {
			objects: map[string]string{"a": other, "b": waiting},
			want:    &inventory.Entry{Source: "Machine default/b", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		},
		"two of that host name have become other nodes": {
			objects: map[string]string{"a": strings.Replace(other, "node-2", "node-3", 1), "b": other},
			want:    &inventory.Entry{Source: "Machine default/a", Bound: "node-3"},
		},
		"one can't be read, another is for the node": {
			objects: map[string]string{"a": waiting, "b": `{spec: {infrastructureRef: {name: node-1}}, status: {nodeRef: {name: [x, y]}}}`},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"two have become it": {
			objects: map[string]string{"a": bound, "b": bound},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"two that are being deleted": {
			objects: map[string]string{"a": leaving, "b": leaving},
			wantErr: "node node-1 is claimed by Machine default/a and by Machine default/b: delete or rename all but one",
		},
		"invalid addresses": {
			objects: map[string]string{"a": `{status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP}]}}`},
			wantErr: "Machine default/a: .status.addresses: want type and address in each",
		},
		"addresses of the wrong type": {
			objects: map[string]string{"a": `{spec: {infrastructureRef: {name: node-1}}, status: {nodeRef: {name: [x, y]}, addresses: [1]}}`},
			wantErr: "Machine default/a: .status.nodeRef.name: want one string\n.status.addresses: contains a value that is not an address",
		},
		"own paths": {
			options: Options{
				Kind: "Host", NodeRefPath: ".status.node", AddressesPath: `{.status.nics[?(@.up==true)].ip}`,
				NamePath: ".spec.names[*]", CreatedPath: ".status.started",
			},
			objects: map[string]string{"a": `{spec: {names: [x, Node-1]}, status: {started: "2026-02-03T04:05:06Z", nics: [
				{up: true, ip: 10.0.0.1}, {up: false, ip: 10.0.0.2}, {up: true, ip: "2001:db8::1"}]}}`},
			want: &inventory.Entry{Source: "Host default/a", SANs: sans("10.0.0.1", "2001:db8::1"), Created: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)},
		},
		"not started": {
			options: Options{Kind: "Host", NamePath: ".metadata.labels.node", CreatedPath: ".status.started"},
			objects: map[string]string{"a": `{metadata: {creationTimestamp: "2026-01-02T03:04:05Z", labels: {node: node-1}}}`},
			want:    &inventory.Entry{Source: "Host default/a"},
		},
		"an invalid start time": {
			options: Options{Kind: "Host", NamePath: ".metadata.labels.node", CreatedPath: ".status.started"},
			objects: map[string]string{"a": `{metadata: {labels: {node: node-1}}, status: {started: yesterday}}`},
			wantErr: `Host default/a: .status.started: "yesterday" is not an RFC 3339 time`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.options.Kind == "" {
				test.options = ClusterAPI()
			}
			if test.node == "" {
				test.node = "node-1"
			}
			got, err := sourceOf(t, test.options, test.objects).Lookup(t.Context(), test.node, nil)
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

// TestOneBadMachine checks that an unreadable machine does not affect other machines.
func TestOneBadMachine(t *testing.T) {
	source := sourceOf(t, ClusterAPI(), map[string]string{"a": bound, "b": `{status: {nodeRef: 7, addresses: no, x: [[[]]]}}`})
	if entry, err := source.Lookup(t.Context(), "node-1", nil); err != nil || entry == nil {
		t.Errorf("is %+v, %v", entry, err)
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
		if got, err := source.Owner(san.Parse(value)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", value, got, err, want)
		}
	}
}

func TestChanged(t *testing.T) {
	var told []string
	source := sourceOf(t, ClusterAPI(), nil)
	source.Changed = func(node string, _ ...san.SAN) { told = append(told, node) }
	read := func(more string) *machine { return source.machines.Convert(machineObject(t, "a", more)) }
	for name, test := range map[string]struct {
		change func()
		want   []string
	}{
		"anything":         {func() { source.machines.OnSync() }, []string{""}},
		"added":            {func() { source.machines.OnChange(nil, read(bound)) }, []string{"host-1", "node-1"}},
		"deleted":          {func() { source.machines.OnChange(read(waiting), nil) }, []string{"node-1"}},
		"was and is":       {func() { source.machines.OnChange(read(waiting), read(other)) }, []string{"node-1", "node-2"}},
		"gone":             {func() { source.machines.OnChange(read(bound), nil) }, []string{"host-1", "node-1"}},
		"lost an address":  {func() { source.machines.OnChange(read(bound), read(strings.Replace(bound, "10.0.0.1", "10.0.0.2", 1))) }, []string{"host-1", "node-1"}},
		"an unused field":  {func() { source.machines.OnChange(read(bound), read(strings.Replace(bound, "{", "{spec: {x: y}, ", 1))) }, nil},
		"is being deleted": {func() { source.machines.OnChange(read(`{spec: {infrastructureRef: {name: a}}}`), read(leaving)) }, []string{"a", "node-1"}},
	} {
		told = nil
		test.change()
		slices.Sort(told)
		if diff := cmp.Diff(test.want, slices.Compact(told)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
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
	if err == nil || err.Error() != want {
		t.Errorf("is %v, want both", err)
	}
}

// FuzzMachine reads arbitrary objects by arbitrary paths.
func FuzzMachine(f *testing.F) {
	f.Add(bound, ".status.nodeRef.name", ".status.addresses")
	f.Add(other, "..name", ".status.addresses[?(@.type=='InternalIP')].address")
	f.Add(`{"a":[null,[[1]],{"b":null}]}`, ".a[*].b", ".a[0:2]")
	f.Fuzz(func(t *testing.T, object, first, second string) {
		obj := &unstructured.Unstructured{}
		if yaml.Unmarshal([]byte(object), &obj.Object) != nil || obj.Object == nil {
			return
		}
		paths, err := parsePaths(Options{
			NodeRefPath: first, NamePath: first, CreatedPath: first, AddressesPath: second, NameTypes: []string{"Hostname"},
		})
		if err != nil {
			return
		}
		m := paths.read(obj)
		for _, value := range m.sans {
			if value != san.Parse(value.String()) {
				t.Errorf("%+v is not as it should be", value)
			}
		}
	})
}

// TestChangedTellsWhatAMachineHad checks that a change of a machine tells its earlier values, because requests of other
// nodes may wait for them.
func TestChangedTellsWhatAMachineHad(t *testing.T) {
	t.Parallel()
	a := known{node: "a", sans: []san.SAN{san.Parse("10.0.0.1")}}
	gone, moved := a, a
	gone.leaving, moved.sans = true, []san.SAN{san.Parse("10.0.0.2")}
	for name, test := range map[string]struct {
		before, after *machine
		want          string
	}{
		"comes":               {nil, &machine{known: a}, ""},
		"stays as it is":      {&machine{known: a}, &machine{known: a}, ""},
		"is being deleted":    {&machine{known: a}, &machine{known: gone}, "10.0.0.1"},
		"has another one":     {&machine{known: a}, &machine{known: moved}, "10.0.0.1"},
		"goes":                {&machine{known: a}, nil, "10.0.0.1"},
		"goes without names":  {&machine{known: known{node: "a"}}, nil, ""},
		"goes without a node": {&machine{ObjectMeta: metav1.ObjectMeta{Name: "m"}, known: known{sans: a.sans}}, nil, "10.0.0.1"},
	} {
		told := ""
		source := sourceOf(t, ClusterAPI(), nil)
		source.Changed = func(_ string, had ...san.SAN) { told = strings.Trim(fmt.Sprint(had), "[]") }
		if source.observe(test.before, test.after); told != test.want {
			t.Errorf("%s: told %q, want %q", name, told, test.want)
		}
	}
}

// TestUnreadMachines checks that the source returns an error, and no answer, while its copy is not current.
func TestUnreadMachines(t *testing.T) {
	source := sourceOf(t, ClusterAPI(), map[string]string{"a": bound})
	source.machines.Fake(errors.New("down"))
	_, lookupErr := source.Lookup(t.Context(), "node-1", nil)
	_, ownerErr := source.Owner(san.Parse("10.0.0.1"))
	for _, err := range []error{lookupErr, ownerErr} {
		if err == nil || err.Error() != "Machine.cluster.x-k8s.io: down" {
			t.Errorf("error %v", err)
		}
	}
}

// TestGrantedBy checks that the message about a missing right names the manifest with the role.
func TestGrantedBy(t *testing.T) {
	for _, test := range []struct {
		options Options
		want    string
	}{
		{ClusterAPI(), "config/inventory-cluster-api"}, {OpenShift(), "config/inventory-openshift"}, {Options{Kind: "Host"}, ""},
	} {
		if got := sourceOf(t, test.options, nil).machines.GrantedBy; got != test.want {
			t.Errorf("%s: %q, want %q", test.options.Group, got, test.want)
		}
	}
}
