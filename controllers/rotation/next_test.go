package rotation

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

type saStatus = v1alpha1.SigningAuthorityStatus

var (
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	proven = probe.Proof{Proven: true}
)

// at returns the instant that is after later than noon.
func at(after time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(after)} }

// fact returns a CA as the Secret has it. A name like "ended:a" is of a CA that has expired, and "b/a" is the CA b with
// the key of the CA a. "-" is no CA.
func fact(name string) *v1alpha1.CAStatus {
	if name == "-" {
		return nil
	}
	name, hasEnded := strings.CutPrefix(name, "ended:")
	name, key, _ := strings.Cut(name, "/")
	ca := &v1alpha1.CAStatus{KeyID: name, Fingerprint: name, Certificate: name, NotAfter: *at(10000 * time.Hour)}
	if key != "" {
		ca.KeyID = key
	}
	if hasEnded {
		ca.NotAfter = *at(0)
	}
	return ca
}

func noted(name string) *v1alpha1.CAStatus {
	ca := fact(name)
	if ca != nil {
		ca.Signers = []string{kubeletSigner}
	}
	return ca
}

// in returns a status. cas are the signing CA, the candidate and the retiring CA.
func in(phase v1alpha1.Phase, cas string) saStatus {
	names := strings.Fields(cas)
	return saStatus{
		Phase: phase, Generation: 2, Signing: noted(names[0]), Candidate: noted(names[1]), Retiring: noted(names[2]),
	}
}

func preparing() saStatus { return in(v1alpha1.Preparing, "old new -") }
func begun() saStatus     { return in(v1alpha1.Preparing, "old - -") }
func firstCA() saStatus   { return in(v1alpha1.Preparing, "- new -") }
func prepared() saStatus  { return in(v1alpha1.Prepared, "new - old") }
func completed() saStatus { return in(v1alpha1.Completed, "old - -") }

// wasRolledBack is the status before the candidate is dropped.
func wasRolledBack() saStatus {
	return with(in(v1alpha1.Completed, "old new -"), intends(DropCandidate))
}

func completing(unpublished bool) saStatus {
	s := in(v1alpha1.Completing, "new - old")
	if unpublished {
		s.UnpublishedAt = at(0)
	}
	return s
}

func with(s saStatus, changes ...func(s *saStatus)) saStatus {
	for _, change := range changes {
		change(&s)
	}
	return s
}

func intends(action Action) func(*saStatus) { return func(s *saStatus) { s.Intent = string(action) } }

// closedFor makes the ledger closed for that long.
func closedFor(before time.Duration) func(*saStatus) {
	return func(s *saStatus) { s.LedgerClosedAt = at(-before) }
}

// since makes the signing CA sign for that long.
func since(before time.Duration) func(*saStatus) {
	return func(s *saStatus) { s.Signing.SignsSince = at(-before) }
}

func accepted(s *saStatus)   { s.Retiring.OutstandingAcceptedAt = at(0) }
func adopted(s *saStatus)    { s.Retiring.AdoptedAt = at(-time.Hour) }
func adoptedNew(s *saStatus) { s.Candidate.AdoptedAt = at(0) }
func pruned(s *saStatus)     { s.PrunedAt = at(-90 * time.Second) }
func rolledBack(s *saStatus) { s.Signing.Generation, s.Retiring.Generation = 1, 2 }
func confirmed(s *saStatus) {
	s.Candidate.TrustConfirmedAt, s.Candidate.Signers = at(0), []string{servingSigner}
}

// renewing is the status while the certificate "later" of the CA old is published.
func renewing() saStatus {
	s := completed()
	s.Signing.Generation, s.Signing.SignsSince, s.Signing.AdoptedAt = 2, at(-day), at(-day)
	s.Signing.Earlier = []v1alpha1.EarlierCertificate{{Certificate: "older", NotAfter: *at(time.Hour)}}
	s.Renewed = fact("later/old")
	return s
}

func manyEarlier(s *saStatus) { s.Signing.Earlier = slices.Repeat(s.Signing.Earlier, maxEarlier) }

// later is the Secret with a renewed certificate in the pair tls. renewedCA is the Secret after that certificate signs.
const later, renewedCA = "later/old old - -", "later/old later/old - -"

func mineRetired(s *saStatus) { s.LastRetired = noted("mine") }
func signsEnded(s *saStatus)  { s.Signing.NotAfter = *at(0) }
func startTaken(s *saStatus) {
	s.LastOperation = &v1alpha1.OperationStatus{Name: v1alpha1.OperationStart, Result: v1alpha1.Accepted, Annotated: true}
}

// These are the CAs in tls.crt, signing.crt, candidate.crt and retiring.crt of the Secret.
const (
	noKeys   = "- - - -"
	onlyOld  = "old old - -"
	onlyNew  = "- - new -" // of a rotation whose signing pair is lost
	onlyLeft = "- - - old" // of a prepared rotation whose signing pair is lost
	both     = "old old new -"
	switched = "new new - old"
	back     = "old old - new"
	oldGone  = "new new - -"
	ownCA    = "mine old - -"
	ownLate  = "mine new - old"
	strange  = "older older - -"
	otherNew = "old old other -"
)

// good returns facts with which every step is possible, changed by change.
func good(cas string, change ...func(*facts)) facts {
	names := strings.Fields(cas)
	f := facts{Now: noon.Add(400 * time.Millisecond), Published: true, Permitted: true, SettleFor: 90 * time.Second}
	f.Accounts = map[string]ledger.Account{"old": {}, "new": {}}
	f.Secret = secretFacts{TLS: fact(names[0]), Signing: fact(names[1]), Candidate: fact(names[2]), Retiring: fact(names[3])}
	f.Candidate, f.Signing, f.RetiringTrusted, f.RetiringRefused = proven, proven, proven, proven
	for _, each := range change {
		each(&f)
	}
	return f
}

func asked(operation v1alpha1.Operation) func(*facts) {
	return func(f *facts) { f.Operation = operation }
}

