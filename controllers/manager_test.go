package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

func TestSetupErrors(t *testing.T) {
	fake := clocktesting.NewFakeClock(noon)
	for want, options := range map[string]Options{
		"no controller is set in Options: set at least one": {},
		"set up csr-signer: signer example.com/a has no KeyPair": {
			Clock: fake, Signer: &signer.Reconciler{Signers: map[string]signer.Signer{"example.com/a": {}}},
		},
	} {
		if err := options.SetupWithManager(nil); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestClocks checks which clocks a controller gets.
func TestClocks(t *testing.T) {
	own, shared := clocktesting.NewFakePassiveClock(noon), clocktesting.NewFakeClock(noon.Add(time.Hour))
	given, mine := servertime.Of(own), servertime.Of(shared)
	for name, test := range map[string]struct {
		options    Options
		serverTime *servertime.Clock
		own        clock.PassiveClock
		wantServer *servertime.Clock // nil means a new one that shows own
		want       clock.PassiveClock
	}{
		"nothing is set":                {options: Options{ServerTime: given}, wantServer: given},
		"a shared clock":                {options: Options{ServerTime: given, Clock: shared}, wantServer: given, want: shared},
		"a clock of its own":            {options: Options{ServerTime: mine, Clock: shared}, own: own, want: own},
		"a clock and a server time too": {options: Options{ServerTime: given}, serverTime: mine, own: own, wantServer: mine, want: own},
	} {
		serverTime, used := test.options.clocks(test.serverTime, test.own)
		if used != test.want || test.wantServer != nil && serverTime != test.wantServer ||
			test.wantServer == nil && !serverTime.Latest().Equal(own.Now()) {
			t.Errorf("%s: another clock, or ages count by another clock", name)
		}
	}
	all := Options{
		ServerTime: given, Approver: &approver.Reconciler{}, Signer: &signer.Reconciler{}, Cleaner: &cleaner.Reconciler{},
		Rotation: &rotation.Reconciler{},
	}
	mgr, err := manager.New(&rest.Config{}, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err == nil {
		err = all.SetupWithManager(mgr)
	}
	for _, used := range []*servertime.Clock{all.Approver.ServerTime, all.Signer.ServerTime, all.Cleaner.ServerTime, all.Rotation.ServerTime} {
		if err != nil || used != given {
			t.Errorf("a controller counts ages by another clock, error %v", err)
		}
	}
	for _, options := range []Options{{ServerTime: given, Clock: shared}, {Clock: clocktesting.NewFakeClock(noon)}} {
		if err := options.setServerTime(nil); err != nil || !options.ServerTime.Latest().Equal(noon) {
			t.Errorf("%+v shows %s, error %v", options, options.ServerTime.Latest(), err)
		}
	}
}

// TestCacheOptionsTrimFinishedAndForeignRequests checks what the manager's cache holds of a request.
func TestCacheOptionsTrimFinishedAndForeignRequests(t *testing.T) {
	all := func(dry string) *Options {
		return &Options{
			Approver: &approver.Reconciler{Judges: map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.KubeletClient{}}, DryRun: dry == "approver"},
			Signer:   &signer.Reconciler{Signers: map[string]signer.Signer{"example.com/custom": {}}, DryRun: dry == "signer"},
			Cleaner:  &cleaner.Reconciler{DryRun: dry == "cleaner"},
		}
	}
	type kinds = []certificatesv1.RequestConditionType
	for name, test := range map[string]struct {
		options    *Options
		signerName string
		conditions kinds
		trimmed    bool
	}{
		"pending":                              {all(""), kubelet, nil, false},
		"pending, for another signer":          {all(""), "example.com/foreign", nil, true},
		"pending, for the signer":              {all(""), "example.com/custom", nil, false},
		"denied":                               {all(""), kubelet, kinds{"Denied"}, true},
		"denied, the approver is in a dry run": {all("approver"), kubelet, kinds{"Denied"}, false},
		"denied, the signer is in a dry run":   {all("signer"), kubelet, kinds{"Denied"}, false},
		"denied, the cleaner is in a dry run":  {all("cleaner"), kubelet, kinds{"Denied"}, true},
		"pending, only the cleaner runs":       {&Options{Cleaner: &cleaner.Reconciler{}}, kubelet, nil, true},
	} {
		obj, err := newRequest("a", test.signerName, noon, test.conditions...), error(nil)
		if transform := test.options.CacheOptions().DefaultTransform; transform != nil {
			_, err = transform(obj)
		}
		if got := csr.Trimmed(obj); got != test.trimmed || err != nil {
			t.Errorf("%s: trimmed %t, want %t, error %v", name, got, test.trimmed, err)
		}
	}
}

// TestCacheOptionsLimits checks whose limits decide what the cache holds: the signer's, if the manager has one.
func TestCacheOptionsLimits(t *testing.T) {
	low := csr.Limits{RequestBytes: 3}
	judges := map[string]approver.Judge{kubelet: approver.KubeletClient{}}
	for name, test := range map[string]struct {
		options Options
		small   bool
	}{
		"the approver's":       {Options{Approver: &approver.Reconciler{Judges: judges, RequestLimits: low}}, true},
		"the default":          {Options{Approver: &approver.Reconciler{Judges: judges}}, false},
		"the signer's":         {Options{Approver: &approver.Reconciler{Judges: judges}, Signer: &signer.Reconciler{RequestLimits: low}}, true},
		"the signer's default": {Options{Approver: &approver.Reconciler{Judges: judges, RequestLimits: low}, Signer: &signer.Reconciler{}}, false},
	} {
		obj := newRequest("a", kubelet, noon)
		if _, err := test.options.CacheOptions().DefaultTransform(obj); err != nil || csr.Oversized(obj) != test.small {
			t.Errorf("%s: small %t, want %t, error %v", name, csr.Oversized(obj), test.small, err)
		}
	}
}

type request = certificatesv1.CertificateSigningRequest

// newRequest returns a request with a payload and conditions.
func newRequest(name, signerName string, created time.Time, conditions ...certificatesv1.RequestConditionType) *request {
	obj := &request{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}}
	obj.Spec.SignerName, obj.Spec.Request = signerName, []byte("payload")
	for _, condition := range conditions {
		csr.AddCondition(obj, condition, "Test", "Decided by the test.", noon)
	}
	return obj
}

// filling is a cache of a kind that is not installed at first.
type filling struct {
	cache.Informers
	cache.Informer
	installed, synced atomic.Bool
}

func (f *filling) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	if !f.installed.Load() {
		return nil, errors.New("no matches for kind")
	}
	return f, nil
}
func (f *filling) HasSynced() bool            { return f.synced.Load() }
func (f *filling) GetStore() toolscache.Store { return nil }

