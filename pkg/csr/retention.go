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

// Deadline returns the time after which obj is due for deletion. If several rules apply, the earliest deadline
// counts. ok is false if no rule applies, for example to a condition without the lastUpdateTime that the API server
// sets.
func (p RetentionPolicy) Deadline(obj *certificatesv1.CertificateSigningRequest) (at time.Time, ok bool) {
	keep, found := p.Signers[obj.Spec.SignerName]
	if !found {
		keep = p.Default
	}
	keep = keep.withDefaults()
	var deadline deadline
	decided := false
	for _, rule := range [...]struct {
		kind certificatesv1.RequestConditionType
		age  time.Duration
	}{
		{certificatesv1.CertificateApproved, keep.Approved},
		{certificatesv1.CertificateDenied, keep.Denied},
		{certificatesv1.CertificateFailed, keep.Failed},
	} {
		if condition := Condition(obj, rule.kind); condition != nil {
			decided = true
			deadline.add(condition.LastUpdateTime.Time, rule.age)
		}
	}
	if !decided {
		deadline.add(obj.CreationTimestamp.Time, keep.Pending)
	}
	if Condition(obj, certificatesv1.CertificateApproved) != nil {
		if issued, readable := Certificate(obj); readable {
			deadline.add(issued.NotAfter, keep.Expired)
		}
	}
	return deadline.at, !deadline.at.IsZero()
}

type deadline struct{ at time.Time }

func (d *deadline) add(since time.Time, age time.Duration) {
	if since.IsZero() || age < 0 {
		return
	}
	if at := since.Add(age); d.at.IsZero() || at.Before(d.at) {
		d.at = at
	}
}
