package rotation

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const usualLives, workers = 120, 2

// lives can be raised for a longer search: go test ./controllers/rotation -run TestRandomLives -lives 2000. The race
// detector makes the lives five times slower and finds nothing in them. test/rotation tests concurrency.
var lives = flag.Int("lives", usualLives/slower, "random lives of TestRandomLives")

// TestRandomLives runs random sequences of events, in which the manager may die at any write. Each issued certificate
// must be trusted, no CA may be removed while its certificates are valid, and no key may be lost. While the clocks of the
// manager and of the API servers disagree, no step may be taken. After the events end, each authority must come to rest, and a
// rotation must succeed.
func TestRandomLives(t *testing.T) {
	var mu sync.Mutex
	var all sync.WaitGroup
	seen := map[string]int{}
	for worker := range workers {
		all.Go(func() {
			for seed := worker; seed < *lives; seed += workers {
				c := newCluster(rand.New(rand.NewPCG(uint64(seed), 9)))
				err := c.live()
				mu.Lock()
				for event, n := range c.seen {
					seen[event] += n
				}
				failed := t.Failed()
				if err != nil && !failed {
					t.Errorf("seed %d: %s", seed, c.failure(err))
				}
				mu.Unlock()
				if err != nil || failed {
					return
				}
			}
		})
	}
	all.Wait()
	for event, least := range often {
		if least = least * *lives / usualLives; seen[event] < least {
			t.Errorf("%s: %d times only, want %d", event, seen[event], least)
		}
	}
	t.Log(seen)
}

// often is the minimum number of each event in usualLives. An event that never happens is not tested.
var often = map[string]int{
	"phase Preparing": 1500, "phase Prepared": 800, "phase Completing": 300, "phase Completed": 400,
	string(MakeCandidate): 125, string(TakeCandidate): 20, string(DropCandidate): 7,
	string(MakeRenewed): 40, string(TakeRenewed): 40, "its owner brings a renewed certificate": 5, "a renewed certificate is put back": 1,
	string(Publish): 250, string(Switch): 125, "stopped": 20, string(SwapBack): 10,
	string(Open): 9, string(Permit): 4, string(Seal): 90, string(Prune): 50, string(DestroyRetiring): 90,
	"issued by what does not sign any more": 90, "not covered": 15, "a CA is unpublished": 90,
	"the ledger is lost": 9, "the Secret is lost": 6, "the Secret is put back from a backup": 7, "the status is lost": 6,
	"the candidate is taken out": 5, "the retiring CA is taken out": 3, "a signer starts again": 5,
	"something is outstanding that is accepted": 15, "its owner lies of those who can't be asked": 15,
	"a CA of another authority is refused": 1,
	"its owner brings a new CA":            15, "its owner brings garbage": 4, "its owner brings nothing": 20,
	"its owner brings what signs": 6, "its owner brings the candidate": 9,
	"a signer comes": 3, "what signs is not for all": 2, "a pair is copied": 5, "what signs is taken out": 3, "a pair is spoilt": 1,
	"a signer refuses a CA that is not proven": 2, "a pair is copied back": 20, "an edit is removed": 10, "a signing pair is put back": 3, "a candidate pair is put back": 1,
	"an operation is dropped without an answer": 9,
	"clocks disagree true, time unknown false":  100, "clocks disagree true, time unknown true": 100,
	"a reconcile without an agreed time": 1500,
}

