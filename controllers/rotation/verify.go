package rotation

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// verify probes the verifiers of certificates for the answers that the phase needs. API servers may be slow to answer,
// so verify changes nothing and runs concurrently with the reconciles of other authorities. It returns nil if the phase
// needs no answer.
func (r *Reconciler) verify(ctx context.Context, obj *v1alpha1.SigningAuthority) (*observation, error) {
	if phase := obj.Status.Phase; phase == v1alpha1.New || phase == v1alpha1.Completed {
		r.trackers.Delete(obj.Name)
		return nil, nil
	}
	o, err := r.observe(ctx, obj)
	if err != nil {
		return nil, err
	}
	r.askAPIServers(ctx, obj, o)
	if err := r.findCAsAbove(ctx, obj, o); err != nil {
		return nil, err
	}
	return o, r.findKept(ctx, obj, o)
}

// useAnswers copies the answers of verified to o, unless they are about other CAs.
func (r *Reconciler) useAnswers(obj *v1alpha1.SigningAuthority, o, verified *observation) {
	same := func(a, b question) bool { return a.questionKey == b.questionKey }
	if verified != nil && slices.EqualFunc(r.questions(obj, o), r.questions(obj, verified), same) {
		o.Answers = verified.Answers
	}
}

// askAPIServers probes every API server for the answers that the phase needs.
func (r *Reconciler) askAPIServers(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) {
	var all []question
	if AsksAPIServers(obj.Spec.Signers) || obj.Status.UnpublishedAt != nil && askedToRefuse(obj.Spec.Signers, o.Facts) {
		all = r.questions(obj, o)
	}
	trackers := r.keepTrackers(obj.Name, all)
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
		if each.want == probe.Refused {
			tracker.Add(r.prober.Refuse(ctx, each.authority, o.secret.signing, targets))
		} else {
			tracker.Add(r.prober.Recognise(ctx, each.authority, targets))
		}
		each.proof.Proven, each.proof.Missing = tracker.Proven(r.settleFor(obj), r.Clock.Now())
		each.proof.Settling = !each.proof.Proven && tracker.Settling()
		if each.shown {
			o.APIServers = apiServerStatuses(tracker)
		}
	}
}

// question is one question about one CA.
type question struct {
	questionKey
	authority *ca.Authority
	// proof receives the answer. If shown is set, the status lists the answers too.
	proof *Proof
	shown bool
}

// questionKey identifies a question.
type questionKey struct {
	want  probe.Trust
	cert  string // of the CA
	every time.Duration
}

// questions returns the questions of the phase.
func (r *Reconciler) questions(obj *v1alpha1.SigningAuthority, o *observation) []question {
	var all []question
	add := func(want probe.Trust, authority *ca.Authority, proof *Proof, shown bool) {
		if authority != nil {
			key := questionKey{want, string(authority.Certificate().Raw), r.interval(obj)}
			all = append(all, question{key, authority, proof, shown})
		}
	}
	switch obj.Status.Phase {
	case v1alpha1.Preparing:
		add(probe.Recognised, o.secret.candidate, &o.Candidate, true)
		add(probe.Recognised, o.secret.signing, &o.Signing, false) // for a rollback
	case v1alpha1.Prepared:
		add(probe.Recognised, o.secret.signing, &o.Signing, true)
		add(probe.Recognised, o.secret.retiring, &o.RetiringTrusted, false)
	case v1alpha1.Completing:
		if obj.Status.UnpublishedAt != nil && o.secret.signing != nil {
			add(probe.Refused, o.secret.retiring, &o.RetiringRefused, true)
		}
	case v1alpha1.New, v1alpha1.Completed:
	}
	return all
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

// apiServerStatuses returns the last answers for a status. It leaves out what changes with each answer.
func apiServerStatuses(tracker *probe.Tracker) []v1alpha1.APIServerStatus {
	var all []v1alpha1.APIServerStatus
	for _, standing := range tracker.Standings() {
		server := v1alpha1.APIServerStatus{Address: standing.Name, Trust: standing.Trust.String()}
		if standing.Since.IsZero() {
			server.Evidence = standing.Evidence
		} else {
			since := metav1.NewTime(standing.Since.Truncate(time.Second))
			server.Since = &since
		}
		all = append(all, server)
	}
	return all[:min(len(all), maxListed)]
}

// findCAsAbove finds CAs that would make API servers accept the retiring CA further. A self-signed CA has no CA above
// it.
func (r *Reconciler) findCAsAbove(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	if obj.Status.Phase != v1alpha1.Prepared || o.secret.retiring == nil || !askedToRefuse(obj.Spec.Signers, o.Facts) {
		return nil
	}
	chain, err := ca.ParseCertificates(o.secret.retiring.AppendedPEM())
	if err != nil || len(chain) == 0 {
		return err
	}
	certs, err := r.publisher.Above(ctx, chain, o.Now)
	for _, cert := range certs {
		o.Above = append(o.Above, fmt.Sprintf("%q", cert.Subject.String()))
	}
	return err
}

// findKept looks for the retiring CA in extension-apiserver-authentication, which aggregated API servers read.
func (r *Reconciler) findKept(ctx context.Context, obj *v1alpha1.SigningAuthority, o *observation) error {
	if obj.Status.UnpublishedAt == nil || !askedToRefuse(obj.Spec.Signers, o.Facts) {
		return nil
	}
	cert, err := certificateOf(obj.Status.Retiring)
	if err != nil {
		return err
	}
	o.Kept, err = r.publisher.Holds(ctx, cert)
	return err
}

// keepTrackers returns the trackers of questions. It drops the answers to all other questions, so that an old answer never
// counts as a new one.
func (r *Reconciler) keepTrackers(authority string, questions []question) map[questionKey]*probe.Tracker {
	known, _ := r.trackers.Load(authority)
	before, _ := known.(map[questionKey]*probe.Tracker)
	kept := map[questionKey]*probe.Tracker{}
	for _, each := range questions {
		if kept[each.questionKey] = before[each.questionKey]; kept[each.questionKey] == nil {
			kept[each.questionKey] = probe.NewTracker(each.want, each.every)
		}
	}
	r.trackers.Store(authority, kept)
	return kept
}
