// Package audit writes one record for each decision and each issuance: a line in the log, and the whole of it as a JSON
// line in the audit log, if there is one.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/natefinch/lumberjack.v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// maxMessage bounds a message in the log, in bytes, as an Event's note is.
const maxMessage = 1024

// maxSubject bounds the subject in a record, in bytes. A subject within csr.DefaultLimits fits.
const maxSubject = 2 * 64 << 10

// errorsTotal counts what the audit log did not take.
var errorsTotal = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "csr_audit_errors_total",
	Help: "Records that could not be written to the audit log file; the log has them in short.",
})

func init() { metrics.Registry.MustRegister(errorsTotal) }

// Event is what happened.
type Event string

// The events.
const (
	// Decided is a verdict of the approver; each distinct one of a request once.
	Decided Event = "Decided"
	// NotSigned is an approved request that is failed, waits or is left alone; each distinct outcome of a request once.
	NotSigned Event = "NotSigned"
	// Signed is a certificate, recorded before it is written, so that none exists that no record names.
	Signed Event = "Signed"
	// Discarded is a Signed one that the API server did not take: nobody has it.
	Discarded Event = "Discarded"
	// Stored is a Signed one for which there was no answer, and that was found to be stored.
	Stored Event = "Stored"
	// Uncertain is a Signed one for which there was no answer, and that may still be stored.
	Uncertain Event = "Uncertain"
	// TrustProbe is a certificate without a request, for a subject without any rights, to see whether a CA is trusted.
	TrustProbe Event = "TrustProbe"
	// CACreated is a signing CA that was made, recorded before it is written to its Secret; Discarded follows if somebody
	// else's was there first.
	CACreated Event = "CACreated"
	// Rotation is a step of a CA's rotation, recorded once before it is taken.
	Rotation Event = "Rotation"
)

// Record is what an auditor needs. What does not apply is left out.
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
	// KeySHA256 is the hex SHA-256 of the DER SubjectPublicKeyInfo that was asked for.
	KeySHA256 string `json:"keySHA256,omitempty"`

	// Verdict, Rule, Reason and Message are those of a decision or an outcome.
	Verdict string `json:"verdict,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`

	// Serial is in hex; IssuerKeyID is that of ca.Authority.
	Serial      string `json:"serial,omitempty"`
	IssuerKeyID string `json:"issuerKeyID,omitempty"`
	// CertificateSHA256 is the hex SHA-256 of the leaf certificate, in DER.
	CertificateSHA256 string     `json:"certificateSHA256,omitempty"`
	NotBefore         *time.Time `json:"notBefore,omitempty"`
	NotAfter          *time.Time `json:"notAfter,omitempty"`
}

// Requester is who made the request.
type Requester struct {
	Username string   `json:"username"`
	UID      string   `json:"uid,omitempty"`
	Groups   []string `json:"groups,omitempty"`
}

// Of returns a Record about obj, which could be read as req, or not if that is nil.
func Of(obj *certificatesv1.CertificateSigningRequest, req *csr.Request) Record {
	record := Record{
		Name: obj.Name, UID: obj.UID, Signer: obj.Spec.SignerName,
		Requester: &Requester{Username: obj.Spec.Username, UID: obj.Spec.UID, Groups: obj.Spec.Groups},
	}
	for _, usage := range obj.Spec.Usages {
		record.Usages = append(record.Usages, string(usage))
	}
	if req == nil {
		return record
	}
	record.Subject, record.KeySHA256 = ca.SubjectText(req.Cert.Subject, maxSubject), req.KeyFingerprint()
	record.DNSNames, record.Emails = req.Cert.DNSNames, req.Cert.EmailAddresses
	for _, address := range req.Cert.IPAddresses {
		record.Addresses = append(record.Addresses, address.String())
	}
	for _, uri := range req.Cert.URIs {
		record.URIs = append(record.URIs, uri.String())
	}
	return record
}

