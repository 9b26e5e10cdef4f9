package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// TestRecordsAreRightWhenAnswersAreLost fails the writes of approver and signer in each way, before and after they
// have landed. Each request is recorded as decided once. Each stored certificate is recorded as signed, and never as
// discarded. A certificate that was not stored is written again, and no second one is issued.
func TestRecordsAreRightWhenAnswersAreLost(t *testing.T) {
	parallel(t)
	proxy, err := faults.Start(managerConfig(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Stop() })
	records := filepath.Join(t.TempDir(), "audit.log")
	startLoopAs(t, proxy.Config, csrenv.Options{Customize: func(o *controllers.Options) { o.Audit = openAudit(t, records) }})
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	for name, do := range map[string]faults.Action{
		"no fault":                     {},
		"500":                          faults.Answer(500),
		"500, landed":                  faults.Answer(500).Landed(),
		"503, landed, client-go again": faults.Answer(503).RetryAfter(time.Second).Landed(),
		"429, client-go again":         faults.Answer(429).RetryAfter(time.Second),
		"429, later":                   faults.Answer(429),
		"409":                          faults.Answer(409),
		"reset":                        faults.Reset(),
		"reset, landed":                faults.Reset().Landed(),
		"connection reset, landed":     faults.ResetConnection().Landed(),
	} {
		t.Run(name, func(t *testing.T) {
			var rules []faults.Rule
			if do.String() != "" {
				for _, write := range []string{"approval", "status"} {
					rules = append(rules, faults.Rule{Verbs: []string{"update"}, Resources: []string{"certificatesigningrequests/" + write}, Times: 1, Do: do})
				}
			}
			proxy.Use(rules...)
			obj := reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "lost")), csr.Issued)
			sum := sha256.Sum256(leaf(t, obj).Raw)
			want := hex.EncodeToString(sum[:])
			eventually(t, "the records are complete", func(context.Context) error {
				var decided, signed int
				var last audit.Record
				for _, record := range readAudit(t, records) {
					switch {
					case record.UID != obj.UID:
					case record.Event == audit.Decided:
						decided++
					case record.Event == audit.Discarded:
						t.Fatalf("discarded: %+v", record)
					default:
						last = record
						if record.Event == audit.Signed {
							signed++
						}
					}
				}
				if decided != 1 || signed != 1 || last.CertificateSHA256 != want || last.Event == audit.Uncertain {
					return fmt.Errorf("%d times decided, %d times signed, and the last record is %s %s", decided, signed, last.Event, last.CertificateSHA256)
				}
				return nil
			})
			for i, applied := range proxy.Applied() {
				if applied != 1 {
					t.Errorf("rule %d was applied %d times", i, applied)
				}
			}
		})
	}
}
