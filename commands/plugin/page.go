package plugin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// write writes a result: value as JSON, or else the page that text fills. JSON is escaped to ASCII, too.
func (c *cluster) write(out io.Writer, asJSON bool, value any, text func(*page)) error {
	p := &page{now: c.now()}
	if asJSON {
		data, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return err
		}
		p.text.Write(append(ascii.JSON(data), '\n'))
	} else {
		text(p)
	}
	_, err := io.WriteString(out, p.text.String())
	return err
}

// page collects lines of text. Text from objects cannot look like another line, or control the terminal.
type page struct {
	text strings.Builder
	now  time.Time
}

// oneLine returns text in one line of printable ASCII.
func oneLine(text string) string { return ascii.Quote(strings.ReplaceAll(text, "\n", " ")) }

// cell returns text for a column of a table: in one line, at most 63 bytes long, and quoted if a shell could read more in it.
func cell(text string) string { return check.Word(csr.ShortenTo(oneLine(text), 63)) }

// plainName matches names that a command may contain: a shell reads nothing in them, and kubectl reads no flag.
var plainName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,252}$`)

// commandFor returns a command with name as its last word. If name is not plain, the last word is NAME: a requester must not
// choose words of a command that a person copies.
func commandFor(command, name string) string {
	if !plainName.MatchString(name) {
		name = "NAME"
	}
	return command + " " + name
}

// line writes text. Unlike a title, it does not begin a section.
func (p *page) line(text string) { p.text.WriteString(oneLine(text) + "\n") }

// title begins a section.
func (p *page) title(text string) {
	if p.text.Len() > 0 {
		p.text.WriteString("\n")
	}
	p.line(text)
}

// row writes values below each other, with label before the first one.
func (p *page) row(label string, values ...string) {
	for _, value := range values {
		p.line(fmt.Sprintf("  %-12s  %s", label, value))
		label = ""
	}
}

// table writes rows in columns, if there is more than the first one, which is the heading. An empty cell is a dash. No column is
// wider than 253 bytes.
func (p *page) table(rows [][]string) {
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
			cells[i] = csr.ShortenTo(oneLine(cmp.Or(cell, "-")), csr.MaxName)
		}
		_, _ = io.WriteString(table, strings.Join(cells, "\t")+"\n") // a Builder takes all
	}
	_ = table.Flush()
}

// age returns the time since at, or until at. It returns a dash if at is not known.
func (p *page) age(at time.Time) string {
	switch {
	case at.IsZero():
		return "-"
	case at.After(p.now):
		return "in " + duration.HumanDuration(at.Sub(p.now))
	default:
		return duration.HumanDuration(p.now.Sub(at)) + " ago"
	}
}

func (p *page) moment(at time.Time) string {
	return at.UTC().Format(time.RFC3339) + " (" + p.age(at) + ")"
}

// quoted quotes texts, so that the reader sees where each one begins and ends.
func quoted(texts ...string) []string {
	var all []string
	for _, text := range texts {
		if text != "" {
			// A run of spaces could make the next line of a terminal look like another row.
			all = append(all, strings.ReplaceAll(strconv.Quote(text), "  ", ` \x20`))
		}
	}
	if all == nil {
		return []string{"none"}
	}
	return all
}
