package rotation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// bits hands out decisions from fuzzed bytes. After the last byte, all of them are zero.
type bits []byte

func (b *bits) below(n int) int {
	if len(*b) == 0 {
		return 0
	}
	value := int((*b)[0]) % n
	*b = (*b)[1:]
	return value
}

func (b *bits) yes() bool { return b.below(2) == 1 }

// pick returns one of all, or the zero value.
func pick[T any](b *bits, all ...T) T {
	var zero T
	return append([]T{zero}, all...)[b.below(len(all)+1)]
}

// instant returns a time around noon, or nil.
func (b *bits) instant() *metav1.Time {
	return pick(b, at(0), at(-2*time.Hour), at(9000*time.Hour))
}

var fuzzedSigners = []string{clientSigner, servingSigner, "example.com/a"}

func (b *bits) signers() []string {
	var names []string
	for _, name := range fuzzedSigners {
		if b.yes() {
			names = append(names, name)
		}
	}
	return names
}

// ca returns a CA as a status describes it.
func (b *bits) ca(name string) *v1alpha1.CAStatus {
	authority := fact(name)
	if !b.usually() {
		authority.NotAfter = *at(-time.Minute)
	}
	authority.Generation, authority.Signers = int64(b.below(3)), b.signers()
	authority.SignsSince, authority.AdoptedAt, authority.AttestedAt = b.instant(), b.instant(), b.instant()
	authority.TrustConfirmedAt, authority.OutstandingAcceptedAt = b.instant(), b.instant()
	return authority
}

// status returns a status that some sequence of steps could have stored: it has the CAs of its phase.
func (b *bits) status() *saStatus {
	s := &saStatus{Phase: pick(b, v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed, "Other")}
	rotated := s.Phase == v1alpha1.Prepared || s.Phase == v1alpha1.Completing
	if rotated || s.Phase == v1alpha1.Completed || s.Phase == v1alpha1.Preparing && b.yes() {
		s.Signing = b.ca("old")
	}
	if s.Phase == v1alpha1.Preparing && b.usually() {
		s.Candidate = b.ca("new")
	}
	if rotated {
		s.Retiring = b.ca("gone")
	}
	s.Intent = pick(b, string(SwapBack), string(DestroyRetiring), string(Publish), string(MakeCandidate), "Other")
	s.LastOperation = pick(b, nil, &v1alpha1.OperationStatus{Name: v1alpha1.OperationStart, Annotated: b.yes()})
	if s.Phase == v1alpha1.Completing {
		s.UnpublishedAt = b.instant()
	}
	s.LedgerClosedAt, s.PrunedAt = b.instant(), b.instant()
	return s
}

// usually returns true for zero, and for three of four other values: most facts are as they should be.
func (b *bits) usually() bool { return b.below(4) < 3 }

func (b *bits) proof() Proof {
	return Proof{Proven: b.usually(), Settling: b.yes(), Missing: pick(b, []string{"10.0.0.7:6443"}, slices.Repeat([]string{"a"}, 40))}
}

func (b *bits) facts(s *saStatus) Facts {
	in := func(own *v1alpha1.CAStatus) *v1alpha1.CAStatus {
		if b.usually() {
			return own.DeepCopy()
		}
		return pick(b, s.Signing, s.Candidate, s.Retiring, fact("else")).DeepCopy()
	}
	f := Facts{
		Now: noon.Add(time.Duration(b.below(3)) * 400 * time.Millisecond), Name: "cluster", Permitted: b.usually(), Published: b.usually(),
		SettleFor: time.Minute,
		Operation: pick(b, "", "", "", "", v1alpha1.OperationStart, v1alpha1.OperationComplete, v1alpha1.OperationRollback, v1alpha1.OperationConfirm,
			v1alpha1.OperationAccept, v1alpha1.OperationAttest, "other"),
		Secret: SecretFacts{
			TLS: in(s.Signing), Signing: in(s.Signing), Candidate: in(s.Candidate), Retiring: in(s.Retiring), PermittedSigners: b.signers(),
		},
		Others: map[string]string{pick(b, "", "else"): "other"}, Unpublished: pick(b, []string{"ConfigMap a/b is not up to date"}),
		RetiringSigners: b.signers(), Sealed: b.usually(), RetiringOpen: !b.usually(), TLSRetired: !b.usually(),
	}
	f.Answers = Answers{
		Candidate: b.proof(), Signing: b.proof(), RetiringTrusted: b.proof(), RetiringRefused: b.proof(),
		Above: pick(b, []string{"root"}), Kept: b.yes(),
	}
	f.SigningSealed = !b.usually() && f.Secret.Signing != nil
	f.CandidateRetired = !b.usually() && f.Secret.Candidate != nil
	f.SigningUnaccounted = !b.usually() && v1alpha1.SameCA(f.Secret.Signing, s.Signing)
	f.CandidateUnaccounted = !b.usually() && v1alpha1.SameCA(f.Secret.Candidate, s.Candidate)
	for range b.below(4) {
		f.Outstanding = append(f.Outstanding, v1alpha1.Outstanding{
			Signer: pick(b, fuzzedSigners...), Until: *at(time.Duration(b.below(4)-1) * time.Hour),
		})
	}
	return f
}

