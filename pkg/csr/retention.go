package csr

import (
	"cmp"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// Retention sets how long a request is kept. Zero means the duration in DefaultRetention. A negative duration keeps
// the request for ever.
type Retention struct {
	// Approved counts from the approval, whether or not a certificate was issued.
	Approved time.Duration
	// Denied counts from the denial.
	Denied time.Duration
	// Failed counts from the failure.
	Failed time.Duration
	// Pending counts from creation, for a request that is neither approved, denied nor failed, whatever other
	// conditions it has.
	Pending time.Duration
	// Expired counts from the expiry of the issued certificate. Zero deletes the request at once.
	Expired time.Duration
}

func (r Retention) withDefaults() Retention {
	return Retention{
		Approved: cmp.Or(r.Approved, DefaultRetention.Approved),
		Denied:   cmp.Or(r.Denied, DefaultRetention.Denied),
		Failed:   cmp.Or(r.Failed, DefaultRetention.Failed),
		Pending:  cmp.Or(r.Pending, DefaultRetention.Pending),
		Expired:  r.Expired,
	}
}

// DefaultRetention is kube-controller-manager's (pkg/controller/certificates/cleaner/cleaner.go) with one difference:
// approved requests without a certificate are deleted after one hour, not after 24.
var DefaultRetention = Retention{Approved: time.Hour, Denied: time.Hour, Failed: time.Hour, Pending: 24 * time.Hour}

// RetentionPolicy holds the retention of each signer name, and Default for all other signers.
type RetentionPolicy struct {
	Default Retention
	Signers map[string]Retention
}

// longestAhead bounds how long a condition with a time after now keeps a request, from its creation.
const longestAhead = 24 * time.Hour

// Deadline returns the time after which obj is due for deletion. If several rules apply, the earliest deadline counts,
// but a Failed request has only that of its failure. Conditions count from ConditionTime. One after now, the time of the
// API servers, counts from now, and keeps the request for at most a day after its creation. ok is false if no rule applies, for example to a condition without a time.
func (p RetentionPolicy) Deadline(
	obj *certificatesv1.CertificateSigningRequest, now time.Time,
) (at time.Time, ok bool) {
	keep := p.of(obj)
	add := func(since time.Time, age time.Duration) {
		if end := since.Add(age); !since.IsZero() && age >= 0 && (!ok || end.Before(at)) {
			at, ok = end, true
		}
	}
	decided := false
	for _, rule := range [...]struct {
		kind certificatesv1.RequestConditionType
		age  time.Duration
	}{
		{certificatesv1.CertificateApproved, keep.Approved},
		{certificatesv1.CertificateDenied, keep.Denied},
		{certificatesv1.CertificateFailed, keep.Failed},
	} {
		if Condition(obj, rule.kind) != nil {
			decided = true
			since := ConditionTime(obj, rule.kind)
			if since.After(now) {
				since = now
				add(obj.CreationTimestamp.Time, max(rule.age, longestAhead))
			}
			add(since, rule.age)
		}
	}
	if !decided {
		add(obj.CreationTimestamp.Time, keep.Pending)
	}
	if Condition(obj, certificatesv1.CertificateApproved) != nil {
		if issued, readable := Certificate(obj); readable {
			add(issued.NotAfter, keep.Expired)
		}
	}
	return at, ok
}

// of returns the retention of obj.
func (p RetentionPolicy) of(obj *certificatesv1.CertificateSigningRequest) Retention {
	keep, found := p.Signers[obj.Spec.SignerName]
	if !found {
		keep = p.Default
	}
	keep = keep.withDefaults()
	if StateOf(obj) == Failed && !ConditionTime(obj, certificatesv1.CertificateFailed).IsZero() {
		keep.Approved = -1
	}
	return keep
}
