package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// FuzzWrite checks that a record is one line of printable ASCII, that a strict JSON reader gets the texts of a signed
// certificate unchanged, and that all other records are short.
func FuzzWrite(f *testing.F) {
	f.Add(false, uint16(1), "csr-1", "system:node:a", "system:nodes", "CN=system:node:a,O=system:nodes", "a.example.com",
		"digital signature", "AutoApproved: ok", int64(0))
	f.Add(true, uint16(1000), "csr-1", "a\u009b31m\u202e\u0435\x7f\U0001f511", "\xff\xfe", "line\nbreak\r", "\u2028<>&\"\\", "\x00",
		strings.Repeat("m", 3000), int64(1)<<36)
	f.Add(true, uint16(0), "", "", "", "", "", "", "", int64(-1)<<36)
	f.Fuzz(func(t *testing.T, signed bool, count uint16, name, user, group, subject, text, usage, message string, seconds int64) {
		count %= 1001 // csr.DefaultLimits
		event := Decided
		if signed {
			event = Signed
		}
		const years = 1 << 35
		at := time.Unix(seconds%years, 0)
		record := Record{
			Name: name, UID: types.UID(name), Signer: name,
			Requester: &Requester{Username: user, UID: user, Groups: slices.Repeat([]string{group}, int(count)), CredentialIDs: []string{text}},
			Subject:   subject, DNSNames: slices.Repeat([]string{text}, int(count)), URIs: []string{text}, Usages: []string{usage}, Message: message,
			NotBefore: &at,
		}
		var out bytes.Buffer
		var logged strings.Builder
		logger := funcr.New(func(_, args string) { logged.WriteString(args) }, funcr.Options{})
		newLog(&out).Write(log.IntoContext(t.Context(), logger), at, event, record)
		line := strings.TrimSuffix(out.String(), "\n")
		if i := strings.IndexFunc(line, unprintable); i >= 0 {
			t.Fatalf("the line has %q", line[i:min(len(line), i+10)])
		}
		if i := strings.IndexFunc(logged.String(), unprintable); i >= 0 {
			t.Errorf("the log has %q", logged.String())
		}
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		var read Record
		if err := decoder.Decode(&read); err != nil || decoder.More() {
			t.Fatalf("the line is not one record: %v", err)
		}
		checkRead(t, record, read, event, len(line))
	})
}

func unprintable(char rune) bool { return char < ' ' || char > '~' }

// checkRead compares what was written with what was read.
func checkRead(t *testing.T, wrote, read Record, event Event, length int) {
	t.Helper()
	if read.Event != event || read.Name != valid(wrote.Name) || !read.NotBefore.Equal(*wrote.NotBefore) || !read.Time.Equal(*wrote.NotBefore) {
		t.Errorf("wrote %+v, read %+v", wrote, read)
	}
	if len(wrote.Message) <= maxMessage && read.Message != valid(wrote.Message) {
		t.Errorf("message %q, want %q", read.Message, wrote.Message)
	}
	if len(wrote.Requester.Username) <= 256 && read.Requester.Username != valid(wrote.Requester.Username) {
		t.Errorf("user %q, want %q", read.Requester.Username, wrote.Requester.Username)
	}
	if ids := wrote.Requester.CredentialIDs; len(ids[0]) <= 256 && !slices.Equal(read.Requester.CredentialIDs, []string{valid(ids[0])}) {
		t.Errorf("credential IDs %q, want %q", read.Requester.CredentialIDs, ids)
	}
	if event == Signed {
		same := func(a, b []string) bool {
			return slices.EqualFunc(a, b, func(a, b string) bool { return valid(a) == b })
		}
		if read.Subject != valid(wrote.Subject) || !same(wrote.DNSNames, read.DNSNames) || !same(wrote.URIs, read.URIs) {
			t.Errorf("the record of a certificate lacks content: wrote %+v, read %+v", wrote, read)
		}
		return
	}
	// Each byte takes up to six in JSON, and all texts of a requester together are below 10 KiB.
	if most := 6 * (10<<10 + 3*len(wrote.Name)); length > most {
		t.Errorf("%d bytes, want at most %d", length, most)
	}
}

// valid returns text as JSON holds it: each byte that is not UTF-8 is replaced.
func valid(text string) string { return string([]rune(text)) }
