package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// cleaner writes when the request is deleted, and which part of the retention says so.
func (e *Explainer) cleaner(p *page, f *Findings) {
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
		p.row("deleted", "never: cleaning.retention keeps the request for ever")
		return
	}
	p.row("deleted", moment(at, f.now))
	keep, own := e.options.Cleaner.Retention.Signers[f.obj.Spec.SignerName]
	if !own {
		keep = e.options.Cleaner.Retention.Default
	}
	because(p, f, keep, at)
	dryRun(p, e.options.Cleaner.DryRun)
}

// because writes each part of keep that alone would delete the request at the same time.
func because(p *page, f *Findings, keep csr.Retention, at time.Time) {
	const ever = -1
	defaults := csr.DefaultRetention
	for _, part := range []struct {
		state, event string
		age          func(*csr.Retention) *time.Duration
	}{
		{"approved", "the approval", func(r *csr.Retention) *time.Duration { return &r.Approved }},
		{"denied", "the denial", func(r *csr.Retention) *time.Duration { return &r.Denied }},
		{"failed", "the failure", func(r *csr.Retention) *time.Duration { return &r.Failed }},
		{"pending", "its creation", func(r *csr.Retention) *time.Duration { return &r.Pending }},
		{"expired", "the end of its certificate", func(r *csr.Retention) *time.Duration { return &r.Expired }},
	} {
		alone := csr.Retention{Approved: ever, Denied: ever, Failed: ever, Pending: ever, Expired: ever}
		*part.age(&alone) = *part.age(&keep)
		if deadline, applies := (csr.RetentionPolicy{Default: alone}).Deadline(f.obj); applies && deadline.Equal(at) {
			age := cmp.Or(*part.age(&keep), *part.age(&defaults))
			p.row("because", fmt.Sprintf("cleaning.retention.%s: %s after %s", part.state, hours(age), part.event))
		}
	}
}

// dryRun writes that the controller only reports this, if it is in a dry run.
func dryRun(p *page, is bool) {
	if is {
		p.row("dry run", "the controller only reports this, and writes nothing (dryRun)")
	}
}

// maxEvents bounds how many Events are shown.
const maxEvents = 5

// events writes the latest Events about the request, as kubectl describe does.
func events(p *page, f *Findings) {
	p.title("Events")
	if f.unlisted != nil {
		p.row("latest", unknown(f.unlisted, "list events in namespace "+corev1.NamespaceDefault))
		return
	}
	if len(f.events) == 0 {
		p.row("latest", "none: success causes no Event, and the API server deletes Events after an hour")
		return
	}
	slices.SortStableFunc(f.events, func(a, b corev1.Event) int {
		return cmp.Or(check.EventTime(&b).Compare(check.EventTime(&a)), cmp.Compare(a.Name, b.Name))
	})
	label := "latest"
	for _, event := range f.events[:min(len(f.events), maxEvents)] {
		by := cmp.Or(event.ReportingController, event.Source.Component)
		at := instant(check.EventTime(&event))
		p.row(label, fmt.Sprintf("%s %s by %s", at, quote(event.Reason), quote(by)), sentence(event.Message))
		label = "before"
	}
}
