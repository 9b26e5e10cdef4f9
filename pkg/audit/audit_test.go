package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.FixedZone("CET", 3600))

// object returns a request of a user with that name, group and credential.
func object(user, group, credential string) *certificatesv1.CertificateSigningRequest {
	obj := &certificatesv1.CertificateSigningRequest{}
	obj.Name, obj.UID, obj.Spec.SignerName, obj.Spec.Usages = "csr-1", "uid-1", "example.com/a", []certificatesv1.KeyUsage{"client auth"}
	obj.Spec.Username, obj.Spec.Groups = user, []string{group}
	obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"other": {"x"}, csr.CredentialIDKey: {credential}}
	return obj
}

// written is an audit log in its own file, and what is written to it and to the logger of ctx.
type written struct {
	*Log
	ctx    context.Context
	path   string
	logged strings.Builder
}

func open(t *testing.T, options Options) *written {
	t.Helper()
	w := &written{path: filepath.Join(t.TempDir(), "audit.log")}
	options.Path = w.path
	opened, err := Open(options)
	expect.NoError(t, err)
	w.Log, w.ctx = opened, log.IntoContext(t.Context(), funcr.New(func(_, args string) { w.logged.WriteString(args + "\n") }, funcr.Options{}))
	return w
}

// lines returns the lines of the file.
func (w *written) lines(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(w.path)
	expect.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// TestWrite compares the file and the log, and checks that nobody else reads the file.
func TestWrite(t *testing.T) {
	w := open(t, Options{MaxSize: 1})
	record := Of(object("user", "g", "X509SHA256=0a"), nil)
	record.Verdict, record.Reason, record.Message = "Wait", "NotAuthorized", strings.Repeat("m", 3000)
	record.DNSNames = []string{"a.example", "line\nbreak"}
	w.Write(w.ctx, now, Decided, record)
	w.Write(w.ctx, now, Signed, Record{Serial: "1f", NotBefore: now, NotAfter: now})
	want := []string{
		`{"time":"2026-11-21T11:00:00Z","event":"Decided","name":"csr-1","uid":"uid-1","signer":"example.com/a",` +
			`"requester":{"username":"user","groups":["g"],"credentialIDs":["X509SHA256=0a"]},` +
			`"dnsNames":["a.example","line\nbreak"],"usages":["client auth"],"verdict":"Wait","reason":"NotAuthorized",` +
			`"message":"` + strings.Repeat("m", 1568) + `..."}`,
		`{"time":"2026-11-21T11:00:00Z","event":"Signed","serial":"1f","notBefore":"2026-11-21T11:00:00Z","notAfter":"2026-11-21T11:00:00Z"}`,
	}
	expect.Equal(t, "file", w.lines(t), want)
	first, second, _ := strings.Cut(w.logged.String(), "\n")
	if !strings.HasPrefix(first, `"level"=0 "msg"="Decided" "requester"="user" "credentialIDs"="X509SHA256=0a" "uid"="uid-1" `+
		`"signer"="example.com/a" "subjectAltNames"="a.example line\\nbreak" `) || len(first) > 1500 {
		t.Errorf("log: %s", first)
	}
	expect.True(t, strings.Contains(second, `"msg"="Signed" "serial"="1f" "notBefore"=`), "log: %s", second)
	if info, err := os.Stat(w.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, error %v", info.Mode(), err)
	}
}

// TestRotation checks that a full file is renamed between two records, and that only MaxBackups of them stay.
func TestRotation(t *testing.T) {
	w := open(t, Options{MaxSize: 1, MaxBackups: 2})
	for range 20 {
		w.Write(w.ctx, now, Signed, Record{Subject: strings.Repeat("m", 300<<10)})
		time.Sleep(2 * time.Millisecond) // the name of a backup contains milliseconds
	}
	deadline := time.Now().Add(10 * time.Second) // old backups are removed in the background
	for {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(w.path), "*"))
		if len(files) == 3 {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d files: %v, error %v", len(files), files, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	first := w.lines(t)[0]
	expect.True(t, json.Valid([]byte(first)), "the file begins in the middle of a record: %.100s", first)
}

// TestOpen checks that a log without a file writes to the logger only, that a folder is no file, and that a full disk is logged, and
// the decision stands.
func TestOpen(t *testing.T) {
	none, err := Open(Options{})
	expect.True(t, none == nil && err == nil, "%v, error %v", none, err)
	none.Write(t.Context(), now, Signed, Record{})
	if _, err := Open(Options{Path: t.TempDir(), MaxSize: 1}); err == nil || !strings.HasPrefix(err.Error(), "open audit log: ") {
		t.Errorf("a folder: error %v", err)
	}
	full := open(t, Options{MaxSize: 1})
	full.Write(full.ctx, now, Signed, Record{Subject: strings.Repeat("m", 2<<20)})
	expect.True(t, strings.Contains(full.logged.String(), `"msg"="Can't write this record to the audit log"`),
		"log: %.300s", full.logged.String())
}

// TestChosenTextIsASCII checks that text from a requester can neither control a terminal nor imitate other text. A
// reader of the JSON gets the original text.
func TestChosenTextIsASCII(t *testing.T) {
	const chosen = "a\u009b31m\u202e\u0435\x7f\U0001f511"
	w := open(t, Options{MaxSize: 1})
	record := Of(object(chosen, chosen, chosen), nil)
	record.Subject, record.URIs, record.Message = chosen, []string{chosen}, chosen
	w.Write(w.ctx, now, Decided, record)
	w.Write(w.ctx, now, Signed, record)
	lines := w.lines(t)
	for place, text := range map[string]string{"audit log": strings.Join(lines, ""), "log": strings.ReplaceAll(w.logged.String(), "\n", "")} {
		if at := strings.IndexFunc(text, unprintable); at >= 0 {
			t.Errorf("the %s has %q", place, text[at:min(len(text), at+10)])
		}
	}
	var read Record
	err := json.Unmarshal([]byte(lines[0]), &read)
	if by := read.Requester; err != nil || read.Subject != chosen || by.Username != chosen || by.CredentialIDs[0] != chosen {
		t.Errorf("read %+v, error %v", read, err)
	}
}

// hostile returns an object of which each text and each list has the most that an API server accepts, or more.
func hostile(text string) *certificatesv1.CertificateSigningRequest {
	huge, many := strings.Repeat(text, 400_000), make([]string, 1000)
	for i := range many {
		many[i] = strings.Repeat(text, 300)
	}
	obj := object(huge, "", "")
	obj.Name, obj.Spec.UID, obj.Spec.SignerName = huge, huge, "example.com/"+huge
	obj.Spec.Groups, obj.Spec.Extra[csr.CredentialIDKey] = many, many
	for _, usage := range many {
		obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.KeyUsage(usage))
	}
	return obj
}

