package rotation

import (
	"fmt"
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keyring"
)

// turning are the actions that change the Secret, each in one write. made is the pair that MakeCandidate or CopyFrom brings.
var turning = map[Action]func(ring *keyring.Ring, made keyring.Pair){
	CopyFrom:      func(ring *keyring.Ring, made keyring.Pair) { ring.TLS = made }, // a candidate is taken from there
	MakeCandidate: func(ring *keyring.Ring, made keyring.Pair) { ring.Candidate = made },
	TakeCandidate: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Candidate = ring.TLS
		if !ring.Signing.Empty() {
			ring.TLS = ring.Signing
		}
	},
	DropCandidate: func(ring *keyring.Ring, _ keyring.Pair) { ring.Candidate = keyring.Pair{} },
	RestoreTLS: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.TLS = ring.Signing
		once(ring)
	},
	RestoreSigning: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Signing = ring.TLS
		once(ring)
	},
	RestoreBoth: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Retiring, ring.Signing = ring.Signing, ring.TLS
		once(ring)
	},
	Switch: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Retiring, ring.Signing, ring.TLS, ring.Candidate = ring.Signing, ring.Candidate, ring.Candidate, keyring.Pair{}
	},
	SwapBack: func(ring *keyring.Ring, _ keyring.Pair) {
		ring.Signing, ring.TLS, ring.Retiring = ring.Retiring, ring.Retiring, ring.Signing
	},
	Permit:          func(*keyring.Ring, keyring.Pair) {},
	DestroyRetiring: func(ring *keyring.Ring, _ keyring.Pair) { ring.Retiring = keyring.Pair{} },
}

// once has what signs be nothing else.
func once(ring *keyring.Ring) {
	for _, one := range []*keyring.Pair{&ring.Candidate, &ring.Retiring} {
		if sameKey(*one, ring.Signing) {
			*one = keyring.Pair{}
		}
	}
}

// sameKey says whether both have one key, however it is written.
func sameKey(one, other keyring.Pair) bool {
	first, err := one.Load()
	second, otherErr := other.Load()
	if err != nil || otherErr != nil {
		return one.Equal(other)
	}
	return first.KeyID() == second.KeyID()
}

// turn is ring after action, with what the signer is told from then on: permit, whose cap is for while a candidate waits.
func turn(ring keyring.Ring, action Action, made keyring.Pair, permit keyring.Permit) (keyring.Ring, error) {
	change, found := turning[action]
	if !found {
		return ring, fmt.Errorf("%s changes no Secret", action)
	}
	change(&ring, made)
	if action == CopyFrom {
		return ring, nil // nothing signs yet
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring, nil
}

// permitted says whether the signer has been told what permit says.
func permitted(ring keyring.Ring, permit keyring.Permit) bool {
	told, err := turn(ring, Permit, keyring.Pair{}, permit)
	return err == nil && ring.Permit.Equal(told.Permit)
}

// permittedSigners are those of spec that what signs after action may sign for: no CA does for one whose verifiers are not known
// to trust it.
func permittedSigners(spec *v1alpha1.SigningAuthoritySpec, status *v1alpha1.SigningAuthorityStatus, action Action) []string {
	signing := status.Signing
	switch action {
	case Switch:
		signing = status.Candidate
	case SwapBack:
		signing = status.Retiring
	}
	return slices.DeleteFunc(slices.Clone(spec.Signers), func(name string) bool { return !trustedFor(signing, name) })
}

// trustedFor says whether the verifiers of signer are known to trust one: all that API servers verify, they verify alike.
func trustedFor(one *v1alpha1.CAStatus, signer string) bool {
	return one != nil && (slices.Contains(one.Signers, signer) || byAPIServers(signer) && AsksAPIServers(one.Signers))
}
