package reliability

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/keyutil"

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

// verifySecrecy checks that no key that the signing Secret held is in a log, an audit log or a page of a replica, or in an
// object that others can read. It also checks that the kernel would write no core dump, and that nothing serves profiles.
func (w *world) verifySecrecy() {
	texts := map[string]string{} // what others than the manager can read, by where it is
	for _, r := range w.replicas {
		for where, file := range map[string]string{"log": r.LogFile, "audit log": r.audit} {
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				texts[fmt.Sprintf("the %s of replica %d", where, r.number)] = string(kit.Must(os.ReadFile(file))(w.t))
			}
		}
	}
	for _, r := range w.running() {
		for _, page := range []struct {
			address, path string
			status        int
		}{{r.metrics, "/metrics", 200}, {r.probes, "/readyz?verbose", 200}, {r.metrics, "/debug/pprof/", 404}, {r.probes, "/debug/pprof/", 404}} {
			status, body := r.page(w.t.Context(), page.address, page.path)
			kit.Check(w.t, status == page.status, "replica %d answers %d to %s: %s", r.number, status, page.path, body)
			texts[fmt.Sprintf("%s of replica %d", page.path, r.number)] = body
		}
		limits := kit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.Pid())))(w.t)
		noDump := regexp.MustCompile(`(?m)^Max core file size +0 +0 `)
		kit.Check(w.t, noDump.Match(limits), "replica %d may dump its memory: %s", r.number, limits)
	}
	for where, path := range map[string]string{
		"an Event": "/api/v1/events", "a ConfigMap": "/api/v1/configmaps",
		"a request":          "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		"a SigningAuthority": "/apis/csr-controller-manager.io/v1alpha1/signingauthorities",
	} {
		list, err := w.admin.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(w.t.Context())
		kit.Check(w.t, err == nil || apierrors.IsNotFound(err), "%s: %v", path, err) // without rotation there are no SigningAuthorities
		texts[where] = string(list)
	}
	for _, key := range append(w.keys, w.CA.KeyPEM) {
		for _, secret := range keyTexts(w.t, key) {
			for where, text := range texts {
				kit.Check(w.t, !strings.Contains(text, secret), "a key of the signing Secret is in %s", where)
			}
		}
	}
}

// keyTexts returns parts of an ECDSA key in the forms in which it could be printed.
func keyTexts(t *testing.T, keyPEM []byte) (texts []string) {
	t.Helper()
	private := kit.Must(keyutil.ParsePrivateKeyPEM(keyPEM))(t).(*ecdsa.PrivateKey)
	raw, public := kit.Must(private.Bytes())(t), kit.Must(private.PublicKey.Bytes())(t)
	texts = append(texts, base64.StdEncoding.EncodeToString(keyPEM[:len(keyPEM)/3*3])) // in a Secret, whatever follows
	for line := range strings.Lines(string(keyPEM)) {
		part, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err == nil && len(part) >= 30 && !bytes.Contains(public, part) { // the CA's certificate has the public key, too
			texts = append(texts, strings.TrimSpace(line))
		}
	}
	return append(texts, fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw), base64.StdEncoding.EncodeToString(raw),
		strings.Trim(fmt.Sprintf("%d", raw), "[]"), new(big.Int).SetBytes(raw).String())
}

// An indicator is a metric that shows a fault. A scenario names the indicators that must fire while it lasts, and those that may.
// No other may fire.
type indicator string

const (
	noRight     indicator = "csr_check_missing_rights"
	skewed      indicator = "csr_clock_skew_seconds"
	caRejected  indicator = "csr_signer_ca_rejected"
	notAudited  indicator = "csr_audit_errors_total"
	foreign     indicator = "csr_signer_foreign_certificates_total"
	mismatch    indicator = "csr_signer_certificate_mismatches_total"
	notApproved indicator = "csr_approver_errors_total"
	notStored   indicator = "csr_signer_errors_total"
	notDeleted  indicator = "csr_cleaner_errors_total"

	discardedCertificates indicator = "csr_signer_discarded_total"

	unavailable indicator = `csr_approver_decisions_total{reason="InventoryUnavailable"}`
	notOwned    indicator = `csr_approver_decisions_total{reason="SANNotOwned"}`
	unknownNode indicator = `csr_approver_decisions_total{reason="NodeNotFound"}`
	answered500 indicator = `rest_client_requests_total{code="500"}`
	unanswered  indicator = `rest_client_requests_total{code="<error>"}`
	newLeader   indicator = "leader_election_master_status"
	restarted   indicator = "process_start_time_seconds"
)

var (
	// ending are the indicators that stop when the fault is over. The others are counters: they fire for what was added since the fault
	// began.
	ending   = []indicator{noRight, skewed, caRejected}
	counting = []indicator{notAudited, foreign, mismatch, notApproved, notStored, notDeleted}
	// harmless are counters that also fire without a fault: a Node is as young as its first request, a watch is opened while a connection
	// closes, and processes start and lead. A write that conflicts discards a certificate.
	harmless = []indicator{discardedCertificates, unavailable, notOwned, unknownNode, answered500, unanswered, newLeader, restarted}
)

