package rotation

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	proven = Proof{Proven: true}
)

func fact(name string) *v1alpha1.CAStatus {
	return &v1alpha1.CAStatus{KeyID: name, Fingerprint: name, Certificate: name, NotAfter: metav1.NewTime(noon.Add(10000 * time.Hour))}
}

func noted(name string) *v1alpha1.CAStatus {
	return &v1alpha1.CAStatus{
		KeyID: name, Fingerprint: name, Certificate: name, NotAfter: metav1.NewTime(noon.Add(10000 * time.Hour)),
		Signers: []string{certificatesv1.KubeAPIServerClientKubeletSignerName},
	}
}

// row is a status with facts, and the expected step.
type row struct {
	name   string
	state  v1alpha1.SigningAuthorityStatus
	facts  Facts
	spec   v1alpha1.SigningAuthoritySpec
	phase  v1alpha1.Phase
	action Action
	// waits and refused are parts of the expected messages. take reports whether the operation is accepted.
	waits, refused string
	take           bool
	also           func(*v1alpha1.SigningAuthorityStatus) bool
}

func preparing() v1alpha1.SigningAuthorityStatus {
	return v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Generation: 2, Signing: noted("old"), Candidate: noted("new")}
}

func prepared() v1alpha1.SigningAuthorityStatus {
	return v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Prepared, Generation: 2, Signing: noted("new"), Retiring: noted("old")}
}

func completing(unpublished bool) v1alpha1.SigningAuthorityStatus {
	s := prepared()
	s.Phase = v1alpha1.Completing
	if unpublished {
		at := metav1.NewTime(noon)
		s.UnpublishedAt = &at
	}
	return s
}

func completed() v1alpha1.SigningAuthorityStatus {
	return v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1, Signing: noted("old")}
}

// good returns facts with which every step is possible, changed by change.
func good(ring SecretFacts, change ...func(*Facts)) Facts {
	f := Facts{Now: noon, Secret: ring, Published: true, Permitted: true, SettleFor: DefaultSettleFor}
	f.Candidate, f.Signing, f.RetiringTrusted, f.RetiringRefused = proven, proven, proven, proven
	for _, each := range change {
		each(&f)
	}
	return f
}

func asked(operation v1alpha1.Operation) func(*Facts) {
	return func(f *Facts) { f.Operation = operation }
}

func sealed(f *Facts)      { f.Sealed = true }
func late(f *Facts)        { f.Now = noon.Add(10001 * time.Hour) } // when all certificates have expired
func unpublished(f *Facts) { f.Published = false }
func unpermitted(f *Facts) { f.Permitted = false }
func untrusted(f *Facts)   { f.Signing = Proof{Missing: []string{"10.0.0.7:6443"}} }
func settling(f *Facts) {
	f.Signing = Proof{Settling: true, Missing: []string{"seen once"}}
	f.RetiringTrusted = f.Signing
}
func outstanding(f *Facts) {
	f.Outstanding = []v1alpha1.Outstanding{{Signer: "s", Count: 3, Until: metav1.NewTime(noon.Add(time.Hour))}}
}

func adopted(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	at := metav1.NewTime(noon.Add(-time.Hour))
	for _, one := range []*v1alpha1.CAStatus{s.Signing, s.Retiring} {
		if one != nil && one.Fingerprint == "old" {
			one.AdoptedAt = &at
		}
	}
	return s
}

func accepted(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	at := metav1.NewTime(noon)
	s.Retiring.OutstandingAcceptedAt = &at
	return s
}

func intent(s v1alpha1.SigningAuthorityStatus, action Action) v1alpha1.SigningAuthorityStatus {
	s.Intent = string(action)
	return s
}

var (
	onlyOld   = SecretFacts{TLS: fact("old"), Signing: fact("old")}
	both      = SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("new")}
	switched  = SecretFacts{TLS: fact("new"), Signing: fact("new"), Retiring: fact("old")}
	back      = SecretFacts{TLS: fact("old"), Signing: fact("old"), Retiring: fact("new")}
	oldGone   = SecretFacts{TLS: fact("new"), Signing: fact("new")}
	ownCA     = SecretFacts{TLS: fact("mine"), Signing: fact("old")}
	serving   = v1alpha1.SigningAuthoritySpec{Signers: []string{certificatesv1.KubeletServingSignerName}}
	fromOther = v1alpha1.SigningAuthoritySpec{Signers: []string{certificatesv1.KubeAPIServerClientSignerName}, From: "other"}
)

const (
	asItLeftIt     = "the Secret is not as the rotation left it: "
	otherCandidate = "remove candidate.crt and candidate.key from the Secret: they hold the CA other, which no rotation has put there"
)

// waiting returns s with reasons under waitingFor.
func waiting(s v1alpha1.SigningAuthorityStatus, reasons ...string) v1alpha1.SigningAuthorityStatus {
	s.WaitingFor = reasons
	return s
}

