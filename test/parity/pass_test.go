package parity

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// patience is generous, because only a failing test waits for it.
	patience     = 30 * time.Second
	pollInterval = 100 * time.Millisecond
	// tries bounds how often a program is started until its cleaner has seen the old requests.
	tries = 8
	// dueIn is the time until the live row with a condition is due.
	dueIn = 3 * time.Second
)

// pass is one program's turn.
type pass struct {
	*env
	program
	// patience is how long nothing may happen. A hasty turn ends with the first row that does not settle.
	patience time.Duration
	hasty    bool
	// awake reports that the program has done something. A program may start slowly.
	awake   bool
	running *running
	names   map[string]string // row → object
	from    map[string]time.Time
}

// turn returns the turn of p. PARITY_PATIENCE makes our turn hasty.
func (e *env) turn(t *testing.T, p program) *pass {
	t.Helper()
	turn := &pass{env: e, program: p, patience: patience, names: map[string]string{}, from: map[string]time.Time{}}
	if set := os.Getenv("PARITY_PATIENCE"); set != "" {
		short, err := time.ParseDuration(set)
		kit.NoError(t, err)
		turn.patience, turn.hasty = short, p.ours
	}
	return turn
}

func (e *env) pass(t *testing.T, p program) map[string]outcome {
	t.Helper()
	turn := e.turn(t, p)
	outcomes := map[string]outcome{}
	for at := range starts {
		rows := rowsWhere(func(r row) bool { return r.start == at })
		if p.passes == 0 {
			maps.DeleteFunc(rows, func(key string, _ row) bool { return isCleanerRow(key) })
		}
		turn.seed(t, rows)
		if at == oneCA && p.passes > 0 {
			turn.startCleaning(t)
		} else {
			turn.run(t, e.byStart[at]...)
		}
		turn.collect(t, rows, outcomes)
	}
	return outcomes
}

// seed creates all requests but the live ones.
func (p *pass) seed(t *testing.T, rows map[string]row) {
	t.Helper()
	for key, r := range rows {
		if !r.live {
			p.make(t, key, r)
		}
	}
}

func (p *pass) make(t *testing.T, key string, r row) {
	t.Helper()
	name := fmt.Sprintf("%s-%s", p.id, strings.Map(plain, key))
	p.names[key], p.from[key] = name, time.Now()
	if err := p.create(t, name, r); err != nil {
		t.Fatalf("make request %q: %v", key, err)
	}
}

// plain replaces characters that an object name can't contain.
func plain(r rune) rune {
	if r == '/' || r == '%' || r == '\'' || r == ' ' || r == ',' || r == ':' {
		return '-'
	}
	return r
}

// run starts the program.
func (p *pass) run(t *testing.T, args ...string) {
	t.Helper()
	p.running = p.start(t, p.env, args...)
}

// startCleaning starts the program until its cleaner has made its passes over a filled cache.
func (p *pass) startCleaning(t *testing.T) {
	t.Helper()
	seen := 0
	for try := range tries {
		sentinel := fmt.Sprintf("%s-sentinel-%d", p.id, try)
		kit.NoError(t, p.create(t, sentinel, old(month, gone)))
		p.run(t, p.byStart[oneCA]...)
		if p.settle(t, map[string]string{sentinel: gone}) {
			seen++
		}
		if seen == p.passes {
			return
		}
		if p.ours { // ours needs no second start, and a mutant may never clean
			return
		}
		p.running.stop(t)
	}
	t.Fatalf("%s: %d of %d starts cleaned, want %d", p.id, seen, tries, p.passes)
}

// collect waits until every row is in its wanted state, then for the live rows, and reads all outcomes.
func (p *pass) collect(t *testing.T, rows map[string]row, into map[string]outcome) {
	t.Helper()
	p.settle(t, p.wanted(rows, func(r row) bool { return !r.live }))
	for key, r := range rows {
		if r.live {
			p.makeLive(t, key, r)
		}
	}
	p.settle(t, p.wanted(rows, func(r row) bool { return !r.grants && r.deviation != "on-time" }))
	objs := p.list(t)
	for key, r := range rows {
		if r.grants {
			if state := stateOf(objs[p.names[key]]); state != untouched {
				t.Errorf("%s: %q is %q before its requester may ask for it", p.id, key, state)
			}
			kit.Grant(t, r.user.name+"-"+p.id, kit.MayJoin)
		}
	}
	p.afterDue(t, rows)
	p.settle(t, p.wanted(rows, func(row) bool { return true }))
	objs = p.list(t)
	for key, r := range rows {
		into[key] = p.read(t, r, key, objs[p.names[key]])
		if p.ours && !p.logs(t, r.log) {
			t.Errorf("%q is not in our log for %q", r.log, key)
		}
	}
	if t.Failed() {
		t.Logf("%s", p.running.tail())
	}
	p.running.check(t)
	p.clear(t)
}

// makeLive creates a request while the program runs. A request with a decision is due in a moment.
func (p *pass) makeLive(t *testing.T, key string, r row) {
	t.Helper()
	if len(r.conditions) > 0 {
		r.conditions = conditions(since(r.conditions[0].Type, time.Hour-dueIn))
	}
	if r.grants {
		r.user.name += "-" + p.id // a permission stays
	}
	p.make(t, key, r)
}

// afterDue waits until some time after the live rows were due.
func (p *pass) afterDue(t *testing.T, rows map[string]row) {
	t.Helper()
	for key, r := range rows {
		if r.deviation != "on-time" {
			continue
		}
		select {
		case <-time.After(time.Until(p.from[key].Add(dueIn + 2*time.Second))):
		case <-t.Context().Done():
		}
	}
}

// logs reports whether the program logs text within p.patience. A request that stays untouched is in its wanted state
// before the program has said why.
func (p *pass) logs(t *testing.T, text string) bool {
	t.Helper()
	return wait.PollUntilContextTimeout(t.Context(), pollInterval, p.patience, true, func(context.Context) (bool, error) {
		return strings.Contains(p.running.text(t), text), nil
	}) == nil
}

func (p *pass) wanted(rows map[string]row, which func(row) bool) map[string]string {
	wanted := map[string]string{}
	for key, r := range rows {
		if which(r) {
			wanted[p.names[key]] = r.expected(p.ours)
		}
	}
	return wanted
}

// list returns this turn's objects by name.
func (p *pass) list(t *testing.T) map[string]*kit.Request {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list))
	objs := map[string]*kit.Request{}
	for i := range list.Items {
		objs[list.Items[i].Name] = &list.Items[i]
	}
	return objs
}

func (p *pass) clear(t *testing.T) {
	t.Helper()
	kit.NoError(t, kit.Admin(t).DeleteAllOf(t.Context(), &kit.Request{}))
}
