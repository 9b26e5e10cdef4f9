package reliability

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

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
