package integration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

const (
	// faultyRequests is the size of a mass join.
	faultyRequests = 500
	// usualRequests is the number of joins without faults.
	usualRequests = 100
	// servedWithin is how much longer than those 95 % of the requests may take. A call that hangs ends after 45 seconds, and
	// few requests meet two of them. A watch that was often cut comes back after half a minute.
	servedWithin = 90 * time.Second
)

// storm returns the faults for the manager. Of all calls, 15 % fail before and 15 % after the API server has executed
// them. 5 % are refused for a second, 5 % are reset and 1 % hang. Watches are cut every three seconds.
func storm() []faults.Rule {
	return []faults.Rule{
		{Share: 0.15, Do: faults.Answer(500)},
		{Share: 0.15, Do: faults.Answer(500).Landed()},
		{Share: 0.05, Do: faults.Answer(429).RetryAfter(time.Second)},
		{Share: 0.025, Do: faults.Reset()},
		{Share: 0.025, Do: faults.Reset().Landed()},
		{Share: 0.005, Do: faults.Hang()},
		{Share: 0.005, Do: faults.Hang().Landed()},
		{Verbs: faults.Watch, Do: faults.Cut(3 * time.Second)},
	}
}

// TestServesAllUnderFaults joins 500 kubelets while the calls of the manager fail by a seeded schedule.
func TestServesAllUnderFaults(t *testing.T) {
	unshared(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	proxy, err := faults.Start(controlPlane(t).Config, 11)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	cfg := rest.CopyConfig(proxy.Config)
	cfg.BearerToken = serviceAccountConfig(t).BearerToken
	records := filepath.Join(t.TempDir(), "audit.log")
	startManager(t, cfg, "--audit-log-path", records)
	leaderAfter(t, "")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "first")), csr.Issued)

	usual := slices.Max(joinAll(t, "usual", usualRequests))
	proxy.Use(storm()...)
	took := joinAll(t, "stormy", faultyRequests)
	slices.Sort(took)
	t.Logf("slowest without faults %s; with faults p50 %s, p95 %s, slowest %s; applied %v",
		usual, percentile(took, 50), percentile(took, 95), took[len(took)-1], proxy.Applied())
	if most := percentile(took, 95); most > usual+servedWithin {
		t.Errorf("95 %% of the requests took up to %s, without faults %s", most, usual)
	}
	for i, applied := range proxy.Applied() {
		if applied == 0 {
			t.Errorf("rule %d never applied", i)
		}
	}
	recorded(t, records)
}

