package csr

import (
	"strings"
	"time"
)

// maxText bounds what a requester can make logs and messages hold, in bytes.
const maxText = 256

// Shorten cuts text that a requester has chosen.
func Shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// SubjectText is the subject as it would be issued, shortened, for logs and messages.
func (r *Request) SubjectText() string { return Shorten(r.Cert.Subject.String()) }

// Pause is how long a request of that age waits before it is looked at again without being woken: as long as it is
// old, between a second and a minute. So the pause doubles, without anything being counted or lost at a restart.
func Pause(age time.Duration) time.Duration {
	return min(max(age, time.Second), time.Minute)
}
