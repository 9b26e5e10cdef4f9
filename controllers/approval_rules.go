package controllers

import (
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// policiesOf returns a Rule for each signer with approval rules, in the order of the configuration. signing is the signer of this
// process, or nil if it signs nothing. Another Deployment with the same configuration may sign then, so the lifetimes are known,
// but not which CAs API servers trust.
func policiesOf(c *config.Configuration, signing *signer.Reconciler) (all []approver.Rule, err error) {
	compiled, err := c.CompileRules()
	if err != nil {
		return nil, err
	}
	policies := map[string]*approver.Policy{}
	for _, each := range compiled {
		policy, known := policies[each.SignerName]
		if !known {
			policy = &approver.Policy{}
			policies[each.SignerName] = policy
			all = append(all, approver.ApprovalRules(each.SignerName, policy))
		}
		policy.Rules = append(policy.Rules, each)
	}
	if c.DryRuns(config.SignerController) {
		return all, nil
	}
	for _, one := range servedSigners(c.Signing) {
		policy, hasRules := policies[one.Name]
		if !hasRules {
			continue
		}
		issued, err := profile(c.Signing, one)
		if err != nil {
			return nil, fmt.Errorf("signer %s: %w", one.Name, err)
		}
		policy.Lifetime = issued.LifetimeOf
		if signing != nil {
			pair := signing.Signers[one.Name].KeyPair
			policy.Trusted = func(now time.Time) (string, bool) { return signing.Trusted(one.Name, pair, now) }
		}
	}
	return all, nil
}

// approvalRules adds the rights that the approval rules of c need. Without the right to approve for a signer, only its rules
// are off, so these rights are optional.
func (r rights) approvalRules(c *config.Configuration) {
	compiled, _ := c.CompileRules()
	for _, each := range compiled {
		if !c.DryRuns(config.ApproverController) {
			r.from("").optional().add(certificatesv1.GroupName, "signers", "", each.SignerName, "approve")
		}
		facts := r.by("approval rules").from("config/approval-rules")
		if each.ReadsAccount {
			facts.add("", "serviceaccounts", "", "", "get")
		}
		if each.ReadsServices {
			facts.add("", "services", "", "", "get")
		}
	}
}

// approves reports whether right is that to approve for a signer.
func approves(right check.Right) bool {
	return right.Verb == "approve" && right.Group == certificatesv1.GroupName && right.Resource == "signers"
}
