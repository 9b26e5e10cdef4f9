package rotation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

var (
	noKeys   = SecretFacts{}
	onlyNew  = SecretFacts{Candidate: fact("new")}
	onlyLeft = SecretFacts{Retiring: fact("old")} // of a prepared rotation
	strange  = SecretFacts{TLS: fact("older"), Signing: fact("older")}
)

func lastRetired(s v1alpha1.SigningAuthorityStatus, name string) v1alpha1.SigningAuthorityStatus {
	s.LastRetired = noted(name)
	return s
}

func adoptedCandidate() v1alpha1.SigningAuthorityStatus {
	s := adoptedBesideSigning()
	s.Signing = nil
	return s
}

func adoptedBesideSigning() v1alpha1.SigningAuthorityStatus {
	s, at := preparing(), metav1.NewTime(noon)
	s.Candidate.AdoptedAt = &at
	return s
}

// completedOf returns s without a candidate.
func completedOf(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	s.Candidate = nil
	return s
}

func forNobody() v1alpha1.SigningAuthorityStatus {
	s := completed()
	s.Signing.Signers = nil
	return s
}

func pruned(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	at := metav1.NewTime(noon.Add(-90 * time.Second))
	s.PrunedAt = &at
	return s
}

func retired(f *Facts) { f.TLSRetired = true }

