package controllers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// TestRotationGrantsWhatIsAskedFor compares the component's roles with what a manager asks for that does nothing but rotate.
func TestRotationGrantsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	asked := func(enabled bool) []string {
		rights, err := Rights(configured(func(c *config.Configuration) {
			c.Controllers = []string{"*", "-approver", "-signer", "-cleaner"}
			c.LeaderElection.Enabled, c.Rotation.Enabled = false, enabled
			c.Signing.Secret = "csr-controller-manager-system/csr-signer"
		}), "n")
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, right := range rights {
			texts = append(texts, right.String())
		}
		return unique(texts)
	}
	if diff := cmp.Diff(granted(t, "rotation"), asked(true)); diff != "" {
		t.Errorf("granted (-) is not what is asked for (+):\n%s", diff)
	}
	if off := asked(false); len(off) > 0 {
		t.Errorf("asked for without rotation: %v", off)
	}
}

// TestRotationAsksToAttestForCustomSigners, as the API server does of whoever writes their ClusterTrustBundle: no shipped
// role can name them, so check must.
func TestRotationAsksToAttestForCustomSigners(t *testing.T) {
	t.Parallel()
	rights, err := Rights(configured(func(c *config.Configuration) {
		c.LeaderElection.Enabled, c.Rotation.Enabled = false, true
		c.Signing.Signers = []config.Signer{{Name: "example.com/web", CA: config.CA{Secret: "csr-controller-manager-system/web"}, Usages: []string{"server auth"}}}
	}), "n")
	if err != nil {
		t.Fatal(err)
	}
	for _, right := range rights {
		if right.Verb == "attest" && strings.HasSuffix(right.Name, "example.com/web") && !right.Optional {
			return
		}
	}
	t.Errorf("nothing asks for attest on example.com/web: %v", rights)
}
