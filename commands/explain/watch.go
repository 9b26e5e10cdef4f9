package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// pollEvery is the pause between two reads of a request that Watch waits for.
const pollEvery = 2 * time.Second

// Watch explains the request called name once it is issued, denied or failed. It reads the request every two seconds,
// and writes what it waits for to progress, each time that changes. It goes on if a read fails. After timeout it returns the last Report and an
// error that names what the request still waits for.
func (e *Explainer) Watch(
	ctx context.Context, api client.Reader, name string, timeout time.Duration, progress io.Writer,
) (*Report, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	obj, err := Get(ctx, api, name)
	if err != nil {
		return nil, err
	}
	told := ""
	for {
		f := e.JudgeWithEvents(ctx, obj)
		if isDone(f.State) {
			e.readRenewals(ctx, f) // once, because it reads all requests
			return e.reportOf(f), nil
		}
		report := e.reportOf(f)
		if text := report.waits(); text != told {
			told = text
			_, _ = fmt.Fprintf(progress, "%s: waits for %s, for at most %s (--timeout). %s\n",
				report.Name, report.waitsFor(), hours(timeout), text)
		}
		select {
		case <-ctx.Done():
			return report, ctx.Err()
		case <-timer.C:
			return report, fmt.Errorf("request %s still waits for %s after %s", report.Name, report.waitsFor(), hours(timeout))
		case <-time.After(pollEvery):
		}
		switch current, err := again(ctx, api, obj); {
		case errors.Is(err, errDeleted):
			return report, fmt.Errorf("request %q %w", obj.Name, err)
		case err != nil:
			_, _ = fmt.Fprintf(progress, "Warning: the request could not be read: %s\n", sentence(err.Error()))
		default:
			obj = current
		}
	}
}

var errDeleted = errors.New("was deleted before it got a certificate; make a new request")

// again reads obj again. It returns errDeleted if the request is gone.
func again(
	ctx context.Context, api client.Reader, obj *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	current := &certificatesv1.CertificateSigningRequest{}
	err := api.Get(ctx, client.ObjectKeyFromObject(obj), current)
	if apierrors.IsNotFound(err) || err == nil && current.UID != obj.UID {
		return nil, errDeleted
	}
	return current, err
}

// waitsFor returns what the request of r waits for.
func (r *Report) waitsFor() string {
	if r.State == csr.Approved {
		return "its certificate"
	}
	return "approval"
}

// waits returns the decision of r, and how it differs from the manager's.
func (r *Report) waits() string {
	text := r.Decision
	if r.Difference != "" {
		text += " " + r.Difference
	}
	return text
}
