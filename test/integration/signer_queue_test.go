package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// TestSignerServesRequestersInTurn approves hundreds of requests of one requester while there is no CA. When the CA
// appears, a single worker signs the only request of each other requester among the first.
func TestSignerServesRequestersInTurn(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	certFile, keyFile, records := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), filepath.Join(dir, "audit.log")
	startLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		signingFrom(keypair.Files{Cert: certFile, Key: keyFile})(o)
		o.Concurrency.Signer, o.Audit = 1, openAudit(t, records)
	}}, "signer", "cleaner")
	asMallory := impersonate(t, "flooder-0")
	f := &flood{body: nodeRequest(t, "victim").Spec.Request}
	t.Cleanup(func() {
		if err := admin(t).DeleteAllOf(context.Background(), &request{}, client.MatchingLabels{"flood": "yes"}); err != nil {
			t.Error(err)
		}
	})
	grantGroup(t, "flooders", mayCreate)
	eventually(t, "mallory may create requests", func(ctx context.Context) error {
		return asMallory.Create(ctx, f.request(t), client.DryRunAll)
	})
	const many = 300
	var creators sync.WaitGroup
	for range 10 {
		creators.Go(func() {
			for range many / 10 {
				approve(t, createRequest(t, asMallory, f.request(t)))
			}
		})
	}
	creators.Wait()
	honest := map[string]bool{}
	var last *request
	for _, user := range []string{"flooder-a", "flooder-b", "flooder-c", "flooder-d", "flooder-e"} {
		last = createRequest(t, impersonate(t, user), nodeRequest(t, "honest"))
		approve(t, last)
		honest[last.Name] = true
	}
	hasEvent(t, last, "CAMissing", "no such file")

	made := newCA(t)
	write(t, keyFile, made.KeyPEM)
	write(t, certFile, made.CertPEM)
	eventually(t, "all are signed", func(context.Context) error {
		if got := len(signedNames(t, records)); got < many+len(honest) {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	// Requests that the worker takes out of the queue before the other requesters are in it go first. On a busy machine
	// these are some dozens. In the order of creation, the other requesters would be the last.
	const early = many / 3
	for at, name := range signedNames(t, records) {
		if honest[name] && at >= early {
			t.Errorf("%s is the %dth that is signed", name, at+1)
		}
	}
}

func signedNames(t *testing.T, file string) (names []string) {
	t.Helper()
	for _, record := range readAudit(t, file) {
		if record.Event == audit.Signed {
			names = append(names, record.Name)
		}
	}
	return names
}

func openAudit(t *testing.T, file string) *audit.Log {
	t.Helper()
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// readAudit returns the complete records of an audit log.
func readAudit(t *testing.T, file string) []audit.Record {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var records []audit.Record
	for line := range bytes.Lines(data) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var record audit.Record
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	return records
}