var rows = []row{
	// The beginning.
	{name: "nothing there", facts: good(SecretFacts{}), phase: v1alpha1.Preparing, action: MakeCandidate,
		also: generation(1)},
	{name: "a CA is brought", facts: good(SecretFacts{TLS: fact("old")}), phase: v1alpha1.Preparing, action: TakeCandidate,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.Candidate.Fingerprint == "old" && s.Candidate.AdoptedAt != nil && s.Candidate.TrustConfirmedAt != nil &&
				s.Generation == 1
		}},
	{name: "what is brought has ended", facts: good(SecretFacts{TLS: ended("old")}), phase: v1alpha1.New,
		waits: "it has expired"},
	{name: "what is brought has retired here",
		facts: good(SecretFacts{TLS: fact("old")}, func(f *Facts) { f.TLSRetired = true }), phase: v1alpha1.New,
		waits: "has retired here"},
	{name: "the status is lost before anything signs",
		facts: good(SecretFacts{TLS: fact("new"), Candidate: fact("new")}), phase: v1alpha1.Preparing,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.AdoptedAt != nil }},
	{name: "its owner thinks better of it",
		state: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Generation: 1, Candidate: noted("old")},
		facts: good(SecretFacts{TLS: fact("mine"), Candidate: fact("old")}), phase: v1alpha1.Preparing, action: TakeCandidate,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.Fingerprint == "mine" }},
	{name: "what is brought can't be used", facts: good(SecretFacts{TLSProblem: "the key is encrypted"}),
		phase: v1alpha1.New, waits: "the key is encrypted"},
	{name: "the status is lost, with a candidate", facts: good(both), phase: v1alpha1.Preparing, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Signing.Fingerprint == "old" && s.Signing.AdoptedAt != nil && s.Candidate.Fingerprint == "new" && s.Generation == 2
	}},
	{name: "the status is lost, with a candidate that has retired here",
		facts: good(both, func(f *Facts) { f.CandidateRetired = true }), phase: v1alpha1.New,
		waits: "candidate.key from the Secret: they hold the CA new, which has retired here", refused: asItLeftIt},
	{name: "the status is lost, with what signs as the candidate",
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("old")}), phase: v1alpha1.New,
		waits: "they hold the CA old, which has the key of the signing CA", refused: asItLeftIt},
	{name: "the status is lost, with a copy of what signs",
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Retiring: withKeyOf("again", "old")}),
		phase: v1alpha1.New, waits: "remove retiring.crt and retiring.key from the Secret", refused: asItLeftIt},
	{name: "the status is lost, with one that retires", facts: good(switched), phase: v1alpha1.Prepared, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Signing.Fingerprint == "new" && s.Retiring.Fingerprint == "old" && s.Retiring.AdoptedAt != nil
	}},
	{name: "the status is lost, with one CA", facts: good(onlyOld), phase: v1alpha1.Completed},
	{name: "before the other authority signs", spec: fromOther, facts: good(SecretFacts{}), phase: v1alpha1.New,
		waits: "SigningAuthority other of spec.from has no signing CA yet"},
	{name: "from another authority", spec: fromOther,
		facts: good(SecretFacts{}, func(f *Facts) { f.From = noted("old") }), phase: v1alpha1.New, action: CopyFrom},
	{name: "what came from another authority has its past", spec: fromOther,
		facts: good(SecretFacts{TLS: fact("old")}, func(f *Facts) { f.From = noted("old") }),
		phase: v1alpha1.Preparing, action: TakeCandidate, also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.AdoptedAt == nil }},
	{name: "what came from another authority is confirmed if it was there", spec: fromOther,
		facts: good(SecretFacts{TLS: fact("old")}, func(f *Facts) { f.From = noted("old") }),
		phase: v1alpha1.Preparing, action: TakeCandidate, also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.TrustConfirmedAt == nil }},

	// Preparing.
	{name: "all trust it", state: preparing(), facts: good(both), phase: v1alpha1.Preparing, action: Switch},
	{name: "one does not", state: preparing(),
		facts: good(both, func(f *Facts) { f.Candidate = Proof{Missing: []string{"10.0.0.7:6443"}} }),
		phase: v1alpha1.Preparing, waits: "10.0.0.7:6443"},
	{name: "nobody was found to ask", state: preparing(), facts: good(both, func(f *Facts) { f.Candidate = Proof{} }),
		phase: v1alpha1.Preparing, waits: "not every API server was probed yet"},
	{name: "the first is trusted, and an edit can't be used",
		state: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Candidate: noted("new")},
		facts: good(SecretFacts{TLSProblem: "no key", Candidate: fact("new")}), phase: v1alpha1.Preparing, action: Switch, refused: "no key"},
	{name: "the first is trusted, and an edit has ended",
		state: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Candidate: noted("new")},
		facts: good(SecretFacts{TLS: ended("mine"), Candidate: fact("new")}), phase: v1alpha1.Preparing, action: Switch, refused: "is refused and replaced"},
	{name: "the first is trusted",
		state: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Candidate: noted("new")},
		facts: good(SecretFacts{Candidate: fact("new")}), phase: v1alpha1.Preparing, action: Switch},
	{name: "not published", state: preparing(), facts: good(both, unpublished), phase: v1alpha1.Preparing,
		action: Publish},
	{name: "it is published, and one does not trust it", state: intent(preparing(), Publish),
		facts: good(both, func(f *Facts) { f.Candidate = Proof{Missing: []string{"10.0.0.7:6443"}} }),
		phase: v1alpha1.Preparing, waits: "10.0.0.7:6443", also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Intent == "" }},
	{name: "the signer does not know of the cap", state: preparing(), facts: good(both, unpermitted),
		phase: v1alpha1.Preparing, action: Permit},
	{name: "those who can't be asked", state: preparing(), spec: serving, facts: good(both),
		phase: v1alpha1.Preparing, waits: "run \"rotation confirm\""},
	{name: "trust-confirmed", state: preparing(), spec: serving, facts: good(both, asked(v1alpha1.TrustConfirmed)),
		phase: v1alpha1.Preparing, take: true,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate.TrustConfirmedAt != nil }},
	{name: "trust-confirmed before there is anything to trust", state: preparing(), spec: serving,
		facts: good(both, asked(v1alpha1.TrustConfirmed), unpublished), phase: v1alpha1.Preparing, take: true,
		refused: "not published yet"},
	{name: "the ledger is lost", state: preparing(),
		facts: good(both, func(f *Facts) { f.SigningUnaccounted = true }), phase: v1alpha1.Preparing, action: Open,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Signing.AdoptedAt != nil }},
	{name: "a signer comes after trust-confirmed", state: confirmed(preparing()), spec: servingAnd("example.com/web"),
		facts: good(both), phase: v1alpha1.Preparing, waits: "the verifiers of example.com/web trust the candidate"},
	{name: "all signers are known", state: confirmed(preparing()),
		spec: servingAnd(certificatesv1.KubeAPIServerClientSignerName), facts: good(both), phase: v1alpha1.Preparing,
		action: Switch,
		also:   func(s *v1alpha1.SigningAuthorityStatus) bool { return len(s.Candidate.Signers) == 2 }},
	{name: "the ledger of the candidate is lost", state: preparing(),
		facts: good(both, func(f *Facts) { f.CandidateUnaccounted = true }), phase: v1alpha1.Preparing, action: Open,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.Signing.AdoptedAt == nil && s.Candidate.AdoptedAt != nil
		}},
	{name: "the switch is seen", state: preparing(), facts: good(switched), phase: v1alpha1.Prepared, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Signing.Fingerprint == "new" && s.Retiring.Fingerprint == "old" && s.Candidate == nil && s.Intent == ""
	}},
	{name: "the candidate is gone", state: preparing(), facts: good(onlyOld), phase: v1alpha1.Preparing,
		action: MakeCandidate},
	{name: "an adopted candidate is gone, and another CA signs", state: adoptedBesideSigning(), facts: good(onlyOld),
		phase: v1alpha1.Preparing, action: MakeCandidate},
	{name: "the candidate is another one", state: confirmed(preparing()),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("other")}), phase: v1alpha1.Preparing,
		waits: "they hold the CA other, which no rotation has put there", refused: asItLeftIt},
	{name: "the candidate is another one, and was refused", state: waiting(preparing(), otherCandidate),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("other")}), phase: v1alpha1.Preparing,
		waits: otherCandidate},
	{name: "the candidate is another one, and an operation", state: preparing(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("other")}, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Preparing, take: true, waits: otherCandidate, refused: "rotation rollback is refused: " + asItLeftIt},
	{name: "the candidate is another one, and its owner has put it into tls.crt again", state: preparing(),
		facts: good(SecretFacts{TLS: fact("new"), Signing: fact("old"), Candidate: fact("other")}), phase: v1alpha1.Preparing,
		action: TakeCandidate},
	{name: "the owner has thought better of it, and the manager died before the Secret was written",
		state: intent(v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Candidate: noted("mine")}, TakeCandidate),
		facts: good(SecretFacts{TLS: fact("mine"), Candidate: fact("old")}), phase: v1alpha1.Preparing, action: TakeCandidate},
	{name: "the candidate is what signs, from a backup", state: preparing(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("old")}), phase: v1alpha1.Preparing,
		waits: "which has the key of the signing CA", refused: asItLeftIt},
	{name: "the candidate has retired here, and is from a backup", state: preparing(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: fact("other")},
			func(f *Facts) { f.CandidateRetired = true }),
		phase: v1alpha1.Preparing, waits: "which has retired here", refused: asItLeftIt},
	{name: "the candidate has ended", state: preparing(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Candidate: ended("new")}),
		phase: v1alpha1.Preparing, waits: "the candidate has expired"},
	{name: "rollback", state: preparing(), facts: good(both, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Completed, take: true,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Candidate == nil }},
	{name: "rollback to nothing",
		state: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Candidate: noted("new")},
		facts: good(SecretFacts{Candidate: fact("new")}, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Preparing, take: true, refused: "no CA to go back to"},
	{name: "completed too early", state: preparing(), facts: good(both, asked(v1alpha1.RotateComplete)),
		phase: v1alpha1.Preparing, take: true, refused: "allowed now: rotation confirm, rotation rollback"},
	{name: "started twice", state: preparing(), facts: good(both, asked(v1alpha1.RotateStart)),
		phase: v1alpha1.Preparing, take: true, refused: "the candidate is not trusted yet"},
	{name: "an edit meanwhile", state: preparing(),
		facts: good(SecretFacts{TLS: fact("mine"), Signing: fact("old"), Candidate: fact("new")}),
		phase: v1alpha1.Preparing, action: RestoreTLS, refused: "a rotation is under way"},
	{name: "the candidate put there once more", state: preparing(),
		facts: good(SecretFacts{TLS: fact("new"), Signing: fact("old"), Candidate: fact("new")}),
		phase: v1alpha1.Preparing, action: Switch},

	// Prepared.
	{name: "outstanding", state: prepared(), facts: good(switched, outstanding), phase: v1alpha1.Prepared,
		waits: "up to 3 certificates of s from the CA old are valid until 2026-03-01T13:00:00Z"},
	{name: "nothing outstanding", state: prepared(), facts: good(switched), phase: v1alpha1.Prepared,
		waits: "run \"rotation complete\""},
	{name: "an API server joins that does not trust", state: prepared(), facts: good(switched, untrusted),
		phase: v1alpha1.Prepared, waits: "10.0.0.7:6443"},
	{name: "complete", state: prepared(), facts: good(switched, asked(v1alpha1.RotateComplete)),
		phase: v1alpha1.Completing, take: true},
	{name: "complete with something outstanding", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateComplete), outstanding), phase: v1alpha1.Prepared, take: true,
		refused: "certificates of s"},
	{name: "complete with an adopted CA", state: adopted(prepared()),
		facts: good(switched, asked(v1alpha1.RotateComplete)), phase: v1alpha1.Prepared, take: true,
		refused: "rotation complete is refused: certificates that others have issued from the CA old are valid until 2027-03-01T11:00:00Z"},
	{name: "complete with what was accepted", state: accepted(adopted(prepared())),
		facts: good(switched, asked(v1alpha1.RotateComplete), outstanding), phase: v1alpha1.Completing, take: true},
	{name: "complete while one does not trust", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateComplete), untrusted), phase: v1alpha1.Prepared, take: true,
		refused: "10.0.0.7:6443"},
	{name: "complete while not published, as after a rollback", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateComplete), unpublished), phase: v1alpha1.Prepared,
		action: Publish},
	{name: "complete while it can't be published", state: intent(prepared(), Publish),
		facts: good(switched, asked(v1alpha1.RotateComplete), unpublished, func(f *Facts) { f.Unpublished = []string{"ConfigMap a/b: forbidden"} }),
		phase: v1alpha1.Prepared, take: true, refused: "not published; ConfigMap a/b: forbidden"},
	{name: "an API server trusts what is above", state: prepared(), facts: good(switched, above),
		phase: v1alpha1.Prepared, waits: "remove CN=root from"},
	{name: "complete while one trusts what is above", state: prepared(),
		facts: good(switched, above, asked(v1alpha1.RotateComplete)), phase: v1alpha1.Prepared, take: true,
		refused: "remove CN=root from"},
	{name: "complete where nobody is asked to refuse", state: prepared(),
		facts: good(switched, above, asked(v1alpha1.RotateComplete), func(f *Facts) { f.Sharing = []string{"other"} }),
		phase: v1alpha1.Completing, take: true},
	{name: "complete when both have ended", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateComplete), untrusted, late), phase: v1alpha1.Completing,
		take: true},
	{name: "complete before it has settled", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateComplete), settling), phase: v1alpha1.Prepared,
		waits: "rotation complete starts when all API servers have given the same answer for 1m30s: seen once"},
	{name: "complete before it has settled, and with something outstanding", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateComplete), settling, outstanding), phase: v1alpha1.Prepared,
		take: true, refused: "certificates of s"},
	{name: "roll back before it has settled", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateRollback), settling), phase: v1alpha1.Prepared,
		waits: "rotation rollback starts when all API servers have given the same answer for 1m30s: seen once"},
	{name: "accept", state: prepared(), facts: good(switched, asked(v1alpha1.OutstandingAccepted)),
		phase: v1alpha1.Prepared, take: true,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Retiring.OutstandingAcceptedAt != nil }},
	{name: "attest", state: adopted(prepared()), facts: good(switched, asked(v1alpha1.AdoptionAttested)),
		phase: v1alpha1.Prepared, take: true,
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Retiring.AttestedAt != nil }},
	{name: "attest what was not adopted", state: prepared(), facts: good(switched, asked(v1alpha1.AdoptionAttested)),
		phase: v1alpha1.Prepared, take: true, refused: "no adopted CA needs it"},
	{name: "roll back", state: prepared(), facts: good(switched, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Prepared, take: true, action: SwapBack},
	{name: "roll back to what is not trusted any more", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateRollback), func(f *Facts) { f.RetiringTrusted = Proof{Missing: []string{"10.0.0.8:6443"}} }),
		phase: v1alpha1.Prepared, take: true, refused: "10.0.0.8:6443"},
	{name: "roll back to what has ended", state: prepared(),
		facts: good(switched, asked(v1alpha1.RotateRollback), func(f *Facts) { f.Now = noon.Add(10001 * time.Hour) }),
		phase: v1alpha1.Prepared, take: true, refused: "the CA old has expired"},
	{name: "roll back while the ledger is closed", state: prepared(),
		facts: good(switched, sealed, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Prepared, action: Unseal},
	{name: "roll back twice", state: rolledBack(prepared()), facts: good(switched, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Prepared, take: true, refused: "signs again already"},
	{name: "roll back twice, as what signs again has ended", state: endsAtNoon(rolledBack(prepared())),
		facts: good(switched, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Prepared, take: true,
		action: SwapBack},
	{name: "roll back, intent noted", state: intent(prepared(), SwapBack), facts: good(switched),
		phase: v1alpha1.Prepared, action: SwapBack},
	{name: "roll back, intent noted, and one has come that does not trust it", state: intent(prepared(), SwapBack),
		facts: good(switched, func(f *Facts) { f.RetiringTrusted = Proof{Missing: []string{"10.0.0.8:6443"}} }),
		phase: v1alpha1.Prepared, waits: "10.0.0.8:6443", also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Intent == string(SwapBack) }},
	{name: "complete, and a rollback is noted", state: intent(prepared(), SwapBack),
		facts: good(switched, asked(v1alpha1.RotateComplete)), phase: v1alpha1.Prepared, take: true,
		refused: "a rollback to the CA old is under way",
		also:    func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Intent == string(SwapBack) }},
	{name: "roll back, intent noted, and the CA has ended", state: intent(prepared(), SwapBack),
		facts: good(switched, asked(v1alpha1.RotateComplete), func(f *Facts) { f.Now = noon.Add(10001 * time.Hour) }),
		phase: v1alpha1.Completing, take: true},
	{name: "roll back, intent noted, and an edit", state: intent(prepared(), SwapBack),
		facts: good(SecretFacts{TLS: fact("mine"), Signing: fact("new"), Retiring: fact("old")}),
		phase: v1alpha1.Prepared, action: SwapBack, refused: "is refused and replaced"},
	{name: "roll back, and an edit", state: prepared(),
		facts: good(SecretFacts{TLS: fact("mine"), Signing: fact("new"), Retiring: fact("old")}, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Prepared, action: RestoreTLS, refused: "is refused and replaced"},
	{name: "roll back, intent noted, and the key is gone", state: intent(prepared(), SwapBack), facts: good(oldGone),
		phase: v1alpha1.Prepared, waits: "is missing from the Secret",
		also: func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Intent == "" }},
	{name: "rolled back", state: intent(prepared(), SwapBack), facts: good(back), phase: v1alpha1.Prepared, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Signing.Fingerprint == "old" && s.Retiring.Fingerprint == "new" && s.Intent == ""
	}},
	{name: "start again too early", state: prepared(), facts: good(switched, asked(v1alpha1.RotateStart)),
		phase: v1alpha1.Prepared, take: true, refused: "a rotation is under way"},
	{name: "the ledger was closed", state: prepared(), facts: good(switched, sealed), phase: v1alpha1.Prepared,
		action: Unseal},
	{name: "the ledger was closed, and it has left what is published", state: prepared(),
		facts: good(switched, sealed, unpublished), phase: v1alpha1.Prepared, action: Publish},
	{name: "roll back to what has left what is published", state: prepared(),
		facts: good(switched, sealed, unpublished, asked(v1alpha1.RotateRollback)), phase: v1alpha1.Prepared,
		take: true, refused: "not published yet"},
	{name: "the cap is still on", state: prepared(), facts: good(switched, unpermitted), phase: v1alpha1.Prepared,
		action: Permit},
	{name: "put right what was published", state: prepared(), facts: good(switched, unpublished),
		phase: v1alpha1.Prepared, action: Publish},
	{name: "the Secret of before the switch is back, and what signs", state: prepared(),
		facts: good(SecretFacts{TLS: fact("new"), Signing: fact("old"), Candidate: fact("new")}), phase: v1alpha1.Prepared,
		waits:   "move signing.crt and signing.key of the Secret to retiring.crt and retiring.key: they hold the retiring CA old",
		refused: asItLeftIt},
	{name: "the Secret of before the switch is back, and signing.crt is moved", state: prepared(),
		facts: good(SecretFacts{TLS: fact("new"), Retiring: fact("old"), Candidate: fact("new")}), phase: v1alpha1.Prepared,
		action: RestoreSigning},
	{name: "the Secret of before the switch is back, and signing.crt is copied", state: prepared(),
		facts: good(SecretFacts{TLS: fact("new"), Signing: fact("old"), Retiring: fact("old")}), phase: v1alpha1.Prepared,
		action: RestoreSigning},
	{name: "the retiring key is lost", state: prepared(), facts: good(oldGone), phase: v1alpha1.Prepared,
		waits: "is missing from the Secret"},
	{name: "an edit while prepared", state: prepared(),
		facts: good(SecretFacts{TLS: fact("mine"), Signing: fact("new"), Retiring: fact("old")}),
		phase: v1alpha1.Prepared, action: RestoreTLS, refused: "under way"},

	// Completing.
	{name: "the ledger is closed first", state: completing(false), facts: good(switched), phase: v1alpha1.Completing,
		action: Seal},
	{name: "something was issued before the ledger is closed", state: completing(false),
		facts: good(switched, outstanding), phase: v1alpha1.Prepared, refused: "completion stops"},
	{name: "something was issued meanwhile", state: completing(false), facts: good(switched, sealed, outstanding),
		phase: v1alpha1.Prepared, refused: "completion stops"},
	{name: "something was issued, and is accepted", state: accepted(completing(false)),
		facts: good(switched, outstanding), phase: v1alpha1.Completing, action: Seal},
	{name: "what was reserved may be issued yet", state: accepted(completing(false)),
		facts: good(switched, sealed, outstanding), phase: v1alpha1.Completing, waits: "every signer must learn",
		also: func(s *v1alpha1.SigningAuthorityStatus) bool {
			return s.LedgerClosedAt.Time.Equal(noon) && s.UnpublishedAt == nil
		}},
	{name: "what was reserved may be issued for a second",
		state: closed(accepted(completing(false)), ledger.QuietAfter-time.Second),
		facts: good(switched, sealed, outstanding), phase: v1alpha1.Completing, waits: "every signer must learn"},
	{name: "what was reserved has ended", state: closed(accepted(completing(false)), ledger.QuietAfter),
		facts: good(switched, sealed, outstanding), phase: v1alpha1.Completing, also: isUnpublished},
	{name: "nothing is left", state: completing(false), facts: good(switched, sealed), phase: v1alpha1.Completing,
		also: isUnpublished},
	{name: "it leaves what is published", state: completing(true), facts: good(switched, sealed, unpublished),
		phase: v1alpha1.Completing, action: Publish},
	{name: "one still accepts it", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.RetiringRefused = Proof{Missing: []string{"10.0.0.9:6443"}} }),
		phase: v1alpha1.Completing, waits: "10.0.0.9:6443"},
	{name: "nobody was asked whether they refuse", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.RetiringRefused = Proof{} }), phase: v1alpha1.Completing,
		waits: "not every API server was probed yet"},
	{name: "kept for aggregated API servers", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.Kept = true }), phase: v1alpha1.Completing, action: Prune},
	{name: "kept while one still accepts it", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.Kept, f.RetiringRefused = true, Proof{Missing: []string{"x"}} }),
		phase: v1alpha1.Completing, waits: "x"},
	{name: "an aggregated one holds it", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.Holding = []string{"v1.example.com"} }),
		phase: v1alpha1.Completing, waits: "v1.example.com"},
	{name: "one still accepts it, for a signer that has left", state: completing(true), spec: serving, facts: good(switched, sealed, func(f *Facts) {
		f.RetiringSigners, f.RetiringRefused = []string{certificatesv1.KubeAPIServerClientSignerName}, Proof{Missing: []string{"10.0.0.9:6443"}}
	}), phase: v1alpha1.Completing, waits: "10.0.0.9:6443"},
	{name: "of an aggregated one nobody knows", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.Unclear = []string{"metrics"} }), phase: v1alpha1.Completing,
		action: DestroyRetiring},
	{name: "refused by all", state: completing(true), facts: good(switched, sealed), phase: v1alpha1.Completing,
		action: DestroyRetiring},
	{name: "shared with another authority", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.Sharing, f.RetiringRefused = []string{"other"}, Proof{} }),
		phase: v1alpha1.Completing, action: DestroyRetiring},
	{name: "a CA that has ended proves nothing", state: completing(true),
		facts: good(switched, sealed, func(f *Facts) { f.Now, f.RetiringRefused = noon.Add(10001*time.Hour), Proof{} }),
		phase: v1alpha1.Completing, action: DestroyRetiring},
	{name: "destroyed", state: intent(completing(true), DestroyRetiring), facts: good(oldGone, sealed), phase: v1alpha1.Completed, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Retiring == nil && s.LastRetired.Fingerprint == "old" && s.CompletedAt != nil && s.UnpublishedAt == nil && s.LastCompletedAt.Time.Equal(noon)
	}},
	{name: "another CA is in the place of what retires, which API servers refuse of course", state: completing(true),
		facts: good(SecretFacts{TLS: fact("new"), Signing: fact("new"), Retiring: fact("older")}, sealed),
		phase: v1alpha1.Completing, waits: "they hold the CA older, which no rotation has put there", refused: asItLeftIt},
	{name: "no way back", state: completing(true), facts: good(switched, sealed, asked(v1alpha1.RotateRollback)),
		phase: v1alpha1.Completing, take: true, refused: "cannot be undone"},

	// Completed.
	{name: "calm", state: completed(), facts: good(onlyOld), phase: v1alpha1.Completed},
	{name: "a signer comes whose verifiers are not known", state: completed(),
		spec: servingAnd(certificatesv1.KubeAPIServerClientKubeletSignerName), facts: good(onlyOld),
		phase: v1alpha1.Completed,
		waits: "the CA old does not sign for kubernetes.io/kubelet-serving"},
	{name: "a signer comes whose verifiers are", state: completed(), spec: aged(time.Hour), facts: good(onlyOld),
		phase: v1alpha1.Completed},
	{name: "start", state: completed(), facts: good(onlyOld, asked(v1alpha1.RotateStart)), phase: v1alpha1.Preparing,
		take: true, action: MakeCandidate, also: generation(2)},
	{name: "start another one", state: rotated(completed(), noon.Add(-time.Hour)), facts: good(onlyOld, asked(v1alpha1.RotateStart)), phase: v1alpha1.Preparing, take: true, action: MakeCandidate, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.CompletedAt == nil && s.LastCompletedAt.Time.Equal(noon.Add(-time.Hour))
	}},
	{name: "nonsense", state: completed(), facts: good(onlyOld, asked("rotate-now")), phase: v1alpha1.Completed,
		take: true, refused: "rotate-now is refused: no rotation is under way; allowed now: rotation start"},
	{name: "an operation already taken", state: taken(completed(), v1alpha1.RotateStart),
		facts: good(onlyOld, asked(v1alpha1.RotateStart)), phase: v1alpha1.Completed, take: true},
	{name: "what is left of a candidate", state: completed(), facts: good(both), phase: v1alpha1.Completed,
		action: DropCandidate},
	{name: "one retires that nobody noted", state: completed(), facts: good(back), phase: v1alpha1.Completed,
		waits:   "remove retiring.crt and retiring.key from the Secret: they hold the CA new, which no rotation has put there",
		refused: asItLeftIt},
	{name: "a copy of what signs retires", state: completed(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("old"), Retiring: withKeyOf("again", "old")}),
		phase: v1alpha1.Completed, waits: "remove retiring.crt and retiring.key from the Secret", refused: asItLeftIt},
	{name: "an owner's CA", state: completed(), facts: good(ownCA), phase: v1alpha1.Preparing, action: TakeCandidate, also: func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Candidate.Fingerprint == "mine" && s.Candidate.AdoptedAt != nil && s.Candidate.TrustConfirmedAt == nil
	}},
	{name: "an owner's CA with the same key", state: completed(),
		facts: good(SecretFacts{TLS: withKeyOf("mine", "old"), Signing: fact("old")}), phase: v1alpha1.Completed,
		action: RestoreTLS, refused: "the key of the signing CA"},
	{name: "an owner's CA that has retired here", state: completed(),
		facts: good(ownCA, func(f *Facts) { f.TLSRetired = true }), phase: v1alpha1.Completed, action: RestoreTLS,
		refused: "has retired here"},
	{name: "an owner's CA that has ended", state: completed(),
		facts: good(SecretFacts{TLS: ended("mine"), Signing: fact("old")}), phase: v1alpha1.Completed,
		action: RestoreTLS, refused: "has expired"},
	{name: "an owner's CA that can't be used", state: completed(),
		facts: good(SecretFacts{TLSProblem: "no key", Signing: fact("old")}), phase: v1alpha1.Completed,
		action: RestoreTLS, refused: "no key"},
	{name: "another Secret is back, and what signs", state: completed(),
		facts: good(SecretFacts{TLS: fact("old"), Signing: fact("older")}), phase: v1alpha1.Completed,
		action: RestoreSigning},
	{name: "a Secret is back with one that has left", state: completed(), facts: good(back, sealed),
		phase: v1alpha1.Completed,
		waits: "remove retiring.crt and retiring.key from the Secret", refused: asItLeftIt},
	{name: "due by age", state: since(completed(), noon.Add(-48*time.Hour)), spec: aged(24 * time.Hour),
		facts: good(onlyOld), phase: v1alpha1.Preparing, action: MakeCandidate},
	{name: "due at the very end of rotateAfter", state: since(completed(), noon.Add(-24*time.Hour)), spec: aged(24 * time.Hour),
		facts: good(onlyOld), phase: v1alpha1.Preparing, action: MakeCandidate},
	{name: "not due yet", state: since(completed(), noon.Add(-23*time.Hour)), spec: aged(24 * time.Hour),
		facts: good(onlyOld), phase: v1alpha1.Completed},
	{name: "a phase of another version", state: v1alpha1.SigningAuthorityStatus{Phase: "Sleeping"},
		facts: good(onlyOld), phase: "Sleeping", waits: "the phase \"Sleeping\" is unknown"},
}

