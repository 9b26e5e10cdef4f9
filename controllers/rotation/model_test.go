package rotation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

const (
	seeds, workers = 1000, 2
	clientSigner   = certificatesv1.KubeAPIServerClientSignerName
	kubeletSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner  = certificatesv1.KubeletServingSignerName
)

// TestRandomWorlds: whatever comes in whatever order, and wherever the process dies, no certificate is issued or left that
// is not trusted, no key is lost, nothing outstanding is left behind; and once it is quiet, it comes to rest and can be
// rotated.
func TestRandomWorlds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var all sync.WaitGroup
	seen := map[string]int{}
	for worker := range workers {
		all.Go(func() {
			for seed := worker; seed < seeds; seed += workers {
				c := newCluster(rand.New(rand.NewPCG(uint64(seed), 5)))
				err := c.live()
				mu.Lock()
				for what, n := range c.seen {
					seen[what] += n
				}
				failed := t.Failed()
				if err != nil && !failed {
					t.Errorf("seed %d: %v\n%s", seed, err, strings.Join(c.told, "\n"))
				}
				mu.Unlock()
				if err != nil || failed {
					return
				}
			}
		})
	}
	all.Wait()
	for what, least := range often {
		if seen[what] < least {
			t.Errorf("%s: %d times only, want %d", what, seen[what], least)
		}
	}
	t.Log(seen)
}

// often is how often what must come about does, at least: what never does is not tried.
var often = map[string]int{
	"phase Preparing": 2500, "phase Prepared": 1250, "phase Completing": 500, "phase Completed": 1250,
	string(CopyFrom): 12, string(MakeCandidate): 125, string(TakeCandidate): 50, string(DropCandidate): 10, string(RestoreTLS): 50, string(RestoreSigning): 5,
	string(Publish): 250, string(Switch): 250, string(SwapBack): 25, string(Open): 5, string(Permit): 5, string(Seal): 125,
	string(Unseal): 1, string(Prune): 75, string(DestroyRetiring): 125,
	"issued by what does not sign any more": 75, "not covered": 5, "what was issued is noted after": 2,
	"the ledger is lost": 12, "a lost account is closed": 1, "something is outstanding that is accepted": 12,
	"its owner lies of those who can't be asked": 12, "a certificate is taken over": 1, "a CA goes that another authority publishes": 7,
	"its owner brings a CA that has retired": 2, "its owner brings garbage": 12, "its owner brings nothing": 12, "its owner brings what signs": 12, "its owner brings the candidate": 12,
	"the Secret is lost": 5, "the Secret is put back from a backup": 10, "the status is lost": 5, "what signs is put back": 2, "gone back from what has ended": 1,
	"a signer comes": 50, "what signs is not for all": 5,
	"an aggregated API server holds what retires": 5, "an operation is dropped without a word": 1,
}

// live is a random life, and a quiet end.
func (c *cluster) live() error {
	c.crash = func() bool { return c.chance(12) }
	w := c.world("cluster", [][]string{{kubeletSigner, clientSigner}, {clientSigner}, {servingSigner}, {clientSigner, servingSigner}}[c.random.IntN(4)]...)
	if c.chance(3) {
		signers := w.spec.Signers
		c.world("apart", signers[c.random.IntN(len(signers))]).spec.From = w.name
	}
	if c.chance(2) {
		w.brings()
	}
	for range 240 {
		c.step(c.worlds[c.random.IntN(len(c.worlds))])
		if broken := c.broken(); broken != "" {
			return fmt.Errorf("%s", broken)
		}
	}
	return c.end()
}

