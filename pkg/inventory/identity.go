package inventory

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	bootstrapUserPrefix = "system:bootstrap:"
	accountUserPrefix   = "system:serviceaccount:"
	// signaturePrefix and kubeconfigKey are keys of the ConfigMap cluster-info: for each token with the usage signing,
	// kube-controller-manager's bootstrapsigner keeps a signature of the kubeconfig, and removes it with the token
	// (Kubernetes pkg/controller/bootstrap/bootstrapsigner.go, signConfigMap). Without a kubeconfig it removes nothing.
	signaturePrefix = "jws-kubeconfig-"
	kubeconfigKey   = "kubeconfig"
)

// clusterInfo is the ConfigMap that tells which bootstrap tokens there are. Their Secrets hold the tokens themselves,
// which we have no business to read.
var clusterInfo = types.NamespacedName{Namespace: metav1.NamespacePublic, Name: "cluster-info"}

// Live asks the API server itself, past every cache: what must be true at the moment of an approval, and not a moment
// before. An error is that it could not be found out.
type Live struct{ Reader client.Reader }

// Gone says why whoever made a request is not there any more, or is empty. Users other than bootstrap tokens and
// ServiceAccounts are known to no API, so of them nothing can be said.
func (l Live) Gone(ctx context.Context, who csr.Requester) (string, error) {
	if id, found := strings.CutPrefix(who.Username, bootstrapUserPrefix); found {
		return l.goneToken(ctx, id)
	}
	if name, found := strings.CutPrefix(who.Username, accountUserPrefix); found {
		return l.goneAccount(ctx, name, types.UID(who.UID))
	}
	return "", nil
}

func (l Live) goneToken(ctx context.Context, id string) (string, error) {
	info := &corev1.ConfigMap{}
	if err := l.Reader.Get(ctx, clusterInfo, info); err != nil {
		return "", fmt.Errorf("look for bootstrap token %s in ConfigMap %s: %w", csr.Shorten(id), clusterInfo, err)
	}
	if info.Data[kubeconfigKey] == "" {
		return "", fmt.Errorf("look for bootstrap token %s in ConfigMap %s: it has no key %s, so nobody keeps it up to date", csr.Shorten(id), clusterInfo, kubeconfigKey)
	}
	if _, found := info.Data[signaturePrefix+id]; !found {
		return fmt.Sprintf("bootstrap token %s is not in ConfigMap %s: it is revoked or has expired, or has no usage-bootstrap-signing", csr.Shorten(id), clusterInfo), nil
	}
	return "", nil
}

func (l Live) goneAccount(ctx context.Context, name string, uid types.UID) (string, error) {
	namespace, name, _ := strings.Cut(name, ":")
	account := &metav1.PartialObjectMetadata{}
	account.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
	err := l.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, account)
	text := fmt.Sprintf("ServiceAccount %s/%s", csr.Shorten(namespace), csr.Shorten(name))
	switch {
	case apierrors.IsNotFound(err):
		return text + " is deleted", nil
	case err != nil:
		return "", fmt.Errorf("look for %s: %w", text, err)
	case account.UID != uid:
		return fmt.Sprintf("%s is another one now: its UID is %s, the requester's %q", text, account.UID, csr.Shorten(string(uid))), nil
	}
	return "", nil
}

// HasNode says whether there is a Node of that name.
func (l Live) HasNode(ctx context.Context, name string) (bool, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := l.Reader.Get(ctx, types.NamespacedName{Name: name}, node)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("look for Node %s: %w", csr.Shorten(name), err)
	}
	return err == nil, nil
}

// Renewed returns when the lease of node was last renewed, by the node's own clock.
func (l Live) Renewed(ctx context.Context, node string) (time.Time, error) {
	lease := &coordinationv1.Lease{}
	if err := l.Reader.Get(ctx, types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: node}, lease); err != nil {
		return time.Time{}, fmt.Errorf("look at the lease of %s: %w", csr.Shorten(node), err)
	}
	return beat(lease).Renewed, nil
}
