package reliability

import (
	"bufio"
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
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func stateOf(obj *request) string { return string(csr.StateOf(obj)) }

// patience is how long after a fault every request must have reached its state. A call that hangs costs 45 seconds, and the pause
// before it is tried again up to 30.
const patience = 90 * time.Second

// finished reports how many of items have reached their state.
func (w *world) finished(items []*item) int {
	count := 0
	for _, i := range items {
		if w.isFinished(i) {
			count++
		}
	}
	return count
}

func (w *world) isFinished(i *item) bool {
	past := w.history.of(i.object.Name)
	if i.kind.gone {
		return past.deleted || i.stored.Load() && w.isGone(i)
	}
	return past.state == string(i.kind.want)
}

// isGone reports whether a request that was stored does not exist. Nobody may have seen it, if the API server was down.
func (w *world) isGone(i *item) bool {
	_, err := w.admin.CertificatesV1().CertificateSigningRequests().Get(w.t.Context(), i.object.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// settle waits until all items have reached their state, and returns how many have.
func (w *world) settle(items []*item) (finished int) {
	w.t.Helper()
	_ = wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		if w.restarts {
			w.restartEnded()
		}
		finished = w.finished(items)
		return finished == len(items), nil
	})
	return finished
}

// verify checks what must hold after every fault, and returns what does not, and how many requests are not as they must be.
func (w *world) verify(s *scenario, items []*item) (count int, wrong []error) {
	w.t.Helper()
	serials, stored := map[string]string{}, map[string]*x509.Certificate{}
	for _, i := range items {
		cert, faults := w.verifyRequest(i)
		if cert != nil {
			number := serial(cert)
			if other, twice := serials[number]; twice {
				faults = append(faults, fmt.Errorf("its serial number %s is also that of %s", number, other))
			}
			serials[number], stored[fingerprint(cert)] = i.object.Name, cert
		}
		if len(faults) > 0 {
			count, wrong = count+1, append(wrong, fmt.Errorf("request %s: %w", i.object.Name, errors.Join(faults...)))
		}
	}
	if w.theirs {
		return count, wrong
	}
	if !s.noRecords {
		wrong = append(wrong, w.completeRecords(s, stored)...)
	}
	return count, slices.Concat(wrong, w.verifySecrecy(), w.verifyProcesses(fewMore))
}

// verifyRequest returns the certificate of a request, or nil, and what is not as it must be.
func (w *world) verifyRequest(i *item) (cert *x509.Certificate, wrong []error) {
	past := w.history.of(i.object.Name)
	for _, was := range past.wrong {
		wrong = append(wrong, errors.New(was))
	}
	if !w.isFinished(i) {
		wrong = append(wrong, fmt.Errorf("it is %q, want %q, deleted: %t", past.state, i.kind.want, i.kind.gone))
	}
	if past.deleted && !i.kind.gone {
		wrong = append(wrong, errors.New("it was deleted although it is young"))
	}
	if past.last != nil && len(past.last.Status.Certificate) > 0 {
		var err error
		if cert, err = w.certificate(i, past.last); err != nil {
			return nil, append(wrong, err)
		}
	}
	return cert, wrong
}

// certificate returns the certificate of a request, or an error if it is not what its requester asked for.
func (w *world) certificate(i *item, obj *request) (*x509.Certificate, error) {
	cert, err := parseCertificate(obj.Status.Certificate)
	if err != nil {
		return nil, err
	}
	if i.kind.want != csr.Issued {
		return nil, errors.New("it has a certificate")
	}
	for _, root := range w.roots {
		ca, err := parseCertificate(root.CertPEM)
		if err != nil {
			return nil, err
		}
		if cert.CheckSignatureFrom(ca) == nil {
			if cert.NotAfter.After(ca.NotAfter) || time.Now().After(cert.NotAfter) {
				return nil, fmt.Errorf("it ends at %s, and its CA at %s", cert.NotAfter, ca.NotAfter)
			}
			return cert, i.content(cert, ca, w.history.of(i.object.Name).settled)
		}
	}
	return nil, fmt.Errorf("no known CA has issued its certificate, but %s", cert.Issuer)
}

// parseCertificate returns the certificate in data, which must be exactly one PEM block.
func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(data)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the certificate is not exactly one PEM block")
	}
	return x509.ParseCertificate(block.Bytes)
}

