package rotation

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// world is one authority in memory: its Secret, what it publishes, its ledger, and signers that see the Secret late. Its rules
// are those of the real parts; what is tried with it is Next, turn, and the order of notes and acts.
type world struct {
	*cluster
	name   string
	spec   v1alpha1.SigningAuthoritySpec
	status v1alpha1.SigningAuthorityStatus
	began  []string // the signers at first
	// operation is the annotation; asked counts them, and heard is the last one that was followed or refused.
	operation    v1alpha1.Operation
	asked, heard int
	ring         keypair.Ring
	backups      []keypair.Ring
	published    []string
	ledger       accounts
	signers      []*signer
	issued       []certificate
	recorded     int // so many of issued were seen by who notes them
	streaks      map[string]streak
	refused      []string
	taken        []Action
	// promises are what is excused, by what the owner has said or done.
	promises
	wrong string
}

const (
	between  = 18 * time.Second // two looks
	patience = 3 * between      // what is asked again later counts anew
	oldCap   = 24 * time.Hour
)

func (c *cluster) world(name string, signers ...string) *world {
	w := &world{
		cluster: c, name: name, began: signers, spec: v1alpha1.SigningAuthoritySpec{Signers: signers},
		ledger: accounts{}, streaks: map[string]streak{}, signers: []*signer{newSigner(), newSigner()},
		promises: newPromises(),
	}
	w.spec.Lifetimes.Adopted = &metav1.Duration{Duration: adoptedFor}
	c.worlds = append(c.worlds, w)
	return w
}

// garbage can't be used.
var garbage = keypair.Pair{Cert: []byte("garbage"), Key: []byte("garbage")}

func (c *cluster) facts(pair keypair.Pair) *v1alpha1.CAStatus {
	if pair.Empty() || pair.Equal(garbage) {
		return nil
	}
	name := string(pair.Cert)
	return &v1alpha1.CAStatus{KeyID: name, Fingerprint: name, Certificate: name, NotAfter: metav1.NewTime(c.ends[name])}
}

// bundle is what is to be published: see wanted.
func (w *world) bundle() []string {
	var names, ended []string
	for _, one := range Trusted(&w.status) {
		if slices.Contains(names, one.Certificate) {
			continue
		}
		if ended = append(ended, one.Certificate); w.alive(one.Certificate) {
			names = append(names, one.Certificate)
		}
	}
	if len(names) == 0 {
		return ended
	}
	return names
}

func (w *world) permit(action Action) keypair.Permit {
	return keypair.Permit{Authority: w.name, Signers: permittedSigners(&w.spec, &w.status, action), LifetimeCap: oldCap}
}

// look is Reconciler.look.
func (w *world) look() Facts {
	f := Facts{Now: w.now, Operation: w.operation, Published: true, SettleFor: between, Permitted: w.ring.Signing.Empty()}
	f.Secret = SecretFacts{TLS: w.facts(w.ring.TLS), Signing: w.facts(w.ring.Signing), Candidate: w.facts(w.ring.Candidate), Retiring: w.facts(w.ring.Retiring)}
	if told, err := editSecret(w.ring, Permit, keypair.Pair{}, w.permit(Permit)); err == nil && w.ring.Permit.Equal(told.Permit) {
		f.Permitted = true
	}
	f.Secret.PermittedSigners = w.ring.Permit.Signers
	if w.ring.TLS.Equal(garbage) {
		f.Secret.TLSProblem = "garbage"
	}
	w.others(&f)
	w.readLedger(&f)
	if len(Trusted(&w.status)) > 0 {
		f.Published = slices.Equal(w.published, w.bundle())
	}
	w.askServers(&f)
	if w.status.Retiring != nil && w.status.UnpublishedAt != nil && len(f.Sharing) == 0 && askedToRefuse(w.spec.Signers, f) {
		retiring := w.status.Retiring.Certificate
		f.Kept = slices.Contains(w.kept, retiring) && w.alive(retiring)
		if f.Holding = make([]string, w.accepted(w.aggregated, retiring)); len(f.Holding) > 0 {
			w.seen["an aggregated API server holds what retires"]++
		}
	}
	return f
}

func (w *world) object() *v1alpha1.SigningAuthority {
	return &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: w.spec, Status: w.status}
}

// others is Reconciler.others.
func (w *world) others(f *Facts) {
	for _, other := range w.worlds {
		if other == w {
			continue
		}
		if other.name == w.spec.From && other.status.Signing != nil {
			f.From = other.status.Signing
		}
		if requiresTrust(other.object(), w.status.Retiring) {
			f.Sharing = append(f.Sharing, other.name)
		}
	}
}

