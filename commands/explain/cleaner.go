package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// cleaner says when the request is deleted, and by which of the retentions.
func (e *explainer) cleaner(p *page, f *findings) {
	p.title("Cleaner")
	if e.options.Cleaner == nil {
		p.row("deleted", switchedOff)
		return
	}
	at, due := e.options.Cleaner.Retention.Deadline(f.obj)
	if _, otherwise := (csr.RetentionPolicy{}).Deadline(f.obj); !due && !otherwise {
		p.row("deleted", "unknown: the object lacks the time that its retention counts from")
		return
	}
	if !due {
		p.row("deleted", "never: cleaning.retention keeps it for ever")
		return
	}
	p.row("deleted", moment(at, f.now))
	for _, one := range retentions(e.options.Cleaner.Retention, f.obj.Spec.SignerName) {
		if alone, applies := one.policy.Deadline(f.obj); applies && alone.Equal(at) {
			p.row("because", one.why)
		}
	}
	if after := e.options.Cleaner.SupersededAfter; after > 0 {
		if _, can := e.options.Cleaner.RequestLimits.Supersedable(f.obj); can {
			p.row("or sooner", fmt.Sprintf("cleaning.supersededAfter: %s after the same requester has made a newer request for this node and signer, if that one is pending then", after))
		}
	}
	dryRun(p, e.options.Cleaner.DryRun)
}

// dryRun says so.
func dryRun(p *page, is bool) {
	if is {
		p.row("dry run", "this is only told, and nothing is written (dryRun)")
	}
}

type soleRetention struct {
	why    string
	policy csr.RetentionPolicy
}

// retentions takes apart the retention of a signer's requests: each part alone, all others being for ever.
func retentions(policy csr.RetentionPolicy, signerName string) []soleRetention {
	keep, own := policy.Signers[signerName]
	if !own {
		keep = policy.Default
	}
	const ever = -1
	none := csr.Retention{Approved: ever, Denied: ever, Failed: ever, Pending: ever, Expired: ever}
	sole := func(why string, set func(*csr.Retention)) soleRetention {
		alone := none
		set(&alone)
		return soleRetention{why, csr.RetentionPolicy{Default: alone}}
	}
	in := func(state string, age, otherwise time.Duration) string {
		return fmt.Sprintf("cleaning.retention.%s: %s", state, cmp.Or(age, otherwise))
	}
	defaults := csr.DefaultRetention
	return []soleRetention{
		sole(in("approved", keep.Approved, defaults.Approved)+" after the approval", func(r *csr.Retention) { r.Approved = keep.Approved }),
		sole(in("denied", keep.Denied, defaults.Denied)+" after the denial", func(r *csr.Retention) { r.Denied = keep.Denied }),
		sole(in("failed", keep.Failed, defaults.Failed)+" after the failure", func(r *csr.Retention) { r.Failed = keep.Failed }),
		sole(in("pending", keep.Pending, defaults.Pending)+" after its creation", func(r *csr.Retention) { r.Pending = keep.Pending }),
		sole(in("expired", keep.Expired, defaults.Expired)+" after the end of its certificate", func(r *csr.Retention) { r.Expired = keep.Expired }),
	}
}

// maxEvents bounds how many Events are shown.
const maxEvents = 5

// events shows the latest Events about the request, as kubectl describe does.
func (e *explainer) events(ctx context.Context, p *page, f *findings) {
	p.title("Events")
	list := &corev1.EventList{}
	// Events about objects without a namespace are in this one.
	err := e.reader.List(ctx, list, client.InNamespace(corev1.NamespaceDefault), client.MatchingFields{"involvedObject.uid": string(f.obj.UID)})
	if err != nil {
		p.row("latest", unknown(err, "list events in namespace "+corev1.NamespaceDefault))
		return
	}
	if len(list.Items) == 0 {
		p.row("latest", "none: success causes none, and old ones are gone")
		return
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int {
		return cmp.Or(eventTime(&b).Compare(eventTime(&a)), cmp.Compare(a.Name, b.Name))
	})
	label := "latest"
	for _, event := range list.Items[:min(len(list.Items), maxEvents)] {
		by := cmp.Or(event.ReportingController, event.Source.Component)
		p.row(label, fmt.Sprintf("%s %s by %s", eventTime(&event).UTC().Format(time.RFC3339), quote(event.Reason), quote(by)), sentence(event.Message))
		label = ""
	}
}

// eventTime is when event happened last; which field has it depends on who wrote it.
func eventTime(event *corev1.Event) time.Time {
	if event.Series != nil && !event.Series.LastObservedTime.IsZero() {
		return event.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time, event.FirstTimestamp.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return event.CreationTimestamp.Time
}
