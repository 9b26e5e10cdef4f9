package signer

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

// expirySteps are how long before the end of a CA that end is told, the last one first; the alerts have the same.
var expirySteps = []time.Duration{7 * day, 30 * day, 90 * day}

// foretold is what the leader has told of the CA in use: each thing once.
type foretold struct {
	step time.Duration // the last of expirySteps; zero is none
	cut  int           // signers
}

// replaced forgets what was told of another certificate than next.
func (k *KeyPair) replaced(next *ca.Authority) {
	if k.authority == nil || !bytes.Equal(k.authority.CertificatePEM(), next.CertificatePEM()) || !k.authority.NotAfter().Equal(next.NotAfter()) {
		k.foretold = foretold{}
	}
}

// foretell has the leader warn of what will go wrong with the CA in use.
func (k *KeyPair) foretell() {
	select {
	case <-k.elected:
	default:
		return
	}
	if k.authority == nil {
		return
	}
	if len(k.sharing) > 0 && !k.toldSharing {
		k.toldSharing = true
		k.tell(corev1.EventTypeWarning, "CAShared", sharingSentence(k.sharing))
	}
	now, end := k.clock.Now(), k.authority.NotAfter()
	if !now.Before(end) {
		return // the refusal tells
	}
	for _, step := range expirySteps {
		if end.Sub(now) > step {
			continue
		}
		if k.foretold.step == 0 || step < k.foretold.step {
			k.foretold.step = step
			k.warn("CAExpiring", fmt.Sprintf("the CA that signs, key %s, ends in less than %d days, at %s, and all that it has signed with it: replace it",
				k.authority.KeyID(), step/day, end.Format(time.RFC3339)))
		}
		break
	}
	if cut := k.cutShort(now, end); len(cut) > k.foretold.cut {
		k.foretold.cut = len(cut)
		k.warn("LifetimeCut", fmt.Sprintf("certificates for %s are issued for less time than configured, because the CA, key %s, ends before, at %s: replace it",
			strings.Join(cut, ", "), k.authority.KeyID(), end.Format(time.RFC3339)))
	}
}

// cutShort are the signers whose certificates end early if they are issued now without a wish.
func (k *KeyPair) cutShort(now, end time.Time) []string {
	var cut []string
	for name, lifetime := range k.lifetimes {
		if now.Add(lifetime - ca.Backdate).After(end) { // short ones live for five minutes longer
			cut = append(cut, name)
		}
	}
	slices.Sort(cut)
	return cut
}

func (k *KeyPair) warn(reason, message string) {
	k.log.Error(nil, "Signing CA needs attention", "source", k.name, "reason", reason, "message", message)
	k.tell(corev1.EventTypeWarning, reason, message)
}

func sharingSentence(signers []string) string {
	return fmt.Sprintf("kubelet serving certificates share this CA with those of %s: whoever verifies one kind by this CA alone accepts the other, "+
		"and only their usages tell them apart; give kubernetes.io/kubelet-serving a CA of its own", strings.Join(signers, " and "))
}
