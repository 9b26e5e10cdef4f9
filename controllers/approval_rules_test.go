package controllers

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// ruled returns the policies of a configuration with approval rules for three signers, one of which it signs for.
func ruled(t *testing.T, change func(*config.Configuration)) map[string]*approver.Policy {
	t.Helper()
	options, err := FromConfiguration(configured(func(c *config.Configuration) {
		c.Signing.Signers = []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "b/a"}, Usages: []certificatesv1.KeyUsage{"server auth"}}}
		for _, each := range [][2]string{{"a1", "example.com/a"}, {"b", "example.com/b"}, {"a2", "example.com/a"}} {
			c.CompiledRules = append(c.CompiledRules, &rules.Compiled{Rule: rules.Rule{Name: each[0], SignerName: each[1]}})
		}
		change(c)
	}))
	if err != nil {
		t.Fatal(err)
	}
	policies := map[string]*approver.Policy{}
	for _, rule := range options.Approver.Rules {
		if rule.Policy != nil {
			policies[rule.SignerName] = rule.Policy
		}
	}
	return policies
}

// TestPoliciesOfRules checks that the rules of each signer keep their order, and that they know only a lifetime that this manager issues.
func TestPoliciesOfRules(t *testing.T) {
	t.Parallel()
	policies := ruled(t, func(*config.Configuration) {})
	a, b := policies["example.com/a"], policies["example.com/b"]
	if len(policies) != 2 || len(a.Rules) != 2 || a.Rules[0].Name != "a1" || a.Rules[1].Name != "a2" || len(b.Rules) != 1 {
		t.Fatalf("policies %+v", policies)
	}
	if got := a.Lifetime(time.Minute); got != 10*time.Minute || a.Lifetime(0) != 365*24*time.Hour || b.Lifetime != nil || b.Trusted != nil {
		t.Errorf("lifetime %s, and %t for another signer", got, b.Lifetime != nil)
	}
	if clause, reading := a.Trusted(time.Now()); clause == "" || reading {
		t.Errorf("before the CA is read: %q, %t", clause, reading)
	}
	apart := ruled(t, func(c *config.Configuration) { c.Controllers = []string{"approver"} })["example.com/a"]
	if got := apart.Lifetime(time.Minute); got != 10*time.Minute || apart.Trusted != nil {
		t.Errorf("another Deployment signs: lifetime %s, and the trust is known: %t", got, apart.Trusted != nil)
	}
	dry := ruled(t, func(c *config.Configuration) { c.DryRun = []string{"signer"} })["example.com/a"]
	if dry.Lifetime != nil || dry.Trusted != nil {
		t.Error("a dry run signs nothing, but the lifetime or the trust are known")
	}
}