// indicators returns the indicators of r that fire, with their values. The value of a counter is what was added to before.
func (r *replica) indicators(ctx context.Context, before map[indicator]float64) map[indicator]float64 {
	firing := map[indicator]float64{}
	status, page := r.page(ctx, r.metrics, "/metrics")
	for _, name := range slices.Concat(ending, counting, harmless) {
		value, found := sum(page, string(name))
		if !slices.Contains(ending, name) {
			value -= before[name]
		}
		if status == 200 && found && (value > 0 && name != skewed || math.Abs(value) > 300) {
			firing[name] = value
		}
	}
	return firing
}

func (w *world) verifyIndicators(fired map[indicator]string) {
	for _, name := range w.indicators {
		kit.Check(w.t, fired[name] != "", "%s did not show the fault", name)
	}
	for name, said := range fired {
		kit.Check(w.t, slices.Contains(slices.Concat(harmless, w.indicators, w.mayFire), name), "unexpected indicator: %s", said)
	}
}

// verifyReports checks the Events, and which records and lines of the log there are. The Events must be from the time of the fault.
func (w *world) verifyReports(began time.Time) {
	told, ended := map[string]bool{}, w.ends[len(w.ends)-1]
	for _, event := range kit.Must(w.admin.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{}))(w.t).Items {
		if at := event.CreationTimestamp.Time; !at.Before(began.Truncate(time.Second)) && !at.After(ended) {
			told[event.Reason] = true
		}
	}
	for _, reason := range w.events {
		kit.Check(w.t, told[reason], "no Event %s while the fault lasted, only %v", reason, told)
	}
	last, _ := w.records()
	isRecorded := func(r lastRecord) bool { return r.Event == w.recorded }
	kit.Check(w.t, w.recorded == "" || slices.ContainsFunc(slices.Collect(maps.Values(last)), isRecorded),
		"the audit log has no certificate that is %s", w.recorded)
	if w.noRecords {
		w.verifyRecordedOrLogged(last)
	}
}

// verifyRecordedOrLogged checks that each stored certificate is in the audit log, or the log says that its record could not be written. Those
// that were made after the fault must be in the audit log.
func (w *world) verifyRecordedOrLogged(recorded map[string]lastRecord) {
	signed, lost := map[string]string{}, map[string]bool{} // signed has reconcileIDs, lost those without a record
	for _, r := range w.replicas {
		for line := range strings.Lines(kit.Must(r.Log())(w.t)) {
			var said struct{ Msg, Controller, ReconcileID, CertificateSHA256 string }
			switch err := json.Unmarshal([]byte(line), &said); {
			case err != nil || said.Controller != "csr-signer":
			case said.Msg == string(audit.Signed):
				signed[said.CertificateSHA256] = said.ReconcileID
			case said.Msg == "Can't write this record to the audit log":
				lost[said.ReconcileID] = true
			}
		}
	}
	for _, obj := range w.history.present() {
		sum := w.storedFor(obj.Name)
		isLate := slices.ContainsFunc(w.late, func(i *item) bool { return i.object.Name == obj.Name })
		isLogged := !isLate && signed[sum] != "" && lost[signed[sum]]
		kit.Check(w.t, sum == "" || recorded[sum].by != nil || isLogged,
			"request %s: the audit log does not have its certificate, late: %t", obj.Name, isLate)
	}
	kit.Check(w.t, len(recorded) != len(signed) && len(recorded) >= len(w.late),
		"%d of %d certificates are recorded: the fault took none away, or all", len(recorded), len(signed))
}

// verifyMetrics waits until the metrics of every replica of ours say what is true after the fault: no indicator that ends
// fires, and csr_requests has as many requests in each state as the API server.
func (w *world) verifyMetrics() {
	for _, r := range w.running() {
		kit.Within(w.t, time.Minute, fmt.Sprint("replica ", r.number), func(ctx context.Context) error { return w.matchesTheAPIServer(ctx, r) })
	}
}

var shownRequests = regexp.MustCompile(`(?m)^csr_requests\{.*state="(\w+)".*\} ([1-9]\S*)$`)

func (w *world) matchesTheAPIServer(ctx context.Context, r *replica) error {
	stored, shown := map[string]float64{}, map[string]float64{}
	list, err := w.admin.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		stored[string(csr.StateOf(&list.Items[i]))]++
	}
	firing := r.indicators(ctx, nil)
	for _, name := range ending {
		if value, fires := firing[name]; fires {
			return fmt.Errorf("after the fault %s is %v", name, value)
		}
	}
	_, page := r.page(ctx, r.metrics, "/metrics")
	for _, found := range shownRequests.FindAllStringSubmatch(page, -1) {
		shown[found[1]] += kit.Must(strconv.ParseFloat(found[2], 64))(w.t)
	}
	return kit.OrError(maps.Equal(shown, stored), "csr_requests is %v, and the API server has %v", shown, stored)
}

// sum returns the sum of all series of page whose name, and first labels if name has some, are those of name, and whether there is one.
func sum(page, name string) (total float64, found bool) {
	name = strings.TrimSuffix(name, "}") // a series may have more labels
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		_, text, _ := strings.Cut(line[strings.LastIndexByte(line, '}')+1:], " ")
		value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return 0, false
		}
		total, found = total+value, true
	}
	return total, found
}
