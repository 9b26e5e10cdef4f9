package parity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	// patience is generous, because only a failing test waits for it.
	patience     = 30 * time.Second
	pollInterval = 100 * time.Millisecond
	// dueIn is the time until the live row with a condition is due.
	dueIn = 3 * time.Second
	// kube-controller-manager is started until its cleaner has seen the old requests passes times, at most tries times: its
	// only pass of the hour does not wait for the cache. Before, a remaining request does not count as kept.
	passes, tries = 2, 8
	// controllersFlag begins the flag with the controllers of a start.
	controllersFlag = "--controllers="
)

// uncleaning are the minor versions of Kubernetes whose kube-controller-manager can't be seen to clean. Version 1.34 makes its first
// pass before it starts its informers, and the next one an hour later: in eight of eight starts it deleted nothing. For them, the rows
// of the cleaner only compare our manager with the table.
var uncleaning = []string{"34"}

// The reasons why waiting ended too early. Only the first can be due to a slow machine. The mutants read these texts.
var (
	errQuiet = errors.New("nothing happens any more")
	errWrong = errors.New("this can't become right")
	errEnded = errors.New("the program has ended by itself")
)

// turn is the turn of one program. Each controller of ours is a process with an identity of its own. kube-controller-manager is
// one process and an administrator.
type turn struct {
	*env
	ours   bool
	id     string // a part of the names of its requests
	binary string
	args   []string
	// patience is how long nothing may happen. A hasty turn ends with the first row that does not settle.
	patience  time.Duration
	hasty     bool
	processes []*cluster.Process
	from      map[string]time.Time // when the request of each row was made
}

// theirTurn returns the turn of kube-controller-manager. Its controllers start a second or two late, when the cache is filled.
func (e *env) theirTurn() *turn {
	return &turn{
		env: e, id: "kcm", binary: os.Getenv("KUBE_CONTROLLER_MANAGER"), patience: patience, from: map[string]time.Time{},
		args: []string{"--secure-port=0", "--controller-start-interval=1s", "--kube-api-qps=10000", "--kube-api-burst=10000"},
	}
}

// ourTurn returns the turn of the binary of this tree, or of PARITY_BINARY. PARITY_PATIENCE makes it hasty.
func (e *env) ourTurn(t *testing.T) *turn {
	t.Helper()
	u := &turn{
		env: e, id: "own", binary: os.Getenv("PARITY_BINARY"), patience: patience, from: map[string]time.Time{}, ours: true,
		args: []string{"--metrics-bind-address=0", "--health-probe-bind-address=0"},
	}
	if u.binary == "" {
		built := kit.Must(cluster.Manager())(t)
		u.binary = built
	}
	if set := os.Getenv("PARITY_PATIENCE"); set != "" {
		short := kit.Must(time.ParseDuration(set))(t)
		u.patience, u.hasty = short, true
	}
	return u
}

// outcomes gives the program all rows, start after start.
func (u *turn) outcomes(t *testing.T) map[string]outcome {
	t.Helper()
	version := kit.Must(discovery.NewDiscoveryClientForConfigOrDie(u.Config).ServerVersion())(t)
	cleans, outcomes := u.ours || !slices.Contains(uncleaning, version.Minor), map[string]outcome{}
	for at := range starts {
		rows := maps.Clone(table)
		maps.DeleteFunc(rows, func(key string, r row) bool { return r.start != at || !cleans && isCleanerRow(key) })
		u.makeRows(t, rows, false)
		switch {
		case at == oneCA && cleans && !u.ours:
			u.runUntilItCleans(t)
		case at == ownCAs && u.ours:
			u.run(t, slices.Concat(u.flags[at], u.ourFlags))
		default:
			u.run(t, u.flags[at])
		}
		u.settleRows(t, rows, func(r row) bool { return !r.live })
		u.makeRows(t, rows, true)
		u.settleRows(t, rows, func(r row) bool { return !r.grants && r.deviation != "on-time" })
		u.finish(t, rows)
		objs := u.list(t)
		for key, r := range rows {
			outcomes[key] = u.read(r, key, objs[u.name(key)])
		}
		u.end(t)
	}
	return outcomes
}

// finish grants the late permissions, and waits for the rows that are due later and for our log. A request that stays untouched is in
// its wanted state before the program has said why.
func (u *turn) finish(t *testing.T, rows map[string]row) {
	t.Helper()
	objs := u.list(t)
	for key, r := range rows {
		switch {
		case r.grants:
			if state := stateOf(objs[u.name(key)]); state != untouched {
				t.Errorf("%s: %q is %q before its requester may ask for it", u.id, key, state)
			}
			kit.Grant(t, r.user.name+"-"+u.id, kit.MayJoin)
		case r.deviation == "on-time":
			select {
			case <-time.After(time.Until(u.from[key].Add(dueIn + 2*time.Second))):
			case <-t.Context().Done():
			}
		case r.log != "" && u.ours:
			kit.Eventually(t, key, func(context.Context) error {
				return kit.OrError(strings.Contains(u.logs(t), r.log), "%q is not in our log", r.log)
			})
		}
	}
	u.settleRows(t, rows, func(row) bool { return true })
}

// name returns the name of the row's object.
func (u *turn) name(key string) string {
	return u.id + "-" + strings.NewReplacer("/", "-", "%", "-", "'", "-", " ", "-", ",", "-", ":", "-").Replace(key)
}

func (u *turn) makeRows(t *testing.T, rows map[string]row, live bool) {
	t.Helper()
	for key, r := range rows {
		if r.live == live {
			u.make(t, key, r)
		}
	}
}

