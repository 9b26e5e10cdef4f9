//go:build nightly

package rotation

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	certificates "k8s.io/client-go/util/certificate"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

const (
	// fleetSize is the number of certificate managers.
	fleetSize = 200
	// A member renews when 70 to 90 % of fleetLifetime and of the five minutes before it have passed: 0 to 86 s after
	// the issuance.
	fleetLifetime = ca.ShortestLifetime + time.Second
	allRenewed    = 90*time.Second + kit.Patience
	joined        = 2 * kit.Patience
	// perSecond is how often all members call the API server, each time over a new connection.
	perSecond = 20
	// step is the time by which the rotation's clock is advanced once all members have moved, so that certificates of
	// the old CA expire sooner. It is less than the five minutes by which certificates are backdated.
	step = 4 * time.Minute
)

// fleet simulates the certificates of many kubelets.
type fleet struct {
	*rotating
	members         []*member
	refused, failed atomic.Int64
}

type member struct {
	name    string
	manager certificates.Manager
	known   atomic.Int64 // how often the API server accepted its certificate
}

// TestFleet has client-go's certificate managers that call the API server while its client CA is replaced, until no
// certificate of the old CA is left.
func TestFleet(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	r.feed(t)
	r.bring(t, "signing-ca", r.CA)
	stolen := signedBy(t, kit.Load(t, r.CA), pkix.Name{CommonName: "stolen"}, time.Hour)
	options, ahead := r.signing(t, "signing-ca", fleetLifetime), &aheadClock{}
	options.Approver = &approver.Reconciler{Rules: []approver.Rule{approver.NodeClient()}}
	options.Signer.Signers[kubeletSigner] = options.Signer.Signers[userSigner]
	options.Rotation.Clock = ahead
	r.run(t, options)
	r.authority(t, "cluster", "signing-ca", published("cluster"))
	adopted := r.reaches(t, "cluster", v1alpha1.Completed, nil)
	r.isTakenFor(t, stolen, "stolen")
	f := r.startFleet(t)
	f.allBy(t, adopted.Signing, joined)
	f.eachKnown(t)

	began := time.Now()
	r.ask(t, "cluster", v1alpha1.OperationStart)
	prepared := r.reaches(t, "cluster", v1alpha1.Prepared, nil)
	t.Logf("the new CA signs %s after start", time.Since(began).Round(time.Second))
	f.allBy(t, prepared.Signing, allRenewed)
	t.Logf("all %d have moved %s after start", fleetSize, time.Since(began).Round(time.Second))
	ahead.by.Store(int64(step))
	f.complete(t)
	t.Logf("the old CA is gone %s after start", time.Since(began).Round(time.Second))

	f.eachKnown(t)
	r.isTakenFor(t, stolen, "")
	if refused, failed := f.refused.Load(), f.failed.Load(); refused > 0 || failed > 0 {
		t.Errorf("the API server did not know a member %d times, and did not answer one %d times", refused, failed)
	}
}

// aheadClock is ahead of the real time by a variable offset.
type aheadClock struct {
	clock.RealClock
	by atomic.Int64 // a time.Duration
}

// Now returns the time of the clock.
func (c *aheadClock) Now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

// Since returns the time since t.
func (c *aheadClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// complete completes the rotation once the ledger has no valid certificate of the old CA.
func (f *fleet) complete(t *testing.T) {
	t.Helper()
	f.does(t, "cluster", v1alpha1.OperationAttest)
	kit.Within(t, 2*kit.Patience, "nothing is outstanding", func(context.Context) error {
		if obj := f.get(t, "cluster"); len(obj.Status.Outstanding) > 0 {
			return fmt.Errorf("there is %+v", obj.Status.Outstanding)
		}
		return nil
	})
	f.completes(t, "cluster")
	f.reaches(t, "cluster", v1alpha1.Completed, nil)
}

// startFleet joins the members with a token. They call the API server until the test ends.
func (r *rotating) startFleet(t *testing.T) *fleet {
	t.Helper()
	kit.GrantJoining(t, "joiner")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	f := &fleet{rotating: r}
	ctx, stop := context.WithCancel(t.Context())
	var talking sync.WaitGroup
	t.Cleanup(func() {
		stop()
		talking.Wait()
	})
	for i := range fleetSize {
		name := fmt.Sprintf("fleet-%03d", i)
		dir := filepath.Join(r.Dir, name) // not the test's own, as a manager does not say when it has stopped
		kit.NoError(t, os.Mkdir(dir, 0o700))
		node := kubelet.Node{Name: name, Dir: dir, Bootstrap: kit.TokenConfig(t, "joiner")}
		manager := node.Rotation(ctx, t)
		manager.Start()
		f.members = append(f.members, &member{name: node.User(), manager: manager})
	}
	for _, m := range f.members {
		talking.Go(func() { f.talk(ctx, t, m) })
	}
	return f
}

// talk calls WhoAmI as m repeatedly, each time over a new connection.
func (f *fleet) talk(ctx context.Context, t *testing.T, m *member) {
	ticker := time.NewTicker(time.Duration(len(f.members)) * time.Second / perSecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		current := m.manager.Current()
		if current == nil {
			continue // it has not joined yet
		}
		switch user, err := whoIs(ctx, f.Config, current); {
		case ctx.Err() != nil:
		case err == nil && user == m.name:
			m.known.Add(1)
		case err == nil || apierrors.IsUnauthorized(err):
			f.refused.Add(1)
			t.Logf("the API server takes %s for %q, error %v; its certificate is of %q and ends at %s", m.name, user, err, current.Leaf.Issuer, current.Leaf.NotAfter)
		default:
			f.failed.Add(1)
			t.Logf("%s has no answer: %v", m.name, err)
		}
	}
}

// eachKnown waits until the API server has accepted each member once more.
func (f *fleet) eachKnown(t *testing.T) {
	t.Helper()
	before := map[*member]int64{}
	for _, m := range f.members {
		before[m] = m.known.Load()
	}
	for _, m := range f.members {
		kit.Within(t, 2*kit.Patience, m.name+" is known", func(context.Context) error {
			if m.known.Load() == before[m] {
				return fmt.Errorf("%d times so far", before[m])
			}
			return nil
		})
	}
}

// allBy waits until each member has a certificate of one.
func (f *fleet) allBy(t *testing.T, one *v1alpha1.CAStatus, bound time.Duration) {
	t.Helper()
	certs, err := ca.ParseCertificates([]byte(one.Certificate))
	kit.NoError(t, err)
	end := time.Now().Add(bound)
	for _, m := range f.members {
		kit.Within(t, time.Until(end), m.name+" has a certificate by "+one.KeyID, func(context.Context) error {
			current := m.manager.Current()
			if current == nil {
				return errors.New("it has none")
			}
			return current.Leaf.CheckSignatureFrom(certs[0])
		})
	}
}