// FuzzNext decides about any status with any facts, also contradictory ones. Whatever they are, no CA may sign before
// its verifiers trust it, no CA may leave the trust bundle while its certificates are in use, and no key may be
// destroyed early. The status must survive its JSON form, and its texts must fit.
func FuzzNext(f *testing.F) {
	for phase := range byte(6) {
		f.Add([]byte{phase}, uint8(1))
		f.Add([]byte{phase, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 2}, uint8(7))
		twos := []byte{phase, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1, 3, 3, 3, 1, 2, 2, 2}
		f.Add(append(twos, bytes.Repeat([]byte{1}, 12)...), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, signers uint8) { decide(t, data, signers, tally{}) })
}

// TestNextIsSafe decides as FuzzNext about random states, and checks that each dangerous action is among the steps.
func TestNextIsSafe(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	data, taken, checked := make([]byte, 120), map[Action]int{}, tally{}
	missing := func() (what []string) {
		for _, action := range []Action{Switch, SwapBack, DestroyRetiring, Seal, Unseal, Prune, Publish, RestoreSigning} {
			if taken[action] == 0 {
				what = append(what, fmt.Sprint(action))
			}
		}
		for _, check := range []string{"switch", "swap back", "destroy", "destroy after proof", "unpublish", "unpublish in use"} {
			if checked[check] == 0 {
				what = append(what, "the check of "+check)
			}
		}
		return what
	}
	for n := 0; n < 20_000/slower || n < 20_000 && len(missing()) > 0; n++ {
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		if taken[decide(t, data, uint8(random.Uint32()), checked)]++; t.Failed() {
			t.Fatalf("%v", data)
		}
	}
	if never := missing(); len(never) > 0 {
		t.Errorf("never happens: %q; %v, %v", never, taken, checked)
	}
}

// tally counts how often each check applies.
type tally map[string]int

// decide makes one step from the state that data describes, checks it, and returns its action.
func decide(t *testing.T, data []byte, signers uint8, checked tally) Action {
	t.Helper()
	b := bits(data)
	spec := &v1alpha1.SigningAuthoritySpec{}
	for i, name := range fuzzedSigners {
		if signers&(1<<i) != 0 {
			spec.Signers = append(spec.Signers, name)
		}
	}
	if signers&8 != 0 {
		spec.RotateAfter = &metav1.Duration{Duration: 90 * time.Minute}
	}
	status := b.status()
	facts := b.facts(status)
	before := status.DeepCopy()
	step := Next(spec, status, facts)
	if !equality.Semantic.DeepEqual(before, status) {
		t.Fatalf("Next has changed the status: %+v, was %+v", status, before)
	}
	if again := Next(spec, status, facts); !equality.Semantic.DeepEqual(step, again) {
		t.Errorf("decides %+v, and then %+v", step, again)
	}
	checkSafe(t, spec, before, facts, step, checked)
	checkStored(t, spec, facts, step)
	return step.Action
}

