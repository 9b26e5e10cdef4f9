package reliability

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// patience is how long after a fault every request must have reached its state. A call that hangs costs 45 seconds, and the pause
// before it is tried again up to 30.
const patience = 90 * time.Second

func (w *world) isFinished(i *item) bool {
	past := w.history.of(i.object.Name)
	if !i.kind.gone {
		return !past.deleted && past.state() == i.kind.want
	}
	if past.deleted || !i.stored.Load() {
		return past.deleted
	}
	// The watch may have missed it, if the API server was down.
	_, err := w.admin.CertificatesV1().CertificateSigningRequests().Get(w.t.Context(), i.object.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// settle waits until all items have reached their state, and returns how many have.
func (w *world) settle(items []*item) (finished int) {
	w.poll(patience, func(context.Context) bool {
		if w.scenario.replicas > 1 {
			w.restartEnded()
		}
		finished = len(items) - len(slices.DeleteFunc(slices.Clone(items), w.isFinished))
		return finished == len(items)
	})
	return finished
}

// verify checks each request after a fault, and returns how many are not as they must be, and why.
func (w *world) verify(items []*item) (count int, wrong []error) {
	for _, i := range items {
		past := w.history.of(i.object.Name)
		err := errors.Join(
			w.verifyCertificate(i, past),
			kit.OrError(w.isFinished(i), "it is %q, want %q, deleted: %t", past.state(), i.kind.want, i.kind.gone),
			kit.OrError(!past.deleted || i.kind.gone, "it was deleted although it is young"))
		if err != nil {
			count, wrong = count+1, append(wrong, fmt.Errorf("request %s: %w", i.object.Name, err))
		}
	}
	return count, wrong
}

// verifyCertificate returns what was never right with i, and what is wrong with its certificate, which it adds to w.stored. Certificates of
// one issuer must have different serial numbers.
func (w *world) verifyCertificate(i *item, past past) error {
	wrong := errors.Join(past.wrong...)
	if past.last == nil || len(past.last.Status.Certificate) == 0 {
		return wrong
	}
	cert, err := parseCertificate(past.last.Status.Certificate)
	if err != nil || i.kind.want != csr.Issued {
		return errors.Join(wrong, err, kit.OrError(i.kind.want == csr.Issued, "it has a certificate"))
	}
	serial := cert.Issuer.String() + " " + cert.SerialNumber.Text(16)
	other := w.serials[serial]
	w.serials[serial], w.stored[fingerprint(cert)] = i.object.Name, cert
	wrong = errors.Join(wrong, kit.OrError(other == "", "its serial number %s is also that of %s", serial, other))
	issuer := slices.IndexFunc(w.roots, func(ca *x509.Certificate) bool { return cert.CheckSignatureFrom(ca) == nil })
	if issuer < 0 {
		return errors.Join(wrong, fmt.Errorf("no known CA has issued its certificate, but %s", cert.Issuer))
	}
	ca := w.roots[issuer]
	isValid := !cert.NotAfter.After(ca.NotAfter) && !time.Now().After(cert.NotAfter)
	return errors.Join(wrong, i.check(cert, ca, past.settled), kit.OrError(isValid, "it ends at %s, and its CA at %s", cert.NotAfter, ca.NotAfter))
}

// parseCertificate returns the certificate in data, which must be exactly one PEM block.
func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(data)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the certificate is not exactly one PEM block")
	}
	return x509.ParseCertificate(block.Bytes)
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// completeRecords waits until verifyRecords finds nothing. The outcome of a write without an answer is recorded after a read. Each may take
// 45 seconds.
func (w *world) completeRecords() {
	kit.Within(w.t, 95*time.Second, "the audit logs", func(context.Context) error { return w.verifyRecords() })
}

// signerWorkers is the number of requests on which a signer works at a time, by default. A worker records a certificate,
// writes it, and then records what became of it. So a replica that is killed leaves at most one certificate of each
// worker without an outcome.
const signerWorkers = 20

// verifyRecords checks the audit logs of all replicas: each approval is recorded, each stored certificate was signed by one of them, or by
// kube-controller-manager beside them, and the last record about each other one says that it was discarded, or that its outcome is unknown.
// Only a replica that was killed completes no record. At most as many as writes failed were lost, besides those of requests that another
// process signed first: a leader that was paused works until it has failed to renew its Lease. It logs what it counted.
func (w *world) verifyRecords() error {
	var wrong []error
	check := func(ok bool, format string, values ...any) { wrong = append(wrong, kit.OrError(ok, format, values...)) }
	last, approved := w.records()
	discarded, open := map[*replica]int{}, map[*replica]int{}
	ours, lost, second := 0, 0, 0
	for sum, record := range last {
		event := record.Event
		switch {
		case w.stored[sum] != nil:
			ours++
			fits := event == audit.Signed || event == audit.Stored || event == audit.Uncertain
			check(fits, "certificate %s is stored, and its last record is %s", sum, event)
		case event == audit.Discarded:
			discarded[record.by]++
			if present := w.storedFor(record.Name); present != "" && last[present].by != record.by {
				second++
			} else {
				lost++
			}
		case event == audit.Uncertain:
			lost++
		default:
			check(event == audit.Signed && record.by.killed, "certificate %s is not stored, and its last record is %s", sum, event)
			open[record.by]++
		}
	}
	beside := false
	for _, r := range w.replicas {
		beside = beside || r.audit == ""
		check(open[r] <= signerWorkers, "replica %d was killed during %d writes, and has %d workers", r.number, open[r], signerWorkers)
		counted := r.metric(w.t.Context(), string(discardedCertificates))
		check(r.Ended() != nil || r.audit == "" || counted == float64(discarded[r]),
			"replica %d counts %v discarded certificates, and has recorded %d", r.number, counted, discarded[r])
	}
	most := 0
	if !w.noneLost {
		most = w.failedWrites()
	}
	check(lost <= most, "%d certificates were lost, and at most %d may be, one for each write that failed", lost, most)
	theirs := w.roots[len(w.roots)-1] // if both programs have one CA, this can't be told
	for sum, cert := range w.stored {
		check(last[sum].by != nil || beside && cert.CheckSignatureFrom(theirs) == nil, "no record of certificate %s", sum)
	}
	check(!beside || ours > 0 && ours < len(w.stored), "%d of %d certificates are from this manager, so one program did nothing", ours, len(w.stored))
	for _, obj := range w.history.present() {
		condition := csr.Condition(obj, certificatesv1.CertificateApproved)
		check(condition == nil || condition.Reason != "AutoApproved" || approved[obj.UID] || beside, "no record of the approval of request %s", obj.Name)
	}
	err := errors.Join(wrong...)
	if err == nil {
		w.t.Logf("%d certificates stored, others: %d lost of at most %d, %d second, %v open", len(w.stored), lost, most, second, open)
	}
	return err
}

// storedFor returns the fingerprint of the certificate of a request, or "" if it has none.
func (w *world) storedFor(name string) string {
	if past := w.history.of(name); past.last != nil {
		if cert, err := parseCertificate(past.last.Status.Certificate); err == nil {
			return fingerprint(cert)
		}
	}
	return ""
}

// failedWrites returns how many writes of certificates or Failed conditions met a fault, besides a delay, or failed at the API server.
func (w *world) failedWrites() (count int) {
	for _, call := range w.proxy.Calls() {
		failed := call.Fault != "" && !strings.HasPrefix(call.Fault, "Delay") || call.Status == 0 || call.Status >= http.StatusBadRequest
		if failed && call.Resource == "certificatesigningrequests/status" {
			count++
		}
	}
	return count
}

// lastRecord is the last record about a certificate, and the replica that has written it.
type lastRecord struct {
	audit.Record
	by *replica
}

// records returns the last record about each certificate, by its fingerprint, and the requests that were approved, from the audit logs of
// all replicas of ours.
func (w *world) records() (last map[string]lastRecord, approved map[types.UID]bool) {
	last, approved = map[string]lastRecord{}, map[types.UID]bool{}
	for _, r := range w.replicas {
		if r.audit == "" { // kube-controller-manager beside ours
			continue
		}
		data, err := os.ReadFile(r.audit)
		if !errors.Is(err, os.ErrNotExist) { // then nothing happened
			kit.NoError(w.t, err)
		}
		for line := range bytes.Lines(data) {
			var record audit.Record
			if json.Unmarshal(line, &record) != nil {
				continue // the last line of a process that was killed
			}
			if record.CertificateSHA256 != "" && record.Event != audit.TrustProbe {
				last[record.CertificateSHA256] = lastRecord{record, r}
			}
			if record.Event == audit.Decided && record.Verdict == "Approve" {
				approved[record.UID] = true
			}
		}
	}
	return last, approved
}

// verifyProcesses checks that no replica has crashed, and that those that run have at most so many more goroutines than before.
func (w *world) verifyProcesses(more float64) {
	for _, r := range w.replicas {
		log := kit.Must(r.Log())(w.t)
		for _, bad := range []string{"panic:", "\ngoroutine ", "Observed a panic"} {
			kit.Check(w.t, !strings.Contains(log, bad), "the log of replica %d has %q: %s", r.number, bad, r.Tail(60))
		}
		kit.Check(w.t, r.Ended() == nil || r.killed, "replica %d ended by itself: %s", r.number, r.Ended())
		if r.Ended() != nil || r.metrics == "" {
			continue
		}
		if w.service != nil {
			w.service.CloseClientConnections() // idle ones, each with two goroutines
		}
		before := w.replicas[0].idle // a replica that was started during the fault has not been idle
		kit.Within(w.t, 30*time.Second, fmt.Sprint("goroutines of replica ", r.number), func(ctx context.Context) error {
			now := r.metric(ctx, "go_goroutines")
			return kit.OrError(now > 0 && now <= before+more, "%.0f, before the fault %.0f", now, before)
		})
	}
}

// fewMore is the number of goroutines by which a replica may exceed those before the fault, because requests for metrics and
// connections to the API server come and go. After each scenario they were between three more and four fewer. manyMore is that of
// tests that go on much longer, or with another version.
const fewMore, manyMore = 6, 20