// rotated returns s with a last rotation that was completed at that instant.
func rotated(s v1alpha1.SigningAuthorityStatus, at time.Time) v1alpha1.SigningAuthorityStatus {
	completed := metav1.NewTime(at)
	s.CompletedAt, s.LastCompletedAt = &completed, &completed
	return s
}

func generation(want int64) func(*v1alpha1.SigningAuthorityStatus) bool {
	return func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Generation == want && s.InitiatedAt != nil }
}

func rolledBack(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	s.Signing.Generation, s.Retiring.Generation = 1, 2
	return s
}

func above(f *Facts) { f.Above = []string{"CN=root"} }

// closed returns s with a ledger that was closed that long before noon.
func closed(s v1alpha1.SigningAuthorityStatus, before time.Duration) v1alpha1.SigningAuthorityStatus {
	at := metav1.NewTime(noon.Add(-before))
	s.LedgerClosedAt = &at
	return s
}

func endsAtNoon(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	s.Signing.NotAfter = metav1.NewTime(noon)
	return s
}

func isUnpublished(s *v1alpha1.SigningAuthorityStatus) bool {
	return s.UnpublishedAt != nil && len(Trusted(s)) == 1
}

func ended(name string) *v1alpha1.CAStatus {
	f := fact(name)
	f.NotAfter.Time = noon
	return f
}

