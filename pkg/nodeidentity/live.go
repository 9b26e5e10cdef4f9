// Package nodeidentity reports whether a node, and the requester of its first certificate, are alive. A node is alive
// if its Lease is renewed. A requester is alive if its bootstrap token or ServiceAccount still exists. The package
// decides nothing.
package nodeidentity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// clusterInfo is the ConfigMap that shows which bootstrap tokens exist. For each token with the usage signing,
// kube-controller-manager's bootstrapsigner keeps a signature of the kubeconfig in it. It removes the signature with
// the token (Kubernetes pkg/controller/bootstrap/bootstrapsigner.go, signConfigMap). Without a kubeconfig it removes
// nothing. The Secrets of the tokens are not read, because they hold the tokens themselves.
var clusterInfo = types.NamespacedName{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}

// Live reads from the API server without a cache, for facts that must be true at the moment of an approval. An error
// means that the fact is unknown.
type Live struct{ Reader client.Reader }

// Gone returns why the requester does not exist now. It knows bootstrap tokens and ServiceAccounts.
// No API knows other users.
func (l Live) Gone(ctx context.Context, requester csr.Requester) (csr.Objection, error) {
	if id, found := strings.CutPrefix(requester.Username, bootstrapapi.BootstrapUserPrefix); found {
		if !slices.Contains(requester.Groups, bootstrapapi.BootstrapDefaultGroup) {
			return "the requester has the name of a bootstrap token, but is not in the group " + bootstrapapi.BootstrapDefaultGroup, nil
		}
		return l.goneToken(ctx, id)
	}
	namespace, name, objection := requester.ServiceAccount()
	if namespace == "" {
		return objection, nil
	}
	return l.goneAccount(ctx, types.NamespacedName{Namespace: namespace, Name: name}, types.UID(requester.UID))
}

func (l Live) goneToken(ctx context.Context, id string) (csr.Objection, error) {
	shown := csr.Shorten(id)
	info := &corev1.ConfigMap{}
	if err := call.Get(ctx, l.Reader, clusterInfo, info); err != nil {
		return csr.NoObjection, fmt.Errorf("find bootstrap token %s in ConfigMap %s: %w", shown, clusterInfo, err)
	}
	if info.Data[bootstrapapi.KubeConfigKey] == "" {
		return csr.NoObjection, fmt.Errorf("find bootstrap token %s in ConfigMap %s: it has no key %s, so it is not kept up to date",
			shown, clusterInfo, bootstrapapi.KubeConfigKey)
	}
	if _, found := info.Data[bootstrapapi.JWSSignatureKeyPrefix+id]; !found {
		return csr.Objection(fmt.Sprintf("bootstrap token %s is not in ConfigMap %s: it was revoked, has expired, or lacks "+
			"usage-bootstrap-signing", shown, clusterInfo)), nil
	}
	return csr.NoObjection, nil
}

func (l Live) goneAccount(ctx context.Context, key types.NamespacedName, uid types.UID) (csr.Objection, error) {
	account := &metav1.PartialObjectMetadata{}
	account.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	err := call.Get(ctx, l.Reader, key, account)
	text := fmt.Sprintf("ServiceAccount %s/%s", key.Namespace, csr.Shorten(key.Name))
	switch {
	case apierrors.IsNotFound(err):
		return csr.Objection(text + " is deleted"), nil
	case err != nil:
		return csr.NoObjection, fmt.Errorf("get %s: %w", text, err)
	case uid == "":
		return csr.Objection("the requester has the name of " + text + ", but no UID"), nil
	case account.UID != uid:
		return csr.Objection(fmt.Sprintf("%s was deleted and created again: its UID is %s, and the requester's UID is %q",
			text, account.UID, csr.Shorten(string(uid)))), nil
	}
	return csr.NoObjection, nil
}

// HasNode reports whether a Node of that name exists.
func (l Live) HasNode(ctx context.Context, name string) (bool, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := call.Get(ctx, l.Reader, types.NamespacedName{Name: name}, node)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get Node %s: %w", csr.Shorten(name), err)
	}
	return err == nil, nil
}

// Renewed returns when the Lease of node was last renewed, by the node's own clock.
func (l Live) Renewed(ctx context.Context, node string) (time.Time, error) {
	lease := &coordinationv1.Lease{}
	err := call.Get(ctx, l.Reader, types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: node}, lease)
	if err != nil {
		return time.Time{}, fmt.Errorf("get the Lease of node %s: %w", csr.Shorten(node), err)
	}
	return renewTime(lease), nil
}
