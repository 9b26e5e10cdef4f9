package integration

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestLeaderElection hands over when the leader stops: it gives the Lease back, and the standby is warm.
func TestLeaderElection(t *testing.T) {
	installRBAC(t)
	create(t, admin, signingSecret(shared.CA.CertPEM, shared.CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	first := startManager(t, serviceAccountConfig(t))
	leader := leaderAfter(t, "")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "first")), csr.Issued)

	second := startManager(t, serviceAccountConfig(t))
	second.answers(t, second.probes, "/readyz", http.StatusOK) // warm: it knows the CA
	if err := first.Stop(); err != nil {
		t.Errorf("the leader stopped with %v", err)
	}
	start := time.Now()
	leaderAfter(t, leader)
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "second")), csr.Issued)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the standby took %s, the Lease was not given back", took)
	}
}

// leaderAfter waits for a holder of the Lease that is not the one before.
func leaderAfter(t *testing.T, before string) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	eventually(t, "a new leader", func(ctx context.Context) error {
		err := admin.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "csr-controller-manager"}, lease)
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" || *holder == before {
			return errors.New("there is none")
		}
		return nil
	})
	return *lease.Spec.HolderIdentity
}