// lostRows have a signing pair that is missing from the Secret. Its certificates stay trusted, it signs again as soon
// as it is back, and without a backup the rotation can still continue.
var lostRows = []row{
	{name: "the Secret is gone", state: completed(), facts: good(noKeys), phase: v1alpha1.Completed,
		waits: "from a backup: its key is missing; without a backup, run \"rotation start\""},
	{name: "the Secret is back", state: completed(), facts: good(SecretFacts{TLS: fact("old")}),
		phase: v1alpha1.Completed, action: RestoreSigning},
	{name: "the Secret is back in the middle", state: preparing(),
		facts: good(SecretFacts{TLS: fact("old"), Candidate: fact("new")}), phase: v1alpha1.Preparing,
		action: RestoreSigning},
	{name: "no backup", state: completed(), facts: good(noKeys, asked(v1alpha1.RotateStart)),
		phase: v1alpha1.Preparing, take: true, action: MakeCandidate,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.Signing.Fingerprint == "old" && len(Trusted(s)) == 1
		}},
	{name: "no backup, and an owner's CA", state: completed(), facts: good(SecretFacts{TLS: fact("mine")}),
		phase: v1alpha1.Preparing, action: TakeCandidate,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.Signing.Fingerprint == "old" && s.Candidate.Fingerprint == "mine" && s.Candidate.TrustConfirmedAt == nil
		}},
	{name: "a backup that is too old", state: completed(), facts: good(SecretFacts{TLS: fact("older")}, retired),
		phase: v1alpha1.Completed, waits: "is refused: it has retired here"},
	{name: "a backup that is too old, as a whole", state: completed(), facts: good(strange, retired),
		phase: v1alpha1.Completed, waits: "signing.crt holds the CA older, which does not sign here",
		refused: asItLeftIt},
	{name: "started beside a backup that is too old", state: completed(),
		facts: good(strange, retired, asked(v1alpha1.RotateStart)), phase: v1alpha1.Completed, take: true,
		refused: "rotation start is refused: " + asItLeftIt + "put the CA old back", waits: "without a backup, remove signing.crt"},
	{name: "a backup of when it was the candidate", state: preparing(),
		facts: good(SecretFacts{Candidate: fact("old")}), phase: v1alpha1.Preparing,
		waits: "in the place of another CA", refused: asItLeftIt},
	{name: "started beside a backup of when it was the candidate", state: completed(),
		facts: good(SecretFacts{Candidate: fact("old")}, asked(v1alpha1.RotateStart)), phase: v1alpha1.Completed,
		take:    true,
		refused: asItLeftIt + "put the CA old into tls.crt", waits: "in the place of another CA"},
	{name: "a backup of before the switch", state: prepared(), facts: good(onlyOld), phase: v1alpha1.Prepared,
		waits: "move signing.crt and signing.key of the Secret to retiring.crt", refused: asItLeftIt},
	{name: "a backup of before the switch, with the candidate that signs by now", state: prepared(), facts: good(both),
		phase: v1alpha1.Prepared, waits: "move signing.crt and signing.key of the Secret to retiring.crt", refused: asItLeftIt},
	{name: "a backup of before the switch, and signing.crt is moved", state: prepared(),
		facts: good(SecretFacts{TLS: fact("old"), Retiring: fact("old")}), phase: v1alpha1.Prepared,
		waits: "run \"rotation rollback\" to sign with the retiring CA"},
	{name: "what has retired last comes back to a lost ledger", state: lastRetired(completed(), "mine"),
		facts: good(ownCA), phase: v1alpha1.Completed, action: RestoreTLS, refused: "has retired here"},
	{name: "lost while a candidate waits", state: preparing(), facts: good(onlyNew), phase: v1alpha1.Preparing,
		action: Switch},
	{name: "lost with the candidate", state: preparing(), facts: good(noKeys), phase: v1alpha1.Preparing,
		action: MakeCandidate},
	{name: "lost, and nobody trusts the candidate", state: preparing(),
		facts: good(onlyNew, func(f *Facts) { f.Candidate = Proof{} }), phase: v1alpha1.Preparing,
		waits: "every API server"},
	{name: "lost, and rolled back", state: preparing(), facts: good(onlyNew, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Preparing, take: true, refused: "no CA to go back to"},
	{name: "lost, and an owner's CA instead of the candidate", state: preparing(),
		facts: good(SecretFacts{TLS: fact("mine"), Candidate: fact("new")}), phase: v1alpha1.Preparing,
		action: TakeCandidate,
		also:   func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.Fingerprint == "mine" }},
	{name: "the switch without what was lost", state: preparing(), facts: good(oldGone), phase: v1alpha1.Prepared,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.Retiring.Fingerprint == "old" && len(Trusted(s)) == 2
		}},
	{name: "lost while prepared", state: prepared(), facts: good(onlyLeft), phase: v1alpha1.Prepared,
		waits: "run \"rotation rollback\" to sign with the retiring CA"},
	{name: "lost while prepared, and complete", state: prepared(),
		facts: good(onlyLeft, asked(v1alpha1.RotateComplete)), phase: v1alpha1.Prepared, take: true,
		refused: "put it back, or run \"rotation rollback\" to sign with the CA old"},
	{name: "lost while prepared, and rolled back", state: prepared(),
		facts: good(onlyLeft, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Prepared, take: true,
		action: SwapBack},
	{name: "rolled back without what was lost", state: intent(prepared(), SwapBack), facts: good(onlyOld),
		phase: v1alpha1.Prepared,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.Signing.Fingerprint == "old" && s.Retiring.Fingerprint == "new"
		}},
	{name: "rolled back to what was put there by another", state: prepared(),
		facts: good(SecretFacts{Retiring: fact("older")}, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Prepared, take: true, refused: asItLeftIt, waits: "they hold the CA older"},
	{name: "lost after a rollback, and rolled back", state: rolledBack(prepared()),
		facts: good(onlyLeft, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Prepared, take: true,
		action: SwapBack},
	{name: "a CA that is brought is lost before it signs", state: adoptedCandidate(), facts: good(noKeys),
		phase: v1alpha1.Preparing, waits: "put the CA new back",
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return len(Trusted(s)) == 1 }},
	{name: "a CA that is brought is lost before it signs, and rolled back", state: adoptedCandidate(),
		facts: good(noKeys, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Preparing, take: true,
		refused: "is missing from the Secret"},
	{name: "a strange one beside the candidate", state: preparing(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("new"), Retiring: fact("older")}),
		phase: v1alpha1.Preparing, refused: asItLeftIt,
		waits: "remove retiring.crt and retiring.key"},
	{name: "a candidate that somebody has put there", state: completedOf(preparing()), facts: good(both),
		phase: v1alpha1.Preparing,
		also:  func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.AdoptedAt != nil }},
	{name: "nobody knows for whom it signs", state: forNobody(),
		facts: good(onlyOld, func(f *Facts) { f.Secret.PermittedSigners = []string{"example.com/web"} }),
		phase: v1alpha1.Completed,
		also:  func(s *v1alpha1.SigningAuthorityStatus) bool { return len(s.Signing.Signers) == 1 }, waits: "the CA old does not sign for kubernetes.io/kube-apiserver-client-kubelet"},
	{name: "the key is lost, and API servers publish the CA", state: completing(true),
		facts: good(oldGone, sealed, func(f *Facts) { f.Kept = true }), phase: v1alpha1.Completing, action: Prune},
	{name: "the key is lost, and API servers may publish the CA again", state: completing(true),
		facts: good(oldGone, sealed), phase: v1alpha1.Completing,
		waits: "must not publish the retiring CA old again for 1m30s, until "},
	{name: "the key is lost, and API servers do not publish the CA again", state: pruned(completing(true)),
		facts: good(oldGone, sealed), phase: v1alpha1.Completing, action: DestroyRetiring},
	{name: "the ledger was opened by who led before", state: completing(true),
		facts: good(switched, func(f *Facts) { f.RetiringOpen = true }), phase: v1alpha1.Completing, action: Seal},
	{name: "both lost, and complete", state: prepared(),
		facts: good(noKeys, untrusted, asked(v1alpha1.RotateComplete)), phase: v1alpha1.Completing, take: true},
	{name: "both lost while completing", state: pruned(completing(true)), facts: good(noKeys, sealed),
		phase: v1alpha1.Completing, action: DestroyRetiring},
	{name: "lost while completing", state: completing(true), facts: good(onlyLeft, sealed),
		phase: v1alpha1.Completing, waits: "remove retiring.crt and retiring.key from the Secret to continue"},
	{name: "asked before anything signs", facts: good(noKeys, asked(v1alpha1.RotateStart)), phase: v1alpha1.New,
		take: true, refused: "does not sign yet"},
	{name: "the status is lost, and the Secret too old",
		facts: good(onlyOld, func(f *Facts) { f.SigningSealed = true }), phase: v1alpha1.New,
		waits: "has retired here"},
	{name: "the ledger was closed by who led before, and the bundle is not right", state: completed(),
		facts: good(onlyOld, unpublished, func(f *Facts) { f.SigningSealed = true }), phase: v1alpha1.Completed,
		action: Publish},
	{name: "the ledger was closed by who led before", state: completed(),
		facts: good(onlyOld, func(f *Facts) { f.SigningSealed = true }), phase: v1alpha1.Completed, action: Unseal},
}