// serial returns the serial number of cert with its issuer: together they must occur once.
func serial(cert *x509.Certificate) string {
	return cert.Issuer.String() + " " + cert.SerialNumber.Text(16)
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// completeRecords waits until verifyRecords finds nothing. The outcome of a write without an answer is recorded after a read. Each may take
// 45 seconds.
func (w *world) completeRecords(s *scenario, stored map[string]*x509.Certificate) (wrong []error) {
	w.t.Helper()
	var found string
	_ = wait.PollUntilContextTimeout(w.t.Context(), time.Second, 95*time.Second, true, func(context.Context) (bool, error) {
		found, wrong = w.verifyRecords(s, stored)
		return len(wrong) == 0, nil
	})
	w.t.Log(found)
	return wrong
}

// signerWorkers is the number of requests on which a signer works at a time, by default. A worker records a certificate,
// writes it, and then records what became of it. So a replica that is killed leaves at most one certificate of each
// worker without an outcome.
const signerWorkers = 20

// verifyRecords checks the audit logs of all replicas: each approval is recorded, each stored certificate was signed by one of them, and
// the last record about each other one says that it was discarded, or that its outcome is unknown. Only a replica that was killed completes
// no record.
// At most as many as writes failed were not stored, besides those of requests that another process signed first: a leader that was paused
// works until it has failed to renew its Lease. found is what it counted.
func (w *world) verifyRecords(s *scenario, stored map[string]*x509.Certificate) (found string, wrong []error) {
	signers, all := map[string]*replica{}, outcomes{}
	logs, err := w.lastRecords()
	if err != nil {
		return "", []error{err}
	}
	for r, last := range logs {
		for sum := range last {
			if stored[sum] != nil {
				signers[sum] = r
			}
		}
	}
	for r, last := range logs {
		of, faults := w.outcomes(r, last, signers)
		wrong = append(wrong, faults...)
		all.add(of)
		if of.open > signerWorkers {
			wrong = append(wrong, fmt.Errorf("replica %d was killed during %d writes, and has %d workers", r.number, of.open, signerWorkers))
		}
		counted := r.metric(w.t.Context(), "csr_signer_discarded_total")
		if r.Ended() == nil && counted != float64(of.discarded) {
			wrong = append(wrong, fmt.Errorf("replica %d counts %v discarded certificates, and has recorded %d", r.number, counted, of.discarded))
		}
	}
	most := 0
	if !s.noneLost {
		most = w.failedWrites()
	}
	if all.lost > most {
		wrong = append(wrong, fmt.Errorf("%d certificates were lost, and at most %d may be, one for each write that failed", all.lost, most))
	}
	found = fmt.Sprintf("%d certificates stored, others: %+v, at most %d may be lost", len(stored), all, most)
	return found, slices.Concat(wrong, w.verifySigners(stored, signers), w.verifyApprovals())
}

// outcomes counts the certificates of a replica that are not stored.
type outcomes struct {
	discarded int // as recorded
	lost      int // discarded, or with an unknown outcome, after a write that failed
	second    int // discarded, because another process had signed the request
	open      int // without an outcome, because the replica was killed
}

func (o *outcomes) add(more outcomes) {
	o.discarded += more.discarded
	o.lost += more.lost
	o.second += more.second
	o.open += more.open
}

// outcomes counts what became of the certificates of r that are not stored, and returns what must not be.
func (w *world) outcomes(r *replica, last map[string]audit.Record, signers map[string]*replica) (of outcomes, wrong []error) {
	for sum, record := range last {
		event := record.Event
		switch {
		case signers[sum] != nil:
			if event != audit.Signed && event != audit.Stored && event != audit.Uncertain {
				wrong = append(wrong, fmt.Errorf("certificate %s is stored, and its last record is %s", sum, event))
			}
		case event == audit.Discarded:
			of.discarded++
			if present := w.storedFor(record.Name); present != "" && signers[present] != r {
				of.second++
			} else {
				of.lost++
			}
		case event == audit.Uncertain:
			of.lost++
		case event == audit.Signed && r.killed:
			of.open++
		default:
			wrong = append(wrong, fmt.Errorf("certificate %s is not stored, and its last record is %s", sum, event))
		}
	}
	return of, wrong
}

// storedFor returns the fingerprint of the certificate of a request, or "" if it has none.
func (w *world) storedFor(name string) string {
	past := w.history.of(name)
	obj := past.last
	if obj == nil {
		obj = past.seen
	}
	if obj == nil {
		return ""
	}
	cert, err := parseCertificate(obj.Status.Certificate)
	if err != nil {
		return ""
	}
	return fingerprint(cert)
}

// verifySigners checks that a record of ours names each stored certificate, or that kube-controller-manager beside ours
// has issued it. In that case both must have issued some.
func (w *world) verifySigners(stored map[string]*x509.Certificate, signers map[string]*replica) (wrong []error) {
	beside := slices.ContainsFunc(w.replicas, func(r *replica) bool { return r.audit == "" })
	theirs, err := parseCertificate(w.roots[len(w.roots)-1].CertPEM) // if both programs have one CA, this can't be told
	if err != nil {
		return []error{err}
	}
	for sum, cert := range stored {
		if signers[sum] == nil && (!beside || cert.CheckSignatureFrom(theirs) != nil) {
			wrong = append(wrong, fmt.Errorf("no record of certificate %s", sum))
		}
	}
	if beside && (len(signers) == 0 || len(signers) == len(stored)) {
		wrong = append(wrong, fmt.Errorf("%d of %d certificates are from this manager, so one program did nothing", len(signers), len(stored)))
	}
	return wrong
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

// lastRecords returns the last record about each certificate, by its fingerprint, of each replica of ours.
func (w *world) lastRecords() (map[*replica]map[string]audit.Record, error) {
	logs := map[*replica]map[string]audit.Record{}
	for _, r := range w.replicas {
		if r.audit == "" { // kube-controller-manager beside ours
			continue
		}
		last, err := lastRecords(r.audit)
		if err != nil {
			return nil, err
		}
		logs[r] = last
	}
	return logs, nil
}

// lastRecords returns the last record about each certificate in an audit log.
func lastRecords(file string) (map[string]audit.Record, error) {
	all, err := records(file)
	last := map[string]audit.Record{}
	for _, record := range all {
		if record.CertificateSHA256 != "" && record.Event != audit.TrustProbe {
			last[record.CertificateSHA256] = record
		}
	}
	return last, err
}

// records returns the records in an audit log.
func records(file string) (all []audit.Record, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) { // nothing happened
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var record audit.Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			continue // the last line of a process that was killed
		}
		all = append(all, record)
	}
	return all, lines.Err()
}

