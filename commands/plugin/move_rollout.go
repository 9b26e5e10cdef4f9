package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// The API group of Cluster API, and that of its control planes.
const machineGroup, controlPlaneGroup = "cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"

// machine is a Machine of Cluster API, in v1beta1 or v1beta2.
type machine struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		NodeRef struct {
			Name string `json:"name"`
		} `json:"nodeRef"`
	} `json:"status"`
}

// machineOwner is what replaces Machines.
type machineOwner struct{ group, resource, namespace, name string }

func (o machineOwner) String() string { return o.resource + " " + o.namespace + "/" + o.name }

// ownerOf returns the MachineDeployment or KubeadmControlPlane that replaces one.
func ownerOf(one *machine) (owner machineOwner, found bool) {
	if name := one.Labels["cluster.x-k8s.io/deployment-name"]; name != "" {
		return machineOwner{machineGroup, "machinedeployments", one.Namespace, name}, true
	}
	if owner := metav1.GetControllerOf(one); owner != nil && owner.Kind == "KubeadmControlPlane" {
		return machineOwner{controlPlaneGroup, "kubeadmcontrolplanes", one.Namespace, owner.Name}, true
	}
	return machineOwner{}, false
}

// ofGroup returns a call about a resource in the home cluster, in the version of group that the API server prefers.
func (m *moving) ofGroup(ctx context.Context, verb, group string, path ...string) (*rest.Request, error) {
	served := metav1.APIGroup{}
	data, err := m.authorities.Get().AbsPath("apis", group).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &served)
	}
	version := served.PreferredVersion.Version
	if err == nil && version == "" {
		err = errors.New("the API server does not serve " + group)
	}
	return m.authorities.Verb(verb).AbsPath(append([]string{"apis", group, version}, path...)...).SetHeader("Accept", "application/json"), err
}

// machines returns the Machines of a cluster of Cluster API, or all if namespace and name are empty.
func (m *moving) machines(ctx context.Context, namespace, name string) ([]machine, error) {
	path, selector := []string{"machines"}, ""
	if name != "" {
		path, selector = []string{"namespaces", namespace, "machines"}, "cluster.x-k8s.io/cluster-name="+name
	}
	list := struct{ Items []machine }{}
	call, err := m.ofGroup(ctx, http.MethodGet, machineGroup, path...)
	if err != nil {
		return nil, err
	}
	data, err := call.Param("labelSelector", selector).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	return list.Items, err
}

// planRollout takes the nodes out of the plan whose Machines Cluster API replaces. Without --rollout, it only says that it could.
func (m *moving) planRollout(ctx context.Context) error {
	namespace, name, both := strings.Cut(m.rollout, "/")
	if m.rollout != "" && (!both || namespace == "" || name == "") {
		return errors.New("--rollout needs NAMESPACE/CLUSTER")
	}
	all, err := m.machines(ctx, namespace, name)
	if m.rollout == "" && err != nil {
		return nil //nolint:nilerr // most clusters have none, and most users may not list them
	}
	if err != nil {
		return fmt.Errorf("list the Machines of %s: %w", m.rollout, err)
	}
	m.replaced = map[machineOwner][]types.UID{}
	for i := range all {
		at := slices.Index(m.nodes, all[i].Status.NodeRef.Name)
		owner, found := ownerOf(&all[i])
		if at < 0 || !found {
			continue
		}
		if m.rollout == "" {
			m.hint = fmt.Sprintf("--rollout %s/%s replaces the Machines of some of these nodes instead", all[i].Namespace, all[i].Labels["cluster.x-k8s.io/cluster-name"])
			continue
		}
		m.nodes = slices.Delete(m.nodes, at, at+1)
		m.replaced[owner] = append(m.replaced[owner], all[i].UID)
	}
	return nil
}

// rollOut has Cluster API replace the Machines of each owner in the plan, those of control planes last, and waits until they are gone.
func (m *moving) rollOut(ctx context.Context) error {
	now := m.now().UTC().Format(time.RFC3339) // each version of the API has one of these fields
	patch := fmt.Sprintf(`{"spec":{"rolloutAfter":%q,"rollout":{"after":%q}}}`, now, now)
	for _, resource := range []string{"machinedeployments", "kubeadmcontrolplanes"} {
		var going []types.UID
		for owner, machines := range m.replaced {
			if owner.resource != resource {
				continue
			}
			call, err := m.ofGroup(ctx, http.MethodPatch, owner.group, "namespaces", owner.namespace, owner.resource, owner.name)
			if err == nil {
				call.Param("fieldValidation", "Ignore").SetHeader("Content-Type", string(types.MergePatchType))
				err = call.Body([]byte(patch)).Do(ctx).Error()
			}
			if err != nil {
				return fmt.Errorf("roll out %s: %w", owner, err)
			}
			going = append(going, machines...)
		}
		if len(going) == 0 {
			continue
		}
		if err := m.awaitReplaced(ctx, resource, going); err != nil {
			return err
		}
	}
	return nil
}

// awaitReplaced waits until Machines are gone.
func (m *moving) awaitReplaced(ctx context.Context, resource string, going []types.UID) error {
	namespace, name, _ := strings.Cut(m.rollout, "/")
	return wait.PollUntilContextCancel(ctx, 5*time.Second, true, func(ctx context.Context) (bool, error) {
		all, err := m.machines(ctx, namespace, name)
		if err != nil {
			return false, m.progress(err.Error())
		}
		left := slices.DeleteFunc(slices.Clone(going), func(uid types.UID) bool {
			return !slices.ContainsFunc(all, func(one machine) bool { return one.UID == uid })
		})
		return len(left) == 0, m.progress(fmt.Sprintf("%s: %d of %d Machines are replaced", resource, len(going)-len(left), len(going)))
	})
}
