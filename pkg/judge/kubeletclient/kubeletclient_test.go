package kubeletclient_test

import (
	"crypto/x509/pkix"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestJudge has a row for each kind of requester, with the permissions that reviews allow.
func TestJudge(t *testing.T) {
	const self, next = kubeletclient.SelfNodeClient, kubeletclient.NodeClient
	type permissions = []kubeletclient.Permission
	both, boundToB := permissions{self, next}, []string{"system:bootstrappers:node:3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"}
	boundToA := []string{"system:bootstrappers:node:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}
	for name, test := range map[string]struct {
		user      string
		groups    []string
		dns       []string
		renewOnly bool
		allowed   permissions
		reviewed  permissions
		want      string // verdict, reason, permission and part of the message
	}{
		"a bootstrapper":              {user: "x", allowed: permissions{next}, reviewed: permissions{next}, want: "Approve AutoApproved nodeclient Auto approving kubelet client"},
		"not permitted":               {user: "x", reviewed: permissions{next}, want: "Wait NotAuthorized  may not create certificatesigningrequests/nodeclient"},
		"permitted to renew only":     {user: "x", allowed: permissions{self}, reviewed: permissions{next}, want: "Wait NotAuthorized  may not create"},
		"a renewal":                   {user: "system:node:a", allowed: both, reviewed: both, want: "Approve AutoApproved selfnodeclient Auto approving self kubelet client"},
		"renews as a bootstrapper":    {user: "system:node:a", allowed: permissions{next}, reviewed: both, want: "Approve AutoApproved nodeclient Auto approving kubelet"},
		"may only renew":              {user: "system:node:a", renewOnly: true, allowed: permissions{next}, reviewed: permissions{self}, want: "Wait NotAuthorized  certificatesigningrequests/selfnodeclient (API group certificates.k8s.io): \"kubectl csr check\" names"},
		"a token for this node":       {user: "x", groups: boundToA, allowed: both, reviewed: permissions{next}, want: "Approve AutoApproved nodeclient "},
		"a token for another node":    {user: "x", groups: boundToB, allowed: both, want: `Deny NotAuthorized  is bound to another node than "a"`},
		"tokens for both nodes":       {user: "x", groups: append(boundToA, boundToB...), allowed: both, reviewed: permissions{next}, want: "Approve AutoApproved nodeclient "},
		"content that is not allowed": {user: "system:node:a", dns: []string{"a"}, allowed: both, want: "Deny ShapeMismatch  DNS subjectAltNames are not allowed"},
	} {
		req := &csr.Request{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Requester:  csr.Requester{Username: test.user, Groups: test.groups}, Usages: []certificatesv1.KeyUsage{"digital signature", "client auth"},
			Cert: ca.Request{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, DNSNames: test.dns},
		}
		policy := kubeletclient.Policy{RenewOnly: test.renewOnly}
		got := policy.Judge(req, test.allowed...)
		parts := strings.SplitN(test.want, " ", 4)
		if got.Verdict.String() != parts[0] || got.Reason != parts[1] || got.By != parts[2] || !strings.Contains(got.Message, parts[3]) {
			t.Errorf("%s: %+v, want %s", name, got, test.want)
		}
		expect.Equal(t, name+": permissions", policy.Permissions(req), test.reviewed)
	}
	other := &csr.Request{SignerName: "example.com/any", Requester: csr.Requester{Username: "x"}}
	expect.Equal(t, "a request for another signer", (kubeletclient.Policy{}).Judge(other, both...), judge.Decision{})
}