// make creates the request of a row. The one of the deviation on-time is due in a moment.
func (u *turn) make(t *testing.T, key string, r row) {
	t.Helper()
	if r.deviation == "on-time" {
		r = aged(r, since("Denied", time.Hour-dueIn))
	}
	if r.grants {
		r.user.name += "-" + u.id // a permission stays
	}
	u.from[key] = time.Now()
	if err := u.create(t, u.name(key), r); err != nil {
		t.Fatalf("make request %q: %v", key, err)
	}
}

// runUntilItCleans starts kube-controller-manager until its cleaner has made its passes over a filled cache.
func (u *turn) runUntilItCleans(t *testing.T) {
	t.Helper()
	seen := 0
	for try := range tries {
		sentinel := fmt.Sprintf("sentinel-%d", try)
		u.make(t, sentinel, old(month, gone))
		u.run(t, u.flags[oneCA])
		if u.settle(t, map[string]string{u.name(sentinel): gone}) {
			seen++
		}
		if seen == passes {
			return
		}
		u.stop(t)
	}
	t.Fatalf("%d of %d starts cleaned, want %d", seen, tries, passes)
}

// run starts the program until stop or the end of the test.
func (u *turn) run(t *testing.T, args []string) {
	t.Helper()
	t.Cleanup(func() { u.stop(t) })
	args, controllers := slices.Concat([]string{"--leader-elect=false"}, args, u.args), []string{""}
	which := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, controllersFlag) })
	if u.ours {
		controllers = strings.Split(strings.TrimPrefix(args[which], controllersFlag), ",")
	}
	u.processes = nil
	for _, controller := range controllers {
		if u.ours {
			args[which] = controllersFlag + controller
		}
		started := kit.Must(u.StartProcess(u.id, u.binary, append(slices.Clone(args), "--kubeconfig="+u.kubeconfigs[controller])...))(t)
		u.processes = append(u.processes, started)
	}
}

// stop stops the processes that run. kube-controller-manager, which has no Lease here, may be killed.
func (u *turn) stop(t *testing.T) {
	t.Helper()
	for _, p := range u.processes {
		if p.Ended() != nil {
			continue
		}
		if !u.ours {
			p.Kill()
		} else if err := p.Stop(); err != nil {
			t.Errorf("it did not stop cleanly: %v\n%s", err, u.tail())
		}
	}
}

// end stops the program, and deletes its requests. It fails the test if a process stopped before, or with an error, or lacked a right.
func (u *turn) end(t *testing.T) {
	t.Helper()
	if t.Failed() {
		t.Log(u.tail())
	}
	if u.over() {
		t.Errorf("%v:\n%s", errEnded, u.tail())
	}
	u.stop(t)
	for line := range strings.Lines(u.logs(t)) {
		// The authorizer writes "User", and the admission of approvals and certificates "user".
		kit.Check(t, !u.ours || !strings.Contains(strings.ToLower(line), "is forbidden: user"), "ours exceeds the shipped roles: %s", line)
	}
	kit.NoError(t, kit.Admin(t).DeleteAllOf(t.Context(), &kit.Request{}))
}

// over reports whether a process of the program has ended.
func (u *turn) over() bool {
	return slices.ContainsFunc(u.processes, func(p *cluster.Process) bool { return p.Ended() != nil })
}

func (u *turn) logs(t *testing.T) (all string) {
	t.Helper()
	for _, p := range u.processes {
		text := kit.Must(p.Log())(t)
		all += text
	}
	return all
}

// tail returns the end of each log.
func (u *turn) tail() (all string) {
	for _, p := range u.processes {
		all += p.Tail(30) + "\n"
	}
	return all
}

// list returns all requests by name.
func (u *turn) list(t *testing.T) map[string]*kit.Request {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list))
	objs := map[string]*kit.Request{}
	for i := range list.Items {
		objs[list.Items[i].Name] = &list.Items[i]
	}
	return objs
}

// settleRows waits until each chosen row is in its wanted state.
func (u *turn) settleRows(t *testing.T, rows map[string]row, chosen func(row) bool) {
	t.Helper()
	wanted := map[string]string{}
	for key, r := range rows {
		if chosen(r) {
			wanted[u.name(key)] = r.expected(u.ours)
		}
	}
	u.settle(t, wanted)
}

// settle waits until every object is in its wanted state, and gives up when nothing has changed for a while.
func (u *turn) settle(t *testing.T, wanted map[string]string) bool {
	t.Helper()
	var open, wrong []string
	last, since := "", time.Now()
	err := wait.PollUntilContextCancel(t.Context(), pollInterval, true, func(context.Context) (bool, error) {
		objs := u.list(t)
		open, wrong = nil, nil
		for name, want := range wanted {
			got := stateOf(objs[name])
			is := fmt.Sprintf("%s is %q", name, got)
			if got != want {
				open = append(open, is)
			}
			if got != want && want != gone && got != "" && !strings.HasPrefix(want, got+" ") {
				wrong = append(wrong, is) // a condition is never removed, and new ones are appended
			}
		}
		if now := fmt.Sprint(len(open), len(objs)); now != last {
			last, since = now, time.Now()
		}
		switch {
		case u.over():
			return false, errEnded
		case u.hasty && len(wrong) > 0:
			open = wrong
			return false, errWrong
		case len(open) > 0 && time.Since(since) > u.patience:
			return false, errQuiet
		}
		return len(open) == 0, nil
	})
	if err != nil {
		t.Logf("%s: %v: %s", u.id, err, strings.Join(open, "; "))
	}
	if err != nil && u.hasty {
		t.FailNow()
	}
	return err == nil
}
