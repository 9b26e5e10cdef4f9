// Package audit records what was done: each decision that is written, and each certificate. The log gets a short line.
// The audit log, if there is one, gets the record as a JSON line.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// maxMessage bounds a message in the log, in bytes, like an Event's note.
const maxMessage = 1024

// maxRecord bounds a line of the audit log, in bytes, except that of a certificate.
const maxRecord = 2048

// maxSubject bounds the subject in a record of a certificate, in bytes. A subject within csr.DefaultLimits fits.
const maxSubject = 2 * 64 << 10

// patience is how long Write waits for its turn, and for the audit log's disk.
const patience = 2 * time.Second

// errorsTotal counts records that could not be written to the audit log.
var errorsTotal = metric.Counter("csr_audit_errors_total",
	"Records that could not be written to the audit log file; the log has them in short.").WithLabelValues()

// Event is the kind of a record.
type Event string

// The events.
const (
	// Decided is an approval or a denial. It is recorded before each attempt to write it. A dry run records each distinct
	// verdict about a request once.
	Decided Event = "Decided"
	// NotStored is a Decided approval or denial, or a NotSigned failure, that the API server may not have stored. If
	// the request still exists and is undecided, it is judged again and gets another record.
	NotStored Event = "NotStored"
	// NotSigned is an approved request that failed. It is recorded before each attempt to write that. A dry run records
	// each distinct outcome of a request once.
	NotSigned Event = "NotSigned"
	// Signed is a certificate. It is recorded before it is written, so that no certificate exists without a record.
	Signed Event = "Signed"
	// Discarded is a Signed certificate that the API server did not accept: no client has it.
	Discarded Event = "Discarded"
	// Stored is a Signed certificate whose write failed, although it is stored.
	Stored Event = "Stored"
	// Uncertain is a Signed certificate whose write failed. It may be stored: then the request has the certificate with
	// this digest. The next attempt issues another certificate, with records of its own.
	Uncertain Event = "Uncertain"
	// TrustProbe is a certificate without a request, for a subject without any rights. It tests whether a CA is
	// trusted.
	TrustProbe Event = "TrustProbe"
	// CACreated is a new signing CA. It is recorded before it is written to its Secret. Discarded or Uncertain follows if that
	// fails. The next attempt creates another CA, with records of its own.
	CACreated Event = "CACreated"
	// Rotation is a step of a CA's rotation. It is recorded once, before it is taken.
	Rotation Event = "Rotation"
)

// Record is one record for an auditor. Fields that do not apply are left out.
type Record struct {
	Time      time.Time  `json:"time"`
	Event     Event      `json:"event"`
	Name      string     `json:"name,omitempty"`
	UID       types.UID  `json:"uid,omitempty"`
	Signer    string     `json:"signer,omitempty"`
	Requester *Requester `json:"requester,omitempty"`
	Subject   string     `json:"subject,omitempty"`
	DNSNames  []string   `json:"dnsNames,omitempty"`
	Addresses []string   `json:"ipAddresses,omitempty"`
	Emails    []string   `json:"emailAddresses,omitempty"`
	URIs      []string   `json:"uris,omitempty"`
	Usages    []string   `json:"usages,omitempty"`
	// KeySHA256 is the hex SHA-256 of the requested DER SubjectPublicKeyInfo.
	KeySHA256 string `json:"keySHA256,omitempty"`

	// Verdict, Rule, Reason and Message describe a decision or an outcome.
	Verdict string `json:"verdict,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`

	// Serial is in hex. IssuerKeyID is the KeyID of ca.Authority.
	Serial      string `json:"serial,omitempty"`
	IssuerKeyID string `json:"issuerKeyID,omitempty"`
	// CertificateSHA256 is the hex SHA-256 of the leaf certificate, in DER.
	CertificateSHA256 string    `json:"certificateSHA256,omitempty"`
	NotBefore         time.Time `json:"notBefore,omitzero"`
	NotAfter          time.Time `json:"notAfter,omitzero"`
}

