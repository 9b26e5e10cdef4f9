package manager

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestDiscoveryThatFailsAtTheStartEndsNothing aborts the first discoveries.
func TestDiscoveryThatFailsAtTheStartEndsNothing(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Apply(t, "kubelet-serving")
	kit.Apply(t, "node-identity")
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.GrantJoining(t, "joiner")
	config := kit.Configure(t, `approval:
  nodeClient: {requireTokenBinding: true}
  kubeletServing: {enabled: true}
`)
	proxy := kit.ThroughFaults(t, kit.ServiceAccountConfig(t),
		faults.Rule{Path: regexp.MustCompile(`^/apis?(/[^/]+(/[^/]+)?)?$`), Times: 4, Do: faults.Reset()})
	p := kit.StartManager(t, proxy.Config, "--leader-elect=false", config)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	if applied := proxy.Applied(); applied[0] == 0 {
		t.Error("no discovery was broken off")
	}
	kit.NewNode(t, "starts", "192.0.2.61")
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "starts"), kit.ServingRequest(t, "starts", "192.0.2.61")), csr.Issued)
	if err := p.Stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// TestRotationWithoutItsCRDHoldsUpNothingElse enables rotation without its CRD. Until the CRD is installed, the
// approver works, and the replica reports what it waits for.
func TestRotationWithoutItsCRDHoldsUpNothingElse(t *testing.T) {
	kit.Parallel(t)
	options := envtest.CRDInstallOptions{Paths: []string{"../../config/crd"}, ErrorIfPathMissing: true}
	uninstall := func() {
		if err := envtest.UninstallCRDs(kit.ControlPlane(t).Config, options); err != nil {
			t.Error(err)
		}
	}
	uninstall() // left over from earlier tests
	t.Cleanup(uninstall)
	kit.Eventually(t, "there is no such resource", func(ctx context.Context) error {
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SigningAuthorityList"}}
		if err := kit.Admin(t).List(ctx, list); !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is still served"), err)
		}
		return nil
	})
	kit.GrantJoining(t, "joiner")
	kit.ApplyAll(t, slices.DeleteFunc(kit.Rendered(t, "rotation"), func(obj *unstructured.Unstructured) bool {
		return !strings.Contains(obj.GetKind(), "Role") // above all not the CRD
	}))
	config := kit.Configure(t, `rotation: {enabled: true}
`)
	p := kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", config)
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusInternalServerError)
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "joins")), csr.Approved)
	kit.Eventually(t, "the log says what is missing", func(context.Context) error {
		log := p.Output(t)
		if !strings.Contains(log, "Waiting for a resource that can't be watched yet") || !strings.Contains(log, "SigningAuthority") {
			return errors.New("it does not yet")
		}
		return nil
	})
	if _, err := envtest.InstallCRDs(kit.ControlPlane(t).Config, options); err != nil {
		t.Fatal(err)
	}
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusOK)
}
