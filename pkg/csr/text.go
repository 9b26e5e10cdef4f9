package csr

import (
	"fmt"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// maxText bounds what a requester can make logs and messages hold, in bytes.
const maxText = 256

const cut = "..."

// Shorten cuts text that a requester has chosen.
func Shorten(text string) string { return ShortenTo(text, maxText) }

// ShortenTo cuts text to at most room bytes, of which the last ones then say that it was cut.
func ShortenTo(text string, room int) string {
	if len(text) <= room {
		return text
	}
	return strings.ToValidUTF8(text[:room-len(cut)], "") + cut
}

// ShortenAll bounds the number and the length of texts that a requester has chosen, for a message.
func ShortenAll(all []string) []string {
	const most = 8
	shown := make([]string, 0, most+1)
	for i, text := range all {
		if i == most {
			return append(shown, fmt.Sprintf("and %d more", len(all)-most))
		}
		shown = append(shown, Shorten(text))
	}
	return shown
}

// SubjectText is the subject as it would be issued, shortened, for logs and messages.
func (r *Request) SubjectText() string { return ca.SubjectText(r.Cert.Subject, maxText) }

// Pause is how long a request of that age waits before it is looked at again without being woken: as long as it is
// old, between a second and a minute. So the pause doubles, without anything being counted or lost at a restart.
func Pause(age time.Duration) time.Duration {
	return min(max(age, time.Second), time.Minute)
}
