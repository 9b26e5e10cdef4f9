package loop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestRecordsAreRightWhenAnswersAreLost fails the write of the approver or the signer in each way, before and after it
// has landed. Each stored decision has a record, and each other one is recorded as not stored. The stored certificate is recorded as
// signed, and never as discarded. No second certificate is issued for a request that has one.
func TestRecordsAreRightWhenAnswersAreLost(t *testing.T) {
	kit.Parallel(t)
	cases := map[string]faults.Action{
		"no-fault":                     {},
		"500":                          faults.Answer(500),
		"500-landed":                   faults.Answer(500).Landed(),
		"503-landed-client-go-repeats": faults.AnswerRetryAfter(503, time.Second).Landed(),
		"429-client-go-repeats":        faults.AnswerRetryAfter(429, time.Second),
		"429":                          faults.Answer(429),
		"409":                          faults.Answer(409),
		"reset":                        faults.Reset(),
		"reset-landed":                 faults.Reset().Landed(),
		"connection-reset-landed":      faults.ResetConnection().Landed(),
	}
	// A request of its own for each write: the connection that is reset under an approval may carry the signer's write too.
	writes := []string{"approval", "status"}
	var rules []faults.Rule // set once: new rules would end the watches, which come back later each time
	for name, do := range cases {
		for _, write := range writes {
			rules = append(rules, faults.Rule{
				Verbs: []string{"update"}, Path: regexp.MustCompile("/lost-" + name + "-" + write + "/" + write + "$"), Times: 1, Do: do,
			})
		}
	}
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t), rules...)
	records := filepath.Join(t.TempDir(), "audit.log")
	kit.StartLoopAs(t, proxy.Config, csrenv.Options{Customize: func(o *controllers.Options) { o.Audit = openAudit(t, records) }})
	kit.GrantJoining(t, "joiner")
	for name, do := range cases {
		for _, write := range writes {
			t.Run(name+"/"+write, func(t *testing.T) {
				obj := kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "lost", func(obj *kit.Request) {
					obj.GenerateName, obj.Name = "", "lost-"+name+"-"+write
				})), csr.Issued)
				landed := do.String() == "" || strings.HasSuffix(do.String(), "landed")
				certificates := 1
				if write == "status" && !landed || write == "approval" && name == "connection-reset-landed" {
					certificates = 2
				}
				kit.Eventually(t, "the records are complete", func(context.Context) error {
					return rightRecords(t, kit.ReadAudit(t, records), obj, certificates)
				})
			})
		}
	}
	for i, applied := range proxy.Applied() {
		if applied != 1 {
			t.Errorf("the rule for %s was applied %d times", rules[i].Path, applied)
		}
	}
}

// rightRecords returns an error if the records do not tell one decision about obj and its certificate, or if they tell
// more certificates than most. Each certificate that obj does not have is uncertain or discarded.
func rightRecords(t *testing.T, records []audit.Record, obj *kit.Request, most int) error {
	t.Helper()
	decided, stored, last := 0, fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, obj).Raw)), map[string]audit.Event{} // by certificate
	for _, record := range records {
		switch {
		case record.UID != obj.UID:
		case record.Event == audit.Decided:
			decided++
		case record.Event == audit.NotStored:
			decided--
		default:
			last[record.CertificateSHA256] = record.Event
		}
	}
	if of := last[stored]; decided != 1 || of != audit.Signed && of != audit.Stored || len(last) > most {
		return fmt.Errorf("%d decisions, the certificate %s, of the certificates %v", decided, stored, last)
	}
	for certificate, event := range last {
		if certificate != stored && event != audit.Uncertain && event != audit.Discarded {
			return fmt.Errorf("the last record of certificate %s, which is not stored, is %s", certificate, event)
		}
	}
	return nil
}

// TestWhatEtcdCannotStoreIsFailed makes a request so large, by its labels, that etcd has room for a Failed condition
// but not for a certificate. The audit log says that the certificate was discarded. A slightly smaller request gets its
// certificate.
func TestWhatEtcdCannotStoreIsFailed(t *testing.T) {
	kit.Parallel(t)
	records := filepath.Join(t.TempDir(), "audit.log")
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) { o.Audit = openAudit(t, records) }}, "signer", "cleaner")
	const limit = 1536 << 10 // etcd's --max-request-bytes
	obj := storeLarge(t, limit-1200)
	failsAs(t, obj, "RequestTooLarge", "does not fit into an object")
	kit.Eventually(t, "the records are complete", func(context.Context) error {
		var said []audit.Event
		for _, record := range kit.ReadAudit(t, records) {
			if record.UID == obj.UID {
				said = append(said, record.Event)
			}
		}
		want := []audit.Event{audit.Signed, audit.Discarded, audit.NotSigned}
		return kit.OrError(slices.Equal(said, want), "records %v, want %v", said, want)
	})
	kit.Reaches(t, storeLarge(t, limit-5<<10), csr.Issued)
}

// storeLarge stores an approved request of about size bytes, most of them labels, because annotations may not be so
// long. The API server drops its managed fields, because they do not fit.
func storeLarge(t *testing.T, size int) *kit.Request {
	t.Helper()
	obj := kit.NodeRequest(t, "large")
	obj.Labels = map[string]string{}
	prefix := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60)
	for left := size - obj.Size(); left > 0; left = size - obj.Size() {
		for range 1 + left/300 { // a label takes less than 300 bytes
			obj.Labels[fmt.Sprintf("%s/a%05d", prefix, len(obj.Labels))] = ""
		}
	}
	return kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), obj))
}
