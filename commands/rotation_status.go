package commands

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// status prints a page for each of objs.
func (r *rotation) status(ctx context.Context, objs []v1alpha1.SigningAuthority) error {
	for i := range objs {
		page := statusPage{now: r.clock.Now()}
		if i > 0 {
			page.line("")
		}
		page.authority(&objs[i])
		if objs[i].Status.Retiring != nil {
			page.nodes(r.stayed(ctx, &objs[i]))
		}
		if _, err := r.out.Write(page.text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// statusPage is what a person reads.
type statusPage struct {
	text bytes.Buffer
	now  time.Time
}

func (p *statusPage) line(format string, args ...any) {
	p.text.WriteString(oneLine(fmt.Sprintf(format, args...)) + "\n")
}

// table has an empty line before it, and rows of which the first says what is in them. Without others there is none.
func (p *statusPage) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	p.line("")
	table := tabwriter.NewWriter(&p.text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = cmp.Or(oneLine(row[i]), "-")
		}
		_, _ = io.WriteString(table, strings.Join(row, "\t")+"\n") // a Buffer takes all
	}
	_ = table.Flush()
}

func (p *statusPage) authority(obj *v1alpha1.SigningAuthority) {
	status := &obj.Status
	p.line("SigningAuthority %s: %s, generation %d", obj.Name, phase(status), status.Generation)
	p.line("signs for %s", strings.Join(obj.Spec.Signers, ", "))
	if pending := obj.Annotations[v1alpha1.OperationAnnotation]; pending != "" {
		p.line("asked for: %s", pending)
	}
	if status.Intent != "" {
		p.line("at: %s", status.Intent)
	}
	p.line("allowed now: %s", v1alpha1.AllowedText(status.Phase))
	if status.LastCompletedAt != nil {
		p.line("last rotation completed: %s", p.since(status.LastCompletedAt))
	}
	p.cas(status)
	if len(status.WaitingFor) > 0 {
		p.line("")
		p.line("Waits for")
		for _, each := range status.WaitingFor {
			p.line("- %s", each)
		}
	}
	rows := [][]string{{"API SERVER", "ANSWER", "SINCE", "EVIDENCE"}}
	for _, server := range status.APIServers {
		rows = append(rows, []string{server.Address, server.Trust, p.since(server.Since), server.Evidence})
	}
	p.table(rows)
	p.outstanding(status)
	rows = [][]string{{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, condition := range status.Conditions {
		rows = append(rows, []string{condition.Type, string(condition.Status), condition.Reason, condition.Message})
	}
	p.table(rows)
}

func (p *statusPage) cas(status *v1alpha1.SigningAuthorityStatus) {
	rows := [][]string{{"CA", "KEY ID", "GENERATION", "ENDS", "SIGNS SINCE", "OWNER"}}
	for _, each := range []struct {
		role string
		ca   *v1alpha1.CAStatus
	}{{"candidate", status.Candidate}, {"signing", status.Signing}, {"retiring", status.Retiring}} {
		if each.ca != nil {
			rows = append(rows, []string{
				each.role, each.ca.KeyID, strconv.FormatInt(each.ca.Generation, 10), p.end(each.ca.NotAfter.Time), p.since(each.ca.SignsSince), said(each.ca),
			})
		}
	}
	p.table(rows)
}

// said is what is known of a CA from its owner.
func said(ca *v1alpha1.CAStatus) string {
	var all []string
	for _, each := range []struct {
		what string
		at   *metav1.Time
	}{{"brought it", ca.AdoptedAt}, {"attested", ca.AttestedAt}, {"confirmed its trust", ca.TrustConfirmedAt}, {"accepts that it breaks", ca.OutstandingAcceptedAt}} {
		if each.at != nil {
			all = append(all, each.what)
		}
	}
	return strings.Join(all, ", ")
}

func (p *statusPage) outstanding(status *v1alpha1.SigningAuthorityStatus) {
	rows := [][]string{{"STILL ON THE RETIRING CA", "AT MOST", "UNTIL"}}
	for _, one := range status.Outstanding {
		count := "unknown"
		if one.Count > 0 {
			count = strconv.FormatInt(one.Count, 10)
		}
		rows = append(rows, []string{cmp.Or(one.Signer, "issued by others"), count, p.end(one.Until.Time)})
	}
	p.table(rows)
}

// end is an instant, most often to come.
func (p *statusPage) end(at time.Time) string {
	text := at.UTC().Format(time.RFC3339)
	if left := at.Sub(p.now); left > 0 {
		return fmt.Sprintf("%s (in %s)", text, duration.HumanDuration(left))
	}
	return text + " (over)"
}

func (p *statusPage) since(at *metav1.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", at.UTC().Format(time.RFC3339), duration.HumanDuration(p.now.Sub(at.Time)))
}
