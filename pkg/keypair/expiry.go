package keypair

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

const day = 24 * time.Hour

// expirySteps are the times before the end of a CA at which CAExpiring is reported, the last step first. The alerts
// have the same steps.
var expirySteps = []time.Duration{7 * day, 30 * day, 90 * day}

// warned holds the reports of the leader about the CA in use, so that it reports each warning once.
type warned struct {
	daysLeft time.Duration // the last of expirySteps; zero is none
	cut      int           // signers
	sharing  bool          // for as long as the process lives
}

// sameCertificate reports whether two authorities sign with the same certificate; old may be nil.
func sameCertificate(old, next *ca.Authority) bool {
	return old != nil && bytes.Equal(old.CertificatePEM(), next.CertificatePEM()) && old.NotAfter().Equal(next.NotAfter())
}

// warnAhead reports what will go wrong with the CA in use, if this is the leader. The caller holds mu.
func (k *KeyPair) warnAhead() {
	select {
	case <-k.elected:
	default:
		return
	}
	if k.authority == nil {
		return
	}
	if sharing := k.SharesServing(); len(sharing) > 0 && !k.warned.sharing {
		k.warned.sharing = true
		k.event("Load", corev1.EventTypeWarning, "CAShared",
			fmt.Sprintf("kubelet serving certificates share this CA with those of %s: whoever verifies one kind by this CA "+
				"alone accepts the other, and only their usages tell them apart; "+
				"give kubernetes.io/kubelet-serving a CA of its own", strings.Join(sharing, " and ")))
	}
	now, end := k.Clock.Now(), k.authority.NotAfter()
	if !now.Before(end) {
		return // CAExpired is reported instead
	}
	step := slices.IndexFunc(expirySteps, func(step time.Duration) bool { return end.Sub(now) <= step })
	if step >= 0 && (k.warned.daysLeft == 0 || expirySteps[step] < k.warned.daysLeft) {
		k.warned.daysLeft = expirySteps[step]
		k.warn("CAExpiring", fmt.Sprintf("the CA that signs, key %s, ends in less than %d days, at %s, "+
			"and all that it has signed with it: replace it",
			k.authority.KeyID(), expirySteps[step]/day, end.Format(time.RFC3339)))
	}
	// Short certificates live for the backdating longer.
	cut := slices.DeleteFunc(k.Signers(), func(name string) bool {
		return !now.Add(k.Lifetimes[name] - ca.Backdate).After(end)
	})
	if len(cut) > k.warned.cut {
		k.warned.cut = len(cut)
		k.warn("LifetimeCut", fmt.Sprintf("certificates for %s are issued for less time than configured, "+
			"because the CA, key %s, ends before, at %s: replace it",
			strings.Join(cut, ", "), k.authority.KeyID(), end.Format(time.RFC3339)))
	}
}

// warn reports a warning in the log and as an Event. The caller holds mu.
func (k *KeyPair) warn(reason, message string) {
	k.Log.Error(nil, "Signing CA needs attention", "source", k.name, "reason", reason, "message", message)
	k.event("Load", corev1.EventTypeWarning, reason, message)
}
