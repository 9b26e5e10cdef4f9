package config_test

import "testing"

const rows = "inventory: {sources: [{static: {rows: [{name: a}]}}, {node: {}}]}"

func TestNodeClientMistakes(t *testing.T) {
	t.Parallel()
	const own = "the inventory openshift has fixed rules: set cluster-api or sources to use this field"
	const useless = "has no effect without inventory or requireTokenBinding"
	of := func(approval string, want ...string) loaded {
		for i := range want {
			want[i] = "approval." + want[i]
		}
		return loaded{body: secret + "approval: {" + approval + "}\n", want: want}
	}
	check(t, map[string]loaded{
		"every field": of(`
  nodeClient: {inventory: sources, joinWindow: {before: 0s, after: 1h}, maxRequestAge: 5m, rejoin: true, certificateLifetime: 24h,
    requireTokenBinding: true, bootstrapUsers: [a]},
  inventory: {sources: [{static: {configMap: ns/nodes}}, {static: {rows: [{namePattern: "worker-[0-9]+"}]}}, {node: {}}, {machine: {
    group: example.com, version: v1, kind: Host, namespace: ns, selector: a=b, nodeRefPath: .a, addressesPath: .b, namePath: .c,
    nameTypes: [Hostname], createdPath: .d}}]}`),
		"openshift":                  of("nodeClient: {inventory: openshift}"),
		"cluster-api":                of("nodeClient: {inventory: cluster-api, clusterName: lab, rejoin: true}"),
		"cluster-api of a namespace": of("nodeClient: {inventory: cluster-api, clusterName: fleet/lab}"),
		"cluster-api of any cluster": of("nodeClient: {inventory: cluster-api}", `nodeClient.clusterName: Required value: name the Cluster whose Machines are this cluster's nodes, as name or namespace/name: the Machines of other clusters are none of them`),
		"no name of a cluster":       of("nodeClient: {inventory: cluster-api, clusterName: 'a,b'}", `nodeClient.clusterName: Invalid value: "a,b": want name or namespace/name`),
		"a cluster of no namespace":  of("nodeClient: {inventory: cluster-api, clusterName: /lab}", `nodeClient.clusterName: Invalid value: "/lab": want name or namespace/name`),
		"a cluster for openshift":    of("nodeClient: {inventory: openshift, clusterName: lab}", `nodeClient.clusterName: Invalid value: "lab": has an effect only with the inventory cluster-api, and without a machine source`),
		"machines of your own":       of("nodeClient: {inventory: cluster-api}, inventory: {sources: [{machine: {kind: Host}}]}"),
		"static":                     of("nodeClient: {inventory: static}, " + rows),
		"sources":                    of("nodeClient: {inventory: sources}, " + rows),
		"tokens alone":               of("nodeClient: {requireTokenBinding: true, rejoin: true, bootstrapUsers: [a]}"),
		"no window":                  of("nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {after: 0s}}"),
		"an age for tokens":          of("nodeClient: {requireTokenBinding: true, maxRequestAge: 5m}"),
		"the defaults, spelled out":  of("nodeClient: {joinWindow: {before: 10s, after: 2h}, maxRequestAge: 15m}"),
		"an age for nothing":         of("nodeClient: {maxRequestAge: 5m}", `nodeClient.maxRequestAge: Invalid value: "5m0s": `+useless),
		"a window for nothing":       of("nodeClient: {joinWindow: {after: 1h}}", `nodeClient.joinWindow: Invalid value: "before 10s, after 1h0m0s": has no effect without inventory: the creation of a machine is not known then`),
		"a window for tokens":        of("nodeClient: {requireTokenBinding: true, joinWindow: {before: 0s}}", `nodeClient.joinWindow: Invalid value: "before 0s, after 2h0m0s": has no effect without inventory: the creation of a machine is not known then`),
		"unknown inventory":          of("nodeClient: {inventory: nodes}", `nodeClient.inventory: Unsupported value: "nodes": supported values: "", "sources", "static", "cluster-api", "openshift"`),
		"sources that know nothing":  of("nodeClient: {inventory: sources}", `nodeClient.inventory: Invalid value: "sources": approval.inventory.sources has no source other than node`),
		"static without rows":        of("nodeClient: {inventory: static}", `nodeClient.inventory: Invalid value: "static": approval.inventory.sources has no static source`),
		"window before":              of("nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {before: -1s}}", `nodeClient.joinWindow.before: Invalid value: "-1s": must not be negative`),
		"window after":               of("nodeClient: {inventory: cluster-api, clusterName: lab, joinWindow: {after: -1s}}", `nodeClient.joinWindow.after: Invalid value: "-1s": must not be negative`),
		"age":                        of("nodeClient: {inventory: cluster-api, clusterName: lab, maxRequestAge: 0s}", `nodeClient.maxRequestAge: Invalid value: "0s": must be positive`),
		"lifetime":                   of("nodeClient: {certificateLifetime: -1s}", `nodeClient.certificateLifetime: Invalid value: "-1s": must be positive, or 0 if it is not known`),
		"lifetime for nothing":       of("nodeClient: {certificateLifetime: 1h}", `nodeClient.certificateLifetime: Invalid value: "1h0m0s": has no effect without rejoin`),
		"nothing that could rejoin":  of("nodeClient: {rejoin: true}", `nodeClient.rejoin: Invalid value: true: `+useless),
		"users for nothing":          of("nodeClient: {bootstrapUsers: [a]}", `nodeClient.bootstrapUsers: Invalid value: ["a"]: `+useless),
		"openshift with other rules": of("nodeClient: {inventory: openshift, rejoin: true, requireTokenBinding: true, bootstrapUsers: [a]}",
			`nodeClient.requireTokenBinding: Invalid value: true: `+own, `nodeClient.rejoin: Invalid value: true: `+own, `nodeClient.bootstrapUsers: Invalid value: ["a"]: `+own,
		),
		"what is reserved": of("kubeletServing: {reserved: [API.example.com, 10.0.0.1, 'fd00::1', 10.96.0.0/12]}"),
		"not an address": of("kubeletServing: {reserved: [010.0.0.1, 10.0.0.300]}",
			`kubeletServing.reserved[0]: Invalid value: "010.0.0.1": want a name, an address or a CIDR`,
			`kubeletServing.reserved[1]: Invalid value: "10.0.0.300": want a name, an address or a CIDR`,
		),
		"two kinds in one":                                 of("inventory: {sources: [{node: {}, static: {rows: []}}]}", `inventory.sources[0]: Required value: want exactly one kind of source`),
		"machines of no kind":                              of("inventory: {sources: [{machine: {group: a}}]}", `inventory.sources[0].machine.kind: Required value: name the kind of the machine objects`),
		"rows and a map":                                   of("inventory: {sources: [{static: {rows: [], configMap: a/b}}]}", `inventory.sources[0].static: Required value: want configMap or rows`),
		"map of no name":                                   of("inventory: {sources: [{static: {configMap: b}}]}", `inventory.sources[0].static.configMap: Invalid value: "b": want namespace/name`),
		"a webhook":                                        of("inventory: {sources: [{webhook: {url: 'https://a', caFile: c, timeout: 1s}}]}"),
		"a webhook without TLS, and of no CA":              of("inventory: {sources: [{webhook: {url: 'http://a'}}]}", "inventory.sources[0].webhook: Invalid value: url: want https://HOST\ncaFile: set the file with the CA of the server"),
		"an API server's node that anybody can become":     of("kubeletServing: {enabled: true, apiServerNodes: [a]}", "kubeletServing.apiServerNodes: Invalid value: \"a\": every holder of a bootstrap token could become such a node: set nodeClient.inventory or nodeClient.requireTokenBinding too"),
		"an API server's node that nobody else can become": of("kubeletServing: {enabled: true, apiServerNodes: [a]}, nodeClient: {requireTokenBinding: true}"),
		"openshift with other sources":                     of("nodeClient: {inventory: openshift}, "+rows, `nodeClient.inventory: Invalid value: "openshift": excludes sources other than OpenShift's Machines: leave approval.inventory.sources at node, or set sources`),
		"half a limit":                                     of("limit: {burst: 1}", `limit: Invalid value: "burst 1, perHour 0": both must be positive, or both 0 for no limit`),
		"a bad row":                                        of("inventory: {sources: [{static: {rows: [{}]}}]}", `inventory.sources[0].static.rows[0]: Required value: set either name or namePattern`),
	})
}