// Log is the audit log. A nil one writes to the log only. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	out io.Writer
}

// Options say where and how long: see config.Audit.
type Options struct {
	Path                        string
	MaxSize, MaxBackups, MaxAge int
}

// Open returns the Log that options describe, nil for an empty path, or an error when the file can't be written.
func Open(options Options) (*Log, error) {
	switch options.Path {
	case "":
		return nil, nil
	case "-":
		return &Log{out: os.Stdout}, nil
	}
	// The Logger below moves aside what it can't open, be it a folder.
	file, err := os.OpenFile(options.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return &Log{out: &lumberjack.Logger{
		Filename: options.Path, MaxSize: options.MaxSize, MaxBackups: options.MaxBackups, MaxAge: options.MaxAge,
	}}, nil
}

// Write writes record at now: in short as a line of ctx's logger, and as a whole as a JSON line. What the file does not
// take is an error in the log and counted: nodes don't go without certificates because a disk is full.
func (l *Log) Write(ctx context.Context, now time.Time, event Event, record Record) {
	record.Time, record.Event = now.UTC(), event
	record.NotBefore, record.NotAfter = utc(record.NotBefore), utc(record.NotAfter)
	logger := log.FromContext(ctx)
	logger.Info(string(event), record.keysAndValues()...)
	if l == nil {
		return
	}
	record.Requester = record.Requester.bounded()
	record = record.bounded(event == Signed)
	line, err := json.Marshal(record)
	if err == nil {
		l.mu.Lock()
		_, err = l.out.Write(append(ascii.JSON(line), '\n'))
		l.mu.Unlock()
	}
	if err != nil {
		errorsTotal.Inc()
		logger.Error(err, "The audit log lacks this record")
	}
}

// bounded cuts what a requester chose. The record of a certificate keeps all of its names, which csr.Limits bound. All
// other records are cut: whoever may make requests could otherwise fill the file until the records of certificates are
// rotated away.
func (r Record) bounded(signed bool) Record {
	if !signed {
		r.Subject = csr.Shorten(r.Subject)
		for _, list := range []*[]string{&r.DNSNames, &r.Addresses, &r.Emails, &r.URIs} {
			*list = few(*list)
		}
	}
	r.Message, r.Usages = csr.ShortenTo(r.Message, maxMessage), few(r.Usages)
	return r
}

// bounded is what is kept of every requester: whoever runs an authenticator may make names and groups of any length.
func (r *Requester) bounded() *Requester {
	if r == nil {
		return nil
	}
	return &Requester{csr.Shorten(r.Username), csr.Shorten(r.UID), few(r.Groups)}
}

// few returns the first of all, each shortened: at most 20, and at most 1 KiB together.
func few(all []string) []string {
	const most, room = 20, 1024
	var kept []string
	bytes := 0
	for i, text := range all {
		text = csr.Shorten(text)
		if bytes += len(text); i == most || bytes > room {
			return append(kept, fmt.Sprintf("and %d more", len(all)-i))
		}
		kept = append(kept, text)
	}
	return kept
}

func utc(at *time.Time) *time.Time {
	if at == nil {
		return nil
	}
	universal := at.UTC()
	return &universal
}

// keysAndValues is the record for the log: what a requester has chosen is shortened, and the rest of it left out.
func (r Record) keysAndValues() []any {
	var all []any
	add := func(key, value string) {
		if value != "" {
			all = append(all, key, ascii.Quote(csr.Shorten(value)))
		}
	}
	if r.Requester != nil {
		add("requester", r.Requester.Username)
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
		all = append(all, "message", ascii.Quote(csr.ShortenTo(r.Message, maxMessage)))
	}
	add("serial", r.Serial)
	add("issuerKeyID", r.IssuerKeyID)
	add("certificateSHA256", r.CertificateSHA256)
	if r.NotBefore != nil && r.NotAfter != nil {
		all = append(all, "notBefore", r.NotBefore, "notAfter", r.NotAfter)
	}
	return all
}