var (
	start    = asked(v1alpha1.OperationStart)
	complete = asked(v1alpha1.OperationComplete)
	rollBack = asked(v1alpha1.OperationRollback)
	confirm  = asked(v1alpha1.OperationConfirm)
	accept   = asked(v1alpha1.OperationAccept)
	attest   = asked(v1alpha1.OperationAttest)
	renewal  = asked(v1alpha1.OperationRenewCertificate)
)

func closed(keyID string) func(*facts) {
	return func(f *facts) { f.Accounts[keyID] = ledger.Account{Sealed: true} }
}
func lostAccount(keyID string) func(*facts) { return func(f *facts) { delete(f.Accounts, keyID) } }

// issued makes the retiring CA have certificates of signer that end that long after noon.
func issued(signer string, after time.Duration) func(*facts) {
	return func(f *facts) {
		f.Accounts["old"] = ledger.Account{Sealed: f.Accounts["old"].Sealed, Signers: map[string]time.Time{signer: noon.Add(after)}}
	}
}

func sealed(f *facts)      { closed("old")(f) }
func outstanding(f *facts) { issued("s", time.Hour)(f) }
func late(f *facts)        { f.Now = noon.Add(10001 * time.Hour) } // when all certificates have expired
func unfit(f *facts) {
	f.Secret.Unfit = map[string]error{"new": errors.New("not valid"), "old": errors.New("not valid")}
}
func renewed(f *facts)                { f.Secret.Renews = true }
func seen(f *facts)                   { f.Secret.Renews, f.RenewedSeen = true, true }
func notMade(f *facts)                { f.NotMade = errors.New("no such algorithm") }
func notRenewable(f *facts)           { f.NotRenewable = errors.New("only its issuer can") }
func unfitLater(f *facts)             { f.Secret.Unfit = map[string]error{"later": errors.New("not valid")} }
func unpublished(f *facts)            { f.Published = false }
func unpermitted(f *facts)            { f.Permitted = false }
func kept(f *facts)                   { f.Kept = true }
func ofOther(f *facts)                { f.Others = map[string]string{"mine": "other"} }
func above(f *facts)                  { f.Above = []string{"CN=root"} }
func ownCertificate(f *facts)         { f.OwnCertificate = true }
func doubted(f *facts)                { f.Candidate = lacks("10.0.0.7:6443") }
func untrusted(f *facts)              { f.Signing = lacks("10.0.0.7:6443") }
func left(f *facts)                   { f.RetiringTrusted = lacks("10.0.0.8:6443") }
func stillTrusted(f *facts)           { f.RetiringRefused = lacks("10.0.0.9:6443") }
func lacks(server string) probe.Proof { return probe.Proof{Missing: []string{server}} }
func settling(f *facts) {
	f.Signing = probe.Proof{Settling: true, Missing: []string{"seen once"}}
	f.RetiringTrusted = f.Signing
}
func spoilt(name pairName) func(*facts) {
	return func(f *facts) { f.Secret.Unusable = map[pairName]error{name: errors.New("no key")} }
}
func unusable(problem string) func(*facts) {
	return func(f *facts) { f.Secret.Unusable = map[pairName]error{tlsPair: errors.New(problem)} }
}

type row struct {
	name  string
	state saStatus
	facts facts
	spec  v1alpha1.SigningAuthoritySpec

	phase  v1alpha1.Phase
	action Action
	// These are parts of the expected messages. The step must be stopped exactly if stops is not empty.
	waits, refused, stops string
	take                  bool     // whether the operation is answered
	records               []string // parts of the summary of the new status
}

// when returns a row. Without an option, the step stays in the phase, and only answers the operation.
func when(name string, state saStatus, facts facts, options ...func(*row)) row {
	r := row{name: name, state: state, facts: facts, phase: state.Phase, take: facts.Operation != ""}
	r.spec.Signers = []string{kubeletSigner}
	for _, option := range options {
		option(&r)
	}
	return r
}

func does(action Action) func(*row)          { return func(r *row) { r.action = action } }
func enters(phase v1alpha1.Phase) func(*row) { return func(r *row) { r.phase = phase } }
func waits(part string) func(*row)           { return func(r *row) { r.waits = part } }
func refuses(part string) func(*row)         { return func(r *row) { r.refused = part } }
func records(parts ...string) func(*row)     { return func(r *row) { r.records = parts } }
func begins(action Action) func(*row) {
	return func(r *row) { r.phase, r.action = v1alpha1.Preparing, action }
}
func stops(part string) func(*row)        { return func(r *row) { r.stops, r.waits = part, part } }
func unanswered(r *row)                   { r.take = false }
func serves(signers ...string) func(*row) { return func(r *row) { r.spec.Signers = signers } }
func rotates(after time.Duration) func(r *row) {
	return func(r *row) { r.spec.RotateAfter = &metav1.Duration{Duration: after} }
}

func summary(s *saStatus) (all []string) {
	say := func(what string, value any) { all = append(all, fmt.Sprint(what, " ", value)) }
	noted := func(event string, at *metav1.Time) {
		say(event, map[bool]string{true: "never", false: cmp.Or(at, &metav1.Time{}).UTC().Format("15:04")}[at == nil])
	}
	for role, ca := range map[string]*v1alpha1.CAStatus{
		"signing": s.Signing, "candidate": s.Candidate, "retiring": s.Retiring, "last retired": s.LastRetired,
	} {
		ca = cmp.Or(ca, &v1alpha1.CAStatus{Fingerprint: "none"})
		say(role, ca.Fingerprint)
		say(role+" signers", len(ca.Signers))
		noted(role+" adopted", ca.AdoptedAt)
		noted(role+" attested", ca.AttestedAt)
		noted(role+" confirmed", ca.TrustConfirmedAt)
		noted(role+" accepted", ca.OutstandingAcceptedAt)
	}
	say("renewed", cmp.Or(s.Renewed, &v1alpha1.CAStatus{Fingerprint: "none"}).Fingerprint)
	for role, ca := range map[string]*v1alpha1.CAStatus{"signing": s.Signing, "retiring": s.Retiring, "last retired": s.LastRetired} {
		for _, one := range cmp.Or(ca, &v1alpha1.CAStatus{}).Earlier {
			say(role+" earlier", one.Certificate)
		}
		say(role+" with earlier", len(cmp.Or(ca, &v1alpha1.CAStatus{}).Earlier))
	}
	say("generation", s.Generation)
	say("intent", s.Intent)
	say("published", len(publishedCAs(s)))
	noted("initiated", s.InitiatedAt)
	noted("closed", s.LedgerClosedAt)
	noted("unpublished", s.UnpublishedAt)
	noted("outstanding until", s.OutstandingUntil)
	noted("last completed", s.LastCompletedTime)
	if last := s.LastOperation; last != nil {
		say("last operation", fmt.Sprint(last.Name, " ", last.Result, " ", last.Annotated))
	}
	return all
}

