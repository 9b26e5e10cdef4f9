package integration

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// madeBefore stores a request of node by user with that age.
func madeBefore(t *testing.T, name, user, node string, age time.Duration, mods ...func(*request)) *request {
	t.Helper()
	obj := nodeRequest(t, node, func(obj *request) {
		obj.Name, obj.GenerateName, obj.UID = name, "", types.UID(name)
		obj.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.Spec.Username = user
	})
	for _, mod := range mods {
		mod(obj)
	}
	if err := controlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(admin(t).Delete(context.Background(), obj)); err != nil {
			t.Error(err)
		}
	})
	return obj
}

// TestSuperseded sets supersededAfter. The cleaner deletes a pending request an hour after the same requester has
// created a newer request for the same node, and nothing else. The parity suite shows that the default deletes
// neither.
func TestSuperseded(t *testing.T) {
	parallel(t)
	approved := func(obj *request) {
		csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "", time.Now())
	}
	serving := func(obj *request) { obj.Spec.SignerName = certificatesv1.KubeletServingSignerName }
	const minute = time.Minute
	gone := madeBefore(t, "sup-a-1", "token", "sup-a", 80*minute)
	kept := []*request{
		madeBefore(t, "sup-a-2", "token", "sup-a", 70*minute), // its newer request is half an hour old
		madeBefore(t, "sup-a-3", "token", "sup-a", 30*minute),
		madeBefore(t, "sup-a-4", "another", "sup-a", 80*minute),
		madeBefore(t, "sup-a-5", "token", "sup-a", 80*minute, serving),
		madeBefore(t, "sup-b-1", "token", "sup-b", 80*minute), // its newer request is decided
		madeBefore(t, "sup-b-2", "token", "sup-b", 70*minute, approved),
		madeBefore(t, "sup-c-1", "token", "sup-c", 80*minute, func(obj *request) { obj.Spec.SignerName = "example.com/a" }),
		madeBefore(t, "sup-c-2", "token", "sup-c", 70*minute, func(obj *request) { obj.Spec.SignerName = "example.com/a" }),
	}
	soon := madeBefore(t, "sup-d-1", "token", "sup-d", 80*minute)
	standsIn := madeBefore(t, "sup-d-2", "token", "sup-d", 60*minute-4*time.Second)
	due := reload(t, standsIn).CreationTimestamp.Add(time.Hour)

	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+
		"cleaning: {supersededAfter: 1h}\n"))
	p := startManager(t, roleConfig(t, "cleaner"), "--leader-elect=false", "--controllers=cleaner", "--config="+file)
	deleted(t, gone)
	begun := time.Now()
	deleted(t, soon)
	if early := time.Until(due); early > 0 {
		t.Errorf("deleted %s before it was due", early)
	}
	if late := min(time.Since(due), time.Since(begun)); late > 5*time.Second {
		t.Errorf("deleted %s after it was due", late)
	}
	for _, obj := range kept {
		reload(t, obj)
	}
	p.answers(t, p.metrics, "/metrics", http.StatusOK, `csr_cleaner_deleted_total{reason="Superseded",state="Pending"} 2`)
	checkStop(t, p)
}

func deleted(t *testing.T, obj *request) {
	t.Helper()
	eventually(t, obj.Name+" is deleted", func(ctx context.Context) error {
		err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), &request{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}
