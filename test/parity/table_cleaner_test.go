package parity

import (
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// The ages are ten minutes before a limit, and one minute after it.
const (
	underHour, overHour = 50 * time.Minute, 61 * time.Minute
	underDay, overDay   = 24*time.Hour - 10*time.Minute, 24*time.Hour + time.Minute
)

// old returns a stored request for an unknown signer, so that only the cleaner handles it.
func old(age time.Duration, want string, list ...certificatesv1.CertificateSigningRequestCondition) row {
	return row{signer: "example.com/client", stored: true, age: age, user: stranger, conditions: list, want: want}
}

// issued adds a certificate to base that expired that long ago.
func issued(endedAgo time.Duration, base row) row {
	base.endedAgo = endedAgo
	return base
}

func unparsable(base row) row {
	base.certificate = garbageCertificate
	return base
}

var garbageCertificate = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")

func ended() []byte { return selfSigned("", time.Now().Add(-time.Minute), nil) }

// timeless returns a condition as it was before the API server set times.
func timeless(kind certificatesv1.RequestConditionType) certificatesv1.CertificateSigningRequestCondition {
	return certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue}
}

const (
	month   = 30 * 24 * time.Hour
	year    = 365 * 24 * time.Hour
	inAYear = -year
)

// cleanerRows test which requests are deleted, and when.
var cleanerRows = map[string]row{
	"pending, under a day":               old(underDay, untouched),
	"pending, over a day":                old(overDay, gone),
	"pending, over a day, served":        with(old(overDay, gone), func(r *row) { r.signer = apiserverClient }),
	"pending, over a day, unreadable":    with(old(overDay, gone), func(r *row) { r.payload = garbage }),
	"approved, under an hour":            old(month, approvedOnly, since("Approved", underHour)),
	"approved, over an hour":             deviates(old(month, approvedOnly, since("Approved", overHour)), "approved-unissued", gone),
	"approved, under a day":              deviates(old(month, approvedOnly, since("Approved", underDay)), "approved-unissued", gone),
	"approved, over a day":               old(month, gone, since("Approved", overDay)),
	"approved, no time":                  old(month, approvedOnly, timeless("Approved")),
	"denied, under an hour":              old(month, denied, since("Denied", underHour)),
	"denied, over an hour":               old(0, gone, since("Denied", overHour)),
	"denied, no time":                    old(month, denied, timeless("Denied")),
	"failed, under an hour":              old(month, "Failed", since("Failed", underHour)),
	"failed, over an hour":               old(0, gone, since("Failed", overHour)),
	"failed, no time":                    old(month, "Failed", timeless("Failed")),
	"failed long after approval":         old(month, approvedFailed, since("Approved", underHour), since("Failed", 0)),
	"failed, approved just now":          old(0, gone, since("Approved", 0), since("Failed", overHour)),
	"approved and denied, one old":       old(0, gone, since("Approved", 0), since("Denied", overHour)),
	"approved over an hour, failed":      deviates(old(month, approvedFailed, since("Approved", overHour), since("Failed", 0)), "approved-unissued", gone),
	"denied through the API":             with(row{user: stranger, conditions: conditions(since("Denied", overHour)), want: gone}),
	"issued, under an hour":              issued(inAYear, old(month, approvedIssued, since("Approved", underHour))),
	"issued, over an hour":               issued(inAYear, old(0, gone, since("Approved", overHour))),
	"issued, no time":                    issued(inAYear, old(month, approvedIssued, timeless("Approved"))),
	"issued and ended":                   issued(time.Minute, old(time.Minute, gone, since("Approved", 0))),
	"issued and ended, no time":          issued(time.Minute, old(time.Minute, gone, timeless("Approved"))),
	"issued and unparsable":              unparsable(old(month, approvedIssued, since("Approved", 0))),
	"issued, unparsable, over an hour":   unparsable(old(0, gone, since("Approved", overHour))),
	"issued, never approved":             issued(inAYear, old(underDay, "Issued")),
	"issued, never approved, old":        issued(inAYear, old(overDay, gone)),
	"ended, never approved":              issued(time.Minute, old(underDay, "Issued")),
	"ended, denied":                      issued(time.Minute, old(month, "Denied Issued", since("Denied", 0))),
	"ended, then garbage":                with(old(0, gone, since("Approved", 0)), func(r *row) { r.certificate = slices.Concat(ended(), garbageCertificate) }),
	"garbage, then ended":                with(old(month, approvedIssued, since("Approved", 0)), func(r *row) { r.certificate = slices.Concat(garbageCertificate, ended()) }),
	"another block, then ended":          with(old(month, approvedIssued, since("Approved", 0)), func(r *row) { r.certificate = otherBlockFirst(ended()) }),
	"foreign condition, under a day":     old(underDay, "Example", since("Example", month)),
	"foreign condition, over a day":      deviates(old(25*time.Hour, "Example", since("Example", month)), "foreign-conditions", gone),
	"foreign condition and approved":     old(month, "Example Approved", since("Example", month), since("Approved", underHour)),
	"pending, a newer one over an hour":  superseded(80 * time.Minute),
	"pending, the newer one":             superseded(65 * time.Minute),
	"pending, a newer one under an hour": with(superseded(80*time.Minute), func(r *row) { r.subject = nodeName("superseded-later") }),
	"pending, the one under an hour":     with(superseded(underHour), func(r *row) { r.subject = nodeName("superseded-later") }),
	"denied, due in a moment": with(row{user: stranger, want: denied, deviation: "on-time", ours: gone, live: true}, func(r *row) {
		r.conditions = conditions(since("Denied", 0))
	}),
}

// superseded returns one of several requests for the same serving certificate, which no rule approves.
func superseded(age time.Duration) row {
	return with(old(age, untouched), func(r *row) {
		r.signer, r.usages, r.subject = kubeletServing, usages("digital signature", "server auth"), nodeName("superseded")
	})
}

func deviates(base row, id, ours string) row {
	base.deviation, base.ours = id, ours
	return base
}