// The instructions to restore the Secret.
const (
	signingToTLS      = "copy signing.crt and signing.key to tls.crt and tls.key of the Secret: the present content is refused: "
	tlsToSigning      = "copy tls.crt and tls.key to signing.crt and signing.key of the Secret, which must hold the CA "
	signingToRetiring = "copy signing.crt and signing.key to retiring.crt and retiring.key of the Secret, which must hold the CA "
	correctTLS        = "correct tls.crt and tls.key of the Secret, or make both empty: the present content is refused: "
	removeCandidate   = "remove candidate.crt and candidate.key from the Secret: they hold the CA "
	removeRetiring    = "remove retiring.crt and retiring.key from the Secret: they hold the CA "
	signingBack       = "put the CA old back into signing.crt and signing.key of the Secret, from a backup: "
	candidateBack     = "put the CA new back into candidate.crt and candidate.key of the Secret, from a backup, or another CA into " +
		"tls.crt and tls.key: its key is missing"
	strangeCA = ": no rotation has put it there"
)

var newRows = []row{
	when("a CA is brought", saStatus{}, good("old - - -"), begins(TakeCandidate),
		records("candidate old", "candidate adopted 12:00", "candidate confirmed 12:00", "generation 1")),
	when("the first CA can't be made", saStatus{}, good(noKeys, notMade), enters(v1alpha1.Preparing)),
	when("what is brought has ended", saStatus{}, good("ended:old - - -"), waits("it has expired")),
	when("what is brought can't be used", saStatus{}, good(noKeys, unusable("the key is encrypted")), waits("the key is encrypted")),
	when("asked before anything signs", saStatus{}, good(noKeys, start),
		refuses("rotation start is refused: the phase is New; allowed now: none, wait for the next phase")),

	when("the status is lost, with a candidate", saStatus{}, good(both), enters(v1alpha1.Preparing),
		records("signing old", "signing adopted 12:00", "candidate new", "generation 2")),
	when("the status is lost, with what signs as the candidate", saStatus{}, good("old old old -"),
		stops(removeCandidate+"old: it has the key of the signing CA")),
	when("the status is lost, with a copy of what signs", saStatus{}, good("old old - again/old"), stops(removeRetiring+"old"+strangeCA)),
	when("the status is lost, with one that retires", saStatus{}, good(switched), enters(v1alpha1.Prepared),
		records("signing new", "retiring old", "retiring adopted 12:00")),
	when("the status is lost, with one CA", saStatus{}, good(onlyOld, func(f *facts) { f.Secret.PermittedSigners = []string{"example.com/web"} }),
		enters(v1alpha1.Completed), records("signing signers 1")),
	when("the status is lost, and what signs can't be used", saStatus{}, good(noKeys, spoilt(signingPair)),
		stops("remove signing.crt and signing.key from the Secret, or restore them from a backup: no key")),
	when("the status is lost, and the Secret too old", saStatus{}, good(onlyOld, sealed), waits("has retired here")),

	when("the status is lost, and another authority has the CA", saStatus{}, good("mine mine - -", ofOther),
		waits("remove the CA mine from the Secret: it is a CA of SigningAuthority other")),
	when("the status is lost, and another authority has the candidate", saStatus{}, good("- - mine -", ofOther),
		stops(removeCandidate+"mine: it is a CA of SigningAuthority other")),
	when("the status is lost, and another authority has what retires", saStatus{}, good("new new - mine", ofOther), waits("remove the CA mine")),

	when("a phase of another version", in("Sleeping", "- - -"), good(onlyOld), waits("the phase \"Sleeping\" is unknown")),
}

