package integration

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
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
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// TestDiscoveryThatFailsAtTheStartEndsNothing aborts the first discoveries.
func TestDiscoveryThatFailsAtTheStartEndsNothing(t *testing.T) {
	parallel(t)
	installRBAC(t)
	apply(t, "kubelet-serving")
	apply(t, "node-identity")
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
approval:
  nodeClient: {requireTokenBinding: true}
  kubeletServing: {enabled: true}
`))
	proxy := throughFaults(t, serviceAccountConfig(t),
		faults.Rule{Path: regexp.MustCompile(`^/apis?(/[^/]+(/[^/]+)?)?$`), Times: 4, Do: faults.Reset()})
	p := startManager(t, proxy.Config, "--leader-elect=false", "--config", file)
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	if applied := proxy.Applied(); applied[0] == 0 {
		t.Error("no discovery was broken off")
	}
	newNode(t, "starts", "192.0.2.61")
	reaches(t, createRequest(t, kubeletOf(t, "starts"), servingRequest(t, "starts", "192.0.2.61")), csr.Issued)
	if err := p.Stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// TestRotationWithoutItsCRDHoldsUpNothingElse enables rotation without its CRD. Until the CRD is installed, the
// approver works, and the replica reports what it waits for.
func TestRotationWithoutItsCRDHoldsUpNothingElse(t *testing.T) {
	parallel(t)
	options := envtest.CRDInstallOptions{Paths: []string{"../../config/crd"}, ErrorIfPathMissing: true}
	uninstall := func() {
		if err := envtest.UninstallCRDs(controlPlane(t).Config, options); err != nil {
			t.Error(err)
		}
	}
	uninstall() // left over from earlier tests
	t.Cleanup(uninstall)
	eventually(t, "there is no such resource", func(ctx context.Context) error {
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SigningAuthorityList"}}
		if err := admin(t).List(ctx, list); !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is still served"), err)
		}
		return nil
	})
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	applyAll(t, slices.DeleteFunc(rendered(t, "rotation"), func(obj *unstructured.Unstructured) bool {
		return !strings.Contains(obj.GetKind(), "Role") // above all not the CRD
	}))
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
rotation: {enabled: true}
`))
	p := startManager(t, managerConfig(t), "--leader-elect=false", "--config", file)
	p.answers(t, p.probes, "/readyz/caches", http.StatusInternalServerError)
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "joins")), csr.Approved)
	eventually(t, "the log says what is missing", func(context.Context) error {
		log := p.log(t)
		if !strings.Contains(log, "Waiting for a resource that can't be watched yet") || !strings.Contains(log, "SigningAuthority") {
			return errors.New("it does not yet")
		}
		return nil
	})
	if _, err := envtest.InstallCRDs(controlPlane(t).Config, options); err != nil {
		t.Fatal(err)
	}
	p.answers(t, p.probes, "/readyz/caches", http.StatusOK)
}