// verifyApprovals checks that a replica of ours has recorded each approval, unless kube-controller-manager approves too.
func (w *world) verifyApprovals() (wrong []error) {
	recorded := map[types.UID]bool{}
	for _, r := range w.replicas {
		if r.audit == "" {
			return nil
		}
		all, err := records(r.audit)
		if err != nil {
			return []error{err}
		}
		for _, record := range all {
			if record.Event == audit.Decided && record.Verdict == "Approve" {
				recorded[record.UID] = true
			}
		}
	}
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	for name, past := range w.history.requests {
		if past.last == nil || recorded[past.last.UID] {
			continue
		}
		if approved := csr.Condition(past.last, certificatesv1.CertificateApproved); approved != nil && approved.Reason == "AutoApproved" {
			wrong = append(wrong, fmt.Errorf("no record of the approval of request %s", name))
		}
	}
	return wrong
}

// verifyProcesses checks that no replica has crashed, and that those that run have at most so many more goroutines than before.
func (w *world) verifyProcesses(more float64) (wrong []error) {
	for _, r := range w.replicas {
		log, err := r.Log()
		if err != nil {
			wrong = append(wrong, err)
		}
		for _, bad := range []string{"panic:", "\ngoroutine ", "Observed a panic"} {
			if strings.Contains(log, bad) {
				wrong = append(wrong, fmt.Errorf("the log of replica %d has %q: %s", r.number, bad, r.Tail(60)))
			}
		}
		if state := r.Ended(); state != nil && !r.killed {
			wrong = append(wrong, fmt.Errorf("replica %d ended by itself: %s", r.number, state))
		}
		if r.Ended() != nil || r.metrics == "" {
			continue
		}
		if err := w.fewGoroutines(r, more); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong
}

// fewMore is the number of goroutines by which a replica may exceed those before the fault, because requests for metrics and
// connections to the API server come and go. After each scenario they were between three more and four fewer. manyMore is that of
// tests that go on much longer, or with another version.
const fewMore, manyMore = 6, 20

// fewGoroutines waits until r has about as many goroutines as the first replica had before the fault.
func (w *world) fewGoroutines(r *replica, more float64) error {
	if w.service != nil {
		w.service.CloseClientConnections() // idle ones, each with two goroutines
	}
	now, before := 0.0, w.replicas[0].idle // a replica that was started during the fault has not been idle
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		now = r.metric(ctx, "go_goroutines")
		return now > 0 && now <= before+more, nil
	})
	if err != nil {
		return fmt.Errorf("replica %d has %.0f goroutines, before the fault %.0f", r.number, now, before)
	}
	return nil
}