var preparingRows = []row{
	when("one does not", preparing(), good(both, doubted), waits("10.0.0.7:6443")),
	when("it is published, and one does not trust it", with(preparing(), intends(Publish)), good(both, doubted), waits("10.0.0.7:6443"),
		records("intent ")),
	when("the signer does not know of the cap", preparing(), good(both, unpermitted), does(Permit)),

	when("the first is trusted, and an edit can't be used", firstCA(), good(onlyNew, unusable("no key")), stops(correctTLS+"no key")),
	when("the first is trusted, and an edit has ended", firstCA(), good("ended:mine - new -"), stops(correctTLS+"it has expired")),
	when("the first is trusted, and is brought too", firstCA(), good("new - new -"), does(Switch)),
	when("an edit while it is proven", preparing(), good("mine old new -"), stops(signingToTLS+"a rotation is under way")),
	when("an edit can't be used, and the operation waits", preparing(), good("- old new -", confirm, unusable("no key")),
		stops(signingToTLS+"no key"), refuses("rotation confirm is refused: "+notAsLeft+signingToTLS+"no key; allowed now: ")),
	when("tls.crt is removed", preparing(), good("- old new -"), stops(signingToTLS+"it is empty")),
	when("the candidate is brought again", preparing(), good("new old new -"), does(Switch)),
	when("the candidate can't be used", preparing(), good(onlyOld, spoilt(candidatePair)), stops("put the CA new back into candidate.crt and "+
		"candidate.key of the Secret, from a backup: no key; without a backup, remove them")),
	when("signing.crt is removed", preparing(), good("old - new -"), stops(tlsToSigning+"old")),
	when("the candidate is also the retiring CA", preparing(), good("old old new new"), stops(removeRetiring+"new"+strangeCA)),
	when("a candidate is gone that this manager made", preparing(), good(onlyOld), waits(candidateBack+"; or run \"rotation rollback\""),
		records("candidate new", "published 2")),
	when("a first candidate is gone that this manager made", firstCA(), good(noKeys), does(MakeCandidate),
		waits("another first CA is made: the key of the CA new is missing from the Secret, and it has issued nothing"), records("candidate none", "generation 3")),
	when("a first candidate is gone that this manager made, and may have begun to sign", with(firstCA(), intends(Switch)), good(noKeys), waits(candidateBack)),
	when("a first candidate is gone that this manager made, and has issued", firstCA(), good(noKeys, func(f *facts) {
		f.Accounts["new"] = ledger.Account{Signers: map[string]time.Time{clientSigner: noon}}
	}), waits(candidateBack)),
	when("a first candidate is gone, and a CA is brought", firstCA(), good("mine - - -"), does(TakeCandidate), records("candidate mine")),
	when("the candidate can't be made", begun(), good(onlyOld, notMade), waits("choose another spec.ca.keyAlgorithm: this manager can't make such a CA: no such algorithm")),
	when("the candidate can't be made, and rollback", begun(), good(onlyOld, notMade, rollBack), enters(v1alpha1.Completed), waits("choose another")),
	when("the first CA can't be made, and one is brought", in(v1alpha1.Preparing, "- - -"), good("mine - - -", notMade), does(TakeCandidate)),
	when("rollback", preparing(), good(both, rollBack), enters(v1alpha1.Completed), does(DropCandidate), records("candidate new")),
	when("rollback, and an edit of tls.crt", preparing(), good("mine old new -", rollBack), enters(v1alpha1.Completed), does(DropCandidate),
		stops(signingToTLS+"a rotation is under way")),
	when("the signer does not know of the cap, and an edit of tls.crt", preparing(), good("mine old new -", unpermitted), does(Permit),
		stops(signingToTLS+"a rotation is under way")),
	when("its owner has thought better of it, and the manager died before the Secret was written",
		with(in(v1alpha1.Preparing, "- mine -"), intends(TakeCandidate)), good("mine - old -"), does(TakeCandidate)),

	when("those who can't be asked", preparing(), good(both), serves(servingSigner), waits("run \"rotation confirm\"")),
	when("confirm", preparing(), good(both, confirm), serves(servingSigner), records("candidate confirmed 12:00")),
	when("confirm before there is anything to trust", preparing(), good(both, confirm, unpublished), serves(servingSigner),
		refuses("not published yet")),
	when("a signer comes after confirm", with(preparing(), confirmed), good(both), serves(servingSigner, "example.com/web"),
		waits("the verifiers of example.com/web trust the candidate")),
	when("all signers are known", with(preparing(), confirmed), good(both), serves(servingSigner, clientSigner), does(Switch),
		records("candidate signers 2")),

	when("the ledger is lost", preparing(), good(both, lostAccount("old")), does(Open), records("signing adopted 12:00")),
	when("the ledger of the candidate is lost", preparing(), good(both, lostAccount("new")), does(Open),
		records("signing adopted never", "candidate adopted 12:00")),

	when("an adopted candidate is gone, and another CA signs", with(preparing(), adoptedNew), good(onlyOld),
		waits(candidateBack+"; or run \"rotation rollback\""), records("candidate new", "published 2")),
	when("an adopted candidate is gone, and another authority's CA is brought", with(preparing(), adoptedNew), good(ownCA, ofOther),
		stops(signingToTLS+"it is a CA of SigningAuthority other")),
	when("an adopted candidate is gone, and confirm", with(preparing(), adoptedNew), good(onlyOld, confirm), refuses("is missing from the Secret")),
	when("an adopted candidate is gone, and its owner goes back", with(preparing(), adoptedNew), good(onlyOld, rollBack),
		enters(v1alpha1.Completed), records("candidate none")),
	when("an adopted candidate is gone, and its owner brings another", with(preparing(), adoptedNew), good(ownCA), does(TakeCandidate),
		records("candidate mine")),
	when("an adopted candidate is gone, and its owner brings what signs with another certificate", with(preparing(), adoptedNew),
		good("mine/old old - -"), stops(signingToTLS+"it has the key of the signing CA, and a rotation needs a new key")),
	when("the candidate is another one", with(preparing(), confirmed), good(otherNew), stops("put the CA new back into candidate.crt and "+
		"candidate.key of the Secret, from a backup: they hold the CA other, which no rotation has put there; without a backup, remove them")),
	when("the candidate is another one, and an operation", preparing(), good(otherNew, rollBack), stops("put the CA new back"),
		refuses("rotation rollback is refused: "+notAsLeft)),
	when("the candidate has retired here, and is from a backup", preparing(), good(otherNew, closed("other")),
		stops(removeCandidate+"other: it has retired here")),
	when("the candidate has ended", preparing(), good("old old ended:new -"), waits("the candidate has expired")),
	when("the candidate signs nothing", preparing(), good("old old new -", unfit), waits("the candidate new cannot sign: not valid")),
	when("a candidate that somebody has put there", in(v1alpha1.Preparing, "old - -"), good(both), records("candidate adopted 12:00")),

	when("rollback to nothing", firstCA(), good(onlyNew, rollBack), refuses("no CA to go back to")),
}