// TestDeathAtEveryWrite checks that a rotation, a rollback and a second rotation have the same result if the manager
// dies once, at any write.
func TestDeathAtEveryWrite(t *testing.T) {
	writes := 0
	for dies := 0; dies <= writes; dies += slower {
		c := newCluster(nil)
		c.quiet = true
		a := c.authority("cluster", kubeletSigner)
		cert := c.newCA(3650 * day)
		a.edit(func(ring *keypair.Ring) { ring.TLS = c.cas[cert].pair })
		n := 0
		c.dies = func() bool { n++; return n == dies }
		ask := func(operation v1alpha1.Operation, want v1alpha1.Phase) {
			t.Helper()
			if err := errors.Join(c.settle(), a.obeys(operation, want)); err != nil {
				t.Fatalf("death at write %d: %s", dies, c.failure(err))
			}
		}
		ask(v1alpha1.OperationAttest, v1alpha1.Completed)
		ask(v1alpha1.OperationStart, v1alpha1.Prepared)
		a.signers[0].sign(a, kubeletSigner, 24*time.Hour)
		ask(v1alpha1.OperationRollback, v1alpha1.Prepared)
		c.pass(72 * time.Hour)
		ask(v1alpha1.OperationComplete, v1alpha1.Completed)
		before := a.status().Signing
		ask(v1alpha1.OperationRenewCertificate, v1alpha1.Completed)
		if now := a.status().Signing; now.KeyID != before.KeyID || !now.NotAfter.After(before.NotAfter.Time) || len(a.published()) != 2 {
			t.Errorf("death at write %d: no renewed certificate signs: %s", dies, c.failure(nil))
		}
		ask(v1alpha1.OperationStart, v1alpha1.Prepared)
		ask(v1alpha1.OperationComplete, v1alpha1.Completed)
		ring, clean := a.ring(), len(a.refused)+len(a.stops) == 0 && len(a.published()) == 1
		if a.status().Generation != 3 || !clean || !ring.TLS.Equal(ring.Signing) {
			t.Errorf("death at write %d: %s", dies, c.failure(nil))
		}
		if dies == 0 {
			writes = n
		}
	}
	expect.True(t, writes >= 60, "there were %d writes only", writes)
}

