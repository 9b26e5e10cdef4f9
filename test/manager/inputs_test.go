package manager

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// stored writes obj to etcd unchanged, without the API server's validation and defaults.
func stored(t *testing.T, name string, obj *kit.Request) *kit.Request {
	t.Helper()
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	obj.Name, obj.GenerateName, obj.UID, obj.CreationTimestamp = name, "", types.UID(name), metav1.Now()
	if err := kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+name, obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), obj) })
	return obj
}

// TestInputs tests the known bad and surprising inputs that involve the API server. The numbers are those of
// TestInputs in controllers/approver, which tests the others.
func TestInputs(t *testing.T) {
	kit.Parallel(t)
	startServingManager(t, "")
	kit.NewNode(t, "inputs-a", "192.0.2.20", "inputs-a.example.com")
	t.Run("14 a webhook that calls itself a node", webhookAsNode)
	t.Run("17 a lifetime of 599 seconds", shortLifetime)
	t.Run("20 Approved and Denied", approvedAndDenied)
	t.Run("23 a request that hardly fits", hugeRequest)
	t.Run("24 a certificate that is nonsense", nonsenseIssued)
	t.Run("25 a requester that is huge", hugeRequester)
	// None of them affects a good request.
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "inputs-a"), kit.ServingRequest(t, "inputs-a", "192.0.2.20")), csr.Issued)
}

func webhookAsNode(t *testing.T) {
	obj := kit.CreateRequest(t, kit.Admin(t), kit.ServingRequest(t, "svc.ns.svc", "svc.ns.svc"))
	kit.HasEvent(t, obj, "RequesterNotNode", "only a node")
	if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
		t.Errorf("it is %s", got)
	}
}

func shortLifetime(t *testing.T) {
	lasts := func(seconds int32) *kit.Request {
		obj := kit.ServingRequest(t, "inputs-a", "192.0.2.20")
		obj.Spec.ExpirationSeconds = &seconds
		return obj
	}
	if err := kit.KubeletOf(t, "inputs-a").Create(t.Context(), lasts(599)); !apierrors.IsInvalid(err) {
		t.Errorf("the API server says %v", err)
	}
	for seconds, want := range map[int32]time.Duration{600: 15 * time.Minute, 1e9: 365 * 24 * time.Hour} {
		cert := kit.Leaf(t, kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "inputs-a"), lasts(seconds)), csr.Issued))
		if lives := cert.NotAfter.Sub(cert.NotBefore); lives != want {
			t.Errorf("%d seconds became %s", seconds, lives)
		}
	}
}

// v1beta1 permitted both conditions.
func approvedAndDenied(t *testing.T) {
	obj := kit.ServingRequest(t, "inputs-a", "192.0.2.20")
	obj.Spec.Username, obj.Spec.Groups = "system:node:inputs-a", []string{"system:nodes"}
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		csr.AddCondition(obj, kind, "ByHand", "Stored by a test.", time.Now())
		obj.Status.Conditions[len(obj.Status.Conditions)-1].LastTransitionTime = metav1.Now()
	}
	untouched(t, stored(t, "inputs-approved-and-denied", obj))
}

func nonsenseIssued(t *testing.T) {
	obj := kit.ServingRequest(t, "inputs-a", "192.0.2.20")
	obj.Spec.Username, obj.Spec.Groups = "system:node:inputs-a", []string{"system:nodes"}
	obj.Status.Certificate = []byte("nonsense")
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Stored by a test.", time.Now())
	obj.Status.Conditions[0].LastTransitionTime = metav1.Now()
	untouched(t, stored(t, "inputs-nonsense-issued", obj))
}

// untouched waits until a later request was handled, and then checks that obj is unchanged.
func untouched(t *testing.T, obj *kit.Request) {
	t.Helper()
	before := kit.Reload(t, obj).DeepCopy()
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "inputs-a"), kit.ServingRequest(t, "inputs-a", "192.0.2.20")), csr.Issued)
	if after := kit.Reload(t, obj); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("it has become %+v", after.Status)
	}
}

// hugeRequest has about as many names as an object in etcd can hold, and gets a normal answer.
func hugeRequest(t *testing.T) {
	var names []string
	for i := range 25_000 {
		names = append(names, fmt.Sprintf("host-%d.of-somebody-else.example.com", i))
	}
	obj := kit.CreateRequest(t, kit.KubeletOf(t, "inputs-a"), kit.ServingRequest(t, "inputs-a", names...))
	if size := len(obj.Spec.Request); size < 1<<20 {
		t.Errorf("only %d bytes", size)
	}
	kit.HasEvent(t, obj, "RequestTooLarge", "requestLimits")
}

// hugeRequester has a name and extra fields that no authenticator creates. The API server gets all of them in
// reviews.
func hugeRequester(t *testing.T) {
	obj := kit.NodeRequest(t, "inputs-b", func(obj *kit.Request) {
		obj.Spec.Username = strings.Repeat("Ü名", 2000)
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		for i := range 10_000 {
			obj.Spec.Extra[fmt.Sprintf("example.com/key-%d", i)] = certificatesv1.ExtraValue{"value"}
		}
		obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:inputs-b", Organization: []string{"system:nodes"}}})
	})
	stored(t, "inputs-huge-requester", obj)
	kit.HasEvent(t, obj, "NotAuthorized", `\u00dc\u540d\u00dc`)
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: kit.MayJoin},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: obj.Spec.Username}},
	})
	kit.Reaches(t, obj, csr.Issued)
}
