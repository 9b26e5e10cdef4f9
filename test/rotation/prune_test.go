package rotation

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestPrune has an API server whose client CA file loses the old CA. It keeps publishing the old CA, until it is pruned.
func TestPrune(t *testing.T) {
	kit.Parallel(t)
	c := kit.ControlPlane(t)
	p, oldCA, newCA := publisher(t, c.Config), c.CA, kit.NewCA(t)
	file, err := os.ReadFile(c.ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(file), string(oldCA.CertPEM), "", 1)
	for _, bundle := range []string{string(file) + string(newCA.CertPEM), without + string(newCA.CertPEM)} {
		if err := c.TrustClients([]byte(bundle)); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, "the API server publishes both", func(ctx context.Context) error {
			return holds(ctx, p, true, oldCA, newCA)
		})
	}
	for range 2 { // the second call changes nothing
		if err := p.Prune(t.Context(), kit.Certificate(t, oldCA)); err != nil {
			t.Fatal(err)
		}
	}
	if err := holds(t.Context(), p, false, oldCA); err != nil {
		t.Error(err)
	}
	if err := holds(t.Context(), p, true, newCA); err != nil {
		t.Error(err)
	}
}

func holds(ctx context.Context, p *trust.Publisher, want bool, cas ...*csrenv.CA) error {
	for i, one := range cas {
		certs, err := ca.ParseCertificates(one.CertPEM)
		if err != nil {
			return err
		}
		_, held, err := p.ClientCAs(ctx)
		if got := slices.ContainsFunc(held, certs[0].Equal); err != nil || got != want {
			return fmt.Errorf("CA %d is held: %t, error %w", i+1, got, err)
		}
	}
	return nil
}
