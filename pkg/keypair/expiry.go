package keypair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const day = 24 * time.Hour

// expirySteps are the remaining lifetimes of a CA at which CAExpiring is reported, the last step first. The alerts
// use the same steps.
var expirySteps = []time.Duration{7 * day, 30 * day, 90 * day}

// warnAhead reports upcoming problems of the CA in use, if this process is the leader. The caller holds offering.
func (k *KeyPair) warnAhead() {
	authority := k.value.State().Good.authority
	if authority == nil || !k.leads() {
		return
	}
	if slices.Contains(k.Signers, certificatesv1.KubeletServingSignerName) && len(k.ClientSigners()) > 0 {
		k.warnOnce("CAShared", "kubelet serving certificates share this CA with those of %s: a verifier that trusts this CA "+
			"accepts both, and distinguishes them only by their usages; "+
			"use a separate CA for kubernetes.io/kubelet-serving", strings.Join(k.ClientSigners(), " and "))
	}
	now := k.Clock.Now()
	end := authority.NotAfter(now)
	if !now.Before(end) {
		return // CAExpired is reported instead
	}
	step := slices.IndexFunc(expirySteps, func(step time.Duration) bool { return end.Sub(now) <= step })
	if step >= 0 {
		k.warnOnce("CAExpiring", "the signing CA with key %s expires in less than %d days, at %s, "+
			"together with all certificates that it has signed: replace it",
			authority.KeyID(), expirySteps[step]/day, end.Format(time.RFC3339))
	}
}

// warnOnce reports a warning in the log and as an Event. It does not repeat a message. The caller holds offering.
func (k *KeyPair) warnOnce(reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if k.warned.Has(message) {
		return
	}
	k.warned.Insert(message)
	k.Log.Error(nil, "Signing CA needs attention", "source", k.name, "reason", reason, "message", message)
	k.event("Load", corev1.EventTypeWarning, reason, message)
}
