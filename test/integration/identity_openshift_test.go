package integration

import (
	"context"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const openshift = "machine.openshift.io"

// openshiftMachine creates the machine for node.
func openshiftMachine(t *testing.T, node string) string {
	t.Helper()
	text := "apiVersion: " + openshift + "/v1beta1\nkind: Machine\nmetadata: {namespace: openshift-machine-api, name: m-" + node +
		"}\nstatus: {addresses: [{type: InternalDNS, address: " + node + "}]}"
	administrator(t, controlPlane(t).Config).apply(t, text)
	return text
}

// TestOpenShiftsSevenRules tests the rules of OpenShift's machine-approver, one by one (openshift/enhancements,
// master-bootstrap-credentials.md, "How machine-approver Decides to Approve Client Certificates").
func TestOpenShiftsSevenRules(t *testing.T) {
	parallel(t)
	prepareIdentity(t)
	newNamespace(t, "openshift-machine-api")
	installKind(t, openshift)
	apply(t, "inventory-openshift")
	startIdentityManager(t, "nodeClient: {inventory: openshift}", "--leader-elect=false")
	_, joiner := account(t, "openshift-machine-config-operator", "node-bootstrapper")
	refused := func(t *testing.T, obj *request, reason, part string) {
		t.Helper()
		hasEvent(t, obj, reason, part)
		isPending(t, obj)
	}
	t.Run("1: not a well-formed client certificate", func(t *testing.T) {
		openshiftMachine(t, "rule-1")
		refused(t, createRequest(t, joiner, nodeRequest(t, "rule-1", func(obj *request) {
			obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth)
		})), "ShapeMismatch", "usages")
	})
	t.Run("2: a renewal is not approved by this path", func(t *testing.T) {
		openshiftMachine(t, "rule-2")
		grantGroup(t, csr.NodeGroup, mayCreate)
		grantGroup(t, csr.NodeGroup, mayJoin)
		node := kubeletOf(t, "rule-2")
		eventually(t, "permission to ask", func(ctx context.Context) error { return node.Create(ctx, nodeRequest(t, "rule-2"), client.DryRunAll) })
		refused(t, createRequest(t, node, nodeRequest(t, "rule-2")), "NotAuthorized", `requests subject "CN=system:node:rule-2,O=system:nodes" but may not`)
	})
	t.Run("3: not the node bootstrapper", func(t *testing.T) {
		openshiftMachine(t, "rule-3")
		_, other := account(t, "openshift-machine-config-operator", "other")
		refused(t, createRequest(t, other, nodeRequest(t, "rule-3")), "NotAuthorized", "may not bootstrap nodes: only users")
		refused(t, newToken(t, "rule03").asks(t, "rule-3"), "NotAuthorized", "may not bootstrap nodes: only users")
	})
	t.Run("4: the node exists", func(t *testing.T) {
		openshiftMachine(t, "rule-4")
		newNode(t, "rule-4")
		refused(t, createRequest(t, joiner, nodeRequest(t, "rule-4")), "NodeAlive", `node "rule-4" may be alive, because its Node or its Lease exists`)
	})
	t.Run("5: no machine", func(t *testing.T) {
		refused(t, createRequest(t, joiner, nodeRequest(t, "rule-5")), "NotExpected", `expects node "rule-5"`)
	})
	t.Run("6: not when the machine was created", func(t *testing.T) {
		old := object(t, openshiftMachine(t, "rule-6"))
		old.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-3 * time.Hour)))
		old.SetUID("m-rule-6")
		if err := controlPlane(t).Store(t.Context(), openshift+"/machines/openshift-machine-api/m-rule-6", old); err != nil {
			t.Fatal(err)
		}
		refused(t, createRequest(t, joiner, nodeRequest(t, "rule-6")), "OutsideJoinWindow", "joinWindow permits 2h0m0s after")
	})
	t.Run("7: all of it", func(t *testing.T) {
		openshiftMachine(t, "rule-7")
		reaches(t, createRequest(t, joiner, nodeRequest(t, "rule-7")), csr.Issued)
	})
}