var preparedRows = []row{
	when("outstanding", prepared(), good(switched, outstanding),
		waits("certificates of s from the CA old are valid until 2026-03-01T13:00:00Z"), records("outstanding until 13:00")),
	when("nothing outstanding", prepared(), good(switched), waits("run \"rotation complete\"")),
	when("an API server trusts what is above", prepared(), good(switched, above), waits("remove CN=root from")),

	when("complete with an adopted CA", with(prepared(), adopted), good(switched, complete),
		refuses("rotation complete is refused: certificates that others have issued from the CA old are valid until 2027-03-01T11:00:00Z")),
	when("complete while one does not trust", prepared(), good(switched, complete, untrusted), refuses("10.0.0.7:6443")),
	when("complete while not published, as after a rollback", prepared(), good(switched, complete, unpublished), does(Publish), unanswered),
	when("complete while it can't be published", with(prepared(), intends(Publish)),
		good(switched, complete, unpublished, func(f *facts) { f.Unpublished = []string{"ConfigMap a/b: forbidden"} }),
		refuses("not published; ConfigMap a/b: forbidden")),
	when("the manager's own certificate is of the old CA", prepared(), good(switched, ownCertificate), waits("is of the retiring CA old: renew it")),
	when("complete with that certificate", with(prepared(), accepted), good(switched, ownCertificate, complete), refuses("is of the retiring CA old")),
	when("complete while one trusts what is above", prepared(), good(switched, above, complete), refuses("remove CN=root from")),
	when("complete where nobody is asked to refuse", prepared(), good(switched, above, complete), serves(servingSigner), enters(v1alpha1.Completing)),
	when("complete when both have ended", prepared(), good(switched, complete, untrusted, late), enters(v1alpha1.Completing)),
	when("complete before it has settled", prepared(), good(switched, complete, settling), unanswered,
		waits("rotation complete starts when all API servers have given the same answer for 1m30s: seen once")),
	when("complete before it has settled, and with something outstanding", prepared(), good(switched, complete, settling, outstanding),
		refuses("certificates of s")),

	when("accept", prepared(), good(switched, accept), records("retiring accepted 12:00")),
	when("attest", with(prepared(), adopted), good(switched, attest), records("retiring attested 12:00")),
	when("attest what was not adopted", prepared(), good(switched, attest), refuses("no adopted CA needs it")),

	when("roll back before it has settled", prepared(), good(switched, rollBack, settling), unanswered,
		waits("rotation rollback starts when all API servers have given the same answer for 1m30s: seen once")),
	when("roll back to what is not trusted any more", prepared(), good(switched, rollBack, left), refuses("10.0.0.8:6443")),
	when("roll back to what has ended", prepared(), good(switched, rollBack, late), refuses("the CA old has expired")),
	when("roll back to what signs nothing", prepared(), good(switched, rollBack, unfit), refuses("the CA old cannot sign: not valid")),
	when("roll back while the ledger is closed", prepared(), good(switched, sealed, rollBack), does(Unseal), unanswered),
	when("roll back to what has left what is published", prepared(), good(switched, sealed, unpublished, rollBack), refuses("not published yet")),
	when("roll back twice", with(prepared(), rolledBack), good(switched, rollBack), refuses("signs again already")),
	when("roll back twice, as what signs again has ended", with(prepared(), rolledBack, signsEnded), good(switched, rollBack), does(SwapBack)),
	when("roll back, intent noted, and one has come that does not trust it", with(prepared(), intends(SwapBack)), good(switched, left),
		waits("10.0.0.8:6443"), records("intent SwapBack")),
	when("roll back, intent noted, and an edit", with(prepared(), intends(SwapBack)), good(ownLate),
		does(SwapBack), stops(signingToTLS+"a rotation is under way")),
	when("roll back, and an edit of tls.crt", prepared(), good(ownLate, rollBack), does(SwapBack), stops(signingToTLS+"a rotation is under way")),
	when("complete, and an edit of tls.crt", prepared(), good(ownLate, complete), enters(v1alpha1.Completing),
		stops(signingToTLS+"a rotation is under way")),
	when("a spec that the signer does not know, and an edit of tls.crt", prepared(), good(ownLate, unpermitted), does(Permit),
		stops(signingToTLS+"a rotation is under way")),
	when("roll back, and an edit of candidate.crt too", prepared(), good("mine new other old", rollBack), stops(removeCandidate+"other"+strangeCA),
		refuses(notAsLeft)),
	when("roll back, intent noted, and the key is gone", with(prepared(), intends(SwapBack)), good(oldGone), waits("is missing from the Secret"),
		records("intent ")),
	when("roll back, intent noted, and the CA has ended", with(prepared(), intends(SwapBack)), good(switched, complete, late),
		enters(v1alpha1.Completing)),
	when("complete, and a rollback is noted", with(prepared(), intends(SwapBack)), good(switched, complete),
		refuses("a rollback to the CA old is under way"), records("intent SwapBack")),
	when("rolled back", with(prepared(), intends(SwapBack)), good(back), records("signing old", "retiring new", "intent ")),

	when("the Secret of before the switch is back", prepared(), good(both), stops(signingToRetiring+"old; copy candidate.crt and candidate.key "+
		"to signing.crt and signing.key of the Secret, which must hold the CA new; "+removeCandidate+"new: it has the key of the signing CA, and a rotation needs a new key")),
	when("the Secret of before the switch is back, and signing.crt is copied", prepared(), good("new old - old"), stops(tlsToSigning+"new")),
	when("an edit of tls.crt", prepared(), good(ownLate), stops(signingToTLS+"a rotation is under way")),
	when("the retiring CA is moved to tls.crt", prepared(), good("old new - -"), stops("copy tls.crt and tls.key to retiring.crt and "+
		"retiring.key of the Secret, which must hold the CA old")),
	when("the retiring CA can't be used", prepared(), good(oldGone, spoilt(retiringPair)), stops("put the CA old back into retiring.crt and "+
		"retiring.key of the Secret, from a backup: no key; without a backup, remove them")),
	when("a candidate that no rotation made", prepared(), good("new new other old"), stops(removeCandidate+"other"+strangeCA)),
}

