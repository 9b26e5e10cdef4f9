package parity

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// patience is generous, as nobody waits for it but a failing test.
	patience     = 15 * time.Second
	pollInterval = 100 * time.Millisecond
	// starts bounds how often a program is started until its cleaner has seen what is old.
	starts = 8
	// patienceForRoles is how long the API server may take to know a new role.
	patienceForRoles = 10 * time.Second
	// dueIn is when the live row with a condition is due.
	dueIn = 3 * time.Second
)

// pass is one program's turn.
type pass struct {
	*env
	program
	// patience is how long nothing may happen; a hasty turn ends with the first row that does not settle.
	patience time.Duration
	hasty    bool
	// awake is that it has done something; a program may start slowly.
	awake bool
	names map[string]string // row → object
	from  map[string]time.Time
}

func (e *env) pass(t *testing.T, p program) map[string]outcome {
	t.Helper()
	turn := &pass{env: e, program: p, patience: patience, names: map[string]string{}, from: map[string]time.Time{}}
	if set := os.Getenv("PARITY_PATIENCE"); set != "" {
		short, err := time.ParseDuration(set)
		if err != nil {
			t.Fatal(err)
		}
		turn.patience, turn.hasty = short, p.ours
	}
	outcomes := map[string]outcome{}
	first := rowsWhere(func(r row) bool { return !r.ownCA })
	second := rowsWhere(func(r row) bool { return r.ownCA })
	turn.seed(t, first)
	turn.collect(t, first, turn.startCleaning(t), outcomes)
	turn.seed(t, second)
	turn.collect(t, second, p.start(t, e.Cluster, e.ownCAs...), outcomes)
	return outcomes
}

// seed makes all requests but the live ones.
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
	if err := p.create(t.Context(), name, r); err != nil {
		t.Fatalf("make request %q: %v", key, err)
	}
}

// plain keeps what an object's name may hold.
func plain(r rune) rune {
	if r == '/' || r == '%' || r == '\'' || r == ' ' || r == ',' || r == ':' {
		return '-'
	}
	return r
}

// startCleaning starts the program until its cleaner has made its passes over a filled cache, and returns the last.
func (p *pass) startCleaning(t *testing.T) *process {
	t.Helper()
	seen := 0
	for try := range starts {
		sentinel := fmt.Sprintf("%s-sentinel-%d", p.id, try)
		if err := p.create(t.Context(), sentinel, old(month, gone)); err != nil {
			t.Fatal(err)
		}
		running := p.start(t, p.Cluster, p.oneCA...)
		if p.settle(t, map[string]string{sentinel: gone}) {
			seen++
		}
		if seen == p.passes {
			return running
		}
		if p.ours { // it needs no second start, and a mutant may never clean
			return running
		}
		running.stop()
	}
	t.Fatalf("%s: %d of %d starts cleaned, want %d", p.id, seen, starts, p.passes)
	return nil
}

// collect waits until everything is as it should be, then for what is made only now, and reads what became of it all.
func (p *pass) collect(t *testing.T, rows map[string]row, running *process, into map[string]outcome) {
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
			p.bind(t, nodeClientRole, rbacv1.UserKind, r.user.name+"-"+p.id)
		}
	}
	p.afterDue(t, rows)
	p.settle(t, p.wanted(rows, func(row) bool { return true }))
	objs = p.list(t)
	for key, r := range rows {
		into[key] = p.read(t, r, key, objs[p.names[key]])
	}
	if t.Failed() {
		t.Logf("%s", running.tail(t))
	}
	running.check(t, p.ours)
	p.clear(t)
}

// makeLive makes a request while the program runs; a decision that comes with it will be due in a moment.
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

// afterDue waits until what was due in a moment has been for a while.
func (p *pass) afterDue(t *testing.T, rows map[string]row) {
	t.Helper()
	for key, r := range rows {
		if r.deviation != "on-time" {
			continue
		}
		due := p.from[key].Add(dueIn + 2*time.Second)
		_ = wait.PollUntilContextCancel(t.Context(), pollInterval, true, func(context.Context) (bool, error) { return time.Now().After(due), nil })
	}
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

// settle waits until every object is in its wanted state, and gives up when nothing has changed for a while.
func (p *pass) settle(t *testing.T, wanted map[string]string) bool {
	t.Helper()
	last, since := "", time.Now()
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, time.Minute, true, func(context.Context) (bool, error) {
		objs := p.list(t)
		var open []string
		for name, want := range wanted {
			if got := stateOf(objs[name]); got != want {
				open = append(open, fmt.Sprintf("%s is %q", name, got))
			}
		}
		if now := fmt.Sprint(len(open), len(objs)); now != last {
			p.awake = p.awake || last != ""
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); len(open) > 0 && (quiet > patience || quiet > p.patience && p.awake) {
			return false, fmt.Errorf("nothing happens any more: %s", strings.Join(open, "; "))
		}
		return len(open) == 0, nil
	})
	if err != nil {
		t.Logf("%s: %v", p.id, err)
	}
	if err != nil && p.hasty {
		t.FailNow()
	}
	return err == nil
}

// list returns this turn's objects by name.
func (p *pass) list(t *testing.T) map[string]*certificatesv1.CertificateSigningRequest {
	t.Helper()
	list, err := p.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objs := map[string]*certificatesv1.CertificateSigningRequest{}
	for i := range list.Items {
		objs[list.Items[i].Name] = &list.Items[i]
	}
	return objs
}

func (p *pass) clear(t *testing.T) {
	t.Helper()
	if err := p.admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}