// joinAll creates requests of kubelets, each once, and returns how long each took until it was issued.
func joinAll(t *testing.T, name string, count int) []time.Duration {
	t.Helper()
	label := client.MatchingLabels{"join": name}
	t.Cleanup(func() { deleteRequests(t, label) })
	payloads := make([]*request, count)
	for i := range payloads {
		payloads[i] = nodeRequest(t, fmt.Sprintf("%s-%03d", name, i))
		payloads[i].GenerateName, payloads[i].Name, payloads[i].Labels = "", fmt.Sprintf("%s-%03d", name, i), label
	}
	issued := issuedRequests(t, label)
	var mu sync.Mutex
	began := map[string]time.Time{}
	var group sync.WaitGroup
	defer group.Wait()
	joiner := as(t, "joiner")
	for creator := range 10 {
		group.Go(func() {
			for i := creator; i < count; i += 10 {
				mu.Lock()
				began[payloads[i].Name] = time.Now()
				mu.Unlock()
				if err := joiner.Create(t.Context(), payloads[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended, giveUp := map[string]time.Duration{}, time.After(3*time.Minute)
	for len(ended) < count {
		select {
		case obj := <-issued:
			mu.Lock()
			ended[obj.Name] = time.Since(began[obj.Name])
			mu.Unlock()
		case <-giveUp:
			for _, obj := range payloads {
				if _, served := ended[obj.Name]; !served {
					t.Errorf("%s was not served within three minutes: %+v", obj.Name, reload(t, obj).Status.Conditions)
				}
			}
			t.FailNow()
		}
	}
	var took []time.Duration
	for _, one := range ended {
		took = append(took, one)
	}
	return took
}

// issuedRequests returns each request with label once, as soon as it is issued. It reopens a watch that ends.
func issuedRequests(t *testing.T, label client.MatchingLabels) <-chan *request {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(controlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	issued, seen := make(chan *request, 10_000), map[types.UID]bool{}
	note := func(obj any) {
		if found := obj.(*request); csr.StateOf(found) == csr.Issued && !seen[found.UID] {
			seen[found.UID] = true
			issued <- found
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewFilteredListWatchFromClient(clientset.CertificatesV1().RESTClient(), "certificatesigningrequests", "",
			func(options *metav1.ListOptions) { options.LabelSelector = labels.FormatLabels(label) }),
		ObjectType: &request{},
		Handler:    toolscache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) }},
	})
	go informer.RunWithContext(t.Context())
	eventually(t, "the requests are watched", func(context.Context) error {
		if !informer.HasSynced() {
			return errors.New("they are not yet")
		}
		return nil
	})
	return issued
}

// recorded checks that each request has the record of its decision. Its certificate must have a record and never be
// recorded as discarded.
func recorded(t *testing.T, file string) {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := admin(t).List(t.Context(), list, client.MatchingLabels{"join": "stormy"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the records of all requests", func(context.Context) error {
		decided, signed, discarded := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, record := range auditRecords(t, file) {
			switch record.Event {
			case audit.Decided:
				decided[record.Name] = decided[record.Name] || record.Verdict == "Approve"
			case audit.Signed:
				signed[record.Serial] = true
			case audit.Discarded:
				discarded[record.Serial] = true
			}
		}
		var undecided, unsigned, wrong []string
		for i := range list.Items {
			obj := &list.Items[i]
			serial := leaf(t, obj).SerialNumber.Text(16)
			if !decided[obj.Name] {
				undecided = append(undecided, obj.Name)
			}
			if !signed[serial] {
				unsigned = append(unsigned, obj.Name)
			}
			if discarded[serial] {
				wrong = append(wrong, obj.Name)
			}
		}
		if len(undecided)+len(unsigned)+len(wrong) > 0 || len(list.Items) != faultyRequests {
			return fmt.Errorf("of %d requests %d have no Decided record %v, %d no Signed record %v, %d are Discarded %v",
				len(list.Items), len(undecided), undecided, len(unsigned), unsigned, len(wrong), wrong)
		}
		return nil
	})
}

// TestHungDeleteHoldsUpNoOther has one hanging delete of the cleaner: the others continue, and it is retried.
func TestHungDeleteHoldsUpNoOther(t *testing.T) {
	unshared(t)
	proxy := throughFaults(t, roleConfig(t, "cleaner"),
		faults.Rule{Verbs: []string{"delete"}, Resources: []string{"certificatesigningrequests"}, Times: 1, Do: faults.Hang()})
	var due []*request
	for i := range 20 {
		obj := nodeRequest(t, fmt.Sprint("due-", i))
		obj.Spec.SignerName = "example.com/foreign"
		due = append(due, createRequest(t, admin(t), obj))
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: [csrcleaner]
cleaning: {signers: [{name: example.com/foreign, retention: {pending: 2s}}]}
`))
	startManager(t, proxy.Config, "--config", file, "--leader-elect=false")
	gone := func(objs []*request) (left int) {
		for _, obj := range objs {
			if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(obj), &request{}); !apierrors.IsNotFound(err) {
				left++
			}
		}
		return left
	}
	eventually(t, "the others are deleted", func(context.Context) error {
		if left := gone(due); left > 1 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
	// The hanging delete ends after 45 seconds, and is then repeated. All others come before that.
	var hung string
	others := map[string]bool{}
	for _, call := range proxy.Calls() {
		if call.Verb != "delete" {
			continue
		}
		if call.Fault == "Hang" {
			hung = call.Name
		} else if call.Name == hung {
			break
		} else {
			others[call.Name] = true
		}
	}
	if want := len(due) - 1; hung == "" || len(others) != want {
		t.Errorf("%d others were deleted while the delete of %q hung, want %d", len(others), hung, want)
	}
	within(t, 90*time.Second, "the last one is deleted", func(context.Context) error {
		if left := gone(due); left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
}