var completingRows = []row{
	when("something was issued before the ledger is closed", completing(false), good(switched, outstanding), enters(v1alpha1.Prepared),
		refuses("rotation complete is stopped"), records("last operation complete Refused false")),
	when("something was issued, and is accepted", with(completing(false), accepted), good(switched, outstanding), does(Seal)),
	when("what was reserved may be issued yet", with(completing(false), accepted), good(switched, sealed, outstanding),
		waits("every signer must learn"), records("closed 12:00", "unpublished never")),
	when("what was reserved may be issued for a second", with(completing(false), accepted, closedFor(ledger.QuietAfter-time.Second)),
		good(switched, sealed, outstanding), waits("every signer must learn")),
	when("what was reserved has ended", with(completing(false), accepted, closedFor(ledger.QuietAfter)), good(switched, sealed, outstanding),
		records("unpublished 12:00", "published 1")),
	when("one still accepts it", completing(true), good(switched, sealed, stillTrusted), waits("10.0.0.9:6443")),
	when("one still accepts it, for a signer that has left", completing(true),
		good(switched, sealed, stillTrusted, issued(clientSigner, -time.Hour)), serves(servingSigner),
		waits("10.0.0.9:6443")),
	when("nobody was asked whether they refuse", completing(true), good(switched, sealed, func(f *facts) { f.RetiringRefused = probe.Proof{} }),
		waits("not every API server was probed yet")),
	when("a CA that has ended proves nothing", completing(true), good(switched, sealed, late, stillTrusted), does(DestroyRetiring)),
	when("destroyed", with(completing(true), intends(DestroyRetiring)), good(oldGone, sealed), enters(v1alpha1.Completed),
		records("retiring none", "last retired old", "unpublished never", "last completed 12:00")),
	when("another CA is in the place of what retires, which API servers refuse of course", completing(true), good("new new - older", sealed),
		stops("put the CA old back into retiring.crt and retiring.key of the Secret, from a backup: they hold the CA older")),
	when("an edit of tls.crt", completing(true), good(ownLate, sealed), does(DestroyRetiring), stops(signingToTLS+"a rotation is under way")),
	when("an edit of tls.crt, and one still accepts it", completing(true), good(ownLate, sealed, stillTrusted),
		stops(signingToTLS+"a rotation is under way"), waits("10.0.0.9:6443")),
	when("a spec that the signer does not know", completing(true), good(switched, sealed, unpermitted), does(Permit)),
	when("the ledger was opened by who led before", completing(true), good(switched), does(Seal)),
}

var completedRows = []row{
	when("a signer comes whose verifiers are not known", completed(), good(onlyOld), serves(servingSigner, kubeletSigner),
		waits("the CA old does not sign for kubernetes.io/kubelet-serving")),
	when("a signer comes whose verifiers are", completed(), good(onlyOld), serves(clientSigner), rotates(time.Hour)),
	when("start, and the CA can't be made", completed(), good(onlyOld, start, notMade), enters(v1alpha1.Preparing)),
	when("start", completed(), good(onlyOld, start), begins(MakeCandidate),
		records("generation 3", "initiated 12:00", "last operation start Accepted true")),
	when("nonsense", completed(), good(onlyOld, asked("rotate-now")),
		refuses("rotation rotate-now is refused: the phase is Completed; allowed now: rotation start"),
		records("last operation rotate-now Refused true")),
	when("an operation already taken", with(completed(), startTaken), good(onlyOld, start)),
	when("an operation already taken, whose annotation is gone", with(completed(), startTaken), good(onlyOld),
		records("last operation start Accepted false")),
	when("one retires that nobody noted", completed(), good(back), stops(removeRetiring+"new"+strangeCA)),
	when("a copy of what signs retires", completed(), good("old old - again/old"), stops(removeRetiring+"old")),
	when("a candidate that no rotation made", completed(), good(otherNew), stops(removeCandidate+"other"+strangeCA)),
	when("what signs can't be used", completed(), good("old - - -", spoilt(signingPair)), stops(tlsToSigning+"old")),
	when("what signs can't be used, and there is no copy", completed(), good(noKeys, spoilt(signingPair)), stops(signingBack+"no key")),
	when("a candidate that no rotation made can't be used", completed(), good(onlyOld, spoilt(candidatePair)),
		stops("remove candidate.crt and candidate.key from the Secret, or restore them from a backup: no key")),
	when("a candidate that was rolled back", wasRolledBack(), good(both), does(DropCandidate)),
	when("a candidate that was rolled back, and an edit of tls.crt", wasRolledBack(), good("- old new -", unusable("no key")), does(DropCandidate)),
	when("a candidate was rolled back, and is dropped", wasRolledBack(), good(onlyOld), records("intent ", "candidate none")),
	when("a candidate was rolled back, and its place has the only copy of what signs", wasRolledBack(), good("- - old -"),
		stops("copy candidate.crt and candidate.key to signing.crt and signing.key of the Secret, which must hold the CA old"), records("candidate none")),
	when("a candidate was rolled back, and its place has another CA", wasRolledBack(), good(otherNew), stops(removeCandidate+"other"+strangeCA)),
	when("a spec that the signer does not know, and an edit of tls.crt", completed(), good("- old - -", unusable("no key"), unpermitted), does(Permit),
		stops(signingToTLS+"no key")),
	when("an owner's CA", completed(), good(ownCA), begins(TakeCandidate),
		records("candidate mine", "candidate adopted 12:00", "candidate confirmed never")),
	when("an owner's CA with the same key", completed(), good("mine/old old - -"), stops(signingToTLS+"it has the key of the signing CA")),
	when("an owner's CA that has retired here", completed(), good(ownCA, closed("mine")), stops(signingToTLS+"it has retired here")),
	when("an owner's CA that is another authority's", completed(), good(ownCA, ofOther),
		stops(signingToTLS+"it is a CA of SigningAuthority other")),
	when("an owner's CA that has ended", completed(), good("ended:mine old - -"), stops(signingToTLS+"it has expired")),
	when("an owner's CA that can't be used", completed(), good("- old - -", unusable("no key")), stops(signingToTLS+"no key")),
	when("what has retired last comes back to a lost ledger", with(completed(), mineRetired),
		good(ownCA), stops(signingToTLS+"it has retired here")),
	when("another Secret is back, and what signs", completed(), good("old older - -"), stops(tlsToSigning+"old")),
	when("what signs is moved to another pair", completed(), good("- - - old"), stops("copy retiring.crt and retiring.key to signing.crt and "+
		"signing.key of the Secret, which must hold the CA old; "+removeRetiring+"old"+strangeCA)),
	when("the ledger was closed by who led before", completed(), good(onlyOld, sealed), does(Unseal)),
	when("due at the very end of rotateAfter", with(completed(), since(24*time.Hour)), good(onlyOld), rotates(24*time.Hour), begins(MakeCandidate)),
	when("not due yet", with(completed(), since(23*time.Hour)), good(onlyOld), rotates(24*time.Hour)),
}

