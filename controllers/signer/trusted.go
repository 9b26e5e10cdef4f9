package signer

import (
	"fmt"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// Trusted returns a clause that says why API servers may accept certificates of signerName, which has the CA of pair. The
// clause is empty if they do not. reading means that it is about to be read.
func (r *Reconciler) Trusted(signerName string, pair *keypair.KeyPair, now time.Time) (clause string, reading bool) {
	authority, err := pair.Authority(now)
	if err != nil {
		return fmt.Sprintf("it is unknown whether API servers trust the CA of signer %s: %v", signerName, err), false
	}
	switch trust := r.trustOf(pair, authority); {
	case trust.unread != "":
		return fmt.Sprintf("it is unknown whether API servers trust the CA of signer %s: %s", signerName, trust.unread), trust.unread == notRead
	case trust.strict != "":
		return fmt.Sprintf(trust.strict, signerName), false
	}
	return "", false
}
