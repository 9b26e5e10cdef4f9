package loop

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestSignerServesRequestersInTurn approves hundreds of requests of one requester while there is no CA. When the CA
// appears, a single worker signs the only request of each other requester among the first.
func TestSignerServesRequestersInTurn(t *testing.T) {
	kit.Parallel(t)
	dir := t.TempDir()
	certFile, keyFile, records := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), filepath.Join(dir, "audit.log")
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		signingFrom(keypair.Files{Cert: certFile, Key: keyFile})(o)
		o.Concurrency.Signer, o.Audit = 1, openAudit(t, records)
	}}, "signer", "cleaner")
	asMallory := kit.Impersonate(t, "flooder-0")
	f := &flood{body: kit.NodeRequest(t, "victim").Spec.Request}
	t.Cleanup(func() {
		if err := kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, client.MatchingLabels{"flood": "yes"}); err != nil {
			t.Error(err)
		}
	})
	kit.GrantGroup(t, "flooders", kit.MayCreate)
	kit.Eventually(t, "mallory may create requests", func(ctx context.Context) error {
		return asMallory.Create(ctx, f.request(t), client.DryRunAll)
	})
	const many = 300
	var creators sync.WaitGroup
	for range 10 {
		creators.Go(func() {
			for range many / 10 {
				kit.Approve(t, kit.CreateRequest(t, asMallory, f.request(t)))
			}
		})
	}
	creators.Wait()
	honest := map[string]bool{}
	var last *kit.Request
	for _, user := range []string{"flooder-a", "flooder-b", "flooder-c", "flooder-d", "flooder-e"} {
		last = kit.CreateRequest(t, kit.Impersonate(t, user), kit.NodeRequest(t, "honest"))
		kit.Approve(t, last)
		honest[last.Name] = true
	}
	kit.HasEvent(t, last, "CAMissing", "no such file")

	made := kit.NewCA(t)
	kit.Write(t, keyFile, made.KeyPEM)
	kit.Write(t, certFile, made.CertPEM)
	kit.Eventually(t, "all are signed", func(context.Context) error {
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
	for _, record := range kit.ReadAudit(t, file) {
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
