package rotation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/probe"
)

// verify asks those who verify certificates what the phase needs to know. It waits for API servers that do not answer, so
// it changes nothing, and does not keep other authorities waiting.
func (r *Reconciler) verify(ctx context.Context, obj *v1alpha1.SigningAuthority) (*seen, error) {
	if phase := obj.Status.Phase; phase == v1alpha1.New || phase == v1alpha1.Completed { // which ask nobody
		r.watches.forget(obj.Name)
		return nil, nil
	}
	s, err := r.observe(ctx, obj)
	if err != nil {
		return nil, err
	}
	r.ask(ctx, obj, s)
	if err := r.above(ctx, obj, s); err != nil {
		return nil, err
	}
	return s, r.kept(ctx, obj, s)
}

// ask asks every API server what the phase needs to know.
func (r *Reconciler) ask(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) {
	var all []asking
	if AsksAPIServers(obj.Spec.Signers) || obj.Status.UnpublishedAt != nil && askedToRefuse(obj.Spec.Signers, s.Facts) {
		all = r.askings(obj, s)
	}
	trackers := r.watches.keep(obj.Name, all)
	if len(all) == 0 {
		return
	}
	targets, err := r.targets(ctx, obj)
	for _, each := range all {
		if err != nil {
			*each.proof = Proof{Missing: []string{err.Error()}}
			continue
		}
		tracker := trackers[each.question]
		if each.what == refuses {
			tracker.Add(r.prober.Refuse(ctx, each.authority, s.keys.signing, targets))
		} else {
			tracker.Add(r.prober.Recognise(ctx, each.authority, targets))
		}
		each.proof.Proven, each.proof.Missing = tracker.Proven(r.settleFor(obj), r.Clock.Now())
		each.proof.Settling = !each.proof.Proven && tracker.Settling()
		if each.shown {
			s.Servers = standings(tracker)
		}
	}
}

// askings are what the phase needs to know.
func (r *Reconciler) askings(obj *v1alpha1.SigningAuthority, s *seen) []asking {
	var all []asking
	add := func(what string, authority *ca.Authority, proof *Proof, shown bool) {
		if authority != nil {
			all = append(all, asking{question{what, factsOf(authority).Fingerprint, r.every(obj)}, authority, proof, shown})
		}
	}
	switch obj.Status.Phase {
	case v1alpha1.Preparing:
		add(doTrust, s.keys.candidate, &s.Candidate, true)
		add(doTrust, s.keys.signing, &s.Signing, false) // which may have to be gone back to
	case v1alpha1.Prepared:
		add(doTrust, s.keys.signing, &s.Signing, true)
		add(doTrust, s.keys.retiring, &s.RetiringTrusted, false)
	case v1alpha1.Completing:
		if obj.Status.UnpublishedAt != nil && len(s.Sharing) == 0 && s.keys.signing != nil {
			add(refuses, s.keys.retiring, &s.RetiringRefused, true)
		}
	case v1alpha1.New, v1alpha1.Completed:
	}
	return all
}

// asking is a question with where its answer goes.
type asking struct {
	question
	authority *ca.Authority
	proof     *Proof
	shown     bool // in the status
}

// question is what was asked about which CA, and how often.
type question struct {
	what, fingerprint string
	every             time.Duration
}

// questions are those that are asked about which CAs.
func questions(all []asking) []question {
	asked := make([]question, len(all))
	for i, each := range all {
		asked[i] = each.question
	}
	return asked
}

// The questions that API servers are asked.
const (
	doTrust = "trusts"
	refuses = "refuses"
)

// targets are all API servers: none is an error.
func (r *Reconciler) targets(ctx context.Context, obj *v1alpha1.SigningAuthority) ([]probe.Target, error) {
	addresses, err := probe.Listed(obj.Spec.Verification.APIServers)
	if len(obj.Spec.Verification.APIServers) == 0 {
		addresses, err = probe.Endpoints(ctx, r.Live)
	}
	if err != nil {
		return nil, fmt.Errorf("no API server to ask: %w", err)
	}
	return probe.Direct(r.Cluster, obj.Spec.Verification.ServerName, addresses), nil
}

// standings are for people, and say no more than changes.
func standings(tracker *probe.Tracker) []v1alpha1.APIServerStatus {
	var all []v1alpha1.APIServerStatus
	for _, standing := range tracker.Standings() {
		one := v1alpha1.APIServerStatus{Address: standing.Name, Trust: standing.Trust.String()}
		if standing.Since.IsZero() {
			one.Evidence = standing.Evidence
		} else {
			since := metav1.NewTime(standing.Since.Truncate(time.Second))
			one.Since = &since
		}
		all = append(all, one)
	}
	return all[:min(len(all), longest)]
}

// above looks for CAs by which API servers would go on to accept the retiring one. One that is self-signed has none above it.
func (r *Reconciler) above(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	if obj.Status.Phase != v1alpha1.Prepared || s.keys.retiring == nil || !askedToRefuse(obj.Spec.Signers, s.Facts) {
		return nil
	}
	chain, err := ca.ParseCertificates(s.keys.retiring.AppendedPEM())
	if err != nil || len(chain) == 0 {
		return err
	}
	certs, err := r.publisher.Above(ctx, chain, s.Now)
	for _, one := range certs {
		s.Above = append(s.Above, fmt.Sprintf("%q", one.Subject.String()))
	}
	return err
}

// kept looks for those who hold what was published before.
func (r *Reconciler) kept(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	retiring := obj.Status.Retiring
	if obj.Status.UnpublishedAt == nil || retiring == nil || len(s.Sharing) > 0 || !askedToRefuse(obj.Spec.Signers, s.Facts) {
		return nil
	}
	cert, err := certificateOf(retiring)
	if err != nil {
		return err
	}
	if s.Kept, err = r.publisher.Holds(ctx, cert); err != nil || s.keys.retiring == nil {
		return err
	}
	return r.aggregated(ctx, s)
}

// aggregated asks the aggregated API servers whether they accept what retires.
func (r *Reconciler) aggregated(ctx context.Context, s *seen) error {
	targets, unknown, err := probe.Aggregated(ctx, r.Live)
	if err != nil {
		return err
	}
	answers := r.prober.Refuse(ctx, s.keys.retiring, s.keys.signing, targets).Answers
	maps.Copy(answers, unknown)
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		said := fmt.Sprintf("%s (%s)", name, answers[name].Evidence)
		switch answers[name].Trust {
		case probe.Recognised:
			s.Holding = append(s.Holding, said)
		case probe.Unknown:
			s.Unclear = append(s.Unclear, said)
		case probe.Refused:
		}
	}
	return nil
}

// watches are the answers so far, by authority. They are in memory alone: after a restart everything is proven anew.
type watches struct {
	mu          sync.Mutex
	byAuthority map[string]map[question]*probe.Tracker
}

// keep forgets the questions that are not asked any more, so that an old answer is never taken for a new one.
func (w *watches) keep(authority string, asked []asking) map[question]*probe.Tracker {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byAuthority == nil {
		w.byAuthority = map[string]map[question]*probe.Tracker{}
	}
	before, kept := w.byAuthority[authority], map[question]*probe.Tracker{}
	for _, each := range asked {
		one := each.question
		kept[one] = before[one]
		if kept[one] == nil {
			want := probe.Recognised
			if one.what == refuses {
				want = probe.Refused
			}
			kept[one] = probe.NewTracker(want, one.every)
		}
	}
	w.byAuthority[authority] = kept
	return kept
}

func (w *watches) forget(authority string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byAuthority, authority)
}
