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
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// verify asks those who verify certificates what the phase needs to know. It waits for API servers that do not answer, so
// it changes nothing, and does not keep other authorities waiting.
func (r *Reconciler) verify(ctx context.Context, obj *v1alpha1.SigningAuthority) (*observation, error) {
	if phase := obj.Status.Phase; phase == v1alpha1.New || phase == v1alpha1.Completed { // which ask nobody
		r.trackers.forget(obj.Name)
		return nil, nil
	}
	s, err := r.observe(ctx, obj)
	if err != nil {
		return nil, err
	}
	r.askAPIServers(ctx, obj, s)
	if err := r.findCAsAbove(ctx, obj, s); err != nil {
		return nil, err
	}
	return s, r.findHolders(ctx, obj, s)
}

// askAPIServers asks every API server what the phase needs to know.
func (r *Reconciler) askAPIServers(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) {
	var all []question
	if AsksAPIServers(obj.Spec.Signers) || obj.Status.UnpublishedAt != nil && askedToRefuse(obj.Spec.Signers, s.Facts) {
		all = r.questions(obj, s)
	}
	trackers := r.trackers.keep(obj.Name, all)
	if len(all) == 0 {
		return
	}
	targets, err := r.apiServers(ctx, obj)
	for _, each := range all {
		if err != nil {
			*each.proof = Proof{Missing: []string{err.Error()}}
			continue
		}
		tracker := trackers[each.questionKey]
		if each.what == refuses {
			tracker.Add(r.prober.Refuse(ctx, each.authority, s.keys.signing, targets))
		} else {
			tracker.Add(r.prober.Recognise(ctx, each.authority, targets))
		}
		each.proof.Proven, each.proof.Missing = tracker.Proven(r.settleFor(obj), r.Clock.Now())
		each.proof.Settling = !each.proof.Proven && tracker.Settling()
		if each.inStatus {
			s.APIServers = apiServerStatuses(tracker)
		}
	}
}

// questions are what the phase needs to know.
func (r *Reconciler) questions(obj *v1alpha1.SigningAuthority, s *observation) []question {
	var all []question
	add := func(what string, authority *ca.Authority, proof *Proof, shown bool) {
		if authority != nil {
			all = append(all, question{questionKey{what, factsOf(authority).Fingerprint, r.interval(obj)}, authority, proof, shown})
		}
	}
	switch obj.Status.Phase {
	case v1alpha1.Preparing:
		add(trusts, s.keys.candidate, &s.Candidate, true)
		add(trusts, s.keys.signing, &s.Signing, false) // which may have to be gone back to
	case v1alpha1.Prepared:
		add(trusts, s.keys.signing, &s.Signing, true)
		add(trusts, s.keys.retiring, &s.RetiringTrusted, false)
	case v1alpha1.Completing:
		if obj.Status.UnpublishedAt != nil && len(s.Sharing) == 0 && s.keys.signing != nil {
			add(refuses, s.keys.retiring, &s.RetiringRefused, true)
		}
	case v1alpha1.New, v1alpha1.Completed:
	}
	return all
}

// question is a question with where its answer goes.
type question struct {
	questionKey
	authority *ca.Authority
	proof     *Proof
	inStatus  bool // in the status
}

// questionKey is what was asked about which CA, and how often.
type questionKey struct {
	what, fingerprint string
	every             time.Duration
}

// keysOf are those that are asked about which CAs.
func keysOf(all []question) []questionKey {
	asked := make([]questionKey, len(all))
	for i, each := range all {
		asked[i] = each.questionKey
	}
	return asked
}

// The questions that API servers are asked.
const (
	trusts  = "trusts"
	refuses = "refuses"
)

// apiServers are all API servers: none is an error.
func (r *Reconciler) apiServers(ctx context.Context, obj *v1alpha1.SigningAuthority) ([]probe.Target, error) {
	addresses, err := probe.Listed(obj.Spec.Verification.APIServers)
	if len(obj.Spec.Verification.APIServers) == 0 {
		addresses, err = probe.Endpoints(ctx, r.Live)
	}
	if err != nil {
		return nil, fmt.Errorf("no API server to ask: %w", err)
	}
	return probe.Direct(r.Cluster, obj.Spec.Verification.ServerName, addresses), nil
}

// apiServerStatuses are for people, and say no more than changes.
func apiServerStatuses(tracker *probe.Tracker) []v1alpha1.APIServerStatus {
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
	return all[:min(len(all), maxListed)]
}

// findCAsAbove looks for CAs by which API servers would go on to accept the retiring one. One that is self-signed has none above it.
func (r *Reconciler) findCAsAbove(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
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

// findHolders looks for those who hold what was published before.
func (r *Reconciler) findHolders(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
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
	return r.askAggregated(ctx, s)
}

// askAggregated asks the aggregated API servers whether they accept what retires.
func (r *Reconciler) askAggregated(ctx context.Context, s *observation) error {
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

// trackers are the answers so far, by authority. They are in memory alone: after a restart everything is proven anew.
type trackers struct {
	mu          sync.Mutex
	byAuthority map[string]map[questionKey]*probe.Tracker
}

// keep forgets the questions that are not asked any more, so that an old answer is never taken for a new one.
func (w *trackers) keep(authority string, asked []question) map[questionKey]*probe.Tracker {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byAuthority == nil {
		w.byAuthority = map[string]map[questionKey]*probe.Tracker{}
	}
	before, kept := w.byAuthority[authority], map[questionKey]*probe.Tracker{}
	for _, each := range asked {
		one := each.questionKey
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

func (w *trackers) forget(authority string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byAuthority, authority)
}
