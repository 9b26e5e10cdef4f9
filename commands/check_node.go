package commands

import (
	"context"
	"fmt"
	"io"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

// node says where the certificate of one node is stuck.
func (c *checker) node(ctx context.Context, name string, out io.Writer) error {
	results := check.Node{
		Name: name, Reader: c.api, Trust: c.trust(), BootstrapGroups: c.configuration.SelfCheck.BootstrapGroups, CAs: c.cas,
		RequestLimits: c.options.RequestLimits,
		Approve:       c.approve, Issue: c.issue,
	}.Look(ctx, c.now)
	heading := fmt.Sprintf("Node %s, asked %s as %s.", name, c.cluster.Host, c.whoAmI(ctx))
	if err := writeTable(out, heading, results); err != nil {
		return err
	}
	if stuck := check.Stuck(results); stuck != nil {
		return fmt.Errorf("check: node %s: %s is %s", name, stuck.Check, stuck.Status)
	}
	return nil
}

// approve says what our approver would do.
func (c *checker) approve(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) check.Opinion {
	if c.options.Approver == nil {
		return check.Opinion{}
	}
	_, decision, err := c.options.Approver.Decide(ctx, obj)
	return check.Opinion{Does: decision.Verdict == approver.Approve, Reason: decision.Reason, Message: decision.Message, Err: err}
}

// issue says what our signer would do.
func (c *checker) issue(obj *certificatesv1.CertificateSigningRequest) check.Opinion {
	if c.options.Signer == nil {
		return check.Opinion{}
	}
	name := obj.Spec.SignerName
	if _, served := c.options.Signer.Signers[name]; !served {
		return check.Opinion{}
	}
	judged := c.options.Signer.Judge(obj, c.now)
	if err := c.unread[name]; err != nil && judged.Authority == nil && judged.Reason == "CAMissing" {
		return check.Opinion{Err: err}
	}
	return check.Opinion{Does: judged.Authority != nil, Reason: judged.Reason, Message: judged.Sentence(name)}
}
