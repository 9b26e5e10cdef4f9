package reliability

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// An alarm is a metric that tells of a fault. A scenario names those that must sound while it lasts, and those that may.
// No other may sound.
type alarm string

const (
	unreachable alarm = "csr_api_server_reachable"
	noRight     alarm = "csr_check_missing_rights"
	skewed      alarm = "csr_clock_skew_seconds"
	caRejected  alarm = "csr_signer_ca_rejected"
	notAudited  alarm = "csr_audit_errors_total"
	foreign     alarm = "csr_signer_foreign_certificates_total"
	mismatch    alarm = "csr_signer_certificate_mismatches_total"
	refused     alarm = "csr_api_refused_total"
	notApproved alarm = "csr_approver_errors_total"
	notStored   alarm = "csr_signer_errors_total"
	notDeleted  alarm = "csr_cleaner_errors_total"

	// These also sound without a fault: a Node is as young as its first request, and processes start and lead.
	unavailable   alarm = `csr_approver_decisions_total{reason="InventoryUnavailable"}`
	slowInventory alarm = `csr_approver_decisions_total{reason="InventoryPending"}`
	notOwned      alarm = `csr_approver_decisions_total{reason="SANNotOwned"}`
	unknownNode   alarm = `csr_approver_decisions_total{reason="NodeNotFound"}`
	answered500   alarm = `rest_client_requests_total{code="500"}`
	newLeader     alarm = "leader_election_master_status"
	restarted     alarm = "process_start_time_seconds"
)

// alarms says for which values an alarm sounds. Those that end sound no more when the fault is over. The others count: what
// they add to the value before the fault sounds. An alarm that is harmless may sound in each scenario.
var alarms = map[alarm]struct {
	sounds         func(value float64) bool
	ends, harmless bool
}{
	unreachable:   {sounds: func(value float64) bool { return value == 0 }, ends: true},
	noRight:       {sounds: positive, ends: true},
	skewed:        {sounds: func(value float64) bool { return math.Abs(value) > 300 }, ends: true},
	caRejected:    {sounds: positive, ends: true},
	notAudited:    {sounds: positive},
	foreign:       {sounds: positive},
	mismatch:      {sounds: positive},
	refused:       {sounds: positive},
	notApproved:   {sounds: positive},
	notStored:     {sounds: positive},
	notDeleted:    {sounds: positive},
	unavailable:   {sounds: positive, harmless: true},
	slowInventory: {sounds: positive, harmless: true},
	notOwned:      {sounds: positive, harmless: true},
	unknownNode:   {sounds: positive, harmless: true},
	answered500:   {sounds: positive, harmless: true},
	newLeader:     {sounds: positive, harmless: true},
	restarted:     {sounds: positive, harmless: true},
}

func positive(value float64) bool { return value > 0 }