// Requester is the user that created the request.
type Requester struct {
	Username string   `json:"username"`
	UID      string   `json:"uid,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	// CredentialIDs name the credential with which the request was made, as the API server recorded it. X509SHA256= and
	// the CertificateSHA256 of an earlier record stand for that certificate.
	CredentialIDs []string `json:"credentialIDs,omitempty"`
}

// Of returns a Record about obj. req is obj after parsing, or nil if obj can't be parsed.
func Of(obj *certificatesv1.CertificateSigningRequest, req *csr.Request) Record {
	record := Record{
		Name: obj.Name, UID: obj.UID, Signer: obj.Spec.SignerName,
		Requester: &Requester{
			Username: obj.Spec.Username, UID: obj.Spec.UID, Groups: obj.Spec.Groups,
			CredentialIDs: obj.Spec.Extra[csr.CredentialIDKey],
		},
	}
	for _, usage := range obj.Spec.Usages {
		record.Usages = append(record.Usages, string(usage))
	}
	if req == nil {
		return record
	}
	record.Subject, record.KeySHA256 = ca.SubjectText(req.Cert.Subject, maxSubject), req.KeyFingerprint()
	record.DNSNames, record.Addresses = req.Cert.DNSNames, ca.Texts(req.Cert.IPAddresses)
	record.Emails, record.URIs = req.Cert.EmailAddresses, ca.Texts(req.Cert.URIs)
	return record
}

// Log is the audit log. A nil Log writes to the logger only. It is safe for concurrent use.
type Log struct {
	out  io.Writer
	busy chan struct{} // full during a write
}

func newLog(out io.Writer) *Log { return &Log{out: out, busy: make(chan struct{}, 1)} }

// Options set the file of the audit log and its rotation, see config.Audit.
type Options struct {
	Path                        string
	MaxSize, MaxBackups, MaxAge int
}

// Open returns the Log that options describe, or nil for an empty path. It fails if the file can't be written.
func Open(options Options) (*Log, error) {
	switch options.Path {
	case "":
		return nil, nil
	case "-":
		return newLog(os.Stdout), nil
	}
	// The Logger below renames a path that it can't open, even a folder. Fail here instead.
	file, err := os.OpenFile(options.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return newLog(&lumberjack.Logger{
		Filename: options.Path, MaxSize: options.MaxSize, MaxBackups: options.MaxBackups, MaxAge: options.MaxAge,
	}), nil
}

// Write writes record at now: a short line to ctx's logger, and the record as a JSON line. If the file can't be written
// within two seconds, or its turn does not come within two, Write logs and counts the error: a full disk or one that
// hangs must not leave nodes without certificates.
func (l *Log) Write(ctx context.Context, now time.Time, event Event, record Record) {
	record.Time, record.Event = now.UTC(), event
	record.NotBefore, record.NotAfter = record.NotBefore.UTC(), record.NotAfter.UTC()
	record.Log(ctx, event)
	if l == nil {
		return
	}
	line, err := record.line()
	if err == nil {
		err = l.write(line)
	}
	if err != nil {
		errorsTotal.Inc()
		log.FromContext(ctx).Error(err, "Can't write this record to the audit log")
	}
}

// write writes line. It waits at most patience for its turn, and at most patience for the disk. The write may then be
// complete later.
func (l *Log) write(line []byte) error {
	select {
	case l.busy <- struct{}{}:
	case <-time.After(patience):
		return errors.New("an earlier write to it hangs")
	}
	done := make(chan error, 1)
	go func() {
		_, err := l.out.Write(line)
		<-l.busy
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the write takes longer than %s", patience)
	}
}

// line returns r as a line of JSON in ASCII. Signed has all names of the certificate, which csr.Limits bound. Any other
// record has at most 2,048 bytes: line shortens its longest fields, so that the others stay complete. Otherwise a
// requester could fill the file until the records of certificates are rotated away.
func (r Record) line() ([]byte, error) {
	for room := maxRecord; ; room = room * 7 / 8 {
		line, err := json.Marshal(r.within(room))
		if line = append(ascii.JSON(line), '\n'); err != nil || len(line) <= maxRecord || r.Event == Signed || room == 0 {
			return line, err
		}
	}
}

// within returns r with each field that others chose shortened to about room bytes. Signed keeps its names.
func (r Record) within(room int) Record {
	texts, lists := []*string{&r.Name, &r.Signer, &r.Message}, []*[]string{&r.Usages}
	if r.Requester != nil { // the operator of an authenticator may create texts of any length
		by := *r.Requester
		r.Requester = &by
		texts, lists = append(texts, &by.Username, &by.UID), append(lists, &by.Groups, &by.CredentialIDs)
	}
	if r.Event != Signed {
		texts, lists = append(texts, &r.Subject), append(lists, &r.DNSNames, &r.Addresses, &r.Emails, &r.URIs)
	}
	for _, text := range texts {
		*text, _ = cut(*text, room)
	}
	for _, list := range lists {
		*list = few(*list, room)
	}
	return r
}

// cut returns the beginning of text that needs at most room bytes in a line, and the rest of room. If it shortens text,
// the result ends in "..." and the rest is negative.
func cut(text string, room int) (string, int) {
	for i, char := range text {
		switch {
		case char > 0xffff:
			room -= len(`\ud83d\udd11`)
		case char < ' ' || char > '~' || strings.ContainsRune(`"\<>&`, char): // which encoding/json or ascii.JSON escapes
			room -= len(`\u0001`)
		default:
			room--
		}
		if room < 0 {
			return text[:i] + "...", room
		}
	}
	return text, room
}

// few returns the first texts of all that need at most about room bytes in a line together, and the number of the others.
func few(all []string, room int) (kept []string) {
	for i, text := range all {
		if room < 0 {
			return append(kept, fmt.Sprintf("and %d more", len(all)-i))
		}
		text, room = cut(text, room-len(`"",`))
		kept = append(kept, text)
	}
	return kept
}

// Log writes a short line about r to ctx's logger, as Write does. It is for what only waits, which is not recorded: the
// texts are shortened, and some fields are left out.
func (r Record) Log(ctx context.Context, event Event) {
	var all []any
	add := func(key, value string) {
		if value != "" {
			all = append(all, key, csr.Shorten(ascii.Quote(csr.Shorten(value))))
		}
	}
	if r.Requester != nil {
		add("requester", r.Requester.Username)
		add("credentialIDs", strings.Join(few(r.Requester.CredentialIDs, maxMessage), " "))
	}
	add("uid", string(r.UID))
	add("signer", r.Signer)
	add("subject", r.Subject)
	add("subjectAltNames", strings.Join(slices.Concat(r.DNSNames, r.Addresses, r.Emails, r.URIs), " "))
	add("keySHA256", r.KeySHA256)
	add("verdict", r.Verdict)
	add("rule", r.Rule)
	add("reason", r.Reason)
	if r.Message != "" {
		all = append(all, "message", csr.ShortenTo(ascii.Quote(csr.ShortenTo(r.Message, maxMessage)), maxMessage))
	}
	add("serial", r.Serial)
	add("issuerKeyID", r.IssuerKeyID)
	add("certificateSHA256", r.CertificateSHA256)
	if !r.NotAfter.IsZero() {
		all = append(all, "notBefore", r.NotBefore, "notAfter", r.NotAfter)
	}
	log.FromContext(ctx).Info(string(event), all...)
}