// step is one thing that comes about.
func (c *cluster) step(w *world) {
	switch c.random.IntN(20) {
	case 0, 1:
		w.asks()
	case 2:
		c.pass(c.span(day/24, 30*day))
	case 3, 4, 5:
		c.someoneLags()
	case 6:
		w.signers[c.random.IntN(len(w.signers))].read(w)
	case 7, 8:
		w.signers[c.random.IntN(len(w.signers))].sign(w, w.spec.Signers[c.random.IntN(len(w.spec.Signers))], c.span(day/24, 40*day))
	case 9:
		switch c.random.IntN(12) {
		case 0, 1:
			w.brings()
		case 2:
			w.misfortune()
		case 3:
			if len(w.spec.Signers) < len(w.began) {
				w.saw("a signer comes")
				w.spec.Signers = w.began
			} else {
				w.spec.Signers = w.began[:1]
			}
		}
	default:
		if w.recorded < len(w.issued) && c.chance(2) {
			w.recorded++
		}
		w.reconcile()
		w.seen["phase "+string(w.status.Phase)]++
	}
}

// end brings c, where nothing fails any more, through what is under way and one rotation more.
func (c *cluster) end() error {
	c.crash, c.quiet = func() bool { return false }, true
	c.tell("it is quiet now")
	for _, w := range c.worlds {
		w.operation = ""
		if s := w.status.Signing; s != nil && !sameCA(w.facts(w.ring.Signing), s) {
			w.want(v1alpha1.AdoptionAttested)
		}
		if w.ring.TLS.Equal(garbage) && w.status.Signing == nil {
			w.ring.TLS = w.pair(3650 * day)
		}
	}
	if err := c.settle(); err != nil {
		return err
	}
	for _, w := range c.worlds {
		if w.operation != "" {
			return fmt.Errorf("%s is neither followed nor refused: %s", w.operation, w)
		}
		w.operation = ""
	}
	if err := c.rest(); err != nil {
		return err
	}
	for _, w := range c.worlds {
		if err := w.rotate(); err != nil {
			return fmt.Errorf("%w: %s", err, w)
		}
	}
	return nil
}

// rest settles, with the owners helping where they are asked to.
func (c *cluster) rest() error {
	for range 20 {
		if err := c.settle(); err != nil {
			return err
		}
		helped := false
		for _, w := range c.worlds {
			helped = w.help() || helped
		}
		if !helped {
			return nil
		}
	}
	return fmt.Errorf("never done: %v", c.worlds)
}

// rotate ends what is under way, and goes through all of a rotation.
func (w *world) rotate() error {
	if w.status.Phase == v1alpha1.Prepared {
		if err := w.complete(); err != nil {
			return err
		}
	}
	if err := w.obeys(v1alpha1.RotateStart, v1alpha1.Prepared); err != nil {
		return err
	}
	for _, name := range w.spec.Signers {
		if !w.signers[0].sign(w, name, 24*day) {
			return fmt.Errorf("what signs can't sign for %s", name)
		}
	}
	return w.complete()
}

// complete has what lives on the retiring CA end, or accepts that nobody knows of it.
func (w *world) complete() error {
	w.pass(adoptedFor + day)
	if err := w.rest(); err != nil {
		return err
	}
	if w.status.Retiring != nil && w.ledger[w.status.Retiring.KeyID] == nil && w.alive(w.status.Retiring.Certificate) {
		if err := w.obeys(v1alpha1.OutstandingAccepted, v1alpha1.Prepared); err != nil {
			return err
		}
	}
	generation := w.status.Generation
	err := w.obeys(v1alpha1.RotateComplete, v1alpha1.Completed)
	if err != nil && w.status.Phase == v1alpha1.Prepared && w.status.Generation > generation { // a CA that its owner has brought is next
		return w.complete()
	}
	return err
}

// obeys wants operation, and that it leads to phase.
func (w *world) obeys(operation v1alpha1.Operation, phase v1alpha1.Phase) error {
	refused := len(w.refused)
	w.want(operation)
	if err := w.rest(); err != nil {
		return err
	}
	if w.status.Phase != phase || w.operation != "" {
		return fmt.Errorf("after %s want %s, refused %q", operation, phase, w.refused[refused:])
	}
	return nil
}
