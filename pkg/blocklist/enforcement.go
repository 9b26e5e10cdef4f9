package blocklist

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
)

var enforced = metric.Gauge("csr_block_list_enforced",
	"1 if the API server refuses what the block list in use names, 0 if it does not, or if that is unknown.", "server")

// Enforcement finds out which API servers refuse what the list names, and publishes it, on the leader only.
type Enforcement struct {
	// APIServers are the host:port of all API servers. If empty, they are the endpoints of the Service kubernetes.
	APIServers []string
	// ServerName is the name in their certificates. If empty, it is probe.ServerName.
	ServerName string

	list   *List
	live   client.Reader // past every cache
	client client.Client
	config *rest.Config
	http   *http.Client // for all API servers, so that their connections serve the next questions too

	last entries.Enforcement // that was published
}

const (
	// checkEvery is the time between two checks while all API servers enforce the list.
	checkEvery = 5 * time.Minute
	// patience is how long an API server may take to read a new version before an Event names it.
	patience = 15 * time.Second
)

// Start checks after each change of the list, and every five minutes, until ctx ends. While an API server does not enforce the
// list, it checks after a second at first, and each minute in the end.
func (e *Enforcement) Start(ctx context.Context) error {
	if published := (&corev1.ConfigMap{}); call.Get(ctx, e.live, e.status(), published) == nil {
		_ = json.Unmarshal([]byte(published.Data[entries.StatusKey]), &e.last) // it only says since when
	}
	direct := rest.CopyConfig(e.config)
	direct.ServerName = cmp.Or(e.ServerName, probe.ServerName)
	direct.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	var err error
	if e.http, err = rest.HTTPClientFor(direct); err != nil {
		return fmt.Errorf("reach each API server: %w", err)
	}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: e.list.name.Namespace, Name: e.list.name.Name}} // that Events are about
	changed := e.list.Subscribe()
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}
	pause, reported := pauses, ""
	for {
		wanted, eventType, reason, message := checkEvery, corev1.EventTypeNormal, "BlockListEnforced", "all API servers refuse what the block list names"
		if err := e.check(ctx); err != nil {
			wanted, eventType, reason, message = pause.Step(), corev1.EventTypeWarning, "BlockListNotEnforced", err.Error()
		} else {
			pause = pauses
		}
		if message != reported && (wanted == checkEvery || wanted > patience) {
			e.list.log.Info("Asked the API servers whether they enforce the block list", "reason", reason, "message", message)
			report.Event(e.list.recorder, list, eventType, "Enforce", reason, message)
			reported = message
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wanted):
		case <-changed:
			pause, reported = pauses, ""
		}
	}
}

// check asks all API servers, publishes what has changed, and returns the problems.
func (e *Enforcement) check(ctx context.Context) error {
	blocked, err := e.list.Entries()
	if err != nil {
		return err
	}
	addresses := e.APIServers
	if len(addresses) == 0 {
		if addresses, err = probe.Endpoints(ctx, e.live); len(addresses) > entries.MostServers {
			err = fmt.Errorf("the Service kubernetes has %d endpoints, want at most %d: delete EndpointSlices that no API server wrote", len(addresses), entries.MostServers)
		}
		if err != nil {
			for _, server := range e.last.Servers { // it is unknown whether they enforce this version
				enforced.WithLabelValues(server.Address).Set(0)
			}
			return err
		}
	}
	found := entries.Enforcement{Digest: blocked.Digest(), Servers: make([]entries.Server, len(addresses))}
	var asking errgroup.Group
	for i, address := range addresses {
		asking.Go(func() error {
			server := entries.Server{Address: address, Since: clock.RealClock{}.Now().UTC().Truncate(time.Second)}
			if err := e.enforces(ctx, address, blocked.Canary()); err != nil {
				server.Problem = err.Error()
			}
			for _, before := range e.last.Servers {
				if before.Address == address && before.Problem == server.Problem && e.last.Digest == found.Digest {
					server.Since = before.Since
				}
			}
			found.Servers[i] = server
			return nil
		})
	}
	_ = asking.Wait() // each problem is in its server
	return e.publish(ctx, found)
}

// control is the name of a user that does not exist, and that no list can name.
const control = entries.CanaryPrefix + "control"

// enforces returns why the API server at address is not known to refuse exactly what the list of canary names, or nil.
func (e *Enforcement) enforces(ctx context.Context, address, canary string) error {
	ctx, cancel := context.WithTimeout(ctx, call.Timeout)
	defer cancel()
	config := rest.CopyConfig(e.config)
	config.Host = "https://" + address
	client, err := authorizationclient.NewForConfigAndClient(config, e.http)
	if err != nil {
		return err
	}
	denied := map[string]bool{}
	for _, user := range []string{canary, control} {
		review, err := client.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/", Verb: "get"},
		}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("it can't be asked: %w", err)
		}
		denied[user] = review.Status.Denied
	}
	switch {
	case denied[control]:
		return errors.New("it refuses a user that the list does not name, so its answer proves nothing")
	case !denied[canary]:
		return errors.New("it does not refuse the canary of this version: it uses an older version, or reads no file of write-authorization")
	}
	return nil
}

// status is the name of the ConfigMap with the Enforcement.
func (e *Enforcement) status() types.NamespacedName {
	return types.NamespacedName{Namespace: e.list.name.Namespace, Name: e.list.name.Name + entries.StatusSuffix}
}

// publish writes found to the ConfigMap if it has changed, and returns all problems.
func (e *Enforcement) publish(ctx context.Context, found entries.Enforcement) error {
	var problems []error
	enforced.Reset()
	for _, server := range found.Servers {
		value := 1.0
		if server.Problem != "" {
			value = 0
			problems = append(problems, fmt.Errorf("%s: %s", server.Address, server.Problem))
		}
		enforced.WithLabelValues(server.Address).Set(value)
	}
	if !reflect.DeepEqual(found, e.last) {
		text, _ := json.Marshal(found) // strings and times
		name := e.status()
		status := corev1apply.ConfigMap(name.Name, name.Namespace).WithData(map[string]string{entries.StatusKey: string(text)})
		ctx, cancel := context.WithTimeout(ctx, call.Timeout)
		defer cancel()
		if err := e.client.Apply(ctx, status, client.ForceOwnership, client.FieldOwner("csr-block-list")); err != nil {
			return errors.Join(append(problems, fmt.Errorf("publish in ConfigMap %s: %w", name, err))...)
		}
		e.last = found
	}
	return errors.Join(problems...)
}
