package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const machineGroup = "cluster.x-k8s.io"

// nodeName and nodeAddress return the name and the address of node i.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func nodeAddress(i int) net.IP { return net.IPv4(100, 64, byte(i/250), byte(i%250+1)) }

// SeedNodes writes Nodes with an address each directly to etcd.
func (l *Lab) SeedNodes(ctx context.Context, count int) error {
	return inParallel(ctx, count, func(ctx context.Context, i int) error {
		return l.Store(ctx, "minions/", &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), CreationTimestamp: metav1.Now()},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i).String()}},
			},
		})
	})
}

// machines is the CustomResourceDefinition of Machines, with as little as the API server accepts.
const machines = `{
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "machines.` + machineGroup + `", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
  "spec": {
    "group": "` + machineGroup + `", "scope": "Namespaced",
    "names": {"kind": "Machine", "plural": "machines", "singular": "machine", "listKind": "MachineList"},
    "versions": [{
      "name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
      "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
    }]
  }
}`

// SeedMachines installs Machines of Cluster API, and writes one for each of the first count nodes directly to etcd.
func (l *Lab) SeedMachines(ctx context.Context, count int) error {
	client := l.Admin.CertificatesV1().RESTClient() // of any group, because the path is absolute
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	err := client.Post().AbsPath(definitions).SetHeader("Content-Type", "application/json").
		SetHeader("Accept", "application/json").Body([]byte(machines)).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("install Machines: %w", err)
	}
	for {
		path := "/apis/" + machineGroup + "/v1beta1/machines"
		_, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
		if err == nil {
			break
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the API server does not serve Machines: %w", err)
		}
	}
	return inParallel(ctx, count, func(ctx context.Context, i int) error {
		value, err := json.Marshal(map[string]any{
			"apiVersion": machineGroup + "/v1beta1", "kind": "Machine",
			"metadata": metav1.ObjectMeta{
				Name: nodeName(i), Namespace: metav1.NamespaceDefault, UID: newUID(), CreationTimestamp: metav1.Now(),
				Labels: map[string]string{machineGroup + "/cluster-name": "lab"},
			},
			"spec": map[string]any{"infrastructureRef": map[string]any{"name": nodeName(i)}},
			"status": map[string]any{
				"nodeRef":   map[string]any{"name": nodeName(i)},
				"addresses": []map[string]any{{"type": "InternalIP", "address": nodeAddress(i).String()}},
			},
		})
		if err != nil {
			return err
		}
		return l.Cluster.StoreValue(ctx, machineGroup+"/machines/default/"+nodeName(i), value)
	})
}
