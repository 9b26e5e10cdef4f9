package rotation

import (
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/keyring"
)

// turn is ring after action, all of it in one write. made is the pair that MakeCandidate or CopyFrom brings, permit what the
// signer is told from then on: its cap is for while a candidate waits.
func turn(ring keyring.Ring, action Action, made keyring.Pair, permit keyring.Permit) (keyring.Ring, error) {
	none := keyring.Pair{}
	switch action {
	case CopyFrom:
		ring.TLS = made
		return ring, nil // a candidate is taken from there
	case MakeCandidate:
		ring.Candidate = made
	case TakeCandidate:
		ring.Candidate = ring.TLS
		if !ring.Signing.Empty() {
			ring.TLS = ring.Signing
		}
	case DropCandidate:
		ring.Candidate = none
	case RestoreTLS:
		ring.TLS = ring.Signing
	case RestoreSigning:
		ring.Signing = ring.TLS
	case Switch:
		ring.Retiring, ring.Signing, ring.TLS, ring.Candidate = ring.Signing, ring.Candidate, ring.Candidate, none
	case SwapBack:
		ring.Signing, ring.TLS, ring.Retiring = ring.Retiring, ring.Retiring, ring.Signing
	case Permit:
	case DestroyRetiring:
		ring.Retiring = none
	default:
		return ring, fmt.Errorf("%s changes no Secret", action)
	}
	if ring.Candidate.Empty() {
		permit.LifetimeCap = 0
	}
	ring.Permit = permit
	return ring, nil
}

// turns says whether action changes the Secret.
func turns(action Action) bool {
	switch action {
	case CopyFrom, MakeCandidate, TakeCandidate, DropCandidate, RestoreTLS, RestoreSigning, Switch, SwapBack, Permit, DestroyRetiring:
		return true
	default:
		return false
	}
}

// permitted says whether the signer has been told what permit says.
func permitted(ring keyring.Ring, permit keyring.Permit) bool {
	told, err := turn(ring, Permit, keyring.Pair{}, permit)
	return err == nil && ring.Permit.Equal(told.Permit)
}