// TestRecordsAreSmall checks that no record is longer than 2,048 bytes, whatever the request holds, except that of a certificate.
// That has every name. The log has a short line of each.
func TestRecordsAreSmall(t *testing.T) {
	for name, text := range map[string]string{
		"letters": "a", "control characters": "\x01", "quotation marks": `"`, "emoji": "\U0001f511", "not UTF-8": "\xff", "nothing": "",
	} {
		record, names := Of(hostile(text), nil), make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprint(i, text)
		}
		record.DNSNames, record.Addresses, record.Emails, record.URIs = names, names, names, names
		record.Subject, record.Message = strings.Repeat(text, 1<<16), strings.Repeat(text, 1<<20)
		record.Verdict, record.Rule, record.Reason = "Ignore", strings.Repeat("r", 63), "SignerValidationFailure"
		record.KeySHA256, record.CertificateSHA256 = strings.Repeat("0a", 32), strings.Repeat("0b", 32)
		record.Serial, record.IssuerKeyID = strings.Repeat("0c", 20), strings.Repeat("0d", 32)
		record.NotBefore, record.NotAfter = now, now
		for _, event := range []Event{Decided, NotStored, NotSigned, Discarded, Stored, Uncertain, Signed} {
			w := open(t, Options{MaxSize: 100})
			w.Write(w.ctx, now, event, record)
			line := w.lines(t)[0]
			var got Record
			expect.NoError(t, json.Unmarshal([]byte(line), &got))
			if event == Signed {
				expect.True(t, len(got.DNSNames) == 1000 && len(got.URIs) == 1000 && got.Usages[len(got.Usages)-1] != "",
					"%s: Signed has %d DNS names and %d URIs", name, len(got.DNSNames), len(got.URIs))
				expect.Equal(t, name+": subject of Signed", got.Subject, string([]rune(strings.Repeat(text, 1<<16)))) // U+FFFD for each other byte
				expect.True(t, len(got.Name)+len(got.Signer)+len(got.Requester.Username) <= 3*2051, "%s: the name has %d bytes", name, len(got.Name))
			} else {
				expect.True(t, len(line)+len("\n") <= 2048, "%s: %s has %d bytes: %s", name, event, len(line), line)
			}
			expect.True(t, got.CertificateSHA256 == record.CertificateSHA256 && got.KeySHA256 == record.KeySHA256 && got.UID == "uid-1" &&
				got.Serial == record.Serial && got.Rule == record.Rule && got.NotAfter.Equal(now), "%s: %s lost what is not too long: %s", name, event, line)
			expect.True(t, w.logged.Len() <= 5000, "%s: %s has %d bytes in the log", name, event, w.logged.Len())
		}
	}
}

