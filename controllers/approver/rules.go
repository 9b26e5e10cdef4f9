package approver

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// NodeClient is the rule for kubelet client certificates, as KEP-266 and the TLS bootstrapping document describe it
// and kube-controller-manager applies it (pkg/controller/certificates/approver/sarapprove.go): a node may renew its own
// certificate, and whoever is trusted to bootstrap may ask for any node's. A node that may not renew is tried as a
// bootstrapper too. Only a bootstrap token that is bound to a node is not good for another one.
func NodeClient() Rule {
	return Rule{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Shape:      csr.KubeletClientShape,
		Recognisers: []Recogniser{
			{
				Name:       "selfnodeclient",
				Matches:    func(req *csr.Request) bool { return req.Requester.Username == req.Cert.Subject.CommonName },
				Permission: createPermission("selfnodeclient"),
				Message:    "Auto approving self kubelet client certificate after SubjectAccessReview.",
			},
			{
				Name:       "nodeclient",
				Matches:    func(req *csr.Request) bool { return bindingOf(req) != boundToAnother },
				Permission: createPermission("nodeclient"),
				Message:    "Auto approving kubelet client certificate after SubjectAccessReview.",
			},
		},
	}
}

func createPermission(subresource string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{
		Group:       certificatesv1.GroupName,
		Resource:    "certificatesigningrequests",
		Verb:        "create",
		Subresource: subresource,
		Version:     "*",
	}
}
