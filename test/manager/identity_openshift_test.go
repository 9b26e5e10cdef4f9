package manager

import (
	"context"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const bootstrapperNamespace = "openshift-machine-config-operator"

// openshiftMachine creates the machine for node.
func openshiftMachine(t *testing.T, node string) string {
	t.Helper()
	text := "apiVersion: " + kit.Openshift + "/v1beta1\nkind: Machine\nmetadata: {namespace: openshift-machine-api, name: m-" + node +
		"}\nstatus: {addresses: [{type: InternalDNS, address: " + node + "}]}"
	kit.Administrator(t, kit.ControlPlane(t).Config).Apply(t, text)
	return text
}

// TestOpenShiftsSevenRules tests the rules of OpenShift's machine-approver, one by one (openshift/enhancements,
// master-bootstrap-credentials.md, "How machine-approver Decides to Approve Client Certificates").
func TestOpenShiftsSevenRules(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.NewNamespace(t, "openshift-machine-api")
	kit.InstallKind(t, kit.Openshift)
	kit.Apply(t, "inventory-openshift")
	startIdentityManager(t, "nodeClient: {inventory: openshift}", "--leader-elect=false")
	_, joiner := accountThatAsks(t, bootstrapperNamespace, "node-bootstrapper") // OpenShift does not bind nodeclient to it
	refused := func(t *testing.T, obj *kit.Request, reason, part string) {
		t.Helper()
		kit.HasEvent(t, obj, reason, part)
		isPending(t, obj)
	}
	t.Run("1: not a well-formed client certificate", func(t *testing.T) {
		openshiftMachine(t, "rule-1")
		refused(t, kit.CreateRequest(t, joiner, kit.NodeRequest(t, "rule-1", func(obj *kit.Request) {
			obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth)
		})), "ShapeMismatch", "usages")
	})
	t.Run("2: a renewal is not approved by this path", func(t *testing.T) {
		openshiftMachine(t, "rule-2")
		kit.GrantGroup(t, csr.NodeGroup, kit.MayCreate)
		kit.GrantGroup(t, csr.NodeGroup, kit.MayJoin)
		node := kit.KubeletOf(t, "rule-2")
		kit.Eventually(t, "permission to ask", func(ctx context.Context) error {
			return node.Create(ctx, kit.NodeRequest(t, "rule-2"), client.DryRunAll)
		})
		refused(t, kit.CreateRequest(t, node, kit.NodeRequest(t, "rule-2")), "NotAuthorized", `requests subject "CN=system:node:rule-2,O=system:nodes" but may not`)
	})
	t.Run("3: not the node bootstrapper", func(t *testing.T) {
		openshiftMachine(t, "rule-3")
		_, other := account(t, bootstrapperNamespace, "other")
		refused(t, kit.CreateRequest(t, other, kit.NodeRequest(t, "rule-3")), "NotAuthorized", "may not bootstrap nodes: only users")
		refused(t, newToken(t, "rule03").asks(t, "rule-3"), "NotAuthorized", "may not bootstrap nodes: only users")
	})
	t.Run("4: the node exists", func(t *testing.T) {
		openshiftMachine(t, "rule-4")
		kit.NewNode(t, "rule-4")
		refused(t, kit.CreateRequest(t, joiner, kit.NodeRequest(t, "rule-4")), "NodeAlive", `node "rule-4" may be alive, because its Node or its Lease exists`)
	})
	t.Run("5: no machine", func(t *testing.T) {
		refused(t, kit.CreateRequest(t, joiner, kit.NodeRequest(t, "rule-5")), "NotExpected", `expects node "rule-5"`)
	})
	t.Run("6: not when the machine was created", func(t *testing.T) {
		old := kit.Object(t, openshiftMachine(t, "rule-6"))
		old.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-3 * time.Hour)))
		old.SetUID("m-rule-6")
		if err := kit.ControlPlane(t).Store(t.Context(), kit.Openshift+"/machines/openshift-machine-api/m-rule-6", old); err != nil {
			t.Fatal(err)
		}
		refused(t, kit.CreateRequest(t, joiner, kit.NodeRequest(t, "rule-6")), "OutsideJoinWindow", "joinWindow permits 2h0m0s after")
	})
	t.Run("7: all of it", func(t *testing.T) {
		openshiftMachine(t, "rule-7")
		kit.Reaches(t, kit.CreateRequest(t, joiner, kit.NodeRequest(t, "rule-7")), csr.Issued)
	})
	t.Run("7: by the client certificate of a control-plane node", func(t *testing.T) {
		openshiftMachine(t, "rule-7-certificate")
		const all = "system:serviceaccounts"
		user, err := kit.ControlPlane(t).Env.AddUser(envtest.User{
			Name: "system:serviceaccount:" + bootstrapperNamespace + ":node-bootstrapper", Groups: []string{all, all + ":" + bootstrapperNamespace},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		master := kit.ClientOf(t, user.Config())
		obj := kit.CreateRequest(t, master, kit.NodeRequest(t, "rule-7-certificate"))
		if obj.Spec.UID != "" {
			t.Fatalf("the requester has the UID %q", obj.Spec.UID)
		}
		kit.Reaches(t, obj, csr.Issued)
		refused(t, kit.CreateRequest(t, master, kit.NodeRequest(t, "rule-5")), "NotExpected", `expects node "rule-5"`)
	})
}
