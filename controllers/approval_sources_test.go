package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

func TestBootstrapPolicies(t *testing.T) {
	t.Parallel()
	window := approver.JoinWindow{Before: 10 * time.Second, After: 2 * time.Hour}
	for name, test := range map[string]struct {
		change func(*config.NodeClient)
		want   approver.BootstrapPolicy
	}{
		"openshift": {
			func(c *config.NodeClient) { c.Inventory = "openshift" },
			approver.BootstrapPolicy{Expected: true, MaxRequestAge: 15 * time.Minute, Window: window, Users: []string{"system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"}},
		},
		"cluster-api": {
			func(c *config.NodeClient) {
				c.Inventory, c.Rejoin, c.CertificateLifetime.Duration = "cluster-api", true, time.Hour
			},
			approver.BootstrapPolicy{Expected: true, MaxRequestAge: 15 * time.Minute, Window: window, Rejoin: true, CertificateLifetime: time.Hour},
		},
		"tokens": {
			func(c *config.NodeClient) { c.RequireTokenBinding, c.BootstrapUsers = true, []string{"a"} },
			approver.BootstrapPolicy{TokenBinding: true, MaxRequestAge: 15 * time.Minute, Window: window, Users: []string{"a"}},
		},
	} {
		c := config.Default().Approval.NodeClient
		test.change(&c)
		if diff := cmp.Diff(test.want, bootstrapPolicyOf(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPresetsChooseMachines unless there are others.
func TestPresetsChooseMachines(t *testing.T) {
	t.Parallel()
	clusterAPI, openShift := inventory.ClusterAPI(), inventory.OpenShift()
	clusterAPI.Namespace, clusterAPI.Selector = "fleet", "cluster.x-k8s.io/cluster-name=lab"
	for preset, want := range map[string]*inventory.MachineOptions{"": nil, "sources": nil, "static": nil, "cluster-api": &clusterAPI, "openshift": &openShift} {
		c := config.Default().Approval
		c.NodeClient.Inventory, c.NodeClient.ClusterName = preset, "fleet/lab"
		if diff := cmp.Diff(want, presetMachines(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", preset, diff)
		}
		if got, more := len(inventoryOf(c).Sources), want != nil; got != 1 && !more || got != 2 && more {
			t.Errorf("%s: %d sources", preset, got)
		}
		c.Inventory.Sources = []config.Source{{Machine: &config.MachineSource{Kind: "Host"}}}
		if presetMachines(c) != nil || len(inventoryOf(c).Sources) != 1 {
			t.Errorf("%s asks its own machines beside those that are configured", preset)
		}
	}
}

// TestNothingConfiguredAsksNothing: the rule for client certificates is kube-controller-manager's.
func TestNothingConfiguredAsksNothing(t *testing.T) {
	t.Parallel()
	r := approverOf(config.Default().Approval)
	if r.Inventory != nil || len(r.Rules) != 1 || r.Rules[0].Judge != nil {
		t.Errorf("%+v", r)
	}
	for _, recogniser := range r.Rules[0].Recognisers {
		if recogniser.Gate != nil {
			t.Errorf("%s is gated", recogniser.Name)
		}
	}
}
