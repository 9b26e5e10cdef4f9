package manager

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestRequestLimitsPolicy checks that the policy in config/request-limits refuses requests of more bytes than the
// manager reads and requests with a finalizer, and nothing else.
func TestRequestLimitsPolicy(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "request-limits")
	t.Cleanup(func() {
		for _, obj := range kit.Rendered(t, "request-limits") {
			if err := client.IgnoreNotFound(kit.Admin(t).Delete(context.Background(), obj)); err != nil {
				t.Error(err)
			}
		}
	})
	ask := func(data []byte) error {
		obj := kit.NodeRequest(t, "a", func(obj *kit.Request) { obj.Spec.Request = data })
		return kit.Admin(t).Create(t.Context(), obj, client.DryRunAll)
	}
	fill := func(data []byte, size int) []byte { return append(data, strings.Repeat("#", size-len(data))...) }
	small := kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}})
	kit.Eventually(t, "the policy holds", func(context.Context) error {
		if ask(fill(small, 200_000)) == nil {
			return errors.New("nothing is refused")
		}
		return nil
	})
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"a usual request":      {data: small},
		"as many bytes as fit": {data: fill(small, 131_072)},
		"one byte too many":    {fill(small, 131_073), "RequestTooLarge: spec.request has more than 131072 bytes"},
		"one byte less":        {data: fill(small, 131_071)},
		"two bytes less":       {data: fill(small, 131_070)},
		"far too many bytes":   {fill(small, 1<<20), "RequestTooLarge: spec.request has more than 131072 bytes"},
	} {
		err := ask(test.data)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
	kept := kit.NodeRequest(t, "a", func(obj *kit.Request) { obj.Finalizers = []string{"example.com/kept"} })
	if err := kit.Admin(t).Create(t.Context(), kept, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "no finalizers") {
		t.Errorf("a request with a finalizer: error %v", err)
	}
}
