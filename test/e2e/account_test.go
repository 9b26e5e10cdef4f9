//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// stored holds the serial numbers of all certificates that any request ever had, because the cleaner deletes
// requests.
type stored struct {
	mu      sync.Mutex
	serials sets.Set[string]
}

func (s *stored) has(serial string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serials.Has(serial)
}

func (c *cluster) watchStored(t *testing.T) *stored {
	t.Helper()
	events, err := c.admin.Watch(t.Context(), &certificatesv1.CertificateSigningRequestList{})
	if err != nil {
		t.Fatal(err)
	}
	s := &stored{serials: sets.New[string]()}
	go func() {
		for event := range events.ResultChan() {
			if obj, ok := event.Object.(*certificatesv1.CertificateSigningRequest); ok && issued(obj) != nil {
				s.mu.Lock()
				s.serials.Insert(issued(obj).SerialNumber.Text(16))
				s.mu.Unlock()
			}
		}
	}()
	return s
}

// accounts are the serial numbers in the managers' logs, by what became of their certificates.
type accounts struct {
	signed            sets.Set[string]
	discarded, killed int
	// wrong lists serial numbers that are neither stored nor logged as discarded, and logged outcomes that are not
	// true.
	wrong []string
}

// tally compares the logs with the stored certificates. A killed pod could not log the outcome of its last issuances.
func (c *cluster) tally(logs map[string]records, killed string) accounts {
	a := accounts{signed: sets.New[string]()}
	for path, found := range logs {
		for serial := range found["Signed"] {
			a.signed.Insert(serial)
			is := c.stored.has(serial)
			switch {
			case found["Discarded"][serial] && is:
				a.wrong = append(a.wrong, fmt.Sprintf("%s is logged as discarded, and is stored", serial))
			case found["Discarded"][serial]:
				a.discarded++
			case is:
			case killed != "" && strings.Contains(path, killed):
				a.killed++
			default:
				a.wrong = append(a.wrong, fmt.Sprintf("%s is neither stored nor logged as discarded: %s", serial, path))
			}
		}
	}
	slices.Sort(a.wrong)
	return a
}

// account checks that each serial number in the logs is stored or logged as discarded, and that the logs name each
// serial number of the requests. Only the last issuances of a killed pod's workers may have no outcome: at most one
// for each worker.
func (c *cluster) account(t *testing.T, logs *podLogs, requests map[string]*certificatesv1.CertificateSigningRequest, killed string) {
	t.Helper()
	var a accounts
	// The API server and our watch may lag behind the log.
	c.until(t, 5*time.Second, "each serial number is accounted for", func(context.Context) (bool, error) {
		a = c.tally(logs.read(t), killed)
		if len(a.wrong) > 0 {
			return false, fmt.Errorf("serial numbers:\n%s", strings.Join(a.wrong, "\n"))
		}
		return true, nil
	})
	for _, obj := range requests {
		if serial := issued(obj).SerialNumber.Text(16); !a.signed.Has(serial) {
			t.Errorf("serial number %s of request %s is in no log", serial, obj.Name)
		}
	}
	if a.discarded == 0 {
		t.Error("no serial number is logged as discarded, though requests were changed while they were signed")
	}
	if a.killed > signerWorkers {
		t.Errorf("%d serial numbers of the killed pod have no end, more than it has workers", a.killed)
	}
	t.Logf("%d serial numbers in the logs: %d discarded, %d that a killed leader was just issuing; all others are stored",
		len(a.signed), a.discarded, a.killed)
}
