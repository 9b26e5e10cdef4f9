package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// leadsFor returns flags for a Lease that does not end within that time. Neither does the leader give up.
func leadsFor(long time.Duration) []string {
	return []string{"--leader-elect-renew-deadline", long.String(), "--leader-elect-lease-duration", (2 * long).String()}
}

// configure writes a configuration file and returns its flag.
func configure(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+text))
	return "--config=" + file
}

// refusal is a request that must not get a certificate.
type refusal struct {
	*request
	want string // conditions, and all recorded verdicts
}

// refuse creates four requests a second that must not get a certificate, until the returned function is called. One
// kind is denied, one waits for a permission, and one is approved by a person and can't be signed.
func (l *joining) refuse(t *testing.T) func() {
	t.Helper()
	grant(t, "stranger", mayCreate)
	joiner, stranger := as(t, "joiner"), as(t, "stranger")
	wrongUsage := func(obj *request) { obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth) }
	kinds := []func(*request) (string, error){
		func(obj *request) (string, error) {
			wrongUsage(obj)
			return "Denied ShapeMismatch; Decided Deny", joiner.Create(t.Context(), obj)
		},
		func(obj *request) (string, error) {
			return "; Decided Wait", stranger.Create(t.Context(), obj)
		},
		func(obj *request) (string, error) {
			wrongUsage(obj)
			obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
			if err := admin(t).Create(t.Context(), obj); err != nil {
				return "", err
			}
			csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Decided by a test.", time.Time{})
			return "Approved ByHand, Failed SignerValidationFailure; NotSigned Failed", admin(t).SubResource("approval").Update(t.Context(), obj)
		},
	}
	return every(t, time.Second/4, func(i int) error {
		obj := nodeRequest(t, fmt.Sprint("refused-", i))
		obj.Labels = joins
		want, err := kinds[i%len(kinds)](obj)
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wrong[obj.UID] = &refusal{obj, want}
		return nil
	})
}

// checkRefused checks the condition of each refused request, and all verdicts about it in the audit logs.
func (p *pair) checkRefused(t *testing.T, l *joining) {
	t.Helper()
	eventually(t, "the requests are refused", func(ctx context.Context) error {
		verdicts := map[types.UID][]string{}
		for _, file := range p.audits {
			denied := map[types.UID]bool{}
			for _, record := range readAudit(t, file) {
				if record.Verdict == "Deny" {
					if denied[record.UID] {
						t.Fatalf("a second record: %+v", record)
					}
					denied[record.UID] = true
				}
				verdicts[record.UID] = append(verdicts[record.UID], strings.TrimSpace(fmt.Sprint(record.Event, " ", record.Verdict)))
			}
		}
		list := &certificatesv1.CertificateSigningRequestList{}
		if err := admin(t).List(ctx, list, joins); err != nil {
			return err
		}
		found := 0
		for _, obj := range list.Items {
			one := l.wrong[obj.UID]
			if one == nil {
				continue
			}
			found++
			var conditions []string
			for _, condition := range obj.Status.Conditions {
				conditions = append(conditions, fmt.Sprint(condition.Type, " ", condition.Reason))
			}
			slices.Sort(verdicts[obj.UID])
			got := strings.Join(conditions, ", ") + "; " + strings.Join(slices.Compact(verdicts[obj.UID]), ", ")
			if got != one.want || len(obj.Status.Certificate) > 0 {
				return fmt.Errorf("%s: %q, want %q", obj.Name, got, one.want)
			}
		}
		if found != len(l.wrong) || found == 0 {
			return fmt.Errorf("%d of %d exist", found, len(l.wrong))
		}
		return nil
	})
	t.Logf("%d requests were refused", len(l.wrong))
}

// bothActiveFor is how long both replicas work in TestFailoverWithTwoActiveReplicas.
func bothActiveFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BOTH_ACTIVE_FOR")
	if text == "" {
		return 12 * time.Second
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return long
}

// TestFailoverWithTwoActiveReplicas fails the leader's renewals, while the leader continues to work. It delays a part
// of the leader's writes, so both replicas work on the same requests. Some answers to both replicas are lost.
func TestFailoverWithTwoActiveReplicas(t *testing.T) {
	parallel(t)
	long := bothActiveFor(t)
	p := startPair(t, append(leadsFor(long+5*time.Minute), configure(t, "approval: {denial: Permanent}\n"))...)
	outcomes := func(share float64, do faults.Action) faults.Rule {
		return faults.Rule{
			Verbs: []string{"update"}, Resources: []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"},
			Share: share, Do: do,
		}
	}
	lost := faults.Answer(http.StatusInternalServerError).Landed()
	p.leaderProxy.Use(
		faults.Rule{Verbs: []string{"update"}, Resources: []string{"leases"}, Do: faults.Answer(http.StatusInternalServerError)},
		outcomes(0.3, faults.Delay(2*time.Second)), // about when the standby writes
		outcomes(0.2, faults.Delay(2500*time.Millisecond)),
		outcomes(0.1, lost),
	)
	p.standbyProxy.Use(outcomes(0.1, lost))
	l := startJoining(t)
	stop := l.refuse(t)
	p.works(t, true)
	time.Sleep(long)
	p.works(t, true)
	stop()
	l.longest(t)
	if p.leader.Ended() != nil || p.standby.hasLed(t) {
		t.Error("the leader has changed")
	}
	p.leaderProxy.Use()
	p.standbyProxy.Use()
	p.works(t, false)
	stored, discarded := p.checkRecords(t, l)
	p.checkRefused(t, l)
	if least := len(l.made) / 20; stored[0] < least || stored[1] < least || discarded[0]+discarded[1] == 0 {
		t.Errorf("leader and standby stored %v certificates and discarded %v: both were not active all the time", stored, discarded)
	}
}

