package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// readPublished returns the ConfigMap of the manager that has a Lease of that name.
func readPublished(ctx context.Context, t *testing.T, lease string) (*corev1.ConfigMap, error) {
	t.Helper()
	obj := &corev1.ConfigMap{}
	return obj, admin(t).Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: lease + "-configuration"}, obj)
}

// ofAllSigners is in what a manager publishes once it has loaded the CA of each signer.
const ofAllSigners = "  - kubernetes.io/kube-apiserver-client\n  - kubernetes.io/kube-apiserver-client-kubelet\n  - kubernetes.io/kubelet-serving\n"

// awaitPublished returns the ConfigMap once the manager has filled it.
func awaitPublished(t *testing.T, lease string, parts ...string) *corev1.ConfigMap {
	t.Helper()
	var obj *corev1.ConfigMap
	eventually(t, "the configuration is published", func(ctx context.Context) (err error) {
		if obj, err = readPublished(ctx, t, lease); err != nil {
			return err
		}
		for _, part := range parts {
			if text := obj.Data[config.PublishedKey] + obj.Data[controllers.StatusKey]; !strings.Contains(text, part) {
				return fmt.Errorf("%q is not in:\n%s", part, text)
			}
		}
		return nil
	})
	t.Cleanup(func() { // the next test on this control plane must not find it
		if err := client.IgnoreNotFound(admin(t).Delete(context.Background(), obj)); err != nil {
			t.Error(err)
		}
	})
	return obj
}

// TestManagerPublishesItsConfiguration runs the manager with the roles that are shipped. The ConfigMap is shipped too,
// since the manager may not create one.
func TestManagerPublishesItsConfiguration(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	p := startManager(t, serviceAccountConfig(t), "--cluster-signing-duration=1h")
	user := "system:serviceaccount:" + systemNamespace + ":csr-controller-manager"
	obj := awaitPublished(t, "csr-controller-manager", "duration: 1h0m0s", "user: "+user, ofAllSigners)

	c, unknown, err := config.ParsePublished([]byte(obj.Data[config.PublishedKey]))
	if err = errors.Join(err, unknown); err != nil {
		t.Fatal(err)
	}
	if c.Signing.Secret != systemNamespace+"/csr-signer" || !slices.Equal(c.Controllers, []string{"approver", "signer", "cleaner"}) || c.LeaderElection.ResourceNamespace != systemNamespace {
		t.Errorf("published %+v", c)
	}
	status := controllers.PublishedStatus{}
	if err := yaml.Unmarshal([]byte(obj.Data[controllers.StatusKey]), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Authorities) != 1 || len(status.Authorities[0].Signers) != 3 || status.Authorities[0].Certificate != string(controlPlane(t).CA.CertPEM) || !slices.Contains(status.Groups, "system:serviceaccounts") {
		t.Errorf("published %+v", status)
	}
	for _, part := range append(secretParts(controlPlane(t).CA.KeyPEM), "PRIVATE") {
		if strings.Contains(fmt.Sprint(obj.Data), part) {
			t.Error("the key is published")
		}
	}

	// What is published goes on to say what holds: the next leader finds a change and replaces it.
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if obj, err = readPublished(t.Context(), t, "csr-controller-manager"); err != nil {
		t.Fatal(err)
	}
	obj.Data = map[string]string{"configuration.yaml": "changed"}
	if err := admin(t).Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	startManager(t, serviceAccountConfig(t), "--cluster-signing-duration=2h")
	awaitPublished(t, "csr-controller-manager", "duration: 2h0m0s")
}

// TestManagersPublishBesideEachOther starts two managers as config/overlays/split does, each with its ServiceAccount.
// They may also create the ConfigMaps.
func TestManagersPublishBesideEachOther(t *testing.T) {
	parallel(t)
	applyAll(t, slices.DeleteFunc(rendered(t, "overlays/split"), func(obj *unstructured.Unstructured) bool {
		return !slices.Contains([]string{"Namespace", "ServiceAccount"}, obj.GetKind()) && !strings.Contains(obj.GetKind(), "Role")
	}))
	meta := metav1.ObjectMeta{Namespace: systemNamespace, Name: "may-create-configmaps"}
	create(t, admin(t), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}}}})
	create(t, admin(t), &rbacv1.RoleBinding{
		ObjectMeta: *meta.DeepCopy(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + systemNamespace}},
	})
	for _, controller := range []string{"approver", "cleaner"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-" + controller}}
		startNamed(t, "beside-"+controller, tokenOf(t, account), "--controllers="+controller, "--leader-elect-resource-name=csr-"+controller)
	}
	for _, controller := range []string{"approver", "cleaner"} {
		obj := awaitPublished(t, "csr-"+controller, "controllers:\n- "+controller+"\n")
		if obj.Labels[config.PublishedLabel] != config.PublishedValue {
			t.Errorf("labels %v", obj.Labels)
		}
	}
}

// TestManagerWithoutTheRightToPublish works on, and logs once what is missing.
func TestManagerWithoutTheRightToPublish(t *testing.T) {
	parallel(t)
	// roleConfig creates roles but no ConfigMap, and the role may not create one.
	p := startManager(t, roleConfig(t, "cleaner"), "--controllers=cleaner", "--leader-elect-resource-name=csr-cleaner")
	const said = "The configuration is not published"
	eventually(t, "the manager logs it", func(context.Context) error {
		if log := p.log(t); !strings.Contains(log, said) || !strings.Contains(log, "cannot create resource") {
			return errors.New("nothing is logged")
		}
		return nil
	})
	p.answers(t, p.probes, "/readyz", 200)
	if count := strings.Count(p.log(t), said); count != 1 {
		t.Errorf("logged %d times", count)
	}
	if _, err := readPublished(t.Context(), t, "csr-cleaner"); !apierrors.IsNotFound(err) {
		t.Errorf("the ConfigMap: %v", err)
	}
}
