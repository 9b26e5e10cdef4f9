package check

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaseDuration is a kubelet's, if its Lease does not say (pkg/kubelet/apis/config, NodeLeaseDurationSeconds).
const leaseDuration = 40 * time.Second

// state says whether the Node is there, Ready and alive. The last is known already, with a sentence.
func (n Node) state(ctx context.Context, alive Status, sentence string) Result {
	result := Result{Check: NodeWell, Subject: n.Name, Status: Failed}
	node := &corev1.Node{}
	switch err := n.Reader.Get(ctx, client.ObjectKey{Name: n.Name}, node); {
	case apierrors.IsNotFound(err):
		result.Evidence = "there is no such Node, and " + sentence
		result.NextStep = "it appears once the kubelet has a certificate and has registered"
		return result
	case err != nil:
		result.Status, result.Evidence, result.NextStep = Unknown, ReadError("get nodes", err)+"; "+sentence, "ask as one who may"
		return result
	}
	ready := isReady(node)
	switch {
	case ready && alive == OK:
		result.Status, result.Evidence = OK, "Ready, and "+sentence
	case ready && alive == Unknown:
		result.Status, result.Evidence, result.NextStep = Unknown, "Ready when it last said so, but "+sentence, "ask as one who may get leases in "+corev1.NamespaceNodeLease
	case ready:
		result.Evidence, result.NextStep = "Ready when it last said so, but "+sentence, "read the kubelet's log on the machine (journalctl -u kubelet)"
	default:
		result.Evidence, result.NextStep = "not Ready; "+sentence, "kubectl describe node "+n.Name
	}
	return result
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// alive says whether the kubelet has renewed its Lease, which it can only with a certificate that works.
func (n Node) alive(ctx context.Context, now time.Time) (Status, string) {
	lease := &coordinationv1.Lease{}
	err := n.Reader.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: n.Name}, lease)
	switch {
	case apierrors.IsNotFound(err) || err == nil && lease.Spec.RenewTime == nil:
		return Failed, "it has no Lease"
	case err != nil:
		return Unknown, "its Lease is " + ReadError("get leases", err)
	}
	allowed := leaseDuration
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
		allowed = time.Duration(*seconds) * time.Second
	}
	since := now.Sub(lease.Spec.RenewTime.Time)
	sentence := fmt.Sprintf("its Lease was renewed %s ago", duration.HumanDuration(since))
	if since > allowed {
		return Failed, sentence
	}
	return OK, sentence
}