// TestShortFieldsStayComplete checks that a requester cannot hide who it is behind long texts of its own.
func TestShortFieldsStayComplete(t *testing.T) {
	w := open(t, Options{MaxSize: 1})
	long, credential := hostile("\x01"), "X509SHA256="+strings.Repeat("0a", 32)
	obj := object("system:serviceaccount:payments:web", "system:serviceaccounts:payments", credential)
	obj.Name, obj.Spec.Usages = long.Name, long.Spec.Usages
	record := Of(obj, nil)
	record.Subject, record.DNSNames, record.Message = long.Name, []string{"api.example", long.Name, "b"}, long.Name
	w.Write(w.ctx, now, Decided, record)
	var got Record
	expect.NoError(t, json.Unmarshal([]byte(w.lines(t)[0]), &got))
	expect.Equal(t, "requester", *got.Requester, Requester{
		Username: "system:serviceaccount:payments:web", Groups: []string{"system:serviceaccounts:payments"}, CredentialIDs: []string{credential},
	})
	expect.Equal(t, "signer", got.Signer, "example.com/a")
	expect.True(t, len(got.DNSNames) == 3 && got.DNSNames[0] == "api.example" && strings.HasPrefix(got.DNSNames[1], "\x01\x01") &&
		strings.HasSuffix(got.DNSNames[1], "...") && got.DNSNames[2] == "and 1 more", "names %q", got.DNSNames)
}

// hanging is a file whose writes hang until resume is closed.
type hanging struct {
	resume chan struct{}
	bytes.Buffer
}

func (h *hanging) Write(line []byte) (int, error) {
	<-h.resume
	return h.Buffer.Write(line)
}

// TestAFileThatHangsStopsNothing has a disk that hangs and then works again. Each writer waits two seconds at most.
func TestAFileThatHangsStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := &hanging{resume: make(chan struct{})}
		log := newLog(file)
		start := time.Now()
		var writing sync.WaitGroup
		for range 100 {
			writing.Go(func() { log.Write(t.Context(), start, Signed, Record{Serial: "1f"}) })
		}
		writing.Wait()
		expect.Equal(t, "100 records at once took", time.Since(start), 2*time.Second)
		close(file.resume)
		synctest.Wait()
		log.Write(t.Context(), start, Signed, Record{Serial: "2f"})
		if lines := bytes.Count(file.Bytes(), []byte("\n")); lines != 2 || !bytes.Contains(file.Bytes(), []byte(`"2f"`)) {
			t.Errorf("%d records are in the file, want the first and the last: %s", lines, file.Bytes())
		}
	})
}

func unprintable(char rune) bool { return char < ' ' || char > '~' }
