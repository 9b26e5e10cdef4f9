package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// maxSentence is the maximum length of a sentence, in bytes, like that of an Event's note.
	maxSentence = 1024
	// maxItems bounds a list.
	maxItems = 20
)

// Section is a part of the details of a Report.
type Section struct {
	Title string `json:"title"`
	Rows  []Row  `json:"rows"`
}

// Row is a label with one or more values.
type Row struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// page collects sections.
type page struct{ sections []Section }

func (p *page) title(text string) {
	p.sections = append(p.sections, Section{Title: text, Rows: []Row{}})
}

// row adds values to the last section. A value that comes from an object must have gone through quote or sentence.
func (p *page) row(label string, values ...string) {
	last := &p.sections[len(p.sections)-1]
	last.Rows = append(last.Rows, Row{label, values})
}

// appendTo appends the section as text, with the label before the first value. It leaves out a message that is part of
// above, which the reader has just read. It wraps no quoted value, so that it can be copied.
func (s Section) appendTo(text []byte, above string) []byte {
	text = append(text, "\n"+s.Title+"\n"...)
	for _, row := range s.Rows {
		label := fmt.Sprintf("  %-18s  ", row.Name)
		for i, value := range row.Values {
			switch {
			case strings.HasPrefix(value, `"`):
				text = append(text, label+value+"\n"...)
			case (row.Name == "message" || i > 0) && strings.Contains(above, value):
				continue // i > 0: the message of an Event
			default:
				text = append(text, ascii.Wrap(label, value)...)
			}
			label = strings.Repeat(" ", len(label))
		}
	}
	return text
}

// fields returns the sections for JSON and YAML: a value that is quoted for a terminal loses its quotation marks, and
// keeps its escapes.
func fields(sections []Section) []Section {
	plain := make([]Section, len(sections))
	for i, section := range sections {
		plain[i] = Section{Title: section.Title, Rows: make([]Row, len(section.Rows))}
		for j, row := range section.Rows {
			plain[i].Rows[j] = Row{Name: unquote(row.Name), Values: make([]string, len(row.Values))}
			for k, value := range row.Values {
				plain[i].Rows[j].Values[k] = unquote(value)
			}
		}
	}
	return plain
}

func unquote(text string) string {
	plain, err := strconv.Unquote(text)
	if err != nil {
		return text
	}
	return ascii.Quote(plain)
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

// ended returns text as a sentence that ends with a full stop.
func ended(text string) string {
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, `."`) || text == "" {
		return text
	}
	return text + "."
}

// instant returns at as it is printed.
func instant(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// moment returns an instant with its distance from now.
func moment(at, now time.Time) string { return fmt.Sprintf("%s (%s)", instant(at), distance(at, now)) }

// distance returns how far at is from now: "5m ago" or "in 23h".
func distance(at, now time.Time) string {
	if at.After(now) {
		return "in " + span(at.Sub(now))
	}
	return span(now.Sub(at)) + " ago"
}

// span returns a length of time: to the second below ten minutes, to the minute below two days, then as kubectl does.
func span(length time.Duration) string {
	switch {
	case length < 10*time.Minute:
		return hours(length.Round(time.Second))
	case length < 48*time.Hour:
		return hours(length.Round(time.Minute))
	default:
		return duration.HumanDuration(length)
	}
}

// hours returns a duration of whole hours or minutes without the zeros at its end.
func hours(length time.Duration) string {
	text := length.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