// lostRows have a signing pair that is missing from the Secret. Its certificates stay trusted, it signs again as soon
// as it is back, and without a backup the rotation can still continue.
var lostRows = []row{
	when("the Secret is gone", completed(), good(noKeys), waits("from a backup: its key is missing; without a backup, run \"rotation start\"")),
	when("no backup, and an owner's CA", completed(), good("mine - - -"), begins(TakeCandidate),
		records("signing old", "candidate mine", "candidate confirmed never")),
	when("a backup that is too old", completed(), good("older - - -", closed("older")), stops(correctTLS+"it has retired here")),
	when("a backup of tls.crt only", completed(), good("old - - -"), stops(tlsToSigning+"old")),
	when("started beside a backup that is too old", completed(), good(strange, closed("older"), start),
		refuses("rotation start is refused: "+notAsLeft+"put the CA old back"), stops(signingBack+"they hold the CA older, which no rotation "+
			"has put there; without a backup, remove them")),
	when("started beside a backup of when it was the candidate", completed(), good("- - old -", start), refuses(notAsLeft+"copy candidate.crt"),
		stops("copy candidate.crt and candidate.key to signing.crt and signing.key of the Secret, which must hold the CA old")),
	when("a backup of before the switch", prepared(), good(onlyOld), stops(signingToRetiring+"old; put the CA new back into signing.crt")),
	when("a backup of before the switch, and signing.crt is moved", prepared(), good("old - - old"),
		waits("run \"rotation rollback\" to sign with the retiring CA")),
	when("lost, and an owner's CA instead of the candidate", preparing(), good("mine - new -"), does(TakeCandidate), records("candidate mine")),
	when("lost while prepared, and complete", prepared(), good(onlyLeft, complete),
		refuses("put it back, or run \"rotation rollback\" to sign with the CA old")),
	when("rolled back without what was lost", with(prepared(), intends(SwapBack)), good(onlyOld), records("signing old", "retiring new")),
	when("a CA that is brought is lost before it signs", with(firstCA(), adoptedNew), good(noKeys), waits(candidateBack), records("published 1")),
	when("a CA that is brought is lost before it signs, and rolled back", with(firstCA(), adoptedNew), good(noKeys, rollBack),
		refuses("is missing from the Secret")),
	when("the key is lost, and API servers publish the CA", completing(true), good(oldGone, sealed, kept), does(Prune)),
	when("the key is lost, and API servers may publish the CA again", completing(true), good(oldGone, sealed),
		waits("must not publish the retiring CA old again for 1m30s, until ")),
	when("the key is lost, and API servers do not publish the CA again", with(completing(true), pruned), good(oldGone, sealed),
		does(DestroyRetiring)),
	when("lost while completing", completing(true), good(onlyLeft, sealed),
		waits("without a backup, remove retiring.crt and retiring.key from the Secret to continue")),
}