// checkSafe checks what no step may do. It states the rules in its own words, without the functions of Next. checked
// counts how often each rule applies.
func checkSafe(t *testing.T, spec *v1alpha1.SigningAuthoritySpec, before *saStatus, f Facts, step Step, checked tally) {
	t.Helper()
	s := &step.Status
	switch step.Action {
	case Switch:
		checked["switch"]++
		there, noted := f.Secret.Candidate, before.Candidate
		if !f.Published || !f.Permitted || there == nil || noted == nil || there.Fingerprint != noted.Fingerprint ||
			forAPIServers(spec.Signers) && !f.Candidate.Proven || unconfirmed(spec.Signers, noted) {
			t.Errorf("signs with a CA that its verifiers do not trust: %+v", step)
		}
	case SwapBack:
		checked["swap back"]++
		if forAPIServers(spec.Signers) && !f.RetiringTrusted.Proven {
			t.Errorf("goes back to a CA that API servers do not trust: %+v", step)
		}
	case DestroyRetiring:
		checked["destroy"]++
		if before.Phase != v1alpha1.Completing || before.UnpublishedAt == nil || !f.Published || f.RetiringOpen {
			t.Errorf("destroys a key early: %+v", step)
		}
		provable := s.Retiring != nil && f.Now.Before(s.Retiring.NotAfter.Time) &&
			(forAPIServers(spec.Signers) || forAPIServers(f.RetiringSigners))
		if !provable || f.Secret.Retiring == nil {
			break
		}
		if checked["destroy after proof"]++; !f.RetiringRefused.Proven || f.Kept {
			t.Errorf("destroys the key of a CA that API servers accept: %+v", step)
		}
	}
	if before.UnpublishedAt == nil && s.UnpublishedAt != nil {
		checked["unpublish"]++
		quiet := s.LedgerClosedAt != nil && f.Now.Sub(s.LedgerClosedAt.Time) >= ledger.QuietAfter
		inUse := certificatesInUse(s.Retiring, f)
		if inUse {
			checked["unpublish in use"]++
		}
		if !f.Sealed || inUse && (s.Retiring.OutstandingAcceptedAt == nil || !quiet) {
			t.Errorf("unpublishes a CA whose certificates are in use: %+v", step)
		}
	}
	var bundle []*v1alpha1.CAStatus
	for _, ca := range []*v1alpha1.CAStatus{s.Candidate, s.Signing, s.Retiring} {
		if ca != nil && (ca != s.Retiring || s.UnpublishedAt == nil) {
			bundle = append(bundle, ca)
		}
	}
	if got := Trusted(s); !slices.Equal(got, bundle) {
		t.Errorf("the trust bundle has %+v, want %+v: %+v", got, bundle, step)
	}
}

// forAPIServers reports whether API servers verify certificates of signers. Of the fuzzed signers, this is only the
// client signer.
func forAPIServers(signers []string) bool {
	return slices.Contains(signers, clientSigner)
}

// unconfirmed reports whether the administrator has not confirmed the trust in ca for one of signers that no probe covers.
func unconfirmed(signers []string, ca *v1alpha1.CAStatus) bool {
	return slices.ContainsFunc(signers, func(name string) bool { return name != clientSigner && !slices.Contains(ca.Signers, name) })
}

// certificatesInUse reports whether a certificate of retiring may be valid: one in the ledger, or one that another program
// has issued up to a year before the adoption.
func certificatesInUse(retiring *v1alpha1.CAStatus, f Facts) bool {
	if !f.Now.Before(retiring.NotAfter.Time) {
		return false
	}
	if slices.ContainsFunc(f.Outstanding, func(part v1alpha1.Outstanding) bool { return f.Now.Before(part.Until.Time) }) {
		return true
	}
	const year = 8760 * time.Hour // no fuzzed spec sets another lifetime
	return retiring.AdoptedAt != nil && retiring.AttestedAt == nil && f.Now.Sub(retiring.AdoptedAt.Time) < year
}

var reason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`) // metav1.Condition

// checkStored checks that an API server stores the status and returns it unchanged.
func checkStored(t *testing.T, spec *v1alpha1.SigningAuthoritySpec, f Facts, step Step) {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{Spec: *spec, Status: step.Status}
	describe(obj, f)
	data, err := json.Marshal(obj.Status)
	if err != nil {
		t.Fatal(err)
	}
	var read saStatus
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	for _, condition := range obj.Status.Conditions {
		if len(condition.Message) > 32768 || len(condition.Reason) > 1024 || !reason.MatchString(condition.Reason) {
			t.Errorf("condition %s: reason %q, message of %d bytes", condition.Type, condition.Reason, len(condition.Message))
		}
	}
	// Conditions take the time of the facts, which a status cuts to seconds.
	for _, conditions := range [][]metav1.Condition{obj.Status.Conditions, read.Conditions} {
		for i := range conditions {
			conditions[i].LastTransitionTime = metav1.Time{}
		}
	}
	if !equality.Semantic.DeepEqual(obj.Status, read) {
		t.Errorf("stored %+v, and read %+v", obj.Status, read)
	}
	var until *metav1.Time
	for _, part := range obj.Status.Outstanding {
		if until == nil || until.Before(&part.Until) {
			until = &part.Until
		}
	}
	if len(obj.Status.WaitingFor) > maxListed+1 || !until.Equal(obj.Status.OutstandingUntil) {
		t.Errorf("waits for %d things; outstanding until %s, want %s", len(obj.Status.WaitingFor), obj.Status.OutstandingUntil, until)
	}
}