// TestReadyWaitsForCaches checks that a missing kind keeps a replica unready, and ends nothing.
func TestReadyWaitsForCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informers := &filling{}
		c := &caches{served: informers, log: logr.Discard()}
		c.problems.Store(&corev1.Secret{}, informer.ErrNotRead)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		const unfilled = "the cache of *v1.Secret is not filled: "
		for _, step := range []struct {
			change func()
			pause  time.Duration
			want   string
		}{
			{func() {}, 0, unfilled + "not read yet"},
			{func() { go func() { done <- c.Start(ctx) }() }, 0, unfilled + "no matches for kind"},
			{func() {}, time.Hour, unfilled + "no matches for kind"},
			{func() { informers.installed.Store(true) }, time.Minute, unfilled + "not read yet"},
			{func() { informers.synced.Store(true) }, time.Second, "<nil>"},
		} {
			step.change()
			time.Sleep(step.pause)
			synctest.Wait()
			if got := fmt.Sprint(c.ready(nil)); got != step.want {
				t.Errorf("%q, want %q", got, step.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRequestsAreCounted checks the counts of a manager's requests, whole and trimmed.
func TestRequestsAreCounted(t *testing.T) {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	c := &requestsCollector{
		now: func() time.Time { return noon.Add(time.Minute) }, signers: map[string]bool{"example.com/ours": true}, store: store,
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	check := func(labels string, requests, oldest float64) {
		t.Helper()
		signer, state, _ := strings.Cut(labels, " ")
		got := [2]float64{gauge(t, registry, "csr_requests", signer, state), gauge(t, registry, "csr_requests_oldest_seconds", signer, state)}
		if got != [2]float64{requests, oldest} {
			t.Errorf("%s: %v, want %v and %v", labels, got, requests, oldest)
		}
	}
	if families, err := registry.Gather(); err != nil || len(families) != 2 || len(families[0].GetMetric()) != 2*len(csr.States()) {
		t.Errorf("%v, error %v", families, err)
	}
	for _, state := range csr.States() {
		check("example.com/ours "+string(state), 0, 0)
		check("other "+string(state), 0, 0)
	}
	leaving := newRequest("leaving", "example.com/ours", noon.Add(-9*time.Hour))
	leaving.DeletionTimestamp = &metav1.Time{Time: noon}
	for _, obj := range []*request{
		leaving, newRequest("older", "example.com/ours", noon.Add(-time.Hour)), newRequest("newer", "example.com/ours", noon),
		newRequest("foreign", "example.com/foreign", noon), newRequest("denied", "example.com/ours", noon.Add(-2*time.Hour), "Denied"),
	} {
		trimmed, err := (csr.Trim{}).Transform(obj)
		if err := errors.Join(err, store.Add(trimmed)); err != nil {
			t.Fatal(err)
		}
	}
	check("example.com/ours Pending", 3, 3660)
	check("other Pending", 1, 60)
	check("example.com/ours Denied", 1, 7260)
	check("other Denied", 0, 0)
}

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// TestSelfCheckRepeats checks when a check runs again: an hour after a success, and a minute after a failure or an unknown
// result. Each change is logged once, and is in the metrics.
func TestSelfCheckRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		status, runs, logged := check.Failed, 0, []string(nil)
		task := &checkTask{ask: func(context.Context) []check.Result {
			mu.Lock()
			defer mu.Unlock()
			runs++
			return []check.Result{{Check: "test-repeats", Subject: "it", Status: status, Evidence: "seen"}}
		}}
		s := &selfCheck{interval: time.Hour, clock: clock.RealClock{}, tasks: []*checkTask{task},
			log: funcr.New(func(_, args string) {
				mu.Lock()
				defer mu.Unlock()
				logged = append(logged, args)
			}, funcr.Options{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Start(ctx) }()
		for i, step := range []struct {
			pause time.Duration
			next  check.Status // the result of the next run
			runs  int          // by then
			now   check.Status
			want  []string // is logged
		}{
			{0, check.Failed, 1, check.Failed, []string{
				`"Self-check completed" "check"="test-repeats" "result"="failed" "questions"=1`,
				`"Self-check failed" "error"=null "check"="test-repeats" "subject"="it" "result"="failed" "evidence"="seen" "nextStep"=""`,
			}},
			{59 * time.Second, check.Failed, 1, check.Failed, nil},
			{time.Second, check.Unknown, 2, check.Failed, nil},
			{time.Minute, check.OK, 3, check.Unknown, []string{"Self-check could not complete"}},
			{time.Minute, check.OK, 4, check.OK, []string{"Self-check passes again"}},
			{59 * time.Minute, check.OK, 4, check.OK, nil},
			{time.Minute, check.OK, 5, check.OK, nil},
		} {
			time.Sleep(step.pause)
			synctest.Wait()
			mu.Lock()
			if runs != step.runs || !slices.EqualFunc(logged, step.want, strings.Contains) {
				t.Errorf("step %d: it has run %d times, and logged %q, want %+v", i, runs, logged, step)
			}
			for _, status := range check.Statuses() {
				if got := gauge(t, metrics.Registry, "csr_check_result", "test-repeats", string(status)) == 1; got != (status == step.now) {
					t.Errorf("step %d: %s is current: %t", i, status, got)
				}
			}
			status, logged = step.next, nil
			mu.Unlock()
		}
		if at := gauge(t, metrics.Registry, "csr_check_last_run_timestamp_seconds", "test-repeats"); at != float64(time.Now().Unix()) {
			t.Errorf("last run at %v", at)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type reviewer struct {
	reviewsv1.SelfSubjectAccessReviewInterface
	answer func(resource string) (allowed bool, err error)
}

type review = authorizationv1.SelfSubjectAccessReview

func (r reviewer) Create(_ context.Context, review *review, _ metav1.CreateOptions) (_ *review, err error) {
	review.Status.Allowed, err = r.answer(review.Spec.ResourceAttributes.Resource)
	return review, err
}

// TestMissingRightsAreNamed checks the metrics, the readiness and the Event while rights are denied and granted. A replica is
// ready once its rights have been reviewed, unless a right was denied. An answer that is missing changes nothing. A missing optional
// right, to write Events for example, must not page anyone. TestLostRightsAreNamed of test/rotation has the shipped rights.
func TestMissingRightsAreNamed(t *testing.T) {
	rights := []Right{
		{Verb: "test", Resource: "b", Name: "one"}, {Verb: "test", Resource: "b", Name: "two"}, {Verb: "test", Resource: "c", Optional: true},
		{Verb: "approve", Resource: "signers", Name: "example.com/a", Optional: true}, {Verb: "sign", Resource: "signers", Name: "example.com/b"},
	}
	denied, fault := "", error(nil)
	answers := reviewer{answer: func(resource string) (bool, error) { return !strings.Contains(denied, resource), fault }}
	s, recorder := &selfCheck{log: logr.Discard(), clock: clock.RealClock{}, notReady: errNotChecked}, events.NewFakeRecorder(10)
	task := &checkTask{ask: s.ownRights(clusterReviews{"": answers}, &SelfCheck{Rights: rights, Namespace: "ours"}, report.New(recorder, clock.RealClock{}))}
	const missing = "missing rights: test b one, test b two"
	if err := s.ready(nil); !errors.Is(err, errNotChecked) {
		t.Errorf("ready before anybody has asked: %v", err)
	}
	for _, test := range []struct {
		denied string
		fault  error
		failed string // the check with this result
		want   string // how many rights of b and c are missing, the readiness and the Event
	}{
		{"", errors.New("timeout"), "", "0 0 <nil>"},
		{"b", nil, "own-rights", "2 0 " + missing + " Warning RightsMissing " + missing +
			": apply the roles and bindings of the manager's manifests; its log says which manifest has which right"},
		{"", errors.New("timeout"), "", "2 0 " + missing},
		{"c", nil, "optional-rights", "0 1 <nil>"},
		{"", nil, "", "0 0 <nil>"},
		{"signers", nil, "own-rights optional-rights", "0 0 missing rights: sign signers example.com/b Warning RightsMissing missing rights: sign " +
			"signers example.com/b: apply the roles and bindings of the manager's manifests; its log says which manifest has which right off"},
		{"", errors.New("timeout"), "", "0 0 missing rights: sign signers example.com/b off"},
		{"", nil, "", "0 0 <nil>"},
	} {
		denied, fault = test.denied, test.fault
		s.run(t.Context(), task)
		got := fmt.Sprint(gauge(t, metrics.Registry, "csr_check_missing_rights", "", "b", "test"), gauge(t, metrics.Registry, "csr_check_missing_rights", "", "c", "test")) +
			" " + fmt.Sprint(s.ready(nil))
		for len(recorder.Events) > 0 {
			got += " " + <-recorder.Events
		}
		if off, _ := s.mayNotApprove.Load("example.com/a"); off == true {
			got += " off"
		}
		if _, found := s.mayNotApprove.Load("example.com/b"); found {
			t.Errorf("without %q: the right to sign switches rules off", test.denied)
		}
		for _, name := range []string{"own-rights", "optional-rights"} {
			if failed := gauge(t, metrics.Registry, "csr_check_result", name, "failed") == 1; failed != strings.Contains(test.failed, name) {
				t.Errorf("without %q, error %v: %s has failed: %t", test.denied, test.fault, name, failed)
			}
		}
		if got != test.want {
			t.Errorf("without %q, error %v: %s, want %s", test.denied, test.fault, got, test.want)
		}
	}
}

// gauge returns the value of a gauge with labels, which are sorted.
func gauge(t *testing.T, registry prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			same := func(label *dto.LabelPair, value string) bool { return label.GetValue() == value }
			if family.GetName() == name && slices.EqualFunc(metric.GetLabel(), labels, same) {
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no %s%v", name, labels)
	return 0
}