// TestEditSecretSetsThePermit checks that each edit gives the signer the new permit, except the copy of another
// authority's CA, with which nothing signs yet. The lifetime cap ends with the candidate.
func TestEditSecretSetsThePermit(t *testing.T) {
	t.Parallel()
	pair := func(name string) keypair.Pair { return keypair.Pair{Cert: []byte(name), Key: []byte(name)} }
	before := keypair.Permit{Authority: "before"}
	permit := keypair.Permit{Authority: "cluster", LifetimeCap: time.Hour}
	uncapped := keypair.Permit{Authority: "cluster"}
	old, made := pair("old"), pair("made")
	for action, want := range map[Action]keypair.Ring{
		CopyFrom:      {TLS: made, Signing: old, Permit: before},
		MakeCandidate: {TLS: old, Signing: old, Candidate: made, Permit: permit},
		Permit:        {TLS: old, Signing: old, Permit: uncapped},
	} {
		got, err := editSecret(keypair.Ring{TLS: old, Signing: old, Permit: before}, action, made, permit)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v, (-want +got):\n%s", action, err, diff)
		}
	}
	if got, err := editSecret(keypair.Ring{TLS: old}, Seal, made, permit); err == nil || cmp.Diff(keypair.Ring{TLS: old}, got) != "" {
		t.Errorf("an action that does not change the Secret: %+v, error %v", got, err)
	}
}
