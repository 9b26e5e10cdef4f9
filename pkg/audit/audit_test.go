package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.FixedZone("CET", 3600))

func object() *certificatesv1.CertificateSigningRequest {
	obj := &certificatesv1.CertificateSigningRequest{}
	obj.Name, obj.UID = "csr-1", "uid-1"
	obj.Spec.SignerName = "example.com/a"
	obj.Spec.Username, obj.Spec.Groups = "user", []string{"g"}
	obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"other": {"x"}, "authentication.kubernetes.io/credential-id": {"X509SHA256=0a"}}
	obj.Spec.Usages = []certificatesv1.KeyUsage{"client auth"}
	return obj
}

// open returns an audit log in its own file, a context whose logger writes to the builder, and the file.
func open(t *testing.T, options audit.Options) (*audit.Log, context.Context, *strings.Builder, string) {
	t.Helper()
	options.Path = filepath.Join(t.TempDir(), "audit.log")
	opened, err := audit.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	logger := funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{})
	return opened, log.IntoContext(t.Context(), logger), &lines, options.Path
}

func TestWrite(t *testing.T) {
	t.Parallel()
	opened, ctx, lines, path := open(t, audit.Options{MaxSize: 1})
	record := audit.Of(object(), nil)
	record.Verdict, record.Reason, record.Message = "Wait", "NotAuthorized", strings.Repeat("m", 3000)
	record.DNSNames = []string{"a.example", "line\nbreak"}
	opened.Write(ctx, now, audit.Decided, record)
	opened.Write(ctx, now, audit.Signed, audit.Record{Serial: "1f", NotBefore: &now, NotAfter: &now})

	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(written), "\n"), "\n")
	want := []string{
		`{"time":"2026-11-21T11:00:00Z","event":"Decided","name":"csr-1","uid":"uid-1","signer":"example.com/a","requester":{"username":"user","groups":["g"],"credentialIDs":["X509SHA256=0a"]},` +
			`"dnsNames":["a.example","line\nbreak"],"usages":["client auth"],"verdict":"Wait","reason":"NotAuthorized","message":"` + strings.Repeat("m", 1024-len("...")) + `..."}`,
		`{"time":"2026-11-21T11:00:00Z","event":"Signed","serial":"1f","notBefore":"2026-11-21T11:00:00Z","notAfter":"2026-11-21T11:00:00Z"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	logged := strings.Split(lines.String(), "\n")
	if !strings.HasPrefix(logged[0], `"level"=0 "msg"="Decided" "requester"="user" "credentialIDs"="X509SHA256=0a" "uid"="uid-1" "signer"="example.com/a" "subjectAltNames"="a.example line\\nbreak" `) || len(logged[0]) > 1500 {
		t.Errorf("log: %s", logged[0])
	}
	if !strings.Contains(logged[1], `"msg"="Signed" "serial"="1f" "notBefore"=`) {
		t.Errorf("log: %s", logged[1])
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, error %v", info.Mode(), err)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	opened, ctx, _, path := open(t, audit.Options{MaxSize: 1, MaxBackups: 2})
	record := audit.Record{Subject: strings.Repeat("m", 300<<10)}
	for range 20 {
		opened.Write(ctx, now, audit.Signed, record)
		time.Sleep(2 * time.Millisecond) // the name of a backup contains milliseconds
	}
	deadline := time.Now().Add(10 * time.Second) // old backups are removed in the background
	for {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d files: %v", len(files), files)
		}
		time.Sleep(10 * time.Millisecond)
	}
	last, err := os.ReadFile(path)
	if err != nil || !json.Valid([]byte(strings.SplitN(string(last), "\n", 2)[0])) {
		t.Errorf("the file begins in the middle of a record, error %v", err)
	}
}

// TestWhatTheFileDoesNotTakeIsLogged checks that a full disk is logged, and that the decision stands.
func TestWhatTheFileDoesNotTakeIsLogged(t *testing.T) {
	t.Parallel()
	opened, ctx, lines, _ := open(t, audit.Options{MaxSize: 1})
	opened.Write(ctx, now, audit.Signed, audit.Record{Subject: strings.Repeat("m", 2<<20)})
	if !strings.Contains(lines.String(), `"msg"="Can't write this record to the audit log"`) {
		t.Errorf("log: %.300s", lines.String())
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	if none, err := audit.Open(audit.Options{}); none != nil || err != nil {
		t.Errorf("%v, error %v", none, err)
	}
	if _, err := audit.Open(audit.Options{Path: t.TempDir(), MaxSize: 1}); err == nil || !strings.HasPrefix(err.Error(), "open audit log: ") {
		t.Errorf("a folder: error %v", err)
	}
	var none *audit.Log
	none.Write(t.Context(), now, audit.Signed, audit.Record{}) // to the logger only
}

// TestRefusedRequestsAreKeptShort checks that requests can't fill the file: a record without a certificate is short,
// and a record of a certificate is complete.
func TestRefusedRequestsAreKeptShort(t *testing.T) {
	t.Parallel()
	opened, ctx, _, path := open(t, audit.Options{MaxSize: 1})
	obj := object()
	obj.Spec.Username = strings.Repeat("u", 1000)
	for range 5000 {
		obj.Spec.Groups = append(obj.Spec.Groups, "group")
	}
	record := audit.Of(obj, nil)
	record.Subject = strings.Repeat("s", 100_000)
	for range 10_000 {
		record.DNSNames = append(record.DNSNames, "name.example.com")
	}
	opened.Write(ctx, now, audit.Decided, record)
	info, err := os.Stat(path)
	if err != nil || info.Size() > 4096 {
		t.Fatalf("%d bytes, error %v", info.Size(), err)
	}
	opened.Write(ctx, now, audit.Signed, record)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var kept, full audit.Record
	lines := strings.Split(string(data), "\n")
	if err := errors.Join(json.Unmarshal([]byte(lines[0]), &kept), json.Unmarshal([]byte(lines[1]), &full)); err != nil {
		t.Fatal(err)
	}
	if len(kept.DNSNames) != 21 || kept.DNSNames[20] != "and 9980 more" || len(full.DNSNames) != 10_000 || full.Subject != record.Subject {
		t.Errorf("%d names kept of a refused request, and %d of a certificate", len(kept.DNSNames), len(full.DNSNames))
	}
}

// TestChosenTextIsASCII checks that text from a requester can neither control a terminal nor imitate other text. A
// reader of the JSON gets the original text.
func TestChosenTextIsASCII(t *testing.T) {
	t.Parallel()
	const chosen = "a\u009b31m\u202e\u0435\x7f\U0001f511"
	opened, ctx, lines, path := open(t, audit.Options{MaxSize: 1})
	obj := object()
	obj.Spec.Username, obj.Spec.Groups = chosen, []string{chosen}
	obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {chosen}}
	record := audit.Of(obj, nil)
	record.Subject, record.URIs, record.Message = chosen, []string{chosen}, chosen
	for _, event := range []audit.Event{audit.Decided, audit.Signed} {
		opened.Write(ctx, now, event, record)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for place, text := range map[string]string{"audit log": string(written), "log": lines.String()} {
		if at := strings.IndexFunc(text, func(char rune) bool { return char != '\n' && (char < ' ' || char > '~') }); at >= 0 {
			t.Errorf("the %s has %q", place, text[at:min(len(text), at+10)])
		}
	}
	line, _, _ := strings.Cut(string(written), "\n")
	var read audit.Record
	if err := json.Unmarshal([]byte(line), &read); err != nil || read.Subject != chosen || read.Requester.Username != chosen || read.Requester.CredentialIDs[0] != chosen {
		t.Errorf("read %+v, error %v", read, err)
	}
}

// The requester is shortened in records of certificates too.
func TestRequesterIsBounded(t *testing.T) {
	t.Parallel()
	opened, ctx, lines, path := open(t, audit.Options{MaxSize: 10})
	obj := object()
	obj.Spec.Username, obj.Spec.UID = strings.Repeat("u", 100_000), strings.Repeat("i", 100_000)
	for range 1000 {
		obj.Spec.Groups = append(obj.Spec.Groups, strings.Repeat("g", 1000))
		obj.Spec.Extra["authentication.kubernetes.io/credential-id"] = append(obj.Spec.Extra["authentication.kubernetes.io/credential-id"], strings.Repeat("c", 1000))
	}
	opened.Write(ctx, now, audit.Signed, audit.Of(obj, nil))
	if written, err := os.ReadFile(path); err != nil || len(written) > 10_000 || lines.Len() > 2000 {
		t.Errorf("the record has %d bytes, and %d in the log, error %v", len(written), lines.Len(), err)
	}
}

// TestRecordsOfRequestsAreSmall checks that a request without a certificate never makes a record long, and that the
// record of a certificate keeps all names.
func TestRecordsOfRequestsAreSmall(t *testing.T) {
	t.Parallel()
	many := func(text string) (all []string) {
		for i := range 1000 {
			all = append(all, fmt.Sprint(i, strings.Repeat(text, 200)))
		}
		return all
	}
	for _, text := range []string{"a", "\x01"} {
		record := audit.Record{
			Requester: &audit.Requester{Username: strings.Repeat(text, 1<<20), UID: strings.Repeat(text, 1<<20), Groups: many(text), CredentialIDs: many(text)},
			Subject:   strings.Repeat(text, 1<<16), DNSNames: many(text), Addresses: many(text), Emails: many(text), URIs: many(text),
			Usages: many(text), Message: strings.Repeat(text, 1<<20), CertificateSHA256: "0a",
		}
		for event, names := range map[audit.Event]int{audit.Decided: 0, audit.NotSigned: 0, audit.Discarded: 0, audit.Uncertain: 0, audit.Signed: 1000} {
			file := filepath.Join(t.TempDir(), "audit.log")
			opened, err := audit.Open(audit.Options{Path: file, MaxSize: 100})
			if err != nil {
				t.Fatal(err)
			}
			opened.Write(t.Context(), time.Now(), event, record)
			written, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got audit.Record
			if err := json.Unmarshal(written, &got); err != nil {
				t.Fatal(err)
			}
			if names > 0 {
				if len(got.DNSNames) != names || len(got.URIs) != names || len(got.Subject) != 1<<16 || len(got.Requester.Groups) > 21 || len(got.Requester.CredentialIDs) > 21 || len(got.Message) > 1024 {
					t.Errorf("%s has %d DNS names, %d groups", event, len(got.DNSNames), len(got.Requester.Groups))
				}
				continue
			}
			if len(written) > 64<<10 || got.CertificateSHA256 != "0a" {
				t.Errorf("%s has %d bytes", event, len(written))
			}
		}
	}
}
