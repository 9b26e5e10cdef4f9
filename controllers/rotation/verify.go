package rotation

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// questionKey identifies a question about one CA.
type questionKey struct {
	want  probe.Trust
	cert  string // of the CA
	every time.Duration
}

// askAPIServers probes every API server for the answers that the phase needs, and reads what they publish. It drops the
// answers to all other questions, so that an old answer never counts as a new one.
func (r *Reconciler) askAPIServers(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	known, _ := r.trackers.Load(obj.Name)
	before, _ := known.(map[questionKey]*probe.Tracker)
	kept := map[questionKey]*probe.Tracker{}
	defer r.trackers.Store(obj.Name, kept)
	targets := sync.OnceValues(func() ([]probe.Target, error) { return r.apiServers(ctx, obj) })
	ask := func(want probe.Trust, authority, control *ca.Authority) probe.Proof {
		if authority == nil {
			return probe.Proof{}
		}
		key := questionKey{want, string(authority.Certificate().Raw), r.interval(obj)}
		if kept[key] = before[key]; kept[key] == nil {
			kept[key] = probe.NewTracker(want, key.every)
		}
		all, err := targets()
		if err != nil {
			return probe.Proof{Missing: []string{err.Error()}}
		}
		answers := r.prober.Ask(ctx, authority, control, all)
		kept[key].Add(r.Clock.Now(), answers) // a monotonic clock: the API servers' time may jump between two of them
		return kept[key].Proof(r.settleFor(obj))
	}
	phase, asked, secret := obj.Status.Phase, AsksAPIServers(obj.Spec.Signers), o.secret
	switch {
	case phase == v1alpha1.Preparing && asked:
		o.Candidate = ask(probe.Recognised, secret.candidate, nil)
		o.Signing = ask(probe.Recognised, secret.signing, nil) // for a rollback
	case phase == v1alpha1.Prepared && asked:
		o.Signing = ask(probe.Recognised, secret.signing, nil)
		o.RetiringTrusted = ask(probe.Recognised, secret.retiring, nil)
	case obj.Status.UnpublishedAt != nil && secret.signing != nil && askedToRefuse(obj.Spec.Signers, obj.Status.Retiring, o.Facts):
		o.RetiringRefused = ask(probe.Refused, secret.retiring, secret.signing)
	}
	return r.readClientCAs(ctx, obj, o)
}

// apiServers returns all API servers, or an error if there are none.
func (r *Reconciler) apiServers(ctx context.Context, obj *v1alpha1.SigningAuthority) ([]probe.Target, error) {
	addresses := obj.Spec.Verification.APIServers
	if len(addresses) == 0 {
		var err error
		if addresses, err = probe.Endpoints(ctx, r.Live); err != nil {
			return nil, fmt.Errorf("no API server to probe: %w", err)
		}
	}
	return probe.Direct(r.cluster, obj.Spec.Verification.ServerName, addresses), nil
}

// readClientCAs looks into extension-apiserver-authentication, which aggregated API servers read: for the retiring CA
// once it has left the trust bundle, and for CAs above it. A self-signed CA has no CA above it.
func (r *Reconciler) readClientCAs(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	if obj.Status.Retiring == nil || !askedToRefuse(obj.Spec.Signers, obj.Status.Retiring, o.Facts) {
		return nil
	}
	var chain []*x509.Certificate
	cert, err := certificateOf(obj.Status.Retiring)
	if err == nil && o.secret.retiring != nil {
		chain, err = ca.ParseCertificates(o.secret.retiring.AppendedPEM(o.Now))
	}
	if err != nil || obj.Status.UnpublishedAt == nil && len(chain) == 0 {
		return err
	}
	_, trusted, err := r.publisher.ClientCAs(ctx)
	o.Kept = slices.ContainsFunc(trusted, func(one *x509.Certificate) bool { return trust.SameCA(one, cert) })
	if len(chain) > 0 {
		for _, one := range trust.Above(trusted, chain, o.Now) {
			o.Above = append(o.Above, fmt.Sprintf("%q", one.Subject.String()))
		}
	}
	return err
}
