//go:build nightly

package manager

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

const (
	// faultyRequests is the size of a mass join.
	faultyRequests = 500
	// usualRequests is the number of joins without faults.
	usualRequests = 100
	// servedWithin is how much longer than those 95 % of the requests may take. A call that hangs ends after 45 seconds, and
	// few requests meet two of them. A watch that was often cut comes back after half a minute.
	servedWithin = 90 * time.Second
)

// storm returns the faults for the manager. Of all calls, 15 % fail before and 15 % after the API server has executed
// them. 5 % are refused for a second, 5 % are reset and 1 % hang. Watches are cut every three seconds.
func storm() []faults.Rule {
	return []faults.Rule{
		{Share: 0.15, Do: faults.Answer(500)},
		{Share: 0.15, Do: faults.Answer(500).Landed()},
		{Share: 0.05, Do: faults.Answer(429).RetryAfter(time.Second)},
		{Share: 0.025, Do: faults.Reset()},
		{Share: 0.025, Do: faults.Reset().Landed()},
		{Share: 0.005, Do: faults.Hang()},
		{Share: 0.005, Do: faults.Hang().Landed()},
		{Verbs: faults.Watch, Do: faults.Cut(3 * time.Second)},
	}
}

// TestServesAllUnderFaults joins 500 kubelets while the calls of the manager fail by a seeded schedule.
func TestServesAllUnderFaults(t *testing.T) {
	kit.Alone(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.GrantJoining(t, "joiner")
	proxy, err := faults.Start(kit.ControlPlane(t).Config, 11)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	cfg := rest.CopyConfig(proxy.Config)
	cfg.BearerToken = kit.ServiceAccountConfig(t).BearerToken
	records := filepath.Join(t.TempDir(), "audit.log")
	kit.StartManager(t, cfg, "--audit-log-path", records)
	leaderAfter(t, "")
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "first")), csr.Issued)

	usual := slices.Max(joinAll(t, "usual", usualRequests))
	proxy.Use(storm()...)
	took := joinAll(t, "stormy", faultyRequests)
	slices.Sort(took)
	t.Logf("slowest without faults %s; with faults p50 %s, p95 %s, slowest %s; applied %v",
		usual, percentile(took, 50), percentile(took, 95), took[len(took)-1], proxy.Applied())
	if most := percentile(took, 95); most > usual+servedWithin {
		t.Errorf("95 %% of the requests took up to %s, without faults %s", most, usual)
	}
	for i, applied := range proxy.Applied() {
		if applied == 0 {
			t.Errorf("rule %d never applied", i)
		}
	}
	recorded(t, records)
}

// recorded checks that each request has the record of its decision. Its certificate must have a record and never be
// recorded as discarded.
func recorded(t *testing.T, file string) {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := kit.Admin(t).List(t.Context(), list, client.MatchingLabels{"join": "stormy"}); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the records of all requests", func(context.Context) error {
		decided, signed, discarded := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, record := range auditRecords(t, file) {
			switch record.Event {
			case audit.Decided:
				decided[record.Name] = decided[record.Name] || record.Verdict == "Approve"
			case audit.Signed:
				signed[record.Serial] = true
			case audit.Discarded:
				discarded[record.Serial] = true
			}
		}
		var undecided, unsigned, wrong []string
		for i := range list.Items {
			obj := &list.Items[i]
			serial := kit.Leaf(t, obj).SerialNumber.Text(16)
			if !decided[obj.Name] {
				undecided = append(undecided, obj.Name)
			}
			if !signed[serial] {
				unsigned = append(unsigned, obj.Name)
			}
			if discarded[serial] {
				wrong = append(wrong, obj.Name)
			}
		}
		if len(undecided)+len(unsigned)+len(wrong) > 0 || len(list.Items) != faultyRequests {
			return fmt.Errorf("of %d requests %d have no Decided record %v, %d no Signed record %v, %d are Discarded %v",
				len(list.Items), len(undecided), undecided, len(unsigned), unsigned, len(wrong), wrong)
		}
		return nil
	})
}