// renewRows give the signing CA a certificate that ends later, made here or brought.
var renewRows = []row{
	when("renew", completed(), good(onlyOld, renewal), does(MakeRenewed), records("last operation renew-certificate Accepted true", "generation 2")),
	when("renew, and the manager died before the Secret was written", with(completed(), intends(MakeRenewed)), good(onlyOld), does(MakeRenewed)),
	when("renew, and it became impossible", with(completed(), intends(MakeRenewed)), good(onlyOld, notRenewable), records("intent ")),
	when("renew, and an edit of tls.crt before the Secret was written", with(completed(), intends(MakeRenewed)), good("- old - -", unusable("no key"), unpermitted),
		does(Permit), stops(signingToTLS+"no key")),
	when("renew what the manager can't", completed(), good(onlyOld, renewal, notRenewable),
		refuses("rotation renew-certificate is refused: only its issuer can; allowed now: ")),
	when("renew in another phase", prepared(), good(switched, renewal), refuses("rotation renew-certificate is refused: the phase is Prepared")),
	when("renew twice", renewing(), good(later, renewed, renewal), refuses("a renewed certificate is being published")),
	when("start, and it became impossible", with(completed(), intends(MakeRenewed)), good(onlyOld, start, notRenewable), begins(MakeCandidate)),
	when("start, and the key is lost while it is made", with(completed(), intends(MakeRenewed)), good(noKeys, start, notRenewable), begins(MakeCandidate)),
	when("start while it is published", renewing(), good(later, renewed, start), refuses("wait until it signs, or drop it: copy signing.crt")),
	when("attest while it is published", renewing(), good(later, renewed, attest), records("signing attested 12:00", "renewed later")),
	when("due while it is published", with(renewing(), since(24*time.Hour)), good(later, renewed, seen), rotates(24*time.Hour), does(TakeRenewed)),

	when("it is there", completed(), good(later, renewed), records("renewed later", "published 2")),
	when("its begin is noted", with(completed(), intends(MakeRenewed)), good(later, renewed), records("renewed later", "intent ")),
	when("it is not published", renewing(), good(later, renewed, unpublished), does(Publish), records("published 3")),
	when("no API server has it", renewing(), good(later, renewed), waits("no API server publishes the renewed certificate")),
	when("an API server has it", renewing(), good(later, seen), does(TakeRenewed)),
	when("no API server is asked", renewing(), good(later, renewed), serves(servingSigner), does(TakeRenewed),
		waits("the CA old does not sign for kubernetes.io/kubelet-serving")),
	when("it is not valid yet", renewing(), good(later, seen, unfitLater), waits("the renewed certificate cannot sign: not valid")),
	when("it signs", with(renewing(), intends(TakeRenewed)), good(renewedCA), records("signing later", "renewed none",
		"signing earlier old", "signing earlier older", "signing with earlier 2", "signing adopted 12:00", "signing signers 1", "generation 2", "published 3", "intent ")),
	when("it signs, and there are many", with(renewing(), manyEarlier), good(renewedCA), records("signing with earlier 8", "signing earlier old")),
	when("an earlier one ends", with(renewing(), func(s *saStatus) { s.Signing.Earlier[0].NotAfter = *at(0) }), good(later, renewed),
		records("signing with earlier 0", "published 2"), waits("no API server publishes")),

	when("its owner drops it", renewing(), good(onlyOld), records("renewed none", "published 2")),
	when("its owner brings a later one", renewing(), good("last/old old - -", renewed), records("renewed last")),
	when("its owner brings another CA", renewing(), good(ownCA), records("renewed none")),
	when("its owner brings what is no renewal", renewing(), good("mine/old old - -"), stops(signingToTLS+"it has the key of the signing CA"), records("renewed later")),
	when("it has ended", renewing(), good("ended:later/old old - -", renewed), stops(signingToTLS+"it has expired")),
	when("it is brought during a rotation", preparing(), good("later/old old new -"), stops(signingToTLS+"a rotation is under way")),
	when("it is brought as the candidate", completed(), good("later/old old later/old -", renewed), stops(removeCandidate+"old"+strangeCA)),
	when("a backup of before it", with(completed(), func(s *saStatus) { s.Signing.Fingerprint = "later" }), good(onlyOld),
		stops("put status.signing.certificate of the SigningAuthority into signing.crt of the Secret, and the key of signing.key into signing.key: "+
			"they must hold the CA old with its newest certificate")),
	when("the key is only in tls.key, with another certificate", completed(), good("later/old - - -"),
		stops("put status.signing.certificate of the SigningAuthority into signing.crt of the Secret, and the key of tls.key into signing.key")),
	when("the CA retires, and its earlier certificates leave", with(completing(true), func(s *saStatus) { s.Retiring.Earlier = renewing().Signing.Earlier }),
		good(switched, sealed, stillTrusted), waits("10.0.0.9:6443"), records("published 1")),
	when("the CA retires with its earlier certificates", with(prepared(), func(s *saStatus) { s.Retiring.Earlier = renewing().Signing.Earlier }),
		good(switched), waits("run \"rotation complete\""), records("published 3")),
	when("the CA is gone with its earlier certificates", with(completing(true), intends(DestroyRetiring), func(s *saStatus) {
		s.Retiring.Earlier = renewing().Signing.Earlier
	}), good(oldGone, sealed), enters(v1alpha1.Completed), records("last retired with earlier 0")),
}

func TestNext(t *testing.T) {
	for _, row := range slices.Concat(newRows, preparingRows, preparedRows, completingRows, completedRows, renewRows, lostRows) {
		t.Run(row.name, func(t *testing.T) {
			before := row.state.DeepCopy()
			step := next(&row.spec, &row.state, row.facts)
			expect.True(t, equality.Semantic.DeepEqual(row.state, *before), "next has changed its argument")
			if step.Status.Phase != row.phase || step.Action != row.action || step.Status.Answered() != row.take {
				t.Errorf("got phase %q action %q answered %t, want %q %q %t",
					step.Status.Phase, step.Action, step.Status.Answered(), row.phase, row.action, row.take)
			}
			said(t, "waits for", strings.Join(step.Status.WaitingFor, "; "), row.waits)
			said(t, "refuses", step.Refused, row.refused)
			said(t, "stops", step.Stopped, row.stops)
			expect.True(t, row.action == None || step.Status.Intent == string(row.action),
				"intent %q is noted before %s", step.Status.Intent, row.action)
			read := stored(t, row, step)
			for _, part := range row.records {
				got := summary(&read)
				expect.True(t, slices.Contains(got, part), "want %q, got %q", part, got)
			}
		})
	}
}

// stored checks that an API server stores the status of step and returns it unchanged, and that its lists are bounded. It
// returns that status.
func stored(t *testing.T, row row, step step) saStatus {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{Spec: row.spec, Status: step.Status}
	obj.Status.WaitingFor = append(obj.Status.WaitingFor, slices.Repeat([]string{"more"}, 40)...)
	row.facts.Now = row.facts.Now.Truncate(time.Second) // for the conditions
	describe(obj, step.Stopped, row.facts)
	read := saStatus{}
	data, err := json.Marshal(obj.Status)
	if err := errors.Join(err, json.Unmarshal(data, &read)); err != nil || !equality.Semantic.DeepEqual(obj.Status, read) {
		t.Errorf("stored %+v, and read %+v, error %v", obj.Status, read, err)
	}
	expect.True(t, len(read.WaitingFor) == 21, "waits for %d things", len(read.WaitingFor))
	return read
}

func said(t *testing.T, what, got, want string) {
	t.Helper()
	expect.True(t, (want == "") == (got == "") && strings.Contains(got, want), "%s %q, want %q", what, got, want)
}

// TestAPIKnowsTheVerifiedSigners checks that the API lets an authority add exactly the signers with whose certificates
// clients authenticate to API servers: whoever trusts the CA for one of them trusts it for all.
func TestAPIKnowsTheVerifiedSigners(t *testing.T) {
	source, err := os.ReadFile("../../api/v1alpha1/spec.go")
	expect.NoError(t, err)
	signers := slices.DeleteFunc(csr.BuiltinSigners(), func(name string) bool { return !csr.VerifiedByAPIServers(name) })
	list := "['" + strings.Join(signers, "', '") + "']"
	found := strings.Count(string(source), " in "+list)
	expect.True(t, found == 2, "the rule of Signers names %s %d times, want 2: bring the rule up to date, and run make generate", list, found)
}
