package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
)

const (
	signing = "signing: {secret: ns/ca}\n"
	rows    = "inventory: {sources: [{static: {rows: [{name: a}]}}, {node: {}}]}"
)

func TestNodeClient(t *testing.T) {
	t.Parallel()
	loaded, problem := load(t, signing+`
approval:
  nodeClient:
    inventory: sources
    joinWindow: {before: 0s, after: 1h}
    maxRequestAge: 5m
    rejoin: true
    certificateLifetime: 24h
    requireTokenBinding: true
    bootstrapUsers: [a]
  inventory:
    sources:
    - machine:
        group: example.com
        version: v1
        kind: Host
        namespace: ns
        selector: a=b
        nodeRefPath: .a
        addressesPath: .b
        namePath: .c
        nameTypes: [Hostname]
        createdPath: .d
    - static: {configMap: ns/nodes}
    - static: {rows: [{namePattern: "worker-[0-9]+"}]}
    - node: {}
`)
	if problem != "" {
		t.Fatal(problem)
	}
	want := config.NodeClient{
		Inventory: "sources", JoinWindow: config.JoinWindow{After: seconds(3600)}, MaxRequestAge: seconds(300),
		Rejoin: true, CertificateLifetime: seconds(86400), RequireTokenBinding: true, BootstrapUsers: []string{"a"},
	}
	if diff := cmp.Diff(want, loaded.Approval.NodeClient); diff != "" {
		t.Errorf("nodeClient (-want +got):\n%s", diff)
	}
	sources := []config.Source{
		{Machine: &config.MachineSource{
			Group: "example.com", Version: "v1", Kind: "Host", Namespace: "ns", Selector: "a=b",
			NodeRefPath: ".a", AddressesPath: ".b", NamePath: ".c", NameTypes: []string{"Hostname"}, CreatedPath: ".d",
		}},
		{Static: &config.StaticSource{ConfigMap: "ns/nodes"}},
		{Static: &config.StaticSource{Rows: []static.Row{{NamePattern: "worker-[0-9]+"}}}},
		{Node: &config.NodeSource{}},
	}
	if diff := cmp.Diff(sources, loaded.Approval.Inventory.Sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestNodeClientMistakes(t *testing.T) {
	t.Parallel()
	const own = "the inventory openshift has fixed rules: set cluster-api or sources to use this field"
	const useless = "has no effect without inventory or requireTokenBinding"
	for name, test := range map[string]struct {
		approval string
		want     []string // accepted when empty
	}{
		"openshift":                  {approval: "nodeClient: {inventory: openshift}"},
		"cluster-api":                {approval: "nodeClient: {inventory: cluster-api, clusterName: lab, rejoin: true}"},
		"cluster-api of a namespace": {approval: "nodeClient: {inventory: cluster-api, clusterName: fleet/lab}"},
		"cluster-api of any cluster": {approval: "nodeClient: {inventory: cluster-api}", want: []string{`approval.nodeClient.clusterName: Required value: name the Cluster whose Machines are this cluster's nodes, as name or namespace/name: the Machines of other clusters are none of them`}},
		"no name of a cluster":       {approval: "nodeClient: {inventory: cluster-api, clusterName: 'a,b'}", want: []string{`approval.nodeClient.clusterName: Invalid value: "a,b": want name or namespace/name`}},
		"a cluster of no namespace":  {approval: "nodeClient: {inventory: cluster-api, clusterName: /lab}", want: []string{`approval.nodeClient.clusterName: Invalid value: "/lab": want name or namespace/name`}},
		"a cluster for openshift":    {approval: "nodeClient: {inventory: openshift, clusterName: lab}", want: []string{`approval.nodeClient.clusterName: Invalid value: "lab": has an effect only with the inventory cluster-api, and without a machine source`}},
		"machines of your own":       {approval: "nodeClient: {inventory: cluster-api}, inventory: {sources: [{machine: {kind: Host}}]}"},
		"static":                     {approval: "nodeClient: {inventory: static}, " + rows},
		"sources":                    {approval: "nodeClient: {inventory: sources}, " + rows},
		"tokens alone":               {approval: "nodeClient: {requireTokenBinding: true, rejoin: true, bootstrapUsers: [a]}"},
		"no window":                  {approval: "nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {after: 0s}}"},
		"an age for tokens":          {approval: "nodeClient: {requireTokenBinding: true, maxRequestAge: 5m}"},
		"the defaults, spelled out":  {approval: "nodeClient: {joinWindow: {before: 10s, after: 2h}, maxRequestAge: 15m}"},
		"an age for nothing":         {approval: "nodeClient: {maxRequestAge: 5m}", want: []string{`approval.nodeClient.maxRequestAge: Invalid value: "5m0s": ` + useless}},
		"a window for nothing":       {approval: "nodeClient: {joinWindow: {after: 1h}}", want: []string{`approval.nodeClient.joinWindow: Invalid value: "before 10s, after 1h0m0s": has no effect without inventory: the creation of a machine is not known then`}},
		"a window for tokens":        {approval: "nodeClient: {requireTokenBinding: true, joinWindow: {before: 0s}}", want: []string{`approval.nodeClient.joinWindow: Invalid value: "before 0s, after 2h0m0s": has no effect without inventory: the creation of a machine is not known then`}},
		"unknown inventory":          {approval: "nodeClient: {inventory: nodes}", want: []string{`approval.nodeClient.inventory: Unsupported value: "nodes": supported values: "", "sources", "static", "cluster-api", "openshift"`}},
		"sources that know nothing":  {approval: "nodeClient: {inventory: sources}", want: []string{`approval.nodeClient.inventory: Invalid value: "sources": approval.inventory.sources has no source other than node`}},
		"static without rows":        {approval: "nodeClient: {inventory: static}", want: []string{`approval.nodeClient.inventory: Invalid value: "static": approval.inventory.sources has no static source`}},
		"window before":              {approval: "nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {before: -1s}}", want: []string{`approval.nodeClient.joinWindow.before: Invalid value: "-1s": must not be negative`}},
		"window after":               {approval: "nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {after: -1s}}", want: []string{`approval.nodeClient.joinWindow.after: Invalid value: "-1s": must not be negative`}},
		"age":                        {approval: "nodeClient: {inventory: cluster-api, clusterName: lab, maxRequestAge: 0s}", want: []string{`approval.nodeClient.maxRequestAge: Invalid value: "0s": must be positive`}},
		"lifetime":                   {approval: "nodeClient: {certificateLifetime: -1s}", want: []string{`approval.nodeClient.certificateLifetime: Invalid value: "-1s": must be positive, or 0 if it is not known`}},
		"lifetime for nothing":       {approval: "nodeClient: {certificateLifetime: 1h}", want: []string{`approval.nodeClient.certificateLifetime: Invalid value: "1h0m0s": has no effect without rejoin`}},
		"nothing that could rejoin":  {approval: "nodeClient: {rejoin: true}", want: []string{`approval.nodeClient.rejoin: Invalid value: true: ` + useless}},
		"users for nothing":          {approval: "nodeClient: {bootstrapUsers: [a]}", want: []string{`approval.nodeClient.bootstrapUsers: Invalid value: ["a"]: ` + useless}},
		"openshift with other rules": {approval: "nodeClient: {inventory: openshift, rejoin: true, requireTokenBinding: true, bootstrapUsers: [a]}", want: []string{
			`approval.nodeClient.requireTokenBinding: Invalid value: true: ` + own, `approval.nodeClient.rejoin: Invalid value: true: ` + own, `approval.nodeClient.bootstrapUsers: Invalid value: ["a"]: ` + own,
		}},
		"what is reserved": {approval: "kubeletServing: {reserved: [API.example.com, 10.0.0.1, 'fd00::1', 10.96.0.0/12]}"},
		"not an address": {approval: "kubeletServing: {reserved: [010.0.0.1, 10.0.0.300]}", want: []string{
			`approval.kubeletServing.reserved[0]: Invalid value: "010.0.0.1": want a name, an address or a CIDR`,
			`approval.kubeletServing.reserved[1]: Invalid value: "10.0.0.300": want a name, an address or a CIDR`,
		}},
		"two kinds in one":                                 {approval: "inventory: {sources: [{node: {}, static: {rows: []}}]}", want: []string{`approval.inventory.sources[0]: Required value: want exactly one kind of source`}},
		"machines of no kind":                              {approval: "inventory: {sources: [{machine: {group: a}}]}", want: []string{`approval.inventory.sources[0].machine.kind: Required value: name the kind of the machine objects`}},
		"rows and a map":                                   {approval: "inventory: {sources: [{static: {rows: [], configMap: a/b}}]}", want: []string{`approval.inventory.sources[0].static: Required value: want configMap or rows`}},
		"map of no name":                                   {approval: "inventory: {sources: [{static: {configMap: b}}]}", want: []string{`approval.inventory.sources[0].static.configMap: Invalid value: "b": want namespace/name`}},
		"a webhook":                                        {approval: "inventory: {sources: [{webhook: {url: 'https://a', caFile: c, timeout: 1s}}]}"},
		"a webhook without TLS, and of no CA":              {approval: "inventory: {sources: [{webhook: {url: 'http://a'}}]}", want: []string{"approval.inventory.sources[0].webhook: Invalid value: url: want https://HOST\ncaFile: set the file with the CA of the server"}},
		"an API server's node that anybody can become":     {approval: "kubeletServing: {enabled: true, apiServerNodes: [a]}", want: []string{"approval.kubeletServing.apiServerNodes: Invalid value: \"a\": every holder of a bootstrap token could become such a node: set nodeClient.inventory or nodeClient.requireTokenBinding too"}},
		"an API server's node that nobody else can become": {approval: "kubeletServing: {enabled: true, apiServerNodes: [a]}, nodeClient: {requireTokenBinding: true}"},
		"openshift with other sources":                     {approval: "nodeClient: {inventory: openshift}, " + rows, want: []string{`approval.nodeClient.inventory: Invalid value: "openshift": excludes sources other than OpenShift's Machines: leave approval.inventory.sources at node, or set sources`}},
		"half a limit":                                     {approval: "limit: {burst: 1}", want: []string{`approval.limit: Invalid value: "burst 1, perHour 0": both must be positive, or both 0 for no limit`}},
		"a bad row":                                        {approval: "inventory: {sources: [{static: {rows: [{}]}}]}", want: []string{`approval.inventory.sources[0].static.rows[0]: Required value: set either name or namePattern`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problem := load(t, signing+"approval: {"+test.approval+"}\n")
			if diff := cmp.Diff(strings.Join(test.want, "\n"), problem); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