// listen reads the metrics of the replicas of ours all the time. The returned function ends that, and returns the alarms
// that sounded, with what they said first.
func (w *world) listen() (stop func() map[alarm]string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	heard, done := map[alarm]string{}, make(chan struct{})
	before := map[int]map[alarm]float64{} // what counters of the first replicas have counted already
	for _, r := range w.running() {
		before[r.number] = r.alarms(ctx, nil)
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, r := range w.running() {
				for name, value := range r.alarms(ctx, before[r.number]) {
					if _, known := heard[name]; !known {
						heard[name] = fmt.Sprintf("replica %d: %s is %v", r.number, name, value)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() map[alarm]string {
		cancel()
		<-done
		return heard
	}
}

// alarms returns the alarms of r that sound, with their values. Of those that count, only what was added to before counts.
func (r *replica) alarms(ctx context.Context, before map[alarm]float64) map[alarm]float64 {
	sounding := map[alarm]float64{}
	status, page := r.page(ctx, r.metrics, "/metrics")
	if status != http.StatusOK {
		return nil
	}
	for name, alarm := range alarms {
		value, found := sum(page, string(name))
		if !alarm.ends {
			value -= before[name]
		}
		if found && alarm.sounds(value) {
			sounding[name] = value
		}
	}
	return sounding
}

// verifyAlarms returns which alarms were missing or false.
func (s *scenario) verifyAlarms(heard map[alarm]string) (wrong []error) {
	for _, name := range s.alarms {
		if heard[name] == "" {
			wrong = append(wrong, fmt.Errorf("%s did not tell of the fault", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(heard)) {
		if !alarms[name].harmless && !slices.Contains(s.alarms, name) && !slices.Contains(s.mayAlarm, name) {
			wrong = append(wrong, fmt.Errorf("false alarm: %s", heard[name]))
		}
	}
	return wrong
}

// verifyTold returns which Events and which lines of the log were missing. The Events must be from the time of the fault.
func (w *world) verifyTold(s *scenario, began time.Time) (wrong []error) {
	w.t.Helper()
	told, ended := map[string]bool{}, w.ends[len(w.ends)-1]
	events, err := w.admin.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		return []error{err}
	}
	for i := range events.Items {
		if at := events.Items[i].CreationTimestamp.Time; !at.Before(began.Truncate(time.Second)) && !at.After(ended) {
			told[events.Items[i].Reason] = true
		}
	}
	for _, reason := range s.events {
		if !told[reason] {
			wrong = append(wrong, fmt.Errorf("no Event %s while the fault lasted, only %v", reason, slices.Sorted(maps.Keys(told))))
		}
	}
	if s.recorded != "" {
		last, err := lastRecords(w.oldest().audit)
		if err != nil {
			wrong = append(wrong, err)
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(last)), func(r audit.Record) bool { return r.Event == s.recorded }) {
			wrong = append(wrong, fmt.Errorf("the audit log has no certificate that is %s", s.recorded))
		}
	}
	if s.noRecords {
		wrong = append(wrong, w.verifyRecordedOrLogged()...)
	}
	return wrong
}

// verifyRecordedOrLogged returns which stored certificates neither the audit log has, nor the log with the line that the record could
// not be written. Those that were made after the fault must be in the audit log.
func (w *world) verifyRecordedOrLogged() (wrong []error) {
	w.t.Helper()
	signed, lost, recorded := map[string]string{}, map[string]bool{}, map[string]bool{} // signed has reconcileIDs, lost those without a record
	for _, r := range w.replicas {
		log, err := r.Log()
		if err != nil {
			return []error{err}
		}
		for line := range strings.Lines(log) {
			var said struct{ Msg, Controller, ReconcileID, CertificateSHA256 string }
			switch err := json.Unmarshal([]byte(line), &said); {
			case err != nil || said.Controller != "csr-signer":
			case said.Msg == string(audit.Signed):
				signed[said.CertificateSHA256] = said.ReconcileID
			case said.Msg == "Can't write this record to the audit log":
				lost[said.ReconcileID] = true
			}
		}
		last, err := lastRecords(r.audit)
		if err != nil {
			return []error{err}
		}
		for sum := range last {
			recorded[sum] = true
		}
	}
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	for name, past := range w.history.requests {
		if past.last == nil || len(past.last.Status.Certificate) == 0 {
			continue
		}
		cert, err := parseCertificate(past.last.Status.Certificate)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		sum := fingerprint(cert)
		isLate := slices.ContainsFunc(w.late, func(i *item) bool { return i.object.Name == name })
		if !recorded[sum] && (isLate || !lost[signed[sum]]) {
			wrong = append(wrong, fmt.Errorf("request %s: the audit log does not have its certificate, late: %t", name, isLate))
		}
	}
	if len(recorded) == len(signed) || len(recorded) < len(w.late) {
		wrong = append(wrong, fmt.Errorf("%d of %d certificates are recorded: the fault took none away, or all", len(recorded), len(signed)))
	}
	return wrong
}

// verifyMetrics waits until the metrics of every replica of ours say what is true after the fault: no alarm that ends
// sounds, and csr_requests has as many requests in each state as the API server.
func (w *world) verifyMetrics() (wrong []error) {
	w.t.Helper()
	for _, r := range w.running() {
		var last error
		err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			last = w.tellsTheTruth(ctx, r)
			return last == nil, nil
		})
		if err != nil {
			wrong = append(wrong, fmt.Errorf("replica %d: %w", r.number, last))
		}
	}
	return wrong
}

func (w *world) tellsTheTruth(ctx context.Context, r *replica) error {
	stored := map[string]float64{}
	list, err := w.admin.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		stored[string(csr.StateOf(&list.Items[i]))]++
	}
	status, page := r.page(ctx, r.metrics, "/metrics")
	if status != http.StatusOK {
		return fmt.Errorf("metrics: status %d", status)
	}
	for name, alarm := range alarms {
		if value, found := sum(page, string(name)); alarm.ends && found && alarm.sounds(value) {
			return fmt.Errorf("after the fault %s is %v", name, value)
		}
	}
	shown := map[string]float64{}
	for _, found := range regexp.MustCompile(`(?m)^csr_requests\{.*state="(\w+)".*\} (\S+)$`).FindAllStringSubmatch(page, -1) {
		value, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			return err
		}
		if value > 0 {
			shown[found[1]] += value
		}
	}
	if !maps.Equal(shown, stored) {
		return fmt.Errorf("csr_requests is %v, and the API server has %v", shown, stored)
	}
	return nil
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
