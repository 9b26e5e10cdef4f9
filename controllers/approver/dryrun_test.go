package approver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// counted returns the values of csr_approver_dry_run_total for signer, by "verdict reason outcome".
func counted(t *testing.T, signer string) map[string]int {
	t.Helper()
	families, err := metrics.Registry.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, family := range families {
		if family.GetName() != "csr_approver_dry_run_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if labels["signer"] == signer {
				found[labels["verdict"]+" "+labels["reason"]+" "+labels["outcome"]] = int(metric.GetCounter().GetValue())
			}
		}
	}
	return found
}

// signers numbers the signers of newSigner.
var signers atomic.Int64

// newSigner returns a signer name that was not used before, so its counters are zero.
func newSigner() string { return fmt.Sprintf("example.com/counted-%d", signers.Add(1)) }

// dryRunParts returns parts of a dry run for a signer of its own, so that no other test changes its counts.
func dryRunParts(t *testing.T, change ...func(*request)) (*parts, string) {
	t.Helper()
	signer := newSigner()
	rule := NodeClient()
	rule.SignerName = signer
	rule.Shape = func(req *csr.Request) error {
		if len(req.Usages) != 2 {
			return errors.New("usages")
		}
		return nil
	}
	p := newParts(t, object(t, append([]func(*request){func(obj *request) { obj.Spec.SignerName = signer }}, change...)...))
	p.reconciler.Rules, p.reconciler.DryRun = []Rule{rule}, true
	return p, signer
}

// step changes the request before a reconcile.
type step func(*parts)

func decidedBy(kind certificatesv1.RequestConditionType) step {
	return func(p *parts) {
		with(kind)(p.served)
		p.served.Status.Conditions[len(p.served.Status.Conditions)-1].LastUpdateTime = metav1.NewTime(p.clock.Now())
	}
}

func deleted(p *parts) { p.getFault = apierrors.NewNotFound(requests, "csr-1") }

// TestDryRunCompares has a row for each verdict and each decision of another approver.
func TestDryRunCompares(t *testing.T) {
	t.Parallel()
	nothing := func(*parts) {}
	grant := func(p *parts) { p.grants = []string{"nodeclient"} }
	replaced := func(p *parts) { p.served = p.served.DeepCopy(); p.served.UID = types.UID("uid-2") }
	issued := func(p *parts) { p.served.Status.Certificate = []byte("x") }
	later := func(p *parts) { p.clock.SetTime(now.Add(time.Hour)) }
	const no = "Wait NotAuthorized"
	for name, test := range map[string]struct {
		change []func(*request)
		denial Denial
		steps  []step
		want   map[string]int
		told   []string // reasons of the Events
		asked  int
	}{
		"approved by both":                           {steps: []step{grant, decidedBy("Approved"), issued, nothing}, want: map[string]int{"Approve AutoApproved agreed": 1}, told: []string{"WouldApprove"}, asked: 1},
		"approved by us, denied":                     {steps: []step{grant, decidedBy("Denied"), nothing}, want: map[string]int{"Approve AutoApproved disagreed": 1}, told: []string{"WouldApprove", "WouldDiffer"}, asked: 1},
		"approved by us, deleted":                    {steps: []step{grant, nothing, deleted, nothing}, want: map[string]int{"Approve AutoApproved undecided": 1}, told: []string{"WouldApprove"}, asked: 1},
		"approved by us, replaced":                   {steps: []step{grant, replaced, decidedBy("Approved")}, want: map[string]int{"Approve AutoApproved undecided": 1, "Approve AutoApproved agreed": 1}, told: []string{"WouldApprove", "WouldApprove"}, asked: 2},
		"refused by us, approved":                    {steps: []step{nothing, decidedBy("Approved"), issued}, want: map[string]int{no + " disagreed": 1}, told: []string{"WouldWait", "WouldDiffer"}, asked: 2},
		"refused by us, denied":                      {steps: []step{nothing, decidedBy("Denied")}, want: map[string]int{no + " agreed": 1}, told: []string{"WouldWait"}, asked: 2},
		"refused by us, deleted":                     {steps: []step{nothing, deleted}, want: map[string]int{no + " undecided": 1}, told: []string{"WouldWait"}, asked: 1},
		"approved by us after a while":               {steps: []step{nothing, nothing, grant, decidedBy("Approved")}, want: map[string]int{"Approve AutoApproved agreed": 1}, told: []string{"WouldWait", "WouldApprove"}, asked: 3},
		"approved by us at the same time":            {steps: []step{nothing, func(p *parts) { grant(p); decidedBy("Approved")(p) }}, want: map[string]int{"Approve AutoApproved agreed": 1}, told: []string{"WouldWait", "WouldApprove"}, asked: 2},
		"another approver is faster":                 {steps: []step{func(p *parts) { grant(p); decidedBy("Approved")(p); issued(p) }, nothing}, want: map[string]int{"Approve AutoApproved agreed": 1}, told: []string{"WouldApprove"}, asked: 1},
		"another approver is faster, and disagrees":  {steps: []step{decidedBy("Approved")}, want: map[string]int{no + " disagreed": 1}, told: []string{"WouldWait", "WouldDiffer"}, asked: 1},
		"created before the dry run, decided before": {change: []func(*request){func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(-time.Second)) }}, steps: []step{decidedBy("Approved"), nothing}},
		"created before the dry run, decided later":  {change: []func(*request){func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }}, steps: []step{grant, decidedBy("Approved")}, want: map[string]int{"Approve AutoApproved agreed": 1}, told: []string{"WouldApprove"}, asked: 1},
		"approved by us, permission removed later":   {steps: []step{grant, func(p *parts) { p.grants = nil }, later, decidedBy("Approved")}, want: map[string]int{"Approve AutoApproved agreed": 1}, told: []string{"WouldApprove"}, asked: 1},
		"can never be valid":                         {change: []func(*request){serverAuth}, steps: []step{nothing, decidedBy("Denied")}, want: map[string]int{"Ignore ShapeMismatch agreed": 1}, told: []string{"WouldIgnore"}},
		"can never be valid, denied":                 {change: []func(*request){serverAuth}, denial: DenialPermanent, steps: []step{nothing, decidedBy("Denied")}, want: map[string]int{"Deny ShapeMismatch agreed": 1}, told: []string{"WouldDeny"}},
		"can never be valid, approved":               {change: []func(*request){serverAuth}, denial: DenialPermanent, steps: []step{decidedBy("Approved")}, want: map[string]int{"Deny ShapeMismatch disagreed": 1}, told: []string{"WouldDeny", "WouldDiffer"}},
		"malformed":                                  {change: []func(*request){malformedRequest}, steps: []step{nothing, deleted}, want: map[string]int{"Ignore Malformed undecided": 1}, told: []string{"WouldIgnore"}},
		"another signer":                             {change: []func(*request){func(obj *request) { obj.Spec.SignerName = "example.com/other" }}, steps: []step{grant, decidedBy("Approved"), deleted}},
		"Failed, undecided":                          {steps: []step{grant, decidedBy("Failed")}, told: []string{"WouldApprove"}, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, signer := dryRunParts(t, test.change...)
			p.reconciler.Denial = test.denial
			for _, step := range test.steps {
				step(p)
				if _, err := p.reconcile(t); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(test.want, counted(t, signer), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
			var told []string
			for _, event := range p.events() {
				var kind, reason string
				_, _ = fmt.Sscan(event, &kind, &reason)
				told = append(told, reason)
				if (kind == "Normal") != (reason == "WouldApprove") {
					t.Errorf("%s", event)
				}
			}
			if diff := cmp.Diff(test.told, told); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if len(p.written) > 0 || len(p.reviews) != test.asked {
				t.Errorf("%d writes, %d reviews, want none and %d", len(p.written), len(p.reviews), test.asked)
			}
		})
	}
}

