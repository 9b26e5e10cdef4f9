//go:build nightly

package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// shared is the control plane of all tests. They use ConfigMaps, each in a namespace named after the test.
var (
	shared *cluster.Cluster
	admin  *kubernetes.Clientset
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, fmt.Errorf("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	shared, err = cluster.Start(cluster.Token{Token: "someone-token", User: "someone", UID: "s-1", Groups: "system:masters"})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.Stop()) }()
	if admin, err = kubernetes.NewForConfig(shared.Config); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// fixture is a proxy, a client through it that does not retry, and a namespace.
type fixture struct {
	*Proxy
	client    *kubernetes.Clientset
	namespace string
}

func setup(t *testing.T, rules ...Rule) *fixture {
	t.Helper()
	proxy, err := Start(shared.Config, 1, rules...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	namespace := strings.ToLower(t.Name())
	namespace = namespace[strings.LastIndex(namespace, "/")+1:]
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(proxy.Config)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{proxy, client, namespace}
}

func (f *fixture) create(ctx context.Context, name string) error {
	_, err := f.client.CoreV1().ConfigMaps(f.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// stored reports whether the API server has the ConfigMap.
func (f *fixture) stored(t *testing.T, name string) bool {
	t.Helper()
	_, err := admin.CoreV1().ConfigMaps(f.namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestFaultsOfAWrite(t *testing.T) {
	creates := func(do Action) Rule {
		return Rule{Verbs: []string{"create"}, Resources: []string{"configmaps"}, Do: do}
	}
	gaveUp := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	// The kernel reports a reset once. If the client's write gets it, its read gets the end of the connection.
	connectionReset := func(err error) bool {
		return utilnet.IsConnectionReset(err) || errors.Is(err, io.ErrUnexpectedEOF)
	}
	brokenOff := func(err error) bool { return err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown }
	for name, test := range map[string]struct {
		do     Action
		want   func(error) bool
		status int // that the client got
		stored bool
	}{
		"none":                   {do: Action{}, want: func(err error) bool { return err == nil }, status: 201, stored: true},
		"already-exists":         {do: Answer(409), want: apierrors.IsAlreadyExists, status: 409},
		"internal-error":         {do: Answer(500), want: apierrors.IsInternalError, status: 500},
		"internal-error-landed":  {do: Answer(500).Landed(), want: apierrors.IsInternalError, status: 500, stored: true},
		"too-many-requests":      {do: Answer(429), want: apierrors.IsTooManyRequests, status: 429},
		"hang":                   {do: Hang(), want: gaveUp},
		"hang-landed":            {do: Hang().Landed(), want: gaveUp, stored: true},
		"reset":                  {do: Reset(), want: brokenOff},
		"reset-landed":           {do: Reset().Landed(), want: brokenOff, stored: true},
		"connection-reset":       {do: ResetConnection(), want: connectionReset},
		"connection-reset-after": {do: ResetConnection().Landed(), want: connectionReset, stored: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, creates(test.do))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := f.create(ctx, "object"); !test.want(err) {
				t.Errorf("error %v (%T)", err, err)
			}
			if stored := f.stored(t, "object"); stored != test.stored {
				t.Errorf("stored: %t", stored)
			}
			calls := f.Calls()
			if len(calls) != 1 || calls[0].Verb != "create" || calls[0].Resource != "configmaps" || calls[0].Fault != test.do.String() {
				t.Errorf("calls %+v", calls)
			}
			// The client may have the answer before the proxy has noted it.
			_ = wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 5*time.Second, true, func(context.Context) (bool, error) {
				calls = f.Calls()
				return calls[0].Ended, nil
			})
			if !calls[0].Ended || calls[0].Status != test.status {
				t.Errorf("ended: %t, status %d, want %d", calls[0].Ended, calls[0].Status, test.status)
			}
		})
	}
}

func TestRetryAfterReachesTheClient(t *testing.T) {
	f := setup(t, Rule{Do: Answer(429).RetryAfter(time.Second), Times: 1})
	start := time.Now()
	if err := f.create(t.Context(), "object"); err != nil {
		t.Error(err) // client-go retries by itself
	}
	if took := time.Since(start); took < time.Second || len(f.Calls()) != 2 {
		t.Errorf("%d calls took %s, want 2 within a second or more", len(f.Calls()), took)
	}
}

func TestRulesSelectRequests(t *testing.T) {
	f := setup(t,
		Rule{Verbs: Reads, Path: regexp.MustCompile(`/configmaps/one$`), Do: Answer(500)},
		Rule{Resources: []string{"serviceaccounts/token"}, Do: Answer(409)},
		Rule{Verbs: []string{"delete"}, Skip: 1, Times: 1, Do: Answer(404)},
	)
	maps := f.client.CoreV1().ConfigMaps(f.namespace)
	for _, name := range []string{"one", "two", "three"} {
		if err := f.create(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	_, one := maps.Get(t.Context(), "one", metav1.GetOptions{})
	_, two := maps.Get(t.Context(), "two", metav1.GetOptions{})
	if !apierrors.IsInternalError(one) || two != nil {
		t.Errorf("get one: %v, get two: %v", one, two)
	}
	var deleted []bool
	for _, name := range []string{"one", "two", "three"} {
		deleted = append(deleted, maps.Delete(t.Context(), name, metav1.DeleteOptions{}) == nil)
	}
	if !slices.Equal(deleted, []bool{true, false, true}) {
		t.Errorf("deleted: %v", deleted)
	}
	if got := f.Applied(); !slices.Equal(got, []int{1, 0, 1}) {
		t.Errorf("applied %v", got)
	}
}

// TestScheduleFollowsFromTheSeed draws for the same requests in two orders, and with another seed.
func TestScheduleFollowsFromTheSeed(t *testing.T) {
	rules := []Rule{{Share: 0.15, Do: Answer(500)}, {Share: 0.15, Do: Answer(500).Landed()}, {Share: 0.05, Do: Hang()}}
	fates := func(seed uint64, backwards bool) map[string]string {
		p := &Proxy{seed: seed}
		p.Use(rules...)
		order := make([]int, 10_000)
		for i := range order {
			order[i] = i
		}
		if backwards {
			slices.Reverse(order)
		}
		found := map[string]string{}
		for _, i := range order {
			for attempt := range 2 {
				action, _, _ := p.decide(&Call{Verb: "update", Path: fmt.Sprint("/object-", i)})
				found[fmt.Sprint(i, attempt)] = action.String()
			}
		}
		return found
	}
	once := fates(1, false)
	if !reflect.DeepEqual(once, fates(1, true)) {
		t.Error("the schedule depends on the order")
	}
	if reflect.DeepEqual(once, fates(2, false)) {
		t.Error("the schedule does not depend on the seed")
	}
	count := map[string]int{}
	for _, fate := range once {
		count[fate]++
	}
	for fate, want := range map[string]int{"": 13_000, "Answer 500": 3_000, "Answer 500 landed": 3_000, "Hang": 1_000} {
		if got := count[fate]; got < want*9/10 || got > want*11/10 {
			t.Errorf("%q: %d of 20000, want about %d", fate, got, want)
		}
	}
}

func TestWatchIsCutOrStalls(t *testing.T) {
	for name, test := range map[string]struct {
		do   Action
		ends bool
	}{"cut": {Cut(500 * time.Millisecond), true}, "stall": {Stall(500 * time.Millisecond), false}} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, Rule{Verbs: Watch, Do: test.do})
			watcher, err := f.client.CoreV1().ConfigMaps(f.namespace).Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer watcher.Stop()
			if err := f.create(t.Context(), "before"); err != nil {
				t.Fatal(err)
			}
			if event, _ := next(watcher, time.Second); event.Type != watch.Added {
				t.Errorf("first event %+v", event)
			}
			time.Sleep(600 * time.Millisecond)
			if err := f.create(t.Context(), "after"); err != nil {
				t.Error(err) // other requests continue
			}
			event, timedOut := next(watcher, time.Second)
			if event.Type == watch.Added || timedOut == test.ends {
				t.Errorf("then: %+v, nothing came: %t", event, timedOut)
			}
		})
	}
}

func TestUseEndsWatches(t *testing.T) {
	f := setup(t)
	watcher, err := f.client.CoreV1().ConfigMaps(f.namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	f.Use()
	if event, timedOut := next(watcher, 5*time.Second); event.Type == watch.Added || timedOut {
		t.Errorf("the watch goes on: %+v, nothing came: %t", event, timedOut)
	}
}

// next returns the next event, or the zero event at the end of the watch.
func next(watcher watch.Interface, patience time.Duration) (event watch.Event, timedOut bool) {
	select {
	case event := <-watcher.ResultChan():
		return event, false
	case <-time.After(patience):
		return watch.Event{}, true
	}
}

func TestDateIsShifted(t *testing.T) {
	f := setup(t,
		Rule{Do: ShiftDate(time.Hour)},
		Rule{Path: regexp.MustCompile("^/version$"), Times: 1, Do: Answer(503)},
	)
	transport, err := rest.TransportFor(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{503, 200} { // a response of the proxy, and a response of the API server
		response, err := (&http.Client{Transport: transport}).Get(f.Config.Host + "/version")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		date, err := http.ParseTime(response.Header.Get("Date"))
		if off := time.Until(date) - time.Hour; err != nil || off.Abs() > 10*time.Second || response.StatusCode != status {
			t.Errorf("status %d, Date %q is off by %s: %v", response.StatusCode, response.Header.Get("Date"), off, err)
		}
	}
}

func TestTokenOfTheClientIsKept(t *testing.T) {
	f := setup(t)
	cfg := rest.CopyConfig(f.Config)
	cfg.BearerToken = "someone-token"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, through := range map[string]*kubernetes.Clientset{"someone": client, "admin": f.client} {
		review, err := through.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil || review.Status.UserInfo.Username != name {
			t.Errorf("user %q, want %q: %v", review.Status.UserInfo.Username, name, err)
		}
	}
}

func TestDownRefusesConnections(t *testing.T) {
	f := setup(t)
	watcher, err := f.client.CoreV1().ConfigMaps(f.namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if err := f.Down(); err != nil {
		t.Fatal(err)
	}
	if event, timedOut := next(watcher, time.Second); timedOut {
		t.Errorf("the watch goes on: %+v", event)
	}
	if err := f.create(t.Context(), "object"); !utilnet.IsConnectionRefused(err) {
		t.Errorf("error %v", err)
	}
	if err := f.Up(); err != nil {
		t.Fatal(err)
	}
	if err := f.create(t.Context(), "object"); err != nil {
		t.Error(err)
	}
}

// TestHTTP1 checks that faults also work without HTTP/2 streams.
func TestHTTP1(t *testing.T) {
	f := setup(t, Rule{Path: regexp.MustCompile("hang$"), Do: Hang()}, Rule{Path: regexp.MustCompile("reset$"), Do: Reset()})
	cfg := rest.CopyConfig(f.Config)
	cfg.NextProtos = []string{"http/1.1"}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: transport, Timeout: time.Second}
	for path, fails := range map[string]bool{"/version": false, "/hang": true, "/reset": true} {
		response, err := client.Get(cfg.Host + path)
		if err == nil {
			text, _ := bufio.NewReader(response.Body).ReadString(0)
			_ = response.Body.Close()
			if fails || !strings.Contains(text, "gitVersion") || response.ProtoMajor != 1 {
				t.Errorf("%s: %s %s %q", path, response.Proto, response.Status, text)
			}
		}
		if (err != nil) != fails {
			t.Errorf("%s: %v", path, err)
		}
	}
}
