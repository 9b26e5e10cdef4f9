package explain

import (
	"fmt"
	"strconv"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
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

// row writes one line for each value, with the label before the first. A value that comes from an object must have gone
// through quote or sentence.
func (p *page) row(label string, values ...string) {
	for _, value := range values {
		p.text = fmt.Appendf(p.text, "  %-14s  %s\n", label, value)
		label = ""
	}
}

// quote shortens text and returns it as ASCII in quotes, so that no control character, line end or writing direction
// reaches a terminal.
func quote(text string) string { return strconv.QuoteToASCII(csr.Shorten(text)) }

// quoteAll quotes each of texts. It returns "none" for an empty list.
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

// sentence returns the text of an Event, and escapes what is not printable ASCII.
func sentence(text string) string { return ascii.Quote(csr.ShortenTo(text, maxSentence)) }

// moment returns an instant with its distance from now.
func moment(at, now time.Time) string {
	distance := now.Sub(at).Round(time.Second)
	if distance < 0 {
		return fmt.Sprintf("%s (in %s)", at.UTC().Format(time.RFC3339), -distance)
	}
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339), distance)
}
