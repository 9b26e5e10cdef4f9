package rotation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

const day = 24 * time.Hour

// cluster is what authorities have in common: the time, the API servers with the aggregated ones behind them, and those who
// verify serving certificates. Each follows what is published when it likes to.
type cluster struct {
	random *rand.Rand
	now    time.Time
	ends   map[string]time.Time
	// pairs are all CAs that there ever were: their owner has a backup of each.
	pairs []keypair.Pair
	// servers are the API servers, and verifiers those of serving certificates, by what each trusts; also is what the verifiers
	// were given by hand. aggregated go by kept, the ConfigMap extension-apiserver-authentication.
	servers, aggregated, verifiers [][]string
	kept, also                     []string
	// proven are the signers whose verifiers were seen to trust a CA when it was switched to.
	proven map[string][]string
	// destroyed are the CAs whose last key is destroyed, and has not come back.
	destroyed map[string]bool
	worlds    []*world
	// crash, if set, says before each write whether the process dies there.
	crash func() bool
	// quiet is that nobody does anything any more but what he is asked for.
	quiet bool
	// seen counts what has come about; told are the last events, for who looks for the reason of a failure.
	seen map[string]int
	told []string
}

func newCluster(random *rand.Rand) *cluster {
	return &cluster{
		random: random, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		servers: make([][]string, 2), aggregated: make([][]string, 2), verifiers: make([][]string, 2),
		ends: map[string]time.Time{}, proven: map[string][]string{}, destroyed: map[string]bool{}, seen: map[string]int{},
		crash: func() bool { return false },
	}
}

func (c *cluster) chance(of int) bool { return c.random.IntN(of) == 0 }

func (c *cluster) saw(what string) {
	c.seen[what]++
	c.tell("%s", what)
}

// tell keeps the last events.
func (c *cluster) tell(format string, args ...any) {
	if len(c.told) > 300 {
		c.told = slices.Clone(c.told[200:])
	}
	c.told = append(c.told, c.now.Format("060102 15:04:05 ")+fmt.Sprintf(format, args...))
}

// pair makes a CA.
func (c *cluster) pair(lifetime time.Duration) keypair.Pair {
	name := "ca" + strconv.Itoa(len(c.pairs)+1)
	c.ends[name] = c.now.Add(lifetime)
	c.pairs = append(c.pairs, keypair.Pair{Cert: []byte(name), Key: []byte("key-" + name)})
	return c.pairs[len(c.pairs)-1]
}

// backup is the pair of the CA that is called so.
func (c *cluster) backup(name string) keypair.Pair {
	return c.pairs[slices.IndexFunc(c.pairs, func(one keypair.Pair) bool { return string(one.Cert) == name })]
}

func (c *cluster) alive(name string) bool { return c.ends[name].After(c.now) }

// bundles are what authorities publish for signers of one kind: one file holds them, one after the other.
func (c *cluster) bundles(kind func(signer string) bool) []string {
	var all []string
	for _, w := range c.worlds {
		if slices.ContainsFunc(w.began, kind) {
			all = append(all, w.published...)
		}
	}
	return all
}

func forServers(signer string) bool { return signer == servingSigner }
func forClients(signer string) bool { return signer != servingSigner }

// server has one API server read its file of client CAs, in which nothing belongs that is for serving certificates alone.
func (c *cluster) server(i int) { c.servers[i] = c.bundles(forClients) }

// feed has one API server add what it trusts to what aggregated ones go by. It takes nothing away.
func (c *cluster) feed(i int) {
	for _, name := range c.servers[i] {
		if !slices.Contains(c.kept, name) {
			c.kept = append(c.kept, name)
		}
	}
}

func (c *cluster) verifier(i int) { c.verifiers[i] = slices.Concat(c.bundles(forServers), c.also) }

// accepted says how many of those that trust what they have accept a certificate of the CA.
func (c *cluster) accepted(by [][]string, name string) int {
	n := 0
	for _, trusts := range by {
		if slices.Contains(trusts, name) && c.alive(name) {
			n++
		}
	}
	return n
}

// follow has everybody see what there is.
func (c *cluster) follow() {
	c.verify()
	for _, w := range c.worlds {
		for _, one := range w.signers {
			one.read(w)
		}
		w.recorded = len(w.issued)
	}
}

// verify has all who verify see what there is.
func (c *cluster) verify() {
	for i := range c.servers {
		c.server(i)
		c.feed(i)
	}
	for i := range c.aggregated {
		c.aggregated[i] = slices.Clone(c.kept)
	}
	for i := range c.verifiers {
		c.verifier(i)
	}
}

// settle goes on until there is nothing to do, with everybody following.
func (c *cluster) settle() error {
	calm := 0
	for range 300 {
		c.follow()
		busy := false
		for _, w := range c.worlds {
			busy = w.reconcile() || busy
		}
		if broken := c.broken(); broken != "" {
			return fmt.Errorf("%s", broken)
		}
		if calm++; busy {
			calm = 0
		}
		if calm > 4 { // a proof takes two looks
			return nil
		}
	}
	return fmt.Errorf("never at rest: %v", c.worlds)
}

// someoneLags lets one of those who follow do so, and others join.
func (c *cluster) someoneLags() {
	switch c.random.IntN(24) {
	case 0:
		if len(c.servers) < 4 && c.chance(4) {
			c.servers = append(c.servers, nil)
		}
	case 17, 18, 19:
		c.verify()
	case 1, 2, 3, 4, 5, 6, 7, 8:
		c.server(c.random.IntN(len(c.servers)))
	case 9, 10, 11, 12:
		c.feed(c.random.IntN(len(c.servers)))
	case 13, 14, 15, 16:
		c.aggregated[c.random.IntN(len(c.aggregated))] = slices.Clone(c.kept)
	default:
		c.verifier(c.random.IntN(len(c.verifiers)))
	}
}

// pass lets time go by, in which the ledger learns of all that was issued.
func (c *cluster) pass(span time.Duration) {
	for _, w := range c.worlds {
		w.recorded = len(w.issued)
		w.record()
	}
	c.now = c.now.Add(span.Truncate(time.Second))
	for _, w := range c.worlds {
		w.issued = slices.DeleteFunc(w.issued, func(cert certificate) bool { return !cert.notAfter.After(c.now) })
		w.recorded = min(w.recorded, len(w.issued))
	}
}
