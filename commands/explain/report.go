package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Report is the explanation of one request. All its text is printable ASCII.
type Report struct {
	Name  string    `json:"name"`
	State csr.State `json:"state"`
	// NextStep is what to do now, in one or two sentences. Command is the command that does it, if there is one.
	NextStep string `json:"nextStep"`
	Command  string `json:"command,omitempty"`
	// Decision says what has been decided, or what would be decided now, and why. Reason is only the reason.
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
	// Difference says how the decision differs from the last Event of the running manager.
	Difference string    `json:"difference,omitempty"`
	Timeline   []Step    `json:"timeline"`
	Details    []Section `json:"details"`
}

// Step is an event in the life of a request, or its future deletion.
type Step struct {
	// Time is nil if it is not recorded.
	Time *metav1.Time `json:"time,omitempty"`
	// After is the time since the step before.
	After string `json:"after,omitempty"`
	// What is the kind of the step: created, approved, denied, failed, signed, event or deletion.
	What string `json:"what"`
	Text string `json:"text"`
}

// Write writes reports to out. format is "json" or "yaml", or empty for text.
func Write(out io.Writer, format string, reports ...*Report) error {
	for i, report := range reports {
		var text []byte
		var err error
		switch format {
		case "json":
			if text, err = json.MarshalIndent(report.fields(), "", "  "); err == nil {
				text = append(text, '\n')
			}
		case "yaml":
			if text, err = yaml.Marshal(report.fields()); err == nil && i > 0 {
				text = append([]byte("---\n"), text...)
			}
		case "", "table", "text":
			if text = report.text(); i > 0 {
				text = append([]byte("\n\n"), text...)
			}
		default:
			err = fmt.Errorf("unknown output format %q: use json or yaml, or leave it out", format)
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) fields() *Report {
	plain := *r
	plain.Details = fields(r.Details)
	return &plain
}

// text returns the report for a terminal.
func (r *Report) text() []byte {
	name := strings.ReplaceAll(r.Name, `"`, `\"`) // the name of a request may hold anything, such as another state
	text := fmt.Appendf(nil, "%s \"%s\": %s\n\nNext step\n%s", requestKind, name, r.State, ascii.Wrap("  ", r.NextStep))
	if r.Command != "" {
		text = append(text, "    "+r.Command+"\n"...)
	}
	text = append(text, "\nDecision\n"+ascii.Wrap("  ", r.Decision)...)
	if r.Difference != "" {
		text = append(text, ascii.Wrap("  ", r.Difference)...)
	}
	text = append(text, "\nTimeline\n"...)
	for _, step := range r.Timeline {
		at := "not recorded"
		if step.Time != nil {
			at = instant(step.Time.Time)
		}
		text = append(text, ascii.Wrap(fmt.Sprintf("  %-20s  %-7s  %-8s  ", at, step.After, step.What), step.Text)...)
	}
	for _, section := range r.Details {
		text = section.appendTo(text, r.Decision)
	}
	return text
}

// reportOf returns the report about what f holds.
func (e *Explainer) reportOf(f *Findings) *Report {
	r := &Report{Name: ascii.Quote(csr.Shorten(f.obj.Name)), State: f.State}
	r.Decision, r.Reason = e.verdict(f)
	r.Difference = sentence(e.difference(f))
	next := e.nextStep(f)
	r.NextStep, r.Command = next.text, next.command
	r.Timeline = e.timeline(f)
	p := &page{}
	asked(p, f)
	conditions(p, f)
	certificate(p, f)
	renewals(p, f)
	e.approver(p, f)
	e.signer(p, f)
	e.cleaner(p, f)
	events(p, f)
	r.Details = p.sections
	return r
}

// isDone reports whether nothing more is going to happen to a request in that state but its deletion.
func isDone(state csr.State) bool {
	return state == csr.Issued || state == csr.Denied || state == csr.Failed
}
