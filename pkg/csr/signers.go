package csr

import (
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// Builtin is a signer whose rules are code. All other signers are custom signers, whose rules are in the
// configuration.
type Builtin struct {
	// Name is the signer name in requests.
	Name string
	// Shape returns why a request can't be signed, or nil.
	Shape func(*Request) error
	// VerifiedByAPIServers reports that clients authenticate to API servers with its certificates. So API servers must
	// trust its CA, and the manager can ask them whether they do.
	VerifiedByAPIServers bool
	// OfKubelets reports that its certificates are those of kubelets.
	OfKubelets bool
}

// builtins lists the signers of kube-controller-manager. It omits kubernetes.io/legacy-unknown, which no request in
// certificates/v1 can name.
var builtins = []Builtin{
	{Name: certificatesv1.KubeAPIServerClientSignerName, Shape: APIServerClientShape, VerifiedByAPIServers: true},
	{Name: certificatesv1.KubeAPIServerClientKubeletSignerName, Shape: KubeletClientShape, VerifiedByAPIServers: true, OfKubelets: true},
	{Name: certificatesv1.KubeletServingSignerName, Shape: KubeletServingShape, OfKubelets: true},
}

// ComponentSubjects returns the users and groups of Kubernetes and kubeadm, as entries of ca.ProfileConfig.ForbiddenSubjects.
// Approval rules never permit them, and a custom signer on a CA that the cluster trusts never issues them. As with
// kube-controller-manager, kubernetes.io/kube-apiserver-client issues what was approved: network plugins and the components
// of control planes get their certificates this way.
func ComponentSubjects() []string {
	return []string{"O=system:*", "O=kubeadm:*", "CN=system:*", "CN=kubeadm:*"}
}

// Check returns why a signer with profile never signs r, whatever its CA, or nil. It does not know which usages a custom
// signer permits. The violation becomes the reason and message of a Failed condition. The rules of kube-controller-manager
// come first and keep its reason and texts.
func (r *Request) Check(profile ca.Profile) *ca.Violation {
	shape := (*Request).CheckMLDSAUsages
	if builtin, found := BuiltinSigner(r.SignerName); found {
		shape = builtin.Shape
	}
	if err := shape(r); err != nil {
		return &ca.Violation{Reason: "SignerValidationFailure", Message: err.Error()}
	}
	if len(r.UnknownUsages) > 0 {
		return &ca.Violation{Reason: "UsagesNotPermitted", Message: fmt.Sprintf("unrecognized usage values: %+q", r.UnknownUsages)}
	}
	if violation := profile.Check(r.Cert); violation != nil {
		return violation
	}
	if err := r.CheckSignature(); err != nil {
		return &ca.Violation{Reason: ReasonMalformed, Message: err.Error()}
	}
	return nil
}

// BuiltinSigners returns the names of the built-in signers, in order.
func BuiltinSigners() []string {
	var names []string
	for _, signer := range builtins {
		names = append(names, signer.Name)
	}
	return names
}

// BuiltinSigner returns the built-in signer with that name. found is false for a custom signer.
func BuiltinSigner(name string) (signer Builtin, found bool) {
	for _, signer := range builtins {
		if signer.Name == name {
			return signer, true
		}
	}
	return Builtin{}, false
}

// VerifiedByAPIServers reports whether signerName is a built-in signer with whose certificates clients authenticate to
// API servers.
func VerifiedByAPIServers(signerName string) bool {
	signer, _ := BuiltinSigner(signerName)
	return signer.VerifiedByAPIServers
}
