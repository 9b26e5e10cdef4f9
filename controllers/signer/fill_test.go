package signer

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// A signer that says nothing of its profile gets the safe one, whoever set it up.
func TestFillMakesProfilesSafe(t *testing.T) {
	t.Parallel()
	pair := keypair.New(keypair.Static{})
	unset, err := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Signers: map[string]Signer{
		"example.com/zero":            {KeyPair: pair},
		"example.com/unset":           {KeyPair: pair, Profile: unset},
		"example.com/forbids-nothing": {KeyPair: pair, Profile: profile(t, ca.ProfileConfig{ForbiddenSubjects: []string{}})},
	}}
	if err := r.fillProfiles(); err != nil {
		t.Fatal(err)
	}
	masters := []string{"O=system:masters"}
	want := map[string]ca.Profile{
		"example.com/zero":            profile(t, ca.ProfileConfig{ForbiddenSubjects: masters}),
		"example.com/unset":           profile(t, ca.ProfileConfig{Lifetime: time.Hour, ForbiddenSubjects: masters}),
		"example.com/forbids-nothing": profile(t, ca.ProfileConfig{ForbiddenSubjects: []string{}}),
	}
	for name := range want {
		if diff := cmp.Diff(want[name].Containing(contentsOf(name, nil)), r.Signers[name].Profile, cmp.AllowUnexported(ca.Profile{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
