package explain

import (
	"fmt"
	"strconv"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// maxSentence bounds a sentence, in bytes, as an Event's note is bounded.
	maxSentence = 1024
	// maxItems bounds a list.
	maxItems = 20
)

// page is text in sections of labelled rows.
type page struct{ text []byte }

func (p *page) title(text string) {
	if len(p.text) > 0 {
		p.text = append(p.text, '\n')
	}
	p.text = append(p.text, text+"\n"...)
}

// row writes one line for each value, with the label before the first. Values are safe to print: ours, or through quote
// or sentence.
func (p *page) row(label string, values ...string) {
	for _, value := range values {
		p.text = fmt.Appendf(p.text, "  %-14s  %s\n", label, value)
		label = ""
	}
}

// quote makes text that somebody else has chosen visible and harmless: short, and nothing but ASCII in quotes, so that
// no control character, line end or writing direction reaches a terminal.
func quote(text string) string { return strconv.QuoteToASCII(csr.Shorten(text)) }

// quoteAll is quote for a list; an empty one is "none".
func quoteAll[T ~string](texts []T) []string {
	var quoted []string
	for i, text := range texts {
		if i == maxItems {
			return append(quoted, fmt.Sprintf("and %d more", len(texts)-maxItems))
		}
		quoted = append(quoted, quote(string(text)))
	}
	if quoted == nil {
		return []string{"none"}
	}
	return quoted
}

// sentence is the text of an Event, byte by byte, but for what is not printable ASCII, which is escaped.
func sentence(text string) string { return ascii.Quote(csr.ShortenTo(text, maxSentence)) }

// moment is an instant, and how far it is from now.
func moment(at, now time.Time) string {
	distance := now.Sub(at).Round(time.Second)
	if distance < 0 {
		return fmt.Sprintf("%s (in %s)", at.UTC().Format(time.RFC3339), -distance)
	}
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339), distance)
}
