package ca

import (
	"crypto/x509/pkix"
	"strings"
)

const (
	// maxSubjectText bounds a subject in a message, in bytes.
	maxSubjectText = 256

	ellipsis = "..."
)

// SubjectText renders name as its String method does, but at most room bytes of it, of which the last ones then say that
// text is missing. It takes time in proportion to room and to the number of attributes: pkix.RDNSequence.String copies the
// whole text again for each attribute.
func SubjectText(name pkix.Name, room int) string {
	name.Names = nil // String adds the unknown attributes of a parsed name, which no certificate holds
	rdns := name.ToRDNSequence()
	var text strings.Builder
	for i := len(rdns) - 1; i >= 0; i-- {
		for j, attribute := range rdns[i] {
			if text.Len() > room {
				return cutText(text.String(), room)
			}
			switch {
			case j > 0:
				text.WriteByte('+')
			case text.Len() > 0:
				text.WriteByte(',')
			}
			if value, ok := attribute.Value.(string); ok {
				attribute.Value = value[:min(len(value), room+1)]
			}
			text.WriteString(pkix.RDNSequence{{attribute}}.String())
		}
	}
	return cutText(text.String(), room)
}

func cutText(text string, room int) string {
	if len(text) <= room {
		return text
	}
	return strings.ToValidUTF8(text[:room-len(ellipsis)], "") + ellipsis
}