// TestSlowAnswers checks that a rotation, a rollback and a completion succeed if each answer to the manager takes 25 seconds
// and the manager dies now and then, and that nothing ends a reconcile that takes minutes.
func TestSlowAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(nil)
		writes := 0
		c.quiet, c.slow, c.dies = true, true, func() bool { writes++; return writes%7 == 0 }
		c.startManager()
		a := c.authority("cluster", kubeletSigner, clientSigner)
		for _, step := range []struct {
			operation v1alpha1.Operation
			want      v1alpha1.Phase
		}{
			{v1alpha1.OperationStart, v1alpha1.Prepared}, {v1alpha1.OperationRollback, v1alpha1.Prepared},
			{v1alpha1.OperationComplete, v1alpha1.Completed}, {v1alpha1.OperationStart, v1alpha1.Prepared},
			{v1alpha1.OperationComplete, v1alpha1.Completed},
		} {
			if err := errors.Join(c.settle(), a.obeys(step.operation, step.want)); err != nil {
				t.Fatal(c.failure(err))
			}
			expect.True(t, a.signers[0].sign(a, kubeletSigner, 24*time.Hour), "nothing can be signed")
			c.pass(72 * time.Hour)
		}
	})
	mgr, err := manager.New(&rest.Config{Host: "https://127.0.0.1:1"}, manager.Options{
		Scheme: modelScheme, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	succeed(t, err)
	added := &adding{Manager: mgr}
	succeed(t, (&Reconciler{}).SetupWithManager(added))
	expect.Equal(t, "timeouts", added.timeouts, []time.Duration{-1, -1})
}

// adding records the timeouts of the controllers that are added to a manager.
type adding struct {
	manager.Manager
	timeouts []time.Duration
}

func (a *adding) Add(runnable manager.Runnable) error {
	if _, isFunc := runnable.(manager.RunnableFunc); isFunc {
		return nil
	}
	timeout := reflect.ValueOf(runnable).Elem().FieldByName("ReconciliationTimeout")
	a.timeouts = append(a.timeouts, timeout.Interface().(time.Duration))
	return nil
}

// TestLateWriteOfAReplacedLeader has a leader that stalls before it writes the Secret for a rollback. Another leader
// takes over, and the owner requests a completion from it instead. Wherever the late write arrives, the signing CA must
// be trusted, and nobody must have to repair the Secret.
func TestLateWriteOfAReplacedLeader(t *testing.T) {
	late := 1
	for delivered := true; delivered; late++ {
		delivered = false
		c := newCluster(nil)
		c.quiet = true
		a := c.authority("cluster", kubeletSigner)
		expect.NoError(t, errors.Join(c.settle(), a.obeys(v1alpha1.OperationStart, v1alpha1.Prepared)))
		var stalled client.Object
		c.manager.dies = func(obj client.Object) bool {
			_, isSecret := obj.(*corev1.Secret)
			if isSecret {
				stalled = obj.DeepCopyObject().(client.Object)
			}
			return isSecret
		}
		a.want(v1alpha1.OperationRollback)
		for range 10 {
			if c.reconcile(a); stalled != nil {
				break
			}
			c.allFollow()
		}
		if stalled == nil {
			t.Fatalf("no rollback was begun: %s", a)
		}
		writes, lateWriter := 0, &process{apiServer: c.api, wrote: c.wrote}
		c.dies = func() bool {
			if writes++; writes == late {
				delivered = true
				if err := lateWriter.Update(t.Context(), stalled); err != nil && !apierrors.IsConflict(err) {
					t.Error(err)
				}
			}
			return false
		}
		a.want(v1alpha1.OperationComplete)
		err := c.rest()
		signing := string(a.ring().Signing.Cert)
		if err != nil || len(a.stops) > 0 || signing != a.status().Signing.Certificate || !slices.Contains(a.published(), signing) {
			t.Errorf("late by %d writes: %s", late, c.failure(err))
		}
	}
	expect.True(t, late >= 5, "there were %d writes only after the leader had stalled", late-2)
}

// TestWrongClock requests a completion while a certificate of the retiring CA is valid, and another one after its end. No
// probe asks the verifiers of serving certificates, so only the time tells that a key may be destroyed. That is the time of
// the API servers. While the clocks disagree, the operation waits.
func TestWrongClock(t *testing.T) {
	for name, row := range map[string]struct {
		ahead    time.Duration
		timeless bool
		// jumps means that the clock is set at the first write after the request. That is the status, which has the decision, or
		// if noted is set, an end of the ledger, which is written before the decision.
		jumps, noted bool
	}{
		"right": {}, "time unknown": {timeless: true, noted: true}, "21 days ahead": {ahead: 21 * day, noted: true}, "21 days behind": {ahead: -21 * day},
		"five minutes ahead": {ahead: servertime.MaxSkew}, "five minutes behind": {ahead: -servertime.MaxSkew},
		"more than five minutes ahead": {ahead: servertime.MaxSkew + 1}, "more than five minutes behind": {ahead: -servertime.MaxSkew - 1},
		"jumps ahead": {ahead: 21 * day, jumps: true}, "jumps back": {ahead: -21 * day, jumps: true},
		"jumps ahead early": {ahead: 21 * day, jumps: true, noted: true}, "jumps back early": {ahead: -21 * day, jumps: true, noted: true},
	} {
		c := newCluster(nil)
		c.quiet = true
		a := c.authority("cluster", servingSigner)
		complete := func(want v1alpha1.Phase) {
			t.Helper()
			set := func() bool { c.setMachine(row.ahead, row.timeless); return false }
			if row.jumps {
				c.dies = set
			} else {
				set()
			}
			if row.noted {
				c.reconciler.recorder(a.object()).Note(ledger.Certificate{
					KeyID: a.status().Signing.KeyID, Signer: servingSigner, NotAfter: a.now().Add(day),
				})
			}
			a.want(v1alpha1.OperationComplete)
			err := c.settle()
			ready := meta.FindStatusCondition(a.status().Conditions, v1alpha1.ConditionReady)
			waits := a.operation() != "" && a.status().Phase == v1alpha1.Prepared
			if skewed := ready.Reason == "ClockSkewed"; skewed != c.disagree() || skewed != a.waitsFor("until the clocks agree") || (row.noted || !row.jumps) && waits != skewed {
				t.Errorf("%s: the operation waits %t, condition %+v", name, waits, ready)
			}
			c.dies = func() bool { return false }
			c.setMachine(0, false)
			if err := errors.Join(err, c.rest()); err != nil || a.status().Phase != want || a.operation() != "" {
				t.Errorf("%s: want %s: %s", name, want, c.failure(err))
			}
		}
		err := c.rest()
		signed := a.signers[0].sign(a, servingSigner, 20*day)
		if err := errors.Join(err, a.obeys(v1alpha1.OperationStart, v1alpha1.Prepared)); err != nil || !signed {
			t.Fatal(c.failure(err))
		}
		complete(v1alpha1.Prepared)
		if n := len(a.refused); n == 0 || !strings.Contains(a.refused[n-1], "are valid until") || a.ring().Retiring.Empty() {
			t.Errorf("%s: refused %q", name, a.refused)
		}
		c.pass(21 * day)
		complete(v1alpha1.Completed)
		expect.True(t, a.ring().Retiring.Empty(), "%s: the key is not destroyed", name)
	}
}

// TestCandidateThatIsNotValidYet has an owner who brings a CA that an issuer with a fast clock made, or that is a renewal for
// later. It waits until it is valid, also if the owner confirms its verifiers. Another CA signs meanwhile, if there is one.
func TestCandidateThatIsNotValidYet(t *testing.T) {
	for _, signer := range []string{servingSigner, kubeletSigner, clientSigner} {
		for _, first := range []bool{false, true} {
			c := newCluster(nil)
			c.quiet = true
			a := c.authority("cluster", signer)
			var err error
			if !first {
				err = c.rest()
			}
			before, cert := string(a.ring().Signing.Cert), c.newCAFrom(c.now().Add(2*day), 365*day)
			a.edit(func(ring *keypair.Ring) { ring.TLS = c.cas[cert].pair })
			err = errors.Join(err, c.settle())
			if a.status().Phase == v1alpha1.Preparing {
				a.want(v1alpha1.OperationConfirm)
			}
			err = errors.Join(err, c.settle())
			if err != nil || !a.waitsFor("is not valid before 2026-01-02") || string(a.ring().Signing.Cert) != before {
				t.Errorf("%s, first %t: it does not wait: %s", signer, first, c.failure(err))
			}
			if err := c.rest(); err != nil || string(a.ring().Signing.Cert) != cert {
				t.Errorf("%s, first %t: it does not sign later: %s", signer, first, c.failure(err))
			}
		}
	}
}

// live runs a random sequence of events, and then a quiet end.
func (c *cluster) live() error {
	c.dies = func() bool {
		if c.chance(60) { // during a step
			c.setsMachine()
		}
		return c.chance(12)
	}
	sets := [][]string{{kubeletSigner, clientSigner}, {clientSigner}, {servingSigner}, {clientSigner, servingSigner}}
	a := c.authority("cluster", sets[c.random.IntN(len(sets))]...)
	if c.chance(3) {
		c.authority("apart", a.began[c.random.IntN(len(a.began))])
	}
	if c.chance(2) {
		a.brings()
	}
	for range 240 {
		c.step(c.authorities[c.random.IntN(len(c.authorities))])
		if err := c.broken(); err != nil {
			return err
		}
	}
	return c.end()
}

func (c *cluster) step(a *authority) {
	signers := a.spec().Signers
	if a.status().Phase != v1alpha1.New && a.stopped("") && c.chance(4) {
		if c.reconcile(a); !c.disagree() { // the owner follows instructions that are not out of date
			a.repairs()
		}
	}
	switch c.random.IntN(20) {
	case 0, 1:
		a.asks()
	case 2:
		c.pass(c.span(day/24, 30*day))
	case 3, 4, 5:
		c.someoneFollows()
	case 6:
		a.signers[c.random.IntN(len(a.signers))].read(a)
	case 7, 8, 10:
		a.signers[c.random.IntN(len(a.signers))].sign(a, signers[c.random.IntN(len(signers))], c.span(day/24, 40*day))
	case 9:
		c.accident(a)
	case 11:
		c.setsMachine()
	default:
		next := slices.IndexFunc(a.issued, func(cert *certificate) bool { return !cert.recorded })
		if next >= 0 && c.chance(2) {
			a.show(a.issued[next])
		}
		c.reconcile(a)
		c.seen["phase "+string(a.status().Phase)]++
	}
}

func (c *cluster) accident(a *authority) {
	switch c.random.IntN(12) {
	case 0, 1:
		a.brings()
	case 2, 3:
		a.misfortune()
	case 4:
		signers := a.began[:1]
		if len(a.spec().Signers) < len(a.began) {
			c.saw("a signer comes")
			signers = a.began
		}
		a.change(func(obj *v1alpha1.SigningAuthority) { obj.Spec.Signers, obj.Generation = signers, obj.Generation+1 })
	}
}

// end stops all faults, finishes the operations under way, and rotates each authority once more.
func (c *cluster) end() error {
	c.dies, c.quiet = func() bool { return false }, true
	c.setMachine(c.span(-servertime.MaxSkew, servertime.MaxSkew), false)
	c.log("it is quiet now")
	for _, a := range c.authorities {
		a.want("")
		if s := a.status().Signing; s != nil && string(a.ring().Signing.Cert) != s.Certificate {
			a.want(v1alpha1.OperationAttest)
		}
	}
	if err := c.settle(); err != nil {
		return err
	}
	for _, a := range c.authorities {
		if a.operation() != "" {
			return fmt.Errorf("%s is neither followed nor refused: %s", a.operation(), a)
		}
	}
	if err := c.rest(); err != nil {
		return err
	}
	for _, a := range c.authorities {
		if err := a.rotate(); err != nil {
			return fmt.Errorf("%w: %s", err, a)
		}
	}
	return nil
}

// settle reconciles until nothing changes. All verifiers read the current bundles in each round.
func (c *cluster) settle() error {
	calm := 0
	for range 400 {
		if calm++; calm > 4 { // a proof takes two rounds
			return nil
		}
		c.allFollow()
		for _, a := range c.authorities {
			for _, signer := range a.signers {
				signer.read(a)
			}
			a.showAll(false)
			if c.reconcile(a) || a.waitsFor("every signer must learn") {
				calm = 0
			}
		}
		if err := c.broken(); err != nil {
			return err
		}
	}
	return fmt.Errorf("never at rest: %v", c.authorities)
}

// rest settles, and lets the owners do what the authorities wait for.
func (c *cluster) rest() error {
	for range 20 {
		if err := c.settle(); err != nil {
			return err
		}
		helped := false
		for _, a := range c.authorities {
			helped = a.help() || helped
		}
		if !helped {
			return nil
		}
	}
	return fmt.Errorf("never done: %v", c.authorities)
}

// renew renews the certificate of the signing CA.
func (a *authority) renew() error {
	before := a.status().Signing
	a.change(func(obj *v1alpha1.SigningAuthority) { obj.Spec.CA.Duration = &metav1.Duration{Duration: 20000 * day} })
	if err := a.obeys(v1alpha1.OperationRenewCertificate, v1alpha1.Completed); err != nil {
		return err
	}
	a.change(func(obj *v1alpha1.SigningAuthority) { obj.Spec.CA.Duration = nil })
	if now := a.status().Signing; now.KeyID != before.KeyID || !now.NotAfter.After(before.NotAfter.Time) {
		return fmt.Errorf("no renewed certificate signs: refused %q", a.refused)
	}
	return nil
}

// rotate finishes the rotation under way, renews the certificate, and runs a complete rotation.
func (a *authority) rotate() error {
	if a.status().Phase == v1alpha1.Prepared {
		if err := a.complete(); err != nil {
			return err
		}
	}
	if err := a.renew(); err != nil {
		return err
	}
	if err := a.obeys(v1alpha1.OperationStart, v1alpha1.Prepared); err != nil {
		return err
	}
	for _, name := range a.spec().Signers {
		if !a.signers[0].sign(a, name, 24*day) {
			return fmt.Errorf("what signs can't sign for %s", name)
		}
	}
	return a.complete()
}

// complete waits until the certificates of the retiring CA have expired, or accepts them if their account is lost. Then
// it completes the rotation.
func (a *authority) complete() error {
	a.pass(adoptedFor + day)
	if err := a.rest(); err != nil {
		return err
	}
	if retiring := a.status().Retiring; retiring != nil && a.alive(retiring.Certificate) {
		if _, found := a.account(retiring.Certificate); !found {
			if err := a.obeys(v1alpha1.OperationAccept, v1alpha1.Prepared); err != nil {
				return err
			}
		}
	}
	generation := a.status().Generation
	err := a.obeys(v1alpha1.OperationComplete, v1alpha1.Completed)
	broughtNext := a.status().Phase == v1alpha1.Prepared && a.status().Generation > generation
	if err != nil && broughtNext {
		return a.complete()
	}
	return err
}

// obeys requests operation, and checks that it leads to phase.
func (a *authority) obeys(operation v1alpha1.Operation, phase v1alpha1.Phase) error {
	refused := len(a.refused)
	a.want(operation)
	if err := a.rest(); err != nil {
		return err
	}
	if a.status().Phase != phase || a.operation() != "" {
		return fmt.Errorf("after %s want %s, refused %q", operation, phase, a.refused[refused:])
	}
	return nil
}