// readLedger is Reconciler.readLedger.
func (w *world) readLedger(f *Facts) {
	w.record()
	if f.Secret.TLS != nil {
		f.TLSRetired = w.ledger.sealed(f.Secret.TLS.KeyID) && !sameCA(f.Secret.TLS, f.Secret.Signing) && !sameCA(f.Secret.TLS, f.Secret.Retiring)
	}
	if f.Secret.Candidate != nil {
		f.CandidateUnaccounted, f.CandidateRetired = w.ledger[f.Secret.Candidate.KeyID] == nil && sameCA(f.Secret.Candidate, w.status.Candidate), w.ledger.sealed(f.Secret.Candidate.KeyID)
	}
	if f.Secret.Signing != nil {
		f.SigningUnaccounted = w.ledger[f.Secret.Signing.KeyID] == nil && sameCA(f.Secret.Signing, w.status.Signing)
		f.SigningSealed = w.ledger.sealed(f.Secret.Signing.KeyID)
	}
	retiring := w.status.Retiring
	if retiring == nil {
		f.Sealed = f.Secret.Retiring != nil && w.ledger.sealed(f.Secret.Retiring.KeyID)
		return
	}
	account, found := w.ledger[retiring.KeyID]
	if !found {
		f.Outstanding = append(f.Outstanding, v1alpha1.Outstanding{Signer: anySigner, Until: retiring.NotAfter})
		account = &ledger.Account{}
	}
	f.Sealed, f.RetiringOpen, f.RetiringSigners = account.Sealed, found && !account.Sealed, account.SignerNames()
	for _, signer := range f.RetiringSigners {
		issued := account.Signers[signer]
		f.Outstanding = append(f.Outstanding, v1alpha1.Outstanding{Signer: signer, Count: int64(issued.Count), Until: metav1.NewTime(issued.NotAfter)})
	}
}

// The questions that API servers are asked.
const trusts, refuses = "trusts", "refuses"

// streak is how often all API servers have given an answer without a break: see probe.Tracker.
type streak struct {
	last           time.Time
	servers, looks int
}

// askServers is Reconciler.ask, and askings.
func (w *world) askServers(f *Facts) {
	before := w.streaks
	w.streaks = map[string]streak{}
	if !AsksAPIServers(w.spec.Signers) && (w.status.UnpublishedAt == nil || !askedToRefuse(w.spec.Signers, *f)) {
		return
	}
	add := func(what string, pair keypair.Pair, proof *Proof) {
		if !pair.Empty() {
			w.streaks[what+string(pair.Cert)], *proof = w.prove(before[what+string(pair.Cert)], what, string(pair.Cert))
		}
	}
	switch w.status.Phase {
	case v1alpha1.Preparing:
		add(trusts, w.ring.Candidate, &f.Candidate)
		add(trusts, w.ring.Signing, &f.Signing)
	case v1alpha1.Prepared:
		add(trusts, w.ring.Signing, &f.Signing)
		add(trusts, w.ring.Retiring, &f.RetiringTrusted)
	case v1alpha1.Completing:
		if w.status.UnpublishedAt != nil && len(f.Sharing) == 0 && !w.ring.Signing.Empty() {
			add(refuses, w.ring.Retiring, &f.RetiringRefused)
		}
	case v1alpha1.New, v1alpha1.Completed:
	}
}

func (w *world) prove(before streak, what, name string) (streak, Proof) {
	want, control := 0, w.accepted(w.servers, string(w.ring.Signing.Cert))
	if what == trusts {
		want, control = len(w.servers), len(w.servers)
	}
	if w.accepted(w.servers, name) != want || control != len(w.servers) {
		return streak{}, Proof{Missing: []string{fmt.Sprintf("not every API server %s %s", what, name)}}
	}
	if before.servers != len(w.servers) || w.now.Sub(before.last) > patience {
		before.looks = 0
	}
	now := streak{w.now, len(w.servers), before.looks + 1}
	if now.looks < 2 {
		return now, Proof{Settling: true, Missing: []string{"it has been seen once only"}}
	}
	return now, Proof{Proven: true}
}

func (w *world) String() string {
	show := func(one *v1alpha1.CAStatus) string {
		if one == nil {
			return "-"
		}
		return one.Certificate
	}
	return fmt.Sprintf("%s %q gen %d intent %q op %q noted %s %s %s; tls %s signing %s candidate %s retiring %s; published %v servers %v verifiers %v kept %v ledger %s waits for %q",
		w.name, w.status.Phase, w.status.Generation, w.status.Intent, w.operation, show(w.status.Signing), show(w.status.Candidate), show(w.status.Retiring),
		w.ring.TLS.Cert, w.ring.Signing.Cert, w.ring.Candidate.Cert, w.ring.Retiring.Cert, w.published, w.servers, w.verifiers, w.kept, w.ledger, w.status.WaitingFor)
}
