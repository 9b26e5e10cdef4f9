package explain

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// Page collects an explanation as text that is safe for a terminal.
type Page struct {
	text strings.Builder
	now  time.Time
}

// NewPage returns a Page with ages at now.
func NewPage(now time.Time) *Page { return &Page{now: now} }

// String returns the text.
func (p *Page) String() string { return p.text.String() }

// Title begins a section.
func (p *Page) Title(text string) {
	if p.text.Len() > 0 {
		p.text.WriteString("\n")
	}
	p.text.WriteString(ascii.Quote(text) + "\n")
}

// Row writes values below each other, with label before the first one. It wraps a value, unless it is quoted.
func (p *Page) Row(label string, values ...string) {
	label = fmt.Sprintf("  %-12s  ", ascii.Quote(label))
	for _, value := range values {
		if strings.HasPrefix(value, `"`) {
			p.text.WriteString(label + ascii.Quote(value) + "\n")
		} else {
			p.text.WriteString(ascii.Wrap(label, ascii.Quote(value)))
		}
		label = strings.Repeat(" ", len(label))
	}
}

// Text writes a paragraph.
func (p *Page) Text(text string) { p.text.WriteString(ascii.Wrap("  ", ascii.Quote(text))) }

// Table writes rows in columns, if there is more than the first one, which is the heading. An empty cell is a dash.
func (p *Page) Table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	if p.text.Len() > 0 {
		p.text.WriteString("\n")
	}
	table := tabwriter.NewWriter(&p.text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = ascii.Quote(cmp.Or(cell, "-"))
		}
		_, _ = io.WriteString(table, strings.Join(cells, "\t")+"\n") // a Builder takes all
	}
	_ = table.Flush()
}

// Command writes a command that can be copied.
func (p *Page) Command(text string) {
	if text != "" {
		p.text.WriteString("    " + ascii.Quote(text) + "\n")
	}
}

// Age returns the time since at, or until at.
func (p *Page) Age(at time.Time) string {
	switch {
	case at.IsZero():
		return "at an unknown time"
	case at.After(p.now):
		return "in " + duration.HumanDuration(at.Sub(p.now))
	default:
		return duration.HumanDuration(p.now.Sub(at)) + " ago"
	}
}

func (p *Page) moment(at time.Time) string {
	return at.UTC().Format(time.RFC3339) + " (" + p.Age(at) + ")"
}

// Facts writes f.
func (p *Page) Facts(f *Facts) {
	p.Title("Request")
	p.Row("signer", strconv.Quote(f.Signer))
	p.Row("node", quoteAll(f.Node)...)
	p.Row("created", p.moment(f.Created))
	p.Row("requester", strconv.Quote(f.Requester))
	p.Row("groups", quoteAll(f.Groups...)...)
	p.Row("made with", quoteAll(f.MadeWith...)...)
	p.Row("subject", strconv.Quote(f.Subject))
	p.Row("names", quoteAll(f.Names...)...)
	p.Row("usages", quoteAll(f.Usages...)...)
	p.Row("key", f.Key)
	if f.Lifetime != "" {
		p.Row("lifetime", f.Lifetime)
	}
	if len(f.Dropped) > 0 {
		p.Row("dropped", append(quoteAll(f.Dropped...), "(requested, and no certificate will contain it)")...)
	}
	if len(f.Conditions) > 0 {
		p.Title("Conditions")
	}
	for _, condition := range f.Conditions {
		p.Row(condition.Type, strconv.Quote(condition.Reason)+", "+p.Age(condition.Time), strconv.Quote(condition.Message))
	}
	if cert := f.Certificate; cert != nil {
		p.Title("Certificate")
		p.Row("SHA-256", strconv.Quote(cert.SHA256))
		p.Row("issuer", strconv.Quote(cert.Issuer))
		p.Row("valid from", p.moment(cert.NotBefore))
		p.Row("valid until", p.moment(cert.NotAfter))
		if cert.Problem != "" {
			p.Row("problem", cert.Problem)
		}
	}
}

// quoteAll quotes texts, so that the reader sees where each one begins and ends.
func quoteAll(texts ...string) []string {
	var quoted []string
	for _, text := range texts {
		if text != "" {
			quoted = append(quoted, strconv.Quote(text))
		}
	}
	if quoted == nil {
		return []string{"none"}
	}
	return quoted
}