// TestDryRunWaits checks that a dry run requeues a request like the approver, with the same message.
func TestDryRunWaits(t *testing.T) {
	t.Parallel()
	p, _ := dryRunParts(t)
	p.clock.SetTime(now.Add(7 * time.Second))
	result, err := p.reconcile(t)
	if err != nil || result.RequeueAfter != 7*time.Second {
		t.Errorf("again after %s, error %v", result.RequeueAfter, err)
	}
	want := []string{`Warning WouldWait NotAuthorized: user "system:bootstrap:abcdef" with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" ` +
		`but may not create certificatesigningrequests/nodeclient (API group certificates.k8s.io): if this user may join nodes, bind a ClusterRole with this permission to it; the request is checked again within a minute`}
	if diff := cmp.Diff(want, p.events()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	p.grants = []string{"nodeclient"}
	if result, err := p.reconcile(t); err != nil || result.RequeueAfter != 0 {
		t.Errorf("again after %s, error %v", result.RequeueAfter, err)
	}
	if diff := cmp.Diff([]string{"Normal WouldApprove AutoApproved: " + otherMessage}, p.events()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	decidedBy("Denied")(p)
	if _, err := p.reconcile(t); err != nil {
		t.Error(err)
	}
	want = []string{"Warning WouldDiffer another approver has not approved this request, but the verdict of this dry run is Approve: AutoApproved: " + otherMessage}
	if diff := cmp.Diff(want, p.events()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// TestEachRequestIsComparedOnce checks that a dry run counts a request once, and not for another request of its name.
func TestEachRequestIsComparedOnce(t *testing.T) {
	t.Parallel()
	var o opinions
	obj, other := object(t), object(t)
	other.UID = "another"
	o.of(obj, now)
	o.note(obj, Decision{})
	for i, step := range []struct {
		obj  *request
		want bool
	}{{other, false}, {obj, true}, {obj, false}} {
		if got := o.markCompared(step.obj); got != step.want {
			t.Errorf("step %d: compared for the first time: %t, want %t", i, got, step.want)
		}
	}
}

func TestDryRunFaults(t *testing.T) {
	t.Parallel()
	p, signer := dryRunParts(t)
	p.fault = errors.New("down")
	if _, err := p.reconcile(t); err == nil {
		t.Error("a review that fails is no verdict")
	}
	p.getFault = errors.New("down")
	if _, err := p.reconcile(t); err == nil || len(p.events()) > 0 || len(counted(t, signer)) > 0 {
		t.Error("a request that can't be read is none that is gone")
	}
}