// TestStandbyCleansEarly suspends the leader, and then cuts it off from the API server. Each time the standby deletes
// what is due, and nothing else. Afterwards the leader deletes.
func TestStandbyCleansEarly(t *testing.T) {
	parallel(t)
	const keep = time.Second
	p := startPair(t, append(leadsFor(5*time.Minute),
		configure(t, "cleaning: {signers: [{name: example.com/foreign, retention: {pending: 1s}}]}\n"))...)
	made := func(signer string) []*request {
		var all []*request
		for i := range 3 {
			all = append(all, createRequest(t, admin(t), nodeRequest(t, fmt.Sprint("foreign-", i), func(obj *request) { obj.Spec.SignerName = signer })))
		}
		return all
	}
	kept := made("example.com/kept")
	for name, interruption := range map[string]struct{ begin, end func() error }{
		"suspended": {
			func() error { return syscall.Kill(p.leader.Pid(), syscall.SIGSTOP) },
			func() error { return syscall.Kill(p.leader.Pid(), syscall.SIGCONT) },
		},
		"cut off": {p.leaderProxy.Down, p.leaderProxy.Up},
	} {
		if err := interruption.begin(); err != nil {
			t.Fatal(err)
		}
		due := made("example.com/foreign")
		if err := deletedBy(t, p.standbyProxy, due, keep); err != nil {
			t.Error(err)
		}
		if err := interruption.end(); err != nil {
			t.Fatal(err)
		}
		p.works(t, false)
		t.Logf("%s: the standby has deleted %d requests", name, len(due))
		p.whileLed(t, func() error {
			before := len(p.standbyProxy.Calls())
			err := deletedBy(t, p.leaderProxy, made("example.com/foreign"), keep)
			for _, call := range p.standbyProxy.Calls()[before:] {
				if call.Verb == "delete" {
					err = errors.Join(err, fmt.Errorf("the standby deletes %s although the leader renews its Lease", call.Name))
				}
			}
			return err
		})
	}
	for _, obj := range kept {
		reload(t, obj)
	}
	if p.standby.hasLed(t) {
		t.Error("the leader has changed")
	}
}

// whileLed calls check, which must succeed while the leader renews its Lease. A leader that stalls for two seconds, on a
// slow machine, ends an attempt.
func (p *pair) whileLed(t *testing.T, check func() error) {
	t.Helper()
	stalls := func() int { return strings.Count(p.standby.log(t), "No leader renews the Lease") }
	for range 5 {
		stalled := stalls()
		err := check()
		if stalls() > stalled {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
	t.Error("the leader did not renew its Lease in time in any of five attempts")
}

// deletedBy waits until all requests are deleted. It returns an error if the process behind the proxy has not deleted
// one, or has not kept it for long enough.
func deletedBy(t *testing.T, proxy *faults.Proxy, all []*request, keep time.Duration) error {
	t.Helper()
	var errs []error
	for _, obj := range all {
		eventually(t, obj.Name+" is deleted", func(ctx context.Context) error {
			if err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), &request{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it exists, or %w", err)
			}
			return nil
		})
		calls := slices.DeleteFunc(proxy.Calls(), func(call faults.Call) bool { return call.Verb != "delete" || call.Name != obj.Name })
		if len(calls) == 0 || calls[0].Start.Sub(obj.CreationTimestamp.Time) < keep {
			errs = append(errs, fmt.Errorf("deletions of %s, which was created at %s: %+v", obj.Name, obj.CreationTimestamp, calls))
		}
	}
	return errors.Join(errs...)
}

// TestStandbyIsQuietWhileTheLeaderRenews counts the calls for each request of a load, first with one replica and then
// with two.
func TestStandbyIsQuietWhileTheLeaderRenews(t *testing.T) {
	parallel(t)
	p := startLeader(t)
	single, _ := p.callsForEach(t)
	p.startStandby(t)
	var l *joining
	p.whileLed(t, func() (err error) {
		before := len(p.standbyProxy.Calls())
		var both float64
		both, l = p.callsForEach(t)
		// A standby also measures the time of the API servers.
		for _, call := range p.standbyProxy.Calls()[before:] {
			if call.Verb != "watch" && (call.Verb != "get" || call.Resource != "leases") && call.Path != "/version" {
				err = errors.Join(err, fmt.Errorf("a call of the standby: %s %s %s", call.Verb, call.Resource, call.Path))
			}
		}
		t.Logf("for each request %.2f calls of one replica and %.2f of two", single, both)
		if both > 1.1*single {
			err = errors.Join(err, errors.New("two replicas make more than 1.1 times the calls of one"))
		}
		return err
	})
	p.checkRecords(t, l)
}

// callsForEach runs a load for five seconds. It returns the number of calls of all replicas, divided by the number of
// requests. Reviews are left out, because requests that wait share them.
func (p *pair) callsForEach(t *testing.T) (float64, *joining) {
	t.Helper()
	count := func() int {
		calls := p.leaderProxy.Calls()
		if p.standbyProxy != nil {
			calls = slices.Concat(calls, p.standbyProxy.Calls())
		}
		return len(slices.DeleteFunc(calls, func(call faults.Call) bool { return call.Resource == "subjectaccessreviews" }))
	}
	before := count()
	l := startJoining(t)
	time.Sleep(5 * time.Second)
	l.longest(t)
	return float64(count()-before) / float64(len(l.made)), l
}
