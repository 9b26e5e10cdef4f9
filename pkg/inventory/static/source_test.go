package static

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

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
`

func TestSource(t *testing.T) {
	source, err := Parse([]byte(someNodes))
	if err != nil {
		t.Fatal(err)
	}
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
		"a..b-odd":         nil, // not a valid Node name
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
		if err != nil {
			t.Errorf("%q: %v", node, err)
		}
		if want != nil {
			want.AnyTime = true                                                  // a row has no time
			want.Shared = !slices.Contains([]string{"node-1", "worker-9"}, node) // a pattern is for several nodes
		}
		if diff := cmp.Diff(want, got, byValue); diff != "" {
			t.Errorf("%q (-want +got):\n%s", node, diff)
		}
		if node == "node-1" { // a changed answer must not change the next one
			got.SANs[0], got.Prefixes[0] = san.Parse("evil"), netip.MustParsePrefix("0.0.0.0/0")
			again, _ := source.Lookup(t.Context(), node, nil)
			if diff := cmp.Diff(want, again, byValue); diff != "" {
				t.Errorf("%q, asked again (-want +got):\n%s", node, diff)
			}
		}
	}
}

func TestOwner(t *testing.T) {
	source, err := Parse([]byte(someNodes + "- {name: node-2, dnsNames: [node-2.example.org], addresses: [10.0.0.3, 10.0.0.3]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		"10.0.0.1":             "row 1 of configuration (node node-1)",
		"10.0.0.3":             "row 6 of configuration (node node-2)",
		"::ffff:10.0.0.2":      "row 1 of configuration (node node-1)",
		"NODE-1.example.org":   "row 1 of configuration (node node-1)",
		"node-1":               "row 1 of configuration (node node-1)",
		"node-2.example.org":   "row 6 of configuration (node node-2)",
		"node-2":               "", // that row has no short names
		"10.1.0.1":             "", // in a CIDR
		"w12.rack.example.org": "", // of a pattern
	} {
		if got, err := source.Owner(san.Parse(value)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", value, got, err, want)
		}
	}
}

// TestEntries checks the entry of a list of rows for a node.
func TestEntries(t *testing.T) {
	for name, test := range map[string]struct {
		rows, node string
		want       *inventory.Entry
	}{
		"no rows": {rows: "[]", node: "a"},
		"a text keeps its spelling": { // even if YAML reads it as another type
			"- {name: 1.10, dnsNames: [10, no, 2001-01-01]}", "1.10", &inventory.Entry{SANs: sans("10", "no", "2001-01-01")},
		},
		"an expansion is no name": {
			`- {namePattern: "(?P<a>[a-z]*)-?(?P<b>.*)", dnsNames: ["${a}.example.org", "${b}", "x${b}"], suffixes: ["${a}"]}`, "1.2.3.4",
			&inventory.Entry{SANs: sans("x1.2.3.4"), Shared: true},
		},
	} {
		source, err := Parse([]byte(test.rows))
		if err != nil {
			t.Fatal(err)
		}
		if test.want != nil {
			test.want.Source, test.want.AnyTime = "row 1 of configuration", true
		}
		entry, err := source.Lookup(t.Context(), test.node, nil)
		if diff := cmp.Diff(test.want, entry, byValue); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestMistakes(t *testing.T) {
	const empty = "nodes.yaml: is empty: write [] for no rows"
	for name, test := range map[string]struct{ text, want string }{
		"nothing":             {"", empty},
		"only a comment":      {"# none yet\n", empty},
		"null":                {"---\n", empty},
		"a map":               {"nodes: []\n", "nodes.yaml: line 1: cannot unmarshal !!map into []static.Row"},
		"two documents":       {"[]\n---\n[]\n", "nodes.yaml: want one YAML document"},
		"a null row":          {"- name: a\n  addresses: [10.0.0.1]\n-\n", "nodes.yaml: line 3: is empty: remove it, or give it a value"},
		"only a null row":     {"- null\n", "nodes.yaml: line 1: is empty: remove it, or give it a value"},
		"a null address":      {"- name: a\n  addresses: [10.0.0.1, ~]\n", "nodes.yaml: line 2: is empty: remove it, or give it a value"},
		"no YAML":             {"- name: a\n  - b: [\n", "nodes.yaml: yaml: line 1: did not find expected key"},
		"a broken second one": {"[]\n---\n{", "nodes.yaml: want one YAML document"},
		"rows of other types": {
			"- node-1\n- [a]\n- {}\n",
			"[nodes.yaml: line 1: cannot unmarshal !!str `node-1` into static.Row, nodes.yaml: line 2: cannot unmarshal !!seq into static.Row]",
		},
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
		"several fields": {
			"- name: a\n  dnsname: [a]\n  shortNames: [x]\n- name: b\n  name: c\n",
			"[nodes.yaml: line 2: field dnsname not found in type static.Row, nodes.yaml: line 3: cannot unmarshal !!seq into bool, " +
				`nodes.yaml: line 5: mapping key "name" already defined at line 4]`,
		},
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
		"no name":    {"- dnsNames: [a]\n", "nodes.yaml[0]: Required value: set either name or namePattern"},
		"upper case": {"- name: Node-1\n", `nodes.yaml[0].name: Invalid value: "Node-1": is not a valid Node name`},
		"twice":      {"- name: a\n  name: b\n", `nodes.yaml: line 2: mapping key "name" already defined at line 1`},
		"the second group is unknown": {
			"- namePattern: 'a(?P<n>.)'\n  dnsNames: ['${n}-${x}']\n",
			`nodes.yaml[0].dnsNames[0]: Invalid value: "${n}-${x}": use $ only in ${node}, and in ${group} for a group of the pattern`,
		},
		"no list": {"- name: a\n  dnsNames: b\n", "nodes.yaml: line 2: cannot unmarshal !!str `b` into []string"},
		"bad pattern": {"- namePattern: 'a('\n  dnsNames: ['${x}']\n",
			"nodes.yaml[0].namePattern: Invalid value: \"a(\": error parsing regexp: missing closing ): `a(`"},
		"pattern that breaks anchors": {"- namePattern: 'a)|(?:b'\n",
			"nodes.yaml[0].namePattern: Invalid value: \"a)|(?:b\": error parsing regexp: unexpected ): `a)|(?:b`"},
		"group named node": {"- namePattern: '(?P<node>a)b'\n",
			`nodes.yaml[0].namePattern: Invalid value: "(?P<node>a)b": ${node} stands for the whole name: use another name for the group`},
		"pattern twice":    {"- namePattern: a+\n- namePattern: a+\n", `nodes.yaml[1].namePattern: Duplicate value: "a+"`},
		"IPv6 all":         {"- {name: a, addresses: ['::/0']}\n", `nodes.yaml[0].addresses[0]: Invalid value: "::/0": is too wide: /8 is the widest`},
		"half of IPv4":     {"- {name: a, addresses: [0.0.0.0/1]}\n", `nodes.yaml[0].addresses[0]: Invalid value: "0.0.0.0/1": is too wide: /8 is the widest`},
		"all IPv4, mapped": {"- {name: a, addresses: ['::ffff:0:0/96']}\n", `nodes.yaml[0].addresses[0]: Invalid value: "::ffff:0:0/96": is too wide: /8 is the widest`},
		"more, mapped":     {"- {name: a, addresses: ['::ffff:0:0/64']}\n", `nodes.yaml[0].addresses[0]: Invalid value: "::ffff:0:0/64": has bits beyond the prefix: want ::/64`},
		"a host's CIDR":    {"- {name: a, addresses: [10.0.0.5/24]}\n", `nodes.yaml[0].addresses[0]: Invalid value: "10.0.0.5/24": has bits beyond the prefix: want 10.0.0.0/24`},
		"a zone":           {"- {name: a, addresses: ['fd00::1%eth0']}\n", `nodes.yaml[0].addresses[0]: Invalid value: "fd00::1%eth0": is not an IP address`},
		"no CIDR":          {"- {name: a, addresses: [10.0.0.0/33]}\n", `nodes.yaml[0].addresses[0]: Invalid value: "10.0.0.0/33": is not a CIDR`},
	} {
		t.Run(name, func(t *testing.T) {
			source, err := Parse([]byte(test.text))
			if err == nil || source != nil {
				t.Fatalf("is %+v, %v", source, err)
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
