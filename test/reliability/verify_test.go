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
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func stateOf(obj *request) string { return string(csr.StateOf(obj)) }

// patience is how long after a fault every request must have reached its state. Only a program that fails needs all of
// it.
const patience = 2 * time.Minute

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

// settle waits until all items have reached their state, and returns how many have, and how long after the end of the
// fault the last one did.
func (w *world) settle(items []*item, ended time.Time) (finished int, recovery time.Duration) {
	w.t.Helper()
	_ = wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		if w.restarts {
			w.restartEnded()
		}
		finished = w.finished(items)
		return finished == len(items), nil
	})
	for _, i := range items {
		past := w.history.of(i.object.Name)
		if w.isFinished(i) && i.kind.want != csr.Pending && past.created.Before(ended) {
			recovery = max(recovery, past.settled.Sub(ended))
		}
	}
	return finished, recovery
}

// verify checks what must hold after every fault, and returns what does not.
func (w *world) verify(s *scenario, items []*item) (wrong []error) {
	w.t.Helper()
	serials, stored := map[string]string{}, map[string]*x509.Certificate{}
	for _, i := range items {
		past := w.history.of(i.object.Name)
		for _, was := range past.wrong {
			wrong = append(wrong, fmt.Errorf("request %s: %s", i.object.Name, was))
		}
		if !w.isFinished(i) {
			wrong = append(wrong, fmt.Errorf("request %s is %q, want %q, deleted: %t", i.object.Name, past.state, i.kind.want, i.kind.gone))
		}
		if past.deleted && !i.kind.gone {
			wrong = append(wrong, fmt.Errorf("request %s was deleted although it is young", i.object.Name))
		}
		if past.last == nil || len(past.last.Status.Certificate) == 0 {
			continue
		}
		cert, err := w.certificate(i, past.last)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("request %s: %w", i.object.Name, err))
			continue
		}
		serial := cert.Issuer.String() + cert.SerialNumber.Text(16)
		if other, twice := serials[serial]; twice {
			wrong = append(wrong, fmt.Errorf("requests %s and %s have certificates with the serial number %s", i.object.Name, other, serial))
		}
		serials[serial], stored[fingerprint(cert)] = i.object.Name, cert
	}
	if w.theirs {
		return wrong
	}
	if !s.noRecords {
		wrong = append(wrong, w.completeRecords(s, stored)...)
	}
	wrong = append(wrong, w.verifySecrecy()...)
	return append(wrong, w.verifyProcesses()...)
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
			return cert, i.content(cert)
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

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// completeRecords waits until verifyRecords finds nothing. The outcome of a write without an answer is recorded at the
// next attempt, which may be a minute later.
func (w *world) completeRecords(s *scenario, stored map[string]*x509.Certificate) (wrong []error) {
	w.t.Helper()
	_ = wait.PollUntilContextTimeout(w.t.Context(), time.Second, 70*time.Second, true, func(context.Context) (bool, error) {
		wrong = w.verifyRecords(s, stored)
		return len(wrong) == 0, nil
	})
	return wrong
}

// verifyRecords checks the audit logs of all replicas: each stored certificate was signed by one of them, and the last
// record about each other one says that it was discarded. A replica that was killed completes no record. The metric counts
// as many as are recorded. Certificates that were not stored are at most as many as the faults that hit their writes.
func (w *world) verifyRecords(s *scenario, stored map[string]*x509.Certificate) (wrong []error) {
	theirs, err := parseCertificate(w.roots[len(w.roots)-1].CertPEM) // if both programs have one CA, nobody can tell
	if err != nil {
		return []error{err}
	}
	signers, discarded, beside := map[string]int{}, 0, false
	for _, r := range w.replicas {
		if r.audit == "" { // kube-controller-manager beside ours
			beside = true
			continue
		}
		last, err := lastRecords(r.audit)
		if err != nil {
			return []error{err}
		}
		recorded := 0
		for sum, event := range last {
			switch {
			case stored[sum] != nil:
				signers[sum]++
				if event != audit.Signed && event != audit.Stored && (!r.killed || event != audit.Uncertain) {
					wrong = append(wrong, fmt.Errorf("certificate %s is stored, and its last record is %s", sum, event))
				}
			case event == audit.Discarded:
				recorded++
			case event == audit.Uncertain && (r.killed || s.givesUp):
				discarded++
			case !r.killed:
				wrong = append(wrong, fmt.Errorf("certificate %s is not stored, and its last record is %s", sum, event))
			}
		}
		counted := r.metric(w.t.Context(), "csr_signer_discarded_total")
		if r.Ended() == nil && counted != float64(recorded) {
			wrong = append(wrong, fmt.Errorf("replica %d counts %v discarded certificates, and has recorded %d", r.number, counted, recorded))
		}
		discarded += recorded
	}
	for sum, cert := range stored {
		if signers[sum] == 0 && (!beside || cert.CheckSignatureFrom(theirs) != nil) {
			wrong = append(wrong, fmt.Errorf("no record of certificate %s", sum))
		}
	}
	if beside && (len(signers) == 0 || len(signers) == len(stored)) {
		wrong = append(wrong, fmt.Errorf("%d of %d certificates are from this manager, so one program did nothing", len(signers), len(stored)))
	}
	most := 0
	if !s.noneDiscarded {
		most = w.faultyWrites()
	}
	if discarded > most && !beside {
		wrong = append(wrong, fmt.Errorf("%d certificates were discarded, and %d of their writes met a fault", discarded, most))
	}
	w.t.Logf("%d certificates stored, %d discarded", len(stored), discarded)
	return wrong
}

// faultyWrites returns how many writes of certificates met a fault, at most. Each process that was killed, and each
// outage of the API server, met as many as a signer has workers.
func (w *world) faultyWrites() (count int) {
	for _, call := range w.proxy.Calls() {
		if call.Fault != "" && call.Resource == "certificatesigningrequests/status" {
			count++
		}
	}
	const workers = 20 // of a signer, by default
	for _, r := range w.replicas {
		if r.killed {
			count += workers
		}
	}
	return count + w.outages*workers
}

// lastRecords returns the last record about each certificate in an audit log.
func lastRecords(file string) (map[string]audit.Event, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) { // nothing happened
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	last := map[string]audit.Event{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var record audit.Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			continue // the last line of a process that was killed
		}
		if record.CertificateSHA256 != "" && record.Event != audit.TrustProbe {
			last[record.CertificateSHA256] = record.Event
		}
	}
	return last, lines.Err()
}

// verifyProcesses checks that no replica has crashed, and that those that run have no more goroutines than they need.
func (w *world) verifyProcesses() (wrong []error) {
	for _, r := range w.replicas {
		log, err := r.Log()
		if err != nil {
			wrong = append(wrong, err)
		}
		for _, bad := range []string{"panic:", "\ngoroutine ", "DATA RACE", "Observed a panic"} {
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
		if err := w.fewGoroutines(r); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong
}

// fewGoroutines waits until r has about as many goroutines as before the fault.
func (w *world) fewGoroutines(r *replica) error {
	now, before := 0.0, w.replicas[0].idle // a replica that was started during the fault has not been idle
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		now = r.metric(ctx, "go_goroutines")
		return now > 0 && now <= before+20, nil
	})
	if err != nil {
		return fmt.Errorf("replica %d has %.0f goroutines, before the fault %.0f", r.number, now, before)
	}
	return nil
}
