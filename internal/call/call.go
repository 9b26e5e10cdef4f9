// Package call makes calls to the API server. Each call has one timeout, and the end of the manager does not interrupt a
// write. The configuration and the controllers share the defaults here of how many calls are made at a time.
package call

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// Timeout bounds each call to the API server, with the retries of client-go. An admission webhook may take 30 s. The
	// exceptions are the Lease, the time (pkg/servertime) and the probes (internal/probe) with 10 s each, and what has
	// ListTimeout.
	Timeout = 45 * time.Second
	// ListTimeout bounds one page of a list, and the self-check. It also bounds discovery and Events, to which client-go
	// gives no timeout. An API server itself ends a call after a minute.
	ListTimeout = time.Minute
	// Grace is how long a manager that stops waits for its last calls: a write, and the read after it.
	Grace = 2*Timeout + 10*time.Second
)

// The workers of each controller. They are more than kube-controller-manager has
// (cmd/kube-controller-manager/app/certificates.go). Its 5 workers mostly wait for the API server while many nodes join, and
// its one cleaner waits for a deletion that hangs.
const (
	ApproverWorkers = 50
	SignerWorkers   = 20
	CleanerWorkers  = 5
)

// DeletesPerSecond bounds the rate of deletions, so that a restart with a backlog does not flood the API server.
const DeletesPerSecond = 100

// Get reads obj from reader.
func Get(ctx context.Context, reader client.Reader, key client.ObjectKey, obj client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return reader.Get(ctx, key, obj)
}

// List reads one page of a list from reader.
func List(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, ListTimeout)
	defer cancel()
	return reader.List(ctx, list, options...)
}

// Write calls method, which is a method of a client, such as Update. It returns an error if ctx has ended. Later, the end
// of ctx does not cancel the call, because its outcome would be unknown.
func Write[option any](
	ctx context.Context, method func(context.Context, client.Object, ...option) error, obj client.Object, options ...option,
) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	return method(ctx, obj, options...)
}

// Result is the result of Store.
type Result struct {
	// Outcome is audit.Stored; audit.Discarded if the change is not stored and no call under way can store it; or
	// audit.Uncertain.
	Outcome audit.Event
	// Err is the error of the write, also if the read has shown that the change is stored.
	Err error
	// Changed reports that the API server holds another version of the request, or none. A watch brings that change.
	Changed bool
	// Live is the request as the API server holds it, if the Outcome is Discarded after a write.
	Live *certificatesv1.CertificateSigningRequest
}

// Store writes a copy of obj that change has changed by a certificate or one more condition, even if ctx has ended: the audit
// log has announced it. If a cache holds obj without its content (csr.Oversized), the copy is read from live, unless ctx has
// ended, because a write of what the cache holds would remove the rest.
//
// After an error, Store reads the request from live. Even a refusal does not prove that nothing is stored: client-go repeats a
// call, and an earlier attempt may have been stored.
func Store(
	ctx context.Context, live client.Reader, writer client.SubResourceWriter, obj *certificatesv1.CertificateSigningRequest,
	change func(*certificatesv1.CertificateSigningRequest), options ...client.SubResourceUpdateOption,
) Result {
	changed := obj.DeepCopy()
	if csr.Oversized(obj) {
		var err error
		if changed, err = Whole(ctx, live, obj); changed == nil {
			return Result{Outcome: audit.Discarded, Err: cmp.Or(err, errChanged), Changed: err == nil}
		}
	}
	ctx = context.WithoutCancel(ctx)
	change(changed)
	found := &certificatesv1.CertificateSigningRequest{}
	err := Write(ctx, writer.Update, changed, options...)
	if err == nil {
		return Result{Outcome: audit.Stored}
	}
	result := Result{Outcome: audit.Uncertain, Err: err}
	// The change may have been stored before the request was deleted.
	switch readErr := Get(ctx, live, client.ObjectKeyFromObject(changed), found); {
	case readErr != nil:
		result.Changed = apierrors.IsNotFound(readErr)
	case found.UID != changed.UID:
		result.Changed = true
	case holds(found, changed):
		result.Outcome = audit.Stored
	default:
		result.Changed = found.ResourceVersion != changed.ResourceVersion
		if result.Changed || report.Refused(err) { // a write that arrives later conflicts, or is refused too
			result.Outcome, result.Live = audit.Discarded, found
		}
	}
	return result
}

// errChanged is the error of a write about a version of a request that no longer exists.
var errChanged = errors.New("the request has changed since it was judged")

// Whole reads from live the version of obj that a cache holds without its content. It returns nil, without an error, if the API
// server holds another version, or none: a watch brings that change.
func Whole(
	ctx context.Context, live client.Reader, obj *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	whole := &certificatesv1.CertificateSigningRequest{}
	err := Get(ctx, live, client.ObjectKeyFromObject(obj), whole)
	if apierrors.IsNotFound(err) || err == nil && (whole.UID != obj.UID || whole.ResourceVersion != obj.ResourceVersion) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return whole, nil
}

// holds reports whether live has the certificate of changed, or its last condition if it has no certificate.
func holds(live, changed *certificatesv1.CertificateSigningRequest) bool {
	if len(changed.Status.Certificate) > 0 {
		return bytes.Equal(live.Status.Certificate, changed.Status.Certificate)
	}
	last := changed.Status.Conditions[len(changed.Status.Conditions)-1]
	has := csr.Condition(live, last.Type)
	return has != nil && has.Status == last.Status && has.Reason == last.Reason && has.Message == last.Message
}
