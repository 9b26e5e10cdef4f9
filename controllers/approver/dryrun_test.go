package approver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// TestDryRunReports checks the Event of each verdict, that it is reported once, and that nothing is written.
func TestDryRunReports(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*request)
		denial Denial
		grants []string
		age    time.Duration
		want   []string // type and reason
		again  time.Duration
		record []string
	}{
		"would approve":                    {grants: []string{"nodeclient"}, want: []string{"Normal WouldApprove"}, record: []string{"Decided WouldApprove"}, again: report.Again},
		"would wait":                       {want: []string{"Warning WouldWait"}, again: time.Second, record: []string{"Decided WouldWait"}},
		"would ignore":                     {change: serverAuth, want: []string{"Warning WouldIgnore"}, record: []string{"Decided WouldIgnore"}, again: report.Again},
		"would deny":                       {change: serverAuth, denial: DenialPermanent, want: []string{"Warning WouldDeny"}, record: []string{"Decided WouldDeny"}, again: report.Again},
		"cannot be read":                   {change: malformedRequest, want: []string{"Warning WouldIgnore"}, record: []string{"Decided WouldIgnore"}, again: report.Again},
		"approved by another a moment ago": {change: with("Approved"), grants: []string{"nodeclient"}, want: []string{"Normal WouldApprove"}, record: []string{"Decided WouldApprove"}, again: report.Again},
		"signed by another a moment ago": {
			change: func(obj *request) { obj.Status.Certificate = []byte("x") }, grants: []string{"nodeclient"},
			want: []string{"Normal WouldApprove"}, record: []string{"Decided WouldApprove"}, again: report.Again,
		},
		"approved by another long ago": {change: with("Approved"), grants: []string{"nodeclient"}, age: decidedFor + 1},
		"another signer":               {change: func(obj *request) { obj.Spec.SignerName = "example.com/other" }, grants: []string{"nodeclient"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := object(t)
			if test.change != nil {
				test.change(obj)
			}
			p := newParts(t, obj)
			recorded := p.audited(t)
			p.reconciler.DryRun, p.reconciler.Denial, p.grants = true, test.denial, test.grants
			p.clock.SetTime(now.Add(test.age))
			for range 2 {
				if result, err := p.reconcile(t); err != nil || result != (reconcile.Result{RequeueAfter: test.again}) {
					t.Errorf("%+v, error %v", result, err)
				}
			}
			var told []string
			for _, event := range p.events() {
				words := strings.Fields(event)
				told = append(told, words[0]+" "+words[1])
			}
			if diff := cmp.Diff(test.want, told); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.record, recorded()); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
			if len(p.written) > 0 {
				t.Errorf("%d writes", len(p.written))
			}
		})
	}
}

// TestDryRunIsCounted checks the labels of the metric.
func TestDryRunIsCounted(t *testing.T) {
	t.Parallel()
	const signer = "example.com/dry-run"
	p := newParts(t, object(t, func(obj *request) { obj.Spec.SignerName = signer }))
	p.reconciler.Rules[0].SignerName, p.reconciler.DryRun, p.grants = signer, true, []string{"nodeclient"}
	for range 2 {
		if _, err := p.reconcile(t); err != nil {
			t.Fatal(err)
		}
	}
	counted := &dto.Metric{}
	if err := dryRunTotal.WithLabelValues(signer, "Approve", "AutoApproved").Write(counted); err != nil || counted.Counter.GetValue() != 1 {
		t.Errorf("counted %g, error %v", counted.Counter.GetValue(), err)
	}
}

func TestDryRunFaults(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.reconciler.DryRun, p.fault = true, errors.New("down")
	if _, err := p.reconcile(t); err == nil || len(p.events()) > 0 {
		t.Errorf("error %v: a review that fails is no verdict", err)
	}
}