func withKeyOf(name, key string) *v1alpha1.CAStatus {
	f := fact(name)
	f.KeyID = key
	return f
}

func servingAnd(signer string) v1alpha1.SigningAuthoritySpec {
	return v1alpha1.SigningAuthoritySpec{Signers: []string{certificatesv1.KubeletServingSignerName, signer}}
}

func confirmed(s v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthorityStatus {
	at := metav1.NewTime(noon)
	s.Candidate.TrustConfirmedAt, s.Candidate.Signers = &at, []string{certificatesv1.KubeletServingSignerName}
	return s
}

func taken(s v1alpha1.SigningAuthorityStatus, operation v1alpha1.Operation) v1alpha1.SigningAuthorityStatus {
	s.TakenOperation = operation
	return s
}

func since(s v1alpha1.SigningAuthorityStatus, at time.Time) v1alpha1.SigningAuthorityStatus {
	t := metav1.NewTime(at)
	s.Signing.SignsSince = &t
	return s
}

func aged(after time.Duration) v1alpha1.SigningAuthoritySpec {
	return v1alpha1.SigningAuthoritySpec{Signers: []string{certificatesv1.KubeAPIServerClientSignerName}, RotateAfter: &metav1.Duration{Duration: after}}
}

func TestNext(t *testing.T) {
	for _, row := range slices.Concat(rows, lostRows) {
		t.Run(row.name, func(t *testing.T) {
			if row.spec.Signers == nil {
				row.spec.Signers = []string{certificatesv1.KubeAPIServerClientKubeletSignerName}
			}
			before := row.state.DeepCopy()
			step := Next(&row.spec, &row.state, row.facts)
			if !equality.Semantic.DeepEqual(row.state, *before) {
				t.Error("Next has changed its argument")
			}
			if step.Status.Phase != row.phase || step.Action != row.action || step.RemoveOperation != row.take {
				t.Errorf("got phase %q action %q take %t, want %q %q %t", step.Status.Phase, step.Action, step.RemoveOperation, row.phase, row.action, row.take)
			}
			said(t, "waits for", strings.Join(step.Waiting, "; "), row.waits)
			said(t, "refuses", step.Refused, row.refused)
			if row.action != None && step.Status.Intent != string(row.action) {
				t.Errorf("intent %q is noted before %s", step.Status.Intent, row.action)
			}
			if row.take != (step.Status.TakenOperation != "") {
				t.Errorf("noted as taken: %q", step.Status.TakenOperation)
			}
			if row.also != nil && !row.also(&step.Status) {
				t.Errorf("status: %+v", step.Status)
			}
		})
	}
}

func said(t *testing.T, what, got, want string) {
	t.Helper()
	if (want == "") != (got == "") || !strings.Contains(got, want) {
		t.Errorf("%s %q, want %q", what, got, want)
	}
}

// TestAPIKnowsTheVerifiedSigners checks that the API lets an authority add exactly the signers with whose certificates
// clients authenticate to API servers: whoever trusts the CA for one of them trusts it for all.
func TestAPIKnowsTheVerifiedSigners(t *testing.T) {
	source, err := os.ReadFile("../../api/v1alpha1/spec.go")
	if err != nil {
		t.Fatal(err)
	}
	signers := slices.DeleteFunc(csr.BuiltinSigners(), func(name string) bool { return !csr.VerifiedByAPIServers(name) })
	list := "['" + strings.Join(signers, "', '") + "']"
	if found := strings.Count(string(source), " in "+list); found != 2 {
		t.Errorf("the rule of Signers names %s %d times, want 2: bring the rule up to date, and run make generate", list, found)
	}
}
