// Package ascii makes untrusted text visible and harmless: only printable ASCII reaches a terminal, a log or a file.
// Control characters steer terminals. U+202E reverses the direction of text. Letters of other alphabets look like
// those of names that a reader trusts.
package ascii

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unprintable reports whether char is not printable ASCII, which begins with the space and ends with the tilde.
func unprintable(char rune) bool { return char < ' ' || char > '~' }

// WithoutKeys returns the error of client-go about a kubeconfig without what it quotes from it: if two users of a file have one name,
// client-go prints all users, with their keys and tokens (client-go, tools/clientcmd/api/v1/conversion.go).
func WithoutKeys(err error) error {
	if text, _, quotes := strings.Cut(err.Error(), " in list: "); quotes {
		return errors.New(text)
	}
	return err
}

// Quote returns text with everything but printable ASCII escaped as in a Go string. Quotation marks and backslashes
// stay.
func Quote(text string) string { return quote(text, "") }

// quote is Quote, but does not escape the characters of keep.
func quote(text, keep string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var quoted strings.Builder
	for len(text) > 0 {
		char, size := utf8.DecodeRuneInString(text)
		switch {
		case !unprintable(char), strings.ContainsRune(keep, char):
			quoted.WriteRune(char)
		case char == utf8.RuneError && size == 1:
			fmt.Fprintf(&quoted, `\x%02x`, text[0])
		default:
			quoted.WriteString(strings.Trim(strconv.QuoteRuneToASCII(char), "'"))
		}
		text = text[size:]
	}
	return quoted.String()
}

// Lines is Quote, but does not escape newlines and tabs.
func Lines(text string) string { return quote(text, "\n\t") }

// JSON escapes all characters of data, which must be JSON, other than ASCII. A reader of JSON gets the same text. If
// there is nothing to escape, JSON returns data itself.
func JSON(data []byte) []byte {
	if !slices.ContainsFunc(data, func(char byte) bool { return char >= 0x7f }) {
		return data
	}
	var escaped []byte
	for rest := data; len(rest) > 0; {
		char, size := utf8.DecodeRune(rest)
		switch {
		case char < utf8.RuneSelf && char != 0x7f:
			escaped = append(escaped, rest[0])
		case char > 0xffff:
			char -= 0x10000 // a surrogate pair (RFC 8259 section 7)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, 0xd800+char>>10, 0xdc00+char&0x3ff)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x`, char)
		}
		rest = rest[size:]
	}
	return escaped
}

// writer converts the data of each Write, which must not end within a character.
type writer struct {
	out     io.Writer
	convert func([]byte) []byte
}

// LinesWriter returns a Writer that writes Lines to out.
func LinesWriter(out io.Writer) io.Writer {
	return writer{out, func(data []byte) []byte { return []byte(Lines(string(data))) }}
}

// JSONWriter returns a Writer that writes JSON to out.
func JSONWriter(out io.Writer) io.Writer { return writer{out, JSON} }

// Write implements io.Writer.
func (w writer) Write(data []byte) (int, error) {
	if _, err := w.out.Write(w.convert(data)); err != nil {
		return 0, err
	}
	return len(data), nil
}
