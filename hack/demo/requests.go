package main

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

type request = certificatesv1.CertificateSigningRequest

// outcome is one condition with its exact text.
type outcome struct {
	kind            certificatesv1.RequestConditionType
	reason, message string
}

// The outcomes as kube-controller-manager and kubectl write them.
var (
	byBootstrapper = outcome{certificatesv1.CertificateApproved, "AutoApproved",
		"Auto approving kubelet client certificate after SubjectAccessReview."}
	byNodeItself = outcome{certificatesv1.CertificateApproved, "AutoApproved",
		"Auto approving self kubelet client certificate after SubjectAccessReview."}
	byHand = outcome{certificatesv1.CertificateApproved, "KubectlApprove",
		"This CSR was approved by kubectl certificate approve."}
	badUsage = outcome{certificatesv1.CertificateFailed, "SignerValidationFailure",
		"invalid usage for client certificate: server auth"}
)

// request returns the request called name.
func (d *demo) request(ctx context.Context, name string) (*request, error) {
	obj := &request{}
	if err := d.admin.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
		return nil, err
	}
	return obj, nil
}

// only returns the one request of user for signer that is not in known, or nil. Two such requests are an error.
func (d *demo) only(ctx context.Context, user, signer string, known ...string) (*request, error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := d.admin.List(ctx, list); err != nil {
		return nil, err
	}
	var found []*request
	for i := range list.Items {
		obj := &list.Items[i]
		if obj.Spec.Username == user && obj.Spec.SignerName == signer && !slices.Contains(known, obj.Name) {
			found = append(found, obj)
		}
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	default:
		return nil, fmt.Errorf("%s has %d requests for %s, want one", user, len(found), signer)
	}
}

// checkOutcomes returns how the conditions of obj differ from want, in order and in their exact text, or nil.
func checkOutcomes(obj *request, want ...outcome) error {
	var got []outcome
	for _, condition := range obj.Status.Conditions {
		got = append(got, outcome{condition.Type, condition.Reason, condition.Message})
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("request %s has conditions %q, want %q", obj.Name, got, want)
	}
	return nil
}

// checkPending returns why obj is no longer pending, or nil.
func checkPending(obj *request) error {
	if state := csr.StateOf(obj); state != csr.Pending {
		return fmt.Errorf("request %s is %s, want it to be pending: %v", obj.Name, state, obj.Status.Conditions)
	}
	return nil
}

// mayCreateRequests reports whether the holder of cfg, who must be user, may create requests.
func mayCreateRequests(ctx context.Context, cfg *rest.Config, user string) (bool, error) {
	self, err := kubelet.WhoAmI(ctx, cfg)
	if err != nil {
		return false, err
	}
	if self.Username != user {
		return false, fmt.Errorf("the API server identifies %s as %s", user, self.Username)
	}
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return false, err
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Verb: "create",
		},
	}}
	err = c.Create(ctx, review)
	return review.Status.Allowed, err
}

// stateOf returns an error that describes the state of obj, which may be nil.
func stateOf(obj *request) error {
	if obj == nil {
		return nil
	}
	return fmt.Errorf("request %s is %s", obj.Name, csr.StateOf(obj))
}
